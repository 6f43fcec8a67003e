"""A node reads its model ahead."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from agent.base import times
from agent.decisions.shared import Want
from agent.job.services import ON_EVERY, Placeholders, PrepareStep
from agent.plan.plan import READ_AHEAD
from agent.run import local_services
from agent.run.local_services import LocalWork
from support.conditions import is_so
from support.node_runs import node_run_with, unheard
from support.worlds import MACHINE, plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.run.node_run import NodeRun

pytestmark = pytest.mark.anyio
STEP = PrepareStep("data", "exit 0", ON_EVERY, 60.0, "within")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "MODEL_READ_AFTER", 0.0)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the lines that are logged, with their levels."""
    lines: list[tuple[str, ...]] = []
    monkeypatch.setattr(local_services, "say", lambda *row: lines.append(row))
    return lines


def run_of(root: Path, model: Path, *code: str) -> NodeRun:
    """Return a run with a model; `code` replaces the program that reads it."""
    run = node_run_with(root, (STEP,), AGENT_MODEL=str(model), RAY_WORKER="0")
    if code:
        own = [process for process in run.plan.processes if process.name != READ_AHEAD]
        planned = next(p for p in run.plan.processes if p.name == READ_AHEAD)
        planned = replace(planned, argv=(sys.executable, "-c", *code))
        run.plan = replace(run.plan, processes=(*own, planned))
    return run


async def test_it_waits_for_the_steps_and_logs_one_line(
    tmp_path: Path, said: list[tuple[str, ...]]
) -> None:
    """The model may be what they fetch; what was read is logged once."""
    model = tmp_path / "model"
    model.mkdir()
    run = run_of(tmp_path, model)
    work = LocalWork(run, Placeholders)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.read_model)
        await anyio.sleep(0.2)
        assert not run.folder.file("page-cache.log").exists()
        (model / "model.safetensors").write_bytes(b"w" * 1000)
        await work.prepare("data", Want(), unheard)
    run.close()
    (line,) = [line for line, *_ in said if line.startswith(f"{model}: ")]
    assert line.startswith(f"{model}: 0.0 GB in 1 file(s) are in the page cache (")


async def test_a_stop_ends_it_at_once(tmp_path: Path) -> None:
    """Without a wait for the disk."""
    mark = tmp_path / "began"
    code = f"import time, pathlib; pathlib.Path({str(mark)!r}).touch(); time.sleep(100)"
    run = run_of(tmp_path, tmp_path, code)
    work = LocalWork(run, Placeholders)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.read_model)
        await work.prepare("data", Want(), unheard)
        await is_so(mark.exists)
        tasks.cancel_scope.deadline = anyio.current_time() + 2
        work.stop_reading()
    run.close()


async def test_a_program_that_fails_is_no_failure_of_the_run(
    tmp_path: Path, said: list[tuple[str, ...]]
) -> None:
    """The run goes on; the log of a node has why, for those who look for it."""
    run = run_of(tmp_path, tmp_path, "raise SystemExit('no disk')")
    work = LocalWork(run, Placeholders)
    await work.prepare("data", Want(), unheard)
    await work.read_model()
    run.close()
    why = "reading ahead: exit code 1; last output: no disk"
    assert (f"{tmp_path}: {why}", "debug") in said


@pytest.mark.parametrize(
    ("environ", "planned"),
    [
        ({"AGENT_MODEL": "acme/m", "AGENT_MODEL_REVISION": "v1"}, ["acme/m --revision v1"]),
        ({"AGENT_MODEL": "/models/m"}, ["/models/m"]),
        ({}, []),
    ],
)
def test_plan_shows_it(environ: dict[str, str], planned: list[str]) -> None:
    """With the model and its revision; without a model there is nothing to read."""
    plan = plan_of({**environ, "AGENT_JOB": "none"}, MACHINE)
    found = [process.argv for process in plan.processes if process.name == READ_AHEAD]
    assert [" ".join(argv).partition("read-ahead ")[2] for argv in found] == planned
