"""Preflight checks: (facts, settings, topology) -> ok, warn or fail, each with a remedy."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.checks import CHECKS, run_checks
from agent.checks.finding import Finding, Level
from agent.node.facts import MIB, Facts, Folder
from support.worlds import MACHINE, POD, SECRET, settings_of, topology_of, with_ray

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
    of_some = {"nodes", "RDMA", "AGENT_ON_DONE"}
    assert {*names, *elsewhere, *of_some} == {
        name.format(temp=MACHINE.temp) for name, _, _ in CHECKS
    }
    from unit.checks.test_more_checks import ROWS as MORE  # noqa: PLC0415 - it imports from here

    assert {*names, *of_some} == {row[0] for row in (*ROWS.values(), *MORE.values())}


def test_no_finding_has_a_secret() -> None:
    """Findings are printed and logged, so they speak of secrets by name only."""
    findings = run_checks(OLD, settings_of(TOKEN), topology_of(TOKEN, OLD))
    assert SECRET not in " ".join(finding.sentence() for finding in findings)
