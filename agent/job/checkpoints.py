"""The checkpoint folder of a job: where it is, and which job may resume from it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from msgspec import field

from agent.base.value import Value
from agent.frameworks import all_frameworks, framework_named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.settings.model import Settings


def folder_of(settings: Settings, log_dir: str, name: str, command: tuple[str, ...] | None) -> str:
    """Return the absolute folder for a job's checkpoints; it depends on model and data."""
    if settings.checkpoints is not None:
        return settings.checkpoints
    what = [settings.model, settings.train_data]
    if command is not None:
        what = list(command)
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]
    return f"{log_dir}/checkpoints/{name}-{digest}"


CHECKPOINT_FILE = "pod-agent.json"
"""The file in the folder that describes the job of its checkpoints."""


def last_file(framework: str) -> str:
    """Return the file that a framework writes last into a checkpoint, or '' if not known."""
    return framework_named(framework).checkpoints.last_file


@cache
def last_files() -> tuple[tuple[str, str], ...]:
    """Return what frameworks write last into a checkpoint, with the beginning of its name."""
    formats = [framework.checkpoints for framework in all_frameworks()]
    return tuple((known.prefix, known.last_file) for known in formats if known.last_file)


@cache
def tracker_files() -> tuple[str, ...]:
    """Return the files in which frameworks note the step of the last complete checkpoint."""
    trackers = [framework.checkpoints.tracker for framework in all_frameworks()]
    return tuple(filter(None, trackers))


@cache
def _step_name() -> re.Pattern[str]:
    """Return what the paths of all frameworks' checkpoints match: a command may use any."""
    prefixes = [framework.checkpoints.prefix for framework in all_frameworks()]
    names = "|".join(re.escape(prefix) for prefix in prefixes if prefix)
    return re.compile(rf"(?:.*/)?(?:{names})(\d{{1,12}})")


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
    marked_whole: str = ""  # The newest one that has the file which its framework writes last
    tracked: str = ""  # The step in a tracker file


def why_unusable(contents: FolderContents, own_job: CheckpointOwner) -> str:
    """Return why a job must not use a folder, or ''; starting over would overwrite it."""
    if contents.fault:
        return f"its {CHECKPOINT_FILE} cannot be read: {contents.fault}"
    if contents.owner is None:
        return why_untracked(contents, own_job.framework)
    for what in ("recipe", "framework", "model"):
        other = normalized_path(getattr(contents.owner, what))
        own = normalized_path(getattr(own_job, what))
        if other != own:
            return f"it is another {what}'s: {other}, not {own}"
    return ""


def normalized_path(name: str) -> str:
    """Return an absolute path without doubled parts; a name that is none stays as it is."""
    return os.path.normpath(name) if name.startswith("/") else name


def kept_settings(contents: FolderContents, framework: str) -> Mapping[str, str]:
    """Return the settings that a job which resumes from the folder has to keep."""
    if contents.owner is None or not resumes_from(contents, framework):
        return {}
    return contents.owner.settings


def why_untracked(contents: FolderContents, framework: str) -> str:
    """Return which checkpoint a framework with a tracker file would ignore, or ''.

    In a folder of the same job that is an unfinished first checkpoint, or one whose tracker file is
    on another node.
    """
    tracker = framework_named(framework).checkpoints.tracker
    if not tracker or not contents.newest or contents.tracked:
        return ""
    without = f"without it {framework} begins at step 0"
    return f"it contains {contents.newest} but no {tracker}: {without}"


def why_not_resumable(contents: FolderContents, own_job: CheckpointOwner) -> str:
    """Return why a job of this size, or with these settings, cannot resume from a folder, or ''."""
    owner = contents.owner
    if owner is None or not contents.newest:
        return ""

    # Another number of processes?
    resharded = owner.world_size != own_job.world_size
    if resharded and not framework_named(own_job.framework).checkpoints.can_reshard:
        return (
            f"{contents.newest} was written by {owner.world_size} processes, and "
            f"{own_job.framework} cannot resume from it with {own_job.world_size}"
        )

    # Other settings? A recipe keeps those of its checkpoints: others are from the user's
    # arguments, or do not fit the nodes.
    kept = kept_settings(contents, own_job.framework)
    own = own_job.settings
    differing = [
        f"{name} {value}, and this run has {own.get(name, 'none')}"
        for name, value in kept.items()
        if own.get(name) != value
    ]
    if not differing:
        return ""
    return f"{contents.newest} was written with {'; '.join(differing)}"


def resumes_from(contents: FolderContents, framework: str) -> str:
    """Return the path in the folder of the checkpoint that a job resumes from, or ''."""
    checkpoints = framework_named(framework).checkpoints
    if not checkpoints.can_resume:
        return ""
    if checkpoints.last_file:
        return contents.marked_whole
    if not checkpoints.tracker:
        return contents.newest
    if not contents.tracked:
        return ""
    return f"{checkpoints.prefix}{contents.tracked.zfill(checkpoints.digits)}"


def newest_complete(contents: FolderContents, framework: str) -> str:
    """Return the path in the folder of the newest checkpoint that is not a part of one, or ''.

    Where nothing marks the end of a save, the newest one is taken for complete.
    """
    if framework and framework_named(framework).checkpoints.can_resume:
        return resumes_from(contents, framework)
    return contents.marked_whole or contents.newest


def step_of(path: str) -> int | None:
    """Return the step of a checkpoint, or None."""
    match = _step_name().fullmatch(path)
    return None if match is None else int(match[1])


def latest(paths: Iterable[str]) -> str:
    """Return the newest checkpoint among these paths, or ''."""
    steps = {path: step_of(path) for path in paths}
    numbered = {path: step for path, step in steps.items() if step is not None}
    return max(numbered, key=numbered.__getitem__, default="")
