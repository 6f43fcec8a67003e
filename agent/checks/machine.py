"""Checks of the machine (limits, disk, cores, ports, GPUs), and what `doctor` lists of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agent.base.open_files import WANTED_FILES
from agent.base.text import first_names, listed
from agent.checks.finding import Finding, Level, fail, ok, warn
from agent.node.facts import CUDA, HIP, MIB, ROCR
from agent.settings.jobs import runs_by_shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.checks.finding import CheckedNode, Result
    from agent.node.facts import Facts


_GIB = 1 << 30
_MAX_USED = 0.95  # Ray's default RAY_local_fs_capacity_threshold, above which it creates no objects
_LEAST_PROCESSES = 4096  # Ray starts one per CPU and one per actor, each with tens of threads


def open_files(node: CheckedNode) -> Result:
    """Ray aborts with 'Too many open files' on the usual 1024; `run` raises the soft limit."""
    who = "a job with many processes may need" if runs_by_shares(node.settings) else "Ray needs"
    hard = node.facts.nofile_hard
    if hard == -1 or hard >= WANTED_FILES:
        return ok(f"the limit can be raised to {WANTED_FILES}")
    remedy = "Raise it for the container: `--ulimit nofile=65536:65536`"
    return warn(f"the hard limit is {hard}; {who} {WANTED_FILES}", remedy)


def shared_memory(node: CheckedNode) -> Result:
    """A small /dev/shm starves NCCL and sends Ray's objects to the disk."""
    size = node.facts.shm // MIB
    free = node.facts.shm_free // MIB
    if free >= 1024:
        return ok(f"{free} MiB free")
    store = "" if runs_by_shares(node.settings) else "the object store shrinks to it and "
    return warn(
        f"{size} MiB, {free} MiB free: {store}NCCL may run out",
        "Give the container more (`--shm-size`, shm_size, or an emptyDir of medium Memory), or "
        "remove what fills it: `ls /dev/shm`",
    )


def disk(node: CheckedNode) -> Result:
    """Ray logs, spills and unpacks under /tmp, or where --temp-dir points."""
    free = node.facts.temp_free
    total = node.facts.temp_total
    if free >= max(2048 * MIB, (1 - _MAX_USED) * total):
        return ok(f"{free // MIB} MiB free")
    user = f"Ray keeps logs and spills objects up to {_MAX_USED:.0%}"
    if runs_by_shares(node.settings):
        user = "the job keeps compiled code and other files"
    what = f"{free // MIB} MiB free, where {user}"
    return warn(what, "Free some space there or mount a larger disk")


def temp_dir(node: CheckedNode) -> Result:
    """The folder's name is predictable: another user of the host may have created it first."""
    facts = node.facts
    folder = node.facts.ray_temp
    if folder is None or facts.owns_exclusively(folder):
        return ok("owned by this user only, or not created yet")
    if not folder.is_folder:
        what = "is a link or a file, no folder"
    elif folder.uid != facts.uid:
        what = f"belongs to another user (uid {folder.uid})"
    else:
        what = f"was open to others, who put {', '.join(folder.strangers[:3])} into it"
    remedy = f"Remove it (`rm -r {folder.path}`), or have its owner or an administrator do so"
    return fail(f"{folder.path}, the folder for Ray's sockets and logs, {what}", remedy)


def log_folder(node: CheckedNode) -> Result | None:
    """A run begins with its folder in AGENT_LOG_DIR."""
    fault = node.facts.logs_fault
    if not fault:
        return None
    what = f"{node.settings.log_dir} cannot be written: {fault}"
    return fail(what, "Choose a writable folder in AGENT_LOG_DIR")


def cores(node: CheckedNode) -> Result:
    """Frameworks request one core per GPU from Ray, and one more for themselves."""
    facts = node.facts
    settings = node.settings
    cpus = settings.num_cpus or facts.cpus
    machine = facts.machine_cpus
    needed = facts.gpus if settings.num_gpus is None else settings.num_gpus
    count = f"{cpus} of this machine's {machine}" if cpus < machine else f"{cpus}"
    if cpus > needed:
        return ok(f"{count}; Ray gets {cpus}")
    return warn(
        f"{count} for {needed} GPUs: frameworks request a core per GPU from Ray, and one more",
        "Give the container more cores, or set AGENT_NUM_CPUS to more than it has",
    )


def processes(node: CheckedNode) -> Result:
    """Too few threads abort Ray with 'pthread_create failed: Resource temporarily unavailable'."""
    room = node.facts.room
    if room is None:
        return ok("no limit")
    if room.left >= _LEAST_PROCESSES:
        return ok(f"room for {room.left} more: {room.limit}")
    remedy = "Raise the limit: `--pids-limit`, pids.max, `ulimit -u`"
    if not runs_by_shares(node.settings):
        remedy += "; fewer CPUs (AGENT_NUM_CPUS) start fewer of Ray's processes"
    what = f"room for only {room.left} more processes and threads: {room.limit}"
    return warn(what, remedy)


def free_ports(node: CheckedNode) -> Result:
    """A process that already listens on a port of the run would answer instead of Ray."""
    taken = node.facts.taken_ports
    if taken is None:
        return ok("not checked here; `doctor` and `run` check them")
    if not taken:
        return ok("all free")
    holders = ", ".join(f"{port} by {process}" for port, process in taken.items())
    return fail(
        f"taken: {holders}",
        "End that process, or choose other ports: AGENT_RAY_PORT, AGENT_DASHBOARD_PORT, "
        "AGENT_PORT, AGENT_REWARD_PORT, or in the file of AGENT_SERVICES",
    )


_RESTART = (
    "Restart the pod or the container (`docker restart`); if it comes back, change the machine"
)


def gpus(node: CheckedNode) -> Result:
    """A container that lost its GPUs looks healthy, but the job waits for them forever."""
    count = node.facts.gpus
    platform = node.topology.platform
    promised = platform.gpus_per_node
    if node.settings.num_gpus is not None or not promised or count >= promised:
        return ok(f"{count} found")
    remedy = "Restart the pod; set AGENT_NUM_GPUS if this is the intended number"
    return warn(f"{count} found, {promised} promised by {platform.name}", remedy)


def visible_devices(node: CheckedNode) -> Result:
    """Ray, verl and vLLM exit on two different selections of AMD GPUs."""
    if not node.facts.gpu_contradiction:
        return ok("one selection, or all of them")
    remedy = f"Select AMD GPUs by {HIP} alone: unset {ROCR} and {CUDA}"
    return fail(node.facts.gpu_contradiction, remedy)


def gpu_health(node: CheckedNode) -> Result:
    """A container that lost its GPUs reports 'Failed to initialize NVML: Unknown Error'."""
    driver = node.facts.driver
    count = node.facts.gpus

    # Does the driver answer?
    fault = node.facts.gpu_fault
    if driver is not None and driver.fault:
        fault = f"{driver.tool}: {driver.fault}"
    if fault:
        is_needed = count and node.settings.num_gpus != 0
        level = fail if is_needed else warn
        return level(f"the driver of {count} GPUs refuses access ({fault})", _RESTART)
    if driver is None:
        return ok("not queried here; `doctor` queries the driver" if count else "no GPUs here")

    # Does it report every GPU, each without errors?
    gpus = driver.gpus
    broken = [f"GPU {gpu.index} has {gpu.errors} memory errors" for gpu in gpus if gpu.errors]
    if len(gpus) != count:
        broken.append(f"{driver.tool} reports {len(gpus)} of the {count} GPUs with device files")
    if broken:
        return warn("; ".join(broken), _RESTART)

    models = (f"{gpu.name} ({gpu.memory} MiB)" if gpu.memory else gpu.name for gpu in gpus)
    return ok(f"{len(gpus)} x {', '.join(dict.fromkeys(models))}")


def gpus_missing_in_ray(nodes: Iterable[tuple[str, int, int]]) -> tuple[Finding, ...]:
    """Find nodes where Ray counts fewer GPUs than are present; none at all is a failure.

    Each node has its name, the GPUs that its environment does not hide (or AGENT_NUM_GPUS), and
    those that Ray counts.
    """
    groups: dict[tuple[int, int], list[str]] = {}
    for name, present, by_ray in nodes:
        if by_ray < present:
            groups.setdefault((by_ray, present), []).append(name)
    remedy = (
        "Run `pod-agent doctor` there, which queries the driver; or set AGENT_NUM_GPUS to the "
        "number of GPUs for Ray on each node (0: none)"
    )
    return tuple(
        Finding(
            "Ray's GPUs",
            Level.WARN if by_ray else Level.FAIL,
            f"Ray counts {by_ray or 'none'} of the {present} on {first_names(names)}",
            remedy,
        )
        for (by_ray, present), names in sorted(groups.items())
    )


def found_on(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield what a machine has: GPUs, driver, RDMA, Ray, framework, libraries, memory, disk."""
    driver = facts.driver
    framework = facts.framework
    ray = facts.ray

    # The GPUs and the network: by the driver's answer, else by its files.
    kinds = Counter({", ".join(facts.node_versions.gpu_models): facts.gpus})
    if driver is not None and driver.gpus:
        sized = ((gpu.name, round(gpu.memory * MIB / _GIB)) for gpu in driver.gpus)
        kinds = Counter(f"{name} {size} GiB" if size else name for name, size in sized)
    counted = (f"{count} x {kind or 'GPU'}" for kind, count in kinds.items() if count)
    yield "GPUs", ", ".join(counted) or "none"
    if driver is not None and driver.version:
        yield "driver", driver.version
    if facts.rdma:
        yield "RDMA", listed(device.sentence() for device in facts.rdma)

    # What is installed.
    yield "Ray", f"{ray.version} on Python {ray.python}" if ray.version else "none"
    if framework is not None and framework.folder:
        yield framework.name, framework.version or framework.folder
    if ray.libraries:
        versions = (f"{name} {version}" for name, version in ray.libraries.items())
        yield "libraries", ", ".join(versions)

    # The rest of the machine.
    yield "CPUs", str(facts.cpus)
    yield "memory", f"{facts.memory / _GIB:.0f} GiB"
    yield facts.temp, f"{facts.temp_free / _GIB:.0f} GiB free"
