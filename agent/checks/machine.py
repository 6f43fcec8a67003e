"""Checks of the machine: limits, memory, disk, GPUs, ports, clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks.finding import Finding, Level
from agent.node.facts import MIB

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.topology.resolve import Topology


WANTED_FILES = 65_536
_MAX_USED = 0.95
"""Ray's default RAY_local_fs_capacity_threshold, above which it creates no objects."""


def open_files(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Ray aborts with 'Too many open files' on the usual 1024; the soft limit is raised here."""
    hard = facts.nofile_hard
    if hard == -1 or hard >= WANTED_FILES:
        return Finding("open files", Level.OK, "the limit can be raised to 65536")
    return Finding(
        "open files",
        Level.WARN,
        f"the hard limit is {hard}; Ray wants {WANTED_FILES}",
        "Raise it for the container: `--ulimit nofile=65536:65536`",
    )


def shared_memory(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """A small /dev/shm starves NCCL and sends Ray's objects to the disk."""
    mib, free = facts.shm // MIB, facts.shm_free // MIB
    if facts.shm_free >= 1024 * MIB:
        return Finding("/dev/shm", Level.OK, f"{free} MiB free")
    return Finding(
        "/dev/shm",
        Level.WARN,
        f"{mib} MiB, {free} MiB free: the object store shrinks to it and NCCL may run out",
        "Give the container more (`--shm-size`, shm_size, or an emptyDir of medium Memory)"
        + (", or remove what fills it: `ls /dev/shm`" if mib >= 1024 else ""),
    )


def disk(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Ray logs, spills and unpacks under /tmp, or where --temp-dir points."""
    mib = facts.temp_free // MIB
    is_full = facts.temp_free < (1 - _MAX_USED) * facts.temp_total
    if mib >= 2048 and not is_full:
        return Finding(facts.temp, Level.OK, f"{mib} MiB free")
    full = f"more than {_MAX_USED:.0%} full, so Ray spills no objects: " if is_full else ""
    return Finding(
        facts.temp,
        Level.WARN,
        f"{full}{mib} MiB free, where Ray keeps logs and spilled objects",
        "Free some space there or mount a larger disk",
    )


def temp_dir(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Its name is predictable: on a shared host another user may have created it first."""
    folder = facts.ray_temp
    if folder is None or facts.owns_exclusively(folder):
        return Finding("temp dir", Level.OK, "owned by this user only, or not created yet")
    if not folder.is_folder:
        what = "is a link or a file, no folder"
    elif folder.uid != facts.uid:
        what = f"belongs to another user (uid {folder.uid})"
    else:
        what = f"was open to others, who put {', '.join(folder.strangers[:3])} into it"
    return Finding(
        "temp dir",
        Level.FAIL,
        f"{folder.path}, where Ray is to keep its sockets and logs, {what}",
        f"Remove it (`rm -r {folder.path}`), or have its owner or an administrator do so",
    )


def gpus(facts: Facts, settings: Settings, topology: Topology) -> Finding:
    """A container that lost its GPUs looks healthy, but the job waits for them forever."""
    promised = topology.platform.gpus_per_node
    if settings.num_gpus is not None or not promised or facts.gpus >= promised:
        return Finding("GPUs", Level.OK, f"{facts.gpus} seen")
    return Finding(
        "GPUs",
        Level.WARN,
        f"{facts.gpus} seen, {promised} promised by {topology.platform.name}",
        "Restart the pod; set AGENT_NUM_GPUS if this is as it should be",
    )


def visible_devices(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Ray, verl and vLLM exit on two different selections of AMD GPUs."""
    if not facts.gpu_contradiction:
        return Finding("visible GPUs", Level.OK, "one choice, or all of them")
    return Finding(
        "visible GPUs",
        Level.FAIL,
        facts.gpu_contradiction,
        "Choose AMD GPUs by HIP_VISIBLE_DEVICES alone: unset ROCR_VISIBLE_DEVICES and "
        "CUDA_VISIBLE_DEVICES",
    )


def free_ports(facts: Facts, _settings: Settings, topology: Topology) -> Finding:
    """A process that already listens on our port would answer instead of Ray."""
    if facts.taken_ports is None:
        return Finding("ports", Level.OK, "not checked here; `doctor` and `run` check them")
    if not facts.taken_ports:
        return Finding("ports", Level.OK, "ours are free")
    taken = ", ".join(f"{port} by {who}" for port, who in facts.taken_ports.items())
    stale = "; a stale Ray is removed at the start" if topology.owns_machine else ""
    return Finding(
        "ports",
        Level.FAIL,
        f"taken: {taken}{stale}",
        "End that process, or move ours with AGENT_RAY_PORT, AGENT_DASHBOARD_PORT, AGENT_PORT, "
        "AGENT_REWARD_PORT, or in the file of AGENT_SERVICES",
    )


_LEAST_MEMORY = 4096 * MIB
"""A node of Ray uses about 2 GB before the job starts."""
_LEAST_PROCESSES = 4096
"""Each process of Ray has tens of threads; there is one per CPU and one per actor."""
_LEAST_FILES = 100_000
_EARLIEST = 1_735_689_600.0
"""The start of 2025: an earlier clock was never set."""


def cores(facts: Facts, settings: Settings, _topology: Topology) -> Finding:
    """Frameworks request one core per GPU from Ray, and one more for themselves."""
    cpus, machine = settings.num_cpus or facts.cpus, facts.machine_cpus
    count = f"{cpus} of this machine's {machine}" if cpus < machine else f"{cpus}"
    gpus = facts.gpus if settings.num_gpus is None else settings.num_gpus
    if cpus > gpus:
        return Finding("cores", Level.OK, f"{count}; Ray gets {cpus}")
    return Finding(
        "cores",
        Level.WARN,
        f"{count} for {gpus} GPUs: frameworks request a core per GPU from Ray, and one more",
        "Give the container more cores, or set AGENT_NUM_CPUS to more than it has",
    )


def memory(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """When memory runs out, Ray kills tasks and the kernel kills Ray."""
    mib, machine = facts.memory // MIB, facts.machine_memory // MIB
    size = f"{mib} MiB" + (f" of this machine's {machine}" if mib < machine else "")
    if facts.memory >= _LEAST_MEMORY:
        return Finding("memory", Level.OK, size)
    return Finding(
        "memory",
        Level.WARN,
        f"{size}; Ray alone takes about 2 GB",
        "Give the container more memory",
    )


def processes(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Too few threads abort Ray with 'pthread_create failed: Resource temporarily unavailable'."""
    room = facts.room
    if room is None or room.left >= _LEAST_PROCESSES:
        what = "no limit" if room is None else f"room for {room.left} more: {room.limit}"
        return Finding("processes", Level.OK, what)
    return Finding(
        "processes",
        Level.WARN,
        f"room for {room.left} more processes and threads only: {room.limit}",
        "Raise the limit: `--pids-limit`, pids.max, `ulimit -u`; fewer CPUs (AGENT_NUM_CPUS) start "
        "fewer of Ray's processes",
    )


def inodes(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """A disk without free inodes reports 'No space left on device' though bytes are free."""
    left = facts.temp_inodes
    if left is None or left >= _LEAST_FILES:
        free = "not counted there" if left is None else f"{left} left"
        return Finding("inodes", Level.OK, f"{facts.temp}: {free}")
    return Finding(
        "inodes",
        Level.WARN,
        f"{facts.temp} takes {left} more files only",
        "Remove small files there (caches, old sessions of Ray), or mount another disk",
    )


def clock(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """With a clock that was never set every certificate is invalid, so downloads fail."""
    if facts.clock is None or facts.clock >= _EARLIEST:
        return Finding("clock", Level.OK, "set")
    return Finding(
        "clock",
        Level.WARN,
        "it is before 2025, so certificates appear not yet valid",
        "Set it, or have the host do so (NTP)",
    )
