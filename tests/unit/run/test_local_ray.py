"""The head's Ray as the executor runs it: from its start to the moment that nothing is left."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio
import anyio.to_thread
import pytest

from agent.decisions.durable import Durable
from agent.decisions.head.head_decide import first_state
from agent.decisions.shared import RAY, ItemReport, Step, Want
from agent.job.services import Placeholders
from agent.platforms.rank_variables import GivenRay
from agent.processes.process import Child
from agent.run import local_ray
from agent.run.effects import Effects, Processes
from agent.run.local_ray import HeadRay, WatchedRay
from agent.run.node_run import kill_leftovers
from support.conditions import is_so
from support.executing import executing
from support.heads import goal
from support.node_runs import node_run_with

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from agent.bridge.link import RayLink
    from support.executing import Executing

pytestmark = pytest.mark.anyio
TOUGH = "trap '' TERM; echo up; while :; do sleep 0.05; done"
KILLED = "the kernel killed raylet"


class Machine:
    """A machine on which a Ray is a script: what that leaves, and how its port answers."""

    def __init__(self, folder: Path) -> None:
        self.run = node_run_with(folder, ())
        self.leaves: list[str] = []
        self.is_open = False
        self.doubt: Callable[[str, bool], None] = lambda _evidence, _beside_job: None
        self.started: list[Child] = []
        self.restarts: list[int] = []
        self.state = first_state(goal(), Durable("run"))
        self.waits_for_gpus = 0
        real = self.run.effects
        self.run.effects = real._replace(
            processes=real.processes._replace(
                kill_leftovers=lambda: [*self.leaves],
                watch_ray_parts=lambda _parts: anyio.sleep_forever(),
                watch_ray_helpers=self._watch_helpers,
            ),
            network=real.network._replace(port_answers=self._port_answers),
        )

    async def _watch_helpers(
        self, _child: object, emit: Callable[[str, bool], None], _best_effort: object
    ) -> None:
        self.doubt = emit
        await anyio.sleep_forever()

    async def _port_answers(self, host: str, port: int, limit: float = 1.0) -> str:
        del host, port, limit
        return "" if self.is_open else "connection refused"

    async def start(self, script: str = "sleep 1000") -> Child:
        """Start a Ray."""
        log = partial(self.run.folder.file, "ray.log")
        child = await Child.start("ray", ["/bin/sh", "-c", script], {}, log)
        self.started.append(child)
        return child

    async def restart_bridge(self, generation: int) -> None:
        """Note that the bridge is restarted, as the link does."""
        self.restarts.append(generation)

    async def await_gpus(self) -> None:
        """Note that the memory of the GPUs is waited for."""
        self.waits_for_gpus += 1

    @asynccontextmanager
    async def play(
        self, early: str = "sleep 1000", given: GivenRay | None = None
    ) -> AsyncIterator[Executing]:
        """Want a Ray, which this script is, or that is given; none is left at the end."""
        place = Placeholders("127.0.0.1", "127.0.0.1")
        child = await self.start(early)
        link = cast("RayLink", self)
        ray: HeadRay | WatchedRay = HeadRay(
            self.run, child, link, lambda: place, {}, lambda: self.state
        )
        if given is not None:
            ray = WatchedRay(self.run, given)
        async with executing({RAY: ray.run}.get, {RAY: ray.clear}.get) as there:
            there.executor.apply({RAY: Want()})
            yield there
        await child.stop(0.0)
        assert not any(one.running for one in self.started)
        self.run.close()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine whose start of a Ray is that of a script."""
    machine = Machine(tmp_path)
    monkeypatch.setattr(local_ray, "start_ray", lambda *_: machine.start())
    monkeypatch.setattr(local_ray, "_LEFTOVERS_KILLED", 0.2)
    monkeypatch.setattr(machine.run.memory, "recent", lambda: KILLED)
    monkeypatch.setattr(machine.run.gpu_memory, "await_free", machine.await_gpus)
    return machine


async def test_the_ray_that_runs_already_is_the_first_generation(machine: Machine) -> None:
    """It was started before any decision; it is ready once its port is open."""
    async with machine.play() as there:
        await there.until(lambda item: item.evidence == "connection refused")
        machine.is_open = True
        await there.until(lambda item: item.step is Step.READY)
    assert len(machine.started) == 1
    assert machine.restarts == []
    assert [one.items for one in there.sent[:3]] == [
        (ItemReport(RAY, Step.PENDING, is_running=True),),
        (ItemReport(RAY, Step.PENDING, "connection refused", is_running=True),),
        (ItemReport(RAY, Step.READY, is_running=True),),
    ]


async def test_its_end_is_known_at_once_and_the_next_starts_once_nothing_is_left(
    machine: Machine,
) -> None:
    """With the exit code and what the kernel did; what resists is named."""
    async with machine.play("echo no memory; exit 3") as there:
        machine.leaves = ["python (pid 7)"]
        await there.until(lambda item: item.step is Step.LOST)
        there.executor.apply({RAY: Want(2)})
        await there.until(lambda item: item.doubt != "")
        assert len(machine.started) == 1
        machine.leaves = []
        await there.until(lambda item: item.generation == 2)
        await there.until(lambda item: item.evidence == "connection refused")
    items = [one.items[0] for one in there.sent]
    lost = next(item for item in items if item.step is Step.LOST)
    assert (lost.evidence, lost.output) == ("`ray start` ended, exit code 3", "no memory")
    assert (lost.memory, lost.is_running) == (KILLED, True)
    (doubt,) = {item.doubt for item in items} - {""}
    assert doubt == "python (pid 7) cannot be ended"
    assert len(machine.started) == 2
    assert machine.restarts == [2]


@pytest.mark.parametrize("had_job", [False, True])
async def test_the_gpus_are_waited_for_after_an_attempt(machine: Machine, *, had_job: bool) -> None:
    """In the boot other programs may use them, such as a prepare step: Ray starts again at once."""
    async with machine.play("exit 3") as there:
        if had_job:
            machine.state = machine.state.with_attempt(submitted=1.0)
        await there.until(lambda item: item.step is Step.LOST)
        there.executor.apply({RAY: Want(2)})
        await there.until(lambda item: item.generation == 2)
    assert machine.waits_for_gpus == had_job


@pytest.mark.parametrize(("hangs", "longest"), [(True, 1.0), (False, 20.0)])
async def test_one_that_hangs_has_no_time_to_end(
    machine: Machine, *, hangs: bool, longest: float
) -> None:
    """A stopped process does not handle SIGTERM; else Ray ends within its budget."""
    async with machine.play(TOUGH) as there:
        await there.until(lambda item: item.evidence == "connection refused")
        await is_so(lambda: "up" in machine.started[0].tail())  # its trap is set
        if hangs:
            machine.doubt("its dashboard (pid 7) is stopped", True)  # noqa: FBT003 - as it is emitted
            await there.until(lambda item: item.beside_job)
            assert there.item.evidence == "connection refused"
        began = anyio.current_time()
        there.executor.apply({RAY: Want(2)})
        await there.until(lambda item: item.generation == 2)
        took = anyio.current_time() - began
    assert machine.restarts == [2]
    assert took < longest
    assert (took >= machine.run.plan.budget.ray) == (not hangs)


async def test_a_given_ray_is_only_watched(machine: Machine) -> None:
    """For the next attempt its watch begins anew."""
    given = GivenRay("KubeRay", "127.0.0.1", 6379, "http://127.0.0.1:8265")
    async with machine.play(given=given) as there:
        machine.is_open = True
        await there.until(lambda item: item.step is Step.READY)
        there.executor.apply({RAY: Want(2)})
        await there.until(lambda item: (item.step, item.generation) == (Step.READY, 2))
        assert machine.started[0].running
    assert len(machine.started) == 1
    assert machine.restarts == []


# --- what Ray left is ended by threads of the run's own ---------------------------------------


def test_leftovers_are_killed_while_all_threads_of_the_pool_hang(tmp_path: Path) -> None:
    """Else a stalled disk, or many requests for the job's series, would stop the next attempt."""
    rounds = iter([["ray::IDLE"], []])
    processes = Processes(kill_leftovers=lambda: next(rounds))
    run = node_run_with(tmp_path, ())
    run.effects = Effects(processes=processes)

    async def kill() -> str:
        pool = anyio.to_thread.current_default_thread_limiter()
        for number in range(int(pool.total_tokens)):
            pool.acquire_on_behalf_of_nowait(number)
        with anyio.fail_after(10):
            return await kill_leftovers(run, "attempt 1", 5.0)

    assert anyio.run(kill) == ""
    run.close()
