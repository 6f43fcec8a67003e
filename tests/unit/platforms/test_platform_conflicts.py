"""Contradictions between the user's settings and a platform: the user's win, or 78."""

from __future__ import annotations

import pytest

from agent.base.errors import SettingsError
from support.captured import planned

CONTRADICTIONS = [
    ("lws-head RAY_WORKER=1", ["RAY_WORKER=1", "LWS_WORKER_INDEX=0"]),
    ("slurm-requeued-worker RAY_WORKER=0", ["RAY_WORKER=0", "SLURM_NODEID=1"]),
    (
        "skypilot-head AGENT_HEAD=10.0.0.9",
        ["SKYPILOT_NODE_RANK=0", "AGENT_HEAD=10.0.0.9 is not an address", "10.0.0.5"],
    ),
    ("torchrun-worker AGENT_HEAD=10.0.0.5", ["NODE_RANK=1", "AGENT_HEAD=10.0.0.5 is an address"]),
    (
        "runpod-cluster-head HEAD_POD_ID=other",
        ["HEAD_POD_ID=other", "RUNPOD_POD_ID=ic0a1b2c", "NODE_RANK=0"],
    ),
    (
        "runpod-cluster-worker HEAD_POD_ID=ic3d4e5f",
        ["HEAD_POD_ID=ic3d4e5f", "RUNPOD_POD_ID=ic3d4e5f", "NODE_RANK=1"],
    ),
    ("slurm-head HEAD_POD_ID=abc123", ["HEAD_POD_ID=abc123", "no RUNPOD_POD_ID", "SLURM_NODEID=0"]),
    ("lws-worker !LWS_GROUP_SIZE", ["LWS_GROUP_SIZE", "nothing"]),
    ("lws-worker !LWS_WORKER_INDEX", ["LWS_WORKER_INDEX", "nothing"]),
    ("lws-worker !LWS_LEADER_ADDRESS", ["LWS_LEADER_ADDRESS", "nothing"]),
    ("kubeflow-trainer-worker PET_NODE_RANK=2", ["PET_NODE_RANK", "'2'", "at most 1"]),
    ("kubeflow-trainer-worker PET_NNODES=1:4", ["PET_NNODES", "'1:4'"]),
    (
        "pytorchjob-worker !RANK PET_RDZV_ENDPOINT=rl-worker-0:29400 PET_NNODES=1:4",
        ["AGENT_HEAD", "PET_RDZV_ENDPOINT=rl-worker-0:29400"],
    ),
    (
        "torchrun-worker !MASTER_ADDR",
        ["MASTER_ADDR", "nothing, but NNODES=", "for one machine unset all three"],
    ),
    ("torchrun-worker MASTER_ADDR=localhost", ["MASTER_ADDR", "localhost on the node of rank 1"]),
    ("dstack-worker DSTACK_MASTER_NODE_IP=10.0.0", ["DSTACK_MASTER_NODE_IP"]),
    ("sagemaker-head SM_HOSTS=algo-1", ["SM_HOSTS=algo-1", "JSON"]),
    ("sagemaker-head SM_CURRENT_HOST=algo-3", ["SM_CURRENT_HOST", "'algo-3'", "algo-1"]),
    (
        "aws-batch-head AWS_BATCH_JOB_MAIN_NODE_INDEX=2",
        ["AWS_BATCH_JOB_MAIN_NODE_INDEX", "at most 1"],
    ),
    (
        "slurm-worker SLURM_JOB_NODELIST=gpu-[0,2-",
        ["SLURM_JOB_NODELIST", "no host name with ranges"],
    ),
    ("slurm-one-node-head !SLURM_JOB_NODELIST !SLURM_NODELIST", ["SLURM_JOB_NODELIST", "''"]),
    ("slurm-one-node-head !SLURM_NODEID", ["shell of salloc"]),
    (
        "slurm-worker SLURM_NTASKS=6 !SLURM_STEP_NUM_TASKS",
        ["SLURM_NTASKS=6 on 3 node(s)", "srun --ntasks-per-node=1"],
    ),
    ("kuberay-head RAY_WORKER=1", ["RAY_WORKER=1", "KUBERAY_GEN_RAY_START_CMD has --head"]),
    ("kuberay-worker RAY_WORKER=0", ["RAY_WORKER=0", "FQ_RAY_IP=rl-head-svc"]),
    (
        "kuberay-submitter-head !EXPECTED_WORKERS",
        ["EXPECTED_WORKERS", "RAY_JOB_SUBMISSION_ID=rl-8h2pd", "replicas"],
    ),
    (
        "kuberay-head HEAD_POD_ID=abc123",
        ["HEAD_POD_ID=abc123", "no RUNPOD_POD_ID", "RAY_CLUSTER_NAME=rl"],
    ),
    ("kuberay-head 'KUBERAY_GEN_RAY_START_CMD=ray start --head --port=$PORT'", ["--port", "$PORT"]),
    (
        "kuberay-submitter-head RAY_DASHBOARD_ADDRESS=head-svc:http",
        ["RAY_DASHBOARD_ADDRESS", "'head-svc:http'"],
    ),
    (
        "kuberay-worker RAY_JOB_CONFIG_JSON_ENV_VAR={}",
        ["entrypointNumCpus", "FQ_RAY_IP=rl-head-svc", "submitterPodTemplate"],
    ),
    (
        "kuberay-head AGENT_NUM_GPUS=4 'AGENT_RESOURCES={\"x\": 1}' AGENT_DASHBOARD_HOST=0.0.0.0",
        ["AGENT_NUM_GPUS", "AGENT_RESOURCES", "AGENT_DASHBOARD_HOST", "rayStartParams"],
    ),
    ("kuberay-head DEBUG_RAY=1", ["DEBUG_RAY", "environment", "KubeRay"]),
    ("kuberay-head AGENT_PREPARE_EACH=true", ["AGENT_PREPARE_EACH", "init container"]),
    ("kuberay-head AGENT_PREFLIGHT=nccl", ["AGENT_PREFLIGHT", "no agent on its nodes"]),
    (
        "kuberay-submitter-head !RAY_AUTH_TOKEN",
        ["RAY_AUTH_TOKEN", "RAY_AUTH_MODE=token", "auth_token"],
    ),
    (
        "kuberay-submitter-head !RAY_AUTH_TOKEN RAY_ENABLE_K8S_TOKEN_AUTH=false",
        ["RAY_AUTH_TOKEN", "RAY_AUTH_MODE=token", "auth_token"],
    ),
    ("vast-alone RAY_WORKER=1", ["AGENT_HEAD", "C.8123456"]),
    ("vast-alone RAY_WORKER=0 EXPECTED_WORKERS=1", ["AGENT_HEAD", "C.8123456"]),
]
"""A captured environment, with variables set and `!NAME` removed; words of the refusal."""


@pytest.mark.parametrize(("line", "words"), CONTRADICTIONS)
def test_a_contradiction_is_refused_and_names_all_sides(line: str, words: list[str]) -> None:
    """A contradiction between the user's settings and the platform, or in it, is 78."""
    with pytest.raises(SettingsError) as caught:
        planned(line)
    (problem,) = caught.value.problems
    assert [word for word in words if word not in problem.sentence()] == []
    assert problem.expected


BY_HAND = [
    ("lws-worker RAY_WORKER=0 AGENT_HEAD=10.0.0.5", ("lws", "head", 1, "10.0.0.5")),
    ("lws-head RAY_WORKER=1 AGENT_HEAD=10.0.0.9", ("lws", "worker", 1, "10.0.0.9")),
    ("dstack-worker AGENT_HEAD=head.lan", ("dstack", "worker", 2, "head.lan")),
    ("dstack-head EXPECTED_WORKERS=1", ("dstack", "head", 1, "10.0.0.5")),
    (
        "runpod-cluster-head HEAD_POD_ID=ic0a1b2c RAY_WORKER=0",
        ("runpod-cluster", "head", 1, "10.65.0.2"),
    ),
    (
        "torchrun-worker HEAD_POD_ID=abc123 RUNPOD_POD_ID=abc123",
        ("runpod", "head", 1, "abc123.runpod.internal"),
    ),
    ("torchrun-worker RUNPOD_POD_ID=abc123", ("torchrun", "worker", 1, "10.0.0.5")),
    ("torchrun-head NNODES=1 AGENT_HEAD=10.0.0.9", ("plain", "worker", 1, "10.0.0.9")),
    ("slurm-batch-script-refused EXPECTED_WORKERS=0", ("slurm", "head", 0, None)),
    ("slurm-batch-script-refused AGENT_HEAD=10.0.0.5", ("slurm", "head", 2, "10.0.0.5")),
    ("kuberay-head RAY_WORKER=0", ("kuberay", "head", 2, None)),
    ("kuberay-head AGENT_HEAD=10.0.0.5", ("plain", "head", 2, "10.0.0.5")),
    ("vast-alone AGENT_HEAD=10.0.0.5 EXPECTED_WORKERS=1", ("vast", "head", 1, "10.0.0.5")),
    ("aws-batch-worker AWS_BATCH_JOB_MAIN_NODE_INDEX=1", ("aws-batch", "head", 1, "10.0.0.9")),
    ("pytorchjob-worker LOCAL_RANK=0", ("single", "head", 0, None)),
    ("pytorchjob-worker !KUBERNETES_SERVICE_HOST", ("single", "head", 0, None)),
    (
        (
            "slurm-worker SLURM_STEP_NODELIST=gpu-[2-3] SLURM_STEP_NUM_NODES=2"
            " SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=1"
        ),
        ("slurm", "worker", 1, "gpu-2"),
    ),
]


@pytest.mark.parametrize(("line", "expected"), BY_HAND)
def test_the_users_settings_override_the_platform(
    line: str, expected: tuple[str, str, int, str | None]
) -> None:
    """The user's settings override the platform, and weaker evidence yields."""
    t = planned(line).topology
    assert (t.platform.name, t.role, t.expected_workers, t.head_host) == expected
