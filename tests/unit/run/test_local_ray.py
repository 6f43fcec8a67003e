"""The head's Ray as the executor runs it: from its start to the moment that nothing is left."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import anyio
import pytest

from agent.decisions.durable import Durable
from agent.decisions.head.head_decide import first_state
from agent.decisions.shared import RAY, ItemReport, ItemsReported, Step, Want
from agent.job.services import Placeholders
from agent.platforms.rank_variables import GivenRay
from agent.processes.process import Child
from agent.processes.waiting import NotYet, until
from agent.run import local_ray
from agent.run.executor import Executor
from agent.run.local_ray import HeadRay, WatchedRay
from support.heads import goal
from support.node_runs import node_run_with

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from agent.bridge.link import RayLink

ENDS = "read _; exit 3"
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
        self.sent: list[ItemReport] = []
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

    def take(self, event: ItemsReported) -> None:
        """Take a report."""
        self.sent += event.items

    async def until(self, holds: Callable[[ItemReport], bool]) -> None:
        """Wait until the last report is so."""

        async def look() -> bool | NotYet:
            return True if self.sent and holds(self.sent[-1]) else NotYet()

        await until(look, 20.0, longest=0.05)


@pytest.fixture(name="play")
def _play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    machine = Machine(tmp_path)
    monkeypatch.setattr(local_ray, "start_ray", lambda *_: machine.start())
    monkeypatch.setattr(local_ray, "_LEFTOVERS_KILLED", 0.2)
    monkeypatch.setattr(machine.run.memory, "recent", lambda: KILLED)
    monkeypatch.setattr(machine.run.gpu_memory, "await_free", machine.await_gpus)

    async def scenario(
        tell: Callable[[Machine, Executor], Awaitable[None]], early: str, given: GivenRay | None
    ) -> None:
        link = cast("RayLink", machine)
        place = Placeholders("127.0.0.1", "127.0.0.1")
        with anyio.fail_after(30):
            child = await machine.start(early)
            ray: HeadRay | WatchedRay = HeadRay(
                machine.run, child, link, lambda: place, {}, lambda: machine.state
            )
            if given is not None:
                ray = WatchedRay(machine.run, given)
            async with anyio.create_task_group() as tasks:
                executor = Executor(tasks, {RAY: ray.run}.get, machine.take, {RAY: ray.clear}.get)
                executor.apply({RAY: Want()})
                await tell(machine, executor)
                await executor.close()
            await child.stop(0.0)
        assert not any(one.running for one in machine.started)
        machine.run.close()

    def play(
        tell: Callable[[Machine, Executor], Awaitable[None]],
        early: str = "sleep 1000",
        given: GivenRay | None = None,
    ) -> Machine:
        anyio.run(scenario, tell, early, given)
        return machine

    return play


def test_the_ray_that_runs_already_is_the_first_generation(play: Callable[..., Machine]) -> None:
    """It was started before any decision; it is ready once its port is open."""

    async def tell(machine: Machine, _executor: Executor) -> None:
        await machine.until(lambda item: item.evidence == "connection refused")
        machine.is_open = True
        await machine.until(lambda item: item.step is Step.READY)

    machine = play(tell)
    assert len(machine.started) == 1
    assert machine.restarts == []
    assert machine.sent[:3] == [
        ItemReport(RAY, Step.PENDING, is_running=True),
        ItemReport(RAY, Step.PENDING, "connection refused", is_running=True),
        ItemReport(RAY, Step.READY, is_running=True),
    ]


def test_its_end_is_known_at_once_and_the_next_starts_once_nothing_is_left(
    play: Callable[..., Machine],
) -> None:
    """With the exit code and what the kernel did; what resists is named."""

    async def tell(machine: Machine, executor: Executor) -> None:
        machine.leaves = ["python (pid 7)"]
        await machine.until(lambda item: item.step is Step.LOST)
        executor.apply({RAY: Want(2)})
        await machine.until(lambda item: item.doubt != "")
        assert len(machine.started) == 1
        machine.leaves = []
        await machine.until(lambda item: item.generation == 2)
        await machine.until(lambda item: item.evidence == "connection refused")

    machine = play(tell, "echo no memory; exit 3")
    lost = next(item for item in machine.sent if item.step is Step.LOST)
    assert (lost.evidence, lost.output) == ("`ray start` ended, exit code 3", "no memory")
    assert (lost.memory, lost.is_running) == (KILLED, True)
    (doubt,) = {item.doubt for item in machine.sent} - {""}
    assert doubt == "python (pid 7) cannot be ended"
    assert len(machine.started) == 2
    assert machine.restarts == [2]


@pytest.mark.parametrize("had_job", [False, True])
def test_the_gpus_are_waited_for_after_an_attempt(
    play: Callable[..., Machine], *, had_job: bool
) -> None:
    """In the boot other programs may use them, such as a prepare step: Ray starts again at once."""

    async def tell(machine: Machine, executor: Executor) -> None:
        if had_job:
            machine.state = machine.state.with_attempt(submitted=1.0)
        await machine.until(lambda item: item.step is Step.LOST)
        executor.apply({RAY: Want(2)})
        await machine.until(lambda item: item.generation == 2)

    machine = play(tell, "exit 3")
    assert machine.waits_for_gpus == had_job


@pytest.mark.parametrize(("hangs", "longest"), [(True, 1.0), (False, 20.0)])
def test_one_that_hangs_has_no_time_to_end(
    play: Callable[..., Machine], *, hangs: bool, longest: float
) -> None:
    """A stopped process does not handle SIGTERM; else Ray ends within its budget."""
    took = 0.0

    async def tell(machine: Machine, executor: Executor) -> None:
        nonlocal took
        await machine.until(lambda item: item.evidence == "connection refused")
        await until_up(machine.started[0])
        if hangs:
            machine.doubt("its dashboard (pid 7) is stopped", True)  # noqa: FBT003 - as it is emitted
            await machine.until(lambda item: item.beside_job)
            assert machine.sent[-1].evidence == "connection refused"
        began = anyio.current_time()
        executor.apply({RAY: Want(2)})
        await machine.until(lambda item: item.generation == 2)
        took = anyio.current_time() - began

    machine = play(tell, TOUGH)
    assert machine.restarts == [2]
    assert took < longest
    assert (took >= machine.run.plan.budget.ray) == (not hangs)


async def until_up(child: Child) -> None:
    """Wait until a script has set its trap."""

    async def look() -> bool | NotYet:
        return True if "up" in child.tail() else NotYet()

    await until(look, 20.0)


def test_a_given_ray_is_only_watched(play: Callable[..., Machine]) -> None:
    """For the next attempt its watch begins anew."""

    async def tell(machine: Machine, executor: Executor) -> None:
        machine.is_open = True
        await machine.until(lambda item: item.step is Step.READY)
        executor.apply({RAY: Want(2)})
        await machine.until(lambda item: (item.step, item.generation) == (Step.READY, 2))
        assert machine.started[0].running

    machine = play(tell, given=GivenRay("KubeRay", "127.0.0.1", 6379, "http://127.0.0.1:8265"))
    assert len(machine.started) == 1
    assert machine.restarts == []
