"use strict";
// The log: any node's, searched by an expression, followed; parts are loaded as they are asked for.
// Until the reader chooses one it is the log that shows most.

const MOST_LINES = 1500;  // lines that are shown, the newest
const LOG_POLL = 2000;
const LOG_POLL_WORKER = 10_000;  // a worker sends its last lines by order of the head
let log = { text: "", next: null, start: null, source: "", why: "" };
let logTimer = 0;
let isLogChosen = false;  // by the reader

function setUpLog(status) {
  const chooseLog = () => {
    isLogChosen = true;
    openLog();
  };
  at("log-name").addEventListener("change", chooseLog);
  at("log-node").addEventListener("change", chooseLog);
  at("log-search").addEventListener("input", drawLog);
  at("log-follow").addEventListener("change", () => { if (at("log-follow").checked) readLog(); });
  at("log-earlier").addEventListener("click", readEarlier);
  updateLog(status);
}

// Offer the logs that there are now, and open the one that shows most.
function updateLog(status) {
  offerLogs(status);
  const [node, name] = tellingLog(status);
  if (isLogChosen || (at("log-node").value === node && at("log-name").value === name)) return;
  at("log-node").value = node;
  at("log-name").value = name;
  openLog();
}

// In a hang the suspect's; the agent's before the job has begun; else the job's.
function tellingLog({ name, stall, attempts }) {
  const head = name || "head";
  if (stall && stall.nodes.length) return [stall.nodes[0], stall.log];
  return [head, attempts.length ? "job" : "agent"];
}

// The logs that a node has: those of the head by its services; others by the same names.
function offerLogs(status) {
  const services = (status.services || []).map(({ name }) => name.replace(/ .*$/, ""));
  const members = (status.groups || []).flatMap((group) => group.services.flatMap((part) => part.names));
  const names = [...new Set(["job", "agent", "ray", ...services, ...members, ...(status.prepare || []).map(({ name }) => name)])];
  const select = at("log-name");
  const chosen = select.value;
  each(select, names, (parent) => made("option", parent), (option, name) => {
    option.value = name;
    setText(option, name);
  });
  if (names.includes(chosen)) select.value = chosen;
}

function showLogOf(node) {
  at("log-node").value = node;
  isLogChosen = true;
  openLog();
  at("log").scrollIntoView({ block: "nearest" });
}

function openLog() {
  clearTimeout(logTimer);
  const source = `${encodeURIComponent(at("log-node").value.trim() || "head")}/${encodeURIComponent(at("log-name").value)}`;
  log = { text: "", next: null, start: null, source, why: "" };
  readLog();
}

async function readLog() {
  clearTimeout(logTimer);
  const { source } = log;
  const query = log.next === null ? "" : `?after=${log.next}`;
  const part = await fetchLog(source, query);
  if (source !== log.source) return;  // another one was chosen meanwhile
  if (part) {
    const isWhole = part.next === null;  // the last lines of a worker's
    log.text = isWhole || log.next === null ? part.text : log.text + part.text;
    if (log.next === null) log.start = part.start;
    log.next = part.next;
    drawLog();
  }
  if (!at("log-follow").checked || (part && part.over) || isReport()) return;
  const pause = part && part.next === null ? LOG_POLL_WORKER : LOG_POLL;
  logTimer = setTimeout(readLog, document.hidden ? 5 * pause : pause);
}

async function readEarlier() {
  const { source, start } = log;
  if (!start) return;
  const part = await fetchLog(source, `?before=${start}`);
  if (!part || source !== log.source) return;
  log.text = part.text + log.text;
  log.start = part.start;
  drawLog();
}

// A part of a log; null, with the reason on the page, where there is none.
async function fetchLog(source, query) {
  if (isReport()) return reportLog(source);
  const answer = await ask(`/logs/${source}${query}`);
  log.why = "";
  if (answer && answer.isOk) return answer.data;
  log.why = answer ? answer.data.error : "The head does not answer.";
  if (answer && answer.status === 401) {
    log.why = "Logs are shown with RAY_AUTH_TOKEN only. On the head's node: pod-agent logs";
  }
  drawLog();
  return null;
}

function drawLog() {
  const pre = at("lines");
  if (log.why && !log.text) {
    setText(at("log-say"), log.why);
    setText(pre, "");
    return;
  }
  const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
  const all = log.text.split("\n");
  if (lastOf(all) === "") all.pop();
  let found = all;
  let words = `${all.length.toLocaleString("en")} ${all.length === 1 ? "line" : "lines"}`;
  const wanted = at("log-search").value;
  at("log-search").setCustomValidity("");
  if (wanted) {
    try {
      const pattern = new RegExp(wanted, "i");
      found = all.filter((text) => pattern.test(text));
      words = `${found.length.toLocaleString("en")} of ${words} match`;
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      at("log-search").setCustomValidity("This is no regular expression.");
      words = `not a regular expression: ${error.message.replace(/^.*: /, "")}`;
    }
  }
  const hasEarlier = Boolean(log.start);
  show(at("log-earlier"), hasEarlier);
  setText(at("log-say"), `${words}${hasEarlier ? `; ${Math.ceil(log.start / 1024).toLocaleString("en")} KiB before them` : ""}`);
  setText(pre, found.slice(-MOST_LINES).join("\n"));
  if (atEnd || at("log-follow").checked) pre.scrollTop = pre.scrollHeight;
}
