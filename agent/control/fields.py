"""Reading what other nodes wrote: JSON into a value of the protocol's types, within their ranges.

What each field may hold is declared by its type, in base/ranges.py. A number without a range is a
mistake of ours, which reading its type for the first time shows.
"""

from __future__ import annotations

import types
from collections import abc
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from agent.base.ranges import ITEMS, TEXT, Most, Range, Text
from agent.base.words import escaped, plain
from agent.record.codec import hints_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Reader = Callable[[object], object]

T = TypeVar("T")


class UnreadableError(ValueError):
    """Data that are none of a type: the field by its path, and what was expected there."""

    def __init__(self, expected: str, path: str = "") -> None:
        super().__init__(f"{path or 'message'}: expected {expected}")
        self._expected = expected
        self._path = path

    def inside(self, name: str) -> UnreadableError:
        """Return it as that of the field or item in which the path begins."""
        dot = "." if self._path and not self._path.startswith("[") else ""
        return UnreadableError(self._expected, f"{name}{dot}{self._path}")


def read(kind: type[T], data: object) -> T:
    """Return the value of this type; raises ValueError naming the field that is wrong."""
    hint: Any = kind
    value: T = _reader(hint)(data)  # type: ignore[assignment]  # it makes what it is asked for
    return value


# --- by type -------------------------------------------------------------------------------------


@cache
def _reader(hint: Any) -> Reader:  # noqa: ANN401, C901, PLR0911 - any type; one case, one return
    """Return what reads a type; what that costs is paid once."""
    origin, marks = get_origin(hint), list[object]()
    if origin is Annotated:
        hint, *marks = get_args(hint)
        origin = get_origin(hint)
    args = get_args(hint)
    if origin in {Union, types.UnionType}:
        return _optional(hint)
    if origin is Literal:
        return _one_of({one: one for one in args})
    if origin is tuple:
        return _items(args, _first(Most, marks, ITEMS))
    if isinstance(origin, type) and issubclass(origin, abc.Mapping):
        return _mapping(args[0], args[1], _first(Most, marks, ITEMS))
    if hint in {int, float}:
        return _number(hint, _first(Range, marks, None))
    if hint is str:
        return _text(_first(Text, marks, TEXT))
    if hint is bool:
        return _flag
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _one_of({one.value: one for one in hint})
    if is_dataclass(hint) and isinstance(hint, type):
        return _object(hint)
    raise TypeError(f"{hint} has no place in a message")


def _first(kind: type[T], marks: Sequence[object], default: T | None) -> T:
    found = next((one for one in marks if isinstance(one, kind)), default)
    if found is None:
        raise TypeError(f"a field of a message has no {kind.__name__}")
    return found


def _flag(data: object) -> object:
    if not isinstance(data, bool):
        raise UnreadableError("true or false")
    return data


def _number(kind: type, within: Range) -> Reader:
    least, greatest = within
    what = "a whole number" if kind is int else "a number"
    expected = f"{what} from {least:g} to {greatest:g}"

    def read_number(data: object) -> object:
        is_number = type(data) is int or (kind is float and type(data) is float)
        if not is_number or not least <= data <= greatest:  # type: ignore[operator]  # of a number
            raise UnreadableError(expected)
        return kind(data)

    return read_number


def _text(form: Text) -> Reader:
    longest = form.longest

    def read_text(data: object) -> object:
        if not isinstance(data, str) or (form.is_needed and not data):
            raise UnreadableError("text")
        return escaped(data[:longest])[:longest]

    def read_tail(data: object) -> object:
        if not isinstance(data, str):
            raise UnreadableError("text")
        return plain(data[-2 * longest :]).encode(errors="replace").decode()[-longest:]

    return read_tail if form.has_lines else read_text


def _one_of(known: abc.Mapping[object, object]) -> Reader:
    expected = f"one of {', '.join(repr(one) for one in known)}"

    def read_one(data: object) -> object:
        if not isinstance(data, str) or data not in known:
            raise UnreadableError(expected)
        return known[data]

    return read_one


def _optional(hint: object) -> Reader:
    kinds = [one for one in get_args(hint) if one is not type(None)]
    if len(kinds) != 1:
        raise TypeError(f"{hint} has no place in a message")
    inner = _reader(kinds[0])
    return lambda data: None if data is None else inner(data)


def _items(hints: tuple[object, ...], most: Most) -> Reader:
    is_open = hints[-1] is Ellipsis
    inner = [_reader(hint) for hint in hints if hint is not Ellipsis]
    least, greatest = (most.least, most.items) if is_open else (len(inner), len(inner))
    expected = f"a list of {f'{least} to ' if least != greatest else ''}{greatest}"

    def read_items(data: object) -> object:
        if not isinstance(data, list | tuple) or not least <= len(data) <= greatest:
            raise UnreadableError(expected)
        return tuple(
            _inside(f"[{at}]", inner[0 if is_open else at], one) for at, one in enumerate(data)
        )

    return read_items


def _mapping(key: object, value: object, most: Most) -> Reader:
    """Read a mapping: an object, or a list of pairs where its keys are no texts."""
    read_key, read_value = _reader(key), _reader(value)
    by_text = key is str or get_args(key)[:1] == (str,)
    expected = f"at most {most.items} by name"

    def read_mapping(data: object) -> object:
        if not isinstance(data, dict | list) or len(data) > most.items:
            raise UnreadableError(expected)
        return {read_key(name): read_value(one) for name, one in _pairs(data, by_text, expected)}

    return read_mapping


def _pairs(
    data: dict[object, object] | list[object],
    by_text: bool,  # noqa: FBT001 - handed on from where it is known
    expected: str,
) -> Iterable[tuple[object, object]]:
    if isinstance(data, dict):
        if data and not by_text:
            raise UnreadableError(expected)
        return data.items()
    if by_text or not all(isinstance(one, list) and len(one) == 2 for one in data):
        raise UnreadableError(expected)
    return [(one[0], one[1]) for one in data if isinstance(one, list)]


def _object(kind: type) -> Reader:
    """Read a dataclass: a text that is not sent is '', and what is no field is left out."""
    hints = hints_of(kind, with_ranges=True)
    inner = {one.name: _reader(hints[one.name]) for one in fields(kind)}
    absent = {
        one.name: "" if hints[one.name] is str else None
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING
    }

    def read_object(data: object) -> object:
        if not isinstance(data, dict):
            raise UnreadableError("an object")
        given = {**absent, **data}
        return kind(**{n: _inside(n, inner[n], one) for n, one in given.items() if n in inner})

    return read_object


def _inside(name: str, reader: Reader, data: object) -> object:
    try:
        return reader(data)
    except UnreadableError as error:
        raise error.inside(name) from None
