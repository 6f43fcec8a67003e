"""One run on one cluster: its status, logs, page, metrics, outcome and bundle.

The scenarios only read and share one run: first those that need a running job, then those that need
its end. The job prints a line that the agent explains, and fails with 3.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from agent.record.summary import explain
from support.bundles import bundle_contents, bundles
from support.scenario import AGENT, BOOT, Cluster, ends, last_line
from support.schemas import validator_of
from tools.http.description import HEAD, WORKER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.lab import Container

TOKEN = "t0ken-0123456789abcdef0123456789"  # noqa: S105 - a secret to search for
OTHER_TOKEN = {"RAY_AUTH_TOKEN": "something-else-0123456789abcdef"}
WANDB_KEY = "wandb-secret-key"
JOB = (
    'echo "\x1b[31mkey $RAY_AUTH_TOKEN\x1b[0m"; '
    "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB' >&2; "
    "echo running; while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 3"
)
CURL = ("curl", "-s", "--max-time", "10")
BEARER = ("-H", f"Authorization: Bearer {TOKEN}")
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
"""Holds connections from one address; prints the status that a health check gets meanwhile."""


class Run(NamedTuple):
    """A run with a running job and its two agents."""

    cluster: Cluster
    head: Container
    worker: Container

    def ask(self, *argv: str, node: int = 1) -> tuple[int, str, str]:
        """Run an agent command on a node: exit code, stdout and stderr."""
        container = (self.head, self.worker)[node]
        done = container.exec([AGENT, *argv], env=self.cluster.env, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def get(self, path: str, *flags: str, port: int = 8266) -> str:
        """GET from the head's port, by curl in the worker's pod; return what it prints."""
        url = f"http://{self.cluster.pods[0].ip}:{port}{path}"
        return str(self.worker.exec([*CURL, *flags, url], timeout=30).stdout)


@pytest.fixture(scope="module")
def run(shared_cluster: Cluster) -> Iterator[Run]:
    """Two pods with a token, a reward server and a running job."""
    shared_cluster.env |= {
        "RAY_AUTH_TOKEN": TOKEN,
        "WANDB_API_KEY": WANDB_KEY,
        "DEBUG_RAY": "1",
        "AGENT_REWARD": "builtin",
    }
    head, worker = shared_cluster.agents("sh", "-c", JOB)
    head.wait_for("running", stream="stdout", timeout=BOOT)
    yield Run(shared_cluster, head, worker)
    assert not head.running, "the last scenarios end the run"


@pytest.fixture(scope="module")
def ended(run: Run) -> Run:
    """Let the job fail and both nodes end with its code."""
    (run.cluster.pods[0].tmp / "go").touch()
    assert ends([run.head, run.worker], 60) == [3, 3], run.head.tail()
    return run


def test_the_token_is_required_everywhere(run: Run) -> None:
    """Ray and the agent's port require it; the probes are open, also during a flood."""
    shows_code = ("-o", "/dev/null", "-w", "%{http_code}")
    codes = {
        "probes": [run.get(path, *shows_code) for path in ("/livez", "/readyz")],
        "agent": [run.get(path, *shows_code) for path in ("/status", "/metrics", "/events")],
        "ray": [run.get("/api/jobs/", *shows_code, port=8265)],
        "with token": [run.get("/status", *shows_code, *BEARER)],
        "reports": [run.get("/report", *shows_code, "-d", "{}")],
        "gzip": [run.get("/report", *shows_code, "-d", "{}", "-H", "Content-Encoding: gzip")],
    }
    assert codes == {
        "probes": ["200", "200"],
        "agent": ["401", "401", "401"],
        "ray": ["401"],
        "with token": ["200"],
        "reports": ["401"],
        "gzip": ["415"],
    }
    flood = run.head.exec([sys.executable, "-c", FLOOD], timeout=60)
    assert flood.stdout == "200\n", flood.stderr


def test_the_status_of_both_nodes_fits_its_description(run: Run) -> None:
    """Every field of a head's and of a worker's status is in openapi.json, and no other."""
    own = run.worker.exec([*CURL, *BEARER, "http://127.0.0.1:8266/status"], timeout=30).stdout
    for schema, text in ((HEAD, run.get("/status", *BEARER)), (WORKER, own)):
        validator_of(schema).validate(json.loads(text))


def test_debugger_and_token_reach_ray_on_both_nodes(run: Run) -> None:
    """Ray's processes get both by environment and flags; no argv contains a secret."""
    for container in (run.head, run.worker):
        raylet = next(p for p in container.processes() if p.name == "raylet")
        assert raylet.environ()["RAY_DEBUG"] == "legacy"
        assert raylet.environ()["RAY_AUTH_MODE"] == "token"
        assert "RAY_DEBUG_POST_MORTEM" not in raylet.environ()
        starts = [p for p in container.processes() if "--block" in p.cmdline]
        assert starts
        assert all("--ray-debugger-external" in p.cmdline for p in starts)
        argvs = " ".join(p.cmdline for p in container.processes())
        assert TOKEN not in argvs
        assert WANDB_KEY not in argvs


def test_only_the_planned_ports_listen(run: Run) -> None:
    """Every listener of a node is in its plan, or is one of Ray's two kernel-chosen ports."""
    planned = run.ask("plan", "-v", node=0)[1]
    listening = run.head.exec(["ss", "-Hltn"]).stdout.splitlines()
    ports = {int(line.split()[3].rpartition(":")[2]) for line in listening}
    fixed = {port for port in ports if not 10_002 <= port <= 19_999}
    unplanned = {port for port in fixed if f"  {port} " not in planned}
    # Ray's dashboard opens two more ports, chosen by the kernel; no flag sets them
    assert all(port >= 32_768 for port in unplanned), unplanned
    agents = {line.split()[3] for line in listening if line.split()[3].endswith(":8266")}
    # RunPod's proxy comes in by the default route; the head has a token
    route = run.head.exec(["ip", "-4", "route", "get", "192.0.2.1"]).stdout.split()
    outside = route[route.index("src") + 1]
    addresses = (run.cluster.pods[0].ip, "127.0.0.1", outside)
    assert agents == {f"{address}:8266" for address in addresses}


def test_status_from_any_node(run: Run) -> None:
    """Phases, nodes and the job's last lines with the token; an error without it."""
    assert run.ask("status", node=0)[0] == 0
    status = json.loads(run.ask("status", "--json")[1])
    assert status["job_tail"][-1] == "running"
    assert [(node["name"], node["state"]) for node in status["nodes"]] == [("podb", "joined")]
    assert [phase for phase, _ in status["nodes"][0]["phases"]][-1] == "following the head"
    assert (status["nodes_joined"], status["nodes_expected"]) == (2, 2)
    assert "CUDA out of memory" in status["what_runs"]["command"]
    assert {"pod-agent", "Ray", "Python"} <= status["what_runs"]["versions"].keys()
    other = run.worker.exec([AGENT, "status"], env=OTHER_TOKEN, timeout=30)
    assert other.returncode == 69
    assert "asks for the cluster's RAY_AUTH_TOKEN" in other.stderr


def test_logs_of_any_node(run: Run) -> None:
    """The head's port serves the job's output and a worker's agent log."""
    seen = "seen in the job's output, which goes on: a GPU ran out of memory"
    run.head.wait_for(seen, timeout=30)
    code, text, error = run.ask("logs", node=0)
    assert (code, "CUDA out of memory" in text) == (0, True), error
    code, text, error = run.ask("logs", "podb")
    assert (code, "podb" in text) == (0, True), error
    refused = run.worker.exec([AGENT, "logs"], env=OTHER_TOKEN, timeout=30)
    assert (refused.returncode, "RAY_AUTH_TOKEN" in refused.stderr) == (69, True)


def test_page_metrics_and_events(run: Run) -> None:
    """Each shows the run to a client with the token, and no secret."""
    page = run.get("/")
    assert "RAY_AUTH_TOKEN" in page
    metrics = run.get("/metrics", *BEARER)
    events = run.get("/events", *BEARER, "--max-time", "2")
    assert "# TYPE " in metrics
    assert events.startswith(("event:", "data:", "id:", "retry:", ":")), events[:80]
    assert "podb" in events
    assert TOKEN not in page + metrics + events


def test_doctor_of_all_nodes(run: Run) -> None:
    """`doctor --all` prints each node's findings; equal ones once, with their nodes."""
    code, text, error = run.ask("doctor", "--all", "--json", node=0)
    assert code == 0, error
    data = json.loads(text)
    assert sorted(data["nodes"]) == sorted(pod.name for pod in run.cluster.pods)
    assert data["unknown"] == []
    (ray,) = [row for row in data["findings"] if row["check"] == "ray"]
    assert len(ray["nodes"]) == 2


def test_a_failed_run_names_its_cause(ended: Run) -> None:
    """The cause is in outcome.json, in the last line, and in ten lines of `explain`."""
    cause = "a GPU ran out of memory. Take a smaller micro batch"
    assert str(ended.cluster.outcome(0)["remedy"]).startswith(cause)
    assert cause in last_line(ended.head)
    lines = explain(ended.cluster.pods[0].tmp / "logs" / "latest")
    assert any(line.startswith("waited for workers ") for line in lines), lines
    assert any(line.startswith("joined: podb after ") for line in lines), lines
    assert lines[-2].startswith("end: job-failed, exit code 3"), lines
    assert lines[-1].startswith(f"remedy: {cause}"), lines


def test_a_failed_run_leaves_one_bundle(ended: Run) -> None:
    """On the head: all nodes' logs (agent, Ray, services, job), plan, facts and outcome."""
    found = bundle_contents(ended.cluster, 0, ended.head)
    assert TOKEN not in "".join(found.values())
    assert found["poda/job.log"].startswith("key ********\n")
    wanted = {
        *("plan.txt", "status.json", "findings.json", "run.json"),
        *("poda/agent.log", "poda/events.jsonl", "poda/facts.json", "poda/ray-start.log"),
        *("poda/reward-server.log", "poda/ray/gcs_server.out", "poda/ray/raylet.out"),
        *("poda/ray/dashboard.log", "podb/agent.log", "podb/ray.log", "podb/raylet.out"),
        *("podb/facts.json", "podb/last-report.json"),
    }
    assert wanted <= found.keys(), sorted(found)
    assert any(name.startswith("poda/ray/job-driver-") for name in found)
    assert "following the head" in found["podb/agent.log"]
    assert json.loads(found["podb/last-report.json"])["state"] == "left"
    assert bundles(ended.cluster, 1) == []
    assert "bundle" not in ended.cluster.outcome(1)


def test_no_secret_in_any_log(ended: Run) -> None:
    """No file contains the token or the W&B key, except for the job's own output."""
    files = [
        path
        for pod in ended.cluster.pods
        for path in Path(pod.tmp / "logs").rglob("*")
        if path.is_file() and not path.name.startswith("job")
    ]
    texts = {path: path.read_text(errors="replace") for path in files}
    assert [path for path, text in texts.items() if TOKEN in text or WANDB_KEY in text] == []
