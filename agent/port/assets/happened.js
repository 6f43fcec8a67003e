"use strict";
// What happened: lanes of boot, attempts, outages and checkpoints up to now, and sentences.

const MOST_SENTENCES = 9;
const LANES = [["run", "--blue"], ["saved", "--good"], ["out", "--bad"]];

function drawHappened(status, series) {
  show(at("happened"), status.role === "head");
  if (status.role !== "head") return;
  const spans = spansOf(status, series);
  drawLanes(spans, status);
  const sentences = sentencesOf(status, series).sort((a, b) => b.at - a.at).slice(0, MOST_SENTENCES);
  each(at("sentences"), sentences, (parent) => {
    const item = made("li", parent);
    made("time", item);
    made("span", item);
  }, (item, { at: moment, words, kind }) => {
    setText(item.children[0], clockText(moment));
    setText(item.children[1], words);
    setClass(item.children[1], kind);
  });
}

// Milliseconds since 1970: when the run began, and the moment that the status shows.
function limitsOf(status) {
  const now = Date.parse(status.at);
  const began = now - 1000 * (status.receipt ? status.receipt.total : status.seconds);
  const first = (status.attempts || []).map(({ start }) => Date.parse(start)).filter(Number.isFinite);
  return { began: Math.min(began, ...first), now };
}

// Why an attempt was lost; "" while it runs, and after a success.
const lossOf = (attempt) => (attempt.end && attempt.exit_code !== 0 && attempt.reason) || "";

function spansOf(status, series) {
  const { began, now } = limitsOf(status);
  const attempts = status.attempts || [];
  const up = status.phase === "booting" ? now : now - 1000 * status.seconds_in_phase;
  const booted = attempts.length ? Date.parse(attempts[0].start) : up;
  const run = [{ from: began, to: booted, kind: "boot", words: "boot" }];
  if (!attempts.length && booted < now) run.push({ from: booted, to: now, kind: "attempt", words: status.phase });
  for (const attempt of attempts) {
    const to = attempt.end ? Date.parse(attempt.end) : now;
    run.push({ from: Date.parse(attempt.start), to, kind: "attempt", words: `attempt ${attempt.number}` });
    if (lossOf(attempt)) run.push({ from: to, to, kind: "lost", words: lossOf(attempt) });
  }
  const saved = (series.checkpoints || []).filter(([, moment]) => moment)
    .map(([step, moment]) => ({ from: Date.parse(moment), to: Date.parse(moment), kind: "saved", words: `checkpoint ${step}` }));
  const out = (status.outages || []).map((outage) => ({
    from: Date.parse(outage.from), to: outage.to ? Date.parse(outage.to) : now, kind: "out", words: `${outage.service} out`,
  }));
  const short = (status.shortages || []).map((shortage) => ({
    from: Date.parse(shortage.from), to: shortage.to ? Date.parse(shortage.to) : now, kind: "out", words: shortageWords(shortage),
  }));
  return { began, now, lanes: { run, saved, out: [...out, ...short] } };
}

function shortageWords(shortage) {
  const none = shortage.seconds_without_any ? `, ${durationText(shortage.seconds_without_any)} without any` : "";
  const span = shortage.to ? `for ${durationText(shortage.seconds)}` : "since then";
  return `too few members of ${shortage.service} (${shortage.group}) served ${span}${none}`;
}

function drawLanes({ began, now, lanes }, status) {
  const canvas = at("lanes");
  const { area, width, height } = fitCanvas(canvas, 74);
  const left = 78;
  const x = (moment) => left + ((width - left - 2) * (moment - began)) / Math.max(1, now - began);
  area.font = "11px system-ui, sans-serif";
  area.textBaseline = "middle";
  LANES.forEach(([name, color], lane) => {
    const y = 2 + lane * 18;
    area.textAlign = "left";
    area.fillStyle = colorOf("--quiet");
    area.fillText({ run: "attempts", saved: "checkpoints", out: "outages" }[name], 0, y + 7);
    area.fillStyle = colorOf("--empty");
    area.fillRect(left, y, width - left, 14);
    for (const span of lanes[name]) drawSpan(area, x, y, span, color);
  });

  // The axis ends now.
  area.fillStyle = colorOf("--quiet");
  const minutes = (now - began) / 60_000;
  const each = [1, 2, 5, 10, 30, 60, 120, 300, 720, 1440, 2880, 10_080].find((size) => minutes / size <= Math.max(2, width / 110)) || 43_200;
  for (let moment = Math.ceil(began / 60_000 / each) * each * 60_000; moment < now; moment += each * 60_000) {
    if (x(moment) > width - 60) break;
    area.textAlign = "center";
    line(area, x(moment), 56, x(moment), 59, colorOf("--quiet"));
    area.fillText(clockText(moment), Math.max(left + 14, x(moment)), height - 7);
  }
  area.textAlign = "right";
  area.fillText(status.verdict ? "end" : "now", width, height - 7);
  const words = Object.values(lanes).flat().map((span) => span.words).slice(-20).join(", ");
  canvas.setAttribute("aria-label", `Timeline of the run: ${words || "it boots"}`);
}

function drawSpan(area, x, y, span, color) {
  const wide = Math.max(span.kind === "lost" ? 11 : 3, x(span.to) - x(span.from));
  const place = Math.min(x(span.from), x(span.to));
  area.fillStyle = colorOf(span.kind === "boot" ? "--violet" : span.kind === "lost" ? "--bad" : color);
  area.fillRect(place, y, wide, 14);
  if (span.kind === "lost") {
    area.textAlign = "center";
    area.fillStyle = colorOf("--on-color");
    area.fillText("✕", place + wide / 2, y + 8);
  }
  if (["attempt", "boot"].includes(span.kind) && wide > 50) {
    area.textAlign = "left";
    area.fillStyle = colorOf("--on-color");
    area.fillText(span.words, place + 5, y + 8);
  }
}

function sentencesOf(status, series) {
  const found = [];
  const add = (moment, words, kind = "") => {
    if (moment && Number.isFinite(Date.parse(moment))) found.push({ at: Date.parse(moment), words, kind });
  };
  for (const attempt of status.attempts || []) {
    add(attempt.start, `attempt ${attempt.number} began${resumedAt(series, attempt.number)}`);
    if (lossOf(attempt)) add(attempt.end, `✕ attempt ${attempt.number}: ${lossOf(attempt)}`, "bad");
  }
  for (const outage of status.outages || []) {
    const seconds = outage.to ? (Date.parse(outage.to) - Date.parse(outage.from)) / 1000 : null;
    const words = seconds === null ? `${outage.service} does not answer` : `${outage.service} was out for ${durationText(seconds)}`;
    add(outage.from, `▲ ${words}`, "warn");
  }
  for (const shortage of status.shortages || []) add(shortage.from, `▲ ${shortageWords(shortage)}`, "warn");
  for (const [step, moment] of (series.checkpoints || []).slice(-3)) add(moment, `checkpoint ${step}`);
  const { began } = limitsOf(status);
  found.push({ at: began, words: beginning(status), kind: "" });
  if (status.progress) add(status.progress.last_step_at, `step ${status.progress.step}`);
  if (status.stall) add(status.at, `▲ ${status.stall.what}`, "warn");
  for (const advice of status.advice || []) add(status.at, `▲ ${advice.what}`, advice.state === "end" ? "bad" : "warn");
  if (status.loss_seconds_left !== null && status.loss_seconds_left !== undefined) add(status.at, "✕ a needed node is missing", "bad");
  if (status.verdict) add(status.at, `${status.verdict.exit_code ? "✕ " : ""}${status.verdict.reason}`, status.verdict.exit_code ? "bad" : "good");
  return found;
}

// On how many nodes the run began: those that joined, which may be fewer than it needs.
function beginning({ nodes_joined: joined, nodes_expected: expected }) {
  if (joined < expected) return `the run began; ${joined} of ${expected} nodes joined`;
  return `the run began on ${joined} ${joined === 1 ? "node" : "nodes"}`;
}

// From which step an attempt went on, and how many steps it makes again.
function resumedAt(series, number) {
  const mark = (series.attempts || []).find((one) => one.number === number);
  if (!mark || mark.after === null) return "";
  const again = mark.after - mark.first + 1;
  return ` at step ${mark.first}${again > 0 ? `; ${again} steps again` : ""}`;
}
