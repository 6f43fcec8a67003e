"""What workers tell beside their word: how fast services answer, and how preparation stands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from agent.decisions.shared import HERE, Known
from agent.job.services import LATENCY_BOUNDS, Latency
from agent.port.protocol import Report, WorkerStats, read
from agent.port.status_model import StepStatus
from agent.run.node_run import NodeStats
from support.fake_runs import status_of
from support.heads import (
    REWARD,
    STEPS,
    Trace,
    goal,
    reported,
)
from support.worlds import plan_of

times = st.lists(st.floats(0, 1e3), max_size=20)
KNOWN = Known("GPU memory", "CUDA out of memory", "a GPU ran out of memory", "Take less")
ANSWERS = Latency().with_answer(0.03).with_answer(70.0)


@given(times)
def test_latencies_add_up(answers: list[float]) -> None:
    """Each answer is counted once, at the first bound that it kept."""
    latency = Latency()
    for seconds in answers:
        latency = latency.with_answer(seconds)
    assert latency.count == len(answers)
    assert latency.total == pytest.approx(sum(answers), abs=0.01)
    for place, bound in enumerate(LATENCY_BOUNDS):
        assert sum(latency.counts[: place + 1]) == sum(seconds <= bound for seconds in answers)


@given(times, st.lists(st.text(max_size=9), max_size=4))
def test_it_survives_the_wire(answers: list[float], steps: list[str]) -> None:
    """What a worker tells is what the head hears, whatever its steps are called."""
    latency = Latency()
    for seconds in answers:
        latency = latency.with_answer(seconds)
    sent = WorkerStats({REWARD: latency}, dict.fromkeys(steps, "40%"), (KNOWN,), 2)
    report = Report("id", "10.0.0.2", "following the head", stats=sent)
    received = Report.from_dict(json.loads(json.dumps(report.to_dict()))).stats
    assert received is not None
    assert received.latencies == sent.latencies
    assert received.known == (KNOWN,)
    if all(name.isprintable() for name in steps):
        assert received == sent
    assert all(name.isprintable() for name in received.progress)


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"progress": ["a"]},
        {"progress": {"a": 1}},
        {"progress": {str(number): "" for number in range(99)}},
        {"known": {}},
        {"known": ["a"]},
        {"known": [{"line": "no key"}]},
        {"known": [{"key": "a"}] * 99},
        {"latencies": []},
        {"latencies": {"a": 1}},
        {"latencies": {"a": {"last": 0, "total": 0, "counts": [1]}}},
        {"latencies": {"a": {"last": 0, "total": 0, "counts": [-1] * 12}}},
        {"latencies": {"a": {"last": "x", "total": 0, "counts": [0] * 12}}},
        {"latencies": {"a": {"last": 0, "total": 0, "counts": [1e99] * 12}}},
    ],
)
def test_what_is_none_is_refused(data: Any) -> None:  # noqa: ANN401 - whatever JSON has
    """A field that is wrong is named; nothing of it is taken."""
    with pytest.raises(ValueError, match=r"expected|invalid enum value|missing required"):
        read(WorkerStats, data)


def test_it_is_bounded() -> None:
    """A worker cannot fill the head's memory, nor anybody's terminal."""
    received = read(WorkerStats, {"progress": {"n" * 9000: "x" * 9000}})
    ((name, line),) = received.progress.items()
    assert (len(name), len(line)) == (2000, 2000)


def test_a_node_stores_its_statistics() -> None:
    """Answers count, the last line of a step that runs stays until it is over, without secrets."""
    seen = NodeStats(lambda text: text.replace("hunter2", "****"))
    assert seen.for_report() is None
    seen.record_latency(REWARD, 0.03)
    seen.record_latency(REWARD, 70.0)
    seen.progress["fetch"] = "40% of hunter2"
    sent = seen.for_report()
    assert sent == WorkerStats({REWARD: ANSWERS}, {"fetch": "40% of ****"})
    seen.progress.pop("fetch")
    assert seen.snapshot().progress == {}


def test_a_shares_known_lines_are_reported() -> None:
    """Of its last attempt, without secrets and without noise; when it wrote is known."""
    seen = NodeStats(lambda text: text.replace("hunter2", "****"))
    assert seen.last_share_output is None
    seen.share_lines(1).write(
        b"step 1\nOSError: [Errno 28] No space left on device: hunter2\n", lambda _: False
    )
    assert seen.last_share_output is not None
    stats = seen.for_report()
    assert stats is not None
    (known,) = stats.known
    assert (known.key, known.line) == (
        "disk full",
        "OSError: [Errno 28] No space left on device: ****",
    )
    assert stats.attempt == 1
    seen.share_lines(1).close()
    assert seen.snapshot().known == (known,)
    seen.share_lines(2).write(b"Export metrics to agent failed\n", lambda _: False)
    assert seen.for_report() is None


def test_the_status_has_it() -> None:
    """Latencies beside their services, steps beside their nodes; of log text nothing."""
    trace = Trace(goal(1, services=(REWARD,), prepare=True), ())
    trace.take(reported(2, preparing=True), 1.0)
    trace.take(replace(reported(3)), 1.0)
    stats = {
        HERE: WorkerStats({REWARD: ANSWERS}, {"gsm8k": "secret text"}),
        "agent2": WorkerStats({}, {STEPS[0].name: "secret text"}),
    }
    found = status_of(trace.state, plan_of({}), stats=stats).status()
    (reward,) = found.services
    assert reward.latency == ANSWERS
    steps = {node.name: node.steps for node in found.nodes}
    assert steps == {"pod2": (StepStatus(STEPS[0].name, "pending"),), "pod3": ()}
    assert "secret text" not in json.dumps(to_builtins(found))
