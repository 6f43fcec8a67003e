"""What AGENT_SERVICES needs to have looked up: the file that it names, and the disks of markers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.errors import Problem
from agent.work.services_asked import NO_FILE

if TYPE_CHECKING:
    from agent.settings import Settings
    from agent.work.services_asked import ServicesFile


def read_services(settings: Settings, problems: list[Problem]) -> ServicesFile:
    """Return what the file of AGENT_SERVICES asks for; add what is wrong with it."""
    if settings.services is None:
        return NO_FILE
    from agent.work.services_file import parse  # noqa: PLC0415 - most runs have no such file

    try:
        text = Path(settings.services).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        wanted = "the path of a TOML file, there on every node"
        problems.append(Problem("AGENT_SERVICES", f"{settings.services!r} ({why})", wanted))
        return NO_FILE
    found, wrong = parse(text, settings.services, settings)
    problems += wrong
    return NO_FILE if wrong else found


def disks_of(file: ServicesFile) -> dict[str, str]:
    """Look where the markers of prepare steps lie: nodes that share a disk take turns."""
    markers = [step.once for step in file.steps if step.once is not None]
    if not markers:
        return {}
    from agent.node.disks import disk_of  # noqa: PLC0415 - most runs have no such step

    return {marker: disk_of(marker) for marker in markers}
