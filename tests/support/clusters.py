"""Clusters as values: each platform's variables for every node, and the resulting roles."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.value import Value
from agent.node.facts import Facts
from support.captured import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Node(Value):
    """One node: its environment, and its machine."""

    environ: dict[str, str]
    facts: Facts


def address(rank: int) -> str:
    """Return a node's address on the network between the nodes."""
    return f"10.0.{rank // 250}.{rank % 250 + 1}"


def node(rank: int, environ: dict[str, str], names: Mapping[str, tuple[str, ...]]) -> Node:
    """Make a node: its address, and the names that every node can resolve."""
    environ = {"HOSTNAME": f"node-{rank}", **environ}
    facts = replace(
        machine(environ),
        interfaces={"lo": ("127.0.0.1",), "eth0": (address(rank),)},
        default_source=address(rank),
        known_names=names,
    )
    return Node(environ, facts)


def _dstack(rank: int, nodes: int) -> dict[str, str]:
    return {
        "DSTACK_NODE_RANK": str(rank),
        "DSTACK_NODES_NUM": str(nodes),
        "DSTACK_NODES_IPS": "\n".join(map(address, range(nodes))),
        "DSTACK_MASTER_NODE_IP": address(0),
        "RUNPOD_POD_ID": f"pod{rank}",
    }


def _skypilot(rank: int, nodes: int) -> dict[str, str]:
    return {
        "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NUM_NODES": str(nodes),
        "SKYPILOT_NODE_IPS": "\n".join(map(address, range(nodes))),
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    }


def _slurm(rank: int, nodes: int) -> dict[str, str]:
    hosts = f"gpu-[000-{nodes - 1:03d}]"
    return {
        "HOSTNAME": f"gpu-{rank:03d}",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_NTASKS": str(nodes),
        "SLURM_NODEID": str(rank),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
        # variables that srun passed on from a login node in an Instant Cluster, equal on all nodes
        "PRIMARY_ADDR": address(0),
        "NODE_RANK": "0",
        "NUM_NODES": str(nodes),
    }


def _slurm_groups(rank: int, nodes: int) -> dict[str, str]:
    """Return a node of a heterogeneous job of two components of the same size."""
    trainers = nodes // 2
    parts = [f"gpu-[000-{trainers - 1:03d}]", f"gpu-[{trainers:03d}-{nodes - 1:03d}]"]
    by_part = {f"SLURM_JOB_NODELIST_HET_GROUP_{number}": part for number, part in enumerate(parts)}
    return {
        **_slurm(rank, nodes),
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST": ",".join(parts),
        **by_part,
    }


def _skypilot_group(rank: int, nodes: int) -> dict[str, str]:
    """Return a node of a job group with a task `trainer` and a task `rollout` of the same size."""
    trainers = nodes // 2
    task, own = ("trainer", rank) if rank < trainers else ("rollout", rank - trainers)
    return {
        **_skypilot(own, trainers),
        "SKYPILOT_JOBGROUP_NAME": "slime-grpo",
        "SKYPILOT_TASK_ID": f"sky-managed-2026-11-01-10-20-30-123456_slime-grpo_{task}_7-0",
    }


def _lws_groups(rank: int, nodes: int) -> dict[str, str]:
    """Return a pod of a LeaderWorkerSet that trains, or of one whose pods stand alone."""
    trainers = nodes // 2
    if rank < trainers:
        return _lws(rank, trainers)
    name = f"slime-grpo-rollout-{rank - trainers}"
    return {**_lws(0, 1), "HOSTNAME": name, "LWS_LEADER_ADDRESS": f"{name}.rl.default"}


def _instant(rank: int, nodes: int) -> dict[str, str]:
    return {
        "RUNPOD_POD_ID": f"pod{rank}",
        "PRIMARY_ADDR": address(0),
        "MASTER_ADDR": address(0),
        "NODE_ADDR": address(rank),
        "NODE_RANK": str(rank),
        "NUM_NODES": str(nodes),
        "NUM_TRAINERS": "8",
        "WORLD_SIZE": str(8 * nodes),
    }


def _lws(rank: int, nodes: int) -> dict[str, str]:
    return {
        "HOSTNAME": "rl-0" if rank == 0 else f"rl-0-{rank}",
        "LWS_LEADER_ADDRESS": "head.rl.default",
        "LWS_GROUP_SIZE": str(nodes),
        "LWS_WORKER_INDEX": str(rank),
    }


def _trainer(rank: int, nodes: int) -> dict[str, str]:
    return {
        "PET_MASTER_ADDR": "head.rl.default",
        "PET_NNODES": str(nodes),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": "auto",
    }


def _pytorchjob(rank: int, nodes: int) -> dict[str, str]:
    return {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "MASTER_ADDR": "head.rl.default",
        "WORLD_SIZE": str(nodes),
        "RANK": str(rank),
    }


def _pytorchjob_pet(rank: int, nodes: int) -> dict[str, str]:
    more = {"PET_NNODES": str(nodes), "PET_NODE_RANK": str(rank), "WORLD_SIZE": str(8 * nodes)}
    return {**_pytorchjob(rank, nodes), **more}


def _aws_batch(rank: int, nodes: int) -> dict[str, str]:
    main = nodes // 2
    found = {
        "AWS_BATCH_JOB_NODE_INDEX": str(rank),
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(main),
        "AWS_BATCH_JOB_NUM_NODES": str(nodes),
        "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": address(main),
    }
    if rank == main:
        found.pop("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS")
    return found


def _sagemaker(rank: int, nodes: int) -> dict[str, str]:
    hosts = [f"algo-{n + 1}" for n in reversed(range(nodes))]
    name = f"algo-{rank + 1}"
    return {"HOSTNAME": name, "SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": name}


def _torchrun(rank: int, nodes: int) -> dict[str, str]:
    return {"MASTER_ADDR": address(0), "NODE_RANK": str(rank), "NNODES": str(nodes)}


def _runpod(rank: int, _nodes: int) -> dict[str, str]:
    return {"RUNPOD_POD_ID": f"pod{rank}", "HEAD_POD_ID": "pod0"}


def _plain(_rank: int, _nodes: int) -> dict[str, str]:
    return {"AGENT_HEAD": "head.rl.default"}


def _vast(rank: int, nodes: int) -> dict[str, str]:
    return {"VAST_CONTAINERLABEL": f"C.{rank}", **_plain(rank, nodes)}


def _kuberay(rank: int, nodes: int) -> dict[str, str]:
    environ = {"EXPECTED_WORKERS": str(nodes - 1), "RAY_CLUSTER_NAME": "rl"}
    if rank == 0:
        return {**environ, "KUBERAY_GEN_RAY_START_CMD": "ray start --head --block"}
    start = "ray start --address=head.rl.default:6379 --block"
    return {**environ, "KUBERAY_GEN_RAY_START_CMD": start, "FQ_RAY_IP": "head.rl.default"}


CLUSTERS: dict[str, Callable[[int, int], dict[str, str]]] = {
    "dstack": _dstack,
    "skypilot": _skypilot,
    "slurm": _slurm,
    "runpod-cluster": _instant,
    "kuberay": _kuberay,
    "lws": _lws,
    "kubeflow-trainer": _trainer,
    "pytorchjob": _pytorchjob,
    "pytorchjob, by PET": _pytorchjob_pet,
    "aws-batch": _aws_batch,
    "sagemaker": _sagemaker,
    "torchrun": _torchrun,
    "runpod": _runpod,
    "plain": _plain,
    "vast": _vast,
}
WITH_GROUPS: dict[str, Callable[[int, int], dict[str, str]]] = {
    "slurm, groups": _slurm_groups,
    "dstack, groups": _dstack,
    "skypilot, groups": _skypilot_group,
    "lws, groups": _lws_groups,
}
"""Half of the nodes train, the others are of a group that the platform knows."""


def cluster(platform: str, nodes: int, more: Mapping[str, str] | None = None) -> list[Node]:
    """Return every node of a cluster, with additional variables for all."""
    names = {"head.rl.default": (address(0),), "pod0.runpod.internal": (address(0),)}
    names |= {f"algo-{rank + 1}": (address(rank),) for rank in range(nodes)}
    names |= {f"gpu-{rank:03d}": (address(rank),) for rank in range(nodes)}
    build = {**CLUSTERS, **WITH_GROUPS}[platform]
    return [node(rank, {**build(rank, nodes), **(more or {})}, names) for rank in range(nodes)]
