"use strict";
// The page: takes the status as it comes, and changes what differs. Texts of others become text
// nodes only; no markup is ever made of them.
(() => {
  const GONE_AFTER = 15;  // seconds without a status; a head sends one at least every 5 s
  const POLL = 2000;
  const DENSE = 40;       // more nodes than this get thin bars
  const SVG = "http://www.w3.org/2000/svg";
  const JOINED = "following the head";
  const PHASES = {
    "finding the head": "finding", "joining Ray": "joining", "following the head": "there",
    "silent": "silent", "leaving": "leaving", "left": "leaving",
    "booting": "joining", "resuming": "joining", "running": "there", "stopping": "leaving",
  };
  const LEGEND = [
    ["finding", "finding the head"], ["joining", "booting, joining Ray"],
    ["there", "joined, running"], ["other", "submitting, judging"], ["silent", "silent"],
    ["leaving", "leaving"],
  ];
  const NODE_KINDS = { booting: "busy", joined: "good", silent: "bad", lost: "bad", left: "dim" };
  const ITEM_KINDS = { pending: "busy", ready: "good", lost: "bad" };
  const JOB_KINDS = { running: "good", succeeded: "good", failed: "bad", pending: "busy" };

  const at = (id) => document.getElementById(id);
  let status = null;
  let receivedAt = 0;  // when the last status came, on the clock of this page
  let why = "";   // why there is no further one, where that is known

  // --- texts ----------------------------------------------------------------------------------

  const long = (seconds) => {
    const s = Math.max(0, Math.round(seconds));
    if (s < 120) return `${s} s`;
    const [unit, size, smaller, part] = s < 7200 ? ["min", 60, "s", 1] : ["h", 3600, "min", 60];
    const rest = Math.floor((s % size) / part);
    return `${Math.floor(s / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
  };
  const quick = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`);
  const text = (node, words) => { if (node.textContent !== words) node.textContent = words; };
  const kind = (node, name) => { if (node.className !== name) node.className = name; };
  const show = (node, yes) => { if (node.hidden === yes) node.hidden = !yes; };
  const passed = () => (performance.now() - receivedAt) / 1000;

  function made(name, parent, className) {
    const node = document.createElement(name);
    if (className) node.className = className;
    parent.append(node);
    return node;
  }

  // As many children as there are items, each brought up to date in its place.
  function each(parent, items, make, update) {
    while (parent.children.length > items.length) parent.lastElementChild.remove();
    while (parent.children.length < items.length) make(parent);
    items.forEach((item, index) => update(parent.children[index], item));
  }

  function table(body, rows) {
    each(body, rows, (parent) => made("tr", parent), (row, cells) => {
      each(row, cells, (parent) => made("td", parent), (cell, content) => {
        const [words, name] = Array.isArray(content) ? content : [content, ""];
        text(cell, words === null || words === undefined ? "" : String(words));
        kind(cell, name || "");
      });
    });
  }

  // --- what came ------------------------------------------------------------------------------

  function take(news) {
    status = news;
    receivedAt = performance.now();
    why = "";
    draw();
  }

  function draw() {
    const job = status.job || null;
    text(at("run"), runTitle() || `${status.role || ""} ${status.name || ""}`);
    document.title = `${status.phase} · ${runTitle() || "pod-agent"}`;
    text(at("headline"), headline(job));
    drawSpent();
    drawWaits();
    drawVerdict();
    drawWarnings();
    drawJob(job);
    drawServices();
    drawNodes();
    tick();
  }

  function runTitle() {
    const [id, name] = [status.run_id, status.run_name];
    if (!name) return id ? `run ${id}` : "";
    return name.includes(id) ? name : `${name} (run ${id})`;
  }

  function headline(job) {
    const of = job ? `; job ${job.name}: ${job.status}` : "";
    const cost = typeof status.cost === "number" ? `; $${status.cost.toFixed(2)} so far` : "";
    return `${status.role === "head" ? "The head is" : "This worker is"} ${status.phase}${of}${cost}`;
  }

  // What the run's time was spent on, and money where the price is known.
  function drawSpent() {
    const { seconds, cost, has_steps: hasSteps } = status.receipt || { seconds: {}, cost: null };
    const isJob = (part) => hasSteps === false && ["first_step", "training"].includes(part);
    const parts = Object.entries(seconds).filter(([, spent]) => spent >= 1).map(([part, spent]) => {
      const money = cost && cost[part] > 0 ? `$${cost[part].toFixed(2)}` : "";
      const notes = [money, isJob(part) ? "no steps known" : ""].filter(Boolean).join(", ");
      const name = isJob(part) ? "job" : part.replace("_", " ");
      return `${name} ${long(spent)}${notes ? ` (${notes})` : ""}`;
    });
    show(at("spent"), parts.length > 0);
    text(at("spent"), `Time: ${parts.join(", ")}`);
  }

  function drawWaits() {
    const waits = (status.waits || []).filter((wait) => !wait.following);
    show(at("waits"), waits.length > 0);
    each(at("waits").querySelector("ul"), waits, (parent) => {
      const item = made("li", parent);
      made("span", item);
      made("span", item, "quiet");
    }, (item, wait) => {
      text(item.children[0], `${wait.what}${wait.evidence ? `: ${wait.evidence}` : ""}`);
      text(item.children[1], ` (${long(wait.seconds_left - passed())} left)`);
    });
  }

  function drawVerdict() {
    const verdict = status.verdict;
    show(at("verdict"), Boolean(verdict));
    if (!verdict) return;
    const remedy = verdict.remedy ? ` ${verdict.remedy}.` : "";
    const warns = verdict.reason.startsWith("warning: ");
    const headline = warns ? verdict.reason : `${verdict.kind}: ${verdict.reason}`;
    text(at("verdict"), `${headline} (exit code ${verdict.exit_code}).${remedy}`);
    kind(at("verdict"), verdict.exit_code === 0 && !warns ? "verdict good" : "verdict");
  }

  function drawWarnings() {
    const found = [...(status.warnings || [])];
    for (const node of status.nodes || []) {
      if (node.last_error) found.push({ check: node.name, what: node.last_error, remedy: "" });
    }
    show(at("warnings"), found.length > 0);
    each(at("warnings").querySelector("dl"), found.flatMap((one) => [one, one]), (parent) => {
      made(parent.children.length % 2 ? "dd" : "dt", parent);
    }, (node, one) => {
      const remedy = one.remedy ? ` ${one.remedy}` : "";
      text(node, node.tagName === "DT" ? one.check : `${one.what}.${remedy}`);
    });
  }

  function drawJob(job) {
    show(at("job"), Boolean(job));
    if (!job) return;
    const attempt = job.attempt > 1 ? `, attempt ${job.attempt}` : "";
    text(at("job-text"), `${job.name}: ${job.status}${attempt}`);
    kind(at("job-text"), JOB_KINDS[job.status] || "");
    const attempts = status.attempts || [];
    show(at("attempts"), attempts.length > 1 || attempts.some((one) => one.reason));
    table(at("attempts").querySelector("tbody"), attempts.map((one) => [
      one.number, one.start, one.end, one.exit_code, one.reason,
    ]));
    const lines = status.job_tail || [];
    show(at("tail"), lines.length > 0);
    const pre = at("tail").querySelector("pre");
    const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
    text(pre, lines.join("\n"));
    if (atEnd) pre.scrollTop = pre.scrollHeight;
    drawCurve();
  }

  function drawServices() {
    const services = (status.services || []).map((one) => [
      one.name, [one.state, ITEM_KINDS[one.state]], one.restarts, outages(one),
      one.latency ? quick(one.latency.last) : "", one.detail,
    ]);
    const said = progress("head");
    const steps = (status.prepare || []).map((one) => [
      one.name, [one.state === "ready" ? "done" : one.state, ITEM_KINDS[one.state]], "", "", "",
      one.detail || said[one.name],
    ]);
    show(at("services"), services.length + steps.length > 0);
    table(at("services").querySelector("tbody"), [...services, ...steps]);
  }

  function outages(service) {
    if (!service.outages) return service.outages === 0 ? "none" : "";
    const open = service.outage_since !== null;
    const seconds = service.outage_seconds + (open ? passed() : 0);
    const words = `${service.outages}, ${long(seconds)} in all${open ? ", not over" : ""}`;
    return open ? [words, "bad"] : words;
  }

  // --- the curve ------------------------------------------------------------------------------

  function shape(parent, name, attributes, words) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (words !== undefined) node.textContent = words;
    parent.append(node);
  }

  // How far the job is, when it will be done, and how its reward moves.
  function stepsSoFar(steps) {
    const parts = [`Step ${steps.step}${steps.of === null ? "" : ` of ${steps.of}`}`];
    if (steps.seconds_per_step !== null) {
      const each = steps.seconds_per_step;
      parts.push(`${each < 10 ? `${Number(each.toPrecision(2))} s` : long(each)} a step`);
    }
    if (steps.ends_at !== null) {
      const end = new Date(steps.ends_at);
      parts.push(`done about ${end.toLocaleString([], { dateStyle: "short", timeStyle: "short" })}`);
    }
    if (steps.reward !== null) {
      const trend = steps.reward_trend;
      const sign = trend < 0 ? "" : "+";
      const moved = trend === null ? ""
        : ` (${sign}${Number(trend.toPrecision(2))} over the last 20 steps)`;
      parts.push(`mean reward ${Number(steps.reward.toPrecision(3))}${moved}`);
    }
    return parts.join(", ");
  }

  function drawCurve() {
    const { points = [], steps = null } = status.curve || {};
    const known = status.progress || null;
    const svg = at("curve").querySelector("svg");
    show(at("curve"), known !== null);
    svg.classList.toggle("empty", !points.length);
    if (known !== null) text(at("curve-text"), stepsSoFar(known));
    if (!points.length) return;
    const [step, reward] = points[points.length - 1];
    const key = JSON.stringify([points.length, points[0], points[points.length - 1], steps]);
    if (svg.dataset.key === key) return;
    svg.dataset.key = key;
    svg.replaceChildren();
    const values = points.map((point) => point[1]);
    const low = Math.min(0, ...values);
    const high = Math.max(low + 1e-9, ...values, 0);
    const first = points[0][0];
    const last = Math.max(first + 1, steps || 0, step);
    const x = (value) => 52 + (650 * (value - first)) / (last - first);
    const y = (value) => 190 - (170 * (value - low)) / (high - low);
    for (let part = 0; part <= 4; part += 1) {
      const value = low + ((high - low) * part) / 4;
      shape(svg, "line", { x1: 52, x2: 702, y1: y(value), y2: y(value) });
      shape(svg, "text", { x: 46, y: y(value) + 4, "text-anchor": "end" }, value.toPrecision(2));
    }
    shape(svg, "text", { x: 52, y: 212 }, `step ${first}`);
    shape(svg, "text", { x: 702, y: 212, "text-anchor": "end" }, String(last));
    shape(svg, "polyline", { points: points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ") });
    shape(svg, "circle", { cx: x(step), cy: y(reward), r: 4 });
  }

  // --- nodes ----------------------------------------------------------------------------------

  const joinedAfter = (node) => {
    const span = (node.phases || []).find(([phase]) => phase === JOINED);
    return span ? span[1] : null;
  };

  // Those that took, or take, much longer to join than half of all.
  function slowOnes(nodes, now) {
    const took = nodes.map((node) => {
      const after = joinedAfter(node);
      if (after !== null) return after;
      return node.state === "booting" ? now : null;
    });
    const known = took.filter((value) => value !== null).sort((a, b) => a - b);
    if (known.length < 2) return { slow: new Set(), median: null, took };
    const median = known[Math.floor((known.length - 1) / 2)];
    const limit = Math.max(1.5 * median, median + 5);
    const slow = new Set(nodes.filter((_, index) => took[index] !== null && took[index] > limit));
    return { slow, median, took };
  }

  function drawNodes() {
    const nodes = status.nodes || [];
    show(at("nodes"), status.role === "head" && (nodes.length > 0 || Boolean(status.phases)));
    if (status.role !== "head") return;
    const now = status.seconds;
    const { slow, median, took } = slowOnes(nodes, now);
    text(at("nodes-say"), summary(nodes, slow, median, took));
    table(at("nodes").querySelector("tbody"), nodes.map((node, index) => {
      const after = joinedAfter(node);
      const reportedAgo = node.heard_seconds_ago;
      return [
        node.rank === null ? "–" : node.rank, node.name, [node.state, NODE_KINDS[node.state]],
        node.phase, [after === null ? "" : long(after), slow.has(nodes[index]) ? "bad" : ""],
        node.ip, reportedAgo === null ? "" : `${long(reportedAgo)} ago`,
        [node.slow, node.last_error || preparing(node) || node.detail].filter(Boolean).join("; "),
      ];
    }));
    drawTimeline(nodes, slow, now);
  }

  const progress = (name) => (status.prepare_lines || {})[name] || {};

  // Which prepare step failed, or runs, and what that one said last.
  function preparing(node) {
    const named = (state) => (node.steps || []).filter((step) => step.state === state)
      .map((step) => step.name).join(", ");
    if (named("lost")) return `failed: ${named("lost")}`;
    const lines = Object.entries(progress(node.name)).map(([name, line]) => `${name}: ${line}`);
    if (lines.length) return lines.join("; ");
    return named("pending") ? `preparing: ${named("pending")}` : "";
  }

  function summary(nodes, slow, median, took) {
    if (!nodes.length) return "No worker has reported.";
    const counts = {};
    for (const node of nodes) counts[node.state] = (counts[node.state] || 0) + 1;
    const states = Object.keys(NODE_KINDS).filter((state) => counts[state]);
    const words = states.map((state) => `${counts[state]} ${state}`).join(", ");
    const many = `${nodes.length} ${nodes.length === 1 ? "worker" : "workers"}: ${words}.`;
    if (!slow.size) return many;
    const late = nodes.map((node, index) => ({ node, seconds: took[index] }))
      .filter((one) => slow.has(one.node)).sort((a, b) => b.seconds - a.seconds);
    const named = late.slice(0, 5).map(({ node, seconds }) => (
      `${node.name} ${joinedAfter(node) === null ? "not yet, " : ""}after ${long(seconds)}`
    )).join(", ");
    const more = late.length > 5 ? ` and ${late.length - 5} more` : "";
    return `${many} Slow to join: ${named}${more}; half had joined after ${long(median)}.`;
  }

  function windowEnd(nodes, now) {
    if (at("whole").checked) return Math.max(now, 1);
    const running = (status.phases || []).find(([phase]) => !["booting", "resuming", "submitting"].includes(phase));
    const joins = nodes.map(joinedAfter).filter((value) => value !== null);
    const booted = running ? running[1] : now;
    return Math.max(1, Math.min(now, 1.15 * Math.max(booted, ...joins)));
  }

  function drawTimeline(nodes, slow, now) {
    const end = windowEnd(nodes, now);
    const rows = [
      { name: status.name || "head", phases: status.phases || [], slow: false, first: true },
      ...nodes.map((node) => ({ name: node.name, phases: node.phases || [], slow: slow.has(node) })),
    ];
    const box = at("timeline");
    kind(box, nodes.length > DENSE ? "dense" : "");
    box.setAttribute("aria-label", `Timeline of the nodes. ${at("nodes-say").textContent}`);
    each(box, [...rows, null], (parent) => made("div", parent), (row, item) => {
      if (item === null) drawAxis(row, end);
      else drawRow(row, item, end, now);
    });
  }

  function drawRow(row, item, end, now) {
    if (row.children.length !== 2 || row.lastElementChild.tagName !== "DIV") {
      row.replaceChildren();
      made("b", row);
      made("div", row, "track");
    }
    kind(row, `row${item.slow ? " slow" : ""}${item.first ? " first" : ""}`);
    text(row.firstElementChild, item.name);
    const words = item.phases.map(([phase, start]) => `${phase} from ${long(start)}`).join(", ");
    const hint = `${item.name}: ${words}`;
    if (row.title !== hint) row.title = hint;
    const spans = item.phases.filter(([, start]) => start < end);
    each(row.lastElementChild, spans, (parent) => made("i", parent), (bar, [phase, start]) => {
      const index = item.phases.findIndex((span) => span[1] === start && span[0] === phase);
      const next = item.phases[index + 1];
      const stop = Math.min(end, next ? next[1] : now);
      kind(bar, PHASES[phase] || "other");
      bar.style.left = `${((100 * start) / end).toFixed(2)}%`;
      bar.style.width = `${((100 * Math.max(0, stop - start)) / end).toFixed(2)}%`;
    });
  }

  function drawAxis(row, end) {
    if (row.className !== "axis") {
      row.replaceChildren();
      row.className = "axis";
      row.removeAttribute("title");
    }
    each(row, [0, end / 2, end], (parent) => made("span", parent), (mark, value) => {
      text(mark, long(value));
    });
  }

  // --- the clock, and whether the agent answers -----------------------------------------------

  function tick() {
    if (!status) {
      if (passed() > GONE_AFTER) lost("This node's agent does not answer");
      return;
    }
    const since = passed();
    const phase = `in this phase for ${long(status.seconds_in_phase + since)}, `;
    text(at("clock"), `${status.seconds_in_phase === undefined ? "" : phase}`
      + `${long(status.seconds + since)} since the start`);
    drawWaits();
    if (!why && since <= GONE_AFTER) {
      show(at("gone"), false);
      return;
    }
    const who = status.role === "head" ? "The head" : "This worker's agent";
    const end = status.verdict ? "has left: the run is over" : "is gone: it does not answer";
    lost(`${who} ${end}. ${why}What is shown is ${long(since)} old.`);
    text(at("clock"), "");
  }

  function lost(words) {
    // a screen reader reads it once, not each second
    if (at("gone").hidden) at("gone").hidden = false;
    const plain = words.replace(/What is shown is .*/, "");
    if (at("gone").dataset.words === plain && passed() % 15 > 1) return;
    at("gone").dataset.words = plain;
    text(at("gone"), words);
  }

  // --- how news come --------------------------------------------------------------------------

  async function poll() {
    try {
      const answer = await fetch("/status", { cache: "no-store" });
      if (answer.status === 401) why = "It asks for the token again: load the page anew. ";
      else if (answer.ok) take(await answer.json());
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;  // what fetch raises where nobody answers
    }
    setTimeout(poll, POLL);
  }

  function listen() {
    const source = new EventSource("/events");
    source.onmessage = (event) => take(JSON.parse(event.data));
    source.onerror = () => {  // it calls again by itself, unless it was turned away
      if (source.readyState === EventSource.CLOSED) poll();
    };
  }

  for (const [name, words] of LEGEND) {
    const item = made("span", at("legend"));
    made("i", item, name);
    item.append(words);
  }
  at("whole").addEventListener("change", () => { if (status) drawNodes(); });
  receivedAt = performance.now();
  if (document.body.dataset.news === "events") listen(); else poll();
  setInterval(tick, 1000);
})();
