"""The preflight checks of a machine; each finding has a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks import gpu, machine, network, ray, recipe
from agent.checks.finding import Finding, Level
from agent.settings.jobs import launcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.topology.resolve import Topology

    Check = Callable[[Facts, Settings, Topology], Finding]

__all__ = ["CHECKS", "NAMES", "Finding", "Level", "misspelling_findings", "run_checks"]

NAMES = "names"

CHECKS: tuple[Check, ...] = (
    ray.ray_installed,
    ray.plain_path,
    ray.ray_token,
    ray.ray_bind,
    ray.node_address,
    ray.debugger,
    machine.open_files,
    machine.shared_memory,
    machine.disk,
    machine.inodes,
    machine.temp_dir,
    machine.cores,
    machine.memory,
    machine.processes,
    machine.clock,
    machine.gpus,
    gpu.driver_access,
    machine.visible_devices,
    gpu.chosen_gpus,
    gpu.gpu_health,
    network.named_interfaces,
    network.proxies,
    network.leftovers,
    recipe.wandb_key,
    network.ephemeral_ports,
    machine.free_ports,
)


OWN_RAY_CHECKS = {
    machine.open_files,
    machine.shared_memory,
    machine.disk,
    machine.inodes,
    machine.temp_dir,
    machine.cores,
    machine.memory,
    machine.processes,
    machine.gpus,
    gpu.driver_access,
    machine.visible_devices,
    gpu.chosen_gpus,
    gpu.gpu_health,
    network.named_interfaces,
    network.ephemeral_ports,
    ray.debugger,
    ray.plain_path,
}
"""Checks that apply only where the agent starts Ray itself."""


TORCHRUN_REPLACEMENTS: dict[Check, Check] = {
    ray.ray_installed: ray.torch_installed,
    ray.ray_token: ray.torchrun_token,
    ray.ray_bind: ray.torchrun_bind,
}
"""Checks and what replaces them where torchrun starts the job, without Ray."""
RAY_ONLY_CHECKS = {
    *(ray.plain_path, ray.debugger, machine.temp_dir),
    *(machine.cores, network.ephemeral_ports, network.leftovers),
}
"""Checks that do not apply where torchrun starts the job."""


def run_checks(facts: Facts, settings: Settings, topology: Topology) -> tuple[Finding, ...]:
    """Run every check that applies to this node."""
    if topology.is_idle:
        return ()
    skipped = OWN_RAY_CHECKS if topology.given_ray is not None else set()
    if launcher(settings, None) == "torchrun":
        checks = [
            TORCHRUN_REPLACEMENTS.get(check, check)
            for check in CHECKS
            if check not in RAY_ONLY_CHECKS
        ]
        return tuple(check(facts, settings, topology) for check in checks)
    preflight = () if settings.preflight is None else (ray.preflight_torch,)
    wanted = [check for check in CHECKS if check not in skipped]
    return tuple(check(facts, settings, topology) for check in (*wanted, *preflight))


def misspelling_findings(misspelled: tuple[str, ...]) -> tuple[Finding, ...]:
    """Warn of variables that are probably misspelled; another tool may use them."""
    remedy = "Correct it, unless it belongs to another tool"
    return tuple(Finding(NAMES, Level.WARN, sentence, remedy) for sentence in misspelled)
