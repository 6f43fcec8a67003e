"""Convert frozen dataclasses to JSON data and back, guided by their type hints.

Writing needs only the values; type hints are resolved only when reading. A nested dataclass
carries its name under the key `is`, which identifies the member of a union.
"""

from __future__ import annotations

import ast
import importlib
import math
import sys
import types
from collections import abc
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec.structs import asdict

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

TAG = "is"
"""The key of a class's name; no field collides with it, since it is a Python keyword."""
_FLOAT = "float"

WIRE_NAMES = {
    "HeadRaySilent": "RaySilent",
    "ItemReport": "ItemWord",
    "NodeVersions": "Outfit",
    "OwnShareOver": "OwnPartOver",
    "Refused": "Unfit",
    "ShareEnd": "PartEnd",
    "ShareOrder": "Seat",
    "ShareOver": "PartOver",
    "WorkerRaySilent": "RaySilent",
}
"""Names in files and messages of classes that are named differently in the code.

Programs and other versions of the agent read them: a class that is renamed gets a row here.
"""


WIRE_FIELDS = {
    "Worker": {
        "last_report_at": "heard",
        "has_left": "gone",
        "running_attempt": "runs",
        "share": "part",
        "service_only": "alone",
    }
}
"""By class: the names in files of fields that are named differently in the code."""


def wire_name(kind: type) -> str:
    """Return the name of a class in files and messages."""
    return WIRE_NAMES.get(kind.__name__, kind.__name__)


class NotReadableError(ValueError):
    """The data do not represent a value of the wanted type."""


# --- to JSON -------------------------------------------------------------------------------------


def to_data(  # noqa: PLR0911 - one case, one return
    value: object, clean: Callable[[str], str]
) -> object:
    """Return a value as JSON data with every text cleaned.

    Raise TypeError for a type that cannot be read back.
    """
    if isinstance(value, Enum):  # holds no secret
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
    return {TAG: wire_name(type(value)), **fields_of(value, clean)}


def fields_of(value: object, clean: Callable[[str], str]) -> dict[str, object]:
    """Return the fields of a dataclass as JSON data."""
    if not isinstance(value, Value):
        raise TypeError(f"{type(value).__name__} cannot be recorded")
    wire = WIRE_FIELDS.get(type(value).__name__, {})
    return {wire.get(name, name): to_data(one, clean) for name, one in asdict(value).items()}


def _collection(value: abc.Collection[Any], clean: Callable[[str], str]) -> object:
    if isinstance(value, abc.Mapping):
        pairs = [(to_data(key, clean), to_data(item, clean)) for key, item in value.items()]
        if all(isinstance(key, str) and key != TAG for key in value):
            return dict(pairs)
        return [list(pair) for pair in pairs]
    if isinstance(value, abc.Set):
        return sorted((to_data(item, clean) for item in value), key=repr)
    return [to_data(item, clean) for item in value]


# --- from JSON -----------------------------------------------------------------------------------


def from_data(hint: object, data: object) -> object:
    """Convert JSON data to a value of a type; raise NotReadableError if they do not fit."""
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
    raise NotReadableError(f"{hint} is not supported")


def of_fields(kind: type[Value], data: object) -> object:
    """Convert JSON data to the fields of a dataclass."""
    if not isinstance(data, dict):
        raise NotReadableError(f"{kind.__name__} is no JSON object")
    hints = hints_of(kind)
    wire = WIRE_FIELDS.get(kind.__name__, {})
    names = {wire.get(name, name): name for name in kind.__struct_fields__}
    found = {names[key]: item for key, item in data.items() if key in names}
    try:
        return kind(**{name: from_data(hints[name], item) for name, item in found.items()})
    except TypeError as error:  # a field is missing
        raise NotReadableError(f"{kind.__name__}: {error}") from None


def _of_class(kind: type, data: object) -> object:  # noqa: PLR0911 - one case, one return
    if issubclass(kind, Value):
        if not isinstance(data, dict) or data.get(TAG) != wire_name(kind):
            raise NotReadableError(f"not a {wire_name(kind)}")
        return of_fields(kind, data)
    if issubclass(kind, Enum):
        return _first((m for m in kind if _same(to_data(m, str), data)), kind, data)
    if kind is float and isinstance(data, dict) and data.get(TAG) == _FLOAT:
        return _float(data.get("text"))
    if kind is float and type(data) is int:
        return data  # more than 53 bits must not be rounded
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
    """Return the value for the first member of a union that fits; `float` is tried last."""
    last: NotReadableError | None = None
    for hint in sorted(hints, key=lambda hint: hint is float):
        try:
            return from_data(type(None) if hint is None else hint, data)
        except NotReadableError as error:  # noqa: PERF203 - a member that it is not
            last = error
    raise NotReadableError(f"no member of the union fits: {last}")


def _of_anything(data: object) -> object:
    if isinstance(data, dict) and data.get(TAG) == _FLOAT:
        return _float(data.get("text"))
    return data


def _float(text: object) -> float:
    if text not in {"inf", "-inf", "nan"}:
        raise NotReadableError(f"{text!r:.60} is no number")
    return float(str(text))


def _same(value: object, data: object) -> bool:
    """Return whether two values are equal and of one type: True is not 1."""
    plain = to_data(value, str)
    return type(plain) is type(data) and plain == data


def _first(found: Iterable[object], hint: object, data: object) -> object:
    for value in found:
        return value
    raise NotReadableError(f"{data!r:.60} is none of {hint}")


# --- hints ---------------------------------------------------------------------------------------


@cache
def hints_of(kind: type, *, with_ranges: bool = False) -> Mapping[str, object]:
    """Return the type hints of a dataclass, including types imported under TYPE_CHECKING.

    `with_ranges` keeps the `Annotated` limits of message fields.
    """
    hidden: dict[str, object] = {}
    for base in kind.__mro__:
        hidden.update(_for_hints_only(base.__module__))
    return get_type_hints(kind, localns=hidden, include_extras=with_ranges)


@cache
def _for_hints_only(module: str) -> Mapping[str, object]:
    """Import the names that a module of the agent imports under `if TYPE_CHECKING`."""
    file = getattr(sys.modules.get(module), "__file__", None)
    ours = module.partition(".")[0] not in sys.stdlib_module_names
    if file is None or not file.endswith(".py") or not ours:
        return {}
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    blocks = (n for n in tree.body if isinstance(n, ast.If) and _is_type_checking(n.test))
    lines = [n for block in blocks for n in block.body if isinstance(n, ast.ImportFrom)]
    found: dict[str, object] = {}
    for line in lines:
        with suppress(ImportError):  # a module for type checkers only
            source = importlib.import_module(line.module or "")
            names = {a.asname or a.name: a.name for a in line.names if hasattr(source, a.name)}
            found.update({own: getattr(source, name) for own, name in names.items()})
    return found


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
