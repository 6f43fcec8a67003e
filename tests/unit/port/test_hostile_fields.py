"""Hostile messages: each field with each bad value is accepted, or refused by name.

The fields come from the types of the messages (mutated.py): a new field is tested automatically.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import types
from collections.abc import Mapping
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta
from msgspec.structs import replace

from agent.base.value import Value
from agent.decisions.head import head_state as h
from agent.decisions.shared import SAMPLE, OrderKind
from agent.decisions.worker import worker_state as w
from agent.port.client import HeadLink
from agent.port.protocol import VERSION, Hello, Reply, Report
from agent.port.reports import Expected, Reports
from agent.port.server import AgentServer
from agent.port.sockets import bind
from agent.port.status import metrics
from agent.record.summary import Timeline
from support import heads, workers
from support.fake_runs import status_of
from support.heads import PREPARED, RETRIEVER, SUBMITTED, TERM, TICK, goal, job, nodes, reported
from support.mutated import BAD, WORD, Field, body, filled, named, places, put
from support.shares import by_torchrun
from support.worlds import MACHINE, plan_of
from unit.port.test_protocol import JSON

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_CALLS = 20_000
"""Function calls per message: the cost does not grow with a number in it."""
EVERY = max(1, 90 // settings().max_examples)
"""Every how many bad values of a field are tried: all of them in `./scripts/test --all`."""
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
REPLY["orders"][0]["share"]["rank"] = 0
PLAN = plan_of({})
JOINED: heads.History = [
    (9.0, nodes(2, 3)),
    (9.0, h.WorkerReported(replace(reported(3, rank=3).worker, last_report_at=9.0))),
]
"""A healthy worker joins as well; what nodes try, they are asked for then."""
LATER: heads.History = [
    *((at, TICK) for at in (13.0, 20.0, 60.0, 61.0)),
    (62.0, SUBMITTED),
    (63.0, job("RUNNING")),
    (64.0, TICK),
    (150.0, TERM),
    (151.0, job("STOPPED")),
]
"""The job runs, and is stopped."""


def began(of: h.HeadGoal) -> h.HeadState:
    """Return a head that waits for its worker, with every comparison and probe enabled."""
    of = replace(of, facts=MACHINE, node="pod0")
    return heads.Trace(of, [(1.0, event) for event in PREPARED]).state


HEADS = [began(goal(1, services=(RETRIEVER,), prepare=True)), began(by_torchrun(1))]


class Port:
    """A head's port, and its decisions on the received reports."""

    def __init__(self) -> None:
        self.told: list[h.HeadEvent] = []
        self.site = AgentServer(token=None, ready=lambda: True, status=dict)

    def fresh(self) -> None:
        """Discard the received reports."""
        self.told.clear()
        first = Reply(
            1, "run", "booting", ray_ready=True, head_ip="10.0.0.1", news=0, fingerprint=WORD
        )
        expected = Expected(WORD, WORD, WORD, WORD, WORD)
        self.site._reports = Reports(  # noqa: SLF001 - one port does for all cases
            *(first, expected, self.told.append, lambda: 2.0), on_recalled_run=self._remember
        )

    def _remember(self, hello: Hello, epoch: int) -> bool:
        self.told.append(h.RunRemembered(hello.run_id, hello.attempt, epoch))
        return False

    def decide(self) -> None:
        """Apply the reports to each head's decisions, up to the end of its run."""
        for state in HEADS:
            trace, timeline = heads.Trace(state.goal, ()), Timeline()
            trace.state = state
            again = [(10.0, event) for event in self.told if isinstance(event, h.WorkerReported)]
            came = [(2.0, event) for event in self.told]
            for at, event in [*came, *JOINED, *again, *LATER]:
                trace.take(event, at)
                timeline.add(event, trace.state, at)
            status = status_of(trace.state, PLAN, timeline, now=200.0).status()
            assert metrics(status)
            assert json.dumps(status, allow_nan=False)
            assert trace.finish()
            (end,) = trace.outcomes
            assert end.exit_code in {69, 75, 78, 143}, end


class Line:
    """One connection to a port, for consecutive reports."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, data: bytes) -> tuple[int, Any]:
        """Post a report; return the status and the JSON of the answer."""
        head = f"POST /report HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
        self._writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
        got = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        lines = dict(line.split(": ", 1) for line in got.strip().split("\r\n")[1:])
        answer = await self._reader.readexactly(int(lines["Content-Length"]))
        return int(got.split()[1]), json.loads(answer)


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
    reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
    line = Line(reader, writer)
    try:
        for place, value, data in cases:
            port.fresh()
            status, answer = await line.post(data)
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
        writer.close()
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


def test_what_is_mutated_is_whole() -> None:
    """The base message has every field, is accepted unchanged, and is not a bare heartbeat."""
    assert anyio.run(ask_all, [("", "", body(ALIVE)), ("", "", body(LEAVING))]) == 2
    named_ones = {place.name for place in OF_REPORT}
    deep = {"hello.facts.node_versions.clock_ahead", "hello.facts.ray.libraries", "share.end.code"}
    assert deep | {"answers[0].size", "stats.latencies.counts[0]", "logs"} <= named_ones


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OF_REPORT), JSON), min_size=2, max_size=6))
def test_several_fields_of_a_report(changes: list[tuple[Field, object]]) -> None:
    """Combinations of bad fields do no more harm than single ones."""
    message: dict[str, Any] = ALIVE
    for place, value in changes:
        with contextlib.suppress(IndexError, KeyError, TypeError):  # its parent is gone
            message = put(message, place.path, value)
    anyio.run(ask_all, [("", "several", body(message))])


STORIES = [
    workers.WorkerTrace(workers.goal(), [(1.0, workers.replied())]).state,
    workers.WorkerTrace(workers.goal(), [(1.0, workers.replied()), (2.0, w.RayUp())]).state,
    workers.WorkerTrace(
        replace(workers.goal(), by_torchrun=True), [(1.0, workers.replied())]
    ).state,
]


def heard_of(reply: Reply) -> list[w.WorkerEvent]:
    """Return the events of a reply for a worker's decisions."""
    told: list[w.WorkerEvent] = []
    nobody: Any = None
    link = HeadLink(*("pod0", 1, 1, None), nobody, nobody, told.append, lambda _reply: None)
    link._handle_reply("10.0.0.1", reply)  # noqa: SLF001 - what a link does with each
    return told


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
    for value, bad in islice(BAD.items(), OF_REPLY.index(place) % EVERY, None, EVERY):
        for kind in OrderKind:
            message = {**REPLY, "orders": [{**REPLY["orders"][0], "kind": kind.value}]}
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
