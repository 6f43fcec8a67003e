"""`recipes` and `recipe`: what is known by name, and what it would submit on some nodes."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.errors import PreflightError, Problem, SettingsError
from agent.base.value import dataclass
from agent.plan.planned_job import checkpoint_folder
from agent.settings import load
from agent.settings.jobs import BY_NAME, JOBS
from agent.settings.rules import BUILT
from agent.work.recipe_job import asked_of, version_of
from agent.work.recipes import recipe_of
from agent.work.recipes.recipe import MisfitError, NodeSize
from agent.work.recipes.versions import Chosen, UnknownVersionError, choose, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.settings.jobs import KnownJob
    from agent.work.recipes.recipe import Command

_PYTHON = "python3"
"""What a command begins with that may be pasted on any machine."""
_MOST = 100_000


class UsageError(Exception):
    """A command line that means nothing: what is wrong with it, in a sentence."""


@dataclass(frozen=True)
class Wanted:
    """What a recipe is to be shown for, as it stood on the command line."""

    name: str
    nodes: str
    gpus: str
    cpus: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class Shown:
    """A recipe's command, and what must be said about it."""

    command: Command
    warnings: tuple[str, ...] = ()

    def as_json(self) -> str:
        """Return it for a machine."""
        made = self.command
        return json.dumps({"argv": made.argv, "env": {**made.env}, "why": {**made.why}}, indent=2)

    def as_text(self) -> str:
        """Return it for a person: what can be pasted after `--`, then the reasons."""
        made = self.command
        lines = [" \\\n    ".join(shlex.join(words) for words in grouped(made.argv))]
        lines += [f"# in the environment: {name}={text}" for name, text in made.env.items()]
        lines += [f"# {given(made.argv, key)}: {reason}" for key, reason in made.why.items()]
        return "\n".join([*lines, *(f"# {note}" for note in made.notes)])


def rows() -> Iterator[str]:
    """Yield a line for each recipe: what it trains, by which framework, and what it needs."""
    for known in JOBS:
        if known.name not in BUILT:
            yield f"{known.name:<16} {known.framework}; not in this version"
            continue
        recipe = recipe_of(known)
        versions = f" {listed(recipe.VERSIONS)}" if recipe.VERSIONS else ""
        needs = ", ".join(known.needs) or "nothing"
        yield (
            f"{known.name:<16} {known.framework or 'no framework'}{versions}; needs {needs}; "
            f"reward server {known.reward}; by {known.launcher}; {recipe.ABOUT}"
        )


def show(environ: Mapping[str, str], wanted: Wanted) -> Shown:
    """Make a recipe's command for some nodes; raises UsageError for no number of any."""
    nodes = nodes_of(wanted)
    known = BY_NAME[wanted.name]
    settings = load({**environ, "AGENT_JOB": wanted.name}).settings
    chosen = _version(known, wanted.version, environ.get("PATH"))
    folder = checkpoint_folder(settings, None)
    asked = asked_of(known, settings, chosen.version, folder, _PYTHON, nodes)
    try:
        made = recipe_of(known).make(asked)
    except MisfitError as error:
        raise PreflightError(
            f"{known.name} does not fit", why=str(error), culprit="AGENT_JOB"
        ) from None
    if known.launcher == "torchrun":
        made = replace(made, notes=(*made.notes, "after -- it wants AGENT_LAUNCHER=torchrun"))
    warning = f"{known.framework} {chosen.warning}" if chosen.warning else ""
    return Shown(made, (warning,) if warning else ())


def nodes_of(wanted: Wanted) -> tuple[NodeSize, ...]:
    """Read how many nodes there are, and what each has."""
    count = _number("--nodes", wanted.nodes, 1)
    gpus = [_number("--gpus", word, 0) for word in wanted.gpus.split(",")]
    cpus = None if wanted.cpus is None else _number("--cpus", wanted.cpus, 0)
    if len(gpus) == 1:
        gpus *= count
    if len(gpus) != count:
        raise UsageError(f"--gpus names {len(gpus)} nodes, and --nodes {count}")
    return tuple(NodeSize(gpu, cpus) for gpu in gpus)


def _number(flag: str, text: str, least: int) -> int:
    word = text.strip()
    if not (word.isascii() and word.isdigit() and len(word) < 9 and least <= int(word) <= _MOST):
        raise UsageError(f"{flag}: {text!r} is no whole number from {least} to {_MOST}")
    return int(word)


def _version(known: KnownJob, text: str | None, path: str | None) -> Chosen:
    """Choose by the version that was given, else by the one that is installed."""
    versions = recipe_of(known).VERSIONS
    if not versions:
        ignored = f"has no versions: {text} changes nothing" if text is not None else ""
        return Chosen((), ignored)
    try:
        return choose(versions, text) if text is not None else _installed(known, path)
    except UnknownVersionError as error:
        expected = f"one of {listed(versions)}, or a later patch of one"
        raise SettingsError((Problem("--framework-version", str(error), expected),)) from None


def _installed(known: KnownJob, path: str | None) -> Chosen:
    from agent.node import framework, ray_python  # noqa: PLC0415 - only where none is named

    found = framework.find(known.framework, ray_python.find(path).executable, ".")
    return version_of(known, found)


def grouped(argv: tuple[str, ...]) -> list[list[str]]:
    """Part a command into the words of its lines: the program, then each argument."""
    lines: list[list[str]] = [[]]
    flags = False
    for word in argv:
        begins = word.startswith("--") or ("=" in word and lines[-1][-1:] != ["-m"])
        if begins and (word.startswith("--") or not flags):
            flags = word.startswith("--")
            lines.append([])
        lines[-1].append(word)
    return lines


def given(argv: tuple[str, ...], key: str) -> str:
    """Return an argument as it stands in the command, by its flag or key."""
    for at, word in enumerate(argv):
        if word.lstrip("+~").startswith(f"{key}="):
            return word
        if word.lstrip("-") == key.lstrip("-"):
            value = argv[at + 1 : at + 2]
            return word if not value or value[0].startswith("--") else f"{word} {value[0]}"
    return key
