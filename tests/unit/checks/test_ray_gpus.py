"""Ray's count of GPUs is compared with each node's own before a job waits for GPUs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.checks.finding import Level
from agent.checks.machine import gpus_missing_in_ray
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import LogLine
from agent.frameworks.recipe import NodeSize
from support.heads import HEAD, NODES, SubmitJob, Trace, goal, reported
from support.worlds import MACHINE

ROWS: dict[str, tuple[list[tuple[str, int, int]], list[tuple[Level, str]]]] = {
    "no GPUs": ([("a", 0, 0)], []),
    "all are seen": ([("a", 8, 8), ("b", 4, 4)], []),
    "Ray sees more": ([("a", 0, 1)], []),
    "one is missed": (
        [("a", 8, 8), ("b", 8, 7)],
        [(Level.WARN, "Ray counts 7 of the 8 on b")],
    ),
    "none is seen": (
        [(f"n{i}", 8, 0) for i in range(6)],
        [(Level.FAIL, "Ray counts none of the 8 on n0, n1, n2, n3 and 2 more")],
    ),
}


@pytest.mark.parametrize(("nodes", "expected"), ROWS.values(), ids=ROWS)
def test_counts(nodes: list[tuple[str, int, int]], expected: list[tuple[Level, str]]) -> None:
    """Fewer GPUs than present warn, none fails; both name nodes and remedy."""
    found = gpus_missing_in_ray(nodes)
    assert [(one.level, one.what) for one in found] == expected
    assert all("AGENT_NUM_GPUS" in one.remedy for one in found)


def met(ray: float, here: int = 8, **changes: object) -> Trace:
    """Return the trace of a head and a worker, on which Ray counts so many GPUs."""
    asked = replace(goal(1), node="pod1", facts=MACHINE, size=NodeSize(8))
    report = reported(2)
    report = h.WorkerReported(replace(report.worker, gpus=here))
    listed = h.RaySeen((HEAD, replace(NODES[2], gpus=ray)))
    events: list[tuple[float, h.HeadEvent]] = [(1.0, report), (3.0, listed)]
    return Trace(replace(asked, **changes), events)


def test_ray_has_none_of_a_nodes_gpus() -> None:
    """The run is refused with the node's name, before the job waits for GPUs."""
    trace = met(0.0)
    (end,) = trace.outcomes
    assert (end.exit_code, end.culprit) == (78, "Ray's GPUs")
    assert end.reason == "Ray's GPUs: Ray counts none of the 8 on pod2"
    assert not any(isinstance(action, SubmitJob) for action in trace.actions)


def test_ray_misses_one() -> None:
    """A warning; the run continues."""
    trace = met(7.0)
    assert trace.state.phase is HeadPhase.SUBMITTING
    (said,) = [a for a in trace.actions if isinstance(a, LogLine) and a.level == "warning"]
    assert said.sentence.startswith("Ray's GPUs: Ray counts 7 of the 8 on pod2. ")


def test_no_finding_where_all_gpus_are_counted() -> None:
    """No finding if all are counted, or with AGENT_NUM_GPUS=0."""
    for trace in (met(8.0), met(0.0, here=0)):
        assert trace.state.phase is HeadPhase.SUBMITTING
        assert not trace.state.comparison.differences
