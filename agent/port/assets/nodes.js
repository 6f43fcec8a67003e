"use strict";
// The nodes: a cell for each with a bar for each GPU, and a table of those that differ. In a hang the
// nodes of the suspects are marked.

const LABELLED = 16;  // up to so many nodes have their names under their cells
const MOST_ROWS = 10;
const GONE = new Set(["lost", "silent"]);
const ROW_KINDS = {
  suspect: "bad", lost: "bad", silent: "bad", fault: "bad", failed: "bad", down: "bad",
  dead: "bad", retired: "bad", stale: "warn", loading: "warn", pending: "warn",
  slow: "warn", "full soon": "warn", booting: "warn", left: "quiet",
};
const ROW_SIGNS = { bad: "✕", warn: "▲", quiet: "–" };
let cells = [];       // the nodes as they are drawn, the head first
let chosenCell = null;
let suspects = new Set();  // the nodes of processes that the others may wait for

function drawNodes(status) {
  const section = at("nodes");
  show(section, status.role === "head");
  if (status.role !== "head") return;
  cells = status.cells || [];
  const rows = status.glance.exceptions;
  suspects = new Set(status.stall ? status.stall.nodes : []);
  setText(at("nodes-sum"), nodesSum(status, cells));
  drawGroups(status.groups || []);
  drawExceptions(status, rows);
  drawGrid();
}

// A row for each service of a group; its members that do not serve are exceptions.
function drawGroups(groups) {
  const rows = groups.flatMap((group) => group.services.map((part) => ({ group, part })));
  show(at("groups"), rows.length > 0);
  each(at("groups").tBodies[0], rows, addRow, (row, { group, part }) => {
    const kind = part.nothing_since !== null ? "bad" : part.short ? "warn" : "good";
    const total = Object.values(part.states).reduce((sum, count) => sum + count, 0);
    const rate = part.requests_per_second;
    setText(row.children[0], `${group.name}: ${part.name}`);
    setText(row.children[1], `${ROW_SIGNS[kind] || "●"} ${part.serving} of ${total} serve`);
    setClass(row.children[1], kind);
    setText(row.children[2], isNumber(rate) ? `${numberText(rate)}/s` : "");
    setText(row.children[3], groupDetail(group, part, total));
  });
}

function groupDetail(group, part, total) {
  const others = Object.entries(part.states).filter(([state]) => state !== "serving");
  return [
    part.needed !== total ? `${part.needed} needed` : "",
    ...others.map(([state, count]) => `${count} ${state}`),
    part.version ? `weights ${part.version}` : "",
    part.errors ? `errors: ${part.errors}` : "",
    part.held ? `requests held: ${part.held}` : "",
    group.joined < group.nodes ? `${group.joined} of ${group.nodes} nodes` : "",
  ].filter(Boolean).join("; ");
}

function addRow(parent) {
  const row = made("tr", parent);
  made("th", row).scope = "row";
  for (let cell = 0; cell < 3; cell += 1) made("td", row);
}

function nodesSum(status, all) {
  const counts = {};
  for (const [, state] of all) counts[state] = (counts[state] || 0) + 1;
  const joined = counts.joined || 0;
  const gpus = all.reduce((sum, [, , uses]) => sum + uses.length, 0);
  const others = Object.entries(counts).filter(([state]) => state !== "joined").map(([state, count]) => `${count} ${state}`);
  const slow = all.filter(([, , , isSlow]) => isSlow).length;
  if (slow) others.push(`${slow} slow`);
  const size = `${status.nodes_expected} ${status.nodes_expected === 1 ? "node" : "nodes"}${gpus ? `, ${gpus} GPUs` : ""}`;
  return `${size}: ${[`${joined} joined`, ...others].join(", ")}.`;
}

// The services that are no exceptions.
function serviceRows(status, named) {
  const found = [];
  for (const service of status.services || []) {
    if (named.has(service.name)) continue;
    const detail = [
      service.restarts ? `restarts: ${service.restarts}` : "",
      service.outages ? `outages: ${service.outages}, ${durationText(service.outage_seconds)} in all` : "",
      service.detail,
    ].filter(Boolean).join("; ");
    const figure = service.latency ? `${Math.round(1000 * service.latency.last)} ms` : "";
    found.push({ name: service.name, state: service.state, figure, detail, kind: service.state === "ready" ? "good" : "warn" });
  }
  return found;
}

// The exceptions first, then services; nodes that are booting are many, and come last.
function drawExceptions(status, rows) {
  const all = rows.map((row) => ({ ...row, kind: ROW_KINDS[row.state] || "quiet" }));
  const isBooting = (row) => row.state === "booting";
  const services = serviceRows(status, new Set(rows.map((row) => row.name)));
  const ordered = [...all.filter((row) => !isBooting(row)), ...services, ...all.filter(isBooting)];
  const shown = ordered.slice(0, MOST_ROWS);
  const more = status.glance.more_exceptions + ordered.length - shown.length;
  const body = at("differ").tBodies[0];
  show(at("differ"), shown.length > 0);
  each(body, shown, addRow, (row, { name, state, figure, detail, kind }) => {
    setText(row.children[0], name);
    setText(row.children[1], `${state === "suspect" ? "!" : ROW_SIGNS[kind] || "●"} ${state}`);
    setClass(row.children[1], kind);
    setText(row.children[2], figure);
    setText(row.children[3], detail);
  });
  setText(at("more-differ"), more ? `and ${more} more` : "");
  show(at("more-differ"), more > 0);
}

// --- the grid -----------------------------------------------------------------------------------

function gridOf(width) {
  const count = cells.length;
  const isLabelled = count <= LABELLED;
  let columns = width > 350 ? 32 : 16;
  if (isLabelled) columns = Math.min(count, width > 320 ? 4 : 2);
  else if (count <= 64) columns = width > 350 ? 16 : 8;
  const wide = width / columns;
  const high = isLabelled ? 66 : Math.max(26, Math.min(34, wide * 1.4));
  return { columns, isLabelled, wide, high, rows: Math.ceil(count / columns) };
}

function drawGrid() {
  const canvas = at("grid");
  show(canvas.parentElement, cells.length > 0);
  if (!cells.length) return;
  const layout = gridOf(canvas.parentElement.clientWidth);
  const { area } = fitCanvas(canvas, layout.rows * layout.high);
  area.font = "11px system-ui, sans-serif";
  area.textBaseline = "bottom";
  cells.forEach((cell, index) => drawCell(area, layout, cell, index));
  const held = suspects.size ? ` ${[...suspects].join(", ")} may hold up the others.` : "";
  canvas.setAttribute("aria-label", `${at("nodes-sum").textContent}${held} Nodes that differ are in the table.`);
}

function drawCell(area, layout, [name, state, uses, isSlow], index) {
  const x = (index % layout.columns) * layout.wide;
  const y = Math.floor(index / layout.columns) * layout.high;
  const wide = layout.wide - (layout.isLabelled ? 8 : 2);
  const high = layout.high - (layout.isLabelled ? 20 : 3);
  area.fillStyle = colorOf("--empty");
  area.fillRect(x, y, wide, high);

  // A bar for each GPU, ✕ for a node that is gone, a frame for a slow one.
  if (GONE.has(state)) cross(area, x, y, wide, high);
  else {
    area.fillStyle = colorOf(isSlow ? "--warn" : "--blue");
    uses.forEach((use, gpu) => {
      const bar = wide / uses.length;
      const tall = (high * Math.max(0, Math.min(100, use === null ? 0 : use))) / 100;
      area.fillRect(x + gpu * bar + 0.4, y + high - tall, Math.max(1, bar - 0.8), tall);
    });
    if (isSlow) frame(area, x, y, wide, high, colorOf("--warn"));
    else if (state === "booting") dashes(area, x, y, wide, high);
  }
  if (suspects.has(name)) exclamation(area, x, y, wide, high);
  if (index === chosenCell) frame(area, x, y, wide, high, colorOf("--ink"));
  if (!layout.isLabelled) return;
  area.fillStyle = colorOf("--quiet");
  const known = uses.filter((use) => use !== null);
  const use = known.length ? `${Math.round(known.reduce((a, b) => a + b, 0) / known.length)} %` : "";
  const mark = suspects.has(name) ? " suspect" : isSlow ? " slow" : "";
  const words = state === "joined" ? `${use}${mark}` : state;
  area.fillText(`${name}  ${words}`, x, y + high + 17, wide);
}

function cross(area, x, y, wide, high) {
  frame(area, x, y, wide, high, colorOf("--bad"));
  line(area, x + 2, y + 2, x + wide - 2, y + high - 2, colorOf("--bad"), 2);
  line(area, x + wide - 2, y + 2, x + 2, y + high - 2, colorOf("--bad"), 2);
}

// A suspect: a frame, and `!` on a ground of its own.
function exclamation(area, x, y, wide, high) {
  frame(area, x, y, wide, high, colorOf("--bad"));
  const side = Math.min(18, wide - 2, high - 2);
  area.fillStyle = colorOf("--bad");
  area.fillRect(x + (wide - side) / 2, y + (high - side) / 2, side, side);
  area.fillStyle = colorOf("--on-color");
  area.fillRect(x + wide / 2 - 1, y + high / 2 - side * 0.32, 2, side * 0.4);
  area.fillRect(x + wide / 2 - 1, y + high / 2 + side * 0.2, 2, 2);
}

function frame(area, x, y, wide, high, color) {
  area.strokeStyle = color;
  area.lineWidth = 2;
  area.strokeRect(x + 1, y + 1, wide - 2, high - 2);
}

function dashes(area, x, y, wide, high) {
  area.setLineDash([3, 3]);
  frame(area, x, y, wide, high, colorOf("--quiet"));
  area.setLineDash([]);
}

// --- one node by pointer or key -------------------------------------------------------------------

function setUpNodes() {
  const canvas = at("grid");
  const choose = (index) => {
    chosenCell = index;
    drawGrid();
    setText(at("cell-text"), index === null ? at("cell-text").dataset.key : cellText(cells[index]));
  };
  at("cell-text").dataset.key = at("cell-text").textContent;
  canvas.addEventListener("pointermove", (event) => {
    const layout = gridOf(canvas.parentElement.clientWidth);
    const place = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - place.left) / layout.wide);
    const index = Math.floor((event.clientY - place.top) / layout.high) * layout.columns + column;
    choose(column < layout.columns && index >= 0 && index < cells.length ? index : null);
  });
  canvas.addEventListener("pointerleave", () => choose(null));
  canvas.addEventListener("keydown", (event) => {
    const { columns } = gridOf(canvas.parentElement.clientWidth);
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") choose(null);
    if (event.key === "Enter" && chosenCell !== null) showLogOf(cells[chosenCell][0]);
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(cells.length - 1, (chosenCell === null ? 0 : chosenCell + moves[event.key]))));
  });
  canvas.addEventListener("click", () => { if (chosenCell !== null) showLogOf(cells[chosenCell][0]); });
}

function cellText([name, state, uses, isSlow]) {
  const known = uses.filter((use) => use !== null);
  const gpus = known.length ? `, GPUs ${known.join(", ")} %` : "";
  return `${name}: ${state}${isSlow ? ", slow" : ""}${suspects.has(name) ? ", may hold up the others" : ""}${gpus}`;
}
