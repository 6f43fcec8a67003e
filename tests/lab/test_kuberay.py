"""KubeRay: the operator owns Ray; the agent submits, follows, and leaves Ray running."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from support.kuberay_operator import (
    START_RAY,
    head_variables,
    submitter_variables,
    worker_variables,
)
from support.scenario import AGENT, BOOT, RAY, Cluster, await_true, kill_agent, last_line

if TYPE_CHECKING:
    from tools.lab import Container, Pod
    from tools.lab.process import Running

SERVICE = "poda.runpod.internal"
"""The name of the head's service."""
TOKEN = "correct-horse-battery-staple"  # noqa: S105 - the lab's own
API = {"RAY_API_SERVER_ADDRESS": "http://127.0.0.1:8265"}
CLEANS_UP = "trap 'echo cleaned up; exit 0' TERM; echo running; while :; do sleep 0.1; done"

UNTIL_END = (
    "echo attempt $AGENT_ATTEMPT; until [ -e /tmp/end-$AGENT_ATTEMPT ]; do sleep 0.1; done; exit 7"
)


class Operator:
    """Plays KubeRay's operator: containers with its variables, in which it runs `ray start`."""

    def __init__(self, cluster: Cluster, secret: dict[str, str]) -> None:
        self._cluster = cluster
        self._auth = secret or {"RAY_AUTH_MODE": "disabled"}
        self.head = self._container(cluster.pods[0], self._head_variables())
        self.worker = self._container(cluster.pods[1], self._worker_variables())

    def _head_variables(self) -> dict[str, str]:
        return {**head_variables(self._cluster.pods[0].ip), "RAY_JOB_STOP_WAIT_TIME_S": "10"}

    def _worker_variables(self) -> dict[str, str]:
        return worker_variables(self._cluster.pods[1].ip, SERVICE)

    def _container(self, pod: Pod, own: dict[str, str]) -> Container:
        common = {
            "EXPECTED_WORKERS": "1",
            "AGENT_LOG_DIR": "/tmp/logs",
            "AGENT_LOG": "console",
            **self._auth,
        }
        made = pod.start(["sleep", "infinity"], env={**common, **own})
        self._cluster.started.append(made)
        return made

    def replace_worker(self) -> None:
        """Replace the worker pod's container by another with a new Ray."""
        self._cluster.pods[1].heal()
        self.worker = self._container(self._cluster.pods[1], self._worker_variables())
        self.start_ray(self.worker)

    def start_ray(self, container: Container) -> Running:
        """Run KubeRay's generated command in a Ray container."""
        return container.spawn(START_RAY)

    def submitter(
        self, *job: str, own: dict[str, str] | None = None, name: str = "rl-8h2pd"
    ) -> Container:
        """Start the agent as the pod in which a RayJob submits its job."""
        env = {
            **(own or {}),
            **submitter_variables(SERVICE, name),
            "EXPECTED_WORKERS": "1",
            "AGENT_LOG_DIR": "/tmp/logs",
            "AGENT_LOG": "console",
            **self._auth,
        }
        made = self._cluster.pods[2].start([AGENT, "run", "--", *job], env=env)
        self._cluster.started.append(made)
        return made


def rays(*containers: Container) -> list[int]:
    """Return the PIDs of Ray's processes, to check later that they are the same."""
    return sorted(
        p.host_pid
        for c in containers
        for p in c.processes()
        if p.name in {"raylet", "gcs_server"} and not p.zombie
    )


@pytest.mark.pods(2)
def test_in_the_head_container(cluster: Cluster) -> None:
    """The agent waits for the operator's Ray and workers, submits, and leaves Ray running."""
    operator = Operator(cluster, {})
    head, worker = operator.head, operator.worker
    show = ("sh", "-c", "echo {nodes} {head_ip} {reward_url}; exit 7")
    agent = head.spawn([AGENT, "run", "--", *show])
    agent.wait_for("waiting for KubeRay's Ray, connection refused", timeout=BOOT)
    ray = [operator.start_ray(head)]
    agent.wait_for("✓ reward server ", timeout=BOOT)
    agent.wait_for("waiting for workers, 0 of 1 joined", timeout=BOOT)

    idle = worker.exec([AGENT, "run", "--", *show])
    assert idle.returncode == 0
    assert "nothing to do on this worker: KubeRay starts Ray here" in idle.stderr.splitlines()[-1]
    assert agent.running
    ray.append(operator.start_ray(worker))
    assert agent.wait(BOOT) == 7, agent.tail()
    ip = cluster.pods[0].ip
    assert agent.stdout() == f"2 {ip} http://{ip}:5000/get_reward\n"
    assert cluster.outcome(0)["kind"] == "job-failed"

    alive = rays(head, worker)
    assert len(alive) == 3
    assert not any("reward-server" in p.cmdline for p in head.processes())
    entrypoint = [RAY, "job", "submit", "--", AGENT, "run", "--", "echo", "again"]
    again = head.exec(entrypoint, env=API, timeout=BOOT)  # used as a RayJob's entrypoint
    assert again.returncode == 0, again.stdout + again.stderr
    assert "again" in again.stdout.splitlines()
    assert rays(head, worker) == alive
    assert all(start.running for start in ray)


@pytest.mark.pods(3)
def test_as_a_rayjobs_submitter(cluster: Cluster) -> None:
    """From another pod, with a token: all output arrives; a retried submitter submits nothing."""
    operator = Operator(cluster, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN})
    for container in (operator.head, operator.worker):
        operator.start_ray(container)
    job = ("sh", "-c", "echo run >>/tmp/runs; echo {nodes}; seq 3000; printf 'the end'; exit 5")
    agent = operator.submitter(*job)
    assert agent.wait(BOOT) == 5, agent.tail()
    wanted = "2\n" + "".join(f"{n}\n" for n in range(1, 3001)) + "the end"
    assert agent.stdout() == wanted
    assert "exit code 5" in last_line(agent)
    run = cluster.pods[2].tmp / "logs" / "rl-8h2pd" / "podc"
    assert (run / "job.log").read_text() == wanted
    assert json.loads((run / "outcome.json").read_text())["exit_code"] == 5
    alive = rays(operator.head, operator.worker)
    assert len(alive) == 3

    retried = operator.submitter(*job)
    assert retried.wait(BOOT) == 5, retried.tail()
    assert retried.stdout() == wanted
    assert (cluster.pods[0].tmp / "runs").read_text() == "run\n"
    assert rays(operator.head, operator.worker) == alive


@pytest.mark.pods(3)
def test_sigterm_stops_the_job_and_not_ray(cluster: Cluster) -> None:
    """SIGTERM to a submitter stops its job, which can clean up; Ray keeps running."""
    operator = Operator(cluster, {})
    for container in (operator.head, operator.worker):
        operator.start_ray(container)
    agent = operator.submitter("sh", "-c", CLEANS_UP)
    agent.wait_for("running", stream="stdout", timeout=BOOT)
    alive = rays(operator.head, operator.worker)
    agent.signal(signal.SIGTERM)
    assert agent.wait(25) == 143
    assert agent.stdout().splitlines()[-1] == "cleaned up"
    assert rays(operator.head, operator.worker) == alive
    assert len(alive) == 3
    ask = [RAY, "job", "status", "rl-8h2pd"]

    def stopped() -> bool:
        listed = operator.head.exec(ask, env=API)
        return "was stopped" in listed.stdout + listed.stderr

    await_true("the job is stopped", stopped, 20)


@pytest.mark.pods(3)
def test_a_lost_pod_and_a_killed_agent(cluster: Cluster) -> None:
    """The job that failed with a pod is submitted again; the next agent follows that attempt."""
    operator = Operator(cluster, {})
    for container in (operator.head, operator.worker):
        operator.start_ray(container)
    own = {"AGENT_JOB_RETRIES": "1", "AGENT_NODE_GRACE": "5s"}
    agent = operator.submitter("sh", "-c", UNTIL_END, own=own)
    agent.wait_for("^attempt 1$", stream="stdout", timeout=BOOT)
    cluster.pods[1].lose()
    (cluster.pods[0].tmp / "end-1").touch()
    agent.wait_for("waiting for GCS to report a lost node", timeout=20)
    agent.wait_for("attempt 1 of 2 is lost", timeout=90)
    operator.replace_worker()
    agent.wait_for("^attempt 2$", stream="stdout", timeout=BOOT)
    kill_agent(agent)
    agent.wait_for("attempt 2 goes on: its job is followed again", timeout=30)
    (cluster.pods[0].tmp / "end-2").touch()
    assert agent.wait(60) == 7, agent.tail()
    assert agent.stdout() == "attempt 1\nattempt 2\n"
    listed = operator.head.exec([RAY, "job", "list"], env=API).stdout
    assert sorted({*re.findall(r"submission_id='([^']*)'", listed)}) == ["rl-8h2pd", "rl-8h2pd-2"]


@pytest.mark.pods(3)
def test_an_upload_is_logged(cluster: Cluster) -> None:
    """On a slow network: one line with the size before."""
    operator = Operator(cluster, {})
    for container in (operator.head, operator.worker):
        operator.start_ray(container)
    code = cluster.pods[2].tmp / "code"
    (code / ".git").mkdir(parents=True)
    (code / ".gitignore").write_text(".git/\n")
    (code / ".git" / "objects").write_bytes(os.urandom(1 << 20))
    (cluster.pods[2].tmp / "small").mkdir()
    (code / "weights.bin").write_bytes(os.urandom(60 << 20))
    cluster.pods[2].slow_down(40)
    agent = operator.submitter("wc", "-c", "weights.bin", own={"AGENT_WORKING_DIR": "/tmp/code"})
    assert agent.wait(BOOT) == 0, agent.tail()
    assert agent.stdout() == f"{60 << 20} weights.bin\n"
    log = agent.stderr()
    assert "uploading /tmp/code to Ray: 2 file(s), 60 MiB" in log
    small = operator.submitter("true", own={"AGENT_WORKING_DIR": "/tmp/small"}, name="rl-2")
    assert small.wait(BOOT) == 0, small.tail()
