"""Where a job's folder for checkpoints is: every run asks, few look into it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.settings import Settings


def folder_of(settings: Settings, log_dir: str, name: str, command: tuple[str, ...] | None) -> str:
    """Return the absolute folder for a job's checkpoints; `log_dir` is absolute, too.

    Another model, or other data, has another folder: what lies there is never mistaken for it.
    """
    if settings.checkpoints is not None:
        return settings.checkpoints
    what = [settings.model, settings.train_data] if command is None else list(command)
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]
    return f"{log_dir}/checkpoints/{name}-{digest}"
