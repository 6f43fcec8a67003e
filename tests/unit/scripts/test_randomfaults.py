"""The pure part of chaos: a seed's faults, the permitted results, and stored results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.chaos import faults as f
from tools.chaos.faults import Fault
from tools.chaos.permitted import (
    RETRIES,
    Beat,
    head_codes,
    worker_codes,
    wrong_attempts,
)


def fault(at: float, action: str, target: str, pod: int, lasts: float = 0.0) -> Fault:
    """Return a fault of a known kind."""
    (kind,) = [kind for kind in f.KINDS if (kind.action, kind.target) == (action, target)]
    return Fault(at, kind, pod, lasts)


AGENT_DIES = fault(30.0, f.KILL, f.AGENT, 1)
WORKER_DIES = fault(30.0, f.KILL, f.POD, 1, 5.0)
REWARD_DIES = fault(30.0, f.KILL, f.REWARD, 0)


@pytest.mark.parametrize(
    ("faults", "may"),
    [
        ([], {7}),
        ([AGENT_DIES], {7}),
        ([REWARD_DIES], {7}),
        ([REWARD_DIES] * 4, {7, 69}),
        ([WORKER_DIES], {7, 75, 9}),
        ([fault(30.0, f.KILL, f.DRIVER, 0)], {7, 137}),
        ([fault(30.0, f.KILL, f.ACTOR, 2)], {7, 9}),
        (
            [
                fault(30.0, f.DISK, "full", 0, 9.0),
                fault(30.0, f.DNS, f.SILENT, 0, 9.0),
            ],
            {7},
        ),
        ([fault(3.0, f.KILL, f.REWARD, 0)], {7, 69}),
        ([fault(3.0, f.STOP, f.RAYLET, 1, 9.0)], {7, 9, 69, 75}),
        ([fault(30.0, f.KILL, f.AGENT, 0)] * 4, {7, 70}),
    ],
)
def test_what_a_head_may_end_with(faults: list[Fault], may: set[int]) -> None:
    """A harmless fault changes nothing; a loss permits its code, and no other."""
    assert head_codes(faults, began=20.0) == may


def test_a_worker_ends_as_its_head_or_by_a_loss_of_its_own() -> None:
    """Without a loss its code is the head's; after one it may have its own cause."""
    assert worker_codes([AGENT_DIES], 1, 7, 20.0) == {7}
    assert worker_codes([WORKER_DIES], 1, 9, 20.0) == {9, 69, 75}
    assert worker_codes([AGENT_DIES] * 4, 1, 7, 20.0) == {7, 70}
    assert worker_codes([AGENT_DIES], 1, None, 20.0) == {7}
    head_dies = replace(WORKER_DIES, pod=0)
    assert worker_codes([head_dies], 1, 69, 20.0) == {7, 9, 69, 75}


def test_overlapping_attempts_are_reported() -> None:
    """An attempt's last beat comes before the first of the next, in every process."""
    one, two = Beat(1, "driver", 20.0, 40.0), Beat(2, "driver", 50.0, 60.0)
    assert wrong_attempts([WORKER_DIES], [one, two]) == []
    late = Beat(1, "actor-10.77.0.12", 21.0, 52.0)
    assert wrong_attempts([WORKER_DIES], [one, late, two]) == [
        "attempt 1 ran on in actor-10.77.0.12 for 2.0 s beside attempt 2"
    ]


def test_too_many_attempts_are_reported() -> None:
    """Without a loss there is one, and never more than the retries plus one."""
    beats = [Beat(n, "driver", 10.0 * n, 10.0 * n + 5) for n in range(1, RETRIES + 3)]
    assert wrong_attempts([], beats[:2]) == ["attempt 2 was made, permitted: 1"]
    assert wrong_attempts([WORKER_DIES], beats[:3]) == []
    assert wrong_attempts([WORKER_DIES], beats) == ["attempt 4 was made, permitted: 3"]
