"""The messages between a worker's agent and the head's."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import Kind, Outcome
from agent.base.text import is_ip
from agent.base.value import MOST_ADDRESSES, MOST_ITEMS, Address, OptionalAddress
from agent.checks.finding import Finding, Level
from agent.decisions.shared import (
    Answer,
    ItemReport,
    Known,
    NodeWanted,
    Question,
    QuestionKind,
    Step,
    Want,
)
from agent.frameworks.recipe import NodeSize
from agent.job.services import Latency
from agent.job.share import ShareArgs, ShareEnd
from agent.node.facts import RdmaDevice
from agent.port.protocol import (
    MAX_ANSWERS,
    MAX_REPORT_VALUES,
    VERSION,
    Applied,
    Bye,
    Hello,
    Reply,
    Report,
    WorkerStats,
    protocol_mismatch,
)
from agent.serving.bodies import has_more_values
from support.json_values import ANY_JSON
from support.worlds import MACHINE

PRINTABLE = st.text(max_size=50).map(lambda text: "".join(filter(str.isprintable, text)))
NAME = PRINTABLE.filter(bool)
FINDINGS = st.builds(Finding, NAME, st.sampled_from(Level), PRINTABLE, PRINTABLE)
HELLOS = st.builds(
    Hello,
    name=NAME,
    rank=st.none() | st.integers(0, 9999),
    ray=st.none() | PRINTABLE,
    python=PRINTABLE,
    services=PRINTABLE,
    run_id=PRINTABLE,
    attempt=st.integers(0, 99),
    fingerprint=PRINTABLE,
    facts=st.none() | st.just(MACHINE),
    clock=st.none() | st.floats(0, 1e12),
    findings=st.lists(FINDINGS, max_size=3).map(tuple),
)
ITEMS = st.builds(
    ItemReport,
    NAME,
    st.sampled_from(Step),
    PRINTABLE,
    st.integers(1, 99),
    st.booleans(),
    share=st.none() | st.just(ShareEnd(7, 1, "no space", 2.5)),
)
IPS = st.just("") | st.ip_addresses().map(str)
ANSWERS = st.builds(Answer, NAME, IPS, PRINTABLE, st.floats(0, 99))
REPORTS = st.builds(
    Report,
    id=NAME,
    ip=IPS,
    phase=NAME,
    detail=PRINTABLE,
    memory=PRINTABLE,
    items=st.lists(ITEMS, max_size=3).map(tuple),
    answers=st.lists(ANSWERS, max_size=3).map(tuple),
    logs=st.none() | st.dictionaries(NAME, PRINTABLE, min_size=1, max_size=3),
    applied=st.builds(Applied, PRINTABLE, st.integers(0, 99)),
    news=st.integers(-1, 10**9),
    sequence=st.integers(0, 10**9),
    hold=st.floats(0, times.REPLY_HELD),
    hello=st.none() | HELLOS,
    bye=st.none() | st.builds(Bye, PRINTABLE, PRINTABLE),
)
CODES = st.integers(0, 255)
OUTCOMES = st.builds(Outcome, st.sampled_from(Kind), CODES, *[PRINTABLE] * 4)
KINDS = st.sampled_from(QuestionKind)
COUNTS = st.integers(1, 2**53)
QUESTIONS = st.builds(Question, COUNTS, KINDS, PRINTABLE, IPS)
SHARES = st.builds(ShareArgs, st.just(0), st.just((NodeSize(8),)), IPS)
WANTS = st.dictionaries(NAME, st.builds(Want, COUNTS, st.none() | SHARES), max_size=3)
ADDRESSES = st.dictionaries(NAME, IPS, max_size=3)
WANTED = st.builds(
    NodeWanted,
    PRINTABLE,
    COUNTS,
    st.none() | WANTS,
    ADDRESSES,
    st.booleans(),
    st.lists(QUESTIONS, max_size=3).map(tuple),
)
REPLIES = st.builds(
    Reply,
    epoch=st.integers(0, 10**15),
    run_id=PRINTABLE,
    phase=PRINTABLE,
    ray_ready=st.booleans(),
    head_ip=st.ip_addresses().map(str),
    news=st.integers(0, 2**53),
    attempt=st.integers(1, 99),
    fingerprint=PRINTABLE,
    verdict=OUTCOMES,
    refusal=PRINTABLE,
    held=st.booleans(),
    wants_hello=st.booleans(),
    wanted=st.none() | WANTED,
)
FIELDS = Report.__struct_fields__
PROPER = {"id": "agent1", "phase": "joining Ray"}


@given(REPORTS)
def test_a_report_survives_the_wire(report: Report) -> None:
    """The head reads what the worker wrote."""
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report


@given(REPLIES)
def test_a_reply_survives_the_wire(reply: Reply) -> None:
    """A worker reads what the head wrote, with or without a verdict."""
    assert Reply.from_dict(json.loads(json.dumps(reply.to_dict()))) == reply
    data = {**reply.to_dict(), "verdict": None}
    assert Reply.from_dict(json.loads(json.dumps(data))).verdict is None


def test_a_report_may_be_short() -> None:
    """Only id and phase are required; a newer worker may send fields that this head lacks."""
    report = Report.from_dict({**PROPER, "mood": "fine"})
    assert report == Report("agent1", "", "joining Ray")
    assert len(json.dumps(report.to_dict())) < 250
    nested = json.loads("[" * 900 + "]" * 900)
    with pytest.raises(ValueError, match="expected less nested data"):
        Report.from_dict({**PROPER, "more": nested})


def test_the_largest_report_has_fewer_values_than_are_parsed() -> None:
    """The limit refuses no agent."""
    names = [f"name{number}" for number in range(MOST_ITEMS)]
    texts = dict.fromkeys(names, "text")
    addresses = dict.fromkeys(names, ("10.0.0.1",) * MOST_ADDRESSES)
    finding = Finding("shm", Level.WARN, "64 MiB", "more")
    facts = replace(
        MACHINE,
        interfaces=addresses,
        known_names=addresses,
        variables={f"NAME{number}": "text" for number in range(256)},
        taken_ports={8_000 + number: "text" for number in range(MOST_ITEMS)},
        reserved_ports=((1, 2),) * MOST_ITEMS,
        rdma=(RdmaDevice("mlx5_0"),) * MOST_ITEMS,
        data_columns=dict.fromkeys(names, True),
        **dict.fromkeys(("disks", "missing_inputs", "unreadable_inputs"), texts),
    )
    report = Report(
        *("agent1", "10.0.0.1", "leaving"),
        items=(ItemReport("reward", Step.READY, "text", 7),) * MOST_ITEMS,
        stats=WorkerStats(
            latencies=dict.fromkeys(names, Latency()),
            progress=texts,
            known=(Known("key", "line", "cause", "remedy"),) * MOST_ITEMS,
        ),
        logs=texts,
        answers=(Answer("score", "10.0.0.1", "text", 1.0),) * MAX_ANSWERS,
        hello=Hello("pod1", 1, findings=(finding,) * MOST_ITEMS, facts=facts),
        bye=Bye("over", "text"),
    )
    body = json.dumps(report.to_dict()).encode()
    assert Report.from_dict(json.loads(body)) == report
    assert not has_more_values(body, MAX_REPORT_VALUES * 2 // 3)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Report("agent1", "", "p").to_dict(), ""),
        (
            {"name": "pod1", "phase": "joining Ray"},
            "this worker runs pod-agent of an earlier version",
        ),
        ({"protocol": VERSION + 1, "agent": "9.1"}, "this worker runs pod-agent 9.1, this one"),
        ([], ""),
    ],
)
def test_another_version_of_the_agent_is_refused_by_name(data: object, words: str) -> None:
    """Agents with different protocol versions refuse each other instead of misreading."""
    said = protocol_mismatch(data, "this worker")
    assert words in said
    assert bool(said) == bool(words)


def test_the_version_names_the_wire_format_of_facts() -> None:
    """Version 3 sends taken ports as an object; an agent of version 2 is refused by a sentence."""
    facts = replace(MACHINE, taken_ports={8265: "another Ray"})
    sent = json.loads(
        json.dumps(Report("agent1", "", "p", hello=Hello("pod1", 1, facts=facts)).to_dict())
    )
    assert sent["protocol"] == VERSION == 13
    assert sent["hello"]["facts"]["taken_ports"] == {"8265": "another Ray"}
    assert Report.from_dict(sent).hello == Hello("pod1", 1, facts=facts)
    assert "version mismatch" in protocol_mismatch({**sent, "protocol": 2}, "this worker")


@given(ANY_JSON | st.dictionaries(st.sampled_from(FIELDS), ANY_JSON))
def test_any_json_is_a_report_or_a_value_error(data: object) -> None:
    """For any request, the head's port answers 200 or 400, never 500."""
    try:
        report = Report.from_dict(data)
    except ValueError:
        return
    assert report.id
    assert report.phase
    assert 0 <= report.hold <= times.REPLY_HELD


@given(
    ANY_JSON
    | REPLIES.map(Reply.to_dict).flatmap(lambda d: st.sampled_from([{**d, f: None} for f in d]))
)
def test_what_is_no_reply(data: dict[str, object]) -> None:
    """For any answer on the head's port, a worker reads a reply or handles an error."""
    try:
        reply = Reply.from_dict(data)
    except ValueError:
        return
    assert isinstance(reply.news, int)


def test_texts_are_bounded() -> None:
    """A worker cannot fill the head's memory."""
    report = Report.from_dict({**PROPER, "detail": "x" * 60_000})
    assert len(report.detail) == 2000
    with pytest.raises(ValueError, match=r"^hello.name: expected `str` of length <= 255$"):
        Report.from_dict({**PROPER, "hello": {"name": "x" * 6_000}})
    with pytest.raises(ValueError, match=r"^hello.ray: expected `str` of length <= 80$"):
        Report.from_dict({**PROPER, "hello": {"name": "x", "ray": "2" * 81}})


@given(st.text(min_size=1, max_size=40))
@example("\x1b[31m\r\npod-agent: done\u2028\u202e\ud800\x00é")
def test_texts_are_printable(said: str) -> None:
    """Line ends, escape sequences and lone surrogates are shown as text; the rest is unchanged."""
    texts = dict.fromkeys(("id", "phase", "detail", "memory"), said)
    report = Report.from_dict(json.loads(json.dumps({**texts, "hello": {"name": said}})))
    assert report.hello is not None
    for text in (report.id, report.phase, report.detail, report.memory, report.hello.name):
        assert text.isprintable()
        assert text == said if said.isprintable() else len(text) > len(said)


# --- addresses -----------------------------------------------------------------------------------

SPELLINGS = st.ip_addresses().flatmap(
    lambda ip: st.sampled_from([str(ip), ip.exploded, ip.exploded.upper()])
)
SIGNS = st.text(":::::.01afF9%g\n", max_size=24)
GROUPS = st.lists(st.sampled_from(["", "0", "1", "ffff", "00001", "g"]), max_size=10).map(":".join)
BYTES = st.lists(st.sampled_from(["0", "1", "01", "99", "255", "256"]), max_size=6).map(".".join)


def is_address(text: str, kind: object = Address) -> bool:
    """Return whether a message may have this text as an address."""
    try:
        msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return False
    return True


@given(SPELLINGS | SIGNS | GROUPS | BYTES)
@example("fe80::1%eth0")
@example("::1%$(id>/tmp/x)")
@example("x$(id)")
@example("10.0.0.2/latest")
@example("10.0.0.2\n")
@example("127.0.0.77:80")
def test_an_address_is_what_the_standard_library_reads(text: str) -> None:
    """In any spelling, apart from IPv4 addresses written within IPv6; only one may be missing."""
    assert is_address(text) == (is_ip(text) and not (":" in text and "." in text))
    assert is_address(text, OptionalAddress) == (is_address(text) or not text)
