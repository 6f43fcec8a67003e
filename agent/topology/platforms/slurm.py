"""Slurm: one agent per node, started as one step: `srun --ntasks-per-node=1 python -m agent`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.ports import shifted
from agent.base.value import dataclass
from agent.topology.platforms.claim import Claim, Names, fault, number, ranked, required

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

JOB = "SLURM_JOB_ID"
BY_HAND = "AGENT_RAY_PORT, AGENT_DASHBOARD_PORT and AGENT_PORT set them by hand"
HOW = "`srun --ntasks-per-node=1 python -m agent`"


@dataclass(frozen=True)
class Span:
    """The nodes that the agents run on: the step's where there is one, else the job's."""

    nodes: str
    count: str


STEP = Span("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES")
JOBS = (Span("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"), Span("SLURM_NODELIST", "SLURM_NNODES"))


def detect(environ: Mapping[str, str], settings: Settings) -> Claim | None:
    """Claim a node of a job."""
    job = environ.get(JOB, "").strip()
    if not job:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", job):
        raise fault(JOB, repr(job), "the job's number")
    hosts = _hosts(environ, _first_set(environ, *JOBS))
    by_hand = settings.head is not None or settings.expected_workers == 0
    trouble = _not_one_step(environ, hosts)
    if trouble is not None and not by_hand:
        raise fault(*trouble, _remedy())
    if trouble is None and _is_step(environ):
        _refuse_crowds(environ)
    claim = _unranked(environ, job, hosts) if trouble else _by_rank(environ)
    return replace(
        claim,
        gpus_per_node=_gpus(environ),
        cpus=_cpus(environ, claim.rank),
        memory=_memory(environ),
        run_id=job,  # requeued or not: the run goes on where it was
        job_id=job,
        ports=shifted(int(job)),
        owns_machine=False,  # others' jobs may share the host: only our own Ray is ever stopped
        notes=(f"ports are shifted by {JOB}={job}, as jobs may share a host: {BY_HAND}",),
    )


def _by_rank(environ: Mapping[str, str]) -> Claim:
    span = _first_set(environ, *JOBS)
    if _hosts(environ, _first_set(environ, STEP, span)) != _hosts(environ, span):
        span = STEP  # node ids count within the step
    hosts = _hosts(environ, span)
    counted = number(environ, span.count, 1)
    if counted is not None and counted != len(hosts):
        both = f"{len(hosts)} hosts ({environ[span.nodes]}) beside {span.count}={counted}"
        raise fault(span.nodes, both, "as many hosts as nodes")
    names = Names(platform="slurm", rank="SLURM_NODEID", nodes=span.count, head=span.nodes)
    claim = ranked({**environ, span.count: str(len(hosts))}, names, head=hosts[0])
    own = hosts[claim.rank or 0]
    evidence = (*claim.evidence[:2], f"{span.nodes}={environ[span.nodes]}")
    return replace(
        claim,
        evidence=evidence,
        node_name=environ.get("SLURMD_NODENAME", "").strip() or own,
        own_names=(own,) if len(hosts) > 1 else (),
        # srun's own address, as slurmd saw it: the head's where the batch script called srun
        reported_address=environ.get("SLURM_LAUNCH_NODE_IPADDR", "").strip() or None,
    )


def _unranked(environ: Mapping[str, str], job: str, hosts: tuple[str, ...]) -> Claim:
    """Claim a node of which only the user says how it stands to the job's others."""
    return Claim(
        platform="slurm",
        is_head=True,
        evidence=(f"{JOB}={job}", "not started as one step over the job's nodes"),
        node_name=environ.get("SLURMD_NODENAME", "").strip() or None,
        nodes=len(hosts),
    )


# --- what is no agent per node -----------------------------------------------------------------


def _is_step(environ: Mapping[str, str]) -> bool:
    """Say whether srun started this: a batch script has NODEID and PROCID, but no STEP."""
    return any(name.startswith("SLURM_STEP") and text for name, text in environ.items())


def _not_one_step(environ: Mapping[str, str], hosts: tuple[str, ...]) -> tuple[str, str] | None:
    """Say by which variable the agents were not started as one step over the job's nodes."""
    if "SLURM_NODEID" not in environ:
        return "SLURM_NODEID", f"nothing beside {JOB}: a shell of salloc's, or too little passed on"
    if len(hosts) == 1:
        return None
    job = f"one of the job's {len(hosts)} nodes"
    if not _is_step(environ):
        return "SLURM_STEP_ID", f"nothing: this is the batch script itself, on {job}"
    if len(_hosts(environ, _first_set(environ, STEP, *JOBS))) == 1:
        return STEP.count, f"1: a step on {job}"
    return None


def _refuse_crowds(environ: Mapping[str, str]) -> None:
    """Refuse several tasks on one node: each would start a Ray of its own there."""
    nodes = len(_hosts(environ, _first_set(environ, STEP, *JOBS)))
    counter = next((n for n in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if n in environ), None)
    tasks = number(environ, counter, 1) if counter is not None else None
    crowds = {
        f"SLURM_LOCALID={environ.get('SLURM_LOCALID')}": number(environ, "SLURM_LOCALID") or 0,
        f"{counter}={tasks} on {nodes} node(s)": (tasks or nodes) - nodes,
    }
    if tasks is None:  # where the tasks are counted, what was asked for per node may be older
        per_node = number(environ, "SLURM_NTASKS_PER_NODE", 1) or 1
        crowds[f"SLURM_NTASKS_PER_NODE={per_node}"] = per_node - 1
    found = [what for what, more in crowds.items() if more > 0]
    if found:
        several = f"{', '.join(found)}: more than one task on a node"
        raise fault("SLURM_NTASKS", several, f"one agent per node: {HOW}")


def _remedy() -> str:
    return (
        f"{HOW} over all nodes (in a container with every SLURM_* variable passed on); or by "
        "hand: AGENT_HEAD on every node, or EXPECTED_WORKERS=0 for this node alone"
    )


# --- single values -----------------------------------------------------------------------------


def _first_set(environ: Mapping[str, str], *spans: Span) -> Span:
    return next((span for span in spans if environ.get(span.nodes, "").strip()), spans[-1])


def _hosts(environ: Mapping[str, str], span: Span) -> tuple[str, ...]:
    text = required(environ.get(span.nodes, "").strip() or None, JOBS[0].nodes, "the job's nodes")
    from agent.topology.platforms import nodelist  # noqa: PLC0415 - other platforms need none

    try:
        return nodelist.expand(text)
    except nodelist.NodelistError as error:
        raise fault(span.nodes, str(error), "hosts such as gpu-[01-03],b2") from None


def _gpus(environ: Mapping[str, str]) -> int | None:
    """Return the GPUs of this node: `8`, or by kind `h100:8`, `a100:4,v100:2`."""
    texts = (environ.get(name, "") for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"))
    for text in filter(None, texts):
        counts = [word.rpartition(":")[2] for word in text.split(",")]
        if all(re.fullmatch(r"[0-9]{1,4}", count) for count in counts):
            return sum(map(int, counts))
    return None


def _cpus(environ: Mapping[str, str], rank: int | None) -> int | None:
    """Return the CPUs allotted on this node: `2`, or for all nodes of the job `2(x3),4`."""
    here = environ.get("SLURM_CPUS_ON_NODE", "")
    if re.fullmatch(r"[0-9]{1,6}", here):
        return int(here) or None
    runs = [
        re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", word)
        for word in environ.get("SLURM_JOB_CPUS_PER_NODE", "").split(",")
    ]
    left = rank if rank is not None else 0
    for run in runs:
        if run is None:
            return None
        left -= int(run[2] or 1)
        if left < 0:
            return int(run[1]) or None
    return None


def _memory(environ: Mapping[str, str]) -> int | None:
    """Return the memory allotted on this node; Slurm counts in MiB, and 0 stands for all."""
    text = environ.get("SLURM_MEM_PER_NODE", "")
    return (int(text) << 20) or None if re.fullmatch(r"[0-9]{1,9}", text) else None
