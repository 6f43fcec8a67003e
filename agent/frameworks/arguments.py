"""Command-line arguments for argparse and hydra, merged with the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.frameworks.recipe import MisfitError, check_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from agent.frameworks.recipe import RecipeInput

_FROM_USER = "AGENT_JOB_ARGS"
_NO_PREFIX = "no-"
_PLACEHOLDER = re.compile(
    r"\{\w+([-+*/]\d+)?\}"
)  # A value that is filled in after all nodes have joined
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")  # A value that argparse does not take for a flag


# --- argparse -------------------------------------------------------------------------------------


class Arguments:
    """The arguments of one program: the recipe's, replaced by the user's.

    `flags` has every flag of the program without dashes, and its words: `0`, `1`, `2`, `+` or `*`,
    then `i` for whole numbers or `f` for any. `spelling` has what this version calls them. With
    `has_others` the program may have flags that are not known, which are passed on as they are.
    """

    def __init__(
        self,
        program: str,
        flags: Mapping[str, str],
        spelling: Mapping[str, str],
        *given: str,
        has_others: bool = False,
    ) -> None:
        self._program = program
        self._flags = flags
        self._spelling = spelling
        self._has_others = has_others
        self._users: dict[str, tuple[str, ...] | None] = {}  # None: left out
        self._made: dict[str, tuple[str, ...]] = {}
        self._why: dict[str, str] = {}

        # Read the user's flags: --name words, --name=word, and --no-name for one to leave out.
        rest = list(given)
        while rest:
            word = rest.pop(0)
            if not word.startswith("--") or word == "--" or " " in word.partition("=")[0]:
                raise MisfitError(f"AGENT_JOB_ARGS: '{word}' belongs to no flag")
            name, equals, value = word[2:].partition("=")
            words = [value] if equals else _words_of(rest)

            # Does it leave out a flag? Of a program with other flags it may also be one of those.
            left_out = name.removeprefix(_NO_PREFIX)
            if left_out != name and (left_out in self._flags or not self._has_others):
                if left_out not in self._flags:
                    self._refuse_unknown(left_out, _NO_PREFIX)
                if equals:
                    raise MisfitError(f"AGENT_JOB_ARGS: '{word}' takes no value")
                self._users[left_out] = None
                continue

            if not equals:
                del rest[: len(words)]
            self._check(name, words)
            self._users[name] = tuple(words)

    def name_of(self, flag: str) -> str:
        """Return the flag as this version spells it."""
        return self._spelling.get(flag, flag)

    def _refuse_unknown(self, name: str, prefix: str = "") -> None:
        near = get_close_matches(name, self._flags, n=1)
        hint = f"; did you mean --{prefix}{near[0]}?" if near else ""
        raise MisfitError(f"AGENT_JOB_ARGS: {self._program} has no flag --{prefix}{name}{hint}")

    def _check(self, name: str, words: list[str]) -> None:
        """Refuse words that the program would refuse."""
        if name not in self._flags:
            if not self._has_others:
                self._refuse_unknown(name)
            return

        # Does it have the number of words?
        count = self._flags[name][0]
        kind = self._flags[name][1:]
        if count != "*" and not (words if count == "+" else len(words) == int(count)):
            counts = {"0": "no value", "1": "one value", "+": "one value or more"}
            what = f"takes {counts.get(count, 'two values')}, not {' '.join(words) or 'none'}"
            raise MisfitError(f"AGENT_JOB_ARGS: --{name} {what}")

        # Are they numbers, where it takes numbers?
        parse = {"": str, "i": int, "f": float}[kind]
        for word in words:
            if _PLACEHOLDER.fullmatch(word):
                continue
            try:
                parse(word)
            except ValueError:
                what = f"{'a whole' if kind == 'i' else 'a'} number, not '{word}'"
                raise MisfitError(f"AGENT_JOB_ARGS: --{name} takes {what}") from None

    def add(self, flag: str, *words: object, why: str = "") -> None:
        """Set an argument of the recipe, unless the user gives or leaves out this flag."""
        name = self.name_of(flag)
        self._made[name] = tuple(str(word) for word in words)
        if why:
            self._why[name] = why

    def add_all(self, rows: Iterable[Row]) -> None:
        """Set the rows of a table: flag, value ('' for a switch) and reason."""
        for flag, value, why in rows:
            is_switch = not value and self._flags.get(self.name_of(flag), "0") == "0"
            self.add(flag, *([] if is_switch else [value]), why=why)

    def supports(self, flag: str) -> bool:
        """Return whether this version has the flag."""
        return self.name_of(flag) in self._flags

    def given(self, flag: str) -> bool:
        """Return whether the user gave the flag."""
        return self._users.get(self.name_of(flag)) is not None

    def changed(self, flags: Iterable[str]) -> list[str]:
        """Return those of these flags that the user gave or left out, as in AGENT_JOB_ARGS."""
        names = [name for name in map(self.name_of, flags) if name in self._users]
        return [f"--{_NO_PREFIX if self._users[name] is None else ''}{name}" for name in names]

    def holds(self, flag: str) -> bool:
        """Return whether the flag is among the arguments, from the user or made so far."""
        name = self.name_of(flag)
        return self._users.get(name, self._made.get(name)) is not None

    def word(self, flag: str) -> str:
        """Return the first word of a flag: the user's, else the recipe's, else ''."""
        name = self.name_of(flag)
        return (self._users.get(name, self._made.get(name)) or [""])[0]

    def whole(self, flag: str, default: int = 0) -> int:
        """Return the number of a flag: the user's, else the recipe's, else the default."""
        if not self.holds(flag):
            return default
        word = self.word(flag)
        if not re.fullmatch(r"\d+", word):
            what = f"takes a whole number, not '{word}'"
            raise MisfitError(f"AGENT_JOB_ARGS: {self.text(flag)} {what}")
        return int(word)

    def count(self, flag: str, default: int = 1) -> int:
        """Return the number of a flag that must be at least one."""
        number = self.whole(flag, default)
        if number < 1:
            raise MisfitError(f"AGENT_JOB_ARGS: {self.text(flag)} must be at least 1")
        return number

    def fraction(self, flag: str) -> float | None:
        """Return the number from 0 to 1 that the user gave for a flag, or None."""
        words = self._users.get(self.name_of(flag))
        return _fraction(self.text(flag), words[0]) if words else None

    def text(self, flag: str, *, left_out: bool = False) -> str:
        """Return the flag with its dashes, as this version spells it, or what leaves it out."""
        return f"--{_NO_PREFIX if left_out else ''}{self.name_of(flag)}"

    def argv(self) -> tuple[str, ...]:
        """Return the arguments: the recipe's in its order, then what only the user gave."""
        argv: list[str] = []
        for name, words in {**self._made, **self._users}.items():
            if words is None:
                if name not in self._made:
                    what = f"--{_NO_PREFIX}{name} leaves out a flag that the recipe does not set"
                    raise MisfitError(f"AGENT_JOB_ARGS: {what}")
                continue
            # After `=` argparse does not take a word for another flag.
            if len(words) == 1 and not _words_of(words):
                argv.append(f"--{name}={words[0]}")
            else:
                argv += [f"--{name}", *words]
        return tuple(argv)

    def why(self) -> dict[str, str]:
        """Return the reason of each derived argument, by its flag."""
        reasons = self._why | dict.fromkeys(self._users, _FROM_USER)
        left_out = {name for name, words in self._users.items() if words is None}
        return {f"--{name}": why for name, why in reasons.items() if name not in left_out}


def _words_of(rest: Sequence[str]) -> list[str]:
    """Return the words up to the next flag, by the rules of argparse."""
    words: list[str] = []
    for word in rest:
        is_text = not word.startswith("-") or word == "-" or (" " in word and "=" not in word)
        if not is_text and not _NEGATIVE.fullmatch(word):
            break
        words.append(word)
    return words


def check_named_columns(arguments: Arguments, asked: RecipeInput, *flags: str) -> None:
    """Refuse data without the columns that these flags name."""
    wanted = {arguments.text(flag): word for flag in flags if (word := arguments.word(flag))}
    check_columns(asked, wanted)


# --- hydra ----------------------------------------------------------------------------------------

Row = tuple[str, object, str]
"""A setting of a recipe: key (`+key` if the configuration lacks it), value and reason."""
_PREFIXES = ("++", "+", "~", "")

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
    prefix: str = ""

    def argument(self) -> str:
        """Return the argument for the command line."""
        if self.prefix == "~" and not self.value:
            return f"~{self.key}"
        return f"{self.prefix}{self.key}={self.value}"


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
    prefix = next(sign for sign in _PREFIXES if argument.startswith(sign))
    key, equals, value = argument.removeprefix(prefix).partition("=")
    if not _KEY.fullmatch(key) or not (equals or prefix == "~"):
        raise MisfitError(
            f"AGENT_JOB_ARGS: {argument!r} is no argument for hydra: expected key=value, "
            "+key=value, ++key=value or ~key"
        )
    if not _STRUCTURED.match(value) and _ENDS_A_WORD.search(_ESCAPED.sub("", value)):
        raise MisfitError(
            f"AGENT_JOB_ARGS: hydra cannot read the value of {argument!r} without quotes: "
            f'write "{prefix}{key}={quoted(value)}"'
        )
    return Override(key, value, prefix)


def merged(
    rows: Iterable[Row], users: Iterable[Override]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Replace a recipe's rows by the user's; return the arguments, and the reason of each key.

    Each key occurs once.
    """
    overrides: dict[tuple[str, bool], Override] = {}
    why: dict[str, str] = {}
    for row, value, reason in rows:
        key = row.removeprefix("+")
        overrides[key, False] = Override(key, str(value), "" if row == key else "+")
        why[key] = reason

    for override in users:
        known = overrides.get((override.key, False))
        why[override.key] = _FROM_USER
        if override.prefix == "~":
            overrides.pop((override.key, False), None)
            # Where only the recipe would have added the key, there is nothing to remove.
            if known is None or known.prefix != "+":
                overrides[override.key, True] = override
            continue

        # If the recipe has the key, its prefix matches whether the configuration has it.
        mine = override if known is None or override.prefix == "++" else known
        overrides[override.key, False] = Override(override.key, override.value, mine.prefix)

    arguments = tuple(override.argument() for override in overrides.values())
    kept = {key for key, _ in overrides}
    return arguments, {key: reason for key, reason in why.items() if key in kept}


class GivenKeys(Mapping[str, str]):
    """The user's values for hydra by key, each under all names that versions have for the key.

    So the code reads a key by one name, and a version that renames it is a row of a table.
    """

    def __init__(self, values: Mapping[str, str], newest: Callable[[str], str]) -> None:
        self._newest = newest
        self._written = {newest(key): key for key in values}
        self._values = {newest(key): value for key, value in values.items()}

    @classmethod
    def of(cls, users: Iterable[Override], newest: Callable[[str], str]) -> GivenKeys:
        """Return what the user's arguments set; `~key` sets nothing."""
        return cls({user.key: user.value for user in users if user.prefix != "~"}, newest)

    def __getitem__(self, key: str) -> str:
        return self._values[self._newest(key)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._written.values())

    def __len__(self) -> int:
        return len(self._written)

    def written(self, key: str) -> str:
        """Return a key as the user wrote it."""
        return self._written.get(self._newest(key), key)

    def begin(self, *beginnings: str) -> list[str]:
        """Return the keys with one of these beginnings, as the user wrote them."""
        known = tuple(map(self._newest, beginnings))
        return [key for name, key in self._written.items() if name.startswith(known)]

    def or_else(self, values: Mapping[str, str]) -> GivenKeys:
        """Return these values for the keys that the user did not give."""
        return GivenKeys({**values, **{self.written(key): self[key] for key in self}}, self._newest)

    def whole(self, key: str, least: int = 1) -> int | None:
        """Return the number that the user gave for a key, or None."""
        value = self.get(key)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]+", value) or int(value) < least:
            raise MisfitError(
                f"AGENT_JOB_ARGS: {self.written(key)}={value}: "
                f"expected a whole number from {least} on"
            )
        return int(value)

    def fraction(self, key: str) -> float | None:
        """Return the number above 0 and up to 1 that the user gave for a key, or None."""
        value = self.get(key)
        return None if value is None else _fraction(self.written(key), value)


def _fraction(name: str, value: str) -> float:
    """Return the number above 0 and up to 1 that the user wrote for a flag or a key."""
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", value) or not 0 < float(value) <= 1:
        raise MisfitError(f"AGENT_JOB_ARGS: {name}={value}: expected a number from 0 to 1")
    return float(value)
