"""The durable state of a run: the part of the head's state that its next agent needs.

`decide` changes it like any other part of the state, and whatever it changed is written before
anything else is done: an agent that is killed while it acts leaves a record of the decision.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin

from msgspec.structs import fields, replace

from agent.base.value import RunTime, Value
from agent.decisions.shared import Outage

V = TypeVar("V", bound=Value)


class StepHolder(Value):
    """A worker, by name, that was ordered to run a prepare step on a disk."""

    step: str
    disk: str  # the one on which the step's marker lies
    node: str


class Durable(Value):
    """What the next agent of a run must have, and what it decides on."""

    outages: tuple[Outage, ...] = ()  # when services did not answer, the newest last
    holders: tuple[StepHolder, ...] = ()  # the workers that may run a step on a disk


def must_be_on_disk(before: Durable, after: Durable) -> bool:
    """Return whether the disk must have a change before anything else is done.

    Others act on such a change, or must not act on what was before.
    """
    return before.holders != after.holders


# --- another clock --------------------------------------------------------------------------------


def on_clock(value: V, by: float) -> V:
    """Return a value on a clock that began so many seconds earlier: its moments are later by that.

    A moment is a field that is declared as RunTime, at any depth. All else is no moment, durations
    and times in UTC among it.
    """
    moved = {
        name: _moved(getattr(value, name), kind, by) for name, kind in _fields(type(value)).items()
    }
    return replace(value, **moved)


def _moved(content: Any, kind: Any, by: float) -> Any:  # noqa: ANN401 - of a field of any type
    """Return the content of a field of this type, with its moments moved."""
    if content is None:
        return None
    if kind is RunTime:
        return content + by
    if isinstance(content, Value):
        return on_clock(content, by)
    if isinstance(content, tuple):
        item = get_args(kind)[0]
        return tuple(_moved(one, item, by) for one in content)
    if isinstance(content, Mapping):
        item = get_args(kind)[1]
        return {key: _moved(one, item, by) for key, one in content.items()}
    return content


@cache
def _fields(of: type[Value]) -> dict[str, Any]:
    """Return the fields of a type that are moments, or may have some, with their types."""
    kinds = {one.name: _without_none(one.type) for one in fields(of)}
    return {name: kind for name, kind in kinds.items() if _has_moments(kind)}


def _without_none(kind: Any) -> Any:  # noqa: ANN401 - a type of any form
    """Return the type of a field's content, if it has any."""
    if get_origin(kind) not in {Union, types.UnionType}:
        return kind
    others = [one for one in get_args(kind) if one is not type(None)]
    return others[0] if len(others) == 1 else kind


def _has_moments(kind: Any) -> bool:  # noqa: ANN401 - same
    """Return whether a type is a moment, or one of its parts is."""
    if kind is RunTime:
        return True
    if isinstance(kind, type) and issubclass(kind, Value):
        return bool(_fields(kind))
    return any(_has_moments(_without_none(one)) for one in get_args(kind))
