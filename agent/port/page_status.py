"""The status as the page reads it every two seconds: small, whatever the number of nodes.

A node is one short row: those that differ are in the judgment's exceptions, with their figures.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Status = Mapping[str, Any]
    Cell = tuple[str, str, list[int | None], bool]
    """A node's name, state, the utilization of each GPU in percent, and whether it is slow."""

_LEFT_OUT = ("nodes", "figures", "slow", "phases", "ray", "epoch", "job_tail", "prepare_lines")


def page_status(status: Status) -> dict[str, Any]:
    """Return a head's status for the page; that of a worker as it is."""
    if status.get("role") != "head":
        return dict(status)
    kept = {name: value for name, value in status.items() if name not in _LEFT_OUT}
    return {**kept, "cells": [*_cells(status)], "gpus": _gpus(status)}


def _cells(status: Status) -> Iterator[Cell]:
    """Yield a row for each node, the head first."""
    head_state = "joined"
    yield status["name"], head_state, _uses(status["figures"]), bool(status["slow"])
    for node in status["nodes"]:
        yield node["name"], node["state"], _uses(node["figures"]), bool(node["slow"])


def _uses(figures: Status | None) -> list[int | None]:
    return [] if figures is None else [*figures["gpus"].get("use", ())]


def _gpus(status: Status) -> dict[str, Any] | None:
    """Return what the GPUs of all present nodes do: medians, and the node with the lowest use."""
    machines = [(status["name"], status["figures"])]
    machines += [
        (node["name"], node["figures"]) for node in status["nodes"] if node["state"] == "joined"
    ]
    present = [(name, figures) for name, figures in machines if figures and figures["gpus"]]
    if not present:
        return None
    means = {name: _mean(figures, "use") for name, figures in present}
    known = {name: use for name, use in means.items() if use is not None}
    lowest = min(known, key=known.__getitem__, default=None)
    return {
        "use": _median(present, "use"),
        "lowest": lowest,
        "lowest_use": None if lowest is None else round(known[lowest], 1),
        "power": _median(present, "power"),
        "memory_used": _median(present, "memory_used"),
        "memory_total": _median(present, "memory_total"),
    }


def _values(figures: Status, column: str) -> list[float]:
    return [value for value in figures["gpus"].get(column, ()) if value is not None]


def _mean(figures: Status, column: str) -> float | None:
    values = _values(figures, column)
    return sum(values) / len(values) if values else None


def _median(machines: list[tuple[str, Any]], column: str) -> float | None:
    values = [value for _, figures in machines for value in _values(figures, column)]
    return median(values) if values else None
