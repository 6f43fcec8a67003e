"""Disks that are full or stall: one clear warning, and the job runs to its end."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from support.lab_frameworks import TORCH, install
from support.scenario import (
    AGENT,
    BOOT,
    ENVIRONMENT,
    Cluster,
    await_true,
    ends,
    kill_agent,
    last_line,
)
from support.volumes import loop_disk, memory_disk

if TYPE_CHECKING:
    from pathlib import Path

COUNTING = "for i in $(seq 40); do echo line $i; sleep 0.5; done"
SERVER = (
    'python3 -u -c "import http.server as h\nclass S(h.BaseHTTPRequestHandler):\n'
    " def do_POST(self):\n"
    "  print('x' * 100000); body = b'{\\\"rewards\\\": [1.0]}'\n"
    "  self.send_response(200); self.send_header('Content-Length', str(len(body)))\n"
    "  self.end_headers(); self.wfile.write(body)\n"
    "h.ThreadingHTTPServer(('', 5000), S).serve_forever()\""
)
"""A reward server that writes much per request: with its own log file it would hang or fail."""
ASKED = "python3 -c \"import urllib.request as u; print(u.urlopen('{reward_url}', b'{}').status)\""


def only_warning(stderr: str) -> str:
    """Return a disk's warning, which must be logged exactly once."""
    (warning,) = [line for line in stderr.splitlines() if "cannot be written" in line]
    assert "the job goes on" in warning
    assert "AGENT_LOG_DIR" in warning
    return warning


@pytest.mark.fault(
    "disk-full",
    "the disk of the run folder is full, while it boots or while the job runs",
    "one warning with folder, cause and remedy; the job's output, end and code do not change, "
    "also if the agent is killed meanwhile: the next one finds its records in memory",
)
@pytest.mark.pods(2)
@pytest.mark.parametrize("moment", ["boot", "job"])
def test_a_full_log_disk_does_not_end_the_job(cluster: Cluster, moment: str) -> None:
    """One warning with folder, consequence and remedy; output and code are the job's.

    `ray start` and a reward server that logs each request do not need that disk, nor does the agent
    that replaces a killed one: it reads in memory what the disk did not take.
    """
    cluster.env["AGENT_REWARD"] = SERVER
    job = f"{COUNTING}; {ASKED}; exit 7"
    with memory_disk(cluster.pods[0].tmp / "logs", "4m") as disk:
        head, worker = cluster.agents("sh", "-c", job)
        if moment == "boot":
            head.wait_for("starting Ray", timeout=20)
        else:
            head.wait_for("line 5$", stream="stdout", timeout=BOOT)
        disk.fill()
        if moment == "boot":
            head.wait_for("line 5$", stream="stdout", timeout=BOOT)
            kill_agent(head)
            head.wait_for("still runs: adopted", timeout=15)
        assert ends([head, worker]) == [7, 7], head.tail()
        assert head.stdout().splitlines()[-2:] == ["line 40", "200"]
    warning = only_warning(head.stderr()) if moment == "job" else head.stderr()
    assert "/tmp/logs/" in warning
    assert "No space left on device" in warning


@pytest.mark.fault(
    "disk-stalls",
    "writes to the disk of the run folder hang, while the job runs, as an attempt begins, or "
    "from the start",
    "logged after 10 s; neither the job, nor a stop, nor the agent's end waits for it; from "
    "the start: 78",
)
@pytest.mark.pods(1)
@pytest.mark.parametrize("end", ["job", "SIGTERM"])
def test_a_log_disk_that_stalls(cluster: Cluster, end: str, tmp_path: Path) -> None:
    """One warning; neither the job nor the agent's exit is delayed; later writes succeed again."""
    pod = cluster.pods[0]
    cluster.env["AGENT_REWARD"] = SERVER
    code = "exit 7" if end == "job" else "exec sleep 1000"
    with loop_disk(pod.tmp / "logs", tmp_path / "image") as disk:
        idle = pod.start(["sleep", "infinity"])
        command = [AGENT, "run", "--", "sh", "-c", f"{COUNTING}; {ASKED}; {code}"]
        agent = idle.spawn(command, env={**cluster.env, "RUNPOD_POD_ID": pod.name})
        agent.wait_for("line 5$", stream="stdout", timeout=BOOT)
        disk.freeze()
        agent.wait_for("^200$", stream="stdout", timeout=60)
        began = time.monotonic()
        if end == "SIGTERM":
            agent.signal(signal.SIGTERM)
        assert agent.wait(40) == (7 if end == "job" else 143), agent.tail()
        assert time.monotonic() - began < 25
        assert "a write takes longer than 10 s" in only_warning(agent.stderr())
        disk.thaw()
        await_true(
            "nothing is left",
            lambda: all(p.zombie or p.cmdline == "sleep infinity" for p in idle.processes()),
            20,
        )
        idle.kill()


@pytest.mark.fault("disk-stalls")
@pytest.mark.pods(1)
def test_a_log_disk_that_stalls_from_the_start(cluster: Cluster, tmp_path: Path) -> None:
    """No run folder can be made: 78 with the folder's name, and no hang."""
    pod = cluster.pods[0]
    with loop_disk(pod.tmp / "logs", tmp_path / "image") as disk:
        idle = pod.start(["sleep", "infinity"])
        disk.freeze()
        agent = idle.spawn([AGENT, "run", "--", "true"], env={**cluster.env, "RUNPOD_POD_ID": "x"})
        assert agent.wait(60) == 78, agent.tail()
        assert "AGENT_LOG_DIR=/tmp/logs does not answer" in agent.stderr()
        disk.thaw()
        idle.kill()


@pytest.mark.fault("disk-stalls")
@pytest.mark.pods(1)
@pytest.mark.parametrize("stalled", ["logs", "checkpoints"])
def test_sigterm_while_a_disk_stalls_an_attempt(
    cluster: Cluster, stalled: str, tmp_path: Path
) -> None:
    """The run folder or checkpoint folder stalls when an attempt starts: 143 within seconds."""
    install(cluster, "openrlhf", "0.11.2")
    pod, gate = cluster.pods[0], "until [ -e /tmp/go ]; do sleep 0.1; done"
    cluster.env["PYTHONPATH"] += f":{TORCH}"
    cluster.env |= {"AGENT_JOB": "openrlhf-sft", "EXPECTED_WORKERS": "0", "AGENT_PREPARE": gate}
    with loop_disk(pod.tmp / stalled, tmp_path / "image") as disk:
        idle = pod.start(["sleep", "infinity"])
        agent = idle.spawn([AGENT], env={**cluster.env, "RUNPOD_POD_ID": pod.name})
        agent.wait_for("AGENT_PREPARE: running", timeout=30)
        disk.freeze()
        (pod.tmp / "go").touch()
        agent.wait_for("waiting for the job to start on every node", timeout=30)
        began = time.monotonic()
        agent.signal(signal.SIGTERM)
        assert agent.wait(60) == 143, agent.tail()
        assert time.monotonic() - began < 15
        disk.thaw()
        idle.kill()


@pytest.mark.fault(
    "disk-ray",
    "/tmp or /dev/shm is full",
    "/tmp: 69 with the disk's name; /dev/shm: a warning, and Ray runs without it",
)
@pytest.mark.pods(1)
def test_a_full_tmp(cluster: Cluster) -> None:
    """Ray cannot run without its session folder: the last line names the disk and the remedy."""
    pod = cluster.pods[0]
    cluster.env["AGENT_LOG_DIR"] = "/dev/shm/logs"
    with memory_disk(pod.tmp, "64m") as disk:
        disk.fill()
        head = cluster.agent(0, "true")
        assert head.wait(BOOT) == 69, head.tail()
    assert "the disk of /tmp, where Ray keeps its sessions, is full" in last_line(head)
    assert "--temp-dir=/larger" in last_line(head)


@pytest.mark.fault("disk-ray")
@pytest.mark.pods(1)
def test_a_full_shm(cluster: Cluster) -> None:
    """Ray stores its objects elsewhere: a warning with a remedy; the exit code is the job's."""
    pod = cluster.pods[0]
    fill = "head -c 2G /dev/zero >/dev/shm/ballast"
    job = (
        'import ray; ray.init(logging_level="ERROR"); print(len(ray.get(ray.put(b"x" * 9000000))))'
    )
    script = f'{fill}; exec {AGENT} run -- {ENVIRONMENT}/bin/python -c "$JOB"'
    head = pod.start(
        ["sh", "-c", script], env={**cluster.env, "RUNPOD_POD_ID": pod.name, "JOB": job}
    )
    cluster.started.append(head)
    assert head.wait(BOOT) == 0, head.tail()
    assert head.stdout() == "9000000\n"
    assert "! /dev/shm: 1024 MiB, 0 MiB free: the object store shrinks" in head.stderr()
