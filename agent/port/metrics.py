"""Metrics for Prometheus: a walk over a status, whose fields declare them.

A metric takes its labels from the fields that are declared as labels, of the object that has the
metric and of those around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.base.fields import declarations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.base.fields import Metric


def metrics(status: Struct) -> str:
    """Render a status; a metric without a value has no samples."""
    declared: dict[str, Metric] = {}
    series: dict[str, dict[str, float]] = {}
    for metric, labels, value, suffix in _samples(status, {"rank": 0}):  # the head has none
        name = f"pod_agent_{metric.name}"
        declared[name] = metric
        # two nodes may share a name; a series has one value
        series.setdefault(name, {}).setdefault(f"{name}{suffix}{_labels(labels)}", value)
    lines = []
    for name, metric in declared.items():
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        lines += [f"{labelled} {value:.10g}" for labelled, value in series[name].items()]
    return "\n".join(lines) + "\n"


def _samples(
    owner: Struct, around: Mapping[str, object]
) -> Iterator[tuple[Metric, dict[str, object], float, str]]:
    """Yield the samples of an object and of those in it, each with its labels."""
    declared = declarations(type(owner))
    own = {row.label: getattr(owner, row.name) for row in declared if row.label}
    known = {**around, **own}
    for row in declared:
        value = getattr(owner, row.name)
        for metric in row.metrics:
            labels = {name: known.get(name) for name in metric.labels}
            for more, number, *suffix in metric.samples(value, owner):
                yield metric, {**labels, **more}, number, "".join(suffix)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Struct):
                yield from _samples(item, known)


def _labels(labels: Mapping[str, object]) -> str:
    """Return the labels of a series; surrogates as numbers."""
    pairs = []
    for name, value in labels.items():
        text = "" if value is None else str(value)
        plain_text = text.encode(errors="backslashreplace").decode()
        escaped = plain_text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        pairs.append(f'{name}="{escaped}"')
    if not pairs:
        return ""
    return "{" + ",".join(pairs) + "}"
