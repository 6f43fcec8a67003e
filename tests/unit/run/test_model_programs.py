"""A node reads its model ahead, until the end or the job needs the disk."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from agent.base import times
from agent.job.services import ON_EVERY, Placeholders, PrepareStep
from agent.plan.plan import READ_AHEAD
from agent.processes.waiting import NotYet, until
from agent.run import model_programs
from agent.run.local_services import LocalWork
from support.node_runs import node_run_with
from support.worlds import MACHINE, plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.run.node_run import NodeRun

STEP = PrepareStep("data", "exit 0", ON_EVERY, 60.0, "within")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "MODEL_READ_AFTER", 0.0)


def run_of(root: Path, model: Path, *code: str, role: str = "0") -> NodeRun:
    """Return a run with a model; `code` replaces the program that reads it."""
    more = {"AGENT_MODEL": str(model), "RAY_WORKER": role}
    more |= {"AGENT_HEAD": "10.0.0.1"} if role == "1" else {}
    run = node_run_with(root, (STEP,), **more)
    if code:
        own = [process for process in run.plan.processes if process.name != READ_AHEAD]
        planned = next(p for p in run.plan.processes if p.name == READ_AHEAD)
        planned = replace(planned, argv=(sys.executable, "-c", *code))
        run.plan = replace(run.plan, processes=(*own, planned))
    return run


def test_it_waits_for_the_steps_and_logs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model may be what they fetch; what was read is logged once."""
    logged: list[str] = []
    monkeypatch.setattr(model_programs, "say", lambda line, _level: logged.append(line))
    model = tmp_path / "model"
    model.mkdir()
    run = run_of(tmp_path, model)
    work = LocalWork(run, lambda _: None, Placeholders)

    async def story() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work.read_model)
            await anyio.sleep(0.2)
            assert not run.folder.file("page-cache.log").exists()
            (model / "model.safetensors").write_bytes(b"w" * 1000)
            await work.prepare("data")

    anyio.run(story)
    run.close()
    assert len(logged) == 1
    assert logged[0].startswith(f"{model}: 0.0 GB in 1 file(s) are in the page cache (")


async def _begun(file: Path) -> None:
    async def is_there() -> bool | NotYet:
        return True if os.path.exists(file) else NotYet()  # noqa: ASYNC240, PTH110 - a local disk

    with anyio.fail_after(20):
        await until(is_there, None)


@pytest.mark.parametrize("shared", [True, False])
def test_a_worker_leaves_a_shared_disk_to_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    """It stops reading there when the job starts; on a disk of its own it goes on to the end."""
    monkeypatch.setattr(model_programs, "is_on_shared_disk", lambda _plan: shared)
    mark = tmp_path / "began"
    code = f"import time, pathlib; pathlib.Path({str(mark)!r}).touch(); time.sleep(100)"
    run = run_of(tmp_path, tmp_path, code, role="1")
    work = LocalWork(run, lambda _: None, Placeholders)
    ended = []

    async def story() -> None:
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                await work.read_model()
                ended.append("read")

            tasks.start_soon(read)
            await work.prepare("data")
            await _begun(mark)
            work.job_starts()
            await anyio.sleep(0.3)
            assert bool(ended) is shared

            # A stop ends it in any case, without a wait.
            with anyio.fail_after(2):
                await work.stop_services(3.0)

    anyio.run(story)
    run.close()
    assert ended == ["read"]


def test_a_program_that_fails_is_no_failure_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on; the log of a node has why, for those who look for it."""
    logged: list[tuple[str, str]] = []
    monkeypatch.setattr(model_programs, "say", lambda *row: logged.append(row))
    run = run_of(tmp_path, tmp_path, "raise SystemExit('no disk')")
    work = LocalWork(run, lambda _: None, Placeholders)

    async def story() -> None:
        await work.prepare("data")
        await work.read_model()

    anyio.run(story)
    run.close()
    why = "reading ahead: exit code 1; last output: no disk"
    assert logged == [(f"{tmp_path}: {why}", "debug")]


@pytest.mark.parametrize(
    ("environ", "planned"),
    [
        ({"AGENT_MODEL": "acme/m", "AGENT_MODEL_REVISION": "v1"}, "acme/m --revision v1"),
        ({"AGENT_MODEL": "/models/m"}, "/models/m"),
        ({}, None),
    ],
)
def test_plan_shows_it(environ: dict[str, str], planned: str | None) -> None:
    """With the model and its revision; without a model there is nothing to read."""
    found = model_programs.planned(plan_of({**environ, "AGENT_JOB": "none"}, MACHINE), READ_AHEAD)
    shown = None if found is None else " ".join(found.argv).partition("read-ahead ")[2]
    assert shown == planned
