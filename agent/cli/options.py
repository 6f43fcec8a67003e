"""The options of a verb: how they are declared, and the readers of their values."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import TYPE_CHECKING, Any

from agent.frameworks.recipe import ModelShape
from agent.settings.values import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Option = tuple[Sequence[str], dict[str, Any]]
    """Names and arguments of `add_argument`."""


def flag(names: str, about: str) -> Option:
    """Declare an option that takes no value."""
    return names.split(), {"action": "store_true", "help": about}


def value(
    name: str, metavar: str | None, about: str, read: Callable[[str], object] = str, **more: object
) -> Option:
    """Declare an option or an argument, and the reader of its value."""

    def parse(text: str) -> object:
        try:
            return read(text)
        except (ValueError, re.error) as error:
            # argparse prints the text of this error, and hides that of any other
            raise argparse.ArgumentTypeError(str(error)) from None

    return [name], {"type": parse, "metavar": metavar, "help": about, **more}


JSON = flag("--json", "print JSON")


def closest(given: str, known: Iterable[str]) -> str:
    """Return the known word that a mistyped one resembles, or ''."""
    return next(iter(difflib.get_close_matches(given, [*known], n=1)), "")


def name_among(what: str, known: Iterable[str]) -> Callable[[str], str]:
    """Return the reader of a name that must be known."""

    def read(text: str) -> str:
        if text in known:
            return text
        meant = closest(text, known)
        hint = f"did you mean {meant}?" if meant else f"known are {', '.join(known)}"
        raise ValueError(f"no {what} {text!r}: {hint}")

    return read


def whole_number(text: str) -> int:
    """Read a number of nodes, processors or lines."""
    return whole(0, 100_000, f"{text!r} is no whole number")(text)


def whole_numbers(text: str) -> list[int]:
    """Read the GPUs of each node."""
    return [whole_number(word) for word in text.split(",")]


def gigabytes(text: str) -> int:
    """Read the memory of a GPU or a node, with or without GB or GiB."""
    number = text.strip().upper()
    unit = next((unit for unit in ("GIB", "GB", "G") if number.endswith(unit)), "")
    return whole_number(number.removesuffix(unit).rstrip())


def model_size(text: str) -> ModelShape:
    """Read the size of a model."""
    shape = ModelShape.from_name(text.strip(), "--model-size")
    if shape is None:
        raise ValueError(f"{text!r} is no size such as 7B or 30B-A3B")
    return shape
