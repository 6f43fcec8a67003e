"""Compile caches on a volume: written by one node of each role, and there on a fresh pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.scenario import AGENT, BOOT, Cluster, ends

if TYPE_CHECKING:
    from pathlib import Path

COMPILE = "mkdir -p $TRITON_CACHE_DIR/ab; echo compiled by $NODE_RANK > $TRITON_CACHE_DIR/ab/kernel"
FAIL = (
    f"{COMPILE}; touch -d '-1 minute' $TRITON_CACHE_DIR/ab/kernel; "
    "echo half > $TRITON_CACHE_DIR/ab/cut; exit 7"
)
READ = "cat $TRITON_CACHE_DIR/ab/kernel; echo $VLLM_CACHE_ROOT $TORCHINDUCTOR_CACHE_DIR"


@pytest.mark.pods(3)
def test_a_fresh_pod_is_seeded(cluster: Cluster, shared: Path) -> None:
    """Two nodes compile without Ray, each role writes; a third pod's Ray job has the files."""
    volume = shared / "caches"
    cluster.env |= {
        "AGENT_CACHE_DIR": str(volume),
        "RAY_AUTH_TOKEN": "a-token-of-the-scenario-0123",
        "AGENT_ALLOW_INSECURE": "1",
    }
    first = {"EXPECTED_WORKERS": "1", "AGENT_LAUNCHER": "node"}
    nodes = [cluster.agent(pod, "sh", "-c", COMPILE, env=first) for pod in (0, 1)]
    assert ends(nodes) == [0, 0], nodes[0].tail()
    logs = [node.stderr() for node in nodes]
    assert all("compile caches: cold: no archive of this kind" in log for log in logs)
    assert all("written to" in log for log in logs)
    (archive,) = volume.glob("*-head-*.tar.gz")
    assert len([*volume.glob("*-worker-*.tar.gz")]) == 1

    # A pod that has never seen it, with another launcher.
    alone = {"HEAD_POD_ID": "podc", "EXPECTED_WORKERS": "0"}
    fresh = cluster.agent(2, "sh", "-c", READ, env=alone)
    assert fresh.wait(BOOT) == 0, fresh.tail()
    words = fresh.stdout().split()
    assert words[:2] == ["compiled", "by"]
    assert words[3].startswith("/tmp/pod-agent/caches-")
    assert words[3].rpartition("/")[0] == words[4].rpartition("/")[0]
    log = fresh.stderr()
    assert f"compile caches: seeded from {archive}" in log
    assert log.index("compile caches: seeded") < log.index("✓ job ")


@pytest.mark.pods(2)
def test_a_failed_job_leaves_what_it_had_compiled(cluster: Cluster, shared: Path) -> None:
    """But not the newest files: a compiler may have been killed amid one."""
    cluster.env |= {
        "AGENT_CACHE_DIR": str(shared / "caches"),
        "AGENT_LAUNCHER": "node",
        "EXPECTED_WORKERS": "0",
    }
    failed = cluster.agent(0, "sh", "-c", FAIL)
    assert failed.wait(BOOT) == 7, failed.tail()
    assert failed.stderr().count("compile caches: 1 file(s)") == 1

    alone = {"HEAD_POD_ID": "podb"}
    fresh = cluster.agent(1, "sh", "-c", "ls $TRITON_CACHE_DIR/ab", env=alone)
    assert fresh.wait(BOOT) == 0, fresh.tail()
    assert fresh.stdout().split() == ["kernel"]


def test_a_full_volume_costs_only_the_caches(cluster: Cluster, shared: Path) -> None:
    """The job's own code, and one line."""
    volume = shared / "caches"
    volume.write_text("a file in the place of the folder")
    cluster.env |= {"AGENT_CACHE_DIR": str(volume), "AGENT_LAUNCHER": "node"}
    head = cluster.agent(0, "sh", "-c", f"{COMPILE}; {AGENT} status --json")
    assert head.wait(BOOT) == 0, head.tail()
    assert head.stderr().count("not written back: ") == 1
