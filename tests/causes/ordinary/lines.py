"""Compose logs of successful runs from templates of what the frameworks print.

The templates are lines of the programs' log calls, one a line, in the text files beside this
module; `<name>` stands for a value. Harmless warnings that look like errors are among them.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TEMPLATES: tuple[str, ...] = tuple(
    line
    for path in sorted(Path(__file__).parent.glob("*.txt"))
    for line in path.read_text().splitlines()
)
"""All templates, in the order of the files."""

_WORDS = ("alpha", "gsm8k", "math", "nq", "dapo", "hotpot", "geo3k", "tulu")
_MODELS = ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct")
_VALUES: dict[str, Callable[[random.Random], str]] = {
    "big": lambda r: str(r.randint(10**8, 10**9)),
    "clock": lambda r: f"{r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02}",
    "float": lambda r: f"{r.uniform(1, 99):.2f}",
    "gpu": lambda r: str(r.randint(0, 7)),
    "host": lambda r: f"node-{r.randint(1, 32):02}",
    "int": lambda r: str(r.randint(1_000, 90_000)),
    "ip": lambda r: f"10.{r.randint(0, 250)}.{r.randint(0, 250)}.{r.randint(1, 250)}",
    "mmdd": lambda r: f"{r.randint(1, 12):02}{r.randint(1, 28):02}",
    "model": lambda r: r.choice(_MODELS),
    "ms": lambda r: f"{r.randint(0, 999):03}",
    "pid": lambda r: str(r.randint(200, 99_000)),
    "port": lambda r: str(r.randint(20_000, 60_000)),
    "sci": lambda r: f"{r.uniform(1, 9):.2f}e-07",
    "small": lambda r: str(r.randint(1, 96)),
    "stamp": lambda r: f"2025-{r.randint(1, 12):02}-{r.randint(1, 28):02} {_VALUES['clock'](r)}",
    "two": lambda r: f"{r.randint(0, 59):02}",
    "unit": lambda r: f"{r.uniform(0, 1):.4f}",
    "vtime": lambda r: f"{r.randint(1, 12):02}-{r.randint(1, 28):02} {_VALUES['clock'](r)}",
    "word": lambda r: r.choice(_WORDS),
}
_TOKEN = re.compile(r"<(?:hex(?P<digits>\d+)|(?P<name>" + "|".join(_VALUES) + "))>")


def compose(count: int, seed: int = 20_000, templates: Sequence[str] = TEMPLATES) -> list[str]:
    """Return this many lines, each template in turn in a random order, the same for a seed."""
    chance = random.Random(seed)  # noqa: S311 - a log needs variety, no secrets
    lines: list[str] = []
    while len(lines) < count:
        order = chance.sample(templates, len(templates))
        lines += [fill(template, chance) for template in order]
    return lines[:count]


def fill(template: str, chance: random.Random) -> str:
    """Fill the values of a template."""

    def value(match: re.Match[str]) -> str:
        if match["digits"]:
            return f"{chance.getrandbits(4 * int(match['digits'])):0{match['digits']}x}"
        return _VALUES[match["name"]](chance)

    return _TOKEN.sub(value, template)
