"""The preflight checks of a machine; each finding has a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks import job_needs, machine, network, package_pairs, ray
from agent.checks.finding import CheckedNode, Finding, Level
from agent.settings.jobs import runs_by_shares

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.checks.finding import Result
    from agent.node.facts import Facts
    from agent.platforms.resolve import Topology
    from agent.settings.model import Settings

NAMES = "names"
PORTS = "ports"
TEMP_DIR = "temp dir"
LOG_DIR = "AGENT_LOG_DIR"
OWN_NAME = "own name"

_OWN = "Ray of the agent"
_GIVEN = "Ray of the platform"
_SHARES = "a launcher on every node"


CHECKS: tuple[tuple[str, Callable[[CheckedNode], Result | None], tuple[str, ...]], ...] = (
    ("nodes", network.expected_nodes, (_OWN, _SHARES)),
    ("ray", ray.ray_installed, (_OWN, _GIVEN)),
    ("torch", ray.torch_installed, (_SHARES,)),
    ("packages", package_pairs.package_pairs, (_OWN, _GIVEN)),
    ("token", ray.token, (_OWN, _GIVEN, _SHARES)),
    ("addresses", ray.public_addresses, (_OWN, _GIVEN, _SHARES)),
    ("node address", ray.node_address, (_OWN, _GIVEN, _SHARES)),
    ("debugger", ray.debugger, (_OWN,)),
    ("open files", machine.open_files, (_OWN, _SHARES)),
    ("/dev/shm", machine.shared_memory, (_OWN, _SHARES)),
    ("{temp}", machine.disk, (_OWN, _SHARES)),
    (TEMP_DIR, machine.temp_dir, (_OWN,)),
    (LOG_DIR, machine.log_folder, (_OWN, _GIVEN, _SHARES)),
    ("cores", machine.cores, (_OWN,)),
    ("processes", machine.processes, (_OWN, _SHARES)),
    ("GPUs", machine.gpus, (_OWN, _SHARES)),
    ("visible GPUs", machine.visible_devices, (_OWN, _SHARES)),
    ("GPU health", machine.gpu_health, (_OWN, _SHARES)),
    ("interfaces", network.named_interfaces, (_OWN, _SHARES)),
    ("RDMA", network.rdma_devices, (_OWN, _SHARES)),
    ("proxies", network.proxies, (_OWN, _SHARES)),
    ("W&B key", job_needs.wandb_key, (_OWN, _GIVEN, _SHARES)),
    ("port range", network.ephemeral_ports, (_OWN,)),
    (PORTS, machine.free_ports, (_OWN, _GIVEN, _SHARES)),
    ("AGENT_PREFLIGHT", ray.torch_installed, (_OWN, _GIVEN)),
    ("AGENT_ON_STALL", job_needs.stall_action, (_OWN, _GIVEN, _SHARES)),
)
"""Every check, in the order of `pod-agent doctor -v`: name, function, what runs the job where it
applies. `{temp}` is the folder of Ray's sessions. To add a check, add a row and its function, which
returns None if there is nothing to check.
"""


def run_checks(
    facts: Facts, settings: Settings, topology: Topology, only: str | None = None
) -> tuple[Finding, ...]:
    """Run every check that applies to this node, or `only` the one of this name."""
    if topology.is_idle:
        return ()
    # What runs the job?
    kind = _OWN
    if runs_by_shares(settings):
        kind = _SHARES
    elif topology.given_ray is not None:
        kind = _GIVEN

    node = CheckedNode(facts, settings, topology)
    findings = []
    for name, check, applies_to in CHECKS:
        if kind not in applies_to or only not in {None, name}:
            continue
        result = check(node)
        if result is not None:
            level, what, remedy = result
            findings.append(Finding(name.format(temp=facts.temp), level, what, remedy))
    return tuple(findings)


def misspelling_findings(misspelled: tuple[str, ...]) -> tuple[Finding, ...]:
    """Warn of variables that are probably misspelled; another tool may use them."""
    remedy = "Correct it, unless it belongs to another tool"
    return tuple(Finding(NAMES, Level.WARN, sentence, remedy) for sentence in misspelled)
