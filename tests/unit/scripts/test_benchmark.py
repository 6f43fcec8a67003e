"""The benchmark's pure part: rotation, ratios, targets, table."""

from __future__ import annotations

import argparse

import pytest

from tools.bench.cli import peers, schedule
from tools.bench.figures import (
    Follow,
    Run,
    Share,
    order,
    ratios,
    summary,
    table,
    targets,
    values,
)
from tools.bench.second_start import Start, is_slow, second_start_table
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
FOLLOW = Follow(30.0, [Share("init", 9.0, 3.0, 0.0), Share("agent", 61.5, 50.0, 0.3)], [0, 0])


def test_order_rotates() -> None:
    """Each system runs first in turn."""
    assert [order("abc", n)[0] for n in range(4)] == ["a", "b", "c", "a"]
    assert order("abc", 1) == ["b", "c", "a"]


def test_the_slow_one_runs_in_the_first_rounds_only() -> None:
    """--slow-rounds limits symmetric-run only."""
    runs = list(schedule(["agent", "symmetric-run"], 3, 1))
    assert runs == [(0, "agent"), (0, "symmetric-run"), (1, "agent"), (2, "agent")]
    assert list(schedule(["symmetric-run"], 2, 1)) == [(0, "symmetric-run")]


def test_ratios_are_of_each_round_that_has_both() -> None:
    """A round in which one of the two failed is not counted."""
    assert ratios(RUNS, "agent", "handmade", "time to job") == [1.0, 1.5]
    assert ratios(RUNS, "handmade", "symmetric-run", "time to job") == [0.5]
    assert ratios(RUNS, "handmade", "symmetric-run", "start to all gone") == []


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [([], "-"), ([1.234], "1.23"), ([1.0, 4.0, 2.0], "2.00 (1.00-4.00)")],
)
def test_summary(numbers: list[float], shown: str) -> None:
    """Median first, then the extremes; a dash for no values."""
    assert summary(numbers) == shown


def test_targets_take_the_median_of_ratios_and_the_worst_of_limits() -> None:
    """A promise about every run is compared with the worst run."""
    found = {target.name: target for target in targets(RUNS, FOLLOW)}
    values = [target.value for target in found.values()]
    assert values == [None, None, 1.25, 13 / 106, 3.5, 0.3, 70.5, 0.3]
    holds = [target.holds for target in found.values()]
    assert holds == [None, None, False, True, True, True, True, True]


def test_what_was_not_measured_neither_holds_nor_fails() -> None:
    """Without a run there is no result."""
    assert {target.holds for target in targets([], None)} == {None}
    assert "not measured" in targets([], None)[0].sentence()


def test_table_shows_figures_verdicts_and_failures() -> None:
    """The table has every measure, ratio, result and failed run."""
    text = table(RUNS, FOLLOW, ["agent", "handmade", "symmetric-run"])
    assert "time to job" in text
    assert "11.00 (10.00-12.00)" in text
    assert "MISSED        time to job, agent/handmade: 1.25 (at most 1.1)" in text
    assert "FAILED        agent, round 2: no job-started within 120 s" in text
    assert "61.5" in text


def test_disturbed_runs_are_named() -> None:
    """The table marks runs that other processes disturbed."""
    run = Run("agent", 3, to_job=30.0, others_to_job=12.34)
    assert run.disturbed
    assert not Run("agent", 3, to_job=10.0, others_to_job=0.2).disturbed
    text = table([run], None, ["agent"])
    assert "DISTURBED     agent, round 3: others took 12.3 CPU-seconds" in text


def test_values_leave_out_what_did_not_come() -> None:
    """A failed run has no time to job."""
    assert values(RUNS, "agent", "time to job") == [10.0, 12.0]


def test_unknown_peers_are_refused() -> None:
    """A typo is an error and not an empty benchmark."""
    assert peers("agent,handmade") == ["agent", "handmade"]
    with pytest.raises(argparse.ArgumentTypeError, match="unknown: agnet"):
        peers("agnet")


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


def test_own_cpu_of_a_worker_is_the_mean_of_the_workers() -> None:
    """A system without the agent has a dash."""
    run = Run("agent", 0, own_head=0.6, own_bridge=0.5, own_workers=[0.4, 0.5])
    text = table([run, Run("handmade", 0)], None, ["agent", "handmade"])
    rows = [line.split("  ") for line in text.splitlines() if line.startswith("own CPU")]
    cells = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert cells == {
        "own CPU, head's agent": ["0.60", "-"],
        "own CPU, bridge to Ray": ["0.50", "-"],
        "own CPU, a worker's agent": ["0.45", "-"],
    }


def test_a_second_start_is_compared_with_the_first() -> None:
    """The table has the ratios, and a start above the limit is slow."""
    cold = Start("first start", 100.0, 80.0, "cold: none", "3 file(s)")
    fast = Start("again", 40.0, 20.0, "seeded x", "nothing")
    slow = Start("fresh", 41.0, 20.0, "seeded y", "nothing")
    assert not is_slow([cold, fast])
    assert is_slow([cold, fast, slow])
    rows = second_start_table([cold, fast]).splitlines()
    assert "| first start | 100.0 s | 80.0 s |  |" in rows
    assert "| again | 40.0 s | 20.0 s | 0.40 |" in rows
    assert "again: seeded x; written back: nothing" in rows
