"""Command-line arguments for argparse and hydra, merged with the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agent.base.value import Value
from agent.work.recipes.recipe import MisfitError, check_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.work.recipes.recipe import RecipeInput, Version

_FROM_USER = "AGENT_JOB_ARGS"
_NO_PREFIX = "no-"
_PLACEHOLDER = re.compile(r"\{\w+\}")  # A value that is filled in after all nodes have joined
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")  # A value that argparse does not take for a flag


@cache
def rows_for(table: str, version: Version) -> tuple[list[str], ...]:
    """Return the words of each row of a table in this folder that applies to a version.

    Every row begins with the versions since and before which it applies.
    """

    def parsed(text: str) -> Version:
        return tuple(int(part) for part in text.split(".") if part != "-")

    text = Path(__file__).with_name(table).read_text(encoding="utf-8").replace("\n  ", " ")
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        words
        for since, before, *words in rows
        if parsed(since) <= version and (before == "-" or version < parsed(before))
    )


class Program(Value):
    """The program that reads the arguments."""

    name: str  # As in a message: train_sft of OpenRLHF 0.9.10
    flags: Mapping[str, str]
    """Every flag without dashes, and its words: `0`, `1`, `2`, `+` or `*`, then `i` or `f`.

    Words after `i` are whole numbers, after `f` any numbers.
    """
    spelling: Mapping[str, str]
    """How a version without dotted flags calls those whose names do not follow from the dots."""

    def spelling_of(self, flag: str) -> str:
        """Return the flag as this version spells it.

        Before flags had dots, train.batch_size was train_batch_size, and data.max_len max_len.
        """
        last = flag.rpartition(".")[2]
        names = (flag, self.spelling.get(flag, flag), flag.replace(".", "_"), last)
        return next((name for name in names if name in self.flags), flag)

    def checked(self, flag: str, words: list[str]) -> tuple[str, ...]:
        """Return the words of a flag, or refuse the flag or words that the program would refuse."""
        takes = self.flags.get(flag)
        if takes is None:
            near = get_close_matches(flag, self.flags, n=1)
            hint = f"; did you mean --{near[0]}?" if near else ""
            raise MisfitError(f"AGENT_JOB_ARGS: {self.name} has no flag --{flag}{hint}")
        count, kind = takes[0], takes[1:]
        if count != "*" and not (words if count == "+" else len(words) == int(count)):
            expected = {"0": "no value", "1": "one value", "+": "one value or more"}
            raise MisfitError(
                f"AGENT_JOB_ARGS: --{flag} takes {expected.get(count, count + ' values')}, "
                f"not {' '.join(words) or 'none'}"
            )
        parse = {"": str, "i": int, "f": float}[kind]
        for word in words:
            if _PLACEHOLDER.fullmatch(word):
                continue
            try:
                parse(word)
            except ValueError:
                wanted = "a whole number" if kind == "i" else "a number"
                what = f"--{flag} takes {wanted}, not '{word}'"
                raise MisfitError(f"AGENT_JOB_ARGS: {what}") from None
        return tuple(words)


class Arguments:
    """The arguments of one program: the recipe's, replaced by the user's."""

    def __init__(self, program: Program, given: Sequence[str]) -> None:
        self._program = program
        self._given: dict[str, tuple[str, ...]] = {}
        self._without: dict[str, None] = {}
        self._made: dict[str, tuple[str, ...]] = {}
        self._why: dict[str, str] = {}
        rest = list(given)
        while rest:
            word = rest.pop(0)
            if not word.startswith("--") or word == "--" or " " in word.partition("=")[0]:
                raise MisfitError(f"AGENT_JOB_ARGS: '{word}' belongs to no flag")
            name, equals, value = word[2:].partition("=")
            if name.startswith(_NO_PREFIX):
                if equals:
                    what = f"'{word}' takes no value: it leaves a flag out"
                    raise MisfitError(f"AGENT_JOB_ARGS: {what}")
                flag = name.removeprefix(_NO_PREFIX)
                if flag not in program.flags:
                    program.checked(flag, [])  # which refuses it
                self._given.pop(flag, None)
                self._without[flag] = None
                continue
            words = [value] if equals else _words_of(rest)
            if not equals:
                del rest[: len(words)]
            self._given[name] = program.checked(name, words)
            self._without.pop(name, None)

    def add(self, flag: str, *words: object, why: str = "") -> None:
        """Set an argument of the recipe, unless the user gives or leaves out this flag."""
        name = self._program.spelling_of(flag)
        self._made[name] = tuple(str(word) for word in words)
        if why:
            self._why[name] = why

    def add_all(self, table: Iterable[tuple[str, str, str]]) -> None:
        """Set the rows of a table: flag, value ('' for a switch) and reason."""
        for flag, value, why in table:
            self.add(flag, *([value] if value else []), why=why)

    def leave_out(self, flag: str) -> None:
        """Leave out an argument of the recipe, as `--no-FLAG` of the user does."""
        self._without[self._program.spelling_of(flag)] = None

    def supports(self, flag: str) -> bool:
        """Return whether this version has the flag."""
        return self._program.spelling_of(flag) in self._program.flags

    def given(self, flag: str) -> bool:
        """Return whether the user gave the flag."""
        return self._program.spelling_of(flag) in self._given

    def changed(self, flags: Iterable[str]) -> list[str]:
        """Return those of these flags that the user gave or left out, as in AGENT_JOB_ARGS."""
        names = [self._program.spelling_of(flag) for flag in flags]
        given = [f"--{name}" for name in names if name in self._given]
        return given + [f"--{_NO_PREFIX}{name}" for name in names if name in self._without]

    def holds(self, flag: str) -> bool:
        """Return whether the flag is among the arguments, from the user or made so far."""
        name = self._program.spelling_of(flag)
        return name in self._given or (name in self._made and name not in self._without)

    def word(self, flag: str) -> str:
        """Return the first word of a flag: the user's, else the recipe's, else ''."""
        if not self.holds(flag):
            return ""
        name = self._program.spelling_of(flag)
        return (self._given.get(name) or self._made[name])[0]

    def whole(self, flag: str, default: int = 0) -> int:
        """Return the number of a flag: the user's, else the recipe's, else the default."""
        if not self.holds(flag):
            return default
        name, word = self._program.spelling_of(flag), self.word(flag)
        if not re.fullmatch(r"\d+", word):
            raise MisfitError(f"AGENT_JOB_ARGS: --{name} takes a whole number, not '{word}'")
        return int(word)

    def count(self, flag: str, default: int = 1) -> int:
        """Return the number of a flag that must be at least one."""
        number = self.whole(flag, default)
        if number < 1:
            raise MisfitError(f"AGENT_JOB_ARGS: {self.flag_text(flag)} must be at least 1")
        return number

    def number(self, flag: str) -> float:
        """Return the number of a flag, which need not be whole; 0 without the flag."""
        word = self.word(flag) or "0"
        if _PLACEHOLDER.fullmatch(word):
            raise MisfitError(
                f"AGENT_JOB_ARGS: {self.flag_text(flag)} takes a number, not '{word}'"
            )
        return float(word)

    def flag_text(self, flag: str) -> str:
        """Return the flag with its dashes, as this version spells it."""
        return f"--{self._program.spelling_of(flag)}"

    def left_out_text(self, flag: str) -> str:
        """Return what leaves out a flag that the recipe sets."""
        return f"--{_NO_PREFIX}{self._program.spelling_of(flag)}"

    def argv(self) -> tuple[str, ...]:
        """Return the arguments: the recipe's in its order, then what only the user gave."""
        unset = next((name for name in self._without if name not in self._made), None)
        if unset is not None:
            raise MisfitError(
                f"AGENT_JOB_ARGS: --{_NO_PREFIX}{unset} leaves out a flag of the recipe, which "
                f"does not set --{unset}"
            )
        unwanted = self._without.keys() - self._given.keys()
        kept = {name: words for name, words in self._made.items() if name not in unwanted}
        argv: list[str] = []
        for name, words in (kept | self._given).items():
            # after `=` argparse does not take a word for another flag
            needs_equals = len(words) == 1 and not _words_of(words)
            argv += [f"--{name}={words[0]}"] if needs_equals else [f"--{name}", *words]
        return tuple(argv)

    def why(self) -> dict[str, str]:
        """Return the reason of each derived argument, by its flag."""
        reasons = {name: why for name, why in self._why.items() if name not in self._without}
        reasons |= dict.fromkeys(self._given, _FROM_USER)
        return {f"--{name}": why for name, why in reasons.items()}


def _words_of(rest: Sequence[str]) -> list[str]:
    """Return the words up to the next flag, by the rules of argparse."""
    words: list[str] = []
    for word in rest:
        is_text = not word.startswith("-") or word == "-" or (" " in word and "=" not in word)
        if not is_text and not _NEGATIVE.fullmatch(word):
            break
        words.append(word)
    return words


def check_keys(arguments: Arguments, asked: RecipeInput, *flags: str) -> None:
    """Refuse data without the columns that these flags name."""
    wanted = {arguments.flag_text(flag): word for flag in flags if (word := arguments.word(flag))}
    check_columns(asked, wanted, "name its columns by these flags in AGENT_JOB_ARGS")


Row = tuple[str, object, str]
"""A setting of a recipe: key (`+key` if the configuration lacks it), value and reason."""
Prefix = Literal["", "+", "++", "~"]
_PREFIXES: tuple[Prefix, ...] = ("++", "+", "~", "")

_KEY = re.compile(r"[A-Za-z_][\w$]*(?:[./@:-][\w$]+)*", re.ASCII)
_PLAIN = re.compile(r"[\w/.+$%*@?|:-]+", re.ASCII)
"""A text that hydra reads as one word without quotes; every other text is quoted."""
_NOT_TEXT = re.compile(r"(?i)(null|true|false|nan|[+-]?inf|[+-]?[\d_]*\.?[\d_]*(e[+-]?\d+)?)")
"""Words that hydra does not read as text."""
_QUOTE = re.compile(r"(\\*)('|\Z)")
"""A quote or the end, with the backslashes before it: only those are escapes for hydra."""
_STRUCTURED = re.compile(r"""['"\[{]|\w+\(""")
_ENDS_A_WORD = re.compile(r"""[=,~#;!(){}\[\]'"&<>`^]|[^\x00-\x7f]""")
_ESCAPED = re.compile(r"\$\{[^{}]*\}|\\[\\(){}\[\]:=, \t]")
"""Interpolations and escapes, in which those characters are allowed."""


class Override(Value):
    """One argument for hydra."""

    key: str
    value: str = ""  # As in the argument: quoted where necessary
    prefix: Prefix = ""

    def argument(self) -> str:
        """Return the argument for the command line."""
        bare = self.prefix == "~" and not self.value
        return f"{self.prefix}{self.key}" + ("" if bare else f"={self.value}")


def quoted(text: str) -> str:
    """Return a value that hydra reads as exactly this text."""
    if "${" in text:
        raise MisfitError(f"{text!r}: hydra resolves `${{…}}` even in quotes: rename it")
    if _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text):
        return text
    return "'" + _QUOTE.sub(lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"


def texts(value: str) -> str:
    """Return a text, or a list written as `[a, b]`, as a value."""
    if value.startswith("[") and value.endswith("]"):
        items = [item.strip().strip("'\"") for item in value[1:-1].split(",")]
        return "[" + ",".join(quoted(item) for item in items if item) + "]"
    return quoted(value)


def read(argument: str) -> Override:
    """Parse one argument of the user; raise MisfitError for one that hydra refuses."""
    prefix: Prefix = next(sign for sign in _PREFIXES if argument.startswith(sign))
    key, equals, value = argument.removeprefix(prefix).partition("=")
    if not _KEY.fullmatch(key) or not (equals or prefix == "~"):
        raise MisfitError(
            f"AGENT_JOB_ARGS: {argument!r} is no argument for hydra: expected key=value, "
            "+key=value, ++key=value or ~key; for a command of your own put it after --"
        )
    if not _STRUCTURED.match(value) and _ENDS_A_WORD.search(_ESCAPED.sub("", value)):
        raise MisfitError(
            f"AGENT_JOB_ARGS: hydra cannot read the value of {argument!r} without quotes: "
            f'write "{prefix}{key}={quoted(value)}"'
        )
    return Override(key, value, prefix)


def merge(own: Iterable[Override], users: Iterable[Override]) -> tuple[Override, ...]:
    """Replace the recipe's arguments by the user's: each key occurs once."""
    merged: dict[tuple[str, bool], Override] = {}
    for override in (*own, *users):
        known = merged.get((override.key, False))
        if override.prefix == "~":
            merged.pop((override.key, False), None)
            if known is not None and known.prefix == "+":
                continue  # only the recipe would have added it: there is nothing to remove
            merged[override.key, True] = override
            continue
        # if the recipe has the key, its prefix matches whether the configuration has it
        mine = override if known is None or override.prefix == "++" else known
        merged[override.key, False] = Override(override.key, override.value, mine.prefix)
    return tuple(merged.values())


def merged_with_reasons(
    rows: Iterable[Row], users: Sequence[Override]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the arguments and the reason of each key, from a recipe's rows and the user's."""
    own: list[Override] = []
    why: dict[str, str] = {}
    for key, value, reason in rows:
        prefix: Prefix = "+" if key.startswith("+") else ""
        own.append(Override(key.removeprefix("+"), str(value), prefix))
        why[own[-1].key] = reason
    arguments = merge(own, users)
    why |= {override.key: _FROM_USER for override in users}
    kept = {override.key for override in arguments}
    return (
        tuple(override.argument() for override in arguments),
        {key: reason for key, reason in why.items() if key in kept},
    )


def whole(values: Mapping[str, str], key: str) -> int | None:
    """Return the number that the user gave for a key, or None."""
    value = values.get(key)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]+", value) or int(value) < 1:
        raise MisfitError(f"AGENT_JOB_ARGS: {key}={value}: expected a whole number from 1 on")
    return int(value)
