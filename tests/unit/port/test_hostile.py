"""Messages that once ended a run, a worker or a head: each is refused or harmless."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import types
from collections.abc import Mapping
from itertools import islice
from types import SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import anyio
import pytest
from aiohttp import ClientSession
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, to_builtins
from msgspec.structs import replace

from agent.base.value import Value
from agent.checks.finding import Finding, Level
from agent.cli import doctor_verb
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.shared import SAMPLE, Answer, QuestionKind, Tick
from agent.node.facts import Folder
from agent.port.client import HeadLink
from agent.port.glance import judged
from agent.port.metrics import metrics
from agent.port.node_network import bind
from agent.port.protocol import MAX_HELLO_CHARACTERS, VERSION, Hello, Reply, Report
from agent.port.reports import Expected, Reports
from agent.port.server import AgentServer, without_log_text
from agent.port.status_model import FindingsStatus
from agent.record.events import Dropped
from agent.record.summary import Timeline
from agent.run.node_run import NodeRun
from agent.run.worker import facts_to_send
from support import served, workers
from support.fake_runs import status_of
from support.heads import (
    PAIR,
    PREPARED,
    RETRIEVER,
    SUBMITTED,
    TERM,
    TICK,
    History,
    Trace,
    goal,
    job,
    nodes,
    reported,
)
from support.json_values import ANY_JSON
from support.mutated import BAD, WORD, Field, body, filled, named, places, put
from support.shares import by_torchrun
from support.statuses import A_WORKER
from support.worlds import MACHINE, SECRET, plan_of, with_ray

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from agent.decisions.head.head_goal import HeadGoal
    from agent.decisions.worker import worker_state as w
    from agent.node.facts import Facts

ESCAPE = "\x1b]0;pwned\x07\x1b[2J"


def test_a_sample_of_nothing() -> None:
    """A link without received bytes has no speed, and causes no division by 0."""
    answers = (Answer(SAMPLE, "", "", 1.0, 0),)
    joined: History = [(2.0, reported(2)), (3.0, nodes(2)), (4.0, SUBMITTED), (5.0, job("RUNNING"))]
    trace = Trace(goal(1), [*joined, (7.0, reported(2, answers=answers)), (60.0, Tick())])
    assert "Mbps" not in trace.log
    assert trace.state.phase is h.HeadPhase.RUNNING


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
    sent = sent_by_a_node(with_ray(MACHINE, libraries={"torch": f"2.6.0{ESCAPE}"}))
    of = replace(goal(1), facts=with_ray(MACHINE, libraries={"torch": "2.6.0"}), node="pod0")
    trace = Trace(of, [(2.0, reported(2)), (2.0, h.WorkerIntroduced("agent2", "pod2", sent))])
    trace.take(nodes(2), 3.0)
    (end,) = trace.outcomes
    found = to_builtins(status_of(trace.state, plan_of({})).findings())
    shown = json.dumps(found, ensure_ascii=False)
    assert "torch" in end.reason
    assert "pwned" in shown
    assert end.reason.isprintable()
    assert shown.isprintable()


def test_doctor_steers_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences in a head's findings are printed as text."""
    found = Finding("torch", Level.WARN, f"2.6{ESCAPE}", "")
    findings = FindingsStatus(("a", "b"), (ESCAPE,), (), (found,))
    monkeypatch.setattr(served, "FINDINGS", findings)
    with served.a_head(token=SECRET) as head:
        environ = {**served.environ_of(head.port, tmp_path), "RAY_AUTH_TOKEN": SECRET}
        assert doctor_verb.show_findings(environ, as_json=False) == 0
    out = capsys.readouterr().out
    assert "pwned" in out
    assert all(line.isprintable() for line in out.splitlines())


# --- sizes ---------------------------------------------------------------------------------------


def test_a_hello_that_is_too_large() -> None:
    """It would be stored as long as its agent exists."""
    hello = {"name": "pod1", "job": "x" * MAX_HELLO_CHARACTERS}
    with pytest.raises(ValueError, match=r"^hello: expected"):
        Report.from_dict({"id": "agent1", "phase": "joining Ray", "hello": hello})


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
        decide(guarding([]), trace.state, h.RaySeen(7))  # type: ignore[arg-type]  # same
    assert said == []


MOST_CALLS = 20_000
"""Function calls per message: the cost does not grow with a number in it."""
EVERY = 1 if settings().max_examples >= 90 else 8
"""Every how many bad values, and questions, are tried; `./scripts/test --all` tries all."""
COSTLY = {"10**15", "a long text", "a long list"}
OF_REPORT, OF_REPLY = [*places(Report)], [*places(Reply)]
ALIVE = {
    **filled(Report),
    "protocol": VERSION,
    "id": "agent2",
    "bye": None,
    "service_only": False,
    "preparing": False,
    "error": "",
    "memory": "",
    "news": -1,
}
"""A report of a joined worker with every optional field."""
ALIVE["items"][0].update(name=RETRIEVER, step="ready")
ALIVE["answers"][0].update(probe=SAMPLE, evidence="", at="", size=1 << 20)
ALIVE["hello"].update(name="pod2", run_id="run", attempt=0)
LEAVING = {**ALIVE, "bye": filled(Report)["bye"]}
REPLY: dict[str, Any] = {
    **filled(Reply),
    "protocol": VERSION,
    "held": False,
    "wants_hello": False,
    "refusal": "",
}
for _share in REPLY["wanted"]["wants"].values():
    _share["share"]["rank"] = 0
PLAN = plan_of({})
JOINED: History = [
    (9.0, nodes(2, 3)),
    (9.0, h.WorkerReported(replace(reported(3, rank=3).worker, last_report_at=9.0))),
]
"""A healthy worker joins as well; what nodes try, they are asked for then."""
LATER: History = [
    *((at, TICK) for at in (13.0, 20.0, 60.0, 61.0)),
    (62.0, SUBMITTED),
    (63.0, job("RUNNING")),
    (64.0, TICK),
    (150.0, TERM),
    (151.0, job("STOPPED")),
]
"""The job runs, and is stopped."""


def began(of: HeadGoal) -> h.HeadState:
    """Return a head that waits for its worker, with every comparison and probe enabled."""
    of = replace(of, facts=MACHINE, node="pod0")
    return Trace(of, [(1.0, event) for event in PREPARED]).state


HEADS = [began(goal(1, services=(RETRIEVER,), prepare=True)), began(by_torchrun(1))]


SHELL = "x$(id)"


BAD_REPORTS: list[tuple[str, object]] = [
    ("id", ""),
    ("phase", []),
    ("items", [{}] * 1000),
    ("hold", 1e9),
    ("hold", -5),
    ("news", True),
    ("news", float("nan")),
    ("hello.name", None),
    ("hello.rank", "2"),
    ("hello.rank", 1.5),
    ("hello.attempt", 10**15),
    ("hello.attempt", 400_000),
    ("hello.gpus", -1),
    ("hello.clock", float("inf")),
    ("hello.facts.node_versions.clock_ahead", float("inf")),
    ("hello.facts.node_versions.clock_ahead", float("nan")),
    ("hello.facts.node_versions.clock_ahead", 10**300),
    ("hello.facts.default_source", SHELL),
    ("items[0].generation", 2**53 + 1),
    ("items[0].share.code", 1792),
    ("answers[0].size", -1),
    ("answers[0].at", SHELL),
    ("ip", "127.0.0.77/latest/meta-data"),
    ("ip", "::1%$(id)"),
]
BAD_REPLIES: list[tuple[str, object]] = [
    *(("verdict.exit_code", code) for code in (256, -1, True, 0.0)),
    ("verdict.exit_code", 1792),  # it would become 0, success, as a process's exit code
    ("wanted.wants.share.nodes[0].gpus", -1),
]


@pytest.mark.parametrize(
    ("of", "field", "value"),
    [*((Report, *row) for row in BAD_REPORTS), *((Reply, *row) for row in BAD_REPLIES)],
)
def test_a_value_out_of_its_range(of: type[Report | Reply], field: str, value: object) -> None:
    """It is refused with the field's name, before any use."""
    base, fields = (ALIVE, OF_REPORT) if of is Report else (REPLY, OF_REPLY)
    (path,) = (place.path for place in fields if place.name == field)
    named = field.replace(".wants.", ".wants[...].")
    with pytest.raises(ValueError, match=f"^{re.escape(named)}: expected"):
        of.from_dict(json.loads(body(put(base, path, value))))


class Port:
    """A head's port, and its decisions on the received reports."""

    def __init__(self) -> None:
        self.sent: list[h.HeadEvent] = []
        self.site = AgentServer(token=None, ready=lambda: True, status=lambda _reader: A_WORKER)

    def fresh(self) -> None:
        """Discard the received reports."""
        self.sent.clear()
        first = Reply(
            1, "run", "booting", ray_ready=True, head_ip="10.0.0.1", news=0, fingerprint=WORD
        )
        expected = Expected(WORD, WORD, WORD, WORD, WORD)
        self.site._reports = Reports(  # noqa: SLF001 - one port does for all cases
            *(first, expected, self.sent.append, lambda: 2.0), on_recalled_run=self._remember
        )

    def _remember(self, hello: Hello, epoch: int) -> bool:
        self.sent.append(h.RunRemembered(hello.run_id, hello.attempt, epoch))
        return False

    def decide(self) -> None:
        """Apply the reports to each head's decisions, up to the end of its run."""
        for state in HEADS:
            trace, timeline = Trace(state.goal, ()), Timeline()
            trace.state = state
            again = [(10.0, event) for event in self.sent if isinstance(event, h.WorkerReported)]
            came = [(2.0, event) for event in self.sent]
            for at, event in [*came, *JOINED, *again, *LATER]:
                trace.take(event, at)
                timeline.add(event, trace.state, at)
            status = status_of(trace.state, PLAN, timeline, now=200.0).status()
            assert metrics(status)
            assert json.dumps(to_builtins(judged(status)), allow_nan=False)
            assert without_log_text(status)
            assert trace.finish()
            (end,) = trace.outcomes
            assert end.exit_code in {69, 75, 78, 143}, end


class Calls:
    """Counts the functions that are called, and fails where they are too many."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0

    def __enter__(self) -> None:
        """Begin to count."""
        sys.setprofile(self._note)

    def _note(self, _frame: object, event: str, _arg: object) -> None:
        self._count += event == "call"

    def __exit__(self, *_: object) -> None:
        """Stop counting."""
        sys.setprofile(None)
        assert self._count <= MOST_CALLS, f"{self._count} calls: {self._what}"


async def ask_all(cases: Iterable[tuple[str, str, bytes]]) -> int:
    """Post every case; check the reply and the decisions; return the number accepted."""
    taken, port, listener = 0, Port(), bind("127.0.0.1", 0)
    runner = await port.site.open([listener])
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/report"
    try:
        async with ClientSession(headers={"Content-Type": "application/json"}) as session:
            for place, value, data in cases:
                port.fresh()
                async with session.post(url, data=data) as reply:
                    status, answer = reply.status, await reply.json()
                what = f"{value} in {place}: {status} {str(answer)[:200]}"
                assert status in {200, 400}, what
                if status == 400:
                    assert named(answer["error"], place), what
                    continue
                taken += 1
                assert Reply.from_dict(answer), what
                with Calls(what) if value in COSTLY else contextlib.nullcontext():
                    port.decide()
    finally:
        await runner.cleanup()
    return taken


def mutated(of: Iterable[Field]) -> Iterator[tuple[str, str, bytes]]:
    """Yield a report for each place and each bad value, or for an equal share of them."""
    for number, place in enumerate(of):
        base = LEAVING if place.path[0] == "bye" else ALIVE
        for value, bad in islice(BAD.items(), number % EVERY, None, EVERY):
            yield place.name, value, body(put(base, place.path, bad))


def test_every_field_of_a_report() -> None:
    """Each is accepted or refused by name; the head continues at bounded cost."""
    assert anyio.run(ask_all, mutated(OF_REPORT)) * EVERY > len(OF_REPORT)


@given(st.lists(st.tuples(st.sampled_from(OF_REPORT), ANY_JSON), min_size=2, max_size=6))
def test_several_fields_of_a_report(changes: list[tuple[Field, object]]) -> None:
    """Combinations of bad fields do no more harm than single ones."""
    message: dict[str, Any] = ALIVE
    for place, value in changes:
        with contextlib.suppress(IndexError, KeyError, TypeError):  # its parent is gone
            message = put(message, place.path, value)
    anyio.run(ask_all, [("", "several", body(message))])


STORIES = [
    workers.WorkerTrace(workers.goal(), [(1.0, workers.replied())]).state,
    workers.WorkerTrace(workers.goal(), [(1.0, workers.replied()), (2.0, workers.RAY_UP)]).state,
    workers.WorkerTrace(replace(workers.goal(), by_shares=True), [(1.0, workers.replied())]).state,
]


def heard_of(reply: Reply) -> list[w.WorkerEvent]:
    """Return the events of a reply for a worker's decisions."""
    sent: list[w.WorkerEvent] = []
    nobody: Any = None
    link = HeadLink(*("pod0", 1, 1, None), nobody, nobody, sent.append, lambda _reply: None)
    link._handle_reply("10.0.0.1", reply)  # noqa: SLF001 - what a link does with each
    return sent


def reply_in(data: object) -> Reply | str:
    """Read a reply, or return why it cannot be read."""
    try:
        return Reply.from_dict(data)
    except ValueError as error:
        return str(error)


def follow(reply: Reply) -> None:
    """Apply a reply to each worker's decisions, up to the end of the run."""
    for state in STORIES:
        trace = workers.WorkerTrace(state.goal, ())
        trace.state = state
        for event in [*heard_of(reply), workers.replied(), workers.TERM]:
            trace.take(event, 3.0)
        (end,) = trace.outcomes
        assert 0 <= end.exit_code <= 255


@pytest.mark.parametrize("place", OF_REPLY, ids=[place.name for place in OF_REPLY])
def test_every_field_of_a_reply(place: Field) -> None:
    """Each is read or refused by name; the worker continues at bounded cost."""
    at = OF_REPLY.index(place)
    for number, (value, bad) in enumerate(islice(BAD.items(), at % EVERY, None, EVERY)):
        for kind in islice(QuestionKind, (at + number) % EVERY, None, EVERY):
            question = {**REPLY["wanted"]["questions"][0], "kind": kind.value}
            message = {**REPLY, "wanted": {**REPLY["wanted"], "questions": [question]}}
            data = json.loads(body(put(message, place.path, bad)))
            with Calls(f"{value} in {place.name}"):
                reply = reply_in(data)
                if isinstance(reply, str):
                    assert named(reply, place.name), (reply, value)
                    continue
                follow(reply)


def unlimited(hint: Any, limits: Meta, name: str) -> Iterator[str]:  # noqa: ANN401 - any type
    """Name the numbers and collections in a type that have no limits."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from unlimited(args[0], args[1], name)
    elif isinstance(hint, type) and issubclass(hint, Value):
        for field, one in get_type_hints(hint, include_extras=True).items():
            yield from unlimited(one, Meta(), f"{hint.__name__}.{field}")
    elif args and origin is not Literal:
        is_bounded = origin in {Union, types.UnionType} or limits.max_length is not None
        if not is_bounded and (origin is not tuple or Ellipsis in args):
            yield name
        for one in args:
            yield from unlimited(one, Meta(), name)
    elif hint in {int, float} and limits.ge is None:
        yield name


def test_every_field_of_a_message_has_limits() -> None:
    """A field that is added has a range or a largest length; texts are cut."""

    class Careless(Value):
        number: int = 0
        names: tuple[str, ...] = ()
        by_name: Mapping[str, float] = {}

    assert [*unlimited(Careless, Meta(), "")] == [
        *("Careless.number", "Careless.names", "Careless.by_name", "Careless.by_name")
    ]
    assert [*unlimited(Report, Meta(), ""), *unlimited(Reply, Meta(), "")] == []
