"use strict";
// The page: reads status and metrics at intervals, draws all parts, and shows its own age. A report
// of a run that has ended is the same page with its data inside, and asks nobody.

const POLL = 2000;
const POLL_HIDDEN = 15_000;
const GONE_AFTER = 15;  // seconds without an answer
let known = null;        // the status that was read last
let series = { keys: {}, meanings: {}, attempts: [], checkpoints: [], of: null };
let hasSeries = true;   // whether this reader may read /series
let receivedAt = 0;     // when the last status came, on the clock of this page
let whyOld = "";        // why there is no newer one, where that is known
let lastStep = null;    // until which the metrics were read

const isReport = () => at("data") !== null;
const passed = () => (performance.now() - receivedAt) / 1000;

function draw() {
  drawStrip(known);
  const isHead = known.role === "head";
  for (const id of ["vitals", "curves", "log"]) show(at(id), isHead);
  if (isHead) {
    drawVitals(known, series);
    drawCurves(known, series);
    drawHappened(known, series);
    drawWhatRuns(known);
    drawWarnings();
  }
  drawNodes(known);
  drawGpuHistory(known);
  drawClock();
}

// What else the checks and the job's output warn of; the exceptions have nodes and services.
function drawWarnings() {
  const warnings = (known.warnings || []).slice(-12);
  show(at("warnings"), warnings.length > 0);
  setText(at("warnings-title"), `Warnings: ${warnings.length}`);
  each(at("warnings").querySelector("ul"), warnings, (parent) => made("li", parent), (item, one) => {
    setText(item, `${one.check}: ${one.what}.${one.remedy ? ` ${one.remedy}.` : ""}`);
  });
}

// --- the clock, and whether the agent answers -------------------------------------------------------

function drawClock() {
  if (isReport()) {
    setText(at("clock"), `ended ${new Date(known.at).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })}`);
    return;
  }
  const since = passed();
  if (!known) {
    if (since > GONE_AFTER) showGone("This node's agent does not answer.");
    return;
  }
  setText(at("clock"), `up ${durationText(known.seconds + since)} · read ${durationText(since)} ago`);
  if (!whyOld && since <= GONE_AFTER) {
    show(at("gone"), false);
    return;
  }
  const who = known.role === "head" ? "The head" : "This worker's agent";
  const end = known.verdict ? "has left: the run is over." : "does not answer.";
  showGone(whyOld || `${who} ${end}`);
}

function showGone(words) {
  show(at("gone"), true);
  setText(at("gone"), `${words} What is shown is old.`);
}

// --- what is read -----------------------------------------------------------------------------------

async function poll() {
  const answer = await ask("/status?brief=1");
  if (answer && answer.status === 401) whyOld = "The token is asked for again: reload the page.";
  if (answer && answer.isOk) await take(answer.data);
  drawClock();
  setTimeout(poll, document.hidden ? POLL_HIDDEN : POLL);
}

async function take(news) {
  const isFirst = known === null;
  const before = known;
  known = news;
  receivedAt = performance.now();
  whyOld = "";
  if (known.role === "head") await readSeries(before);
  draw();
  if (isFirst && known.role === "head") setUpLog(known);
  else if (known.role === "head") updateLog(known);
}

// The metrics behind the last step; all of them where an attempt began anew. Without a token the
// status has the few that have a meaning.
async function readSeries(before) {
  if (!hasSeries) {
    series = known.curves;
    return;
  }
  const progress = known.progress;
  const isSame = before && before.progress && progress && before.progress.step === progress.step
    && before.progress.attempt === progress.attempt;
  if (isSame && lastStep !== null) return;
  const isAnew = lastStep === null || !before || !before.progress || !progress
    || before.progress.attempt !== progress.attempt || progress.step < lastStep;
  const answer = await ask(isAnew ? "/series" : `/series?since=${lastStep}`);
  if (answer && answer.status === 401) {
    hasSeries = false;
    series = known.curves;
  } else if (answer && answer.isOk) {
    series = isAnew ? answer.data : joined(series, answer.data);
    lastStep = progress ? progress.step : null;
  }
}

function joined(old, news) {
  const keys = { ...old.keys };
  for (const [name, points] of Object.entries(news.keys)) {
    const before = keys[name] || { steps: [], values: [] };
    const kept = before.steps.filter((step) => step < points.steps[0]).length;
    keys[name] = {
      steps: [...before.steps.slice(0, kept), ...points.steps],
      values: [...before.values.slice(0, kept), ...points.values],
    };
  }
  return { ...news, keys };
}

// --- a report -----------------------------------------------------------------------------------------

let reportLogs = {};

function reportLog(source) {
  const [node, name] = source.split("/").map(decodeURIComponent);
  const text = node === known.name || node === "head" ? reportLogs[name] : undefined;
  if (text === undefined) {
    setText(at("log-say"), `The report has the head's logs: ${Object.keys(reportLogs).join(", ")}.`);
    setText(at("lines"), "");
    return null;
  }
  return { text, next: 0, start: 0, over: true };
}

function openReport() {
  const data = JSON.parse(at("data").textContent);
  known = data.status;
  series = data.series;
  reportLogs = data.logs;
  draw();
  setUpLog(known);
}

// --- begin ----------------------------------------------------------------------------------------------

setUpStop();
setUpCurves(() => draw());
setUpNodes();
window.addEventListener("resize", () => {
  if (!known) return;
  draw();
  if (known.role === "head") drawLog();
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (known) draw(); });
receivedAt = performance.now();
if (isReport()) openReport(); else {
  poll();
  setInterval(drawClock, 1000);
}
