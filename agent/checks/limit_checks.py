"""Checks of what this container may use: cores, memory, processes, files; and of its clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks.finding import Finding, Level
from agent.node.facts import MIB

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.resolve import Topology

_LEAST_MEMORY = 4096 * MIB
"""A node of Ray takes about 2 GB before the job has begun."""
_LEAST_PROCESSES = 4096
"""Ray has tens of threads in each of its processes, and starts one a CPU and one an actor."""
_LEAST_FILES = 100_000
_EARLIEST = 1_735_689_600.0
"""The year 2025: a clock before it was never set."""


def cores(facts: Facts, settings: Settings, _topology: Topology) -> Finding:
    """Ray misses a container's share of the cores and starts workers for the whole machine's."""
    cpus, machine = settings.num_cpus or facts.cpus, facts.machine_cpus
    told = f"{cpus} of this machine's {machine}" if cpus < machine else f"{cpus}"
    gpus = facts.gpus if settings.num_gpus is None else settings.num_gpus
    if cpus > gpus:
        return Finding("cores", Level.OK, f"{told}; Ray is told {cpus}")
    return Finding(
        "cores",
        Level.WARN,
        f"{told}, beside {gpus} GPUs: frameworks ask Ray for a core a GPU, and one for themselves",
        "Give the container more cores, or set AGENT_NUM_CPUS to more than it has",
    )


def memory(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Ray kills tasks where the memory runs out, and the kernel kills Ray."""
    mib, machine = facts.memory // MIB, facts.machine_memory // MIB
    told = f"{mib} MiB" + (f" of this machine's {machine}" if mib < machine else "")
    if facts.memory >= _LEAST_MEMORY:
        return Finding("memory", Level.OK, told)
    return Finding(
        "memory",
        Level.WARN,
        f"{told}; Ray alone takes about 2 GB",
        "Give the container more memory",
    )


def processes(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Too few threads abort Ray with 'pthread_create failed: Resource temporarily unavailable'."""
    room = facts.room
    if room is None or room.left >= _LEAST_PROCESSES:
        told = "no limit" if room is None else f"room for {room.left} more: {room.limit}"
        return Finding("processes", Level.OK, told)
    return Finding(
        "processes",
        Level.WARN,
        f"room for {room.left} more processes and threads only: {room.limit}",
        "Raise the limit: `--pids-limit`, pids.max, `ulimit -u`; fewer CPUs (AGENT_NUM_CPUS) start "
        "fewer of Ray's processes",
    )


def inodes(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """A disk full of small files says 'No space left on device' with room for bytes."""
    left = facts.temp_inodes
    if left is None or left >= _LEAST_FILES:
        told = "not counted there" if left is None else f"{left} left"
        return Finding("inodes", Level.OK, f"{facts.temp}: {told}")
    return Finding(
        "inodes",
        Level.WARN,
        f"{facts.temp} takes {left} more files only",
        "Remove small files there (caches, old sessions of Ray), or mount another disk",
    )


def clock(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """With a clock that was never set every certificate is invalid, and downloads fail."""
    if facts.clock is None or facts.clock >= _EARLIEST:
        return Finding("clock", Level.OK, "set")
    return Finding(
        "clock",
        Level.WARN,
        "it stands before 2025, so that certificates seem not yet valid",
        "Set it, or have the host do so (NTP)",
    )
