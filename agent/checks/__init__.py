"""Preflight: whether this machine can do what was asked, each answer with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks import (
    gpu_checks,
    limit_checks,
    machine_checks,
    network_checks,
    ray_checks,
    torch_checks,
    wandb_checks,
)
from agent.checks.finding import Finding, Level
from agent.settings.jobs import launcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.resolve import Topology

    Check = Callable[[Facts, Settings, Topology], Finding]

__all__ = ["CHECKS", "NAMES", "Finding", "Level", "about_names", "examine"]

NAMES = "names"

CHECKS: tuple[Check, ...] = (
    ray_checks.ray_installed,
    ray_checks.plain_path,
    ray_checks.token,
    ray_checks.private_bind,
    ray_checks.node_address,
    ray_checks.debugger,
    machine_checks.open_files,
    machine_checks.shared_memory,
    machine_checks.disk,
    limit_checks.inodes,
    machine_checks.temp_dir,
    limit_checks.cores,
    limit_checks.memory,
    limit_checks.processes,
    limit_checks.clock,
    machine_checks.gpus,
    gpu_checks.driver_lets_in,
    machine_checks.visible_devices,
    gpu_checks.chosen_gpus,
    gpu_checks.driver_knows_them,
    network_checks.named_interfaces,
    network_checks.proxies,
    network_checks.leftovers,
    wandb_checks.key_shape,
    network_checks.given_away_ports,
    machine_checks.free_ports,
)


OF_OUR_RAY = {
    machine_checks.open_files,
    machine_checks.shared_memory,
    machine_checks.disk,
    limit_checks.inodes,
    machine_checks.temp_dir,
    limit_checks.cores,
    limit_checks.memory,
    limit_checks.processes,
    machine_checks.gpus,
    gpu_checks.driver_lets_in,
    machine_checks.visible_devices,
    gpu_checks.chosen_gpus,
    gpu_checks.driver_knows_them,
    network_checks.named_interfaces,
    network_checks.given_away_ports,
    ray_checks.debugger,
    ray_checks.plain_path,
}
"""Checks of what only a Ray that is started here needs of its machine."""


BY_TORCHRUN: dict[Check, Check] = {
    ray_checks.ray_installed: torch_checks.torch_installed,
    ray_checks.token: torch_checks.token,
    ray_checks.private_bind: torch_checks.private_bind,
}
"""What is checked instead, where torchrun starts the job and no Ray runs."""
OF_RAY_ALONE = {
    *(ray_checks.plain_path, ray_checks.debugger, machine_checks.temp_dir),
    *(limit_checks.cores, network_checks.given_away_ports, network_checks.leftovers),
}


def examine(facts: Facts, settings: Settings, topology: Topology) -> tuple[Finding, ...]:
    """Run every check that means something on this node."""
    if topology.is_idle:
        return ()
    skipped = OF_OUR_RAY if topology.given_ray is not None else set()
    if launcher(settings, None) == "torchrun":
        checks = [BY_TORCHRUN.get(check, check) for check in CHECKS if check not in OF_RAY_ALONE]
        return tuple(check(facts, settings, topology) for check in checks)
    preflight = () if settings.preflight is None else (torch_checks.for_preflight,)
    wanted = [check for check in CHECKS if check not in skipped]
    return tuple(check(facts, settings, topology) for check in (*wanted, *preflight))


def about_names(slips: tuple[str, ...]) -> tuple[Finding, ...]:
    """Warn of variables whose names are nearly ours: other tools may own them."""
    remedy = "Correct it, unless it belongs to another tool"
    return tuple(Finding(NAMES, Level.WARN, slip, remedy) for slip in slips)
