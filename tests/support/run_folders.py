"""Run folders, as agents leave them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent.base.ends import Kind, Outcome
from agent.decisions.durable import Durable
from agent.record.node_record import Moment
from agent.record.outcome_file import outcome_text, write_outcome
from agent.record.run_folder import RunFolder
from agent.record.run_record import RUN_FILE, RunRecord
from support.worlds import SECRET

if TYPE_CHECKING:
    from pathlib import Path

FAILED = Outcome(
    *(Kind.JOB_FAILED, 7, "the job failed with exit code 7", "leaving", "job"),
    remedy="job.log shows why",
)


def run_folder_of(root: Path, run: str = "run-1", node: str = "pod0") -> RunFolder:
    """Make a node's folder of a run."""
    return RunFolder(root, run, node)


def leave_run(root: Path, run_id: str, written: float) -> Path:
    """Leave a run of a head and a worker, as it is after its end."""
    for node, log in (("pod0", "job.log"), ("pod1", "agent.log")):
        folder = root / run_id / node
        folder.mkdir(parents=True)
        write_outcome(folder, outcome_text(FAILED))
        (folder / log).write_text(f"{run_id} {node} one\n{SECRET}\nthree\n")
        os.utime(folder / "outcome.json", (written, written))
    for name, line in (
        ("reward-server", "scored"),
        ("prepare", "prepared"),
        ("ray-start", "started"),
    ):
        (root / run_id / "pod0" / f"{name}.log").write_text(f"{line}\n")
    durable = Durable(run_id, "fingerprint", 1, head="pod0")
    RunRecord(Moment.before(0.0), durable).write(root / run_id / RUN_FILE)
    return root / run_id
