"""Strangers: Ray without an agent on one side, tokens, debuggers, ports and secrets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from agent.boot.make_ready import stale_ray
from scenario import AGENT, BOOT, RAY, Cluster, await_true, ends

if TYPE_CHECKING:
    from podlab import Container

CURL = ("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}")
OPEN = {"RAY_AUTH_MODE": "disabled"}
FLOOD = """
import http.client, resource, socket
files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
flood = []
for _ in range(1500):
    flood.append(socket.create_connection(("127.0.0.1", 8266), 20, ("127.0.0.2", 0)))
    flood[-1].sendall(b"GET /livez HTTP/1.1\\r\\nX-Half: ")
assert flood[0].recv(1) == b""
connection = http.client.HTTPConnection("127.0.0.1", 8266, timeout=20)
connection.request("GET", "/livez")
print(connection.getresponse().status)
"""
"""Holds connections from an address of its own; prints what a health check gets meanwhile."""
TOKEN = "correct-horse-battery-staple"  # noqa: S105 - a secret to look for


@pytest.mark.pods(2)
def test_a_plain_ray_start_joins_as_a_worker(cluster: Cluster) -> None:
    """A node joined by hand counts, and the job sees it."""
    head = cluster.agent(0, "echo", "nodes={nodes}")
    pod = cluster.pods[1]
    idle = pod.start(["sleep", "infinity"], env=OPEN)
    head.wait_for("0 of 1 joined", timeout=BOOT)
    address = f"--address={cluster.pods[0].ip}:6379"

    def joined() -> bool:
        argv = [RAY, "start", address, f"--node-ip-address={pod.ip}"]
        return idle.exec(argv, timeout=60).returncode == 0

    await_true("plain ray start", joined, BOOT)
    assert head.wait(BOOT) == 0, head.tail()
    assert head.stdout() == "nodes=2\n"


@pytest.mark.pods(2)
def test_a_worker_joins_a_plain_head(cluster: Cluster) -> None:
    """A head without an agent is recognised by its open GCS; its loss ends the worker with 75."""
    pod = cluster.pods[0]
    idle = pod.start(["sleep", "infinity"], env=OPEN)
    cluster.env["AGENT_HEAD_GRACE"] = "10s"
    worker = cluster.agent(1)
    start = [RAY, "start", "--head", f"--node-ip-address={pod.ip}", "--port=6379"]
    assert idle.exec(start, timeout=60).returncode == 0
    worker.wait_for("joining Ray at a plain Ray head", timeout=30)
    worker.wait_for("Ray is up on this node", timeout=BOOT)
    ask = [RAY, "list", "nodes", "--address=http://127.0.0.1:8265"]
    there = cluster.pods[1].ip
    await_true("Ray knows the worker", lambda: there in idle.exec(ask, env=OPEN).stdout, 30)
    pod.kill()
    assert worker.wait(60) == 75, worker.tail()
    assert cluster.outcome(1)["kind"] == "lost"


@pytest.mark.pods(2)
def test_token_guards_everything_and_shows_nowhere(cluster: Cluster) -> None:
    """With a token Ray and the agent's port ask for it; debug flags reach Ray on both nodes."""
    cluster.env |= {
        "RAY_AUTH_TOKEN": TOKEN,
        "WANDB_API_KEY": "wandb-secret-key",
        "DEBUG_RAY": "1",
    }
    head, worker = cluster.agents(
        "sh", "-c", "echo running; while [ ! -e /tmp/go ]; do sleep 0.1; done"
    )
    head.wait_for("running", stream="stdout", timeout=BOOT)
    ip = cluster.pods[0].ip
    codes = {
        url: worker.exec([*CURL, *flags, url]).stdout
        for url, flags in {
            f"http://{ip}:8266/livez": [],
            f"http://{ip}:8266/readyz": [],
            f"http://{ip}:8266/status": [],
            f"http://{ip}:8266/metrics": [],
            f"http://{ip}:8266/events": [],
            f"http://{ip}:8265/api/jobs/": [],
            f"http://{ip}:8266/status?": ["-H", f"Authorization: Bearer {TOKEN}"],
            f"http://{ip}:8266/report": ["-d", "{}"],
            f"http://{ip}:8266/report?": ["-d", "{}", "-H", "Content-Encoding: gzip"],
        }.items()
    }
    assert list(codes.values()) == ["200", "200", "401", "401", "401", "401", "200", "401", "415"]
    flood = head.exec([sys.executable, "-c", FLOOD], timeout=60)
    assert flood.stdout == "200\n", flood.stderr
    assert head.exec([AGENT, "status"]).returncode == 0
    told = json.loads(worker.exec([AGENT, "status", "--json"]).stdout)
    assert told["job_tail"] == ["running"]
    assert [phase for phase, _ in told["nodes"][0]["phases"]][-1] == "following the head"
    stranger = worker.exec([AGENT, "status"], env={"RAY_AUTH_TOKEN": "something-else"})
    assert stranger.returncode == 69
    assert "asks for the cluster's RAY_AUTH_TOKEN" in stranger.stderr

    for container in (head, worker):
        raylet = next(p for p in container.processes() if p.name == "raylet")
        assert raylet.environ()["RAY_DEBUG"] == "legacy"
        assert raylet.environ()["RAY_AUTH_MODE"] == "token"
        assert "RAY_DEBUG_POST_MORTEM" not in raylet.environ()
        starts = [p for p in container.processes() if "--block" in p.cmdline]
        assert starts
        assert all("--ray-debugger-external" in p.cmdline for p in starts)
        argvs = " ".join(p.cmdline for p in container.processes())
        assert TOKEN not in argvs
        assert "wandb-secret-key" not in argvs
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker], 40) == [0, 0]
    for pod in cluster.pods:
        for path in Path(pod.tmp / "logs").rglob("*"):
            if path.is_file():
                text = path.read_text(errors="replace")
                assert TOKEN not in text, path
                assert "wandb-secret-key" not in text, path


@pytest.mark.pods(2)
def test_only_the_planned_ports_listen(cluster: Cluster) -> None:
    """Whatever listens on a node stands in its plan, below the ephemeral range or explained."""
    head, worker = cluster.agents(env={"AGENT_JOB": "none"})
    head.wait_for("is up and stays", timeout=BOOT)
    planned = head.exec([AGENT, "plan"]).stdout
    listening = head.exec(["ss", "-Hltn"]).stdout.splitlines()
    ports = {int(line.split()[3].rpartition(":")[2]) for line in listening}
    fixed = {port for port in ports if not 10_002 <= port <= 19_999}
    unplanned = {port for port in fixed if f"  {port} " not in planned}
    # Ray's dashboard opens two more on ports that the kernel hands out; there is no flag for them
    assert all(port >= 32_768 for port in unplanned), unplanned
    agents = [line.split()[3] for line in listening if line.split()[3].endswith(":8266")]
    assert sorted(agents) == sorted([f"{cluster.pods[0].ip}:8266", "127.0.0.1:8266"])
    head.signal(signal.SIGTERM)
    assert ends([head, worker], 40) == [0, 0]


def test_a_containers_ray_is_not_its_hosts_to_end(idle: list[Container]) -> None:
    """A host sees the processes of its containers; a stale Ray of its own it is not."""
    of_a_ray = "/opt/ray/core/src/ray/raylet/raylet"
    stand_in = ["bash", "-c", f"exec -a {of_a_ray} sleep infinity"]
    in_container = idle[0].spawn(stand_in)
    on_host = subprocess.Popen(stand_in)
    try:

        def found() -> set[int]:
            return {process.pid for process in stale_ray("/tmp/pod-agent", everything=True)}

        await_true("the host's own", lambda: on_host.pid in found(), 10)
        inside = psutil.Process(in_container.pid)
        await_true("the container's", lambda: inside.cmdline()[0] == of_a_ray, 10)
        assert in_container.pid not in found()
    finally:
        on_host.kill()
        on_host.wait()
