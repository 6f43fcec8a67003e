"use strict";
// What the GPUs did over time, in percent: medians of all, and the node with the lowest use.

const HISTORY_HEIGHT = 92;
const HISTORY_BEGINS = 120;  // seconds of a run; a later first point is of an agent that was restarted
const HISTORY_LINES = [["memory", "--violet", [1, 3]], ["lowest", "--warn", [5, 3]], ["use", "--blue", []]];

function drawGpuHistory(status) {
  const history = status.gpu_history;
  const isKnown = Boolean(history) && history.seconds.length > 1;
  show(at("gpus"), isKnown);
  if (!isKnown) return;
  const canvas = at("gpu-history");
  const { area, width, height } = fitCanvas(canvas, HISTORY_HEIGHT);
  const box = { left: 38, right: width - 2, top: 4, bottom: height - 18 };
  const from = history.seconds[0];
  const to = lastOf(history.seconds);
  const x = (seconds) => box.left + ((box.right - box.left) * (seconds - from)) / (to - from);
  const y = (percent) => box.bottom - ((box.bottom - box.top) * percent) / 100;
  area.font = "11px system-ui, sans-serif";
  area.fillStyle = colorOf("--quiet");
  area.textAlign = "right";
  area.textBaseline = "middle";
  for (const percent of [0, 50, 100]) {
    line(area, box.left, y(percent), box.right, y(percent), colorOf("--line"));
    area.fillText(`${percent} %`, box.left - 5, Math.max(y(percent), 7));
  }

  // The times at both edges.
  const clockAt = (seconds) => clockText(Date.parse(status.at) - 1000 * (status.seconds - seconds));
  area.textBaseline = "bottom";
  area.fillText(clockAt(to), box.right, height);
  area.textAlign = "left";
  area.fillText(clockAt(from), box.left, height);

  setText(at("gpus-since"), from > HISTORY_BEGINS ? ` · since ${clockAt(from)}, when this head's agent began` : "");
  for (const [name, color, dashes] of HISTORY_LINES) {
    area.strokeStyle = colorOf(color);
    area.lineWidth = 1.6;
    area.setLineDash(dashes);
    area.beginPath();
    history.seconds.forEach((seconds, index) => area.lineTo(x(seconds), y(history[name][index])));
    area.stroke();
  }
  area.setLineDash([]);
  const label = `GPUs over time: median ${lastOf(history.use)} % now, ${Math.min(...history.use)} to `
    + `${Math.max(...history.use)} % so far; lowest node ${lastOf(history.lowest)} %; memory ${lastOf(history.memory)} %`;
  if (canvas.getAttribute("aria-label") !== label) canvas.setAttribute("aria-label", label);
}
