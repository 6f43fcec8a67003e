"""Command-line arguments for argparse and hydra, merged with the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from msgspec import field

from agent.base.value import Value
from agent.work.recipes.recipe import MisfitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.work.recipes.recipe import Version


History = tuple[tuple["Version", str, str], ...]
"""How a parser's flags changed: since when, how many words follow or `-` for gone, the flags."""

_FROM_USER = "as AGENT_JOB_ARGS says"
_NO_PREFIX = "no-"
_PLACEHOLDER = re.compile(r"\{\w+\}")
"""What is filled in when all have joined."""
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
"""What argparse takes for a number and not for a flag."""


def known_flags(history: History, version: Version) -> dict[str, str]:
    """Return the flags of one version, each with how many words follow it: 0, 1, 2, `+` or `*`."""
    known: dict[str, str] = {}
    for since, words, names in history:
        if since <= version:
            for name in names.split():
                if words == "-":
                    known.pop(name, None)
                else:
                    known[name] = words
    return known


class Program(Value):
    """The program that reads the arguments."""

    name: str
    """As a person would call it: train_sft of OpenRLHF 0.9.10."""
    flags: Mapping[str, str]
    """Every flag that it knows, without dashes, and how many words follow it."""
    spelling: Mapping[str, str]
    """How this version spells a flag that the recipe calls by another name."""
    kinds: Mapping[str, type[float]] = field(default_factory=dict)
    """The flags that take numbers, whole ones (int) or any (float), as far as that is known."""

    def spelling_of(self, flag: str) -> str:
        """Return the flag as this version spells it."""
        return self.spelling.get(flag, flag)

    def resolve(self, name: str) -> str:
        """Return the flag that a name or an abbreviation of it stands for."""
        if name in self.flags:
            return name
        begun = sorted(flag for flag in self.flags if flag.startswith(name))
        if len(begun) == 1:
            return begun[0]
        if begun:
            raise MisfitError(
                f"AGENT_JOB_ARGS: --{name} may be {' or '.join('--' + flag for flag in begun)}: "
                "write the flag in full"
            )
        near = get_close_matches(name, self.flags, n=1)
        hint = f"; did you mean --{near[0]}?" if near else ""
        raise MisfitError(f"AGENT_JOB_ARGS: {self.name} knows no flag --{name}{hint}")


class Arguments:
    """The arguments of one program, while a recipe puts them together."""

    def __init__(self, program: Program, given: Sequence[str]) -> None:
        self._program = program
        self._given: dict[str, tuple[str, ...]] = {}
        self._without: list[str] = []
        self._made: dict[str, tuple[str, ...]] = {}
        self._why: dict[str, str] = {}
        self._read(given)

    def add(self, flag: str, *words: object, why: str = "") -> None:
        """Set an argument of the recipe's own; one that the user gave or left out is kept so."""
        name = self._program.spelling_of(flag)
        self._made[name] = tuple(str(word) for word in words)
        if why:
            self._why[name] = why

    def supports(self, flag: str) -> bool:
        """Return whether this version has the flag."""
        return self._program.spelling_of(flag) in self._program.flags

    def given(self, flag: str) -> bool:
        """Return whether the user gave the flag."""
        return self._program.spelling_of(flag) in self._given

    def holds(self, flag: str) -> bool:
        """Return whether the flag is among the arguments, from the user or made so far."""
        name = self._program.spelling_of(flag)
        return name in self._given or (name in self._made and name not in self._without)

    def whole(self, flag: str, otherwise: int = 0) -> int:
        """Return the number that a flag holds: the user's, else the recipe's, else the other."""
        name = self._program.spelling_of(flag)
        words = self._given.get(name)
        if words is None:
            made = self._made.get(name)
            return otherwise if made is None or name in self._without else int(made[0])
        if not re.fullmatch(r"\d+", words[0]):
            raise MisfitError(f"AGENT_JOB_ARGS: --{name} takes a whole number, not '{words[0]}'")
        return int(words[0])

    def count(self, flag: str, otherwise: int = 1) -> int:
        """Return the number that a flag holds, where it has to be at least one."""
        number = self.whole(flag, otherwise)
        if number < 1:
            raise MisfitError(f"AGENT_JOB_ARGS: {self.flag_text(flag)} must be at least 1")
        return number

    def flag_text(self, flag: str) -> str:
        """Return the flag as a person would type it for this version."""
        return f"--{self._program.spelling_of(flag)}"

    def argv(self) -> tuple[str, ...]:
        """Return the arguments: the recipe's in its order, then what only the user gave."""
        for name in self._without:
            if name not in self._made:
                raise MisfitError(
                    f"AGENT_JOB_ARGS: --{_NO_PREFIX}{name} leaves out what the recipe sets, and it "
                    f"sets no --{name}"
                )
        words: list[str] = []
        for name in dict.fromkeys([*self._made, *self._given]):
            if name in self._given:
                words += _flag_with_words(name, self._given[name])
            elif name not in self._without:
                words += _flag_with_words(name, self._made[name])
        return tuple(words)

    def why(self) -> dict[str, str]:
        """Return the reason of each derived argument, by its flag."""
        reasons = {name: why for name, why in self._why.items() if name not in self._without}
        reasons |= dict.fromkeys(self._given, _FROM_USER)
        return {f"--{name}": why for name, why in reasons.items()}

    def _read(self, given: Sequence[str]) -> None:
        rest = list(given)
        while rest:
            word = rest.pop(0)
            if not _is_flag(word):
                raise MisfitError(f"AGENT_JOB_ARGS: '{word}' follows no flag that takes it")
            name, equals, value = word[2:].partition("=")
            if name.startswith(_NO_PREFIX):
                self._leave_out(word, name, equals)
                continue
            flag = self._program.resolve(name)
            words = [value] if equals else _words_of(rest)
            if not equals:
                del rest[: len(words)]
            self._given[flag] = self._counted(flag, words)
            self._without = [left for left in self._without if left != flag]

    def _leave_out(self, word: str, name: str, equals: str) -> None:
        if equals:
            raise MisfitError(f"AGENT_JOB_ARGS: '{word}' takes no word: it leaves a flag out")
        flag = self._program.resolve(name.removeprefix(_NO_PREFIX))
        self._given.pop(flag, None)
        self._without.append(flag)

    def _counted(self, flag: str, words: list[str]) -> tuple[str, ...]:
        wanted = self._program.flags[flag]
        fits = wanted == "*" or (bool(words) if wanted == "+" else len(words) == int(wanted))
        if fits:
            self._check_kind(flag, words)
            return tuple(words)
        expected = {"0": "no word", "1": "one word", "+": "one word or more"}
        raise MisfitError(
            f"AGENT_JOB_ARGS: --{flag} takes {expected.get(wanted, wanted + ' words')}, "
            f"not {' '.join(words) or 'none'}"
        )

    def _check_kind(self, flag: str, words: list[str]) -> None:
        """Refuse a word that the program's parser would not turn into a number."""
        kind = self._program.kinds.get(flag)
        for word in words:
            if kind is None or _PLACEHOLDER.fullmatch(word):
                continue
            try:
                kind(word)
            except ValueError:
                wanted = "a whole number" if kind is int else "a number"
                raise MisfitError(
                    f"AGENT_JOB_ARGS: --{flag} takes {wanted}, not '{word}'"
                ) from None


def _flag_with_words(name: str, words: tuple[str, ...]) -> list[str]:
    """Return a flag and its words so that argparse takes none of them for another flag."""
    if len(words) == 1 and not _words_of(list(words)):
        return [f"--{name}={words[0]}"]
    return [f"--{name}", *words]


def _is_flag(word: str) -> bool:
    return word.startswith("--") and len(word) > 2 and " " not in word.partition("=")[0]


def _words_of(rest: list[str]) -> list[str]:
    """Return the words up to the next flag, as argparse tells them apart."""
    words: list[str] = []
    for word in rest:
        if word.startswith("-") and len(word) > 1 and not _NEGATIVE.fullmatch(word):
            if " " in word and "=" not in word:
                words.append(word)
                continue
            break
        words.append(word)
    return words


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


class Override(Value):
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
