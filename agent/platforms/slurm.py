"""Slurm: one agent per node, all started by one srun."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.ports import ports_for_job
from agent.platforms.rank_variables import (
    PlatformInfo,
    RankVariables,
    info_by_rank,
    platform_error,
    read_number,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings.model import Settings


_NUMBERS = r"[0-9]{1,6}(?:-[0-9]{1,6})?"
_ENTRY = re.compile(rf"(?:[A-Za-z0-9._-]|\[{_NUMBERS}(?:,{_NUMBERS})*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|[^\[]+")
_COUNT = re.compile(r"(?:.*:)?([0-9]{1,9})(?:\(x([0-9]{1,5})\))?")
_SEPARATED = re.compile(r"(?:\[[^\[\]]*\]|[^,])+")  # commas within brackets separate ranges


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list such as `gpu-[01-03,07],b2`, in order; raises ValueError."""
    hosts: list[str] = []
    entries = _SEPARATED.findall(text)
    if not text or ",".join(entries) != text:
        entries.append("")  # beside a comma is no entry
    for entry in entries:
        if not _ENTRY.fullmatch(entry):
            raise ValueError(f"{entry!r}, which is no host name with ranges")
        parts = [_numbers(m[1]) if m[1] else [m[0]] for m in _PART.finditer(entry)]
        hosts += map("".join, product(*parts))
    if not hosts:
        raise ValueError(f"{text!r}, in which ranges run backwards")
    return tuple(hosts)


def _numbers(ranges: str) -> list[str]:
    """Return the numbers of a bracket such as `01-03,07`, with their padding."""
    numbers: list[str] = []
    for entry in ranges.split(","):
        low, _, high = entry.partition("-")
        numbers += (f"{n:0{len(low)}d}" for n in range(int(low), int(high or low) + 1))
    return numbers


JOB = "SLURM_JOB_ID"
JOB_NODES = "SLURM_JOB_NODELIST"
STEP_NODES = "SLURM_STEP_NODELIST"
START_EXAMPLE = "`srun --ntasks-per-node=1 pod-agent`"
_ONE_STEP = (
    f"{START_EXAMPLE} over all nodes (in a container with every SLURM_* variable passed on); or "
    "AGENT_HEAD on every node, or EXPECTED_WORKERS=0 for this node alone"
)


def detect_slurm(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a node of a Slurm job."""
    job = environ.get(JOB, "").strip()
    if not job:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", job):
        raise platform_error(JOB, repr(job), "the job's number")

    # Is this one step over the job's nodes? A batch script has no SLURM_STEP* variables.
    hosts = _hosts(environ, JOB_NODES)
    in_step = _hosts(environ, STEP_NODES) if environ.get(STEP_NODES, "").strip() else hosts
    components = _components(environ)
    if {*in_step} == {host for component in components for host in component}:
        in_step = tuple(host for component in components for host in component)
    else:  # a step of some components, or a job without any
        components = ()
    is_step = any(name.startswith("SLURM_STEP") and text for name, text in environ.items())
    is_all = len(hosts) == 1 or (is_step and len(in_step) > 1)
    if "SLURM_NODEID" in environ and is_all:
        if is_step:
            _refuse_several_tasks(environ, len(in_step))
        info = _info_with_rank(environ, hosts, in_step)
    elif settings.head is None and settings.expected_workers != 0:
        got = f"one node of {len(hosts)}: a shell of salloc, the batch script or a step on one node"
        raise platform_error(STEP_NODES, got, _ONE_STEP)
    else:  # without a usable rank, the user's settings decide the role
        evidence = (f"{JOB}={job}", "not started as one step over the job's nodes")
        info = PlatformInfo("slurm", is_head=True, evidence=evidence, nodes=len(hosts))

    # What of this node is the job's?
    gpus = _counts(environ, "SLURM_GPUS_ON_NODE") or _counts(environ, "SLURM_GPUS_PER_NODE")
    cpus = _counts(environ, "SLURM_CPUS_ON_NODE")
    if not cpus:
        rank = info.rank or 0
        cpus = _counts(environ, "SLURM_JOB_CPUS_PER_NODE")[rank : rank + 1]

    return replace(
        info,
        group_sizes=tuple(map(len, components)),
        node_name=environ.get("SLURMD_NODENAME", "").strip() or info.node_name,
        gpus_per_node=sum(gpus) if gpus else None,
        cpus=sum(cpus) or None,
        memory=(sum(_counts(environ, "SLURM_MEM_PER_NODE")) << 20) or None,  # MiB; 0 means all
        run_id=job,  # a requeued job continues the same run
        job_id=job,
        ports=ports_for_job(int(job)),
    )


def _components(environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return the hosts of each component of a heterogeneous job, in their order; () for another."""
    count = read_number(environ, "SLURM_HET_SIZE", 1, 128) or 0
    names = [f"{JOB_NODES}_HET_GROUP_{number}" for number in range(count)]
    return tuple(_hosts(environ, name) for name in names)


def _info_with_rank(
    environ: Mapping[str, str], hosts: tuple[str, ...], in_step: tuple[str, ...]
) -> PlatformInfo:
    names = RankVariables(
        PlatformInfo("slurm"), rank="SLURM_NODEID", nodes="SLURM_JOB_NUM_NODES", head=JOB_NODES
    )
    if in_step != hosts:  # node ids count within the step
        hosts = in_step
        names = replace(names, nodes="SLURM_STEP_NUM_NODES", head=STEP_NODES)
    info = info_by_rank({**environ, names.nodes: str(len(hosts))}, names, head=hosts[0])
    own = hosts[info.rank or 0]
    return replace(
        info,
        evidence=(*info.evidence[:2], f"{names.head}={environ[names.head]}"),
        node_name=own,
        own_names=(own,) if len(hosts) > 1 else (),
        # srun's address as slurmd reports it: the head's if the batch script ran srun
        reported_address=environ.get("SLURM_LAUNCH_NODE_IPADDR", "").strip() or None,
    )


def _refuse_several_tasks(environ: Mapping[str, str], nodes: int) -> None:
    """Refuse several tasks on one node, since each would start its own Ray."""
    counter = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    tasks = read_number(environ, counter, 1)
    local = read_number(environ, "SLURM_LOCALID")
    if local or (tasks or 0) > nodes:
        several = f"{counter}={tasks} on {nodes} node(s), SLURM_LOCALID={local}"
        raise platform_error("SLURM_NTASKS", several, f"one agent per node: {START_EXAMPLE}")


def _hosts(environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    try:
        return expand(environ.get(variable, "").strip())
    except ValueError as error:
        raise platform_error(variable, str(error), "hosts such as gpu-[01-03],b2") from None


def _counts(environ: Mapping[str, str], name: str) -> list[int]:
    """Return the numbers of a list: `8`, by kind `a100:4,v100:2`, by node `2(x3),4`; else none."""
    words = [_COUNT.fullmatch(word) for word in environ.get(name, "").split(",")]
    if not all(words):
        return []
    return [int(word[1]) for word in words if word for _ in range(int(word[2] or 1))]
