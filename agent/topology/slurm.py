"""Slurm: one agent per node, all started by one srun."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from agent.base.ports import ports_for_job
from agent.base.value import dataclass
from agent.topology.platform_info import (
    PlatformInfo,
    RankVariables,
    info_by_rank,
    platform_error,
    read_number,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.settings.model import Settings


LARGEST = 65_536
"""The most hosts of a list; a larger range is a mistake."""

_TEXT = re.compile(r"[A-Za-z0-9._-]+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


class NodelistError(ValueError):
    """An invalid list of hosts: what is wrong, and where."""

    def __init__(self, text: str, at: int, what: str) -> None:
        super().__init__(f"{what} at character {at + 1} of {text!r}")
        self.text = text
        self.at = at
        self.what = what


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list in order."""
    entries = [_parts(text, at, entry) for at, entry in _split(text)]
    count = sum(prod(_size(part) for part in parts) for parts in entries)
    if count > LARGEST:
        raise NodelistError(text, 0, f"{count} hosts, more than {LARGEST},")
    return tuple(
        "".join(words)
        for parts in entries
        for words in product(*(tuple(_numbers(part)) for part in parts))
    )


_Ranges = tuple[tuple[str, str], ...]
_Part = str | _Ranges  # fixed text, or the ranges of a bracket by first and last number


def _split(text: str) -> Iterator[tuple[int, str]]:
    """Split a list at the commas outside its brackets."""
    begin, depth = 0, 0
    for at, letter in enumerate(text):
        if letter == "[":
            depth += 1
            if depth > 1:
                raise NodelistError(text, at, "a bracket within a bracket")
        elif letter == "]":
            depth -= 1
            if depth < 0:
                raise NodelistError(text, at, "a ] without its [")
        elif letter == "," and depth == 0:
            yield begin, text[begin:at]
            begin = at + 1
    if depth:
        raise NodelistError(text, text.rindex("["), "a [ without its ]")
    yield begin, text[begin:]


def _parts(text: str, begin: int, entry: str) -> list[_Part]:
    """Parse one entry into fixed text and brackets."""
    if not entry:
        raise NodelistError(text, begin, "no name")
    parts: list[_Part] = []
    for match in re.finditer(r"\[([^\]]*)\]|[^\[]+", entry):
        at = begin + match.start()
        if match[1] is not None:
            parts.append(_ranges(text, at + 1, match[1]))
        elif _TEXT.fullmatch(match[0]):
            parts.append(match[0])
        else:
            raise NodelistError(text, at, f"{match[0]!r}, which is no host name,")
    return parts


def _ranges(text: str, begin: int, inside: str) -> _Ranges:
    found = []
    at = begin
    for word in inside.split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise NodelistError(text, at, f"{word!r} instead of a number or a range")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise NodelistError(text, at, f"the range {word}, which runs backwards,")
        found.append((low, high))
        at += len(word) + 1
    return tuple(found)


def _size(part: _Part) -> int:
    return 1 if isinstance(part, str) else sum(int(high) - int(low) + 1 for low, high in part)


def _numbers(part: _Part) -> Iterator[str]:
    if isinstance(part, str):
        yield part
        return
    for low, high in part:
        for number in range(int(low), int(high) + 1):
            yield f"{number:0{len(low)}d}"


JOB = "SLURM_JOB_ID"
PORT_VARIABLES = "AGENT_RAY_PORT, AGENT_DASHBOARD_PORT and AGENT_PORT override them"
START_EXAMPLE = "`srun --ntasks-per-node=1 python -m agent`"


@dataclass(frozen=True)
class SlurmScope:
    """The variables that describe the nodes of a step or of the whole job."""

    nodes: str
    count: str


STEP = SlurmScope("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES")
JOBS = (
    SlurmScope("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"),
    SlurmScope("SLURM_NODELIST", "SLURM_NNODES"),
)


def detect_slurm(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a node of a Slurm job."""
    job = environ.get(JOB, "").strip()
    if not job:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", job):
        raise platform_error(JOB, repr(job), "the job's number")
    hosts = _hosts(environ, _first_set(environ, *JOBS))
    role_is_set = settings.head is not None or settings.expected_workers == 0
    trouble = _why_not_one_step(environ, hosts)
    if trouble is not None and not role_is_set:
        raise platform_error(*trouble, _remedy())
    if trouble is None and _is_step(environ):
        _refuse_several_tasks(environ)
    info = _info_without_rank(environ, job, hosts) if trouble else _info_with_rank(environ)
    return replace(
        info,
        gpus_per_node=_gpus(environ),
        cpus=_cpus(environ, info.rank),
        memory=_memory(environ),
        run_id=job,  # a requeued job continues the same run
        job_id=job,
        ports=ports_for_job(int(job)),
        owns_machine=False,  # other jobs may share the host: stop only our own Ray
        notes=(f"ports are shifted by {JOB}={job}, as jobs may share a host: {PORT_VARIABLES}",),
    )


def _info_with_rank(environ: Mapping[str, str]) -> PlatformInfo:
    span = _first_set(environ, *JOBS)
    if _hosts(environ, _first_set(environ, STEP, span)) != _hosts(environ, span):
        span = STEP  # node ids count within the step
    hosts = _hosts(environ, span)
    counted = read_number(environ, span.count, 1)
    if counted is not None and counted != len(hosts):
        both = f"{len(hosts)} hosts ({environ[span.nodes]}) beside {span.count}={counted}"
        raise platform_error(span.nodes, both, "as many hosts as nodes")
    names = RankVariables(name="slurm", rank="SLURM_NODEID", nodes=span.count, head=span.nodes)
    info = info_by_rank({**environ, span.count: str(len(hosts))}, names, head=hosts[0])
    own = hosts[info.rank or 0]
    evidence = (*info.evidence[:2], f"{span.nodes}={environ[span.nodes]}")
    return replace(
        info,
        evidence=evidence,
        node_name=environ.get("SLURMD_NODENAME", "").strip() or own,
        own_names=(own,) if len(hosts) > 1 else (),
        # srun's own address, as slurmd saw it: the head's where the batch script called srun
        reported_address=environ.get("SLURM_LAUNCH_NODE_IPADDR", "").strip() or None,
    )


def _info_without_rank(
    environ: Mapping[str, str], job: str, hosts: tuple[str, ...]
) -> PlatformInfo:
    """Describe a node without a usable rank: the user's settings decide its role."""
    return PlatformInfo(
        name="slurm",
        is_head=True,
        evidence=(f"{JOB}={job}", "not started as one step over the job's nodes"),
        node_name=environ.get("SLURMD_NODENAME", "").strip() or None,
        nodes=len(hosts),
    )


def _is_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process; a batch script has no SLURM_STEP* variables."""
    return any(name.startswith("SLURM_STEP") and text for name, text in environ.items())


def _why_not_one_step(environ: Mapping[str, str], hosts: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the variable, and why the agents were not started as one step over all nodes."""
    if "SLURM_NODEID" not in environ:
        return (
            "SLURM_NODEID",
            f"nothing beside {JOB}: a shell of salloc, or variables were not passed on",
        )
    if len(hosts) == 1:
        return None
    job = f"one of the job's {len(hosts)} nodes"
    if not _is_step(environ):
        return "SLURM_STEP_ID", f"nothing: this is the batch script itself, on {job}"
    if len(_hosts(environ, _first_set(environ, STEP, *JOBS))) == 1:
        return STEP.count, f"1: a step on {job}"
    return None


def _refuse_several_tasks(environ: Mapping[str, str]) -> None:
    """Refuse several tasks on one node, since each would start its own Ray."""
    nodes = len(_hosts(environ, _first_set(environ, STEP, *JOBS)))
    counter = next((n for n in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if n in environ), None)
    tasks = read_number(environ, counter, 1) if counter is not None else None
    crowds = {
        f"SLURM_LOCALID={environ.get('SLURM_LOCALID')}": read_number(environ, "SLURM_LOCALID") or 0,
        f"{counter}={tasks} on {nodes} node(s)": (tasks or nodes) - nodes,
    }
    if tasks is None:  # SLURM_NTASKS_PER_NODE may be outdated if the tasks are counted
        per_node = read_number(environ, "SLURM_NTASKS_PER_NODE", 1) or 1
        crowds[f"SLURM_NTASKS_PER_NODE={per_node}"] = per_node - 1
    found = [what for what, more in crowds.items() if more > 0]
    if found:
        several = f"{', '.join(found)}: more than one task on a node"
        raise platform_error("SLURM_NTASKS", several, f"one agent per node: {START_EXAMPLE}")


def _remedy() -> str:
    return (
        f"{START_EXAMPLE} over all nodes (in a container with every SLURM_* variable passed on); "
        "or AGENT_HEAD on every node, or EXPECTED_WORKERS=0 for this node alone"
    )


def _first_set(environ: Mapping[str, str], *spans: SlurmScope) -> SlurmScope:
    return next((span for span in spans if environ.get(span.nodes, "").strip()), spans[-1])


def _hosts(environ: Mapping[str, str], span: SlurmScope) -> tuple[str, ...]:
    text = require(environ.get(span.nodes, "").strip() or None, JOBS[0].nodes, "the job's nodes")
    try:
        return expand(text)
    except NodelistError as error:
        raise platform_error(span.nodes, str(error), "hosts such as gpu-[01-03],b2") from None


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
    """Return the memory allotted on this node in bytes; Slurm counts in MiB, 0 means all."""
    text = environ.get("SLURM_MEM_PER_NODE", "")
    return (int(text) << 20) or None if re.fullmatch(r"[0-9]{1,9}", text) else None
