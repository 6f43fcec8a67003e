"""The benchmark's pure part: rotation, ratios, targets, table."""

from __future__ import annotations

import pytest

from tools.bench.fault_figures import FaultRound, fault_targets
from tools.bench.figures import Run, ratios, targets
from tools.bench.systems import is_bridge, is_ours

RUNS = [
    Run("agent", 0, to_job=10.0, head_gone=2.0, workers_gone=3.0, all_gone=13.0, launched=0.1),
    Run("handmade", 0, to_job=10.0, head_gone=1.0),
    Run("symmetric-run", 0, to_job=20.0, head_gone=28.0, workers_gone=86.0, all_gone=106.0),
    Run("agent", 1, to_job=12.0, head_gone=2.5, workers_gone=3.5, all_gone=16.0, launched=0.3),
    Run("handmade", 1, to_job=8.0, head_gone=1.0),
    Run("agent", 2, problem="no job-started within 120 s"),
    Run("handmade", 2, to_job=9.0, head_gone=1.0),
]


def test_ratios_are_of_each_round_that_has_both() -> None:
    """A round in which one of the two failed is not counted."""
    assert ratios(RUNS, "agent", "handmade", "to_job") == [1.0, 1.5]
    assert ratios(RUNS, "handmade", "symmetric-run", "to_job") == [0.5]
    assert ratios(RUNS, "handmade", "symmetric-run", "all_gone") == []


def test_targets_take_the_median_of_ratios_and_the_worst_of_limits() -> None:
    """A promise about every run is compared with the worst run."""
    found = {target.name: target for target in targets(RUNS)}
    values = [target.value for target in found.values()]
    assert values == [None, None, 1.25, 13 / 106, 3.5, 0.3]
    holds = [target.holds for target in found.values()]
    assert holds == [None, None, False, True, True, True]


@pytest.mark.parametrize(
    ("cmdline", "whose"),
    [
        ("/v/bin/python3 /v/bin/pod-agent run -- sh -c true", "agent"),
        ("/v/bin/python3 -m agent", "agent"),
        ("/v/bin/python3 /v/agent/__main__.py ray-bridge 10.77.0.10:6379 http://h:8265", "bridge"),
        ("/v/bin/python3 /v/ray/dashboard/agent.py --node-ip-address=10.77.0.11", "Ray"),
        ("/v/bin/python3 /v/bin/ray start --block --temp-dir=/tmp/pod-agent", "Ray"),
        ("/v/raylet --raylet_socket_name=/tmp/pod-agent/session/sockets/raylet", "Ray"),
    ],
)
def test_own_processes_are_counted_apart_from_rays(cmdline: str, whose: str) -> None:
    """Ray's dashboard agent is not our agent, and the bridge is counted by itself."""
    assert is_ours(cmdline) is (whose == "agent")
    assert is_bridge(cmdline) is (whose == "bridge")


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
