"""The job's processes on this node: which they are, how busy they are, and where each one is."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import psutil

from agent.node.gpu_use import busy
from agent.runtime import driver, orphans
from agent.runtime.tool import output_of
from agent.work.torchrun import RANKS_MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.node.gpu_use import Tool, Uses

_RAYS = "ray::"
_NO_ACTORS = (
    *("ray::IDLE", "ray::JobSupervisor", "ray::_ray_internal_job_actor"),
    *("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::DashboardHead"),
)
"""Ray's own, and workers that wait for work (2.60)."""
_FIRST = ("driver", "rank 0 of this node")
_IDLE_CORES, _IDLE_EACH = 0.05, 0.02
"""Of a core: what may be used by processes that only wait, all together and each."""
_GPU_LIMIT, _DUMP_LIMIT = 20.0, 10.0
_LONGEST_STACK = 6_000
_BRIEF = {"RUST_BACKTRACE": "0"}
"""Has py-spy say its errors without a stack of its own."""
_NO_RIGHT = ("permission denied", "operation not permitted", "sys_ptrace")
NO_PTRACE = (
    "py-spy may not look into processes here: give the container SYS_PTRACE (`--cap-add "
    "SYS_PTRACE`, on Kubernetes securityContext.capabilities.add)"
)
NO_PY_SPY = "py-spy is not installed here: `pip install py-spy` in the image shows where it hangs"


class Found(NamedTuple):
    """One process, and what it is to the job."""

    what: str
    process: psutil.Process


def of_the_job(submission_id: str | None) -> list[Found]:
    """Return the job's processes here: its driver, if it is here, actors and tasks, ranks."""
    leader = None if submission_id is None else driver.find_driver(submission_id)
    whose: dict[int, str] = {}
    found = []
    for process in _below():
        what = whose.get(_parent(process), "")
        if leader is not None and process.pid == leader.pid:
            what = "driver"
        what = what or _role(process)
        if what:
            whose[process.pid] = what
            found.append(Found(what, process))
    return found


def worth_a_look(found: Iterable[Found]) -> list[Found]:
    """Return the driver, or the first rank here, and of all others the one that has worked most.

    Only Pythons have stacks.
    """
    pythons = [one for one in found if _is_python(one.process)]
    drivers = [one for one in pythons if one.what in _FIRST][:1]
    others = [one for one in pythons if one not in drivers and one.what != "driver"]
    busiest = sorted(others, key=lambda one: -_cpu(one.process))[:1]
    return [*drivers, *(Found(f"busiest: {one.what}", one.process) for one in busiest)]


class Business:
    """How busy the job keeps this node, as compared with the last look."""

    def __init__(
        self, tools: Iterable[Tool], env: Mapping[str, str], log: Callable[[str], Path]
    ) -> None:
        """Ask the first of some tools that tells how much the GPUs work, where there are any."""
        self._tools = tuple(tools)
        self._env = env
        self._log = log
        self._last: tuple[float, float] | None = None

    async def look(self, submission_id: str | None) -> str:
        """Say what works for the job here; '' where nothing does. A first look cannot tell."""
        uses = await self._uses()
        if uses:
            return busy(uses)
        found = await anyio.to_thread.run_sync(of_the_job, submission_id)
        used, now = sum(_cpu(one.process) for one in found), time.monotonic()
        last, self._last = self._last, (used, now)
        if last is None:
            return "looked at for the first time"
        return busy_cpus(used - last[0], now - last[1], len(found))

    async def _uses(self) -> Uses:
        """Return how much the GPUs work; nothing where no tool tells."""
        for tool in self._tools:
            name = tool.argv[0]
            path = shutil.which(name, path=self._env.get("PATH"))
            if path is None:
                continue
            log = partial(self._log, f"{name}.log")
            text, _ = await output_of([path, *tool.argv[1:]], self._env, log, _GPU_LIMIT)
            with suppress(ValueError):  # no list, whatever its exit code
                uses = tool.read(text)
                if uses:
                    return uses
        return {}


def busy_cpus(used: float, seconds: float, processes: int) -> str:
    """Say how many cores work; '' where that is what processes use that only wait."""
    cores = used / max(seconds, 1e-3)
    return "" if cores < _IDLE_CORES + _IDLE_EACH * processes else f"{cores:.2f} cores"


async def stacks_of(
    found: Iterable[Found], py_spy: str | None, env: Mapping[str, str], log: Callable[[], Path]
) -> str:
    """Return where each of some processes is, as py-spy sees it; or why that cannot be told."""
    told = []
    for what, process in found:
        told.append(f"{what} (pid {process.pid}):")
        if py_spy is None:
            return NO_PY_SPY
        argv = [py_spy, "dump", "--pid", str(process.pid)]
        text, fault = await output_of(argv, {**env, **_BRIEF}, log, _DUMP_LIMIT)
        if fault and any(words in fault.lower() for words in _NO_RIGHT):
            return NO_PTRACE
        told.append(f"no stack: {fault}" if fault else text[:_LONGEST_STACK].rstrip())
    return "\n".join(told) or "no Python process of the job runs here"


def find_py_spy(python: str, path: str | None) -> str | None:
    """Return py-spy beside a Python, else the one on PATH."""
    beside = shutil.which("py-spy", path=str(Path(python).parent))
    return beside or shutil.which("py-spy", path=path)


def _below() -> list[psutil.Process]:
    """Return everything below us, parents before their children."""
    with suppress(psutil.Error):
        return sorted(orphans.below(), key=lambda process: (_age(process), process.pid))
    return []


def _age(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return float(process.create_time())
    return 0.0


def _parent(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.ppid())
    return 0


def _role(process: psutil.Process) -> str:
    """Say what a process is to the job by itself; '' where it is nothing to it."""
    with suppress(psutil.Error, IndexError):
        title = process.cmdline()[0]
        if title.startswith(_RAYS):
            return "" if title.startswith(_NO_ACTORS) else title.strip()[:100]
        if RANKS_MARK in process.environ():
            return f"rank {process.environ().get('LOCAL_RANK', '?')} of this node"
    return ""


def _is_python(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return Path(process.exe()).name.startswith("python")
    return False


def _cpu(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0
