"""The checkpoint folder of a job: where it is, and which job may resume from it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import field

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.settings.model import Settings


def folder_of(settings: Settings, log_dir: str, name: str, command: tuple[str, ...] | None) -> str:
    """Return the absolute folder for a job's checkpoints; it depends on model and data."""
    if settings.checkpoints is not None:
        return settings.checkpoints
    what = [settings.model, settings.train_data] if command is None else list(command)
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]
    return f"{log_dir}/checkpoints/{name}-{digest}"


CHECKPOINT_FILE = "pod-agent.json"
"""The file in the folder that describes the job of its checkpoints."""
TRACKER = "latest_checkpointed_iteration.txt"
"""verl's file with the step of its last complete checkpoint; without it verl starts at 0."""

LAST_FILES = {"trl": "trainer_state.json"}
"""The file that a framework writes last into a checkpoint, where that is known."""

_STEP = re.compile(r"(?:global_step_?|checkpoint-)(\d{1,12})")
_CANNOT_RESUME = {"search-r1"}
_CANNOT_RESHARD = {"verl", "openrlhf", "openrlhf-m"}
"""verl names shards by world size; DeepSpeed's ZeRO refuses another world size."""


class CheckpointOwner(Value):
    """The job that a folder's checkpoints belong to."""

    recipe: str
    framework: str
    version: str
    model: str
    world_size: int
    tensor_parallel: int
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings on which the format of its checkpoints depends, by name."""


class FolderContents(Value):
    """The contents of a checkpoint folder."""

    owner: CheckpointOwner | None = None
    fault: str = ""  # Why the owner file cannot be read, or ''
    newest: str = ""  # The path of the newest checkpoint in the folder
    tracked: str = ""  # The step from which verl resumes


def why_unusable(found: FolderContents, own_job: CheckpointOwner) -> str:
    """Return why a job must not use a folder, or ''; starting over would overwrite it."""
    if found.fault:
        return f"its {CHECKPOINT_FILE} cannot be read: {found.fault}"
    if found.owner is None:
        return why_untracked(found, own_job.framework)
    for what in ("recipe", "framework", "model"):
        other = getattr(found.owner, what)
        own = getattr(own_job, what)
        if other != own:
            return f"it is another {what}'s: {other}, not {own}"
    return ""


def kept_settings(found: FolderContents, framework: str) -> Mapping[str, str]:
    """Return the settings that a job which resumes from the folder has to keep."""
    if found.owner is None or not resumes_from(found, framework):
        return {}
    return found.owner.settings


def why_untracked(found: FolderContents, framework: str) -> str:
    """Return which checkpoint verl would ignore, or ''.

    In a folder of the same job that is an unfinished first checkpoint, or one whose tracker file is
    on another node.
    """
    if framework != "verl" or not found.newest or found.tracked:
        return ""
    return f"it contains {found.newest} but no {TRACKER}: without it verl begins at step 0"


def why_not_resumable(found: FolderContents, own_job: CheckpointOwner) -> str:
    """Return why a job of this size, or with these settings, cannot resume from a folder, or ''."""
    owner = found.owner
    if owner is None or not found.newest:
        return ""
    resharded = owner.world_size != own_job.world_size
    if resharded and own_job.framework in _CANNOT_RESHARD:
        return (
            f"{found.newest} was written by {owner.world_size} processes, and "
            f"{own_job.framework} cannot resume from it with {own_job.world_size}"
        )
    # A recipe keeps these settings: others are from the user's arguments, or do not fit the nodes.
    kept = kept_settings(found, own_job.framework)
    own = own_job.settings
    differing = [
        f"{name} {value}, and this run has {own.get(name, 'none')}"
        for name, value in kept.items()
        if own.get(name) != value
    ]
    return f"{found.newest} was written with {'; '.join(differing)}" if differing else ""


def resumes_from(found: FolderContents, framework: str) -> str:
    """Return the path in the folder of the checkpoint that a job resumes from, or ''."""
    if framework in _CANNOT_RESUME:
        return ""
    if framework == "verl":
        return f"global_step_{found.tracked}" if found.tracked else ""
    return found.newest


def step_of(path: str) -> int | None:
    """Return the step of a checkpoint, or None."""
    match = _STEP.fullmatch(path.rpartition("/")[2])
    return None if match is None else int(match[1])


def latest(paths: Iterable[str]) -> str:
    """Return the newest checkpoint among these paths, or ''."""
    steps = {path: step for path in paths if (step := step_of(path)) is not None}
    return max(steps, key=steps.__getitem__, default="")
