"use strict";
// What all parts of the page share: elements, texts and numbers, and colors. Texts of others become
// text nodes only; no markup is ever made of them.

const at = (id) => document.getElementById(id);
const colorOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const setText = (node, words) => { if (node.textContent !== words) node.textContent = words; };
const setClass = (node, name) => { if (node.className !== name) node.className = name; };
const show = (node, yes) => { if (node.hidden === yes) node.hidden = !yes; };
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

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

// --- requests ----------------------------------------------------------------------------------

const ANSWER_LIMIT = 30_000;  // milliseconds: a tunnel that died answers nothing, and ends nothing
// What fetch raises where nobody answers, an answer that does not come or end, and a proxy's page.
const NO_ANSWER = new Set(["TypeError", "TimeoutError", "SyntaxError"]);

// The status and the JSON of an answer; null where the agent does not answer.
async function ask(path, options = {}) {
  const signal = AbortSignal.timeout(ANSWER_LIMIT);
  try {
    const answer = await fetch(path, { cache: "no-store", signal, ...options });
    return { status: answer.status, isOk: answer.ok, data: await answer.json() };
  } catch (error) {
    if (!NO_ANSWER.has(error.name)) throw error;
    return null;
  }
}

// --- texts ------------------------------------------------------------------------------------

function durationText(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  const [unit, size, smaller, part] = whole < 7200 ? ["min", 60, "s", 1] : ["h", 3600, "min", 60];
  const rest = Math.floor((whole % size) / part);
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
}

const stepTime = (seconds) => (seconds < 10 ? `${Number(seconds.toPrecision(2))} s` : durationText(seconds));

function numberText(value, digits = 3) {
  if (!isNumber(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e7 || Math.abs(value) < 1e-4)) return value.toExponential(1);
  if (Math.abs(value) >= 10 ** (digits - 1)) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

function moneyText(dollars) {
  if (dollars >= 100) return `$${Math.round(dollars).toLocaleString("en")}`;
  return `$${dollars.toFixed(2)}`;
}

const clockText = (moment) => new Date(moment).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

// --- lists of numbers -------------------------------------------------------------------------

function medianOf(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const lastOf = (values) => values[values.length - 1];

// --- canvas -----------------------------------------------------------------------------------

// Fit a canvas to its place on the screen; return its context, in CSS pixels.
function fitCanvas(canvas, height) {
  const width = canvas.parentElement.clientWidth;
  const scale = window.devicePixelRatio || 1;
  const wide = Math.max(1, Math.round(width * scale));
  const high = Math.max(1, Math.round(height * scale));
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const area = canvas.getContext("2d");
  area.setTransform(scale, 0, 0, scale, 0, 0);
  area.clearRect(0, 0, width, height);
  return { area, width, height };
}
