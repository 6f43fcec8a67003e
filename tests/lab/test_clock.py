"""A clock that jumps by an hour in either direction: timeouts use the monotonic clock."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, Cluster, ends, keep_running, last_line

if TYPE_CHECKING:
    from tools.lab import Pod

SOURCE = Path(__file__).with_name("clock.c")
FAKED = {"LD_PRELOAD": "/tmp/clock.so", "POD_CLOCK": "/tmp/clock"}
"""Gives a pod's programs another time of day; the machine's clock stays as it is."""
HOUR = 3600


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library that shifts a pod's clock."""
    compiler = shutil.which("cc")
    if compiler is None:
        reason = "no C compiler is installed here (Debian's gcc)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    built = tmp_path_factory.mktemp("clock") / "clock.so"
    words = [compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(SOURCE), "-ldl"]
    subprocess.run(words, check=True)
    return built


def _give_a_clock(pod: Pod, library: Path) -> None:
    shutil.copy(library, pod.tmp / "clock.so")
    (pod.tmp / "clock").write_bytes(struct.pack("l", 0))


def _set_ahead(pod: Pod, seconds: int) -> None:
    # write in place: the pod's programs have the file mapped
    with (pod.tmp / "clock").open("r+b") as file:
        file.write(struct.pack("l", seconds))


@pytest.mark.fault(
    "clock",
    "a pod's clock jumps by an hour, forward or back, while it boots and while the job runs",
    "no effect; no deadline moves",
)
@pytest.mark.pods(2)
@pytest.mark.parametrize("who", ["head", "worker"])
def test_a_clock_that_jumps(cluster: Cluster, library: Path, who: str) -> None:
    """One hour forward and back, during the boot and under the job: the run continues."""
    pod = cluster.pods[0 if who == "head" else 1]
    _give_a_clock(pod, library)
    job = "echo here; while [ ! -e /tmp/enough ]; do sleep 0.2; done; date +%s; exit 7"
    head, worker = (
        cluster.agent(one, "sh", "-c", job, env=FAKED if one is pod else {}) for one in cluster.pods
    )
    head.wait_for("waiting for workers", timeout=30)
    _set_ahead(pod, HOUR)
    head.wait_for("joining Ray|podb joined Ray", timeout=60)
    _set_ahead(pod, 0)
    head.wait_for("^here$", "stdout", timeout=BOOT)
    for seconds in (HOUR, -HOUR):
        _set_ahead(pod, seconds)
        keep_running(20, head, worker)
    (cluster.pods[0].tmp / "enough").touch()
    assert ends([head, worker], 40) == [7, 7], head.tail()
    assert "silent" not in head.stderr() + worker.stderr()
    assert "left Ray" not in head.stderr()
    assert len(cluster.outcome(0)["attempts"]) == 1
    if who == "head":  # the job ran with the same clock, which was an hour behind
        assert abs(int(head.stdout().split()[-1]) - (time.time() - HOUR)) < 600


@pytest.mark.fault("clock")
@pytest.mark.pods(2)
@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_deadlines_when_the_clock_jumps(cluster: Cluster, library: Path, seconds: int) -> None:
    """AGENT_NODE_GRACE and AGENT_HEAD_GRACE become neither shorter nor longer."""
    cluster.env |= {"AGENT_NODE_GRACE": "30s", "AGENT_HEAD_GRACE": "40s", **FAKED}
    for pod in cluster.pods:
        _give_a_clock(pod, library)
    head, worker = cluster.agents("sh", "-c", "echo here; exec sleep 1000")
    head.wait_for("^here$", "stdout", timeout=BOOT)
    lost = time.monotonic()
    cluster.pods[1].cut()
    # What the job's begin has asked of the worker may be under way: its next report is awaited.
    head.wait_for("podb is silent", timeout=29)
    for pod in cluster.pods:
        _set_ahead(pod, seconds)
    assert head.wait(60) == 75, head.tail()
    assert time.monotonic() - lost > 29
    assert "podb" in last_line(head)
    assert worker.wait(60) == 75, worker.tail()
    assert time.monotonic() - lost > 39
