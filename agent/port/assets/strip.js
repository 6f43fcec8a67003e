"use strict";
// The strip: the judgment that the head made, the run, and the button that stops it.

const SIGNS = { keep: "●", look: "▲", end: "■" };
const ADVICE = { keep: "keep running", look: "look", end: "consider ending" };

function drawStrip(status) {
  const glance = status.glance || workerGlance(status);
  const strip = at("strip");
  if (strip.dataset.state !== glance.state) strip.dataset.state = glance.state;
  setText(at("sign"), SIGNS[glance.state]);
  setText(at("state"), `${ADVICE[glance.state]}: `);
  setText(at("sentence"), glance.sentence);
  setText(at("details"), glance.details);
  drawTab(status, glance.state);
  drawWho(status);
  show(at("stop"), status.role === "head" && !status.verdict && !isReport());
}

// A worker has no judgment of the run: its head has.
function workerGlance(status) {
  const head = status.head ? `${status.head.host || "not found yet"}:${status.head.port}` : "";
  const waits = (status.waits || []).filter((wait) => !wait.following);
  const waiting = waits.map((wait) => `Waiting for ${wait.what}${wait.evidence ? ` (${wait.evidence})` : ""}.`);
  const end = status.verdict ? `It ends: ${status.verdict.reason}.` : "";
  return {
    state: status.verdict && status.verdict.exit_code ? "end" : "keep",
    sentence: `Worker ${status.name}: ${status.phase}.`,
    details: [end, ...waiting, `The run is shown by its head's page (${head}).`].filter(Boolean).join(" "),
  };
}

function drawTab(status, state) {
  const progress = status.progress;
  const steps = progress ? `${progress.step}${progress.of === null ? "" : `/${progress.of}`}` : status.phase;
  const reward = progress && progress.reward !== null ? ` · ${numberText(progress.reward)}` : "";
  const title = `${SIGNS[state]} ${steps}${reward} · ${status.run_name || status.run_id || status.name}`;
  if (document.title !== title) document.title = title;
  const icon = at("icon");
  const wanted = icon.dataset[state];
  if (icon.getAttribute("href") !== wanted) icon.setAttribute("href", wanted);
}

function drawWho(status) {
  const job = status.job;
  const name = status.run_name && status.run_name.includes(status.run_id) ? status.run_name
    : [status.run_name, status.run_id && `run ${status.run_id}`].filter(Boolean).join(" · ");
  setText(at("run"), name || status.name || "");
  const parts = [];
  if (job) parts.push(job.name, `attempt ${job.attempt} of ${Math.max(job.attempt, status.attempts_allowed)}`);
  if (isNumber(status.price)) parts.push(`${moneyText(status.price)} an hour`);
  setText(at("what"), parts.join(" · "));
}

// --- stop ---------------------------------------------------------------------------------------

// The page's cookie only reads: a stop needs the token itself, and the word typed.
function setUpStop() {
  const dialog = at("stop-dialog");
  at("stop").addEventListener("click", () => {
    setText(at("stop-answer"), "");
    at("stop-token").value = "";
    at("stop-word").value = "";
    dialog.showModal();
    at("stop-token").focus();
  });
  at("stop-cancel").addEventListener("click", () => dialog.close());
  at("stop-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sendStop();
  });
}

async function sendStop() {
  if (at("stop-word").value.trim() !== "stop") {
    setText(at("stop-answer"), "Type the word stop to confirm.");
    at("stop-word").focus();
    return;
  }
  at("stop-send").disabled = true;
  const token = at("stop-token").value.trim();
  at("stop-token").value = "";
  const answer = await ask("/stop", {
    method: "POST",
    headers: { "Authorization": `Bearer ${token}`, "Content-Type": "application/json" },
    body: "{}",
  });
  at("stop-send").disabled = false;
  setText(at("stop-answer"), stopAnswer(answer));
}

function stopAnswer(answer) {
  if (!answer) return "The head does not answer.";
  if (answer.isOk) return `The run is being stopped, within ${durationText(answer.data.within)}.`;
  return `Not stopped: ${answer.status === 401 ? "that is not the token" : answer.data.error}.`;
}
