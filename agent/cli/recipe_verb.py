"""`pod-agent recipe`: the command that a recipe would submit on given nodes, and why."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.errors import PreflightError, Problem, SettingsError
from agent.base.text import shell_line
from agent.cli.options import (
    JSON,
    gigabytes,
    model_size,
    name_among,
    value,
    whole_number,
    whole_numbers,
)
from agent.frameworks import recipe_of
from agent.frameworks.recipe import Command, JobBasis, MisfitError, ModelShape, NodeSize
from agent.frameworks.sizing import GIB
from agent.job.groups import place_groups
from agent.job.job import command_of, recipe_input, version_of
from agent.job.recipe_services import generation_of, recipe_tables
from agent.node.facts import Framework
from agent.node.read import columns_of, find_framework, find_ray
from agent.plan.plan_job import checkpoint_folder
from agent.run.model_shape import read_shape
from agent.run.plan_files import read_services
from agent.settings import load
from agent.settings.jobs import BY_NAME
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.job.groups import NodeGroup
    from agent.job.services import ServicesFile
    from agent.settings.model import Settings

OPTIONS = (
    JSON,
    value("name", "NAME", "see `recipes`", name_among("recipe", BY_NAME)),
    value("--nodes", "N", "how many would join", whole_number, required=True),
    value("--gpus", "G", "of each: 8, or 8,8,4", whole_numbers, required=True),
    value("--cpus", "C", "of each; left out: enough of them", whole_number),
    value("--gpu-memory", "GB", "of each GPU; left out: 80 is assumed", gigabytes),
    value("--host-memory", "GB", "of each node; left out: 128 a GPU are assumed", gigabytes),
    value("--model", "MODEL", "left out: AGENT_MODEL"),
    value("--model-size", "B", "such as 7B; left out: the model's", model_size),
    value("--framework-version", "V", "default: the one installed here, else the newest"),
)
_PYTHON = "python3"  # first word of the printed command, valid on any machine


def run(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    """Print the command; return 0, or 2 where the options contradict each other."""
    try:
        nodes = node_sizes(
            options.nodes, options.gpus, options.cpus, options.gpu_memory, options.host_memory
        )
    except argparse.ArgumentTypeError as error:
        print(f"pod-agent recipe: error: {error}", file=sys.stderr)
        return 2

    if options.model:
        environ = {**environ, "AGENT_MODEL": options.model}
    made, warning = recipe_command(
        environ, options.name, nodes, options.framework_version, options.model_size
    )
    if warning:
        made = replace(made, warnings=(warning, *made.warnings))
    for text in made.warnings:
        print(f"pod-agent: {text}", file=sys.stderr)
    text = command_json(made) if options.json else command_text(made)
    print(redactor_for(environ, None).clean(text))
    return 0


def node_sizes(
    count: int,
    gpus: Sequence[int],
    cpus: int | None,
    gpu_memory: int | None = None,
    host_memory: int | None = None,
) -> tuple[NodeSize, ...]:
    """Return the size of each node, memory in GB; a single number of GPUs applies to all."""
    gpus_of_each = [*gpus] * count if len(gpus) == 1 else gpus
    if not count or len(gpus_of_each) != count:
        raise argparse.ArgumentTypeError(f"--gpus names {len(gpus)} nodes, and --nodes {count}")
    memory = None if host_memory is None else host_memory * GIB
    return tuple(NodeSize(number, cpus, memory, gpu_memory) for number in gpus_of_each)


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

    # Variables that the recipe needs and that are not set get a placeholder.
    unset = {need: f"<{need}>" for need in known.needs if not environ.get(need, "").strip()}
    settings = load({**environ, **unset, "AGENT_JOB": name}).settings
    folder = checkpoint_folder(settings, None)
    if unset and settings.checkpoints is None:
        folder = "<AGENT_CHECKPOINTS>"  # the default depends on what is not set

    # Which version of the framework: the given one, or the one that is installed here?
    framework = Framework(known.framework, ".", version or "")
    package = recipe_of(known).FRAMEWORK.package
    if version is None and package is not None:
        framework = find_framework(package, python, ".")
    chosen, warning = version_of(known, framework)

    shape = model or read_shape(settings, environ)
    given = replace(
        recipe_input(known, settings, chosen, folder, _PYTHON, nodes),
        is_nearest=bool(warning),
        columns=columns_of(settings.train_data or "", python),
        basis=JobBasis(shape),
    )
    try:
        file = services_of(settings, None, shape)
        groups = place_groups(file.groups, len(nodes))
        training = nodes_that_train(nodes, groups)
        generation = generation_of(file.services)
        made = command_of(known, replace(given, nodes=training, generation=generation))
    except MisfitError as error:
        what = f"{known.name} does not fit"
        raise PreflightError(what, why=str(error), culprit="AGENT_JOB") from None
    if groups:
        split = "; ".join(group.sentence() for group in groups)
        made = replace(made, notes=(f"{split}; the others train", *made.notes))
    if known.launcher != "ray":
        note = f"after -- it wants AGENT_LAUNCHER={known.launcher}"
        made = replace(made, notes=(*made.notes, note))
    return made, f"{known.framework} {warning}" if warning else ""


def services_of(
    settings: Settings, command: tuple[str, ...] | None, model: ModelShape | None
) -> ServicesFile:
    """Return the file of AGENT_SERVICES with what the recipe brings; raises SettingsError."""
    brought = recipe_tables(settings, command, model)
    problems: list[Problem] = []
    file = read_services(settings, brought, problems)
    if problems:
        raise SettingsError(tuple(problems))
    return file


def nodes_that_train(
    nodes: tuple[NodeSize, ...], groups: tuple[NodeGroup, ...]
) -> tuple[NodeSize, ...]:
    """Return the nodes that are in no group; raise MisfitError if there are none."""
    left = len(nodes) - sum(group.nodes for group in groups)
    if left < 1:
        named = " and ".join(group.sentence() for group in groups)
        raise MisfitError(f"no node of {len(nodes)} trains ({named}): join more nodes")
    return nodes[:left]


def command_json(made: Command) -> str:
    """Return a command as JSON."""
    shown = {
        "argv": made.argv,
        "env": {**made.env},
        "why": {**made.why},
        "notes": made.notes,
        "warnings": made.warnings,
    }
    return json.dumps(shown, indent=2)


def command_text(made: Command) -> str:
    """Return a command, which can be pasted after `--`, and the reason for each argument."""
    lines = [" \\\n    ".join(shell_line(words) for words in split_lines(made.argv))]
    lines += [f"# in the environment: {name}={text}" for name, text in made.env.items()]
    lines += [f"# {key}: {reason}" for key, reason in made.why.items()]
    lines += [f"# {note}" for note in made.notes]
    return "\n".join(lines)


def split_lines(argv: tuple[str, ...]) -> list[list[str]]:
    """Split a command into lines: the program, then each argument."""
    lines: list[list[str]] = [[]]
    has_flags = any(word.startswith("--") for word in argv)
    for word in argv:
        if word.startswith("--") or ("=" in word and not has_flags):
            lines.append([])
        lines[-1].append(word)
    return lines
