"""Platforms that set a rank, a node count and an address: one row for each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.ports import PortBase
from agent.topology.claim import (
    PlatformInfo,
    RankVariables,
    info_by_rank,
    parse_host,
    platform_error,
    read_hosts,
    read_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.settings.model import Settings


DSTACK = RankVariables(
    name="dstack",
    rank="DSTACK_NODE_RANK",
    nodes="DSTACK_NODES_NUM",
    head="DSTACK_MASTER_NODE_IP",
    gpus="DSTACK_GPUS_PER_NODE",
    run_id=("DSTACK_RUN_ID", "DSTACK_RUN_NAME"),
    detected_by=frozenset({"DSTACK_NODE_RANK", "DSTACK_NODES_NUM"}),  # also on a single node
    numbered_nodes=True,
)
SKYPILOT = RankVariables(
    name="skypilot",
    rank="SKYPILOT_NODE_RANK",
    nodes="SKYPILOT_NUM_NODES",
    head="SKYPILOT_NODE_IPS",
    gpus="SKYPILOT_NUM_GPUS_PER_NODE",
    run_id=("SKYPILOT_TASK_ID",),
    numbered_nodes=True,
    owns_machine=False,  # SkyPilot's own Ray runs on this machine
)
# SkyPilot's Ray (0.5 to 0.8): GCS 6380, dashboard 8266, workers from 11002 on, and Ray's defaults
# for the rest, such as 10001 for the client.
SKYPILOT_PORTS = PortBase(agent=8276, client=20_001, first_worker=20_002, last_worker=29_999)
SKYPILOT_NOTE = (
    f"the agent's ports begin at {SKYPILOT_PORTS.agent}: SkyPilot's own Ray holds 6380 and 8266 "
    "(AGENT_PORT, the same on every node, changes them)"
)


def detect_skypilot(environ: Mapping[str, str], _settings: Settings) -> PlatformInfo | None:
    """Detect a task of SkyPilot."""
    if not {SKYPILOT.rank, SKYPILOT.head} & environ.keys():
        return None
    addresses = read_hosts(environ, SKYPILOT.head)
    info = info_by_rank(environ, SKYPILOT, head=addresses[0] if addresses else None)
    if addresses and len(addresses) != info.nodes:
        counted = f"{len(addresses)} addresses beside {SKYPILOT.nodes}={info.nodes}"
        raise platform_error(SKYPILOT.head, counted, "one address a line for each node")
    return replace(
        info,
        evidence=(
            *info.evidence[:2],
            *(f"{SKYPILOT.head} begins with {host}" for host in [info.head_host] if host),
        ),
        ports=SKYPILOT_PORTS,
        notes=(SKYPILOT_NOTE,),
    )


LWS = RankVariables(
    name="lws",
    rank="LWS_WORKER_INDEX",  # set by LWS itself from 0.6 on; before, by the downward API
    nodes="LWS_GROUP_SIZE",
    head="LWS_LEADER_ADDRESS",
    detected_by=frozenset({"LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS"}),
    restarts_groups=True,  # made for servers: a container that ends, with 0 too, is started again
)


def group_member(environ: Mapping[str, str]) -> str | None:
    """Return a name of this pod where its platform starts all pods of a group anew, else None."""
    rank = environ.get(LWS.rank, "")
    return f"{LWS.name}-{rank}" if rank.isdigit() else None


def detector(row: RankVariables) -> Callable[[Mapping[str, str], Settings], PlatformInfo | None]:
    """Return the function that detects the platform of a row by `detected_by`."""

    def detect(environ: Mapping[str, str], _settings: Settings) -> PlatformInfo | None:
        return info_by_rank(environ, row) if row.detected_by & environ.keys() else None

    return detect


# PET_NPROC_PER_NODE counts processes: GPUs on a GPU pod, CPUs on another, `auto` by default.
KUBEFLOW_TRAINER = RankVariables(
    name="kubeflow-trainer",
    rank="PET_NODE_RANK",
    nodes="PET_NNODES",
    head="PET_MASTER_ADDR",
)


def detect_kubeflow_trainer(environ: Mapping[str, str], _settings: Settings) -> PlatformInfo | None:
    """Detect a pod of Kubeflow Trainer: it sets rank and head address as PET_*.

    PyTorchJob v1 also sets PET_NODE_RANK, but MASTER_ADDR without the prefix.
    """
    if KUBEFLOW_TRAINER.head not in environ and (
        KUBEFLOW_TRAINER.rank not in environ or "MASTER_ADDR" in environ
    ):
        return None
    return info_by_rank(environ, KUBEFLOW_TRAINER)


PYTORCHJOB_BY_WORLD_SIZE = RankVariables(
    name="pytorchjob", rank="RANK", nodes="WORLD_SIZE", head="MASTER_ADDR"
)
"""Operators before 1.7, where WORLD_SIZE counts pods."""
PYTORCHJOB_BY_PET = RankVariables(
    name="pytorchjob", rank="PET_NODE_RANK", nodes="PET_NNODES", head="MASTER_ADDR"
)
"""Operators from 1.7 on, where WORLD_SIZE counts processes and PET_NNODES pods."""

PYTORCHJOB_EVIDENCE = {"KUBERNETES_SERVICE_HOST", "MASTER_ADDR", "RANK", "WORLD_SIZE"}
PYTORCHJOB_ELASTIC = "PET_RDZV_ENDPOINT"


def detect_pytorchjob(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a pod of a PyTorchJob: on Kubernetes, with all three variables of the operator."""
    if "RUNPOD_POD_ID" in environ or "LOCAL_RANK" in environ:
        return None  # a RunPod pod, or a process of torchrun, which sets RANK by process
    by_pet = {PYTORCHJOB_BY_PET.rank, PYTORCHJOB_BY_PET.nodes} <= environ.keys()
    if environ.keys() >= PYTORCHJOB_EVIDENCE:
        return info_by_rank(environ, PYTORCHJOB_BY_PET if by_pet else PYTORCHJOB_BY_WORLD_SIZE)
    if {"KUBERNETES_SERVICE_HOST", PYTORCHJOB_ELASTIC} <= environ.keys() and settings.head is None:
        elastic = f"{PYTORCHJOB_ELASTIC}={environ[PYTORCHJOB_ELASTIC]}"
        given = f"{elastic} without a rank (an elastic PyTorchJob)"
        raise platform_error(
            "AGENT_HEAD",
            given,
            "the head's host in AGENT_HEAD on every pod, or a fixed number of pods",
        )
    return None


AWS_BATCH = RankVariables(
    name="aws-batch",
    rank="AWS_BATCH_JOB_NODE_INDEX",
    nodes="AWS_BATCH_JOB_NUM_NODES",
    head="AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",  # not set on the main node itself
    numbered_nodes=True,
)
AWS_BATCH_MAIN = "AWS_BATCH_JOB_MAIN_NODE_INDEX"


def detect_aws_batch(environ: Mapping[str, str], _settings: Settings) -> PlatformInfo | None:
    """Detect a multi-node job of AWS Batch; its other jobs set no node index."""
    if AWS_BATCH.rank not in environ:
        return None
    last = (read_number(environ, AWS_BATCH.nodes, 1) or 1) - 1
    main = read_number(environ, AWS_BATCH_MAIN, 0, last) or 0
    info = info_by_rank(environ, AWS_BATCH, main_rank=main)
    return replace(
        info,
        evidence=(*info.evidence, f"{AWS_BATCH_MAIN}={main}"),
        run_id=_aws_batch_run_id(environ),
    )


def _aws_batch_run_id(environ: Mapping[str, str]) -> str | None:
    """Return the job's id without the node index that AWS Batch appends."""
    job = environ.get("AWS_BATCH_JOB_ID", "").partition("#")[0]
    retries = (read_number(environ, "AWS_BATCH_JOB_ATTEMPT", 1) or 1) - 1
    return f"{job}-r{retries}" if job and retries else job or None


HOSTS, CURRENT = "SM_HOSTS", "SM_CURRENT_HOST"
SAGEMAKER = RankVariables(
    name="sagemaker",
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
    hosts = _sagemaker_hosts(environ.get(HOSTS, ""))
    current = environ.get(CURRENT, "").strip()
    if current not in hosts:
        raise platform_error(
            CURRENT, repr(current), f"one of the hosts of {HOSTS}: {', '.join(hosts)}"
        )
    counted = {**environ, CURRENT: str(hosts.index(current)), HOSTS: str(len(hosts))}
    return replace(
        info_by_rank(counted, SAGEMAKER, head=hosts[0]),
        evidence=(f"{CURRENT}={current}", f"{HOSTS}={json.dumps(hosts)}"),
        node_name=current,
        own_names=(current,) if len(hosts) > 1 else (),
        interface=environ.get("SM_NETWORK_INTERFACE_NAME") or None,
    )


def _sagemaker_hosts(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(h, str) for h in found):
        raise platform_error(HOSTS, repr(text), 'a JSON list of hosts such as ["algo-1", "algo-2"]')
    hosts = sorted(parse_host(name, HOSTS) for name in found)
    if len(set(hosts)) < len(hosts):
        raise platform_error(HOSTS, repr(text), "every host once")
    return hosts


TORCHRUN = RankVariables(
    name="torchrun", rank="NODE_RANK", nodes="NNODES", head="MASTER_ADDR", numbered_nodes=True
)


def detect_torchrun(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a node by address, rank and node count, as for torchrun.

    A node count of 1 is ignored, since images set all three for their own torchrun. HEAD_POD_ID
    takes precedence: the user sets it for this agent only.
    """
    if not {TORCHRUN.rank, TORCHRUN.nodes, TORCHRUN.head} <= environ.keys() or settings.head_pod_id:
        return None
    if read_number(environ, TORCHRUN.nodes, 1) == 1:
        return None
    on_runpod = "RUNPOD_POD_ID" in environ
    info = info_by_rank(environ, TORCHRUN)
    return replace(info, owns_machine=on_runpod, restarts_containers=on_runpod)


LABEL, PORT = "VAST_CONTAINERLABEL", "VAST_TCP_PORT_"


def detect_vast(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect an instance of Vast.ai; CONTAINER_ID alone is not enough."""
    label = environ.get(LABEL) or environ.get("CONTAINER_ID")
    if LABEL not in environ and not any(name.startswith(PORT) for name in environ):
        return None
    evidence = f"{LABEL}={label}" if label else f"{PORT}*"
    if settings.head is not None:
        return PlatformInfo(
            "vast",
            is_head=False,
            evidence=(f"AGENT_HEAD={settings.head}", evidence),
            owns_machine=True,
        )
    wants_more = settings.ray_worker is True or bool(settings.expected_workers)
    if wants_more:
        raise platform_error(
            "AGENT_HEAD",
            f"nothing, on an instance of Vast.ai ({evidence}), which has no ranks",
            "the head's address in AGENT_HEAD, the same on every instance, in a network where "
            "ports are not remapped (instances of one cluster or overlay)",
        )
    return PlatformInfo(
        "vast", is_head=True, evidence=(evidence,), owns_machine=True, single_node=True
    )


def detect_plain(_environ: Mapping[str, str], settings: Settings) -> PlatformInfo:
    """Describe a node of no known platform."""
    if settings.head is not None:
        return PlatformInfo("plain", is_head=False, evidence=(f"AGENT_HEAD={settings.head}",))
    expected = settings.expected_workers
    if settings.ray_worker is None and not expected:
        return PlatformInfo(
            "single",
            is_head=True,
            evidence=("no platform, no AGENT_HEAD: one machine",),
            single_node=True,
        )
    return PlatformInfo("plain", is_head=True, evidence=("no platform",), single_node=True)


RUNPOD = "runpod"
POD = "RUNPOD_POD_ID"
DOMAIN = "runpod.internal"
POD_INTERFACE = "podnet1"


def own_pod(environ: Mapping[str, str]) -> str | None:
    """Return this pod's id; other platforms also run on RunPod's pods."""
    return environ.get(POD, "").strip() or None


def detect_runpod(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a pod by its id, or by HEAD_POD_ID."""
    own = own_pod(environ)
    head = settings.head_pod_id
    if own is None and head is None:
        return None
    head_pod = head or _own_pod_as_head(own, settings)
    return PlatformInfo(
        name=RUNPOD,
        is_head=own == head if own and head else settings.ray_worker is not True,
        evidence=_evidence(own, head, settings),
        role_variable="RAY_WORKER + HEAD_POD_ID",
        role_is_proven=own is not None and head is not None,
        head_host=f"{head_pod}.{DOMAIN}" if head_pod is not None else None,
        must_own_head_host=own is None,
        node_name=own,
        restarts_containers=own is not None,
        own_names=tuple(f"{pod}.{DOMAIN}" for pod in [own or head] if pod is not None),
        gpus_per_node=read_number(environ, "RUNPOD_GPU_COUNT"),
        interface=POD_INTERFACE,
        owns_machine=own is not None,
        single_node=head is None and settings.head is None,
    )


def _own_pod_as_head(own: str | None, settings: Settings) -> str | None:
    """Return this pod's id if it is a head that waits for workers but has no HEAD_POD_ID.

    A pod's id is not known before the pod runs, so the first pod cannot get HEAD_POD_ID. It must
    still listen on the network between the pods.
    """
    waits = bool(settings.expected_workers) and settings.head is None
    return own if waits and settings.ray_worker is not True else None


def _evidence(own: str | None, head: str | None, settings: Settings) -> tuple[str, ...]:
    if own is None:
        return (f"HEAD_POD_ID={head} without RUNPOD_POD_ID",)
    if head is None:
        waits = f", EXPECTED_WORKERS={settings.expected_workers}"
        more = waits if _own_pod_as_head(own, settings) is not None else ""
        return (f"RUNPOD_POD_ID={own} without HEAD_POD_ID{more}",)
    return (f"RUNPOD_POD_ID={own}", f"HEAD_POD_ID={head}")


# WORLD_SIZE counts GPUs here; it is not read. MASTER_ADDR repeats PRIMARY_ADDR until a job or an
# image sets its own.
CLUSTER_NAMES = RankVariables(
    name="runpod-cluster",
    rank="NODE_RANK",
    nodes="NUM_NODES",
    head="PRIMARY_ADDR",
    gpus="NUM_TRAINERS",
)
CLUSTER_INTERFACE = "ens1"
"""The first of the internal interfaces, ens1 to ens8; eth0 leads to the internet only."""


def detect_runpod_cluster(environ: Mapping[str, str], _settings: Settings) -> PlatformInfo | None:
    """Detect a node of an Instant Cluster."""
    if (
        CLUSTER_NAMES.head not in environ
        or not {CLUSTER_NAMES.rank, CLUSTER_NAMES.nodes} & environ.keys()
    ):
        return None
    info = info_by_rank(environ, CLUSTER_NAMES)
    return replace(
        info,
        node_name=environ.get("RUNPOD_POD_ID", "").strip() or f"node{info.rank}",
        interface=CLUSTER_INTERFACE,
        owns_machine=True,
        restarts_containers=True,
    )
