"""Worlds in which only the head's agent is killed, at every moment: its job goes on."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.record.outcome_file import OUTCOME_FILE
from support.simulated.playing import in_a_world, play
from support.simulated.setups import GIVEN, RAY, setup_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from agent.run.node_run import NodeRun
    from support.simulated.setups import Setup
    from support.simulated.world import World

MOMENTS = [
    pytest.param((2, 9, 16), id="a-sample"),
    pytest.param(range(1, 21), id="all", marks=pytest.mark.slow),
]
"""The actions before which the agent is killed."""
DELAYS = (0.0, 0.02, 0.1, 0.3, 0.6, 1.0, 1.5, 2.5)
"""Seconds after a decision."""
DELAYS_BY_SEED = [
    pytest.param(0, (0.1, 1.0), id="a-sample"),
    *(pytest.param(seed, DELAYS, id=str(seed), marks=pytest.mark.slow) for seed in range(6)),
]


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with in_a_world():
        yield


def setup(kind: str, *faults: tuple[float, str, int], kills: frozenset[tuple[str, int]]) -> Setup:
    """Return a world of this kind with slow disks and these faults, without retries."""
    of = next(one for one in map(setup_of, count()) if one.kind == kind)
    environ = {**of.environ, "AGENT_JOB_RETRIES": "0"}
    environ.pop("AGENT_PARTIAL", None)
    return replace(
        of,
        environ=environ,
        retries=0,
        workers=0 if kind == GIVEN else 2,
        spares=0,
        services="",
        faults=((0.0, "slow_disks", 0), *faults),
        kills=kills,
        lost_writes=frozenset(),
        triggers=(),
        job_seconds=80.0,
        job_code=7,
    )


def run(of: Setup, seed: int) -> World:
    """Run a world to its end: the job's own code on every node, and one attempt."""
    world = play(seed, of)
    assert not world.rules.broken, world.transcript()
    codes = {one.code for one in world.machines if world.has_agent(one)}
    assert codes == {7}, world.transcript()
    assert len({job.id for job in world.rules.jobs}) == 1, world.transcript()
    return world


def submits(action: object) -> bool:
    """Return whether an action makes durable that the job is submitted."""
    return isinstance(action, h.Persist) and action.durable.attempt.is_submitted


def ends(action: object) -> bool:
    """Return whether an action ends the run."""
    return isinstance(action, h.EndRun)


def decided_at(world: World, is_it: Callable[[object], bool]) -> float:
    """Return when the head decided on an action first."""
    return next(at for at, _, _, actions in world.history for one in actions if is_it(one))


@pytest.mark.parametrize("kind", [RAY, GIVEN])
@pytest.mark.parametrize("numbers", MOMENTS)
def test_killed_before_any_action(kind: str, numbers: Sequence[int]) -> None:
    """The next agent repeats or continues what the killed one decided."""
    for number in numbers:
        run(setup(kind, kills=frozenset({("pod0", number)})), number)


@pytest.mark.parametrize("kind", [RAY, GIVEN])
@pytest.mark.parametrize("action", [submits, ends], ids=["submission", "verdict"])
@pytest.mark.parametrize(("seed", "delays"), DELAYS_BY_SEED)
def test_killed_after_a_decision(
    kind: str, action: Callable[[object], bool], seed: int, delays: Sequence[float]
) -> None:
    """What workers were sent is on disk, and a job that Ray has is followed."""
    at = decided_at(run(setup(kind, kills=frozenset()), seed), action)
    for delay in delays:
        kill = (at + delay, "kill_head_agent", 0)
        run(setup(kind, kill, kills=frozenset()), seed)


@pytest.mark.parametrize(("seed", "delays"), DELAYS_BY_SEED)
def test_killed_while_its_disk_is_full(seed: int, delays: Sequence[float]) -> None:
    """The workers' reports name an attempt that is not on disk, and it runs on the same Ray."""
    at = decided_at(run(setup(RAY, kills=frozenset()), seed), submits)
    full = (at - 0.1, "full_disks", 0)
    for delay in delays:
        kill = (at + 4 * delay, "kill_head_agent", 0)
        run(setup(RAY, full, kill, kills=frozenset()), seed)


def test_the_outcome_is_on_disk_before_the_report_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform that stops the pod may not wait for the report."""
    is_recorded: list[bool] = []

    async def look(run: NodeRun, _status: object, _outcome: object) -> Path:
        is_recorded.append((run.folder.path / OUTCOME_FILE).exists())
        return run.folder.path

    monkeypatch.setattr("agent.run.head.write_report", look)
    with in_a_world():
        world = play(5, replace(setup_of(5), faults=(), triggers=(), kills=frozenset()))
    assert world.rules.broken == []
    assert is_recorded == [True]
