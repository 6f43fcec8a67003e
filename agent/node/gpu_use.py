"""How much GPUs work, as their driver's own tools tell: what is asked, and how it is read."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_IDLE = 5
"""Percent: what a GPU may show that does nothing."""
_CARD = re.compile(r"card(\d+)")
_JSON = re.compile(r"^[\[{]", re.MULTILINE)

Uses = dict[int, int]
"""Percent, by the GPU's number; one that does not tell is not in it."""


class Tool(NamedTuple):
    """A tool that tells how much GPUs work."""

    argv: tuple[str, ...]
    read: Callable[[str], Uses]
    """Reads what it prints; raises ValueError where that is no such list."""


def busy(uses: Uses) -> str:
    """Name a GPU that works; '' where none does."""
    return next((f"GPU {gpu} at {use} %" for gpu, use in uses.items() if use >= _IDLE), "")


def of_nvidia(text: str) -> Uses:
    """Read nvidia-smi's list."""
    cells = (line.split(",") for line in text.splitlines() if line.count(",") == 1)
    return {int(gpu): int(use) for gpu, use in cells if use.strip().isdigit()}


def of_rocm(text: str) -> Uses:
    """Read rocm-smi's JSON."""
    uses = {card: about.get("gpu use (%)", "") for card, about in cards(text).items()}
    return {card: int(use) for card, use in uses.items() if use.isdigit()}


def of_amd(text: str) -> Uses:
    """Read amd-smi's JSON: a list of GPUs, which newer ones have under `gpu_data`."""
    data = json_in(text)
    found = data.get("gpu_data") if isinstance(data, dict) else data
    return dict(_of_amd(found)) if isinstance(found, list) else {}


def _of_amd(gpus: list[Any]) -> Iterator[tuple[int, int]]:
    for gpu in gpus:
        with suppress(KeyError, TypeError, ValueError):  # one that does not tell says "N/A"
            yield int(gpu["gpu"]), int(gpu["usage"]["gfx_activity"]["value"])


TOOLS: Mapping[str, tuple[Tool, ...]] = {
    "nvidia": (
        Tool(
            ("nvidia-smi", "--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits"),
            of_nvidia,
        ),
    ),
    "amd": (
        Tool(("rocm-smi", "--showuse", "--json"), of_rocm),
        Tool(("amd-smi", "metric", "--usage", "--json"), of_amd),
    ),
}
"""By the GPUs' maker; the first one that is there and tells is believed."""


def cards(text: str) -> dict[int, dict[str, str]]:
    """Return what rocm-smi's JSON has of each card, names in small letters, which have varied."""
    data = json_in(text)
    found = data.items() if isinstance(data, dict) else ()
    return {
        int(card[1]): {str(key).lower(): str(value) for key, value in about.items()}
        for name, about in found
        if (card := _CARD.fullmatch(name)) is not None and isinstance(about, dict)
    }


def json_in(text: str) -> Any:  # noqa: ANN401 - whatever a tool says
    """Read a tool's JSON, before which it may warn; raises ValueError where there is none."""
    begin = _JSON.search(text)
    if begin is None:
        raise ValueError("no JSON")
    return json.loads(text[begin.start() :])
