"""The speed of links between nodes: which are measured, and the effect of a slow one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import times
from agent.checks.network import SLOW, slow_links
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.boot_waits import pending_waits
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.head.probes import MAX_HEAD_LINKS, slowest_link
from agent.decisions.shared import HERE, SAMPLE, Answer, Answered
from agent.frameworks.recipe import SLOW_LINK
from agent.job.services import Placeholders
from agent.plan import waits as wait_keys
from agent.port.client import download_sample
from agent.port.node_network import bind
from agent.port.protocol import MAX_SAMPLE_BYTES, Report
from agent.port.server import AgentServer
from agent.run.effects import REAL
from agent.run.late_effects import REAL_LATE
from agent.run.questions import Prober
from support.fake_runs import prober_of, run_of
from support.heads import (
    BEGUN,
    REWARD_SPEC,
    SUBMITTED,
    TICK,
    SubmitJob,
    Trace,
    goal,
    job,
    nodes,
    ray_lost,
    reported,
)
from support.statuses import A_WORKER
from support.worlds import MACHINE, SECRET, plan_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FAST = 10e9
GB = 10**9


def links(*rates: tuple[str, str, float]) -> list[tuple[str, str, float]]:
    """Return links between nodes, in Mbps."""
    return [(one, other, rate * 1e6) for one, other, rate in rates]


ROWS: dict[str, tuple[list[tuple[str, str, float]], int, str]] = {
    "none": ([], 0, ""),
    "fast": (links(("a", "b", 9000)), 0, ""),
    "Global Networking": (
        links(("abc1", "abc2", 100.4), ("abc2", "abc1", 104)),
        15 * GB,
        "100 Mbps between abc1 and abc2: syncing 15 GB of weights takes 19 min 55 s",
    ),
    "a model that is not known": (
        links(("a", "b", 94.6)),
        0,
        (
            "94.6 Mbps between a and b: syncing 15 GB of weights (a model of 7B, for one) takes "
            "21 min 8 s"
        ),
    ),
    "one way only": (
        links(("a", "b", 9000), ("b", "a", 8.34)),
        GB,
        "8.34 Mbps between a and b: syncing 1 GB of weights takes 15 min 59 s",
    ),
    "one slow node": (
        links(("a", "b", 50), ("c", "b", 51), ("a", "c", 9000), ("b", "d", 60), ("c", "d", 5000)),
        GB,
        "50 Mbps between b, a, c and d: syncing 1 GB of weights takes 2 min 40 s",
    ),
    "many slow": (
        links(*((one, other, 50) for one, other in zip("abcdef", "bcdefa", strict=True))),
        1500 * GB,
        "50 Mbps between a, b, c, d and 2 more: syncing 1500 GB of weights takes 66 h 40 min",
    ),
}


@pytest.mark.parametrize(("measured", "weights", "what"), ROWS.values(), ids=ROWS)
def test_slow_ways(measured: list[tuple[str, str, float]], weights: int, what: str) -> None:
    """Slow links are one sentence; fast links are none."""
    found = slow_links(measured, weights)
    assert ("" if found is None else found.what) == what
    assert found is None or found.remedy


@given(st.lists(st.tuples(*[st.sampled_from("abcdef")] * 2, st.floats(1e3, 1e11))))
def test_reported_if_and_only_if_slow(measured: list[tuple[str, str, float]]) -> None:
    """For any number of links, the sentence stays short."""
    real = [link for link in measured if link[0] != link[1]]
    found = slow_links(real)
    assert (found is not None) == any(rate < SLOW for *_, rate in real)
    assert found is None or len(found.sentence()) < 300


# --- who measures, and when it is reported --------------------------------------------------------

PAIR = replace(goal(2), node="pod1", facts=MACHINE)
JOINED: list[tuple[float, h.HeadEvent]] = [
    (1.0, reported(2)),
    (1.0, reported(3)),
    (2.0, nodes(2, 3)),
]
WAYS = [
    *((HERE, "10.0.0.2"), (HERE, "10.0.0.3"), ("agent2", ""), ("agent3", "")),
    *(("agent2", "10.0.0.3"), ("agent3", "10.0.0.2")),
]


def sample(at: str, mbps: float) -> Answer:
    """Return the result of a sample."""
    return Answer(SAMPLE, at, "", 1.0, round(mbps * 1e6 / 8))


def answered(trace: Trace, mbps: float, at: float) -> None:
    """Let every node answer, with the same speed for each link."""
    for n in (2, 3):
        mine = [where for who, where in WAYS if who == f"agent{n}"]
        trace.take(reported(n, answers=tuple(sample(where, mbps) for where in mine)), at)
    for who, where in WAYS:
        if who == HERE:
            trace.take(Answered(sample(where, mbps)), at)


def test_each_way_once() -> None:
    """The head with each worker, and a ring, once the job has begun; another attempt has none."""
    trace = Trace(replace(PAIR, retries=1), JOINED)
    assert trace.state.phase is HeadPhase.SUBMITTING
    for event in (SUBMITTED, job("PENDING")):
        trace.take(event, 2.0)
        assert trace.probes == []
    trace.take(job("RUNNING"), 2.0)
    assert [(who, at) for who, probe, at in trace.probes if probe == SAMPLE] == WAYS
    trace.take(ray_lost("killed"), 3.0)
    for at in (10.0, 60.0):
        trace.take(nodes(2, 3), at)
    assert [type(a) for a in trace.actions].count(SubmitJob) == 2
    assert len([probe for _, probe, _ in trace.probes if probe == SAMPLE]) == len(WAYS)


def test_measured_while_others_are_awaited() -> None:
    """A wait for something else leaves time for it: then it is over before the job begins."""
    waiting = Trace(replace(PAIR, services=(REWARD_SPEC,)), JOINED)
    assert waiting.state.phase is HeadPhase.BOOTING
    assert [(who, at) for who, probe, at in waiting.probes if probe == SAMPLE] == WAYS


SIZED = replace(PAIR, is_sized_by_links=True)


def test_a_job_that_is_sized_by_links_waits_for_them() -> None:
    """It is submitted after the last sample, and knows the slowest link."""
    trace = Trace(replace(SIZED, retries=1), JOINED)
    assert trace.state.phase.value == "booting"
    assert [wait.key for wait in pending_waits(trace.state)] == [wait_keys.LINKS]
    assert slowest_link(trace.state) is None
    answered(trace, 700, 3.0)
    assert trace.state.phase is HeadPhase.SUBMITTING
    assert slowest_link(trace.state) == pytest.approx(700e6, rel=0.01)
    trace.take(ray_lost("killed"), 4.0)
    for at in (11.0, 61.0):
        trace.take(nodes(2, 3), at)
    assert [type(a) for a in trace.actions].count(SubmitJob) == 2


def test_the_wait_for_links_ends() -> None:
    """Links without a sample delay the job by ten seconds, and do not end the run."""
    trace = Trace(SIZED, JOINED)
    trace.take(reported(2, answers=(sample("", 100),)), 3.0)
    assert trace.state.phase.value == "booting"
    trace.take(TICK, 2.0 + times.BANDWIDTH_SAMPLE)
    assert trace.state.phase is HeadPhase.SUBMITTING
    assert slowest_link(trace.state) == pytest.approx(100e6, rel=0.01)


def test_links_are_measured_until_they_are_known_to_be_fast() -> None:
    """A warning concerns slower links than those that decide how weights are sharded."""
    assert SLOW < SLOW_LINK


def test_a_large_cluster_has_few_ways_to_the_head() -> None:
    """Only some workers measure the link to the head, so that only the ring grows."""
    count = 60
    workers = range(2, count + 2)
    joined = [(1.0, reported(n)) for n in workers]
    trace = Trace(goal(count), [*joined, (2.0, nodes(*workers)), *BEGUN])
    ways = [(who, at) for who, probe, at in trace.probes if probe == SAMPLE]
    ring = [(who, at) for who, at in ways if who != HERE and at]
    assert len(ring) == len({who for who, _ in ring}) == count
    assert len(ways) - len(ring) == 2 * MAX_HEAD_LINKS


def test_one_sentence_for_all() -> None:
    """It is logged once, after the last sample, and listed by `doctor --all`."""
    trace = Trace(PAIR, [*JOINED, *BEGUN])
    answered(trace, 100, 3.0)
    answered(trace, 50, 4.0)
    expected = "network: 100 Mbps between pod1, pod2 and pod3: syncing 15 GB of weights"
    assert trace.log.count("network: ") == trace.log.count(expected) == 1
    assert [one.check for one in trace.state.probes.findings] == ["network"]
    fast = Trace(PAIR, [*JOINED, *BEGUN])
    answered(fast, 9000, 3.0)
    assert "network" not in fast.log
    assert fast.state.probes.due == {}


def test_the_models_own_size() -> None:
    """The sentence has the model's size if its weights are a local folder."""
    trace = Trace(replace(PAIR, facts=replace(MACHINE, model_bytes=15 * GB)), [*JOINED, *BEGUN])
    answered(trace, 100, 3.0)
    assert "syncing 15 GB of weights takes 20 min" in trace.log


def test_late_is_a_warning() -> None:
    """At the deadline the known speeds are logged, with the links that have no sample."""
    trace = Trace(PAIR, [*JOINED, *BEGUN])
    answers = (sample("", 100), sample("10.0.0.3", 9000))
    trace.take(reported(2, answers=answers), 3.0)
    assert "network" not in trace.log
    until = 2.0 + times.BANDWIDTH_SAMPLE
    assert head.deadline(trace.state) == until
    trace.take(TICK, until)
    assert "network: 100 Mbps between pod1 and pod2: " in trace.log
    assert "no bandwidth sample within 10 s: pod1 to pod2, " in trace.log
    assert "agent" not in trace.log


def test_a_node_that_left_is_not_awaited() -> None:
    """Its links are reported without it; a failed sample gives no speed."""
    trace = Trace(replace(PAIR, min_workers=1), [*JOINED, *BEGUN])
    refused = tuple(Answer(SAMPLE, at, "connection refused") for at in ("", "10.0.0.3"))
    trace.take(reported(2, answers=refused), 3.0)
    for at in ("10.0.0.2", "10.0.0.3"):
        trace.take(Answered(sample(at, 100)), 3.5)
    assert "network" not in trace.log
    busy = (Answer(SAMPLE, "10.0.0.2", "no time was left for it"),)
    trace.take(reported(3, answers=busy), 3.7)
    assert "network" not in trace.log
    trace.take(reported(3, has_left=True), 4.0)
    assert "network: 100 Mbps between pod1, pod2 and pod3: " in trace.log


# --- for real ------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def a_node(run_id: str, token: str | None = None) -> AsyncIterator[int]:
    """Serve a node's port; yield its number."""
    listening = bind("127.0.0.1", 0)
    site = AgentServer(
        token=token, ready=lambda: True, status=lambda _reader: A_WORKER, run_id=lambda: run_id
    )
    runner = await site.open([listening])
    try:
        yield int(listening.getsockname()[1])
    finally:
        await runner.cleanup()


def drawn(run_id: str, asks: str, *, token: str | None = None, shows: str | None = None) -> object:
    """Return the result of a sample, from a node of one run to one of the same or another."""

    async def trace() -> object:
        async with a_node(run_id, token) as port:
            return await download_sample("127.0.0.1", port, shows, asks, 20.0)

    return anyio.run(trace)


def test_a_sample_is_drawn() -> None:
    """Some MB arrive, and no more than the limit."""
    found = drawn("run-1", "run-1", token=SECRET, shows=SECRET)
    assert isinstance(found, tuple)
    size, seconds = found
    assert 0 < size <= MAX_SAMPLE_BYTES
    assert seconds > 0


@pytest.mark.parametrize(
    ("asks", "shows", "status"), [("run-2", SECRET, 409), ("run-1", None, 401)]
)
def test_not_for_everybody(asks: str, shows: str | None, status: int) -> None:
    """A node of another run gets none, nor one without the token."""
    expected = drawn("run-1", asks, token=SECRET, shows=shows)
    assert isinstance(expected, str)
    assert expected.endswith(f"answered {status}")


def test_a_node_without_a_run_gives_none() -> None:
    """Before the head's first reply a worker belongs to no run."""
    assert str(drawn("", "")).endswith("answered 409")


def test_several_at_once_take_turns() -> None:
    """All clients get a sample; one that reads nothing delays the others by some seconds."""

    async def trace() -> list[object]:
        found: list[object] = []
        async with a_node("run-1") as port:

            async def ask() -> None:
                found.append(await download_sample("127.0.0.1", port, None, "run-1", 20.0))

            async with await anyio.connect_tcp("127.0.0.1", port) as mute:
                await mute.send(b"GET /sample?run=run-1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(ask)
        return found

    found = anyio.run(trace)
    assert len(found) == 3
    assert all(isinstance(one, tuple) for one in found), found


@pytest.mark.parametrize(
    ("read_at", "expected"),
    [
        ([9000], 9000),
        ([96, 95], 96),
        ([134, 9000], 9000),
        ([100, 200, 190], 200),
        ([100, 200, 400], 400),
        ([100, 200, 100], 200),
    ],
)
def test_what_is_slow_is_slow_each_time(
    read_at: list[float], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine varies: after different speeds the link is measured again."""
    left = [round(mbps * 1e6 / 8) for mbps in read_at]

    async def look(
        ip: str, port: int, token: str | None, run_id: str, limit: float
    ) -> tuple[int, float]:
        del ip, port, token, run_id, limit
        return left.pop(0), 1.0

    monkeypatch.setattr(times, "SAMPLE_PAUSE", 0.01)
    run = run_of(plan_of({}))
    run.effects = REAL._replace(late=lambda: REAL_LATE._replace(download_sample=look))
    prober = Prober(run)
    answer = anyio.run(prober.probe, SAMPLE, "", Placeholders("127.0.0.1", "127.0.0.1", "1"))
    assert not left
    assert answer.size * 8 / 1e6 / answer.seconds == expected


def test_a_node_measures() -> None:
    """The address is a worker's or the head's; port and token are those of this node's plan."""

    async def trace() -> list[Answer]:
        async with a_node("run-1") as port:
            prober = prober_of(plan_of({"AGENT_PORT": str(port)}))
            place = Placeholders("127.0.0.1", "127.0.0.1", "1")
            return [await prober.probe(SAMPLE, at, place) for at in ("", "127.0.0.1", "127.0.0.9")]

    first, second, nobody = anyio.run(trace)
    assert (first.at, second.at) == ("", "127.0.0.1")
    assert first.evidence == second.evidence == ""
    assert first.size > 0
    assert nobody.evidence.startswith("connection refused by 127.0.0.9:")
    report = Report("agent2", "10.0.0.2", "following the head", answers=(first, nobody))
    assert Report.from_dict(report.to_dict()).answers == (first, nobody)
