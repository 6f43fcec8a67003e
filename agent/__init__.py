"""pod-agent: one entrypoint that turns N rented pods into one running RL training job."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"


def load(function: str) -> Any:  # noqa: ANN401 - a function of any module
    """Import the function `module:function` of this package.

    A verb loads its own modules only: the CPU is busy while Ray starts.
    """
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(f"agent.{module}"), name)
