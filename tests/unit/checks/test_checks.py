"""Preflight checks: (facts, settings, topology) -> ok, warn or fail, each with a remedy."""

from __future__ import annotations

from typing import Any, NamedTuple

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

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
TOKEN: dict[str, Any] = {"RAY_AUTH_TOKEN": SECRET}
SHORT_TOKEN: dict[str, Any] = {"RAY_AUTH_TOKEN": "fifteen-of-them"}
TWO: dict[str, Any] = {"EXPECTED_WORKERS": "1"}
DSTACK: dict[str, Any] = {
    "DSTACK_NODE_RANK": "0",
    "DSTACK_NODES_NUM": "2",
    "DSTACK_MASTER_NODE_IP": "10.0.0.5",
}
INSIST: dict[str, Any] = {"AGENT_ALLOW_INSECURE": "1"}
OLD = with_ray(MACHINE, version="2.51.1")
CLICK = with_ray(
    MACHINE, version="2.40.0", python="3.10.13", click="8.3.1", enum_copies_are_same=False
)
NEWER_PYTHON = with_ray(CLICK, enum_copies_are_same=True)
PUBLIC = replace(
    MACHINE, interfaces={"lo": ("127.0.0.1",), "eth0": ("8.8.4.4",)}, default_source="8.8.4.4"
)
OURS = Folder("/tmp/pod-agent", is_folder=True, uid=0, mode=0o700)
PODS: dict[str, Any] = {"RUNPOD_POD_ID": "podaaa", "HEAD_POD_ID": "podaaa"}


class Row(NamedTuple):
    """A check on a machine with an environment: its level, and words of its sentence."""

    check: str
    level: Level
    words: str
    facts: Facts
    environ: dict[str, str]


def row(check: str, level: Level, words: str, facts: Facts = MACHINE, **environ: str) -> Row:
    """Return a row of the table."""
    return Row(check, level, words, facts, environ)


def machine(**changes: object) -> Facts:
    """Return a machine with other facts."""
    return replace(MACHINE, **changes)


def found(check: str, environ: dict[str, str], facts: Facts) -> Finding:
    """Return one check's finding."""
    findings = run_checks(facts, settings_of(environ), topology_of(environ, facts))
    return next(finding for finding in findings if finding.check == check)


GPUS = replace(MACHINE, gpus=8, gpu_maker="nvidia")
H200 = tuple(DriverGpu(index, "NVIDIA H200", 143_771) for index in range(8))
KUBERAY: dict[str, Any] = {
    "RAY_CLUSTER_NAME": "rl",
    "KUBERAY_GEN_RAY_START_CMD": "ray start --head",
    **TWO,
}
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


CLUSTER: dict[str, Any] = {
    "RUNPOD_POD_ID": "ic0",
    "RUNPOD_API_KEY": "k" * 20,
    "NODE_RANK": "0",
    "NUM_NODES": "2",
    "PRIMARY_ADDR": "10.0.0.5",
    "NUM_TRAINERS": "0",
}

ROWS = [
    row("ray", OK, "2.60.0 on Python 3.11.7"),
    row("ray", FAIL, "not installed", with_ray(MACHINE, version=None)),
    row("ray", FAIL, "older than 2.40", with_ray(MACHINE, version="2.39.0")),
    row("ray", OK, "2.40.0", with_ray(MACHINE, version="2.40.0")),
    row("ray", OK, "3.0.0", with_ray(MACHINE, version="3.0.0.dev0")),
    row("ray", FAIL, "nightly", with_ray(MACHINE, version="nightly")),
    row("ray", FAIL, "`default` extra (opencensus", with_ray(MACHINE, missing=("opencensus",))),
    row("ray", FAIL, "click 8.3.0 on Python 3.10.13", with_ray(CLICK, click="8.3.0")),
    row("ray", FAIL, "cannot start", with_ray(CLICK, click="8.4.1")),
    row("ray", OK, "2.40.0", with_ray(CLICK, click="8.2.1")),
    row(
        "packages",
        WARN,
        "fastapi 0.137.1 and prometheus-fastapi-instrumentator 8.0.0 do not fit",
        with_ray(
            MACHINE, packages={"fastapi": "0.137.1", "prometheus-fastapi-instrumentator": "8.0.0"}
        ),
    ),
    row("packages", OK, "no pair", with_ray(MACHINE, packages={"fastapi": "0.136.3"})),
    row("ray", OK, "2.40.0", with_ray(CLICK, click="8.5.1")),
    row("ray", OK, "2.40.0", with_ray(CLICK, click=None)),
    row("ray", OK, "2.53.0", with_ray(CLICK, version="2.53.0")),
    row("ray", FAIL, "cannot start", with_ray(CLICK, version="2.52.1")),
    row("ray", OK, "2.40.0", with_ray(CLICK, enum_copies_are_same=True)),
    row("token", WARN, "RAY_AUTH_TOKEN is not set"),
    row("token", WARN, "RAY_AUTH_TOKEN is not set", AGENT_LAUNCHER="torchrun"),
    row(
        "nodes",
        WARN,
        "EXPECTED_WORKERS=5, but dstack has 2 nodes (1 worker)",
        **DSTACK,
        EXPECTED_WORKERS="5",
    ),
    row(
        "nodes",
        WARN,
        "EXPECTED_WORKERS=0, but dstack has 2 nodes (1 worker)",
        **DSTACK,
        EXPECTED_WORKERS="0",
    ),
    row("token", WARN, "RAY_AUTH_TOKEN is not set", **TWO),
    row("token", WARN, "RAY_AUTH_TOKEN is not set", AGENT_HEAD="10.0.0.9", EXPECTED_WORKERS="0"),
    row("token", OK, "required by", **TOKEN),
    row("token", WARN, "fewer than 16 characters", **SHORT_TOKEN),
    row("token", OK, "required by", with_ray(MACHINE, version="2.52.0"), **TOKEN),
    row("token", FAIL, "no token auth", OLD, **TOKEN),
    row("token", WARN, "no token auth", OLD, **(TOKEN | INSIST)),
    row("token", FAIL, "RAY_AUTH_TOKEN is set, but", OLD, **TOKEN),
    row(
        "token",
        WARN,
        "RAY_AUTH_TOKEN is not set",
        RAY_CLUSTER_NAME="rl",
        KUBERAY_GEN_RAY_START_CMD="ray start --head",
        **TWO,
    ),
    row(
        "addresses",
        FAIL,
        "8.8.4.4 is publicly routable",
        PUBLIC,
        RAY_CLUSTER_NAME="rl",
        KUBERAY_GEN_RAY_START_CMD="ray start --head",
        **TWO,
    ),
    row("addresses", OK, "no open port", **TWO),
    row("addresses", FAIL, "8.8.4.4 is publicly routable", PUBLIC, **TWO),
    row("addresses", OK, "no open port", PUBLIC, **TOKEN),
    row(
        "addresses",
        FAIL,
        "8.8.4.4 is publicly routable, and no token guards",
        with_ray(PUBLIC, version="2.51.1"),
        **TOKEN,
    ),
    row("addresses", WARN, "8.8.4.4", PUBLIC, **INSIST),
    row("addresses", FAIL, "1.1.1.1", AGENT_NODE_IP="1.1.1.1"),
    row("addresses", FAIL, "1.1.1.1", AGENT_DASHBOARD_HOST="1.1.1.1"),
    row("node address", OK, "by route"),
    row("node address", OK, "10.0.0.5", AGENT_NODE_IP="10.0.0.5"),
    row(
        "node address", FAIL, "no address of this node (it has: 10.0.0.5)", AGENT_NODE_IP="10.0.0.6"
    ),
    row("node address", OK, "127.", AGENT_NODE_IP="127.0.0.1"),
    row("node address", FAIL, "loopback", AGENT_NODE_IP="127.0.0.1", **TWO),
    row("debugger", OK, "off"),
    row("debugger", WARN, "`ray debug`", DEBUG_RAY="1"),
    row(
        "debugger",
        WARN,
        "waits for VS Code's Ray extension",
        with_ray(MACHINE, debugpy="1.8.22"),
        DEBUG_RAY="post-mortem",
    ),
    row("debugger", WARN, "has no debugpy, without which", DEBUG_RAY="post-mortem"),
    row(
        "debugger",
        WARN,
        "has debugpy 1.6.7, without which",
        with_ray(MACHINE, debugpy="1.6.7"),
        DEBUG_RAY="post-mortem",
    ),
    row("open files", OK, "65536"),
    row("open files", OK, "65536", machine(nofile_hard=-1)),
    row("open files", WARN, "hard limit is 65535", machine(nofile_hard=65_535)),
    row(
        "open files",
        WARN,
        "hard limit is 4096; a job with many processes may need 65536",
        machine(nofile_hard=4096),
        AGENT_LAUNCHER="torchrun",
    ),
    row("/dev/shm", OK, "1024 MiB free", machine(shm_free=1024 * MIB)),
    row("/dev/shm", WARN, "64 MiB, 60 MiB free", machine(shm=64 * MIB, shm_free=60 * MIB)),
    row("visible GPUs", OK, "one selection"),
    row(
        "visible GPUs",
        FAIL,
        "HIP_VISIBLE_DEVICES=0",
        machine(gpu_contradiction="HIP_VISIBLE_DEVICES=0 and …=1 differ"),
    ),
    row("/tmp", OK, "2048 MiB free", machine(temp_free=2048 * MIB)),
    row("/tmp", WARN, "2047 MiB free", machine(temp_free=2047 * MIB)),
    row(
        "AGENT_LOG_DIR",
        FAIL,
        "/proc/x cannot be written: /proc keeps none",
        machine(logs_fault="/proc keeps none"),
        AGENT_LOG_DIR="/proc/x",
    ),
    row("temp dir", OK, "not created yet"),
    row("temp dir", OK, "owned by this", machine(ray_temp=OURS)),
    row("temp dir", OK, "owned by this user only", machine(ray_temp=replace(OURS, mode=0o777))),
    row(
        "temp dir",
        FAIL,
        "/tmp/pod-agent, the folder for Ray's sockets and logs, is a link",
        machine(ray_temp=replace(OURS, is_folder=False)),
    ),
    row(
        "temp dir",
        FAIL,
        "belongs to another user (uid 1234)",
        machine(ray_temp=replace(OURS, uid=1234)),
    ),
    row(
        "temp dir",
        FAIL,
        "who put ray into it",
        machine(ray_temp=replace(OURS, mode=0o777, strangers=("ray",))),
    ),
    row("GPUs", OK, "8 found", POD, **PODS, RUNPOD_GPU_COUNT="8"),
    row(
        "GPUs",
        WARN,
        "7 found, 8 promised by runpod",
        replace(POD, gpus=7),
        **PODS,
        RUNPOD_GPU_COUNT="8",
    ),
    row(
        "GPUs",
        OK,
        "7 found",
        replace(POD, gpus=7),
        **PODS,
        RUNPOD_GPU_COUNT="8",
        AGENT_NUM_GPUS="7",
    ),
    row("ports", OK, "not checked"),
    row("ports", OK, "free", machine(taken_ports={})),
    row("ports", FAIL, "6379 by redis (pid 7)", machine(taken_ports={6379: "redis (pid 7)"})),
    row("nodes", WARN, "three such pods would be three runs", POD, RUNPOD_POD_ID="a"),
    row(
        "nodes",
        WARN,
        "RANK=1, WORLD_SIZE=2: they may count processes and decide nothing, so this node is a run",
        POD,
        MASTER_ADDR="10.0.0.9",
        RANK="1",
        WORLD_SIZE="2",
    ),
    row("nodes", WARN, "expects 1 worker", POD, RUNPOD_POD_ID="a", HEAD_POD_ID="a"),
    row(
        "RDMA",
        OK,
        "mlx5_0 (InfiniBand, active) and mlx5_1 (InfiniBand, no active port); NCCL uses mlx5_0",
        with_rdma("+-"),
        **TWO,
    ),
    row("RDMA", OK, "not needed on one node", with_rdma("-")),
    row(
        "RDMA",
        WARN,
        "NCCL_IB_DISABLE=1 turns them off: NCCL uses TCP",
        with_rdma("+", NCCL_IB_DISABLE="1"),
        **TWO,
    ),
    row("RDMA", OK, "NCCL uses mlx", with_rdma("+", NCCL_IB_DISABLE="0"), **TWO),
    row("RDMA", WARN, "NCCL_NET=Socket turns them off", with_rdma("+", NCCL_NET="Socket"), **TWO),
    row("RDMA", WARN, "cannot open /dev/infiniband", with_rdma("+", may_open=False), **TWO),
    row("RDMA", WARN, "none is active", with_rdma("-"), **TWO),
    row("RDMA", OK, "NCCL uses mlx5_1", with_rdma("++", NCCL_IB_HCA="mlx5_1:1"), **TWO),
    row("RDMA", OK, "NCCL uses mlx5_1", with_rdma("++", NCCL_IB_HCA="^=mlx5_0"), **TWO),
    row(
        "RDMA",
        WARN,
        "NCCL_IB_HCA==mlx5_1 selects no active one",
        with_rdma("+-", NCCL_IB_HCA="=mlx5_1"),
        **TWO,
    ),
    row(
        "AGENT_ON_STALL",
        WARN,
        "stop never follows, as AGENT_STALL=0",
        AGENT_ON_STALL="stop",
        AGENT_STALL="0",
    ),
    row("cores", OK, "16; Ray", machine(machine_cpus=16)),
    row("cores", OK, "2 of this machine's 192; Ray gets 2", machine(cpus=2, machine_cpus=192)),
    row(
        "cores", WARN, "8 of this machine's 192 for 8 GPUs", replace(GPUS, cpus=8, machine_cpus=192)
    ),
    row("cores", OK, "Ray gets 8", replace(GPUS, cpus=8), AGENT_NUM_GPUS="0"),
    row("processes", OK, "no limit"),
    row(
        "processes",
        OK,
        "room for 4096 more",
        machine(room=Room(4096, "pids.max is 5000, 904 in use")),
    ),
    row(
        "processes",
        WARN,
        "room for only 4095 more processes and threads: `ulimit -u` is 4095",
        machine(room=Room(4095, "`ulimit -u` is 4095")),
    ),
    row(
        "GPU health",
        FAIL,
        "the driver of 8 GPUs refuses access (/dev/nvidiactl: operation not permitted)",
        replace(GPUS, gpu_fault="/dev/nvidiactl: operation not permitted"),
    ),
    row(
        "GPU health",
        WARN,
        "refuses access",
        replace(GPUS, gpu_fault="/dev/nvidiactl: operation not permitted"),
        AGENT_NUM_GPUS="0",
    ),
    row("GPU health", OK, "not queried here", GPUS),
    row("GPU health", OK, "8 x NVIDIA H200 (143771 MiB)", with_driver(*H200)),
    row(
        "GPU health",
        FAIL,
        "nvidia-smi: exit code 255: Failed to initialize NVML: Unknown Error",
        with_driver(fault="exit code 255: Failed to initialize NVML: Unknown Error"),
    ),
    row("GPU health", WARN, "reports 7 of the 8", with_driver(*H200[1:])),
    row(
        "GPU health",
        WARN,
        "GPU 0 has 2 memory errors",
        with_driver(replace(H200[0], errors=2), *H200[1:]),
    ),
    row("interfaces", OK, "this node's address"),
    row(
        "interfaces",
        OK,
        "as set by NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME",
        with_variables(NCCL_SOCKET_IFNAME="eth", GLOO_SOCKET_IFNAME="ib0,eth0"),
        **TWO,
    ),
    row("interfaces", OK, "as set", with_variables(NCCL_SOCKET_IFNAME="^lo,docker"), **TWO),
    row(
        "interfaces",
        FAIL,
        "NCCL_SOCKET_IFNAME=ens1 names no interface of this node (it has: lo, eth0)",
        with_variables(GPUS, NCCL_SOCKET_IFNAME="ens1"),
        **TWO,
    ),
    row("interfaces", WARN, "names no interface", with_variables(NCCL_SOCKET_IFNAME="ens1"), **TWO),
    row(
        "interfaces",
        FAIL,
        "names no interface",
        with_variables(GPUS, NCCL_SOCKET_IFNAME="=eth"),
        **TWO,
    ),
    row(
        "interfaces",
        FAIL,
        "GLOO_SOCKET_IFNAME=eth names no interface",
        with_variables(GPUS, GLOO_SOCKET_IFNAME="eth"),
        **TWO,
    ),
    row(
        "interfaces",
        FAIL,
        "NCCL_SOCKET_IFNAME=lo is loopback",
        with_variables(GPUS, NCCL_SOCKET_IFNAME="lo"),
        **TWO,
    ),
    row("interfaces", OK, "as set", with_variables(GPUS, NCCL_SOCKET_IFNAME="lo")),
    row(
        "interfaces",
        FAIL,
        "NCCL_SOCKET_IFNAME=ib0 names no interface",
        replace(
            with_variables(GPUS, NCCL_SOCKET_IFNAME="ib0"),
            interfaces={**MACHINE.interfaces, "ib0": ()},
        ),
        **TWO,
    ),
    row("proxies", OK, "none"),
    row(
        "proxies",
        OK,
        "HTTPS_PROXY set; head and node are added to no_proxy",
        with_variables(HTTPS_PROXY="set"),
    ),
    row("W&B key", OK, "stays offline"),
    row("W&B key", OK, "this machine's", machine(wandb_login=True)),
    row("W&B key", OK, "well-formed", WANDB_API_KEY=KEY),
    row("W&B key", OK, "well-formed", WANDB_API_KEY=f"local-{KEY}"),
    row("W&B key", OK, "formed", WANDB_API_KEY=f"wandb_v1_{KEY}"),
    row("W&B key", WARN, "40 or more", WANDB_API_KEY=KEY[1:]),
    row("W&B key", WARN, "dashes", WANDB_API_KEY="<your key>"),
    row("port range", OK, "outside 32768-60999"),
    row(
        "port range", WARN, "(5000, 6379, 8265, 8266 and ", machine(ephemeral_ports=(1024, 65_535))
    ),
    row("port range", WARN, "(19999)", machine(ephemeral_ports=(15_000, 61_000))),
    row(
        "port range",
        OK,
        "outside",
        machine(ephemeral_ports=(9000, 65535), reserved_ports=((10001, 10001), (10002, 20000))),
    ),
    row("port range", WARN, "(40000)", AGENT_RAY_PORT="40000"),
    row(
        "/tmp",
        WARN,
        "50176 MiB free, where Ray keeps logs",
        machine(temp_free=49 << 30, temp_total=1000 << 30),
    ),
    row("/tmp", OK, "52224 MiB free", machine(temp_free=51 << 30, temp_total=1000 << 30)),
    row("node address", FAIL, "no address of this node", AGENT_NODE_IP="10.9.9.9", **TWO),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.check}: {row.words}")
def test_findings(row: Row) -> None:
    """Each check has its level, its sentence, and a remedy unless it is ok."""
    finding = found(row.check, row.environ, row.facts)
    assert finding.level is row.level
    assert row.words in finding.what
    if row.environ.keys().isdisjoint(INSIST):
        assert bool(finding.remedy) is (row.level is not OK)
        assert finding.sentence().endswith(finding.remedy)


def test_every_check_is_run_and_tested() -> None:
    """Each check returns one finding, has a unique name, and has a row in a test's table."""
    names = [f.check for f in run_checks(MACHINE, settings_of({}), topology_of({}))]
    assert len(names) == len(set(names))
    elsewhere = {"torch", "AGENT_PREFLIGHT"}  # test_launchers.py, test_preflight.py
    of_some = {"nodes", "RDMA", "packages", "AGENT_ON_STALL", "AGENT_LOG_DIR"}
    assert {*names, *elsewhere, *of_some} == {
        name.format(temp=MACHINE.temp) for name, _, _ in CHECKS
    }
    assert {*names, *of_some} == {row.check for row in ROWS}, "a check without a row in ROWS"


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
