"""Preflight: whether this machine can do what was asked, each answer with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks import machine_checks, ray_checks
from agent.checks.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.resolve import Topology

__all__ = ["CHECKS", "NAMES", "Finding", "Level", "about_names", "examine"]

NAMES = "names"

CHECKS: tuple[Callable[[Facts, Settings, Topology], Finding], ...] = (
    ray_checks.ray_installed,
    ray_checks.plain_path,
    ray_checks.token,
    ray_checks.private_bind,
    ray_checks.node_address,
    ray_checks.debugger,
    machine_checks.open_files,
    machine_checks.shared_memory,
    machine_checks.disk,
    machine_checks.temp_dir,
    machine_checks.gpus,
    machine_checks.free_ports,
)


OF_OUR_RAY = {
    machine_checks.open_files,
    machine_checks.shared_memory,
    machine_checks.disk,
    machine_checks.temp_dir,
    machine_checks.gpus,
    ray_checks.debugger,
    ray_checks.plain_path,
}
"""Checks of what only a Ray that is started here needs of its machine."""


def examine(facts: Facts, settings: Settings, topology: Topology) -> tuple[Finding, ...]:
    """Run every check that means something on this node."""
    if topology.is_idle:
        return ()
    skipped = OF_OUR_RAY if topology.given_ray is not None else set()
    return tuple(check(facts, settings, topology) for check in CHECKS if check not in skipped)


def about_names(slips: tuple[str, ...]) -> tuple[Finding, ...]:
    """Warn of variables whose names are nearly ours: other tools may own them."""
    remedy = "Correct it, unless it belongs to another tool"
    return tuple(Finding(NAMES, Level.WARN, slip, remedy) for slip in slips)
