"""The verbs `recipe` and `recipes`: the command of a recipe, and the table of all."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.base.errors import PreflightError
from agent.base.text import Line, shell_line
from agent.frameworks import recipe_of
from agent.frameworks.recipe import (
    Command,
    JobBasis,
    MisfitError,
    ModelShape,
    NodeSize,
    version_text,
)
from agent.frameworks.sizing import GIB
from agent.job.job import command_of, recipe_input, version_of
from agent.node.facts import Framework
from agent.node.read import columns_of, find_framework, find_ray
from agent.plan.make import checkpoint_folder
from agent.run.plan_input import read_shape
from agent.settings import load
from agent.settings.jobs import BY_NAME, RECIPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_PYTHON = "python3"  # first word of the printed command, valid on any machine


def command_json(made: Command) -> str:
    """Return a command as JSON."""
    return json.dumps({"argv": made.argv, "env": {**made.env}, "why": {**made.why}}, indent=2)


def command_text(made: Command) -> str:
    """Return a command, which can be pasted after `--`, and the reason for each argument."""
    lines = [" \\\n    ".join(shell_line(words) for words in split_lines(made.argv))]
    lines += [f"# in the environment: {name}={text}" for name, text in made.env.items()]
    lines += [f"# {key}: {reason}" for key, reason in made.why.items()]
    return "\n".join([*lines, *(f"# {note}" for note in made.notes)])


def recipe_rows() -> Iterator[dict[str, Any]]:
    """Yield what each recipe is: name, framework, versions, needs, reward server, launcher."""
    for known in RECIPES:
        recipe = recipe_of(known)
        yield {
            "name": known.name,
            "framework": known.framework,
            "versions": [version_text(version) for version in recipe.VERSIONS],
            "needs": [*known.needs],
            "reward": known.reward,
            "launcher": known.launcher,
            "about": recipe.ABOUT,
        }


def recipe_lines() -> Iterator[Line]:
    """Yield a line for each recipe."""
    for row in recipe_rows():
        framework = f"{row['framework'] or 'no framework'} {', '.join(row['versions'])}".rstrip()
        text = (
            f"{row['about']}; {framework}; needs {', '.join(row['needs']) or 'nothing'}; "
            f"reward server {row['reward']}; by {row['launcher']}"
        )
        yield Line(f"{row['name']:<16} ", text, "title")


def recipe_command(
    environ: Mapping[str, str],
    name: str,
    nodes: tuple[NodeSize, ...],
    version: str | None,
    model: ModelShape | None = None,
) -> tuple[Command, str]:
    """Return a recipe's command for some nodes, and a warning or ''."""
    known = BY_NAME[name]
    python = find_ray(environ.get("PATH")).executable
    unset = {need: f"<{need}>" for need in known.needs if not environ.get(need, "").strip()}
    settings = load({**environ, **unset, "AGENT_JOB": name}).settings
    found = Framework(known.framework, ".", version or "")
    package = recipe_of(known).FRAMEWORK.package
    if version is None and package is not None:
        found = find_framework(package, python, ".")
    chosen, warning = version_of(known, found)
    folder = checkpoint_folder(settings, None)
    if unset and settings.checkpoints is None:
        folder = "<AGENT_CHECKPOINTS>"  # the default depends on what is not set
    given = replace(
        recipe_input(known, settings, chosen, folder, _PYTHON, nodes),
        is_nearest=bool(warning),
        columns=columns_of(settings.train_data or "", python),
        basis=JobBasis(model or read_shape(settings, environ)),
    )
    try:
        made = command_of(known, given)
    except MisfitError as error:
        what = f"{known.name} does not fit"
        raise PreflightError(what, why=str(error), culprit="AGENT_JOB") from None
    if known.launcher == "torchrun":
        made = replace(made, notes=(*made.notes, "after -- it wants AGENT_LAUNCHER=torchrun"))
    return made, f"{known.framework} {warning}" if warning else ""


def node_sizes(
    count: int,
    gpus: Sequence[int],
    cpus: int | None,
    gpu_memory: int | None = None,
    host_memory: int | None = None,
) -> tuple[NodeSize, ...]:
    """Return the size of each node, memory in GB; one number of GPUs applies to all."""
    each = [*gpus] * count if len(gpus) == 1 else gpus
    if not count or len(each) != count:
        raise argparse.ArgumentTypeError(f"--gpus names {len(gpus)} nodes, and --nodes {count}")
    memory = None if host_memory is None else host_memory * GIB
    return tuple(NodeSize(one, cpus, memory, gpu_memory) for one in each)


def split_lines(argv: tuple[str, ...]) -> list[list[str]]:
    """Split a command into lines: the program, then each argument."""
    lines: list[list[str]] = [[]]
    has_flags = any(word.startswith("--") for word in argv)
    for word in argv:
        if word.startswith("--") or ("=" in word and not has_flags):
            lines.append([])
        lines[-1].append(word)
    return lines
