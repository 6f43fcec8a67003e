"""Each judge of the worlds reports a mutated product, or a wrong promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from agent.base import ends
from agent.decisions.head import boot_waits
from agent.decisions.head import head_state as h
from agent.run.run_store import RunStore
from support.simulated import harms
from support.simulated.playing import in_a_world, play
from support.simulated.rays import Raylet
from support.simulated.setups import GIVEN, RAY, Setup, Trigger, setup_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.durable import Durable
    from support.simulated.world import World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""The garbage collector finds what killed agents had begun at any time, as in no real process."""

SERVICES = """
[services.finder]
command = "serve"
ready.tcp = 8000
where = "every"
[prepare.data]
command = "make"
where = "every"
once = "/data/.done"
"""


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with in_a_world():
        yield


def world(*faults: tuple[float, str, int], **changed: Any) -> World:  # noqa: ANN401 - of a setup
    """Play a world of two workers with these faults and no others."""
    of = setup_of(2)
    assert of.kind == RAY
    limits = {f"AGENT_{name}": "100s" for name in ("WAIT_HEAD", "WAIT_WORKERS", "HEAD_GRACE")}
    calm = Setup(
        **{
            **{name: getattr(of, name) for name in Setup.__struct_fields__},
            "environ": {**limits, "AGENT_JOB_RETRIES": "2"},
            "retries": 2,
            "workers": 2,
            "spares": 0,
            "services": SERVICES,
            "faults": faults,
            "kills": frozenset(),
            "lost_writes": frozenset(),
            "triggers": (),
            "job_seconds": 80.0,
            "job_code": 0,
        }
    )
    return play(2, replace(calm, **changed))


def broken(of: World) -> set[str]:
    """Return the rules that were broken."""
    return {rule.partition(":")[0] for rule in of.rules.broken}


def test_nothing_is_broken_without_a_mutation() -> None:
    """A world whose faults are harmless breaks no rule."""
    faults = ((20.0, "link_blinks", 1), (35.0, "kill_head_agent", 0))
    played = world(*faults, (50.0, "kill_worker_agent", 0))
    assert not played.rules.broken, played.transcript()
    assert not played.harms.why


def test_a_cost_of_a_harmless_fault_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a worker's pod costs an attempt, so it is not harmless."""
    monkeypatch.setattr(harms, "HARMLESS", harms.HARMLESS | {"worker_blinks"})
    assert "a harmless fault costs nothing" in broken(world((50.0, "worker_blinks", 0)))
    monkeypatch.setattr(harms, "HARMLESS", harms.HARMLESS | {"job_fails"})
    assert "a harmless fault costs nothing" in broken(world((50.0, "job_fails", 0)))


@pytest.mark.parametrize(
    ("waits", "rule"),
    [
        ("_service_waits", "services are ready at submission"),
        ("_required_waits", "steps are done at submission"),
    ],
)
def test_a_job_that_begins_too_early_is_reported(
    monkeypatch: pytest.MonkeyPatch, waits: str, rule: str
) -> None:
    """A head that does not wait for services, or for nothing at all, is found out."""
    monkeypatch.setattr(boot_waits, waits, lambda _state: iter(()))
    late = SERVICES.replace("= 8000", '= 8000\nafter = ["data"]')
    assert rule in broken(world(services=late, step_seconds=30.0))


def test_a_wrong_code_of_a_worker_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that no fault disturbs leave with the head's code."""

    def other(state: h.HeadState) -> ends.Outcome | None:
        right = state.durable.verdict
        return None if right is None else replace(right, exit_code=9)

    monkeypatch.setattr(h.HeadState, "verdict_for_workers", property(other))
    assert "calm workers have the head's code" in broken(world())


@pytest.mark.parametrize("faults", [(), ((30.0, "failing_writes", 0), (40.0, "full_disk", 1))])
def test_a_record_without_the_end_is_reported(
    monkeypatch: pytest.MonkeyPatch, faults: tuple[tuple[float, str, int], ...]
) -> None:
    """The head's run.json has the code with which it exits, also after writes that failed."""
    put = RunStore.put

    def put_no_end(store: RunStore, durable: Durable, now: float) -> None:
        put(store, replace(durable, verdict=None), now)

    monkeypatch.setattr(RunStore, "put", put_no_end)
    assert "the records have the end" in broken(world(*faults))


def test_a_loss_in_the_boot_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what an attempt had, and what is not back in time, ends a run that boots again."""
    assert not broken(world((50.0, "worker_dies", 0)))
    gone = replace(ends.NOT_BACK_IN_TIME, reason="gone: {what}, {evidence}")
    monkeypatch.setattr(ends, "NOT_BACK_IN_TIME", gone)
    assert "a loss is followed by another attempt" in broken(world((50.0, "worker_dies", 0)))


def test_what_is_there_and_missed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers whose Ray never joins are missed, though nothing disturbs their machines."""
    monkeypatch.setattr(Raylet, "_join", lambda _raylet: None)
    no_job_yet = (0.5, "job_fails", 0)
    short = {"AGENT_WAIT_WORKERS": "40s"}
    assert "what is there is not missed" in broken(world(no_job_yet, environ=short))


def test_a_world_waits_for_the_head_that_comes_back() -> None:
    """The head of a given Ray is the only agent: it is awaited while its pod is gone."""
    of = next(one for one in map(setup_of, range(100)) if one.kind == GIVEN)
    faults = ((15.0, "head_restarts", 0),)
    played = play(3, replace(of, faults=faults, kills=frozenset(), lost_writes=frozenset()))
    assert not played.rules.broken, played.transcript()
    assert played.head.code is not None


@pytest.mark.parametrize("after", [0.0, 0.02, 0.3, 1.0])
def test_a_worker_killed_with_the_verdict_leaves_with_it(after: float) -> None:
    """It is recorded first: the next agent does not wait for a head that has left."""
    kill = Trigger("pod1", "EndWorker", 1, "kill_worker_agent", after)
    played = world(triggers=(kill,))
    assert not played.rules.broken, played.transcript()
    assert {machine.code for machine in played.machines} == {0}, played.transcript()
