"""What AGENT_RAY_ARGS asks, weighed against this machine: its Ray's flags, and its disks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.errors import Problem
from agent.base.own_command import is_special_to_a_shell
from agent.settings import ray_args

if TYPE_CHECKING:
    from agent.node.facts import RayPython
    from agent.settings import Settings

_USUAL = "/tmp"


def unknown_flags(settings: Settings, ray: RayPython) -> list[Problem]:
    """Name the flags that this Ray's `ray start` would refuse after a while, with its reason."""
    if not settings.ray_args or ray.version is None:
        return []
    from agent.node.ray_flags import start_flags  # noqa: PLC0415 - most runs give no flags

    known = start_flags(ray.folder)
    return [] if known is None else list(ray_args.unknown(settings.ray_args, known, ray.version))


def temp_root(settings: Settings) -> tuple[str, list[Problem]]:
    """Return the folder below which Ray keeps its sessions, and what is wrong with it."""
    asked = ray_args.value_of(settings.ray_args, ray_args.TEMP_DIR)
    if asked is None:
        return _USUAL, []
    given = f"{ray_args.TEMP_DIR}={asked}"
    if not Path(asked).is_dir():
        expected = "a folder that is there: mount its disk, or make it"
        return _USUAL, [Problem(ray_args.VARIABLE, f"{given}, which is no folder here", expected)]
    if is_special_to_a_shell(asked):
        expected = "a path of letters, digits, dots, dashes and underscores (a shell reads it)"
        return asked, [Problem(ray_args.VARIABLE, given, expected)]
    return asked, []
