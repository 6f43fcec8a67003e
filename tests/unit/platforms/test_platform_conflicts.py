"""Contradictions between the user's settings and a platform: the user's win, or 78."""

from __future__ import annotations

import pytest

from agent.base.errors import SettingsError
from support.captured import WITHOUT, changed, plan_of, read

OWN, OTHER = "10.0.0.5", "10.0.0.9"

CONTRADICTIONS: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "worker of rank 0": ("lws-head", {"RAY_WORKER": "1"}, ["RAY_WORKER=1", "LWS_WORKER_INDEX=0"]),
    "head of rank 1": (
        "slurm-requeued-worker",
        {"RAY_WORKER": "0"},
        ["RAY_WORKER=0", "SLURM_NODEID=1"],
    ),
    "another head than rank 0": (
        "skypilot-head",
        {"AGENT_HEAD": OTHER},
        ["SKYPILOT_NODE_RANK=0", f"AGENT_HEAD={OTHER} is not an address", OWN],
    ),
    "the head's address on rank 1": (
        "torchrun-worker",
        {"AGENT_HEAD": OWN},
        ["NODE_RANK=1", f"AGENT_HEAD={OWN} is an address"],
    ),
    "another pod than rank 0": (
        "runpod-cluster-head",
        {"HEAD_POD_ID": "other"},
        ["HEAD_POD_ID=other", "RUNPOD_POD_ID=ic0a1b2c", "NODE_RANK=0"],
    ),
    "the pod of rank 1": (
        "runpod-cluster-worker",
        {"HEAD_POD_ID": "ic3d4e5f"},
        ["HEAD_POD_ID=ic3d4e5f", "RUNPOD_POD_ID=ic3d4e5f", "NODE_RANK=1"],
    ),
    "a pod where there is none": (
        "slurm-head",
        {"HEAD_POD_ID": "abc123"},
        ["HEAD_POD_ID=abc123", "no RUNPOD_POD_ID", "SLURM_NODEID=0"],
    ),
    "no nodes": ("lws-worker", {"LWS_GROUP_SIZE": WITHOUT}, ["LWS_GROUP_SIZE", "nothing"]),
    "no rank": ("lws-worker", {"LWS_WORKER_INDEX": WITHOUT}, ["LWS_WORKER_INDEX", "nothing"]),
    "no head": ("lws-worker", {"LWS_LEADER_ADDRESS": WITHOUT}, ["LWS_LEADER_ADDRESS", "nothing"]),
    "rank beyond the count": (
        "kubeflow-trainer-worker",
        {"PET_NODE_RANK": "2"},
        ["PET_NODE_RANK", "'2'", "at most 1"],
    ),
    "elastic": ("kubeflow-trainer-worker", {"PET_NNODES": "1:4"}, ["PET_NNODES", "'1:4'"]),
    "elastic without ranks": (
        "pytorchjob-worker",
        {"RANK": WITHOUT, "PET_RDZV_ENDPOINT": "rl-worker-0:29400", "PET_NNODES": "1:4"},
        ["AGENT_HEAD", "PET_RDZV_ENDPOINT=rl-worker-0:29400"],
    ),
    "torchrun's ranks without an address": (
        "torchrun-worker",
        {"MASTER_ADDR": WITHOUT},
        ["MASTER_ADDR", "nothing, but NNODES=", "for one machine unset all three"],
    ),
    "loopback on a worker": (
        "torchrun-worker",
        {"MASTER_ADDR": "localhost"},
        ["MASTER_ADDR", "localhost on the node of rank 1"],
    ),
    "no host": ("dstack-worker", {"DSTACK_MASTER_NODE_IP": "10.0.0"}, ["DSTACK_MASTER_NODE_IP"]),
    "no list of hosts": ("sagemaker-head", {"SM_HOSTS": "algo-1"}, ["SM_HOSTS=algo-1", "JSON"]),
    "none of the hosts": (
        "sagemaker-head",
        {"SM_CURRENT_HOST": "algo-3"},
        ["SM_CURRENT_HOST", "'algo-3'", "algo-1"],
    ),
    "a main node beyond the count": (
        "aws-batch-head",
        {"AWS_BATCH_JOB_MAIN_NODE_INDEX": "2"},
        ["AWS_BATCH_JOB_MAIN_NODE_INDEX", "at most 1"],
    ),
    "a broken nodelist": (
        "slurm-worker",
        {"SLURM_JOB_NODELIST": "gpu-[0,2-"},
        ["SLURM_JOB_NODELIST", "no host name with ranges"],
    ),
    "no nodelist": (
        "slurm-one-node-head",
        {"SLURM_JOB_NODELIST": WITHOUT, "SLURM_NODELIST": WITHOUT},
        ["SLURM_JOB_NODELIST", "''"],
    ),
    "a shell of salloc's": ("slurm-one-node-head", {"SLURM_NODEID": WITHOUT}, ["shell of salloc"]),
    "tasks by their count": (
        "slurm-worker",
        {"SLURM_NTASKS": "6", "SLURM_STEP_NUM_TASKS": WITHOUT},
        ["SLURM_NTASKS=6 on 3 node(s)", "srun --ntasks-per-node=1"],
    ),
    "KubeRay's head as a worker": (
        "kuberay-head",
        {"RAY_WORKER": "1"},
        ["RAY_WORKER=1", "KUBERAY_GEN_RAY_START_CMD has --head"],
    ),
    "KubeRay's worker as the head": (
        "kuberay-worker",
        {"RAY_WORKER": "0"},
        ["RAY_WORKER=0", "FQ_RAY_IP=rl-head-svc"],
    ),
    "KubeRay without a count": (
        "kuberay-submitter-head",
        {"EXPECTED_WORKERS": WITHOUT},
        ["EXPECTED_WORKERS", "RAY_JOB_SUBMISSION_ID=rl-8h2pd", "replicas"],
    ),
    "a pod's id on KubeRay": (
        "kuberay-head",
        {"HEAD_POD_ID": "abc123"},
        ["HEAD_POD_ID=abc123", "no RUNPOD_POD_ID", "RAY_CLUSTER_NAME=rl"],
    ),
    "KubeRay's port that is none": (
        "kuberay-head",
        {"KUBERAY_GEN_RAY_START_CMD": "ray start --head --port=$PORT"},
        ["--port", "$PORT"],
    ),
    "a dashboard's port that is none": (
        "kuberay-submitter-head",
        {"RAY_DASHBOARD_ADDRESS": "head-svc:http"},
        ["RAY_DASHBOARD_ADDRESS", "'head-svc:http'"],
    ),
    "an entrypoint on KubeRay's worker": (
        "kuberay-worker",
        {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"},
        ["entrypointNumCpus", "FQ_RAY_IP=rl-head-svc", "submitterPodTemplate"],
    ),
    "flags for a Ray that is KubeRay's": (
        "kuberay-head",
        {"AGENT_NUM_GPUS": "4", "AGENT_RESOURCES": '{"x": 1}', "AGENT_DASHBOARD_HOST": "0.0.0.0"},
        ["AGENT_NUM_GPUS", "AGENT_RESOURCES", "AGENT_DASHBOARD_HOST", "rayStartParams"],
    ),
    "a debugger for a Ray that is KubeRay's": (
        "kuberay-head",
        {"DEBUG_RAY": "1"},
        ["DEBUG_RAY", "environment", "KubeRay"],
    ),
    "steps on KubeRay's nodes": (
        "kuberay-head",
        {"AGENT_PREPARE_EACH": "true"},
        ["AGENT_PREPARE_EACH", "init container"],
    ),
    "an all-reduce without agents on the nodes": (
        "kuberay-head",
        {"AGENT_PREFLIGHT": "nccl"},
        ["AGENT_PREFLIGHT", "no agent on its nodes"],
    ),
    "KubeRay's token left out": (
        "kuberay-submitter-head",
        {"RAY_AUTH_TOKEN": WITHOUT},
        ["RAY_AUTH_TOKEN", "RAY_AUTH_MODE=token", "auth_token"],
    ),
    "KubeRay's token left out, and not Kubernetes' own": (
        "kuberay-submitter-head",
        {"RAY_AUTH_TOKEN": WITHOUT, "RAY_ENABLE_K8S_TOKEN_AUTH": "false"},
        ["RAY_AUTH_TOKEN", "RAY_AUTH_MODE=token", "auth_token"],
    ),
    "vast, a worker by hand": ("vast-alone", {"RAY_WORKER": "1"}, ["AGENT_HEAD", "C.8123456"]),
    "vast, a head that waits": (
        "vast-alone",
        {"RAY_WORKER": "0", "EXPECTED_WORKERS": "1"},
        ["AGENT_HEAD", "C.8123456"],
    ),
}


@pytest.mark.parametrize(
    ("name", "changes", "words"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys()
)
def test_a_contradiction_is_refused_and_names_all_sides(
    name: str, changes: dict[str, str], words: list[str]
) -> None:
    """A contradiction is refused with 78 and names all sides."""
    with pytest.raises(SettingsError) as caught:
        plan_of(changed(name, changes), read(name)[1])
    (problem,) = caught.value.problems
    assert [word for word in words if word not in problem.sentence()] == []
    assert problem.expected


BY_HAND: dict[str, tuple[str, dict[str, str], tuple[str, str, int, str | None]]] = {
    "head by hand against its rank": (
        "lws-worker",
        {"RAY_WORKER": "0", "AGENT_HEAD": OWN},
        ("lws", "head", 1, OWN),
    ),
    "worker by hand against its rank": (
        "lws-head",
        {"RAY_WORKER": "1", "AGENT_HEAD": OTHER},
        ("lws", "worker", 1, OTHER),
    ),
    "a way to the head by hand": (
        "dstack-worker",
        {"AGENT_HEAD": "head.lan"},
        ("dstack", "worker", 2, "head.lan"),
    ),
    "fewer workers": ("dstack-head", {"EXPECTED_WORKERS": "1"}, ("dstack", "head", 1, OWN)),
    "the pod that the rank names too": (
        "runpod-cluster-head",
        {"HEAD_POD_ID": "ic0a1b2c", "RAY_WORKER": "0"},
        ("runpod-cluster", "head", 1, "10.65.0.2"),
    ),
    "HEAD_POD_ID against torchrun's variables": (
        "torchrun-worker",
        {"HEAD_POD_ID": "abc123", "RUNPOD_POD_ID": "abc123"},
        ("runpod", "head", 1, "abc123.runpod.internal"),
    ),
    "torchrun's variables on pods": (
        "torchrun-worker",
        {"RUNPOD_POD_ID": "abc123"},
        ("torchrun", "worker", 1, OWN),
    ),
    "torchrun's variables for one node": (
        "torchrun-head",
        {"NNODES": "1", "AGENT_HEAD": OTHER},
        ("plain", "worker", 1, OTHER),
    ),
    "a batch script, alone by hand": (
        "slurm-batch-script-refused",
        {"EXPECTED_WORKERS": "0"},
        ("slurm", "head", 0, None),
    ),
    "a batch script that is the head by hand": (
        "slurm-batch-script-refused",
        {"AGENT_HEAD": OWN},
        ("slurm", "head", 2, OWN),
    ),
    "KubeRay's head, by hand too": (
        "kuberay-head",
        {"RAY_WORKER": "0"},
        ("kuberay", "head", 2, None),
    ),
    "a Ray of our own on KubeRay's pods": (
        "kuberay-head",
        {"AGENT_HEAD": OWN},
        ("plain", "head", 2, OWN),
    ),
    "Vast.ai, the head by hand": (
        "vast-alone",
        {"AGENT_HEAD": OWN, "EXPECTED_WORKERS": "1"},
        ("vast", "head", 1, OWN),
    ),
    "a main node that is not the first": (
        "aws-batch-worker",
        {"AWS_BATCH_JOB_MAIN_NODE_INDEX": "1"},
        ("aws-batch", "head", 1, OTHER),
    ),
    "PyTorchJob inside torchrun": (
        "pytorchjob-worker",
        {"LOCAL_RANK": "0"},
        ("single", "head", 0, None),
    ),
    "PyTorchJob without Kubernetes": (
        "pytorchjob-worker",
        {"KUBERNETES_SERVICE_HOST": WITHOUT},
        ("single", "head", 0, None),
    ),
    "a step over some of the job's nodes": (
        "slurm-worker",
        {
            "SLURM_STEP_NODELIST": "gpu-[2-3]",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_NODEID": "1",
        },
        ("slurm", "worker", 1, "gpu-2"),
    ),
}


@pytest.mark.parametrize(("name", "changes", "expected"), BY_HAND.values(), ids=BY_HAND.keys())
def test_the_users_settings_override_the_platform(
    name: str, changes: dict[str, str], expected: tuple[str, str, int, str | None]
) -> None:
    """The user's settings override the platform, and weaker evidence yields."""
    t = plan_of(changed(name, changes), read(name)[1]).topology
    assert (t.platform.name, t.role, t.expected_workers, t.head_host) == expected
