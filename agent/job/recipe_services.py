"""The groups and services that a recipe brings: its part of the file of AGENT_SERVICES.

A framework's file has the tables of AGENT_SERVICES. In its texts `{model}` is what a program takes
for AGENT_MODEL, `{tensor_parallel}` the GPUs of an engine, `{part}` the part of the nodes that is
proposed for generating. The file of AGENT_SERVICES, where there
is one, replaces them key by key: `[groups.rollout] nodes = 3` alone changes the split.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agent.frameworks
from agent.base.text import parse_toml
from agent.frameworks import recipe_of
from agent.frameworks.division import division_for
from agent.frameworks.sizing import least_engine
from agent.job.services import model_words
from agent.settings.jobs import recipe_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.frameworks.recipe import ModelShape
    from agent.job.services import ServiceSpec
    from agent.settings.model import Settings

GENERATION = "generation"
"""The service of a group that generates for a recipe which takes one server, as TRL's does."""
_FOLDER = Path(agent.frameworks.__file__).parent


def recipe_tables(
    settings: Settings, command: tuple[str, ...] | None, model: ModelShape | None
) -> dict[str, Any]:
    """Return the tables that the job's recipe brings, filled in; {} for most."""
    known = recipe_info(settings, command)
    if known is None or not recipe_of(known).FRAMEWORK.services:
        return {}
    framework = recipe_of(known).FRAMEWORK
    name = settings.model or ""
    division = division_for(framework, settings.job_args, name, settings.tensor_parallel)
    values = {
        "{model}": shlex.join(model_words(settings)),
        "{tensor_parallel}": str(settings.tensor_parallel or least_engine(model)),
        "{part}": str(division.part),
    }
    tables: dict[str, Any] = _filled(
        parse_toml((_FOLDER / framework.services).read_text("utf-8")), values
    )
    return tables


def generation_of(services: Iterable[ServiceSpec]) -> str:
    """Return the address of the service `generation`, if it has a group of nodes, or ''."""
    in_groups = {spec.name for spec in services if spec.where.kind == "group"}
    return f"{{addresses:{GENERATION}|url}}" if GENERATION in in_groups else ""


def _filled(value: Any, values: Mapping[str, str]) -> Any:  # noqa: ANN401 - any TOML
    """Return a value of TOML with its texts filled in; one that is then a number becomes that."""
    if isinstance(value, dict):
        return {key: _filled(one, values) for key, one in value.items()}
    if not isinstance(value, str):
        return value
    filled = value
    for name, text in values.items():
        filled = filled.replace(name, text)
    is_number = filled != value and filled.isdecimal()
    return int(filled) if is_number else filled
