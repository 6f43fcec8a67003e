"""Convert values to the JSON data of events.

A nested value carries the name of its class under the key `is`, for readers of the file. A number
that JSON lacks is an object, too.
"""

from __future__ import annotations

import math
from collections import abc
from enum import Enum
from typing import TYPE_CHECKING, Any

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable

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


def wire_name(kind: type) -> str:
    """Return the name of a class in files and messages."""
    return WIRE_NAMES.get(kind.__name__, kind.__name__)


def to_data(value: object, clean: Callable[[str], str]) -> object:
    """Return a value as JSON data with every text cleaned.

    Raise TypeError for a type that readers of the file cannot expect.
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
