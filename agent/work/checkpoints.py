"""A job's folder for checkpoints: where it is, and what may go on from what lies in it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable


FILE = "pod-agent.json"
"""Says, in the folder, whose checkpoints they are."""
TRACKER = "latest_checkpointed_iteration.txt"
"""Where verl keeps the number of its last whole checkpoint: without it, it begins anew."""

REMEDY = "Name another folder in AGENT_CHECKPOINTS, or move that one away to begin anew"
_STEP = re.compile(r"(?:global_step_?|checkpoint-)(\d{1,12})")
_CANNOT_RESUME = {"search-r1"}
_CANNOT_RESHARD = {"verl", "openrlhf", "openrlhf-m"}
"""verl names its shards by the world's size; DeepSpeed's ZeRO refuses another."""


@dataclass(frozen=True)
class Mark:
    """Whose checkpoints a folder holds."""

    recipe: str
    framework: str
    version: str
    model: str
    world_size: int
    tensor_parallel: int

    def text(self) -> str:
        """Return what the file holds."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, text: str) -> Mark:
        """Read what `text` wrote; raises ValueError where it is not that."""
        data = json.loads(text)
        names = cls.__dataclass_fields__
        if not isinstance(data, dict) or not names.keys() <= data.keys():
            raise ValueError("it lacks what the agent writes there")
        found = cls(**{name: data[name] for name in names})
        if any(type(getattr(found, n)) is not int for n in ("world_size", "tensor_parallel")):
            raise ValueError("a size in it is no number")
        return found


@dataclass(frozen=True)
class Held:
    """What a folder holds."""

    mark: Mark | None = None
    fault: str = ""
    """Why its mark cannot be read, where it has one."""
    newest: str = ""
    """The newest checkpoint, by its path in the folder."""
    tracked: str = ""
    """The number of the one that verl would go on from."""


def why_not(held: Held, ours: Mark) -> str:
    """Say why a job must not use a folder, whatever joins; '' where it may.

    To begin anew in it would be to lose what is there, unasked.
    """
    if held.fault:
        return f"its {FILE} cannot be read: {held.fault}"
    if held.mark is None:
        return untracked(held, ours.framework)
    for what in ("recipe", "framework", "model"):
        theirs, own = getattr(held.mark, what), getattr(ours, what)
        if theirs != own:
            return f"it is another {what}'s: {theirs}, not {own}"
    return ""


def untracked(held: Held, framework: str) -> str:
    """Say what verl would overlook in a folder; '' where nothing is.

    In a folder of the job's own that is a first checkpoint which was never finished, or one whose
    note lies on another node.
    """
    if framework != "verl" or not held.newest or held.tracked:
        return ""
    return f"it holds {held.newest} but no {TRACKER}: without that verl begins at step 0"


def why_not_resized(held: Held, ours: Mark) -> str:
    """Say why a job of this size cannot go on from what a folder holds; '' where it can."""
    mark = held.mark
    if mark is None or not held.newest or ours.framework not in _CANNOT_RESHARD:
        return ""
    if mark.world_size == ours.world_size:
        return ""
    return (
        f"{held.newest} was written by {mark.world_size} processes, and {ours.framework} cannot "
        f"go on from it with {ours.world_size}"
    )


def resumes_from(held: Held, framework: str) -> str:
    """Return the checkpoint that a job will go on from, by its path in the folder; '' for none."""
    if framework in _CANNOT_RESUME:
        return ""
    if framework == "verl":
        return f"global_step_{held.tracked}" if held.tracked else ""
    return held.newest


def is_step(name: str) -> bool:
    """Say whether a folder's name is that of a checkpoint."""
    return _STEP.fullmatch(name) is not None


def step_of(path: str) -> int | None:
    """Return the number of the step that a checkpoint was saved at; None where it has none."""
    match = _STEP.fullmatch(path.rpartition("/")[2])
    return None if match is None else int(match[1])


def latest(paths: Iterable[str]) -> str:
    """Return the newest of the checkpoints among some paths; '' where there is none."""
    steps: dict[str, int] = {}
    for path in paths:
        match = _STEP.fullmatch(path.rpartition("/")[2])
        if match is not None:
            steps[path] = int(match[1])
    return max(steps, key=lambda path: steps[path], default="")
