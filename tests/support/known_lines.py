"""What is reported of a running job by the lines that it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.diagnosis.live_errors import LiveErrors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.decisions.shared import Known


def find_known_lines(lines: Iterable[str]) -> list[Known]:
    """Return what is reported of a job that prints these lines."""
    return LiveErrors().read(lines)
