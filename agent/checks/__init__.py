"""The preflight checks of a machine; each finding has a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.checks import machine, network, ray, recipe
from agent.checks.finding import CheckedNode, Finding, Level
from agent.settings.jobs import TORCHRUN, launcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.checks.finding import Result
    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.topology.resolve import Topology

NAMES = "names"
PORTS = "ports"
TEMP_DIR = "temp dir"

_OWN, _GIVEN, _TORCHRUN = "Ray of the agent", "Ray of the platform", "torchrun"


class Check(NamedTuple):
    """A row of the table of checks."""

    name: str
    """`{temp}` stands for the folder that contains Ray's sessions."""
    run: Callable[[CheckedNode], Result | None]
    """The check; None means that there is nothing to check."""
    applies_to: tuple[str, ...]
    """What runs the job on the nodes that it applies to."""


CHECKS: tuple[Check, ...] = (
    Check("nodes", network.expected_nodes, (_OWN, _TORCHRUN)),
    Check("ray", ray.ray_installed, (_OWN, _GIVEN)),
    Check("torch", ray.torch_installed, (_TORCHRUN,)),
    Check("ray's path", ray.plain_path, (_OWN,)),
    Check("token", ray.ray_token, (_OWN, _GIVEN)),
    Check("token", ray.torchrun_token, (_TORCHRUN,)),
    Check("addresses", ray.ray_bind, (_OWN, _GIVEN)),
    Check("addresses", ray.torchrun_bind, (_TORCHRUN,)),
    Check("node address", ray.node_address, (_OWN, _GIVEN, _TORCHRUN)),
    Check("debugger", ray.debugger, (_OWN,)),
    Check("open files", machine.open_files, (_OWN, _TORCHRUN)),
    Check("/dev/shm", machine.shared_memory, (_OWN, _TORCHRUN)),
    Check("{temp}", machine.disk, (_OWN, _TORCHRUN)),
    Check(TEMP_DIR, machine.temp_dir, (_OWN,)),
    Check("cores", machine.cores, (_OWN,)),
    Check("processes", machine.processes, (_OWN, _TORCHRUN)),
    Check("GPUs", machine.gpus, (_OWN, _TORCHRUN)),
    Check("GPU driver", machine.driver_access, (_OWN, _TORCHRUN)),
    Check("visible GPUs", machine.visible_devices, (_OWN, _TORCHRUN)),
    Check("chosen GPUs", machine.chosen_gpus, (_OWN, _TORCHRUN)),
    Check("GPU health", machine.gpu_health, (_OWN, _TORCHRUN)),
    Check("interfaces", network.named_interfaces, (_OWN, _TORCHRUN)),
    Check("RDMA", network.rdma_devices, (_OWN, _TORCHRUN)),
    Check("proxies", network.proxies, (_OWN, _GIVEN, _TORCHRUN)),
    Check("leftovers", network.leftovers, (_OWN, _GIVEN)),
    Check("W&B key", recipe.wandb_key, (_OWN, _GIVEN, _TORCHRUN)),
    Check("port range", network.ephemeral_ports, (_OWN,)),
    Check(PORTS, machine.free_ports, (_OWN, _GIVEN, _TORCHRUN)),
    Check("AGENT_PREFLIGHT", ray.preflight_torch, (_OWN, _GIVEN)),
)
"""Every check, in the order of `pod-agent doctor -v`. To add one, add a row and its function."""


def run_checks(
    facts: Facts, settings: Settings, topology: Topology, only: str | None = None
) -> tuple[Finding, ...]:
    """Run every check that applies to this node, or `only` the one of this name."""
    if topology.is_idle:
        return ()
    by_torchrun = launcher(settings, None) == TORCHRUN
    kind = _TORCHRUN if by_torchrun else _OWN if topology.given_ray is None else _GIVEN
    node = CheckedNode(facts, settings, topology)
    chosen = [row for row in CHECKS if kind in row.applies_to and only in {None, row.name}]
    results = [(row.name.format(temp=facts.temp), row.run(node)) for row in chosen]
    return tuple(Finding(name, *result) for name, result in results if result is not None)


def misspelling_findings(misspelled: tuple[str, ...]) -> tuple[Finding, ...]:
    """Warn of variables that are probably misspelled; another tool may use them."""
    remedy = "Correct it, unless it belongs to another tool"
    return tuple(Finding(NAMES, Level.WARN, sentence, remedy) for sentence in misspelled)
