"""Attempts never overlap, and every story ends, whatever happens to nodes, Rays and links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unit import heads
from unit.coupled import LONGEST, World

MISHAPS = (
    *("cut", "cut", "heal", "job_fails"),
    *("ray_dies", "heads_ray_dies", "head_restarts", "workers_agent_dies"),
)
SUCCEEDS_AT = 1500.0


class Steady(Random):
    """Has everything take its middle time."""

    def uniform(self, a: float, b: float) -> float:
        """Return what lies between."""
        return (a + b) / 2

    def random(self) -> float:
        """Return a half."""
        return 0.5


@dataclass(frozen=True)
class Scenario:
    """A run of some workers, and what happens to it."""

    expected: int
    least: int | None
    spares: int
    retries: int
    seed: int
    """Of all that takes its time; negative, where each thing takes the same time always."""
    mishaps: tuple[tuple[float, str, int], ...]
    """When, what, to which worker."""
    dies_before: int = -1
    """Before which of its actions the head's agent is killed."""

    def play(self) -> World:
        """Let it happen."""
        of = heads.goal(self.expected, self.least, retries=self.retries)
        random = Steady() if self.seed < 0 else Random(self.seed)  # noqa: S311 - delays, no secret
        world = World(of, self.spares, random)
        world.dies_before = self.dies_before
        for at, mishap, index in self.mishaps:
            world.at(at, partial(getattr(world, mishap), index))
        world.at(SUCCEEDS_AT, world.job_succeeds)
        world.run()
        return world


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Draw a scenario; mishaps come close to each other, or to what is waited for."""
    now = draw(st.sampled_from([1.0, 8.0, 12.0, 30.0]))
    mishaps = []
    for _ in range(draw(st.integers(0, 12))):
        now += draw(st.sampled_from([0.0, 0.5, 2.0, 5.0, 12.0, 40.0, 55.0, 61.0, 100.0, 400.0]))
        mishaps.append((now, draw(st.sampled_from(MISHAPS)), draw(st.integers(0, 2))))
    return Scenario(
        expected=draw(st.integers(1, 2)),
        least=draw(st.sampled_from([None, None, 0, 1])),
        spares=draw(st.integers(0, 1)),
        retries=draw(st.sampled_from([0, 1, 2, 3])),
        seed=draw(st.integers(0, 2**32)),
        mishaps=tuple(mishaps),
    )


AWAY = (40.0, "cut", 0), (45.0, "workers_agent_dies", 0)
"""A worker whose agent is killed while its link is cut: who goes on must end its Ray in time."""
LOSING = (40.0, "heads_ray_dies", 0), (41.0, "workers_agent_dies", 0)
"""One whose agent is killed while an attempt is cleared away: its Ray is not gone for that."""


@given(scenarios())
@example(Scenario(1, 0, 0, 3, -1, AWAY))
@example(Scenario(1, None, 1, 3, -1, AWAY))
@example(Scenario(1, None, 0, 3, -1, LOSING))
def test_attempts_never_overlap(scenario: Scenario) -> None:
    """One at most has a driver or an actor anywhere; each is submitted once, in its order."""
    world = scenario.play()
    assert world.begun == sorted(set(world.begun))
    assert len(world.attempts) <= scenario.retries + 1
    assert [number for number, _, _ in world.attempts] == [*range(1, len(world.attempts) + 1)]


@given(scenarios())
def test_every_story_ends(scenario: Scenario) -> None:
    """Head and workers all leave, with a code of the contract, and nothing is left."""
    world = scenario.play()
    assert world.now < LONGEST
    assert not world.head_lives
    (end,) = world.story.ends
    assert end.exit_code in {0, 1, 69, 75}
    for node in world.nodes:
        assert (node.is_gone, node.epoch, node.actors) == (True, None, set())


FOR_GOOD = ((40.0, "cut", 0),)


@pytest.mark.parametrize("retries", [0, 1, 3])
@pytest.mark.parametrize(
    "mishaps",
    [
        (),
        ((40.0, "job_fails", 0),),
        FOR_GOOD,
        (*FOR_GOOD, (70.0, "job_fails", 0)),
        (*FOR_GOOD, (70.0, "job_fails", 0), (400.0, "heal", 0)),
        (*FOR_GOOD, (150.0, "heal", 0)),
        ((40.0, "cut", 0), (60.0, "heal", 0), (75.0, "job_fails", 0)),
        ((40.0, "cut", 0), (60.0, "heal", 0), (160.0, "job_fails", 0)),
        (*FOR_GOOD, (50.0, "heads_ray_dies", 0)),
        ((40.0, "ray_dies", 0),),
        ((40.0, "heads_ray_dies", 0),),
        ((40.0, "cut", 0), (41.0, "job_fails", 0), (130.0, "heal", 0)),
        ((40.0, "head_restarts", 0),),
        ((40.0, "heads_ray_dies", 0), (41.0, "ray_dies", 1), (90.0, "heads_ray_dies", 0)),
    ],
    ids=lambda mishaps: "-".join(what for _, what, _ in mishaps) or "nothing",
)
def test_an_agent_that_dies_between_two_actions_changes_nothing(
    mishaps: tuple[tuple[float, str, int], ...], retries: int
) -> None:
    """Replayed from the records it makes no attempt more, and ends the same.

    Also between a loss and the job's own failure by it, between the decision to stop a job and that
    job's end, and while it leaves.
    """
    scenario = Scenario(2, None, 0, retries, -1, mishaps)
    whole = scenario.play()
    for before in range(whole.performed):
        world = replace(scenario, dies_before=before).play()
        assert (before, world.codes) == (before, whole.codes)
        assert world.begun == whole.begun[: len(world.begun)], before


@given(scenarios(), st.integers(0, 40))
def test_attempts_never_overlap_though_the_agent_dies(scenario: Scenario, before: int) -> None:
    """Neither where all else happens, too; and every story ends."""
    world = replace(scenario, dies_before=before).play()
    assert world.begun == sorted(set(world.begun))
    assert len(world.attempts) <= scenario.retries + 1
    assert not world.head_lives
    assert world.now < LONGEST
