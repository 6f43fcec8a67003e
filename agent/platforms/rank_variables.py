"""A node as the variables of its platform describe it, and the platforms with a rank."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from agent.base.errors import Problem, SettingsError
from agent.base.ports import DEFAULTS, Ports
from agent.base.text import in_url, is_loopback
from agent.base.typed import decode
from agent.base.value import Value
from agent.settings import values
from agent.settings.rules import TRAINER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings.model import Settings

T = TypeVar("T", int, str)


class GivenRay(Value):
    """A Ray that its owner, the platform, starts and stops."""

    owner: str
    gcs_host: str
    gcs_port: int
    dashboard: str  # the URL of its dashboard, to which jobs are submitted
    session: str | None = None  # the folder of Ray's sessions; None if its head is another machine
    submission_id: str | None = None  # as the owner expects it; None if the agent may choose

    @property
    def gcs(self) -> str:
        """Return the address of its GCS."""
        return f"{in_url(self.gcs_host)}:{self.gcs_port}"


class PlatformInfo(Value):
    """A node as its platform describes it, before the user's settings are applied."""

    name: str
    is_head: bool = True
    evidence: tuple[str, ...] = ()
    role_variable: str = ""  # the variable that determines the role; '' if it is a default
    head_host: str | None = None
    must_own_head_host: bool = False
    node_name: str | None = None
    own_names: tuple[str, ...] = ()
    rank: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    cpus: int | None = None  # CPUs of this node allotted to the job, where jobs share nodes
    memory: int | None = None  # bytes of memory allotted to the job, where jobs share nodes
    run_id: str | None = None
    job_id: str | None = None  # an id of this job that is unique on its host
    interface: str | None = None
    reported_address: str | None = None  # by the platform; no interface may have it
    ports: Ports = DEFAULTS
    owns_machine: bool = False
    restarts_containers: bool = False  # when a container's first process has ended
    restarts_groups: bool = False
    """True if the platform starts all pods of the run anew when one has ended, with 0 too."""
    given_ray: GivenRay | None = None
    group: str = ""  # this node's, where the platform names it
    group_sizes: tuple[int, ...] = ()  # the nodes of each of its groups, the trainer's first
    unread_ranks: str = ""  # torch's ranks of several nodes or processes, which decide nothing


class RankVariables(Value):
    """A platform that sets a rank, a node count and the head's address: one row of a table."""

    platform: PlatformInfo  # what is the same on each of its nodes
    rank: str
    nodes: str
    head: str
    gpus: str | None = None
    run_id: tuple[str, ...] = ()  # the first of these that is set is the run id
    main_rank: str = ""  # holds the head's rank, where it may be another than 0
    numbered_nodes: bool = False  # True if nodes are named by rank, such as node0
    needs_head: bool = False  # True if other platforms set rank and node count, too

    def detect(self, environ: Mapping[str, str], _settings: Settings) -> PlatformInfo | None:
        """Detect the platform by rank or node count."""
        if not {self.rank, self.nodes} & environ.keys():
            return None
        if self.needs_head and self.head not in environ:
            return None
        return info_by_rank(environ, self)


def info_by_rank(
    environ: Mapping[str, str], names: RankVariables, head: str | None = None
) -> PlatformInfo:
    """Describe a node by its rank; `head` is the head's host, if no single variable holds it."""
    nodes = require(read_number(environ, names.nodes, 1), names.nodes, "the number of nodes")
    rank = require(read_number(environ, names.rank, 0, nodes - 1), names.rank, "this node's rank")
    is_head = rank == (read_number(environ, names.main_rank, 0, nodes - 1) or 0)

    # Which host is the head's? A single node needs none.
    if nodes == 1:
        head = None
    elif head is None:
        head = read_host(environ, names.head)
    if head is not None and is_loopback(head):
        if not is_head:
            given = f"{head} on the node of rank {rank}"
            expected = "an address of the head that other nodes can reach"
            raise platform_error(names.head, given, expected)
        head = None  # the head's own loopback address, useless to other nodes
    if nodes > 1 and not is_head:
        head = require(head, names.head, "the head's address")
    evidence = [f"{names.rank}={rank}", f"{names.nodes}={nodes}"]
    if head is not None:
        evidence.append(f"{names.head}={head}")

    # AWS Batch adds #RANK to the id of the job
    ids = (environ.get(name, "").partition("#")[0] for name in names.run_id)
    return replace(
        names.platform,
        is_head=is_head,
        evidence=tuple(evidence),
        role_variable=names.rank,
        head_host=head,
        own_names=(head,) if is_head and head is not None else (),
        rank=rank,
        nodes=nodes,
        gpus_per_node=read_number(environ, names.gpus) if names.gpus is not None else None,
        run_id=next(filter(None, ids), None),
        node_name=f"node{rank}" if names.numbered_nodes else None,
    )


def require(value: T | None, name: str, what: str) -> T:
    """Return a value, or raise SettingsError if the platform did not set it."""
    if value is None:
        raise platform_error(name, "nothing", f"{what}, which is set beside the others")
    return value


def platform_error(variable: str, got: str, expected: str) -> SettingsError:
    """Return the error for an invalid variable of the platform."""
    return SettingsError((Problem(variable, got, expected),))


def read_number(
    environ: Mapping[str, str], name: str, low: int = 0, high: int | None = None
) -> int | None:
    """Read a number from a platform's variable; raises SettingsError for anything else."""
    text = environ.get(name)
    if text is None:
        return None
    value = int(text) if re.fullmatch(r"\d{1,9}", text.strip()) else -1
    if value < low or (high is not None and value > high):
        most = "" if high is None else f" and at most {high}"
        raise platform_error(name, repr(text), f"a whole number of at least {low}{most}")
    return value


def read_host(environ: Mapping[str, str], name: str) -> str | None:
    """Read a host, the first of several, from a platform's variable; None without one."""
    hosts = environ.get(name, "").split()
    return parse_host(hosts[0], name) if hosts else None


def parse_host(text: str, name: str) -> str:
    """Validate a host from a variable that may hold several."""
    try:
        return values.host(text)
    except ValueError as error:
        raise platform_error(name, repr(text), str(error)) from None


DSTACK = RankVariables(
    PlatformInfo("dstack", owns_machine=True),
    rank="DSTACK_NODE_RANK",
    nodes="DSTACK_NODES_NUM",
    head="DSTACK_MASTER_NODE_IP",
    gpus="DSTACK_GPUS_PER_NODE",
    run_id=("DSTACK_RUN_ID", "DSTACK_RUN_NAME"),
    numbered_nodes=True,
)
# SkyPilot's Ray (0.5 to 0.8): GCS 6380, dashboard 8266, workers from 11002 on, and Ray's defaults
# for the rest, such as 10001 for the client.
SKYPILOT_PORTS = Ports(
    agent=8276, client=20_001, first_worker=20_002, last_worker=25_999, first_front=26_000
)
SKYPILOT = RankVariables(
    PlatformInfo("skypilot", ports=SKYPILOT_PORTS),
    rank="SKYPILOT_NODE_RANK",
    nodes="SKYPILOT_NUM_NODES",
    head="SKYPILOT_NODE_IPS",
    gpus="SKYPILOT_NUM_GPUS_PER_NODE",
    run_id=("SKYPILOT_TASK_ID",),
    numbered_nodes=True,
)
SKY_GROUP = "SKYPILOT_JOBGROUP_NAME"
_SKY_TASK = "SKYPILOT_TASK_ID"


def detect_sky_group(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a node of a task in a SkyPilot job group: each task is a cluster, with ranks from 0.

    The task's name is within its id: `sky-managed-TIME_GROUP_TASK_JOB-INDEX`.
    """
    name = environ.get(SKY_GROUP, "").strip()
    info = SKYPILOT.detect(environ, settings) if name else None
    if info is None:
        return None
    task_id = environ.get(_SKY_TASK, "")
    task = task_id.partition(f"_{name}_")[2].rpartition("_")[0]
    if not task:
        expected = f"an id with the task's name behind {name!r}, the name of the job group"
        raise platform_error(_SKY_TASK, repr(task_id), expected)
    node = of_group(info, task, settings.head or f"{TRAINER}-0.{name}", SKY_GROUP)
    return replace(node, node_name=f"{task}-{info.rank}")


def detect_lws(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a pod of a LeaderWorkerSet; with AGENT_GROUP it is one of several, each with ranks.

    A group may be one pod, started again alone: the host's name is the pod's, and tells them apart.
    """
    info = LWS.detect(environ, settings)
    if info is None or settings.group is None:
        return info
    head = settings.head or (info.head_host if settings.group == TRAINER else None)
    return of_group(info, settings.group, head, "AGENT_GROUP")


def of_group(info: PlatformInfo, group: str, head: str | None, variable: str) -> PlatformInfo:
    """Return a node whose platform counts ranks within each group: only the trainer's are used.

    The head gives the others theirs; how many nodes there are is in EXPECTED_WORKERS.
    """
    if group == TRAINER:
        return replace(info, nodes=None, group=group, head_host=head)
    return replace(
        info,
        is_head=False,
        evidence=(f"{variable} (group {group})", *info.evidence),
        role_variable=variable,
        head_host=head,
        own_names=(),
        rank=None,
        nodes=None,
        run_id=None,
        group=group,
    )


LWS = RankVariables(
    # made for servers: a container that ends, with 0 too, is started again
    PlatformInfo("lws", owns_machine=True, restarts_groups=True),
    rank="LWS_WORKER_INDEX",  # set by LWS itself from 0.6 on; before, by the downward API
    nodes="LWS_GROUP_SIZE",
    head="LWS_LEADER_ADDRESS",
)


def group_member(environ: Mapping[str, str]) -> str | None:
    """Return a name of this pod where its platform starts all pods of a group anew, else None."""
    rank = environ.get(LWS.rank, "")
    return f"{LWS.platform.name}-{rank}" if rank.isdigit() else None


# PET_NPROC_PER_NODE counts processes: GPUs on a GPU pod, CPUs on another, `auto` by default.
# PyTorchJob v1 also sets PET_NODE_RANK, but MASTER_ADDR without the prefix.
KUBEFLOW_TRAINER = RankVariables(
    PlatformInfo("kubeflow-trainer", owns_machine=True),
    rank="PET_NODE_RANK",
    nodes="PET_NNODES",
    head="PET_MASTER_ADDR",
    needs_head=True,
)
PYTORCHJOB = RankVariables(
    PlatformInfo("pytorchjob", owns_machine=True),
    rank="RANK",
    nodes="WORLD_SIZE",
    head="MASTER_ADDR",
)
"""Operators before 1.7, where WORLD_SIZE counts pods."""
PYTORCHJOB_BY_PET = replace(PYTORCHJOB, rank="PET_NODE_RANK", nodes="PET_NNODES")
"""Operators from 1.7 on, where WORLD_SIZE counts processes and PET_NNODES pods."""


def detect_pytorchjob(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a pod of a PyTorchJob: on Kubernetes, with all three variables of the operator."""
    if "RUNPOD_POD_ID" in environ or "LOCAL_RANK" in environ:
        return None  # a RunPod pod, or a process of torchrun, which sets RANK by process
    if "KUBERNETES_SERVICE_HOST" not in environ:
        return None
    if {"MASTER_ADDR", "RANK", "WORLD_SIZE"} <= environ.keys():
        has_pet = {PYTORCHJOB_BY_PET.rank, PYTORCHJOB_BY_PET.nodes} <= environ.keys()
        return info_by_rank(environ, PYTORCHJOB_BY_PET if has_pet else PYTORCHJOB)
    endpoint = environ.get("PET_RDZV_ENDPOINT")
    if endpoint is not None and settings.head is None:
        given = f"PET_RDZV_ENDPOINT={endpoint} without a rank (an elastic PyTorchJob)"
        expected = "the head's host in AGENT_HEAD on every pod, or a fixed number of pods"
        raise platform_error("AGENT_HEAD", given, expected)
    return None


AWS_BATCH = RankVariables(
    PlatformInfo("aws-batch", owns_machine=True),
    rank="AWS_BATCH_JOB_NODE_INDEX",
    nodes="AWS_BATCH_JOB_NUM_NODES",
    head="AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",  # not set on the main node itself
    main_rank="AWS_BATCH_JOB_MAIN_NODE_INDEX",
    run_id=("AWS_BATCH_JOB_ID",),
    numbered_nodes=True,
)


def detect_aws_batch(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a node of a multi-node job of AWS Batch; each retry of the job is another run."""
    info = AWS_BATCH.detect(environ, settings)
    retries = (read_number(environ, "AWS_BATCH_JOB_ATTEMPT", 1) or 1) - 1
    if info is None or info.run_id is None or not retries:
        return info
    return replace(info, run_id=f"{info.run_id}-r{retries}")


HOSTS = "SM_HOSTS"
CURRENT = "SM_CURRENT_HOST"
SAGEMAKER = RankVariables(
    PlatformInfo("sagemaker", owns_machine=True),
    rank=CURRENT,
    nodes=HOSTS,
    head=HOSTS,
    gpus="SM_NUM_GPUS",
    run_id=("TRAINING_JOB_NAME",),
)
"""Hosts are named instead of numbered: their places in the sorted list are the ranks."""


def detect_sagemaker(environ: Mapping[str, str], _settings: Settings) -> PlatformInfo | None:
    """Detect a host of a SageMaker training job."""
    if not {HOSTS, CURRENT} & environ.keys():
        return None
    text = environ.get(HOSTS, "")
    current = environ.get(CURRENT, "").strip()
    try:
        hosts = sorted({parse_host(name, HOSTS) for name in decode(text, list[str])})
    except msgspec.DecodeError:
        hosts = []
    if current not in hosts:
        expected = f'one of the hosts of {HOSTS}, a JSON list such as ["algo-1", "algo-2"]'
        raise platform_error(CURRENT, f"{current!r} beside {HOSTS}={text}", expected)
    counted = {**environ, CURRENT: str(hosts.index(current)), HOSTS: str(len(hosts))}
    return replace(
        info_by_rank(counted, SAGEMAKER, head=hosts[0]),
        evidence=(f"{CURRENT}={current}", f"{HOSTS}={json.dumps(hosts)}"),
        node_name=current,
        own_names=(current,) if len(hosts) > 1 else (),
        interface=environ.get("SM_NETWORK_INTERFACE_NAME") or None,
    )


TORCHRUN = RankVariables(
    PlatformInfo("torchrun"),
    rank="NODE_RANK",
    nodes="NNODES",
    head="MASTER_ADDR",
    numbered_nodes=True,
)


def detect_torchrun(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a node by address, rank and node count, as for torchrun.

    Rank and count without an address are refused: each node would be a run by itself.
    A node count of 1 is ignored, since images set all three for their own torchrun. HEAD_POD_ID
    takes precedence: the user sets it for this agent only.
    """
    has_ranks = {TORCHRUN.rank, TORCHRUN.nodes} <= environ.keys()
    if not has_ranks or settings.head_pod_id or read_number(environ, TORCHRUN.nodes, 1) == 1:
        return None
    if TORCHRUN.head not in environ:
        if settings.head is not None:
            return None
        given = f"{TORCHRUN.nodes}={environ[TORCHRUN.nodes]} and {TORCHRUN.rank}"
        expected = "the head's address beside them; for one machine unset all three"
        raise platform_error(TORCHRUN.head, f"nothing, but {given}", expected)
    on_runpod = "RUNPOD_POD_ID" in environ
    info = info_by_rank(environ, TORCHRUN)
    return replace(info, owns_machine=on_runpod, restarts_containers=on_runpod)


LABEL = "VAST_CONTAINERLABEL"
PORT = "VAST_TCP_PORT_"


def detect_vast(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect an instance of Vast.ai; CONTAINER_ID alone is not enough."""
    label = environ.get(LABEL) or environ.get("CONTAINER_ID")
    if LABEL not in environ and not any(name.startswith(PORT) for name in environ):
        return None
    evidence = f"{LABEL}={label}" if label else f"{PORT}*"
    is_alone = settings.head is None
    if is_alone and (settings.ray_worker is True or settings.expected_workers):
        raise platform_error(
            "AGENT_HEAD",
            f"nothing, on an instance of Vast.ai ({evidence}), which has no ranks",
            "the head's address in AGENT_HEAD, the same on every instance, in a network where "
            "ports are not remapped (instances of one cluster or overlay)",
        )
    return PlatformInfo("vast", is_alone, evidence=(evidence,), owns_machine=True)


def detect_plain(environ: Mapping[str, str], settings: Settings) -> PlatformInfo:
    """Describe a node of no known platform."""
    if settings.head is not None:
        return PlatformInfo("plain", is_head=False, evidence=(f"AGENT_HEAD={settings.head}",))
    name = "plain"
    evidence = "no platform"
    if settings.ray_worker is None and not settings.expected_workers:
        name = "single"
        evidence = "no platform, no AGENT_HEAD: one machine"
    ranks = _ranks_of_torch(environ) if name == "single" else ""
    return PlatformInfo(name, is_head=True, evidence=(evidence,), unread_ranks=ranks)


def _ranks_of_torch(environ: Mapping[str, str]) -> str:
    """Return MASTER_ADDR, RANK and WORLD_SIZE where they may be those of several nodes, or ''.

    A process of torchrun has LOCAL_RANK besides.
    """
    names = (TORCHRUN.head, "RANK", "WORLD_SIZE")
    head, _, count = (environ.get(name, "").strip() for name in names)
    if not set(names) <= environ.keys() or "LOCAL_RANK" in environ:
        return ""
    if is_loopback(head) or not count.isdecimal() or int(count) < 2:
        return ""
    return ", ".join(f"{name}={environ[name]}" for name in names)


RUNPOD = "runpod"
DOMAIN = "runpod.internal"


def own_pod(environ: Mapping[str, str]) -> str | None:
    """Return this pod's id; other platforms also run on RunPod's pods."""
    return environ.get("RUNPOD_POD_ID", "").strip() or None


def detect_runpod(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a pod by its id, or by HEAD_POD_ID."""
    own = own_pod(environ)
    head = settings.head_pod_id
    if own is None and head is None:
        return None

    # The pod's id and the head's decide the role; with one of them RAY_WORKER may.
    is_by_id = own is not None and head is not None
    is_head = own == head if is_by_id else settings.ray_worker is not True

    # A pod's id is not known before the pod runs, so the first pod cannot get HEAD_POD_ID. If it is
    # a head that waits for workers, it must still listen on the network between the pods.
    head_pod = head
    waits = bool(settings.expected_workers) and settings.head is None
    if head is None and waits and settings.ray_worker is not True:
        head_pod = own

    ids = {"RUNPOD_POD_ID": own, "HEAD_POD_ID": head}
    return PlatformInfo(
        name=RUNPOD,
        is_head=is_head,
        evidence=tuple(f"{name}={pod}" for name, pod in ids.items() if pod is not None),
        role_variable="HEAD_POD_ID" if is_by_id else "",
        head_host=f"{head_pod}.{DOMAIN}" if head_pod is not None else None,
        must_own_head_host=own is None,
        node_name=own,
        restarts_containers=own is not None,
        own_names=(f"{own or head}.{DOMAIN}",),
        gpus_per_node=read_number(environ, "RUNPOD_GPU_COUNT"),
        interface="podnet1",
        owns_machine=own is not None,
    )


# WORLD_SIZE counts GPUs here; it is not read. MASTER_ADDR repeats PRIMARY_ADDR until a job or an
# image sets its own. Of the interfaces ens1 to ens8 the first is taken; eth0 leads to the internet.
RUNPOD_CLUSTER = RankVariables(
    PlatformInfo("runpod-cluster", interface="ens1", owns_machine=True, restarts_containers=True),
    rank="NODE_RANK",
    nodes="NUM_NODES",
    head="PRIMARY_ADDR",
    gpus="NUM_TRAINERS",
    numbered_nodes=True,
    needs_head=True,
)
