"""The model of a job: fetched once on each node, where it is an id on the hub."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from agent.base.own_command import own_command
from agent.work.prepare import MODEL, PREPARE_EACH, PrepareStep
from agent.work.where import ON_EVERY

if TYPE_CHECKING:
    from agent.node.facts import RayPython
    from agent.settings import Settings

NAME = MODEL
_HUB_ID = re.compile(r"\w[\w.-]{0,95}(?:/\w[\w.-]{0,95})?", re.ASCII)


def is_hub_id(model: str) -> bool:
    """Say whether a model may be an id on the hub, such as `org/name`; a path is none."""
    return _HUB_ID.fullmatch(model) is not None


def fetch_steps(settings: Settings, ray: RayPython, *, is_here: bool) -> tuple[PrepareStep, ...]:
    """Return the step that fetches the model; none where there is nothing to fetch, or no means.

    A relative path reads like an id: one that is here is taken for the path, as the frameworks do.
    """
    model = settings.model
    if model is None or is_here or not is_hub_id(model) or ray.hub is None:
        return ()
    command = shlex.join(own_command(ray.executable, "fetch-model", model))
    within, variable = settings.wait_prepare, "AGENT_WAIT_PREPARE"
    return (PrepareStep(NAME, command, ON_EVERY, within, variable, after=(PREPARE_EACH,)),)


def note(settings: Settings, ray: RayPython, *, is_here: bool) -> str:
    """Say that each process will fetch the model for itself, where nothing here can; '' else."""
    model = settings.model
    if model is None or is_here or not is_hub_id(model) or ray.hub is not None:
        return ""
    return (
        f"AGENT_MODEL={model} is fetched by each process that wants it: huggingface_hub, which "
        f"would fetch it once a node, is not installed for {ray.executable}"
    )
