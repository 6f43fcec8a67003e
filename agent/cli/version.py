"""`pod-agent --version`: the versions of the agent, of Python and of Ray."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from agent import __version__
from agent.node.read import find_ray

if TYPE_CHECKING:
    from collections.abc import Mapping


def print_versions(environ: Mapping[str, str]) -> None:
    """Print a line; Ray's Python is named where it is not the agent's."""
    ray = find_ray(environ.get("PATH"))
    where = "" if ray.executable == sys.executable else f" ({ray.executable})"
    ray_text = f"Ray {ray.version or 'not installed'}"
    print(f"pod-agent {__version__}, Python {ray.python}{where}, {ray_text}")
