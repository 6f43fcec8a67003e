"""Hydra's overrides, as far as a check needs them: sign, key, and the type of a value."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.frameworks.faults import Fault


@dataclass(frozen=True)
class Override:
    """KEY=VALUE with the sign before it: '' changes, + adds, ++ does either, ~ removes."""

    sign: str
    key: str
    value: str


def parse(word: str) -> Override:
    """Parse one argument."""
    match = re.fullmatch(r"(\+\+|\+|~|)([^=]+)=?(.*)", word, re.DOTALL)
    if match is None:
        raise ValueError(f"{word!r} is not a hydra override")
    return Override(match[1], match[2].split("@")[0], match[3])


def type_fault(key: str, default: object, value: object) -> Fault | None:
    """Report a value of another type than the default's: hydra itself accepts any."""
    wanted, given = kind(default), kind(value)
    if (
        default is None
        or value is None
        or wanted == given
        or (wanted, given) == ("a number", "whole")
    ):
        return None
    return Fault("refused", f"{key} is {wanted} by default, and was given {value!r}")


def kind(value: object) -> str:
    """Return the type of a value; files and loggers count as one text or several."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "whole"
    if isinstance(value, float):
        return "a number"
    name = type(value).__name__
    return "text" if name in {"str", "list", "ListConfig"} else name
