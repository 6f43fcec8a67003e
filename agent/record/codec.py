"""Convert values to the JSON data of events, and back with msgspec.

A nested value carries the name of its class under the key `is`, for readers of the file. A number
that JSON lacks is an object, too.
"""

from __future__ import annotations

import math
from collections import abc
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V", bound=Value)

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

BY_NUMBER = {"taken_ports"}
"""Fields with a mapping from numbers: it is recorded as a list of pairs."""


def wire_name(kind: type) -> str:
    """Return the name of a class in files and messages."""
    return WIRE_NAMES.get(kind.__name__, kind.__name__)


class NotReadableError(ValueError):
    """The data do not represent a value of the wanted type."""


def to_data(value: object, clean: Callable[[str], str]) -> object:
    """Return a value as JSON data with every text cleaned.

    Raise TypeError for a type that cannot be read back.
    """
    if isinstance(value, Enum):  # holds no secret
        return value.value
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {TAG: _FLOAT, "text": repr(value)}
    if isinstance(value, abc.Mapping | tuple):
        return _collection(value, clean)
    return {TAG: wire_name(type(value)), **fields_of(value, clean)}


def fields_of(value: object, clean: Callable[[str], str]) -> dict[str, object]:
    """Return the fields of a value as JSON data."""
    if not isinstance(value, Value):
        raise TypeError(f"{type(value).__name__} cannot be recorded")
    names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    return {recorded: to_data(getattr(value, name), clean) for recorded, name in names}


def _collection(value: abc.Collection[Any], clean: Callable[[str], str]) -> object:
    if not isinstance(value, abc.Mapping):
        return [to_data(item, clean) for item in value]
    pairs = [(to_data(key, clean), to_data(item, clean)) for key, item in value.items()]
    return dict(pairs) if all(isinstance(key, str) for key in value) else [*map(list, pairs)]


def of_fields(kind: type[V], data: object) -> V:
    """Convert JSON data to a value; raise NotReadableError if they do not fit."""
    try:
        return msgspec.convert(_restored(data), kind)
    except (KeyError, TypeError, ValueError) as error:
        raise NotReadableError(f"{kind.__name__}: {error}") from None


def _restored(data: object) -> object:
    """Return data with the numbers that JSON lacks, and with mappings from numbers."""
    if isinstance(data, list):
        return [_restored(item) for item in data]
    if not isinstance(data, dict):
        return data
    if data.get(TAG) == _FLOAT:
        return float(data["text"])
    pairs = {name: dict(data[name]) for name in BY_NUMBER & data.keys() if data[name] is not None}
    return {name: _restored(item) for name, item in data.items()} | pairs
