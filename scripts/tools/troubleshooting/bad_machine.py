"""A machine with nearly every fault, so that each check reports a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks import run_checks
from agent.node.facts import MIB, Driver, DriverGpu, Facts, Folder, RayPython, Room
from agent.platforms.resolve import resolve
from agent.settings import load

if TYPE_CHECKING:
    from agent.checks.finding import Finding

ENVIRON = {
    "RUNPOD_POD_ID": "podaaa",
    "HEAD_POD_ID": "podaaa",
    "RUNPOD_GPU_COUNT": "8",
    "DEBUG_RAY": "1",
    "AGENT_NODE_IP": "10.0.0.9",
    "WANDB_API_KEY": "0123",
}
FACTS = Facts(
    hostname="pod-host",
    interfaces={"lo": ("127.0.0.1",), "eth0": ("172.17.0.2",), "podnet1": ("8.8.4.4",)},
    ray=RayPython(
        "/opt/my env/bin/python",
        "3.10.14",
        "2.39.0",
        packages={"fastapi": "0.137.1", "prometheus-fastapi-instrumentator": "8.0.0"},
    ),
    cpus=4,
    machine_cpus=192,
    memory=2048 * MIB,
    machine_memory=2_000_000 * MIB,
    shm=64 * MIB,
    shm_free=60 * MIB,
    temp_free=1000 * MIB,
    temp_total=100_000 * MIB,
    nofile_soft=1024,
    nofile_hard=4096,
    room=Room(500, "pids.max is 2048, 1548 in use"),
    ephemeral_ports=(1024, 65_535),
    variables={
        "NCCL_SOCKET_IFNAME": "ens1",
        "RAY_ADDRESS": "10.0.0.7:6380",
        "CUDA_VISIBLE_DEVICES": "0,9",
    },
    gpus=4,
    gpu_maker="nvidia",
    gpu_fault="/dev/nvidiactl: operation not permitted",
    gpu_contradiction="HIP_VISIBLE_DEVICES=0 and CUDA_VISIBLE_DEVICES=1 differ",
    driver=Driver("nvidia-smi", (DriverGpu(0, "NVIDIA H200", 143_771, 3),)),
    default_source="172.17.0.2",
    taken_ports={6379: "redis-server (pid 7)"},
    ray_temp=Folder("/tmp/pod-agent", is_folder=True, uid=1000, mode=0o777),
)


def findings() -> tuple[Finding, ...]:
    """Return the findings of the checks."""
    settings = load(ENVIRON, None).settings
    return run_checks(FACTS, settings, resolve(ENVIRON, settings, FACTS))
