"""events.jsonl: every event comes back as it was, within bounds, without a secret."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import threading
import types
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from enum import Enum
from pathlib import Path
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

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.base.value import Value
from agent.decisions.head.head_state import HeadEvent
from agent.decisions.shared import StopAsked
from agent.decisions.stall import Stalled
from agent.decisions.worker.worker_state import WorkerEvent
from agent.record import background
from agent.record import events as e
from agent.record.events import TAG, to_data
from agent.settings.redact import MASK, Redactor
from support.conditions import await_true
from support.disks import full_disk, needs_mount
from support.golden import assert_golden
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BEGAN = e.Began("head", "run-1", "2025-01-01T00:00:00Z", "1.0")
ROLES: tuple[e.Role, ...] = ("head", "worker")
TEXTS = st.text(st.characters(codec="utf-8"))


def values(  # noqa: PLR0911 - one kind, one return
    hint: Any,  # noqa: ANN401 - any type there is
) -> st.SearchStrategy[Any]:
    """Return a strategy for every value of a type, by its hints."""
    limits = msgspec.Meta()
    if get_origin(hint) is Annotated:
        hint, limits = get_args(hint)
    origin, args = get_origin(hint), get_args(hint)
    least, most = limits.min_length or 0, limits.max_length or 3
    if isinstance(hint, type) and issubclass(hint, Value):
        return instances(hint)
    if origin in {Union, types.UnionType}:
        return st.one_of(*map(values, args))
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0]), min_size=least, max_size=min(most, least + 3)).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if isinstance(origin, type) and issubclass(origin, dict | types.MappingProxyType | Mapping):
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if limits.pattern is not None:  # only addresses have one
        return st.ip_addresses().map(str)
    if hint is float:
        return st.floats(limits.ge, limits.le, allow_nan=False)
    if hint is int:
        return st.integers(*(None if one is None else int(one) for one in (limits.ge, limits.le)))
    return TEXTS.filter(lambda text: len(text) >= least) if hint is str else st.from_type(hint)


def instances(kind: type[Value]) -> st.SearchStrategy[Any]:
    """Return a strategy for every instance of a value class."""
    hints = get_type_hints(kind, include_extras=True)
    fields = {name: values(hints[name]) for name in kind.__struct_fields__}
    return st.fixed_dictionaries(fields).map(lambda made: kind(**made))


def leaves(base: type[Value]) -> set[type[Value]]:
    """Return all classes that derive from this one and have no further ones."""
    found = base.__subclasses__()
    return {base} if not found else {one for kind in found for one in leaves(kind)}


def kinds_on(role: e.Role) -> dict[str, type[Value]]:
    """Return all events of a role by their names in files."""
    bases = (HeadEvent,) if role == "head" else get_args(WorkerEvent)
    named = {kind for base in bases for kind in leaves(base)}
    named |= {Stalled} if role == "head" else set()  # of a module that may not be loaded yet
    own = [one for one in vars(e).values() if isinstance(one, type) and issubclass(one, Value)]
    kinds = {*named, *(one for one in own if one.__module__ == e.__name__)}
    found = {kind.__name__: kind for kind in kinds}
    assert len(found) == len(kinds), "two events have one name"
    return found


def restored(data: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return the JSON data of a value with the numbers and mappings that JSON lacks."""
    if isinstance(data, list):
        return [restored(one) for one in data]
    if not isinstance(data, dict):
        return data
    if data.get(TAG) == "float":
        return float(data["text"])
    found = {name: restored(one) for name, one in data.items()}
    if found.get("taken_ports") is not None:
        found["taken_ports"] = dict(found["taken_ports"])
    return found


def again(at: float, event: object, kind: type[Value]) -> tuple[float, object]:
    """Write an event as JSON and convert what a program reads there to the same class."""
    data = json.loads(json.dumps(e.to_json(at, event), allow_nan=False))
    return data["at"], msgspec.convert(restored(data["data"]), kind)


@pytest.mark.parametrize(
    ("role", "name"), [(role, name) for role in ROLES for name in sorted(kinds_on(role))]
)
@settings(max_examples=settings().max_examples // 3)  # for each of the events
@given(data=st.data(), at=st.floats(0, 1e9))
def test_every_event_comes_back(role: e.Role, name: str, data: st.DataObject, at: float) -> None:
    """Whatever happens to a head or a worker, what is read is what was written."""
    kind = kinds_on(role)[name]
    event = data.draw(instances(kind))
    assert again(at, event, kind) == (at, event)


GOLDEN = Path(__file__).parents[2] / "data" / "golden"


def sample(hint: Any, name: str) -> Any:  # noqa: ANN401, PLR0911 - any type, one case each
    """Return one fixed value of a type, named after its field."""
    limits = msgspec.Meta()
    if get_origin(hint) is Annotated:
        hint, limits = get_args(hint)
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Value):
        hints = get_type_hints(hint, include_extras=True)
        return hint(**{field: sample(hints[field], field) for field in hint.__struct_fields__})
    if origin in {Union, types.UnionType}:
        return sample(next(one for one in args if one is not type(None)), name)
    if origin is tuple and args[-1] is Ellipsis:
        return tuple(sample(args[0], name) for _ in range(limits.min_length or 1))
    if origin is tuple:
        return tuple(sample(one, name) for one in args)
    if isinstance(origin, type) and issubclass(origin, dict | types.MappingProxyType | Mapping):
        return {sample(args[0], "key"): sample(args[1], name)}
    if limits.pattern is not None:  # only addresses have one
        return "10.0.0.1"
    if origin is Literal:
        return args[0]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    if hint is str:
        return name
    if hint is bool:
        return True
    return max(1.5 if hint is float else 1, limits.ge or 0)


@pytest.mark.parametrize("role", ROLES)
def test_names_and_keys_of_every_event_are_fixed(role: e.Role) -> None:
    """Readers of events.jsonl see each change; POD_AGENT_UPDATE_GOLDEN=1 rewrites the file."""
    file = GOLDEN / f"events_{role}.jsonl"
    kinds = kinds_on(role)
    events = {name: sample(kinds[name], name) for name in sorted(kinds)}
    lines = [json.dumps(e.to_json(1.5, event)) for event in events.values()]
    for line, (name, event) in zip(lines, events.items(), strict=True):
        assert msgspec.convert(restored(json.loads(line)["data"]), kinds[name]) == event
    assert_golden(file, "\n".join(lines) + "\n")


# --- JSON data ---------------------------------------------------------------------------------


class Color(Enum):
    """An enum of texts."""

    RED = "red"
    BLUE = "blue"


class Level(Enum):
    """An enum of numbers."""

    LOW = 1
    HIGH = 2


class Left(Value):
    """One member of a union."""

    value: int = 0


class Right(Value):
    """Another, with the same fields."""

    value: int = 0


class Everything(Value):
    """All that an event may be made of."""

    side: Left
    sides: tuple[Left | None, ...]
    by_text: Mapping[str, str | None]
    taken_ports: Mapping[int, str]
    nested: Mapping[str, Mapping[str, tuple[float, ...]]]
    color: Color
    level: Level | None
    word: Literal["a", "b"]
    number: int | float | str | bool | None
    real: float
    more: Everything | None = None


@given(st.data(), st.booleans())
def test_whatever_an_event_is_made_of_comes_back(
    data: st.DataObject,
    nest: bool,  # noqa: FBT001 - drawn
) -> None:
    """Numbers keep their type, and keys need not be texts."""
    hints = {name: hint for name, hint in get_type_hints(Everything).items() if name != "more"}
    fields = {name: data.draw(values(hint)) for name, hint in hints.items()}
    value = Everything(**fields)
    if nest:
        value = replace(value, more=value)
    _, found = again(0.0, value, Everything)
    assert found == value
    assert isinstance(found, Everything)
    assert type(found.number) is type(value.number)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 0.1, 1e308, -0.0])
def test_numbers_that_json_lacks(number: float) -> None:
    """They come back too, and what is written is JSON for every reader."""
    text = json.dumps(to_data(number, str), allow_nan=False)
    assert repr(restored(json.loads(text))) == repr(number)


# --- secrets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "secret", [SECRET, 'se"cret-"quoted', "back\\slash-secret", "line\nbreak-secret", "schlüssel-ß"]
)
def test_no_secret_in_any_value(tmp_path: Path, secret: str) -> None:
    """A secret is masked wherever a text is, whatever JSON makes of its letters."""
    outcome = Outcome(Kind.LOST, 75, f"a {secret} b", "running", secret)
    events = ((1.0, e.Decided(outcome)), (2.0, e.Waited(secret, 3.0, secret)))
    record(tmp_path, *events, clean=Redactor([secret]).clean)
    text = (tmp_path / e.EVENTS_FILE).read_text()
    assert secret not in text
    assert json.dumps(secret)[1:-1] not in text
    decided, waited = read(tmp_path)
    assert decided.data["outcome"]["reason"] == f"a {MASK} b"
    assert decided.data["outcome"]["culprit"] == MASK
    assert waited.data == {"what": MASK, "until": 3.0, "evidence": MASK}
    assert to_data({secret: 1}, Redactor([secret]).clean) == {MASK: 1}  # keys are texts, too


# --- the file ----------------------------------------------------------------------------------


def record(
    folder: Path,
    *events: tuple[float, object],
    clean: Callable[[str], str] = str,
) -> None:
    """Record events at their times, as one agent."""
    times = iter([events[0][0], *(at for at, _ in events)])
    where = folder / e.EVENTS_FILE
    recorder = e.EventRecorder(lambda: nullcontext(where), clean, BEGAN, lambda: next(times))
    for _, event in events:
        recorder.add(event)
    recorder.finish()


def read(folder: Path) -> list[e.RecordedEvent]:
    """Return a folder's events but for those that say who began."""
    return [event for event in e.read_events(folder) if event.kind != "Began"]


def recorded(at: float, event: object) -> e.RecordedEvent:
    """Return an event as a reader finds it."""
    data = e.to_json(at, event)
    return e.RecordedEvent(at, str(data["event"]), json.loads(json.dumps(data["data"])))


def test_events_are_read_in_their_order(tmp_path: Path) -> None:
    """A header says whose they are; times have milliseconds."""
    record(tmp_path, (0.12345, StopAsked(15)), (2, e.Ended(2.0)))
    assert list(e.read_events(tmp_path)) == [
        recorded(0.123, BEGAN),
        recorded(0.123, StopAsked(15)),
        recorded(2, e.Ended(2.0)),
    ]


@pytest.mark.parametrize(
    "other",
    [
        *(b'{"at": 1.0, "event": "En', b"{}", b"\xff\xfe", b"null", b"[", b"[]", b'{"at": 1.0}'),
        b'{"at": "one", "event": "Ended", "data": {"seconds": 1.0}}',
        b'{"at": [], "event": "Ended", "data": {"seconds": 1.0}}',
        b'{"at": 1.0, "event": "Ended", "data": []}',
        b'{"at": 1.0, "event": "Ended"}',
    ],
)
def test_a_line_that_is_no_event_is_passed_over(tmp_path: Path, other: bytes) -> None:
    """What a killed agent left half written costs only itself, for the next agent too."""
    record(tmp_path, (1.0, e.Ended(1.0)))
    with (tmp_path / e.EVENTS_FILE).open("ab") as file:
        file.write(other)
    assert read(tmp_path) == [recorded(1.0, e.Ended(1.0))]
    record(tmp_path, (2.0, e.Ended(2.0)))
    assert read(tmp_path) == [recorded(1.0, e.Ended(1.0)), recorded(2.0, e.Ended(2.0))]


def test_the_file_stays_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is rotated once, the newest stay, each part says whose it is, and order holds."""
    most, batch = 200_000, 1 << 16  # the thread writes up to 64 KiB at once
    monkeypatch.setattr(e, "MOST_BYTES", most)
    events = [(float(number), e.PhaseEntered(str(number) * 20)) for number in range(5000)]
    for start in range(0, len(events), 100):
        record(tmp_path, *events[start : start + 100])
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {e.EVENTS_FILE, e.FORMER_EVENTS_FILE}
    assert max(sizes.values()) <= most + batch
    numbers = [int(event.at) for event in read(tmp_path)]
    assert numbers == list(range(numbers[0], 5000))
    assert len(numbers) > 1000
    for name in sizes:
        first = (tmp_path / name).read_text().splitlines()[0]
        assert json.loads(first)["event"] == "Began"


def test_an_event_that_cannot_be_recorded_is_logged(tmp_path: Path) -> None:
    """An event made of what JSON cannot hold is named in its place."""

    class Odd(Value):
        """An event that holds what no file can."""

        what: object

    events = (Odd(object()), "no event")
    record(tmp_path, *((1.0, event) for event in events))
    assert [(one.kind, *one.data.values()) for one in read(tmp_path)] == [
        ("Unrecorded", "Odd", "TypeError: object cannot be recorded"),
        ("Unrecorded", "str", "TypeError: str cannot be recorded"),
    ]


def test_every_event_is_one_line_for_every_reader(tmp_path: Path) -> None:
    """Line breaks of any kind and halves of letters stay inside their line."""
    texts = ("a\nb", "\x85", "\u2028", "\x1c", "\ud800", os.fsdecode(b"\xff"), "ü")
    record(tmp_path, *((1.0, e.PhaseEntered(text)) for text in texts))
    lines = (tmp_path / e.EVENTS_FILE).read_text().splitlines()
    assert len(lines) == 8
    assert [event.data["phase"] for event in read(tmp_path)] == [
        *("a\nb", "\x85", "\u2028", "\x1c", "\ud800", "\udcff", "ü")
    ]


def test_a_stalled_disk_gets_the_newest_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a limit the oldest are dropped; their number is recorded, and the rest is whole."""
    monkeypatch.setattr(e, "MOST_QUEUED", 4_000)
    disk_answers = threading.Event()

    @contextmanager
    def where() -> Iterator[Path]:
        disk_answers.wait(20)
        yield tmp_path / e.EVENTS_FILE

    recorder = e.EventRecorder(where, str, BEGAN, lambda: 1.0)
    for number in range(500):
        recorder.add(e.PhaseEntered(str(number)))
    disk_answers.set()
    recorder.finish()
    kinds = [event.kind for event in read(tmp_path)]
    lost = [event.data["why"] for event in read(tmp_path) if event.kind == "Unrecorded"]
    assert all(why.endswith(" were lost: the disk stalled") for why in lost)
    assert sum(int(why.split()[0]) for why in lost) == 500 - kinds.count("PhaseEntered") > 100
    assert read(tmp_path)[-1].data == {"phase": "499"}


@needs_mount
def test_a_full_disk_delays_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is written once there is space, each line whole."""
    monkeypatch.setattr("agent.record.background.LINES_RETRY", 0.02)
    alarms: list[str] = []
    alarm = background.DiskAlarm(lambda line, _level: alarms.append(line))  # no other test's
    monkeypatch.setattr(e, "disk_alarm", alarm)
    with full_disk(tmp_path / "disk", "size=64k") as disk:
        times = itertools.count()
        recorder = e.EventRecorder(
            lambda: nullcontext(disk / e.EVENTS_FILE), str, BEGAN, lambda: next(times)
        )
        for _ in range(60):
            recorder.add(e.PhaseEntered("x" * 1500))
        await_true(lambda: bool(alarms))
        assert "No space left on device" in alarms[0]
        subprocess.run(["mount", "-o", "remount,size=256k", str(disk)], check=True)
        recorder.finish(10.0)
        assert [event.at for event in read(disk)] == [*range(1, 61)]
        assert len((disk / e.EVENTS_FILE).read_bytes().splitlines()) == 61
