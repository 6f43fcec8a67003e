"""Whether a job fits the nodes of its start file, and which of them are in groups."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.errors import PreflightError
from agent.base.text import parse_toml
from agent.base.versions import version_text
from agent.cli.recipe_verb import node_sizes, recipe_command, services_of
from agent.cli.start_files.request import Folders, Request, job_variables
from agent.cli.start_files.runpod_gpus import gpus_named
from agent.frameworks import recipe_of
from agent.job.groups import place_groups
from agent.job.services import FRONTED
from agent.settings import load
from agent.settings.jobs import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agent.job.groups import NodeGroup

_FOLDERS = Folders("/data", "/code", "/checkpoints")
_USUAL_MEMORY = 80  # GB of a GPU, where nothing says more
_OF_THIS_MACHINE = ("PATH", "HOME", "HF_HOME", "HF_HUB_CACHE")  # Where a config.json may be
_PINNED = re.compile(r"==(\d[\w.]*)")
_REMEDY = (
    "If they have more memory, add --gpu-memory GB (of each GPU) and --host-memory GB (of a node)"
)
_GIGABYTES = re.compile(r"(\d{1,6})\s{0,4}GB", re.IGNORECASE)


def recipe_warnings(
    request: Request,
    environ: Mapping[str, str],
    services: Path | None,
    gpu_memory: int | None,
    host_memory: int | None,
) -> tuple[str, ...]:
    """Return what `recipe` warns of for these nodes; raises its refusal.

    `services` is the user's own file; `gpu_memory` and `host_memory` are what the user says, in GB.
    """
    if request.command or request.is_rehearsal:
        return ()
    memory = gpu_memory or memory_of(request.gpu_type) or _USUAL_MEMORY
    nodes = node_sizes(request.nodes, [request.gpus], None, memory, host_memory)
    here = {name: environ[name] for name in _OF_THIS_MACHINE if name in environ}
    variables = {**_variables(request, services), **here}
    try:
        made, _ = recipe_command(variables, request.job, nodes, version_of_file(request))
    except PreflightError as refusal:
        is_of_memory = _GIGABYTES.search(refusal.sentence()) is not None
        if is_of_memory and (gpu_memory is None or host_memory is None):
            refusal.remedy = _REMEDY
        raise
    return made.warnings


def with_groups(request: Request, services: Path | None) -> Request:
    """Return a request with the user's own file of services, and the groups of nodes.

    Raises SettingsError for a file that a node would refuse, ValueError if no node would train.
    """
    settings = load(_variables(request, services), request.command or None).settings
    file = services_of(settings, request.command or None, None)
    groups = place_groups(file.groups, request.nodes)
    text = services.read_text(encoding="utf-8") if services is not None else ""
    request = replace(
        request,
        services=_with_division(text, groups),
        groups=groups,
        shares_weights=any(spec.weights in FRONTED for spec in file.services),
    )
    trainers = request.parts[0][1]
    if trainers < 1:
        listed = " and ".join(f"{group.nodes} of {group.name}" for group in request.groups)
        raise ValueError(f"--nodes {request.nodes}: no node trains beside {listed}")
    return request


def _with_division(text: str, groups: Iterable[NodeGroup]) -> str:
    """Return a file of services with how many nodes the recipe's groups have.

    The platform is asked for so many, whatever model and arguments are set later.
    """
    own = parse_toml(text).get("groups", {})
    for group in groups:
        if group.part is None or "nodes" in own.get(group.name, {}):
            continue
        if group.name in own:
            raise ValueError(f"[groups.{group.name}] lacks nodes = {group.nodes}, or as you like")
        why = "# How many nodes generate: the recipe's estimate"
        table = f"{why}\n[groups.{group.name}]\nnodes = {group.nodes}\n"
        text = f"{text.rstrip()}\n\n{table}" if text else table
    return text


def _variables(request: Request, services: Path | None) -> dict[str, str]:
    """Return the job's variables as they are read here."""
    variables = job_variables(request, _FOLDERS, restarted=False)
    if services is not None:
        variables["AGENT_SERVICES"] = str(services)
    return variables


def memory_of(gpu_type: str) -> int | None:
    """Return the GB of a kind of GPU: those in its name, else the least that the name may mean."""
    named = _GIGABYTES.search(gpu_type)
    if named:
        return int(named[1])
    known = [gpu.memory for gpu in gpus_named(gpu_type) if gpu.memory] if gpu_type else []
    return min(known, default=None)


def version_of_file(request: Request) -> str:
    """Return the version that the file clones or installs, else the newest that is known."""
    preset = request.preset
    if not request.image:
        pinned = [match[1] for line in preset.install for match in _PINNED.finditer(line)]
        if preset.checkout is not None:
            pinned = [preset.checkout.tag.removeprefix("v")]
        if pinned:
            return pinned[-1]
    versions = recipe_of(BY_NAME[request.job]).VERSIONS
    return version_text(versions[-1]) if versions else ""
