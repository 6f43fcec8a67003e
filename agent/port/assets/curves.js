"use strict";
// The curves: six of them, and any other metric by name, with one cursor for all. Where a job has none
// of the six, its own metrics are shown.

const CURVES = [
  ["reward", "Reward"], ["kl", "KL to the reference"], ["response_length", "Response length"],
  ["entropy", "Entropy"], ["gradient_norm", "Gradient norm"], ["throughput", "Tokens a second"],
];
const CURVE_HEIGHT = 168;
let cursorStep = null;  // the step under the cursor; null without one
let plots = [];         // what is drawn: canvas, points and name of each

// The points of a metric by its meaning, such as `reward`; empty where the job has none.
function pointsOf(series, meaning) {
  const key = (series.meanings || {})[meaning];
  return (key !== undefined && series.keys[key]) || { steps: [], values: [] };
}

const hasCurves = (series) => CURVES.some(([meaning]) => pointsOf(series, meaning).steps.length > 0);

function whyNoCurves(status) {
  if (status.verdict) return status.job ? "The job printed no metric that is known." : "No job ran.";
  return status.job ? "No metric of the job is known yet." : "No job runs.";
}

function drawCurves(status, series) {
  const box = at("plots");
  const chosen = at("other").value;
  let wanted = CURVES.map(([meaning, name]) => ({ name, meaning, points: pointsOf(series, meaning) }));
  if (!hasCurves(series)) wanted = Object.keys(series.keys).slice(0, CURVES.length).map((name) => ({ name, meaning: "", points: series.keys[name] }));
  else if (chosen && series.keys[chosen]) wanted.push({ name: chosen, meaning: "", points: series.keys[chosen] });
  const shown = wanted.filter(({ points }) => points.steps.length > 0);
  show(at("no-curves"), shown.length === 0);
  setText(at("no-curves"), whyNoCurves(status));
  show(box, shown.length > 0);
  show(at("curves-key"), shown.length > 0);
  each(box, shown, makePlot, (figure, { name }) => setText(figure.querySelector("b"), name));
  const marks = { attempts: series.attempts || [], checkpoints: (series.checkpoints || []).map(([step]) => step) };
  const validation = pointsOf(series, "validation");
  plots = shown.map((plot, index) => ({
    ...plot, marks, figure: box.children[index],
    second: plot.meaning === "reward" ? validation : { steps: [], values: [] },
    alarm: alarmOf(status, plot.meaning),
  }));
  drawPlots();
  offerOthers(series);
}

function makePlot(parent) {
  const figure = made("figure", parent, "plot");
  const caption = made("figcaption", figure);
  made("b", caption);
  made("span", caption, "value");
  made("span", caption, "note");
  made("canvas", made("div", figure)).setAttribute("role", "img");
}

// Advice on a metric without a curve is shown at the one that it is about.
const ALSO = { response_length: "clipped", reward: "validation" };

function alarmOf(status, meaning) {
  const names = [meaning, ALSO[meaning]];
  const found = (status.advice || []).find((one) => one.meaning && names.includes(one.meaning));
  return found ? found.what : "";
}

// The steps at both edges, which all curves share.
function edges() {
  const from = Math.min(...plots.map(({ points }) => points.steps[0]));
  const to = Math.max(...plots.map(({ points }) => lastOf(points.steps)));
  return from <= 0.1 * to ? [0, to] : [from, Math.max(to, from + 1)];
}

function drawPlots() {
  const [from, to] = edges();
  for (const plot of plots) {
    const { steps, values } = plot.points;
    const index = cursorStep === null ? steps.length - 1 : nearest(steps, cursorStep);
    const where = cursorStep === null ? "" : ` at ${steps[index]}`;
    const [, value, note] = plot.figure.firstElementChild.children;
    setText(value, `${numberText(values[index])}${where}`);
    const notes = plot.second.steps.length ? `◆ validation ${numberText(lastOf(plot.second.values))}` : "";
    setText(note, plot.alarm ? `▲ ${plot.alarm}` : notes);
    setClass(plot.figure, plot.alarm ? "plot bad" : "plot");
    const canvas = plot.figure.querySelector("canvas");
    const label = `${plot.name}: ${numberText(values[0])} at step ${steps[0]}, `
      + `${numberText(lastOf(values))} at step ${lastOf(steps)}${plot.alarm ? `, ${plot.alarm}` : ""}`;
    if (canvas.getAttribute("aria-label") !== label) canvas.setAttribute("aria-label", label);
    drawCurve(canvas, { ...plot, from, to, cursor: cursorStep === null ? null : steps[index] });
  }
}

// The index of the step that is nearest to one; the steps rise.
function nearest(steps, wanted) {
  let low = 0;
  let high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= wanted) low = middle; else high = middle;
  }
  return Math.abs(steps[low] - wanted) <= Math.abs(steps[high] - wanted) ? low : high;
}

// --- one curve --------------------------------------------------------------------------------

// Draw one curve: all that another library would do is behind this function.
function drawCurve(canvas, { points, second, marks, from, to, cursor, alarm }) {
  const { area, width, height } = fitCanvas(canvas, CURVE_HEIGHT);
  const box = { left: 46, right: width - 8, top: 8, bottom: height - 20 };
  const [low, high] = rangeOf([...points.values, ...second.values]);
  const last = Math.max(to, from + 1);
  const x = (step) => box.left + ((box.right - box.left) * (step - from)) / (last - from);
  const y = (value) => box.bottom - ((box.bottom - box.top) * (value - low)) / (high - low);
  area.font = "11px system-ui, sans-serif";

  // The grid, with a number at each line.
  area.lineWidth = 1;
  area.textBaseline = "middle";
  area.textAlign = "right";
  for (const value of ticksOf(low, high, 4)) {
    line(area, box.left, y(value), box.right, y(value), colorOf("--line"));
    area.fillStyle = colorOf("--quiet");
    area.fillText(tickText(value, high - low), box.left - 6, y(value));
  }
  area.textBaseline = "top";
  area.textAlign = "center";
  for (const step of ticksOf(from, last, Math.max(2, Math.floor(width / 70)))) {
    if (step !== Math.round(step)) continue;
    line(area, x(step), box.bottom, x(step), box.bottom + 3, colorOf("--line"));
    area.fillStyle = colorOf("--quiet");
    area.fillText(String(step), Math.min(x(step), width - 14), box.bottom + 6);
  }

  // Marks: an attempt's number where it began, ✕ where the one before was lost, ticks of checkpoints.
  for (const mark of marks.attempts.slice(1)) drawAttempt(area, box, x, mark);
  for (const step of marks.checkpoints) {
    if (step >= from && step <= last) line(area, x(step), box.bottom - 5, x(step), box.bottom, colorOf("--good"), 2);
  }

  // The curve, and the points of a second metric.
  area.strokeStyle = colorOf(alarm ? "--bad" : "--blue");
  area.lineWidth = 1.6;
  area.lineJoin = "round";
  area.beginPath();
  points.steps.forEach((step, index) => {
    const [px, py] = [x(step), y(points.values[index])];
    if (index) area.lineTo(px, py); else area.moveTo(px, py);
  });
  area.stroke();
  if (points.steps.length === 1) dot(area, x(points.steps[0]), y(points.values[0]), area.strokeStyle);
  second.steps.forEach((step, index) => diamond(area, x(step), y(second.values[index]), colorOf("--violet")));

  // The cursor.
  if (cursor === null) return;
  const index = nearest(points.steps, cursor);
  line(area, x(cursor), box.top, x(cursor), box.bottom, colorOf("--ink"));
  dot(area, x(cursor), y(points.values[index]), colorOf("--ink"));
}

function drawAttempt(area, box, x, mark) {
  if (mark.first === undefined) return;
  const place = Math.max(box.left, Math.min(box.right, x(mark.first)));
  area.setLineDash([4, 3]);
  line(area, place, box.top, place, box.bottom, colorOf("--quiet"));
  area.setLineDash([]);
  area.textAlign = "left";
  area.fillStyle = colorOf("--quiet");
  area.fillText(String(mark.number), place + 3, box.top);
  if (mark.after === null) return;
  const lost = Math.max(box.left, Math.min(box.right, x(mark.after)));
  area.textAlign = "center";
  area.fillStyle = colorOf("--bad");
  area.fillText("✕", lost, box.bottom - 14);
}

function line(area, fromX, fromY, toX, toY, color, width = 1) {
  area.strokeStyle = color;
  area.lineWidth = width;
  area.beginPath();
  area.moveTo(fromX, fromY);
  area.lineTo(toX, toY);
  area.stroke();
}

function dot(area, x, y, color) {
  area.fillStyle = color;
  area.beginPath();
  area.arc(x, y, 3.5, 0, 2 * Math.PI);
  area.fill();
}

function diamond(area, x, y, color) {
  area.fillStyle = color;
  area.beginPath();
  area.moveTo(x, y - 5);
  area.lineTo(x + 5, y);
  area.lineTo(x, y + 5);
  area.lineTo(x - 5, y);
  area.fill();
}

// The values at the lower and upper edge: with a little room, and 0 where it is near.
function rangeOf(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const span = high - low || Math.abs(high) || 1;
  if (low > 0 && low < span) low = 0;
  else if (low !== 0) low -= 0.05 * span;
  return [low, high + 0.05 * span];
}

// Round values within a range, about so many.
function ticksOf(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= 0.75 * rough);
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) {
    ticks.push(Math.abs(value) < step * 1e-6 ? 0 : Number(value.toPrecision(12)));
  }
  return ticks;
}

function tickText(value, span) {
  if (value === 0) return "0";
  if (Math.abs(value) >= 10_000) return `${numberText(value / 1000)}k`;
  const digits = span >= 10 ? 0 : Math.min(4, Math.max(0, 1 - Math.floor(Math.log10(span))));
  return Math.abs(value) < 1e-3 ? value.toExponential(0) : String(Number(value.toFixed(digits + 1)));
}

// --- cursor and further metrics -----------------------------------------------------------------

function setUpCurves(redraw) {
  const box = at("plots");
  const moveTo = (step) => {
    cursorStep = step;
    if (plots.length) drawPlots();
  };
  box.addEventListener("pointermove", (event) => {
    if (event.target.tagName !== "CANVAS" || !plots.length) return;
    const [from, to] = edges();
    const place = event.target.getBoundingClientRect();
    const share = (event.clientX - place.left - 46) / (place.width - 54);
    moveTo(Math.round(from + Math.max(0, Math.min(1, share)) * (to - from)));
  });
  box.addEventListener("pointerleave", () => moveTo(null));
  box.addEventListener("keydown", (event) => {
    if (!plots.length) return;
    const { steps } = plots[0].points;
    const here = cursorStep === null ? steps.length - 1 : nearest(steps, cursorStep);
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") moveTo(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    moveTo(steps[Math.max(0, Math.min(steps.length - 1, here + moves[event.key]))]);
    setText(at("cursor-text"), plots.map((plot) => (
      `${plot.name} ${plot.figure.querySelector(".value").textContent}`
    )).join(", "));
  });
  at("other").addEventListener("change", redraw);
}

function offerOthers(series) {
  const shown = new Set(CURVES.map(([meaning]) => (series.meanings || {})[meaning]));
  const names = Object.keys(series.keys).filter((name) => hasCurves(series) && !shown.has(name));
  show(at("others"), names.length > 0);
  const select = at("other");
  if (select.dataset.names === names.join("\n")) return;
  select.dataset.names = names.join("\n");
  const chosen = select.value;
  each(select, ["", ...names], (parent) => made("option", parent), (option, name) => {
    option.value = name;
    setText(option, name || "none");
  });
  if (names.includes(chosen)) select.value = chosen;
}
