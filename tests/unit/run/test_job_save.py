"""The job's save on its signal: what it wrote, or why it is not sent the signal."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest

from agent.decisions.shared import SAVE, JobWant, Step
from agent.record.run_folder import RunFolder
from agent.run.effects import REAL
from agent.run.head_job import save_job
from agent.settings.redact import redactor_for
from support.executing import executing
from support.node_runs import made_run
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.decisions.shared import ItemReport
    from agent.run.node_run import NodeRun


HANDLES = """
import pathlib, signal, sys
def save(*_):
    folder = pathlib.Path(sys.argv[1], "checkpoint-8")
    folder.mkdir(parents=True)
    (folder / "weights").write_text("8")
signal.signal(signal.SIGUSR1, save)
print("there", flush=True)
while True:
    signal.pause()
"""
IGNORES = "import time; print('there', flush=True); time.sleep(1000)"


async def save_once(run: NodeRun) -> list[ItemReport]:
    """Have a job save; return what is reported."""
    async with executing({SAVE: partial(save_job, run)}.get) as there:
        there.executor.apply({SAVE: JobWant(1, id="run-1")})
        await there.until(lambda item: not item.is_running)
    return [one.items[-1] for one in there.sent]


@pytest.mark.parametrize(
    ("program", "step", "evidence"),
    [
        (HANDLES, Step.READY, "the job has saved checkpoint-8"),
        (IGNORES, Step.LOST, "the job does not handle it"),
        ("", Step.LOST, "no driver of it runs here"),
    ],
    ids=["handles the signal", "does not", "is not here"],
)
def test_a_job_saves_where_it_handles_the_signal(
    tmp_path: Path, program: str, step: Step, evidence: str
) -> None:
    """Its item says what was saved, or why the signal is not sent; then nothing of it is left."""
    checkpoints = tmp_path / "checkpoints"
    environ = {
        "AGENT_LOG_DIR": str(tmp_path),
        "RAY_WORKER": "0",
        "AGENT_NOTICE_SIGNAL": "SIGUSR1",
        "AGENT_CHECKPOINTS": str(checkpoints),
    }
    plan = plan_of(environ, command=["sh", "-c", "train {checkpoints}"])
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    argv = [sys.executable, "-c", program or IGNORES, str(checkpoints)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        drivers = {"run-1": psutil.Process(job.pid)} if program else {}
        processes = REAL.processes._replace(find_driver=drivers.get)
        effects = REAL._replace(processes=processes)
        run = made_run(plan, redactor, RunFolder(tmp_path, "run-1", "node-a"), effects=effects)
        try:
            items = anyio.run(save_once, run)
        finally:
            run.close()
            job.kill()
    assert items[-1].step is step
    assert evidence in " ".join(item.evidence for item in items)
