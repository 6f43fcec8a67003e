"""Every field of a message with wrong values, made from the protocol's types.

A field that is added to a message, or to a type inside one, is included automatically.
"""

from __future__ import annotations

import json
import types
from collections import abc
from copy import deepcopy
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from msgspec import Meta

Path = tuple[str | int, ...]
WORD = "10.0.0.2"
"""A text that every field accepts: a name, an address, a sentence."""
MISSING = object()
DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]
BAD: dict[str, object] = {
    "missing": MISSING,
    "null": None,
    "true": True,
    "empty text": "",
    "-1": -1,
    "0": 0,
    "a fraction": 1.5,
    "10**15": 10**15,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "escapes": "\x1b[2J\x1b]0;title\x07\r\n\u202e\ud800\x85",
    "a long text": "y" * 60_000,
    "an object": {"is": "float", "text": "inf"},
    "a long list": [{}] * 3_000,
    "lists in lists": DEEP,
}


class Field(NamedTuple):
    """A place in a message: its path in JSON, and its path in an error message."""

    path: Path
    name: str


def filled(hint: Any) -> Any:  # noqa: ANN401, PLR0911 - any type; one case, one return
    """Return JSON that a type accepts, with each of its fields."""
    hint, marks = _bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return args[-1]
    if origin is tuple:
        least = max(1, next((one.min_length or 1 for one in marks), 1))
        kinds = args if args[-1] is not Ellipsis else [args[0]] * least
        return [filled(one) for one in kinds]
    if isinstance(origin, type) and issubclass(origin, abc.Mapping):
        pair = [filled(args[0]), filled(args[1])]
        return {str(pair[0]): pair[1]}
    if hint is str:
        return WORD
    if hint is bool:
        return True
    if hint in {int, float}:
        return hint(max(marks[0].ge or 0, min(1, marks[0].le or 1)))
    if issubclass(hint, Enum):
        return next(iter(hint)).value
    if hint.__struct_config__.array_like:
        return [filled(one) for one in _hints(hint).values()]
    return {name: filled(one) for name, one in _hints(hint).items()}


def places(hint: Any, path: Path = (), name: str = "") -> Iterator[Field]:  # noqa: ANN401 - any type
    """Yield every place in a message: fields, items of lists, values of mappings."""
    if path:
        yield Field(path, name)
    hint, _ = _bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple:
        for at, one in enumerate(args[:1] if args[-1] is Ellipsis else args):
            yield from places(one, (*path, at), f"{name}[{at}]")
    elif isinstance(origin, type) and issubclass(origin, abc.Mapping):
        yield from places(args[1], (*path, str(filled(args[0]))), name)
    elif isinstance(hint, type) and issubclass(hint, Value):
        is_array = hint.__struct_config__.array_like
        for at, (own, one) in enumerate(_hints(hint).items()):
            if is_array:
                yield from places(one, (*path, at), f"{name}[{at}]")
            else:
                yield from places(one, (*path, own), f"{name}.{own}" if name else own)


def put(message: Mapping[str, Any], path: Path, value: object) -> dict[str, Any]:
    """Return a message with another value in one place."""
    changed: Any = deepcopy(dict(message))
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    if value is not MISSING:
        inner[path[-1]] = value
    elif isinstance(inner, list):
        del inner[int(path[-1]) :]  # it ends before
    else:
        del inner[path[-1]]
    return changed  # type: ignore[no-any-return]  # it is a copy of the message


def named(error: str, name: str) -> bool:
    """Return whether an error names a place, its parent, or its content."""
    name_in_error = error.partition(": ")[0].replace("[...]", "")
    is_missing = error.endswith(f"missing required field `{name.rpartition('.')[2]}`")
    return is_missing or (
        name_in_error != error
        and (name_in_error.startswith(name) or name.startswith(name_in_error))
    )


def body(message: object) -> bytes:
    """Return a message in its serialized form."""
    return json.dumps(message).encode()


def _hints(kind: type[Value]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
    return {name: hints[own_name] for name, own_name in names}


def _bare(hint: Any) -> tuple[Any, list[Meta]]:  # noqa: ANN401 - any type
    """Return a type without its annotations, and without None."""
    marks: list[Meta] = []
    while True:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            marks += more
        elif get_origin(hint) in {Union, types.UnionType}:
            hint = next(one for one in get_args(hint) if one is not type(None))
        else:
            return hint, marks
