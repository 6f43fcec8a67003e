"""Optional tasks: a failure is logged once and never ends the run."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.bridge.link import RayLink
from agent.decisions.head import head_state as h
from agent.node.limits import ProcessLimitError
from agent.processes.waiting import BestEffort, Failure
from support.conditions import is_so

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.processes, pytest.mark.anyio]

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "OSError: [Errno 24] Too many "),
        (
            ProcessLimitError("nvidia-smi could not be started", why="full"),
            "nvidia-smi could not be ",
        ),
        (
            RuntimeError("can't start new thread"),
            "a look could not be started: no room for another ",
        ),
        (ValueError("a number was expected"), "ValueError: a number was expected"),
    ],
    ids=["file", "process", "thread", "bug"],
)
def test_a_failure_is_logged_once(error: Exception, reason: str) -> None:
    """Any error, also one of an inner task group; the other tasks go on."""
    logged: list[str] = []
    best_effort = BestEffort(lambda sentence, _level: logged.append(sentence))

    async def fail() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise error

    async def succeed() -> int:
        return 7

    async def scenario() -> list[object]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(best_effort, "a look", fail)
        return [await best_effort("a look", fail), await best_effort("a look", succeed)]

    failure, result = anyio.run(scenario)
    assert isinstance(failure, Failure)
    assert failure.reason.startswith(reason)
    assert result == 7
    assert logged == [f"a look failed, the run continues without it: {failure.reason}"]


def test_a_cancellation_is_no_failure() -> None:
    """A task that ends with its run ends at once, and nothing is logged."""
    logged: list[str] = []
    best_effort = BestEffort(lambda sentence, _level: logged.append(sentence))

    async def scenario() -> bool:
        with anyio.move_on_after(0.01) as scope:
            await best_effort("a look", anyio.sleep_forever)
        return scope.cancelled_caught

    assert anyio.run(scenario)
    assert logged == []


FULL = """
import os, resource, sys
from msgspec.structs import replace
from pathlib import Path
import anyio
from agent.port.protocol import BUSY, STACKS
from agent.run.all_reduce_part import all_reduce_runner
from agent.run.stall import Diagnostics
from agent.decisions.shared import ALL_REDUCE, Want
from agent.record.log import say
from agent.record.run_folder import RunFolder
from agent.processes.process import Child
from agent.settings.redact import Redactor
from agent.frameworks.recipe import NodeSize
from agent.job.share import ShareArgs
from agent.job.services import Placeholders
from support.node_runs import made_run
from support.worlds import MACHINE, plan_of

root = Path(sys.argv[1])
environ = {"AGENT_LOG_DIR": str(root), "AGENT_PREFLIGHT": "nccl", "PATH": str(root)}
environ |= {"EXPECTED_WORKERS": "1", "AGENT_HEAD": "node-a", "AGENT_RANK": "0"}
plan = plan_of(environ, replace(MACHINE, gpus=1, gpu_maker="nvidia"), ["true"])
run = made_run(plan, Redactor(()), RunFolder(root, "run-1", "node-a"), 0.0, "run-1")
place = Placeholders("127.0.0.1", "127.0.0.1", "0", str(root))
share = ShareArgs(0, (NodeSize(1),))

async def warm_up():  # imports all that it needs while there is room, and the right to read
    await Child.start("true", ["/bin/true"], {}, lambda: root / "true.log")
    await Diagnostics(run).collect(STACKS)
    say("there is room")

async def look():
    diagnostics = Diagnostics(run)
    for what in (BUSY, BUSY, STACKS):
        print(await diagnostics.collect(what, "run-1"))
    ranks = all_reduce_runner(run, lambda: place)
    print(await ranks(ALL_REDUCE, Want(1, share), print), flush=True)

anyio.run(warm_up)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if os.getuid() == 0:  # whom no such limit holds
    os.setuid(65534)
anyio.run(look)
from agent.record.background import finish_all
finish_all()
os._exit(0)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that anybody may read, unlike one of pytest's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_a_diagnostic_that_cannot_start(open_folder: Path) -> None:
    """The kernel refuses to start nvidia-smi or a thread: no exception, and no false idle GPU."""
    tool = open_folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 0, 0\n")
    tool.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", FULL, open_folder],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *results, share = done.stdout.splitlines()
    full = "no room for another process or thread"
    assert [f"could not be started: {full}" in look for look in results] == [True] * 3
    assert f"could not be started: {full}" in share
    assert done.stderr.count("failed, the run continues without it") == 3, done.stderr


BRIDGE = """#!/bin/sh
echo '{"event": "silent", "evidence": "it is there"}'
read _
"""


async def test_a_bridge_that_cannot_be_started(tmp_path: Path) -> None:
    """It is retried until it starts; the head gets the evidence each time."""
    program = tmp_path / "bridge"
    events: list[h.HeadEvent] = []
    link = RayLink([str(program)], {}, lambda: tmp_path / "bridge.log", events.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        await is_so(lambda: bool(events))
        ready = tmp_path / "ready"
        ready.write_text(BRIDGE)
        ready.chmod(0o755)
        ready.rename(program)
        count = len(events)
        await is_so(lambda: len(events) > count)
        tasks.cancel_scope.cancel()
    why = "the ray bridge could not be started: No such file or directory"
    assert events[0] == h.RaySeen(evidence=why)
    assert h.RaySeen(evidence="it is there") in events
