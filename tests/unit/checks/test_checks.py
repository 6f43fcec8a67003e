"""Preflight checks: (facts, settings, topology) -> ok, warn or fail, each with a remedy."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.base.errors import SettingsError
from agent.checks import CHECKS, run_checks
from agent.checks.finding import CheckedNode, Finding, Level
from agent.checks.job_needs import recipe_findings
from agent.node.facts import (
    MIB,
    Driver,
    DriverGpu,
    Facts,
    Folder,
    Framework,
    RdmaDevice,
    Room,
    TorchPython,
)
from agent.plan.show import summary
from agent.platforms.resolve import resolve
from agent.settings.jobs import BY_NAME
from support.worlds import MACHINE, POD, SECRET, plan_of, settings_of, topology_of, with_ray

TOKEN = {"RAY_AUTH_TOKEN": SECRET}
TWO = {"EXPECTED_WORKERS": "1"}
DSTACK = {
    "DSTACK_NODE_RANK": "0",
    "DSTACK_NODES_NUM": "2",
    "DSTACK_MASTER_NODE_IP": "10.0.0.5",
}
INSIST = {"AGENT_ALLOW_INSECURE": "1"}
OLD = with_ray(MACHINE, version="2.51.1")
CLICK = with_ray(
    MACHINE, version="2.40.0", python="3.10.13", click="8.3.1", enum_copies_are_same=False
)
NEWER_PYTHON = with_ray(CLICK, enum_copies_are_same=True)
PUBLIC = replace(
    MACHINE, interfaces={"lo": ("127.0.0.1",), "eth0": ("8.8.4.4",)}, default_source="8.8.4.4"
)
OURS = Folder("/tmp/pod-agent", is_folder=True, uid=0, mode=0o700)
PODS = {"RUNPOD_POD_ID": "podaaa", "HEAD_POD_ID": "podaaa"}


def found(check: str, environ: dict[str, str], facts: Facts) -> Finding:
    """Return one check's finding."""
    findings = run_checks(facts, settings_of(environ), topology_of(environ, facts))
    return next(finding for finding in findings if finding.check == check)


def assert_finding(
    check: str, environ: dict[str, str], facts: Facts, level: Level, words: str
) -> None:
    """Compare a check's finding with a row."""
    finding = found(check, environ, facts)
    assert finding.level is level
    assert words in finding.what
    if environ.keys().isdisjoint(INSIST):
        assert bool(finding.remedy) is (level is not Level.OK)
        assert finding.sentence().endswith(finding.remedy)


GPUS = replace(MACHINE, gpus=8, gpu_maker="nvidia")
H200 = tuple(DriverGpu(index, "NVIDIA H200", 143_771) for index in range(8))
KUBERAY = {"RAY_CLUSTER_NAME": "rl", "KUBERAY_GEN_RAY_START_CMD": "ray start --head", **TWO}
KEY = "a" * 40


def with_variables(facts: Facts = MACHINE, **variables: str) -> Facts:
    """Return a machine with an environment."""
    return replace(facts, variables=variables)


def with_driver(*gpus: DriverGpu, fault: str = "") -> Facts:
    """Return a machine of eight GPUs with a report of its driver."""
    return replace(GPUS, driver=Driver("nvidia-smi", gpus, fault))


def with_rdma(states: str, *, may_open: bool = True, **variables: str) -> Facts:
    """Return a machine with an InfiniBand device for each state: + is active."""
    devices = tuple(
        RdmaDevice(f"mlx5_{n}", "InfiniBand", one == "+") for n, one in enumerate(states)
    )
    return replace(GPUS, rdma=devices, rdma_is_open=may_open, variables=variables)


CLUSTER = {
    "RUNPOD_POD_ID": "ic0",
    "RUNPOD_API_KEY": "k" * 20,
    "NODE_RANK": "0",
    "NUM_NODES": "2",
    "PRIMARY_ADDR": "10.0.0.5",
    "NUM_TRAINERS": "0",
}

ROWS: dict[str, tuple[str, dict[str, str], Facts, Level, str]] = {
    "ray": ("ray", {}, MACHINE, Level.OK, "2.60.0 on Python 3.11.7"),
    "no ray": ("ray", {}, with_ray(MACHINE, version=None), Level.FAIL, "not installed"),
    "old ray": ("ray", {}, with_ray(MACHINE, version="2.39.0"), Level.FAIL, "older than 2.40"),
    "oldest ray": ("ray", {}, with_ray(MACHINE, version="2.40.0"), Level.OK, "2.40.0"),
    "next major": ("ray", {}, with_ray(MACHINE, version="3.0.0.dev0"), Level.OK, "3.0.0"),
    "odd version": ("ray", {}, with_ray(MACHINE, version="nightly"), Level.FAIL, "nightly"),
    "no extra": (
        "ray",
        {},
        with_ray(MACHINE, missing=("opencensus",)),
        Level.FAIL,
        "`default` extra (opencensus",
    ),
    "click": (
        "ray",
        {},
        with_ray(CLICK, click="8.3.0"),
        Level.FAIL,
        "click 8.3.0 on Python 3.10.13",
    ),
    "last bad click": ("ray", {}, with_ray(CLICK, click="8.4.1"), Level.FAIL, "cannot start"),
    "older click": ("ray", {}, with_ray(CLICK, click="8.2.1"), Level.OK, "2.40.0"),
    "packages that do not fit": (
        "packages",
        {},
        with_ray(
            MACHINE,
            packages={"fastapi": "0.137.1", "prometheus-fastapi-instrumentator": "8.0.0"},
        ),
        Level.WARN,
        "fastapi 0.137.1 and prometheus-fastapi-instrumentator 8.0.0 do not fit",
    ),
    "packages that fit": (
        "packages",
        {},
        with_ray(MACHINE, packages={"fastapi": "0.136.3"}),
        Level.OK,
        "no pair",
    ),
    "newer click": ("ray", {}, with_ray(CLICK, click="8.5.1"), Level.OK, "2.40.0"),
    "unknown click": ("ray", {}, with_ray(CLICK, click=None), Level.OK, "2.40.0"),
    "click, newer ray": ("ray", {}, with_ray(CLICK, version="2.53.0"), Level.OK, "2.53.0"),
    "click, last such ray": (
        "ray",
        {},
        with_ray(CLICK, version="2.52.1"),
        Level.FAIL,
        "cannot start",
    ),
    "click, newer python": (
        "ray",
        {},
        with_ray(CLICK, enum_copies_are_same=True),
        Level.OK,
        "2.40.0",
    ),
    "no token, alone": ("token", {}, MACHINE, Level.WARN, "RAY_AUTH_TOKEN is not set"),
    "no token, no Ray, alone": (
        "token",
        {"AGENT_LAUNCHER": "torchrun"},
        MACHINE,
        Level.WARN,
        "RAY_AUTH_TOKEN is not set",
    ),
    "more workers than nodes": (
        "nodes",
        {**DSTACK, "EXPECTED_WORKERS": "5"},
        MACHINE,
        Level.WARN,
        "EXPECTED_WORKERS=5, but dstack has 2 nodes (1 worker)",
    ),
    "fewer workers than nodes": (
        "nodes",
        {**DSTACK, "EXPECTED_WORKERS": "0"},
        MACHINE,
        Level.WARN,
        "EXPECTED_WORKERS=0, but dstack has 2 nodes (1 worker)",
    ),
    "no token, two nodes": ("token", TWO, MACHINE, Level.WARN, "RAY_AUTH_TOKEN is not set"),
    "no token, worker": (
        "token",
        {"AGENT_HEAD": "10.0.0.9", "EXPECTED_WORKERS": "0"},
        MACHINE,
        Level.WARN,
        "RAY_AUTH_TOKEN is not set",
    ),
    "token": ("token", TOKEN, MACHINE, Level.OK, "required by"),
    "a short token": (
        "token",
        {"RAY_AUTH_TOKEN": "fifteen-of-them"},
        MACHINE,
        Level.WARN,
        "fewer than 16 characters",
    ),
    "token, first ray": (
        "token",
        TOKEN,
        with_ray(MACHINE, version="2.52.0"),
        Level.OK,
        "required by",
    ),
    "token, old ray": ("token", TOKEN, OLD, Level.FAIL, "no token auth"),
    "token, old ray, insisted": ("token", TOKEN | INSIST, OLD, Level.WARN, "no token auth"),
    "token, old ray, by name": ("token", TOKEN, OLD, Level.FAIL, "RAY_AUTH_TOKEN is set, but"),
    "no token, KubeRay's Ray": (
        "token",
        {"RAY_CLUSTER_NAME": "rl", "KUBERAY_GEN_RAY_START_CMD": "ray start --head", **TWO},
        MACHINE,
        Level.WARN,
        "RAY_AUTH_TOKEN is not set",
    ),
    "public, beside KubeRay's Ray": (
        "addresses",
        {"RAY_CLUSTER_NAME": "rl", "KUBERAY_GEN_RAY_START_CMD": "ray start --head", **TWO},
        PUBLIC,
        Level.FAIL,
        "8.8.4.4 is publicly routable",
    ),
    "private": ("addresses", TWO, MACHINE, Level.OK, "no open port"),
    "public": ("addresses", TWO, PUBLIC, Level.FAIL, "8.8.4.4 is publicly routable"),
    "public with token": ("addresses", TOKEN, PUBLIC, Level.OK, "no open port"),
    "public, token, old ray": (
        "addresses",
        TOKEN,
        with_ray(PUBLIC, version="2.51.1"),
        Level.FAIL,
        "8.8.4.4 is publicly routable, and no token guards",
    ),
    "public, insisted": ("addresses", INSIST, PUBLIC, Level.WARN, "8.8.4.4"),
    "public by hand": ("addresses", {"AGENT_NODE_IP": "1.1.1.1"}, MACHINE, Level.FAIL, "1.1.1.1"),
    "public dashboard": (
        "addresses",
        {"AGENT_DASHBOARD_HOST": "1.1.1.1"},
        MACHINE,
        Level.FAIL,
        "1.1.1.1",
    ),
    "address by route": ("node address", {}, MACHINE, Level.OK, "by route"),
    "own address": ("node address", {"AGENT_NODE_IP": "10.0.0.5"}, MACHINE, Level.OK, "10.0.0.5"),
    "foreign address": (
        "node address",
        {"AGENT_NODE_IP": "10.0.0.6"},
        MACHINE,
        Level.FAIL,
        "no address of this node (it has: 10.0.0.5)",
    ),
    "loopback, alone": ("node address", {"AGENT_NODE_IP": "127.0.0.1"}, MACHINE, Level.OK, "127."),
    "loopback, two nodes": (
        "node address",
        {"AGENT_NODE_IP": "127.0.0.1", **TWO},
        MACHINE,
        Level.FAIL,
        "loopback",
    ),
    "no debugger": ("debugger", {}, MACHINE, Level.OK, "off"),
    "legacy debugger": ("debugger", {"DEBUG_RAY": "1"}, MACHINE, Level.WARN, "`ray debug`"),
    "post-mortem": (
        "debugger",
        {"DEBUG_RAY": "post-mortem"},
        with_ray(MACHINE, debugpy="1.8.22"),
        Level.WARN,
        "waits for VS Code's Ray extension",
    ),
    "post-mortem without debugpy": (
        "debugger",
        {"DEBUG_RAY": "post-mortem"},
        MACHINE,
        Level.WARN,
        "has no debugpy, without which",
    ),
    "post-mortem with an old debugpy": (
        "debugger",
        {"DEBUG_RAY": "post-mortem"},
        with_ray(MACHINE, debugpy="1.6.7"),
        Level.WARN,
        "has debugpy 1.6.7, without which",
    ),
    "open files": ("open files", {}, MACHINE, Level.OK, "65536"),
    "endless files": ("open files", {}, replace(MACHINE, nofile_hard=-1), Level.OK, "65536"),
    "few files": (
        "open files",
        {},
        replace(MACHINE, nofile_hard=65_535),
        Level.WARN,
        "hard limit is 65535",
    ),
    "few files for torchrun": (
        "open files",
        {"AGENT_LAUNCHER": "torchrun"},
        replace(MACHINE, nofile_hard=4096),
        Level.WARN,
        "hard limit is 4096; a job with many processes may need 65536",
    ),
    "shm": ("/dev/shm", {}, replace(MACHINE, shm_free=1024 * MIB), Level.OK, "1024 MiB free"),
    "small shm": (
        "/dev/shm",
        {},
        replace(MACHINE, shm=64 * MIB, shm_free=60 * MIB),
        Level.WARN,
        "64 MiB, 60 MiB free",
    ),
    "one choice of GPUs": ("visible GPUs", {}, MACHINE, Level.OK, "one selection"),
    "two choices of GPUs": (
        "visible GPUs",
        {},
        replace(MACHINE, gpu_contradiction="HIP_VISIBLE_DEVICES=0 and …=1 differ"),
        Level.FAIL,
        "HIP_VISIBLE_DEVICES=0",
    ),
    "tmp": ("/tmp", {}, replace(MACHINE, temp_free=2048 * MIB), Level.OK, "2048 MiB free"),
    "full tmp": ("/tmp", {}, replace(MACHINE, temp_free=2047 * MIB), Level.WARN, "2047 MiB free"),
    "no folder of logs": (
        "AGENT_LOG_DIR",
        {"AGENT_LOG_DIR": "/proc/x"},
        replace(MACHINE, logs_fault="/proc keeps none"),
        Level.FAIL,
        "/proc/x cannot be written: /proc keeps none",
    ),
    "no temp dir": ("temp dir", {}, MACHINE, Level.OK, "not created yet"),
    "our temp dir": ("temp dir", {}, replace(MACHINE, ray_temp=OURS), Level.OK, "owned by this"),
    "our open temp dir": (
        "temp dir",
        {},
        replace(MACHINE, ray_temp=replace(OURS, mode=0o777)),
        Level.OK,
        "owned by this user only",
    ),
    "linked temp dir": (
        "temp dir",
        {},
        replace(MACHINE, ray_temp=replace(OURS, is_folder=False)),
        Level.FAIL,
        "/tmp/pod-agent, the folder for Ray's sockets and logs, is a link",
    ),
    "another's temp dir": (
        "temp dir",
        {},
        replace(MACHINE, ray_temp=replace(OURS, uid=1234)),
        Level.FAIL,
        "belongs to another user (uid 1234)",
    ),
    "strangers in our temp dir": (
        "temp dir",
        {},
        replace(MACHINE, ray_temp=replace(OURS, mode=0o777, strangers=("ray",))),
        Level.FAIL,
        "who put ray into it",
    ),
    "gpus as promised": ("GPUs", {**PODS, "RUNPOD_GPU_COUNT": "8"}, POD, Level.OK, "8 found"),
    "gpus lost": (
        "GPUs",
        {**PODS, "RUNPOD_GPU_COUNT": "8"},
        replace(POD, gpus=7),
        Level.WARN,
        "7 found, 8 promised by runpod",
    ),
    "gpus by hand": (
        "GPUs",
        {**PODS, "RUNPOD_GPU_COUNT": "8", "AGENT_NUM_GPUS": "7"},
        replace(POD, gpus=7),
        Level.OK,
        "7 found",
    ),
    "ports not looked at": ("ports", {}, MACHINE, Level.OK, "not checked"),
    "ports free": ("ports", {}, replace(MACHINE, taken_ports={}), Level.OK, "free"),
    "port taken": (
        "ports",
        {},
        replace(MACHINE, taken_ports={6379: "redis (pid 7)"}),
        Level.FAIL,
        "6379 by redis (pid 7)",
    ),
    "a pod that names no head": (
        "nodes",
        {"RUNPOD_POD_ID": "a"},
        POD,
        Level.WARN,
        "three such pods would be three runs",
    ),
    "ranks of another launcher": (
        "nodes",
        {"MASTER_ADDR": "10.0.0.9", "RANK": "1", "WORLD_SIZE": "2"},
        POD,
        Level.WARN,
        "RANK=1, WORLD_SIZE=2: they may count processes and decide nothing, so this node is a run",
    ),
    "a head without a number": (
        "nodes",
        {"RUNPOD_POD_ID": "a", "HEAD_POD_ID": "a"},
        POD,
        Level.WARN,
        "expects 1 worker",
    ),
    "RDMA": (
        "RDMA",
        TWO,
        with_rdma("+-"),
        Level.OK,
        "mlx5_0 (InfiniBand, active) and mlx5_1 (InfiniBand, no active port); NCCL uses mlx5_0",
    ),
    "RDMA on one node": ("RDMA", {}, with_rdma("-"), Level.OK, "not needed on one node"),
    "RDMA turned off": (
        "RDMA",
        TWO,
        with_rdma("+", NCCL_IB_DISABLE="1"),
        Level.WARN,
        "NCCL_IB_DISABLE=1 turns them off: NCCL uses TCP",
    ),
    "RDMA left on": ("RDMA", TWO, with_rdma("+", NCCL_IB_DISABLE="0"), Level.OK, "NCCL uses mlx"),
    "sockets by name": (
        "RDMA",
        TWO,
        with_rdma("+", NCCL_NET="Socket"),
        Level.WARN,
        "NCCL_NET=Socket turns them off",
    ),
    "RDMA kept from the container": (
        "RDMA",
        TWO,
        with_rdma("+", may_open=False),
        Level.WARN,
        "cannot open /dev/infiniband",
    ),
    "RDMA without a link": ("RDMA", TWO, with_rdma("-"), Level.WARN, "none is active"),
    "a device by prefix": (
        "RDMA",
        TWO,
        with_rdma("++", NCCL_IB_HCA="mlx5_1:1"),
        Level.OK,
        "NCCL uses mlx5_1",
    ),
    "all devices but one": (
        "RDMA",
        TWO,
        with_rdma("++", NCCL_IB_HCA="^=mlx5_0"),
        Level.OK,
        "NCCL uses mlx5_1",
    ),
    "a device that is not active": (
        "RDMA",
        TWO,
        with_rdma("+-", NCCL_IB_HCA="=mlx5_1"),
        Level.WARN,
        "NCCL_IB_HCA==mlx5_1 selects no active one",
    ),
    "an action that can follow nothing": (
        "AGENT_ON_STALL",
        {"AGENT_ON_STALL": "stop", "AGENT_STALL": "0"},
        MACHINE,
        Level.WARN,
        "stop never follows, as AGENT_STALL=0",
    ),
    "all cores": ("cores", {}, replace(MACHINE, machine_cpus=16), Level.OK, "16; Ray"),
    "a share of the cores": (
        "cores",
        {},
        replace(MACHINE, cpus=2, machine_cpus=192),
        Level.OK,
        "2 of this machine's 192; Ray gets 2",
    ),
    "fewer cores than GPUs need": (
        "cores",
        {},
        replace(GPUS, cpus=8, machine_cpus=192),
        Level.WARN,
        "8 of this machine's 192 for 8 GPUs",
    ),
    "GPUs left out by hand": (
        "cores",
        {"AGENT_NUM_GPUS": "0"},
        replace(GPUS, cpus=8),
        Level.OK,
        "Ray gets 8",
    ),
    "processes": ("processes", {}, MACHINE, Level.OK, "no limit"),
    "many processes": (
        "processes",
        {},
        replace(MACHINE, room=Room(4096, "pids.max is 5000, 904 in use")),
        Level.OK,
        "room for 4096 more",
    ),
    "few processes": (
        "processes",
        {},
        replace(MACHINE, room=Room(4095, "`ulimit -u` is 4095")),
        Level.WARN,
        "room for only 4095 more processes and threads: `ulimit -u` is 4095",
    ),
    "lost GPUs": (
        "GPU health",
        {},
        replace(GPUS, gpu_fault="/dev/nvidiactl: operation not permitted"),
        Level.FAIL,
        "the driver of 8 GPUs refuses access (/dev/nvidiactl: operation not permitted)",
    ),
    "lost GPUs that nobody wants": (
        "GPU health",
        {"AGENT_NUM_GPUS": "0"},
        replace(GPUS, gpu_fault="/dev/nvidiactl: operation not permitted"),
        Level.WARN,
        "refuses access",
    ),
    "driver not asked": ("GPU health", {}, GPUS, Level.OK, "not queried here"),
    "sound": ("GPU health", {}, with_driver(*H200), Level.OK, "8 x NVIDIA H200 (143771 MiB)"),
    "NVML": (
        "GPU health",
        {},
        with_driver(fault="exit code 255: Failed to initialize NVML: Unknown Error"),
        Level.FAIL,
        "nvidia-smi: exit code 255: Failed to initialize NVML: Unknown Error",
    ),
    "one is missing": ("GPU health", {}, with_driver(*H200[1:]), Level.WARN, "reports 7 of the 8"),
    "memory errors": (
        "GPU health",
        {},
        with_driver(replace(H200[0], errors=2), *H200[1:]),
        Level.WARN,
        "GPU 0 has 2 memory errors",
    ),
    "no interface named": ("interfaces", {}, MACHINE, Level.OK, "this node's address"),
    "interface": (
        "interfaces",
        TWO,
        with_variables(NCCL_SOCKET_IFNAME="eth", GLOO_SOCKET_IFNAME="ib0,eth0"),
        Level.OK,
        "as set by NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME",
    ),
    "all interfaces but": (
        "interfaces",
        TWO,
        with_variables(NCCL_SOCKET_IFNAME="^lo,docker"),
        Level.OK,
        "as set",
    ),
    "an interface that is not here": (
        "interfaces",
        TWO,
        with_variables(GPUS, NCCL_SOCKET_IFNAME="ens1"),
        Level.FAIL,
        "NCCL_SOCKET_IFNAME=ens1 names no interface of this node (it has: lo, eth0)",
    ),
    "the same without GPUs": (
        "interfaces",
        TWO,
        with_variables(NCCL_SOCKET_IFNAME="ens1"),
        Level.WARN,
        "names no interface",
    ),
    "no exact interface": (
        "interfaces",
        TWO,
        with_variables(GPUS, NCCL_SOCKET_IFNAME="=eth"),
        Level.FAIL,
        "names no interface",
    ),
    "Gloo takes whole names only": (
        "interfaces",
        TWO,
        with_variables(GPUS, GLOO_SOCKET_IFNAME="eth"),
        Level.FAIL,
        "GLOO_SOCKET_IFNAME=eth names no interface",
    ),
    "loopback between nodes": (
        "interfaces",
        TWO,
        with_variables(GPUS, NCCL_SOCKET_IFNAME="lo"),
        Level.FAIL,
        "NCCL_SOCKET_IFNAME=lo is loopback",
    ),
    "loopback alone": (
        "interfaces",
        {},
        with_variables(GPUS, NCCL_SOCKET_IFNAME="lo"),
        Level.OK,
        "as set",
    ),
    "an interface without an address": (
        "interfaces",
        TWO,
        replace(
            with_variables(GPUS, NCCL_SOCKET_IFNAME="ib0"),
            interfaces={**MACHINE.interfaces, "ib0": ()},
        ),
        Level.FAIL,
        "NCCL_SOCKET_IFNAME=ib0 names no interface",
    ),
    "no proxy": ("proxies", {}, MACHINE, Level.OK, "none"),
    "a proxy": (
        "proxies",
        {},
        with_variables(HTTPS_PROXY="set"),
        Level.OK,
        "HTTPS_PROXY set; head and node are added to no_proxy",
    ),
    "no key": ("W&B key", {}, MACHINE, Level.OK, "stays offline"),
    "a login": ("W&B key", {}, replace(MACHINE, wandb_login=True), Level.OK, "this machine's"),
    "a key": ("W&B key", {"WANDB_API_KEY": KEY}, MACHINE, Level.OK, "well-formed"),
    "a key of one's own server": (
        "W&B key",
        {"WANDB_API_KEY": f"local-{KEY}"},
        MACHINE,
        Level.OK,
        "well-formed",
    ),
    "a newer key": ("W&B key", {"WANDB_API_KEY": f"wandb_v1_{KEY}"}, MACHINE, Level.OK, "formed"),
    "a short key": ("W&B key", {"WANDB_API_KEY": KEY[1:]}, MACHINE, Level.WARN, "40 or more"),
    "a placeholder": ("W&B key", {"WANDB_API_KEY": "<your key>"}, MACHINE, Level.WARN, "dashes"),
    "ports outside": ("port range", {}, MACHINE, Level.OK, "outside 32768-60999"),
    "ports inside": (
        "port range",
        {},
        replace(MACHINE, ephemeral_ports=(1024, 65_535)),
        Level.WARN,
        "(5000, 6379, 8265, 8266 and ",
    ),
    "workers' ports inside": (
        "port range",
        {},
        replace(MACHINE, ephemeral_ports=(15_000, 61_000)),
        Level.WARN,
        "(19999)",
    ),
    "ports inside, left out": (
        "port range",
        {},
        replace(
            MACHINE,
            ephemeral_ports=(9000, 65_535),
            reserved_ports=((10_001, 10_001), (10_002, 20_000)),
        ),
        Level.OK,
        "outside",
    ),
    "a port inside by hand": (
        "port range",
        {"AGENT_RAY_PORT": "40000"},
        MACHINE,
        Level.WARN,
        "(40000)",
    ),
    "a disk that is nearly full": (
        "/tmp",
        {},
        replace(MACHINE, temp_free=49 << 30, temp_total=1000 << 30),
        Level.WARN,
        "50176 MiB free, where Ray keeps logs",
    ),
    "a large disk": (
        "/tmp",
        {},
        replace(MACHINE, temp_free=51 << 30, temp_total=1000 << 30),
        Level.OK,
        "52224 MiB free",
    ),
    "an address of everybody's": (
        "node address",
        {"AGENT_NODE_IP": "10.9.9.9", **TWO},
        MACHINE,
        Level.FAIL,
        "no address of this node",
    ),
}


@pytest.mark.parametrize(
    ("check", "environ", "facts", "level", "words"), ROWS.values(), ids=ROWS.keys()
)
def test_findings(
    check: str, environ: dict[str, str], facts: Facts, level: Level, words: str
) -> None:
    """Each check has its level, its sentence, and a remedy unless it is ok."""
    assert_finding(check, environ, facts, level, words)


def test_every_check_is_run_and_tested() -> None:
    """Each check returns one finding, has a unique name, and has a row in a test's table."""
    names = [f.check for f in run_checks(MACHINE, settings_of({}), topology_of({}))]
    assert len(names) == len(set(names))
    elsewhere = {"torch", "AGENT_PREFLIGHT"}  # test_torchrun.py, test_preflight.py
    of_some = {"nodes", "RDMA", "packages", "AGENT_ON_STALL", "AGENT_LOG_DIR"}
    assert {*names, *elsewhere, *of_some} == {
        name.format(temp=MACHINE.temp) for name, _, _ in CHECKS
    }
    assert {*names, *of_some} == {row[0] for row in ROWS.values()}, "a check without a row in ROWS"


@pytest.mark.parametrize(
    "fine",
    [
        {},
        {"AGENT_STALL": "0"},
        {"AGENT_ON_STALL": "stop"},
        {"AGENT_STALL": "0", "AGENT_ON_STALL": "log"},
    ],
)
def test_an_action_that_can_follow_is_no_finding(fine: dict[str, str]) -> None:
    """Only `retry` or `stop` beside AGENT_STALL=0 can never follow."""
    settings = settings_of(fine)
    assert run_checks(MACHINE, settings, topology_of(fine), "AGENT_ON_STALL") == ()


def test_no_finding_has_a_secret() -> None:
    """Findings are printed and logged, so they speak of secrets by name only."""
    findings = run_checks(OLD, settings_of(TOKEN), topology_of(TOKEN, OLD))
    assert SECRET not in " ".join(finding.sentence() for finding in findings)


def test_what_a_plan_says_of_a_cluster() -> None:
    """That the head deletes it, or how it ends; other pods are stopped as asked."""
    environ = {**CLUSTER, "AGENT_ON_DONE": "terminate-pod"}
    shown = {line.label.strip(): line.text for line in summary(plan_of(environ, MACHINE))}
    assert shown["when done:"].startswith("terminate-pod: the head deletes the whole cluster; logs")
    environ = {**CLUSTER, "AGENT_ON_DONE": "hold"}
    shown = {line.label.strip(): line.text for line in summary(plan_of(environ, MACHINE))}
    assert shown["held:"].endswith("to end it: delete the cluster in RunPod's console")
    pod = {"RUNPOD_POD_ID": "abc", "AGENT_ON_DONE": "stop-pod", "RUNPOD_API_KEY": "k" * 20}
    shown = {line.label.strip(): line.text for line in summary(plan_of(pod, MACHINE))}
    assert shown["when done:"].startswith("stop-pod; logs in")
    assert "held:" not in shown


def test_a_pod_of_a_cluster_cannot_be_stopped_alone() -> None:
    """78 at the start, with the reason and the remedy."""
    refused = "AGENT_ON_DONE: got 'stop-pod', which RunPod refuses"
    with pytest.raises(SettingsError, match=refused) as caught:
        topology_of({**CLUSTER, "AGENT_ON_DONE": "stop-pod"})
    assert "terminate-pod, which deletes the whole cluster" in str(caught.value)


def test_a_keys_text_is_never_printed() -> None:
    """A finding about a malformed key does not contain the key."""
    assert "hunter2" not in found("W&B key", {"WANDB_API_KEY": "hunter2"}, MACHINE).sentence()


@pytest.mark.parametrize(
    ("environ", "installed", "said"),
    [
        ({"AGENT_ROLLOUT": "sglang"}, {"vllm": "0.11.0"}, "sglang is not installed"),
        ({"AGENT_ROLLOUT": "sglang"}, {"sglang": "0.5.8"}, ""),
        ({"AGENT_LORA_RANK": "64"}, {"vllm": "0.11.0"}, "peft is not installed"),
        ({"AGENT_LORA_RANK": "64"}, {"peft": "0.18.0"}, ""),
        ({"AGENT_BACKEND": "megatron"}, {"peft": "0.18.0"}, "megatron-core is not installed"),
        ({"AGENT_BACKEND": "megatron"}, {"megatron-core": "0.13.0"}, ""),
        ({"AGENT_BACKEND": "fsdp"}, {"peft": "0.18.0"}, ""),
        ({"AGENT_ROLLOUT": "sglang"}, {}, ""),  # nothing is known of that Python
    ],
)
def test_packages_of_a_recipes_options(
    environ: dict[str, str], installed: dict[str, str], said: str
) -> None:
    """An engine, or a package for adapters, that is missing is named before the boot."""
    ray = replace(MACHINE.ray, libraries=installed, packages=installed)
    framework = Framework("verl", "/env/verl", "0.9.1")
    facts = replace(MACHINE, ray=ray, framework=framework)
    given = {"AGENT_MODEL": "a/b", "AGENT_TRAIN_DATA": "/d", "AGENT_JOB": "verl-grpo"}
    settings = settings_of({**given, **environ})
    node = CheckedNode(facts, settings, resolve({}, settings, facts))
    whats = [finding.what for finding in recipe_findings(BY_NAME["verl-grpo"], node, "/ckpt")]
    missing = [what.partition(": ")[2] for what in whats if "is not installed" in what]
    assert missing == ([f"{said} for {facts.job_python}"] if said else [])


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({}, Level.FAIL),
        ({"AGENT_PREPARE": "mount /x"}, Level.WARN),
        ({"RAY_WORKER": "1", "AGENT_HEAD": "10.9.9.9"}, None),
    ],
)
def test_no_place_for_checkpoints(environ: dict[str, str], level: Level | None) -> None:
    """The head would refuse after the boot; a prepare step may still mount the disk."""
    facts = replace(MACHINE, checkpoints_fault="/x is a file, not a folder")
    settings = settings_of(environ)
    node = CheckedNode(facts, settings, resolve(environ, settings, facts))
    findings = recipe_findings(BY_NAME["verl-grpo"], node, "/x")
    assert [finding.level for finding in findings] == ([level] if level else [])
    if level:
        assert "no place for them in /x: /x is a file" in findings[0].what


def test_warnings_of_a_torchrun_job_do_not_name_ray() -> None:
    """It runs none."""
    facts = replace(
        MACHINE,
        nofile_hard=1024,
        shm_free=0,
        temp_free=0,
        room=Room(10, "pids.max is 99"),
        torch=TorchPython("/python", "2.9.0"),
    )
    environ = {"AGENT_LAUNCHER": "torchrun"}
    settings = settings_of(environ)
    findings = run_checks(facts, settings, resolve(environ, settings, facts))
    sentences = [row.sentence() for row in findings if row.level is Level.WARN]
    assert [row.check for row in findings if "Ray" in row.sentence()] == []
    assert len(sentences) >= 4


@pytest.mark.parametrize(("free", "warned"), [(210 << 30, False), (209 << 30, True), (None, False)])
def test_room_for_two_checkpoints(free: int | None, warned: bool) -> None:  # noqa: FBT001 - a row
    """If the model's size is known, two checkpoints with their optimizer must fit."""
    facts = replace(MACHINE, model_bytes=15 << 30, checkpoints_free=free)
    settings = settings_of({})
    node = CheckedNode(facts, settings, resolve({}, settings, facts))
    findings = recipe_findings(BY_NAME["verl-grpo"], node, "/ckpt")
    assert bool(findings) is warned
    if findings:
        assert "209 GiB free; two checkpoints" in findings[0].what
        assert "(15.0 GiB)" in findings[0].what
