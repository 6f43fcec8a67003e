"use strict";
// The vitals: up to seven figures of the run, each with what puts it into proportion. One that is
// not known has no tile; those of a job without known steps are its state and its nodes.

const PARTS = [
  [/(^|\/)(gen|generation|generate\w*|rollout\w*)$/, "generate"],
  [/(^|\/)(update_actor|update_policy|train\w*|ppo_train|policy_train\w*)$/, "update"],
  [/(^|\/)(reward|reward_\w+|make_exp\w*)$/, "reward"],
  [/(^|\/)(update_weights\w*|broadcast\w*|weight_sync\w*)$/, "sync"],
  [/(^|\/)(save_checkpoint|testing|eval\w*)$/, "save, test"],
];

function drawVitals(status, series) {
  const isWrong = status.glance && status.glance.state !== "keep";
  const ofSteps = status.progress
    ? [stepTile(status, isWrong), rewardTile(status, series), stepTimeTile(status), tokensTile(status, series)]
    : [jobTile(status), nodesTile(status)];
  const tiles = [...ofSteps, gpuTile(status), costTile(status), checkpointTile(status)];
  each(at("vitals"), tiles.filter(Boolean), makeTile, updateTile);
}

function makeTile(parent) {
  const tile = made("div", parent);
  made("dt", tile);
  const value = made("dd", tile);
  made("b", value);
  made("small", value);
  made("dd", tile, "more");
}

function updateTile(tile, { name, value, small = "", more = "", kind = "", share = null }) {
  setClass(tile, kind);
  setText(tile.children[0], name);
  setText(tile.children[1].children[0], value);
  setText(tile.children[1].children[1], small);
  setText(tile.children[2], more);
  if (tile.title !== more) tile.title = more;
  const wanted = share === null ? "" : `${Math.round(100 * share)}%`;
  tile.style.setProperty("--share", wanted || "0%");
}

function jobTile(status) {
  const { job } = status;
  if (!job) return null;
  const more = status.phase === "running" ? `for ${durationText(status.seconds_in_phase)}; no step is known` : "";
  return { name: "Job", value: job.status, more };
}

function nodesTile(status) {
  const present = (status.cells || []).filter(([, state]) => state === "joined").length;
  const joined = status.verdict ? status.nodes_joined : present;  // at the end they leave
  return { name: "Nodes", value: joined.toLocaleString("en"), small: `of ${status.nodes_expected} joined` };
}

function stepTile(status, isWrong) {
  const progress = status.progress;
  const small = progress.of === null ? "" : `of ${progress.of.toLocaleString("en")}`;
  const share = progress.of ? progress.step / progress.of : null;
  let more = progress.of === null ? "number of steps not known" : "no forecast while something is wrong";
  if (status.verdict) more = `ended after ${durationText(status.seconds)}`;
  else if (!isWrong && progress.ends_at !== null) {
    const left = (new Date(progress.ends_at) - new Date(progress.last_step_at)) / 1000 - progress.seconds_since_step;
    more = left > 0 ? `done about ${clockText(progress.ends_at)}, in ${durationText(left)}` : "the last step is due";
  }
  return { name: "Step", value: progress.step.toLocaleString("en"), small, more, share };
}

function rewardTile(status, series) {
  const progress = status.progress;
  if (progress.reward === null) return null;
  const trend = progress.reward_trend;
  let small = "";
  if (trend !== null) {
    const isSteady = Math.abs(trend) < 0.01 * Math.abs(progress.reward);
    small = isSteady ? "steady" : `${trend < 0 ? "▼" : "▲"} ${numberText(Math.abs(trend), 2)}`;
  }
  const points = pointsOf(series, "reward");
  let more = trend === null ? "" : "over 20 steps";
  if (points.values.length > 1) {
    const best = points.values.reduce((top, value, index) => (value > points.values[top] ? index : top), 0);
    more = [more, `best ${numberText(points.values[best])} at ${points.steps[best]}`].filter(Boolean).join(" · ");
  }
  const hasFallen = (status.advice || []).some((one) => one.meaning === "reward");
  return { name: "Reward", value: numberText(progress.reward), small, more, kind: hasFallen ? "bad" : "" };
}

function stepTimeTile(status) {
  const progress = status.progress;
  if (progress.usual_seconds === null) return null;
  const since = progress.seconds_since_step;
  const isLate = !status.verdict && since > Math.max(60, 3 * progress.usual_seconds);
  if (isLate) {
    return {
      name: "Step time", value: durationText(since), small: "and counting", kind: "warn",
      more: `usually ${stepTime(progress.seconds_per_step)}`,
    };
  }
  return { name: "Step time", value: stepTime(progress.seconds_per_step), more: stepParts(status.metrics || {}) };
}

// The parts of a step, by the names that frameworks give to their timings.
function stepParts(metrics) {
  const timings = Object.entries(metrics).filter(([name]) => /^(timing_s|timing|perf)\//.test(name));
  const found = {};
  for (const [name, seconds] of timings) {
    const part = PARTS.find(([pattern]) => pattern.test(name));
    if (part && isNumber(seconds)) found[part[1]] = Math.max(found[part[1]] || 0, seconds);
  }
  const parts = Object.entries(found).sort((a, b) => b[1] - a[1]).slice(0, 3);
  return parts.map(([part, seconds]) => `${part} ${stepTime(seconds)}`).join(" · ");
}

function tokensTile(status, series) {
  const value = lastOf(pointsOf(series, "throughput").values);
  if (!isNumber(value)) return null;
  const key = (series.meanings || {}).throughput || "";
  const perGpu = /^perf\/throughput$/.test(key);
  const mfu = Object.entries(status.metrics || {}).find(([name]) => /(^|\/)mfu(\/actor)?$/.test(name));
  const more = [perGpu ? "a GPU" : key, mfu ? `MFU ${numberText(mfu[1], 2)}` : ""].filter(Boolean).join(" · ");
  return { name: "Tokens a second", value: numberText(value, 4), more };
}

function gpuTile(status) {
  const gpus = status.gpus;
  if (!gpus || gpus.use === null) return null;
  const isSlow = gpus.lowest !== null && gpus.use >= 30 && gpus.lowest_use < gpus.use / 2;
  const parts = [];
  if (isSlow) parts.push(`lowest ${gpus.lowest}: ${Math.round(gpus.lowest_use)} %`);
  if (gpus.memory_total) parts.push(`${Math.round(gpus.memory_used / 1024)} of ${Math.round(gpus.memory_total / 1024)} GB`);
  if (gpus.power !== null) parts.push(`${Math.round(gpus.power)} W`);
  return {
    name: "GPUs", value: `${Math.round(gpus.use)} %`, small: "median", more: parts.join(" · "), kind: isSlow ? "warn" : "",
  };
}

function costTile(status) {
  const used = durationText(status.receipt ? status.receipt.total : status.seconds || 0);
  if (!isNumber(status.cost)) return { name: "Time", value: used, more: "price not known (AGENT_PRICE_PER_HOUR)" };
  const wasted = (status.receipt && status.receipt.cost_wasted) || 0;
  const perStep = status.receipt && status.receipt.cost_per_step;
  const parts = [`in ${used}`];
  if (isNumber(status.max_cost)) parts.push(`of ${moneyText(status.max_cost)}`);
  if (isNumber(perStep)) parts.push(`${moneyText(perStep)} a step`);
  if (wasted >= 1) parts.push(`${moneyText(wasted)} not for training`);
  return { name: "Cost", value: moneyText(status.cost), more: parts.join(" · ") };
}

function checkpointTile(status) {
  const saved = status.checkpoint;
  if (!saved) return null;
  const behind = status.progress ? status.progress.step - saved.step : null;
  const small = behind === null || behind < 0 ? "" : `${behind} ${behind === 1 ? "step" : "steps"} ago`;
  return { name: "Checkpoint", value: saved.step.toLocaleString("en"), small, more: saved.at ? `at ${clockText(saved.at)}` : "" };
}
