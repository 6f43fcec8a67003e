"""Frozen dataclasses as JSON and back into equal ones, by their type hints.

Writing looks at values only, so that it costs no import and no look at a hint while a run lives.
A dataclass inside another carries its name, by which a union's member is found again.
"""

from __future__ import annotations

import ast
import importlib
import math
import sys
import types
from collections import abc
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

TAG = "is"
"""No field can have this name, which is a word of Python's own."""
_FLOAT = "float"


class NotReadableError(ValueError):
    """Data that no value of the wanted type was written as."""


# --- to JSON -----------------------------------------------------------------------------------


def to_data(  # noqa: PLR0911 - one case, one return
    value: object, clean: Callable[[str], str]
) -> object:
    """Return a value as what JSON can hold, every text in it cleaned.

    Raises TypeError for what could not be read back.
    """
    if isinstance(value, Enum):  # a closed set, which holds no secret
        return value.value if isinstance(value.value, str | int) else value.name
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {TAG: _FLOAT, "text": repr(value)}
    if isinstance(value, PurePath):
        return clean(str(value))
    if isinstance(value, abc.Mapping | abc.Set | tuple | list):
        return _collection(value, clean)
    return {TAG: type(value).__name__, **fields_of(value, clean)}


def fields_of(value: object, clean: Callable[[str], str]) -> dict[str, object]:
    """Return a dataclass's fields as what JSON can hold."""
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} cannot be recorded")
    names = (field.name for field in fields(value) if field.init)
    return {name: to_data(getattr(value, name), clean) for name in names}


def _collection(value: abc.Collection[Any], clean: Callable[[str], str]) -> object:
    if isinstance(value, abc.Mapping):
        pairs = [(to_data(key, clean), to_data(item, clean)) for key, item in value.items()]
        if all(isinstance(key, str) and key != TAG for key in value):
            return dict(pairs)
        return [list(pair) for pair in pairs]
    if isinstance(value, abc.Set):
        return sorted((to_data(item, clean) for item in value), key=repr)
    return [to_data(item, clean) for item in value]


# --- from JSON ---------------------------------------------------------------------------------


def from_data(hint: object, data: object) -> object:
    """Return the value of this type that was written as these data; raises NotReadableError."""
    origin = get_origin(hint)
    if origin in {Union, types.UnionType}:
        return _of_union(get_args(hint), data)
    if origin is Literal:
        return _first((x for x in get_args(hint) if _same(x, data)), hint, data)
    if origin is not None:
        return _of_generic(origin, get_args(hint), data)
    if hint in {Any, object}:
        return _of_anything(data)
    if isinstance(hint, type):
        return _of_class(hint, data)
    if hasattr(hint, "__supertype__"):  # a NewType
        return from_data(hint.__supertype__, data)
    raise NotReadableError(f"{hint} is not known here")


def of_fields(kind: type, data: object) -> object:
    """Return the dataclass whose fields were written as these data."""
    if not isinstance(data, dict):
        raise NotReadableError(f"{kind.__name__} is no JSON object")
    hints = hints_of(kind)
    known = {field.name for field in fields(kind) if field.init}
    try:
        return kind(**{n: from_data(hints[n], item) for n, item in data.items() if n in known})
    except TypeError as error:  # a field is missing
        raise NotReadableError(f"{kind.__name__}: {error}") from None


def _of_class(kind: type, data: object) -> object:  # noqa: PLR0911 - one case, one return
    if is_dataclass(kind):
        if not isinstance(data, dict) or data.get(TAG) != kind.__name__:
            raise NotReadableError(f"no {kind.__name__}")
        return of_fields(kind, data)
    if issubclass(kind, Enum):
        return _first((m for m in kind if _same(to_data(m, str), data)), kind, data)
    if kind is float and isinstance(data, dict) and data.get(TAG) == _FLOAT:
        return _float(data.get("text"))
    if kind is float and type(data) is int:
        return data  # it was one: more than 53 bits must not be rounded
    if issubclass(kind, PurePath) and isinstance(data, str):
        return Path(data) if kind is PurePath else kind(data)
    if kind in {dict, list, tuple, set, frozenset}:
        return _of_generic(kind, (), data)
    if type(data) is not kind:
        raise NotReadableError(f"{data!r:.60} is no {kind.__name__}")
    return data


def _of_generic(origin: object, args: tuple[object, ...], data: object) -> object:
    if isinstance(origin, type) and issubclass(origin, abc.Mapping):
        if isinstance(data, dict) and TAG in data:
            raise NotReadableError(f"a {data[TAG]}, no mapping")
        key, item = args or (Any, Any)
        pairs = data.items() if isinstance(data, dict) else _pairs(data)
        return {from_data(key, k): from_data(item, v) for k, v in pairs}
    if not isinstance(data, list):
        raise NotReadableError(f"{data!r:.60} is no list")
    if origin is tuple and args and args[-1] is not Ellipsis:
        wanted = () if args == ((),) else args
        if len(wanted) != len(data):
            raise NotReadableError(f"{len(data)} items, not {len(wanted)}")
        return tuple(from_data(hint, x) for hint, x in zip(wanted, data, strict=True))
    one = args[0] if args else Any
    made = [from_data(one, x) for x in data]
    if isinstance(origin, type) and issubclass(origin, abc.Set):
        return set(made) if origin in {set, abc.MutableSet} else frozenset(made)
    return made if origin in {list, abc.MutableSequence} else tuple(made)


def _pairs(data: object) -> Iterable[tuple[object, object]]:
    if not isinstance(data, list):
        raise NotReadableError(f"{data!r:.60} is no mapping")
    for pair in data:
        if not isinstance(pair, list) or len(pair) != 2:
            raise NotReadableError(f"{pair!r:.60} is no pair")
        yield pair[0], pair[1]


def _of_union(hints: tuple[object, ...], data: object) -> object:
    """Return the value by the first of a union's members that it can be.

    A whole number is an `int` before it is a `float`, whatever their order.
    """
    last: NotReadableError | None = None
    for hint in sorted(hints, key=lambda hint: hint is float):
        try:
            return from_data(type(None) if hint is None else hint, data)
        except NotReadableError as error:  # noqa: PERF203 - a member that it is not
            last = error
    raise NotReadableError(f"none of the types that it may have: {last}")


def _of_anything(data: object) -> object:
    if isinstance(data, dict) and data.get(TAG) == _FLOAT:
        return _float(data.get("text"))
    return data


def _float(text: object) -> float:
    if text not in {"inf", "-inf", "nan"}:
        raise NotReadableError(f"{text!r:.60} is no number")
    return float(str(text))


def _same(value: object, data: object) -> bool:
    """Say whether two are equal and of one type: True is not 1 here."""
    plain = to_data(value, str)
    return type(plain) is type(data) and plain == data


def _first(found: Iterable[object], hint: object, data: object) -> object:
    for value in found:
        return value
    raise NotReadableError(f"{data!r:.60} is none of {hint}")


# --- hints -------------------------------------------------------------------------------------


@cache
def hints_of(kind: type, *, with_ranges: bool = False) -> Mapping[str, object]:
    """Return a dataclass's hints as types, those among them that are imported for hints only.

    `with_ranges`: with what the fields of a message may hold.
    """
    hidden: dict[str, object] = {}
    for base in kind.__mro__:
        hidden.update(_for_hints_only(base.__module__))
    return get_type_hints(kind, localns=hidden, include_extras=with_ranges)


@cache
def _for_hints_only(module: str) -> Mapping[str, object]:
    """Import what a module of ours imports under `if TYPE_CHECKING`."""
    file = getattr(sys.modules.get(module), "__file__", None)
    ours = module.partition(".")[0] not in sys.stdlib_module_names
    if file is None or not file.endswith(".py") or not ours:
        return {}
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    blocks = (n for n in tree.body if isinstance(n, ast.If) and _is_type_checking(n.test))
    lines = [n for block in blocks for n in block.body if isinstance(n, ast.ImportFrom)]
    found: dict[str, object] = {}
    for line in lines:
        with suppress(ImportError):  # a module that only type checkers know
            source = importlib.import_module(line.module or "")
            names = {a.asname or a.name: a.name for a in line.names if hasattr(source, a.name)}
            found.update({own: getattr(source, name) for own, name in names.items()})
    return found


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
