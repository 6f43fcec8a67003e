"""Checks of the machine (limits, disk, cores, ports), and what `doctor` lists of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agent.base.text import listed
from agent.checks.finding import fail, ok, warn
from agent.node.facts import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.checks.finding import CheckedNode, Result
    from agent.node.facts import Facts


_GIB = 1 << 30
WANTED_FILES = 65_536
_MAX_USED = 0.95
"""Ray's default RAY_local_fs_capacity_threshold, above which it creates no objects."""
_LEAST_PROCESSES = 4096
"""Each process of Ray has tens of threads; there is one per CPU and one per actor."""


def open_files(node: CheckedNode) -> Result:
    """Ray aborts with 'Too many open files' on the usual 1024; `run` raises the soft limit."""
    hard = node.facts.nofile_hard
    if hard == -1 or hard >= WANTED_FILES:
        return ok(f"the limit can be raised to {WANTED_FILES}")
    return warn(
        f"the hard limit is {hard}; Ray needs {WANTED_FILES}",
        "Raise it for the container: `--ulimit nofile=65536:65536`",
    )


def shared_memory(node: CheckedNode) -> Result:
    """A small /dev/shm starves NCCL and sends Ray's objects to the disk."""
    size, free = node.facts.shm // MIB, node.facts.shm_free // MIB
    if free >= 1024:
        return ok(f"{free} MiB free")
    return warn(
        f"{size} MiB, {free} MiB free: the object store shrinks to it and NCCL may run out",
        "Give the container more (`--shm-size`, shm_size, or an emptyDir of medium Memory)"
        + (", or remove what fills it: `ls /dev/shm`" if size >= 1024 else ""),
    )


def disk(node: CheckedNode) -> Result:
    """Ray logs, spills and unpacks under /tmp, or where --temp-dir points."""
    free = node.facts.temp_free
    is_full = free < (1 - _MAX_USED) * node.facts.temp_total
    if free >= 2048 * MIB and not is_full:
        return ok(f"{free // MIB} MiB free")
    full = f"more than {_MAX_USED:.0%} full, so Ray spills no objects: " if is_full else ""
    return warn(
        f"{full}{free // MIB} MiB free, where Ray keeps logs and spilled objects",
        "Free some space there or mount a larger disk",
    )


def temp_dir(node: CheckedNode) -> Result:
    """Its name is predictable: on a shared host another user may have created it first."""
    facts, folder = node.facts, node.facts.ray_temp
    if folder is None or facts.owns_exclusively(folder):
        return ok("owned by this user only, or not created yet")
    if not folder.is_folder:
        what = "is a link or a file, no folder"
    elif folder.uid != facts.uid:
        what = f"belongs to another user (uid {folder.uid})"
    else:
        what = f"was open to others, who put {', '.join(folder.strangers[:3])} into it"
    return fail(
        f"{folder.path}, the folder for Ray's sockets and logs, {what}",
        f"Remove it (`rm -r {folder.path}`), or have its owner or an administrator do so",
    )


def cores(node: CheckedNode) -> Result:
    """Frameworks request one core per GPU from Ray, and one more for themselves."""
    facts, settings = node.facts, node.settings
    cpus, machine = settings.num_cpus or facts.cpus, facts.machine_cpus
    count = f"{cpus} of this machine's {machine}" if cpus < machine else f"{cpus}"
    gpus = facts.gpus if settings.num_gpus is None else settings.num_gpus
    if cpus > gpus:
        return ok(f"{count}; Ray gets {cpus}")
    return warn(
        f"{count} for {gpus} GPUs: frameworks request a core per GPU from Ray, and one more",
        "Give the container more cores, or set AGENT_NUM_CPUS to more than it has",
    )


def processes(node: CheckedNode) -> Result:
    """Too few threads abort Ray with 'pthread_create failed: Resource temporarily unavailable'."""
    room = node.facts.room
    if room is None:
        return ok("no limit")
    if room.left >= _LEAST_PROCESSES:
        return ok(f"room for {room.left} more: {room.limit}")
    return warn(
        f"room for only {room.left} more processes and threads: {room.limit}",
        "Raise the limit: `--pids-limit`, pids.max, `ulimit -u`; fewer CPUs (AGENT_NUM_CPUS) start "
        "fewer of Ray's processes",
    )


def free_ports(node: CheckedNode) -> Result:
    """A process that already listens on a port of the run would answer instead of Ray."""
    if node.facts.taken_ports is None:
        return ok("not checked here; `doctor` and `run` check them")
    if not node.facts.taken_ports:
        return ok("all free")
    taken = ", ".join(f"{port} by {who}" for port, who in node.facts.taken_ports.items())
    stale = "; a stale Ray is removed at the start" if node.topology.owns_machine else ""
    return fail(
        f"taken: {taken}{stale}",
        "End that process, or choose other ports: AGENT_RAY_PORT, AGENT_DASHBOARD_PORT, "
        "AGENT_PORT, AGENT_REWARD_PORT, or in the file of AGENT_SERVICES",
    )


def found_on(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield what a machine has: GPUs, driver, RDMA, Ray, framework, libraries, memory, disk."""
    yield "GPUs", _gpus(facts)
    if facts.driver is not None and facts.driver.version:
        yield "driver", facts.driver.version
    if facts.rdma:
        yield "RDMA", listed(device.sentence() for device in facts.rdma)
    ray = facts.ray.version
    yield "Ray", f"{ray} on Python {facts.ray.python}" if ray else "none"
    framework = facts.framework
    if framework is not None and framework.folder:
        yield framework.name, framework.version or framework.folder
    libraries = ", ".join(f"{name} {version}" for name, version in facts.ray.libraries.items())
    if libraries:
        yield "libraries", libraries
    yield "CPUs", str(facts.cpus)
    yield "memory", f"{facts.memory / _GIB:.0f} GiB"
    yield facts.temp, f"{facts.temp_free / _GIB:.0f} GiB free"


def _gpus(facts: Facts) -> str:
    driver = facts.driver
    if driver is None or not driver.gpus:
        models = ", ".join(facts.node_versions.gpu_models)
        return f"{facts.gpus} x {models}" if facts.gpus and models else str(facts.gpus or "none")
    kinds = Counter(
        f"{gpu.name} {gpu.memory * MIB / _GIB:.0f} GiB" if gpu.memory else gpu.name
        for gpu in driver.gpus
    )
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
