"use strict";
// What runs: the job's model, data and command, and the versions of what runs it. Only readers with
// the token have it.

function drawWhatRuns(status) {
  const what = status.what_runs;
  show(at("runs"), Boolean(what));
  if (!what) return;
  const versions = Object.entries(what.versions).map(([name, version]) => `${name} ${version}`).join(", ");
  const rows = [["Model", what.model], ["Data", what.data], ["Versions", versions]].filter(([, text]) => text);
  each(at("what-runs"), rows, (parent) => {
    const row = made("div", parent);
    made("dt", row);
    made("dd", row);
  }, (row, [name, text]) => {
    setText(row.children[0], name);
    setText(row.children[1], text);
  });
  show(at("command"), Boolean(what.command));
  setText(at("command"), what.command);
}
