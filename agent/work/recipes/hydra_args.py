"""Hydra's arguments: how values are quoted, and how a user's own replace a recipe's.

Hydra 1.3 takes `key=value`, `+key=value` (a key that the configuration lacks), `++key=value`
(either way) and `~key` (taken out). The last of two equal keys wins, save that a repeated `+key` is
refused: so that nothing depends on that, each key stands once in what is made here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from agent.base.value import dataclass
from agent.work.recipes.recipe import MisfitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Prefix = Literal["", "+", "++", "~"]
_PREFIXES: tuple[Prefix, ...] = ("++", "+", "~", "")

_KEY = re.compile(r"[A-Za-z_][\w$]*(?:[./@:-][\w$]+)*", re.ASCII)
_PLAIN = re.compile(r"[\w/.+$%*@?|:-]+", re.ASCII)
"""What hydra reads as one word without quotes; everything else is quoted."""
_BREAKS_A_WORD = re.compile(r"""[=,~#;!(){}\[\]'"&<>`^]|[^\x00-\x7f]""")
_STRUCTURED = re.compile(r"""['"\[{]|\w+\(""")
_ALLOWED = re.compile(r"\$\{[^{}]*\}|\\[\\(){}\[\]:=, \t]")
"""Interpolations, and what an escape takes the meaning from."""
_NO_STRING = re.compile(r"(?i)(null|true|false|nan|[+-]?inf|[+-]?[\d_]*\.?[\d_]*(e[+-]?\d+)?)")
"""Words that hydra would read as something else than text."""
_QUOTE = re.compile(r"(\\*)('|\Z)")
"""A quote or the end, with the backslashes before it: only those does hydra read as escapes."""


@dataclass(frozen=True)
class Override:
    """One argument of hydra's."""

    key: str
    value: str = ""
    """As it stands in the argument: quoted where it has to be."""
    prefix: Prefix = ""

    def argument(self) -> str:
        """Return it as it stands on the command line."""
        bare = self.prefix == "~" and not self.value
        return f"{self.prefix}{self.key}" + ("" if bare else f"={self.value}")


def quoted(text: str) -> str:
    """Return a text as a value that hydra reads as this very text, whatever stands in it."""
    if "${" in text:
        raise MisfitError(f"{text!r}: hydra would look `${{…}}` up, even in quotes: rename it")
    if _PLAIN.fullmatch(text) and not _NO_STRING.fullmatch(text):
        return text
    return "'" + _QUOTE.sub(lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"


def texts(value: str) -> str:
    """Return a text, or the list that it writes as `[a, b]`, as a value."""
    if value.startswith("[") and value.endswith("]"):
        items = [item.strip().strip("'\"") for item in value[1:-1].split(",")]
        return "[" + ",".join(quoted(item) for item in items if item) + "]"
    return quoted(value)


def read(argument: str) -> Override:
    """Read one argument of the user's; raises MisfitError where hydra would not take it."""
    prefix, key, value = _split(argument)
    if not _KEY.fullmatch(key) or (value is None and prefix != "~"):
        raise MisfitError(
            f"AGENT_JOB_ARGS: {argument!r} is no argument of hydra's: expected key=value, "
            "+key=value, ++key=value or ~key; for a command line of your own put it after --"
        )
    if value and _is_broken(value):
        raise MisfitError(
            f"AGENT_JOB_ARGS: hydra cannot read the value of {argument!r} without quotes: "
            f'write "{prefix}{key}={_always_quoted(value)}"'
        )
    return Override(key, value or "", prefix)


def _split(argument: str) -> tuple[Prefix, str, str | None]:
    key, equals, value = argument.partition("=")
    for prefix in _PREFIXES:
        if key.startswith(prefix):
            break
    return prefix, key.removeprefix(prefix), value if equals else None


def _is_broken(value: str) -> bool:
    """Say whether an unquoted word has something in it that ends a word."""
    if _STRUCTURED.match(value):
        return False
    return bool(_BREAKS_A_WORD.search(_ALLOWED.sub("", value)))


def _always_quoted(value: str) -> str:
    return quoted(value) if not _PLAIN.fullmatch(value) else f"'{value}'"


def merge(own: Iterable[Override], users: Iterable[Override]) -> tuple[Override, ...]:
    """Put the user's arguments in place of the recipe's own: each key stands once."""
    merged: dict[tuple[str, bool], Override] = {}
    for override in (*own, *users):
        known = merged.get((override.key, False))
        if override.prefix == "~":
            merged.pop((override.key, False), None)
            if known is not None and known.prefix == "+":
                continue  # what only we would have added is not there to be taken out
            merged[override.key, True] = override
            continue
        # whether the configuration has the key is settled where the recipe already names it
        mine = override if known is None or override.prefix == "++" else known
        merged[override.key, False] = Override(override.key, override.value, mine.prefix)
    return tuple(merged.values())


def whole(values: Mapping[str, str], key: str) -> int | None:
    """Return a number that the user gave for a key; None where he gave none."""
    value = values.get(key)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]+", value) or int(value) < 1:
        raise MisfitError(f"AGENT_JOB_ARGS: {key}={value}: expected a whole number from 1 on")
    return int(value)
