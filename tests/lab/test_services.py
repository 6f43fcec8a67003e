"""Services and prepare steps of AGENT_SERVICES, on real pods."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, REPO, Cluster, ends, kill_agent, last_line

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = f"{sys.executable} {REPO / 'agent'} retriever"
RETRIEVER = f"""
[services.retriever]
command = "echo $$ > /tmp/retriever.pid; exec {PROGRAM} --host {{node_ip}} --port 8000"
where = "every"
ready.http = "http://{{node_ip}}:8000/retrieve"
ready.body = '{{"queries": ["x"], "topk": 1, "return_scores": true}}'
ready.expect = "result"
"""
ASK = """
import json, sys, urllib.request
for host in sys.argv[1:]:
    body = json.dumps({"queries": ["who wrote hamlet"], "topk": 1, "return_scores": True})
    with urllib.request.urlopen(f"http://{host}:8000/retrieve", body.encode(), timeout=10) as reply:
        print(host, json.load(reply)["result"][0][0]["document"]["contents"].splitlines()[0])
"""


SCORING = """
import json, os, sys, time, urllib.request
def ask(word):
    body = json.dumps({"query": ["1+1=2"], "prompts": ["1+1="], "labels": ["2"]}).encode()
    asked = urllib.request.Request(sys.argv[1], body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as reply:
        json.load(reply)["rewards"]
    print(word, flush=True)
ask("asked once")
while not os.path.exists("/tmp/go"):
    time.sleep(0.1)
ask("asked again")
"""


def write(cluster: Cluster, text: str) -> None:
    """Write the same services file on every pod."""
    for pod in cluster.pods:
        (pod.tmp / "services.toml").write_text(text)
    cluster.env["AGENT_SERVICES"] = "/tmp/services.toml"


@pytest.mark.fault("reward")
@pytest.mark.pods(2)
def test_a_retriever_on_every_node(cluster: Cluster) -> None:
    """The job starts when all are ready, and queries each; a killed one is restarted."""
    write(cluster, RETRIEVER)
    hosts = [pod.ip for pod in cluster.pods]
    (cluster.pods[0].tmp / "ask.py").write_text(ASK)
    ask = f"{sys.executable} /tmp/ask.py {' '.join(hosts)}"
    job = f"while [ ! -e /tmp/go ]; do sleep 0.1; done; {ask}"
    head, worker = cluster.agents("sh", "-c", job)
    head.wait_for("✓ job ", timeout=BOOT)
    log = head.stderr()
    for title in ("✓ retriever  ", "✓ retriever on podb "):
        assert log.index(title) < log.index("✓ nodes ")
    assert "retriever listening on" in cluster.file(1, "retriever.log").read_text()
    pid = (cluster.pods[1].tmp / "retriever.pid").read_text().strip()
    assert worker.exec(["kill", "-9", pid]).returncode == 0
    head.wait_for(r"retriever on podb is down \(exit code 137.*restart 1 of 3", timeout=20)
    head.wait_for(r"✓ retriever on podb [\s\S]*✓ retriever on podb ", timeout=20)
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker]) == [0, 0], head.tail()
    assert head.stdout() == "".join(f"{host} Hamlet\n" for host in hosts)


@pytest.mark.fault("reward-never")
@pytest.mark.pods(2)
def test_a_workers_failing_service_is_named_at_the_head(cluster: Cluster) -> None:
    """It ends the run at once, with its last lines and its node's name."""
    command = "echo no index in /data; exit 4"
    write(cluster, f'[services.finder]\ncommand = "{command}"\nwhere = "workers"\nready.tcp = 8000')
    head, worker = cluster.agents("true")
    assert ends([head, worker]) == [69, 69]
    words = "finder on podb ended before it was ready: exit code 4; last output: no index in"
    assert words in last_line(head)
    assert words in last_line(worker)
    assert cluster.outcome(0)["culprit"] == "finder"


@pytest.mark.pods(3)
def test_a_reward_server_on_a_separate_node(cluster: Cluster) -> None:
    """That node neither joins Ray nor is a worker; it has a rank, and the job gets its URL."""
    write(cluster, '[services.reward]\nwhere = "rank 2"\nalone = true\n')
    cluster.env["EXPECTED_WORKERS"] = "1"
    job = "import ray; ray.init(); print(len(ray.nodes()), '{nodes}', '{reward_url}')"
    head = cluster.agent(0, sys.executable, "-c", job)
    first = cluster.agent(1)
    head.wait_for("podb joined Ray", timeout=BOOT)
    alone = cluster.agent(2)
    assert ends([head, first, alone]) == [0, 0, 0], head.tail()
    assert head.stdout().splitlines()[-1] == f"2 2 http://{cluster.pods[2].ip}:5000/get_reward"
    assert "this node joins no Ray" in alone.stderr()
    assert "✓ reward server on podc " in head.stderr()


@pytest.mark.pods(2)
def test_a_killed_agent_of_a_separate_node(cluster: Cluster) -> None:
    """Its service keeps running under the next agent; the job keeps using it."""
    write(cluster, '[services.reward]\nwhere = "rank 1"\nalone = true\n')
    cluster.env["EXPECTED_WORKERS"] = "0"
    head, alone = cluster.agents(sys.executable, "-c", SCORING, "{reward_url}")
    head.wait_for("asked once", stream="stdout", timeout=BOOT)
    (before,) = [p for p in alone.processes() if "reward-server" in p.cmdline]
    kill_agent(alone)
    alone.wait_for(rf"reward server \(pid {before.pid}\) still runs: adopted", timeout=30)
    head.wait_for(r"✓ job [\s\S]*✓ reward server on podb ", timeout=30)
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, alone]) == [0, 0], head.tail()
    assert "asked again" in head.stdout()
    assert "is down (" not in head.stderr()


@pytest.mark.pods(3)
def test_a_step_on_a_shared_disk_runs_once(cluster: Cluster, shared: Path) -> None:
    """The head runs it, workers wait and skip it; a second run skips it as well."""
    (shared / "deep").mkdir()
    step = f"""
[prepare.data]
command = "echo $RUNPOD_POD_ID {{rank}} >> {shared}/who; sleep 3; echo made {{node_ip}}"
where = "every"
once = "{shared}/deep/.prepared"
"""
    write(cluster, step)
    agents = cluster.agents("cat", f"{shared}/who")
    assert ends(agents) == [0, 0, 0], agents[0].tail()
    assert agents[0].stdout() == "poda 0\n"
    assert "data: running" in agents[0].stderr()
    for worker in agents[1:]:
        assert f"data: skipped, {shared}/deep/.prepared is there" in worker.stderr()
    assert [path.name for path in (shared / "deep").iterdir()] == [".prepared"]
    assert cluster.file(0, "data.log").read_text() == f"made {cluster.pods[0].ip}\n"


@pytest.mark.fault("agent")
@pytest.mark.pods(2)
def test_the_next_head_agent_keeps_a_workers_services(cluster: Cluster) -> None:
    """The head's agent is killed; the next one restarts no retriever on any node."""
    write(cluster, RETRIEVER)
    job = "while [ ! -e /tmp/go ]; do sleep 0.1; done"
    head, worker = cluster.agents("sh", "-c", job)
    head.wait_for("✓ job ", timeout=BOOT)
    files = [pod.tmp / "retriever.pid" for pod in cluster.pods]
    before = [file.read_text() for file in files]
    (first,) = [p for p in head.processes() if p.ppid == 1 and "pod-agent run" in p.cmdline]
    os.kill(first.host_pid, signal.SIGKILL)
    head.wait_for(r"continues its run[\s\S]*✓ retriever on podb ", timeout=30)
    assert [file.read_text() for file in files] == before
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker]) == [0, 0], head.tail()


@pytest.mark.pods(2)
def test_after_holds_across_a_killed_agent(cluster: Cluster) -> None:
    """A node's step waits for the head's, its retriever for its step; one agent is killed."""
    step = '[prepare.data]\ncommand = "cp /tmp/go /tmp/data"\nwhere = "every"\n'
    after = RETRIEVER.replace("exec", "test -e /tmp/data || exit 2; exec")
    write(cluster, f'{after}after = ["data"]\n{step}after = ["AGENT_PREPARE"]\n')
    cluster.env["AGENT_PREPARE"] = "until [ -e /tmp/go ]; do sleep 0.1; done"
    head, worker = cluster.agents("true")
    head.wait_for("retriever on podb waits for data", timeout=BOOT)
    worker.wait_for("data waits for AGENT_PREPARE", timeout=BOOT)
    kill_agent(head)
    head.wait_for(r"continues its run[\s\S]*data waits for AGENT_PREPARE", timeout=30)
    for pod in cluster.pods:
        (pod.tmp / "go").touch()
    assert ends([head, worker]) == [0, 0], head.tail()
    assert head.stderr().count("✓ retriever on podb ") == 1
