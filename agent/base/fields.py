"""What a field of a status declares: its meaning, its metrics, and what counts as news."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import fields

from agent.base.value import Value

Sample = tuple[Mapping[str, object], float] | tuple[Mapping[str, object], float, str]
"""Further labels, value, and the suffix of a histogram's series."""
Samples = Callable[[Any, Any], Iterable[Sample]]
"""Returns the samples of a field's value, and of the object that has the field."""

_NUMBER = re.compile(r"(?<![\w-])\d+(?:\.\d+)?")  # none within a name


def plain(value: float | None, _owner: object) -> Iterator[Sample]:
    """Yield the value, if there is one."""
    if value is not None:
        yield {}, value


def not_zero(value: float, _owner: object) -> Iterator[Sample]:
    """Yield a value that is 0 where it could not be read."""
    if value:
        yield {}, value


def count(values: tuple[object, ...], _owner: object) -> Iterator[Sample]:
    """Yield how many there are."""
    yield {}, len(values)


def one_of(states: Iterable[str], label: str) -> Samples:
    """Return a sample for each state, 1 for the value and 0 for the others."""

    def samples(value: str, _owner: object) -> Iterator[Sample]:
        for state in dict.fromkeys([*states, value]):
            yield {label: state}, state == value

    return samples


def of_kind(kind: str) -> Samples:
    """Return the sample of one of the kinds of which a metric has the values."""
    return lambda value, _owner: [({"kind": kind}, value)]


def combined(combine: Callable[[list[float]], float], unit: float = 1) -> Samples:
    """Return the sample of a list of values, of which some are unknown."""

    def samples(values: tuple[float | None, ...], _owner: object) -> Iterator[Sample]:
        known = [float(value) for value in values if value is not None]
        if known:
            yield {}, combine(known) * unit

    return samples


class Metric(Value):
    """The declaration of one metric."""

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    samples: Samples = plain


class Label(Value):
    """Declares a field as a label of the metrics of its object, and of those in it."""

    name: str


class News(Value):
    """Declares what counts as news of a field; without it each change does."""

    part: Callable[[Any], object]


class Declared(NamedTuple):
    """What a field declares."""

    name: str
    metrics: tuple[Metric, ...]
    label: str
    news: Callable[[Any], object] | None


def says(meaning: str) -> Meta:
    """Declare what a field means, for the description of the port."""
    return Meta(description=meaning)


def gauge(name: str, meaning: str, samples: Samples = plain) -> Metric:
    """Declare a metric of the run."""
    return Metric("gauge", name, meaning, samples=samples)


def of_node(name: str, meaning: str, samples: Samples = plain, *labels: str) -> Metric:
    """Declare a metric of each node."""
    return Metric("gauge", name, meaning, ("node", "rank", *labels), samples)


def of_service(name: str, meaning: str, samples: Samples = plain) -> Metric:
    """Declare a metric of each service."""
    return Metric(_kind_of(name), name, meaning, ("service",), samples)


def of_group(name: str, meaning: str, samples: Samples = plain) -> Metric:
    """Declare a metric of each service of a group."""
    return Metric(_kind_of(name), name, meaning, ("group", "service"), samples)


def of_member(name: str, meaning: str, samples: Samples = plain) -> Metric:
    """Declare a metric of each member of a group's service; nodes have members of the same name."""
    return Metric(_kind_of(name), name, meaning, ("group", "service", "member", "node"), samples)


def _kind_of(name: str) -> Literal["gauge", "counter"]:
    return "counter" if name.endswith("_total") else "gauge"


@cache
def declarations(kind: type[Struct]) -> tuple[Declared, ...]:
    """Return what each field of a type declares."""
    rows = []
    for one in fields(kind):
        declared = get_args(one.type)[1:] if get_origin(one.type) is Annotated else ()
        own = tuple(item for item in declared if isinstance(item, Metric))
        label = next((item.name for item in declared if isinstance(item, Label)), "")
        news = next((item.part for item in declared if isinstance(item, News)), None)
        rows.append(Declared(one.name, own, label, news))
    return tuple(rows)


CLOCK = News(lambda value: value is not None)
"""A value that changes with the clock: it is news whether there is one."""
NUMBERS = News(lambda text: _NUMBER.sub("", text))
"""A text whose numbers change with the clock."""


def news_of(value: object) -> object:
    """Return what counts of a status: without clocks, and without numbers in evidence."""
    if isinstance(value, Struct):
        return tuple(
            news_of(part) if row.news is None else row.news(part)
            for row in declarations(type(value))
            for part in (getattr(value, row.name),)
        )
    if isinstance(value, tuple):
        return tuple(news_of(item) for item in value)
    return value
