"""The pure part of the benchmark of faults: medians, references, and the promises."""

from __future__ import annotations

from tools.bench.fault_figures import FaultRound, fault_targets

GOOD = FaultRound(0, 15.0, 1.0, 6.0, 7.5, 0.6, 1.4, 1.5, 1.2, 18.0)
SLOW = FaultRound(1, 16.0, 4.0, 6.0, 9.0, 0.6, 1.8, 1.7, 1.4, 25.0, others=31.0)
FAILED = FaultRound(2, 15.0, problem="no attempt 2 within 90 s")


def test_medians_are_held_against_the_promises() -> None:
    """Each against its reference: Ray's start, a cold boot, its own start."""
    values = [target.value for target in fault_targets([GOOD])]
    assert values == [1.0, 1.5, 1.2, 1.4 - 0.6, 1.5, 1.2]
    assert all(target.holds for target in fault_targets([GOOD]))
    slow = fault_targets([SLOW])
    assert [target.holds for target in slow] == [False, False, False, True, True, True]
