"""Probes between nodes: which node probes what and when, the waits, and the warnings."""

from __future__ import annotations

import gc
import json
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import times
from agent.base.errors import PreflightError
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import (
    HERE,
    REACH,
    SAMPLE,
    SCORE,
    Answer,
    Answered,
    ItemReport,
    LogLine,
    NodeWanted,
    Question,
    QuestionKind,
    Step,
)
from agent.job.services import ON_EVERY, Placeholders
from agent.plan import waits as wait_keys
from agent.port.node_network import bind
from agent.port.protocol import Applied, Hello, Reply, Report
from agent.port.reports import Expected, Reports
from support.fake_runs import prober_of
from support.heads import (
    BEGUN,
    NODES,
    READY,
    REWARD,
    REWARD_SPEC,
    TICK,
    Trace,
    goal,
    nodes,
    reported,
)
from support.worlds import MACHINE, plan_of

if TYPE_CHECKING:
    import socket

SCORED = goal(2, services=(REWARD,))
FINE = (Answer(SCORE, ""),)
PLACE = Placeholders("127.0.0.1", "127.0.0.1", "1")
ONE, TWO = ("agent2", SCORE, ""), ("agent3", SCORE, "")


def scores(trace: Trace) -> list[tuple[str, str, str]]:
    """Return the nodes with an order to request a score."""
    return [probe for probe in trace.probes if probe[1] == SCORE]


def test_each_node_is_asked_once_as_soon_as_may_be() -> None:
    """Present nodes when the reward server answers, later ones with their first report."""
    trace = Trace(SCORED, [(1.0, reported(2, "joining Ray", joined=False))])
    assert not trace.probes
    trace.take(READY[1], 2.0)
    assert scores(trace) == [ONE]
    trace.take(reported(2), 3.0)
    trace.take(reported(3), 4.0)
    trace.take(reported(3), 5.0)
    assert scores(trace) == [ONE, TWO]


def test_the_submission_waits_for_their_word_and_not_for_long() -> None:
    """A requested score is awaited; after 10 s its node is named, and the job is submitted."""
    trace = Trace(
        SCORED, [(1.0, reported(2)), READY, (6.0, reported(2, answers=FINE)), (7.0, reported(3))]
    )
    trace.take(nodes(2, 3), 8.0)
    assert not trace.effects
    (wait,) = head.pending_waits(trace.state)
    assert (wait.key, wait.deadline) == (wait_keys.PROBE, 7.0 + times.NODE_PROBE)
    assert wait.evidence == "no answer from pod3"
    trace.take(TICK, wait.deadline)
    assert trace.state.phase is HeadPhase.SUBMITTING
    assert "no answer to a scoring request within 10 s: pod3 to the head. " in trace.log


@pytest.mark.parametrize("last", [reported(3, answers=FINE), reported(3, has_left=True)])
def test_it_goes_on_with_the_last_word(last: h.WorkerReported) -> None:
    """The wait ends when all have answered, or are gone."""
    asked = replace(SCORED, expected_workers=1, min_workers=1)
    trace = Trace(
        asked, [(1.0, reported(2, answers=())), (1.0, reported(3)), READY, (6.0, nodes(2))]
    )
    trace.take(reported(2, answers=FINE), 6.5)
    assert not trace.effects
    trace.take(last, 7.0)
    assert trace.state.phase is HeadPhase.SUBMITTING
    assert "no answer" not in trace.log


def test_a_node_that_gets_no_score_is_named() -> None:
    """A warning only: the framework decides which node requests rewards."""
    bad = (Answer(SCORE, "", "connection refused by 10.0.0.1:5000"),)
    trace = Trace(goal(1, services=(REWARD,)), [(1.0, reported(2)), READY, (6.0, nodes(2))])
    trace.take(reported(2, answers=bad), 7.0)
    trace.take(reported(2, answers=bad), 8.0)  # a report may come twice
    assert trace.state.phase is HeadPhase.SUBMITTING
    sentence = "reward server: pod2 gets no score from it: connection refused by 10.0.0.1:5000. "
    assert trace.log.count(sentence) == 1


def test_a_reward_server_on_a_worker() -> None:
    """The other nodes, the head included, get its address; it does not probe itself."""
    spec = replace(REWARD_SPEC, where=replace(ON_EVERY, kind="rank", rank=1))
    asked = replace(goal(2), services=(spec,))
    lives = (ItemReport(REWARD, Step.READY),)
    trace = Trace(asked, [(1.0, reported(3, rank=2)), (2.0, reported(2, rank=1))])
    trace.take(reported(2, rank=1, items=lives), 3.0)
    assert scores(trace) == [(HERE, SCORE, "10.0.0.2"), ("agent3", SCORE, "10.0.0.2")]
    trace.take(Answered(Answer(SCORE, "10.0.0.2")), 4.0)
    results = trace.state.probes.answers[SCORE].items()
    assert [link for link, answer in results if answer is None] == [("agent3", "10.0.0.2")]


def test_a_reward_server_on_the_only_worker() -> None:
    """The head is asked for a score all the same."""
    spec = replace(REWARD_SPEC, where=replace(ON_EVERY, kind="rank", rank=1))
    trace = Trace(replace(goal(1), services=(spec,)), [(1.0, reported(2, rank=1))])
    trace.take(reported(2, rank=1, items=(ItemReport(REWARD, Step.READY),)), 2.0)
    assert scores(trace) == [(HERE, SCORE, "10.0.0.2")]


# --- each other's Ray ----------------------------------------------------------------------------


def test_a_ring_and_the_head() -> None:
    """Each worker and the head probe each other, and each worker the next, beside the job."""
    agents: list[tuple[float, h.HeadEvent]] = [(1.0, reported(n)) for n in (2, 3, 4)]
    trace = Trace(goal(3), [*agents, (2.0, nodes(2, 3, 4)), *BEGUN])
    assert trace.state.phase is HeadPhase.RUNNING
    head_ip = "10.0.0.1"
    assert {(node, at) for node, probe, at in trace.probes if probe == REACH} == {
        *((HERE, f"10.0.0.{n}") for n in (2, 3, 4)),
        *((f"agent{n}", head_ip) for n in (2, 3, 4)),
        *(("agent2", "10.0.0.3"), ("agent3", "10.0.0.4"), ("agent4", "10.0.0.2")),
    }
    assert {probe for _, probe, _ in trace.probes} == {REACH, SAMPLE}


@given(st.sets(st.sampled_from(sorted(NODES))), st.sets(st.sampled_from(sorted(NODES))))
def test_no_more_than_three_probes_of_a_kind_a_worker(there: set[int], by_hand: set[int]) -> None:
    """The number grows with the nodes, not their pairs; no node probes itself."""
    agents: list[tuple[float, h.HeadEvent]] = [(1.0, reported(n)) for n in sorted(there - by_hand)]
    trace = Trace(goal(len(there)), [*agents, (2.0, nodes(*sorted(there))), *BEGUN])
    assert len(trace.probes) == len(set(trace.probes))
    for kind in (REACH, SAMPLE):
        assert len([probe for _, probe, _ in trace.probes if probe == kind]) <= 3 * len(there)
    for node, probe, at in trace.probes:
        assert node == HERE or int(node.removeprefix("agent")) in there - by_hand
        assert probe == REACH or int((at or "10.0.0.1").rpartition(".")[2]) not in by_hand
        assert node == HERE or at != f"10.0.0.{node.removeprefix('agent')}"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(REACH, "10.0.0.3", "", 0.048), ""),
        (
            Answer(REACH, "10.0.0.1", "no answer from 10.0.0.1:8267 within 2 s"),
            "network: pod2 does not reach the Ray of the head: no answer from 10.0.0.1:8267 ",
        ),
        (Answer("foreign", "10.0.0.3", "whatever"), ""),
    ],
)
def test_what_is_reported_of_the_network(answer: Answer, said: str) -> None:
    """Unreachable pairs are named."""
    trace = Trace(goal(2), [(1.0, reported(2)), (1.0, reported(3)), (2.0, nodes(2, 3))])
    before = trace.log
    trace.take(reported(2, answers=(answer,)), 3.0)
    assert trace.log.removeprefix(before).strip().startswith(said)
    assert bool(said) == (trace.log != before)


def test_many_are_counted() -> None:
    """A network closed between all nodes makes few log lines."""
    trace = Trace(goal(1), [(1.0, reported(2)), (2.0, nodes(2))])
    for n in range(100):
        trace.take(reported(2, answers=(Answer(REACH, f"10.1.0.{n}", "refused"),)), 3.0 + n)
    warnings = [a for a in trace.actions if isinstance(a, LogLine) and a.level == "warning"]
    assert len(warnings) == 9
    assert warnings[-1].sentence == "more of the kind: `pod-agent doctor --all` here"
    assert len(trace.state.probes.findings) == 64


@pytest.mark.parametrize("given", [True, False])
def test_where_others_run_ray(given: bool) -> None:  # noqa: FBT001 - a row of a table
    """The ports of a given Ray are unknown."""
    trace = Trace(goal(1, given=given), [(2.0, nodes(2)), *BEGUN])
    assert (not trace.probes) == given


# --- on a worker ---------------------------------------------------------------------------------


def asked(question: Question) -> NodeWanted:
    """Return the message by which a head asks this alone."""
    return NodeWanted("head-agent", question.number, {}, questions=(question,))


@pytest.mark.parametrize("at", ["http://evil", "example.org", "10.0.0.3/x", "::1%$(id)"])
def test_a_question_has_an_address(at: str) -> None:
    """It has no URL and no host name."""
    wanted = asked(Question(1, QuestionKind.PROBE, REACH, at=at))
    reply = Reply(1, "r", "p", ray_ready=True, head_ip="10.0.0.1", news=0, wanted=wanted)
    with pytest.raises(ValueError, match=r"^wanted.questions\[0\].at: expected an IP address"):
        Reply.from_dict(json.loads(json.dumps(reply.to_dict())))


def test_the_way_of_a_question_and_its_answer() -> None:
    """It is sent as JSON until it was received, and its answer reaches the decisions."""
    events: list[object] = []
    reply = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)
    reports = Reports(reply, Expected("2.60.0", "3.11.7", "", ""), events.append, lambda: 1.0)
    hello = Hello("pod2", 1, ray="2.60.0", python="3.11.7", facts=MACHINE)
    first = Report("agent2", "10.0.0.2", "joining Ray", hello=hello)
    anyio.run(reports.handle, first)
    reports.ask("agent2", QuestionKind.PROBE, REACH, at="10.0.0.3")
    sent = json.loads(json.dumps(anyio.run(reports.handle, replace(first, hello=None)).to_dict()))
    wanted = Reply.from_dict(sent).wanted
    assert wanted is not None
    assert [(one.name, one.at) for one in wanted.questions] == [(REACH, "10.0.0.3")]
    answers = (Answer(REACH, "10.0.0.3", "refused", 0.5),)
    heard = Applied(wanted.by, wanted.revision)
    back = replace(first, hello=None, answers=answers, applied=heard)
    replied = anyio.run(reports.handle, Report.from_dict(json.loads(json.dumps(back.to_dict()))))
    assert replied.wanted is None
    last = events[-1]
    assert isinstance(last, h.WorkerReported)
    assert last.worker.answers == answers


# --- for real ------------------------------------------------------------------------------------


def listening(count: int) -> list[socket.socket]:
    """Listen on consecutive ports, like the agent's and Ray's inner ones."""
    for _ in range(50):
        with ExitStack() as stack:
            sockets = [stack.enter_context(bind("127.0.0.1", 0))]
            port = int(sockets[0].getsockname()[1])
            with suppress(PreflightError):  # somebody has the next one: try elsewhere
                others = (bind("127.0.0.1", port + number) for number in range(1, count))
                sockets.extend(map(stack.enter_context, others))
                stack.pop_all()
                return sockets
    raise AssertionError("no neighboring ports are free")


def test_neighboring_ports_that_are_taken_leave_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An open one would fail whichever test runs when it is collected."""
    tries: list[int] = []
    refused: list[int] = []
    take = bind

    def refuse_a_second_neighbor(address: str, port: int) -> socket.socket:
        tries.append(port)
        is_neighbor = port != 0  # others may take neighboring ports meanwhile, too
        if is_neighbor and len(tries) >= 3 and not refused:
            refused.append(port)
            raise PreflightError("taken")
        return take(address, port)

    monkeypatch.setitem(globals(), "bind", refuse_a_second_neighbor)
    sockets = listening(3)
    for listener in sockets:
        listener.close()
    gc.collect()
    assert refused
    assert len(tries) >= 6


def test_reaching_another_worker() -> None:
    """Its raylet and object manager accept connections; a closed port is named."""
    agent, raylet, objects = listening(3)
    port = int(agent.getsockname()[1])
    prober = prober_of(plan_of({"AGENT_PORT": str(port)}))
    with agent, raylet:
        with objects:
            answer = anyio.run(prober.probe, REACH, "127.0.0.1", PLACE)
            assert (answer.evidence, answer.at) == ("", "127.0.0.1")
            assert answer.seconds > 0
        answer = anyio.run(prober.probe, REACH, "127.0.0.1", PLACE)
    assert answer.evidence == f"connection refused by 127.0.0.1:{port + 2}"


def test_a_score_from_nobody() -> None:
    """The URL is from this node's own plan; the error has no secret."""
    free = bind("127.0.0.1", 0)
    port = int(free.getsockname()[1])
    free.close()
    plan = plan_of({"AGENT_REWARD": "builtin", "AGENT_REWARD_PORT": str(port)})
    prober = prober_of(plan, lambda text: text.replace("refused", "****"))
    answer = anyio.run(prober.probe, SCORE, "", PLACE)
    assert answer.evidence == "connection ****"
    without = prober_of(plan_of({}, command=["train"]))
    assert "no reward server" in anyio.run(without.probe, SCORE, "", PLACE).evidence
