"""RunPod: pods with Global Networking, and Instant Clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.topology.claim import PlatformInfo, RankVariables, info_by_rank, read_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings.model import Settings


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
