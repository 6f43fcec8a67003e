"""Arguments of a program that reads them with argparse: a recipe's own, the user's in their place.

`AGENT_JOB_ARGS` is read as argparse would read it, by the flags that the program's version knows:
`--flag word`, `--flag=word`, none or several words, an abbreviation that only one flag begins with.
A flag that the user gives replaces the recipe's, and of repeated ones the last counts. What the
program does not know is refused here, before anything is submitted. A switch cannot be taken back
by repeating it, so `--no-FLAG` leaves out the recipe's own FLAG, whatever it is.
"""

from __future__ import annotations

import re
from dataclasses import field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.work.recipes.recipe import MisfitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.work.recipes.recipe import Version

History = tuple[tuple["Version", str, str], ...]
"""How a parser's flags changed: since when, how many words follow or `-` for gone, the flags."""

_GIVEN = "as AGENT_JOB_ARGS says"
_WITHOUT = "no-"
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


@dataclass(frozen=True)
class Program:
    """The program that reads the arguments."""

    name: str
    """As a person would call it: train_sft of OpenRLHF 0.9.10."""
    flags: Mapping[str, str]
    """Every flag that it knows, without dashes, and how many words follow it."""
    spelling: Mapping[str, str]
    """How this version spells a flag that the recipe calls by another name."""
    kinds: Mapping[str, type[float]] = field(default_factory=dict)
    """The flags that take numbers, whole ones (int) or any (float), as far as that is known."""

    def spelt(self, flag: str) -> str:
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
        name = self._program.spelt(flag)
        self._made[name] = tuple(str(word) for word in words)
        if why:
            self._why[name] = why

    def knows(self, flag: str) -> bool:
        """Return whether this version has the flag."""
        return self._program.spelt(flag) in self._program.flags

    def given(self, flag: str) -> bool:
        """Return whether the user gave the flag."""
        return self._program.spelt(flag) in self._given

    def holds(self, flag: str) -> bool:
        """Return whether the flag is among the arguments, from the user or made so far."""
        name = self._program.spelt(flag)
        return name in self._given or (name in self._made and name not in self._without)

    def whole(self, flag: str, otherwise: int = 0) -> int:
        """Return the number that a flag holds: the user's, else the recipe's, else the other."""
        name = self._program.spelt(flag)
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
            raise MisfitError(f"AGENT_JOB_ARGS: {self.shown(flag)} must be at least 1")
        return number

    def shown(self, flag: str) -> str:
        """Return the flag as a person would type it for this version."""
        return f"--{self._program.spelt(flag)}"

    def argv(self) -> tuple[str, ...]:
        """Return the arguments: the recipe's in its order, then what only the user gave."""
        for name in self._without:
            if name not in self._made:
                raise MisfitError(
                    f"AGENT_JOB_ARGS: --{_WITHOUT}{name} leaves out what the recipe sets, and it "
                    f"sets no --{name}"
                )
        words: list[str] = []
        for name in dict.fromkeys([*self._made, *self._given]):
            if name in self._given:
                words += _written(name, self._given[name])
            elif name not in self._without:
                words += _written(name, self._made[name])
        return tuple(words)

    def why(self) -> dict[str, str]:
        """Return the reason of each derived argument, by its flag."""
        reasons = {name: why for name, why in self._why.items() if name not in self._without}
        reasons |= dict.fromkeys(self._given, _GIVEN)
        return {f"--{name}": why for name, why in reasons.items()}

    def _read(self, given: Sequence[str]) -> None:
        rest = list(given)
        while rest:
            word = rest.pop(0)
            if not _is_flag(word):
                raise MisfitError(f"AGENT_JOB_ARGS: '{word}' follows no flag that takes it")
            name, equals, value = word[2:].partition("=")
            if name.startswith(_WITHOUT):
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
        flag = self._program.resolve(name.removeprefix(_WITHOUT))
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


def _written(name: str, words: tuple[str, ...]) -> list[str]:
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
