"""Checks of the machine: limits, memory, disk, GPUs, ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks.finding import Finding, Level
from agent.node.facts import MIB

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.resolve import Topology

WANTED_FILES = 65_536
_FULLEST = 0.95
"""Ray's own limit (RAY_local_fs_capacity_threshold), above which creating objects fails."""


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
    is_full = facts.temp_free < (1 - _FULLEST) * facts.temp_total
    if mib >= 2048 and not is_full:
        return Finding(facts.temp, Level.OK, f"{mib} MiB free")
    told = f"more than {_FULLEST:.0%} full, at which Ray spills no object: " if is_full else ""
    return Finding(
        facts.temp,
        Level.WARN,
        f"{told}{mib} MiB free, where Ray keeps logs and spilled objects",
        "Free some space there or mount a larger disk",
    )


def temp_dir(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Its name can be guessed: on a shared host another user may have made it before us."""
    folder = facts.ray_temp
    if folder is None or facts.owns_wholly(folder):
        return Finding("temp dir", Level.OK, "ours alone, or still to be made")
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
    """A container that lost its GPUs looks healthy until the job waits for them for ever."""
    promised = topology.claim.gpus_per_node
    if settings.num_gpus is not None or not promised or facts.gpus >= promised:
        return Finding("GPUs", Level.OK, f"{facts.gpus} seen")
    return Finding(
        "GPUs",
        Level.WARN,
        f"{facts.gpus} seen, {promised} promised by {topology.claim.platform}",
        "Restart the pod; set AGENT_NUM_GPUS if this is as it should be",
    )


def visible_devices(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Ray, verl and vLLM end on two choices of AMD GPUs."""
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
    """Somebody on one of our ports would answer in Ray's place."""
    if facts.taken_ports is None:
        return Finding("ports", Level.OK, "not looked at here; `doctor` and `run` do")
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
