"""Messages that once ended a run, a worker or a head: each is refused or harmless."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from agent.cli import remote
from agent.decisions import head
from agent.decisions.head import head_state as h
from agent.decisions.shared import SAMPLE, Answer, Order, OrderKind, Tick
from agent.frameworks.recipe import NodeSize
from agent.job.torchrun_command import ShareEnd, ShareOrder, ShareOver
from agent.node.facts import Folder
from agent.port.protocol import MAX_HELLO_CHARACTERS, Hello, Reply, Report
from agent.record.events import Dropped
from agent.run.node_run import NodeRun
from agent.run.worker import facts_to_send
from support import served
from support.fake_runs import status_of
from support.heads import PAIR, SUBMITTED, History, Trace, goal, job, nodes, reported
from support.worlds import MACHINE, SECRET, plan_of, with_ray

if TYPE_CHECKING:
    from pathlib import Path

    from agent.node.facts import Facts

BEAT = {"protocol": 4, "id": "agent1", "phase": "joining Ray"}
FACTS = Report("x", "", "p", hello=Hello("pod1", 1, facts=MACHINE)).to_dict()["hello"]
ESCAPE = "\x1b]0;pwned\x07\x1b[2J"


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"hello": {"name": "pod1", "attempt": 10**15}}, "hello.attempt"),
        ({"hello": {"name": "pod1", "attempt": 400_000}}, "hello.attempt"),
        ({"hello": {"name": "pod1", "gpus": -1}}, "hello.gpus"),
        ({"hello": {"name": "pod1", "clock": float("inf")}}, "hello.clock"),
        ({"running_attempt": 10**15}, "running_attempt"),
        ({"share": {"attempt": 1, "end": {"code": 1792}}}, "share.end.code"),
        ({"answers": [{"probe": SAMPLE, "size": -1}]}, r"answers\[0\].size"),
        ({"news": float("nan")}, "news"),
        ({"ip": "127.0.0.77/latest/meta-data"}, "ip"),
        ({"ip": "::1%$(id)"}, "ip"),
        ({"answers": [{"probe": SAMPLE, "at": "x$(id)"}]}, r"answers\[0\].at"),
    ],
)
def test_a_number_out_of_its_range(sent: dict[str, object], field: str) -> None:
    """It is refused with the field's name, before any use."""
    with pytest.raises(ValueError, match=f"^{field}: expected"):
        Report.from_dict(json.loads(json.dumps({**BEAT, **sent})))


@pytest.mark.parametrize("clock", [float("inf"), float("nan"), 10**300])
def test_a_clock_of_facts(clock: float) -> None:
    """The clock's offset is reported as a number."""
    assert isinstance(FACTS, dict)
    facts = {
        **FACTS["facts"],
        "node_versions": {**FACTS["facts"]["node_versions"], "clock_ahead": clock},
    }
    with pytest.raises(ValueError, match=r"^hello.facts.node_versions.clock_ahead: expected"):
        Report.from_dict({**BEAT, "hello": {**FACTS, "facts": facts}})


@pytest.mark.parametrize("code", [256, 1792, -1, True, 0.0])
def test_a_verdict_of_no_process(code: float) -> None:
    """1792 would become 0, success, as a process's exit code."""
    verdict = {"kind": "job-failed", "exit_code": code, "reason": "it failed"}
    data = Reply(1, "run", "leaving", ray_ready=False, head_ip="10.0.0.1", news=0).to_dict()
    with pytest.raises(ValueError, match=r"^verdict.exit_code: expected"):
        Reply.from_dict({**data, "verdict": verdict})


def test_an_address_of_facts() -> None:
    """The names of a machine's addresses are no addresses."""
    assert isinstance(FACTS, dict)
    facts = {**FACTS["facts"], "default_source": "x$(id)"}
    where = r"^hello.facts.default_source: expected an IP address, without a scope id$"
    with pytest.raises(ValueError, match=where):
        Report.from_dict({**BEAT, "hello": {**FACTS, "facts": facts}})


def test_a_share_among_nodes_without_number() -> None:
    """A reply is read for any number of a worker's GPUs; a rank below 0 is none."""
    order = Order("head", 1, OrderKind.RUN_SHARE, share=ShareOrder(0, (NodeSize(-1),)))
    data = Reply(1, "r", "p", ray_ready=True, head_ip="10.0.0.1", news=0, orders=(order,)).to_dict()
    with pytest.raises(ValueError, match=r"^orders\[0\].share.nodes\[0\].gpus: expected"):
        Reply.from_dict(data)


def test_a_sample_of_nothing() -> None:
    """A link without received bytes has no speed, and causes no division by 0."""
    answers = (Answer(SAMPLE, "", "", 1.0, 0),)
    joined: History = [(2.0, reported(2)), (3.0, nodes(2)), (4.0, SUBMITTED), (5.0, job("RUNNING"))]
    trace = Trace(goal(1), [*joined, (7.0, reported(2, answers=answers)), (60.0, Tick())])
    assert "Mbps" not in trace.log
    assert trace.state.phase is h.HeadPhase.RUNNING


def test_the_end_of_a_share_travels() -> None:
    """With its attempt's number."""
    over = ShareOver(3, ShareEnd(7, 1, "no space", 2.5))
    data = json.loads(json.dumps(Report("a", "", "p", share=over).to_dict()))
    assert data["share"]["end"]["code"] == 7
    assert Report.from_dict(data).share == over


# --- texts ---------------------------------------------------------------------------------------


def sent_by_a_node(facts: Facts) -> Facts:
    """Return facts as the head has them after it has read the hello."""
    report = Report("agent2", "10.0.0.2", "p", hello=Hello("pod2", 1, facts=facts))
    hello = Report.from_dict(json.loads(json.dumps(report.to_dict()))).hello
    assert hello is not None
    assert hello.facts is not None
    return hello.facts


def test_versions_steer_no_terminal() -> None:
    """A library's version with escape sequences is printed as text: in the log and by `doctor`."""
    told = sent_by_a_node(with_ray(MACHINE, libraries={"torch": f"2.6.0{ESCAPE}"}))
    of = replace(goal(1), facts=with_ray(MACHINE, libraries={"torch": "2.6.0"}), node="pod0")
    trace = Trace(of, [(2.0, reported(2)), (2.0, h.WorkerIntroduced("agent2", "pod2", told))])
    trace.take(nodes(2), 3.0)
    (end,) = trace.outcomes
    shown = json.dumps(status_of(trace.state, plan_of({})).findings(), ensure_ascii=False)
    assert "torch" in end.reason
    assert "pwned" in shown
    assert end.reason.isprintable()
    assert shown.isprintable()


def test_doctor_steers_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences in a head's findings are printed as text."""
    found = {"check": "torch", "level": "warn", "what": f"2.6{ESCAPE}", "remedy": "", "nodes": []}
    findings = {"nodes": ["a", "b"], "unknown": [ESCAPE], "between": [found], "findings": []}
    monkeypatch.setattr(served, "FINDINGS", findings)
    with served.a_head(token=SECRET) as head:
        environ = {**served.environ_of(head.port, tmp_path), "RAY_AUTH_TOKEN": SECRET}
        assert remote.show_findings(environ, as_json=False) == 0
    out = capsys.readouterr().out
    assert "pwned" in out
    assert all(line.isprintable() for line in out.splitlines())


# --- sizes ---------------------------------------------------------------------------------------


def test_a_hello_that_is_too_large() -> None:
    """It would be stored as long as its agent exists."""
    hello = {"name": "pod1", "job": "x" * MAX_HELLO_CHARACTERS}
    with pytest.raises(ValueError, match=r"^hello: expected"):
        Report.from_dict({**BEAT, "hello": hello})


def test_a_machine_with_much_of_everything() -> None:
    """Thousands of interfaces, addresses and files still fit into an accepted hello."""
    many = tuple(f"fe80::dead:beef:{n:x}" for n in range(5_000))
    facts = replace(
        MACHINE,
        interfaces={"eth0": ("10.0.0.5",), **{f"veth{n:08x}": many for n in range(3_000)}},
        reserved_ports=tuple((n, n) for n in range(10_000, 15_000)),
        known_names={"head": many},
        ray_temp=Folder("/tmp/ray", True, 0, 0o700, many),  # noqa: FBT003 - is_folder
    )
    assert sent_by_a_node(facts_to_send(facts)).interfaces == {}
    assert sent_by_a_node(MACHINE) == MACHINE


# --- the guard -----------------------------------------------------------------------------------


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect what the guard logs."""
    lines: list[str] = []
    monkeypatch.setattr("agent.run.node_run.say", lambda text, _level: lines.append(text))
    return lines


def guarding(recorded: list[object]) -> NodeRun:
    """Return what of a run the guard needs."""
    run = SimpleNamespace(record=recorded.append, now=lambda: 9.0, _dropped=set())
    return cast("NodeRun", run)


def decide(
    run: NodeRun, state: h.HeadState, event: h.HeadEvent
) -> tuple[h.HeadEvent, h.HeadState, tuple[h.HeadAction, ...]]:
    """Decide on an event as a head does."""
    return NodeRun.decide(run, head.decide, h.FROM_OUTSIDE, state, event)


def test_a_report_on_which_the_decisions_fail(said: list[str]) -> None:
    """It is dropped, recorded and logged once; the state is restored, and the run continues."""
    recorded: list[object] = []
    trace = Trace(goal(1), PAIR)
    run = guarding(recorded)
    broken = replace(reported(2).worker, items=(7,))
    for _ in range(3):
        event, state, actions = decide(run, trace.state, h.WorkerReported(broken))
        assert (event, actions) == (Tick(), ())
        assert state is trace.state
    (line,), (dropped,) = said, recorded
    assert isinstance(dropped, Dropped)
    assert dropped.event == "WorkerReported"
    assert "AttributeError" in line
    assert "WorkerReported" in line
    event, state, _ = decide(run, trace.state, reported(2))
    assert event == reported(2)
    assert state.phase is h.HeadPhase.RUNNING


def test_an_event_of_our_own_on_which_they_fail(said: list[str]) -> None:
    """That is a bug of this node, which ends with 70."""
    trace = Trace(goal(1), PAIR)
    with pytest.raises(TypeError):
        decide(guarding([]), trace.state, h.RayNodes(7))  # type: ignore[arg-type]  # same
    assert said == []
