"""A judge beside the job grades for the bundled reward server."""

from __future__ import annotations

import json
import sys

import pytest

from support.scenario import AGENT, BOOT, REPO, Cluster, ends

PROGRAM = f"env PYTHONPATH={REPO / 'tests'} {sys.executable} -m support.judge_server"
KEY = "Mk0123456789abcdef0123456789abcdef"
JUDGE = f"""
[services.judge]
command = "echo $$ > /tmp/judge.pid; exec {PROGRAM} {{node_ip}} 8001 {KEY}"
where = "rank 1"
ready.http = "http://{{node_ip}}:8001/v1/models"
ready.expect = "judge-model"
"""
JOB = """
import json, os, sys, time, urllib.error, urllib.request

assert "AGENT_JUDGE_KEY" not in os.environ

def ask(answer):
    body = {"query": [answer], "prompts": ["What is 2+3?"], "labels": ["5"]}
    asked = urllib.request.Request(sys.argv[1], json.dumps(body).encode())
    try:
        with urllib.request.urlopen(asked, timeout=60) as reply:
            return json.load(reply)["rewards"]
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)["error"]

print("right", ask("It is 5"), "wrong", ask("It is 4"), flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.1)
print("after", ask("It is 5, I think"), flush=True)
"""


def write(cluster: Cluster, text: str) -> None:
    """Write the same services file on every pod, and choose the judge."""
    for pod in cluster.pods:
        (pod.tmp / "services.toml").write_text(text)
    cluster.env |= {"AGENT_SERVICES": "/tmp/services.toml", "AGENT_REWARD": "judge"}
    cluster.env["AGENT_JUDGE_KEY"] = KEY


@pytest.mark.pods(2)
def test_a_judge_on_a_node_of_the_run(cluster: Cluster) -> None:
    """It grades, is restarted, and its cost is in the status; its key is nowhere else."""
    write(cluster, JUDGE)
    head, worker = cluster.agents(sys.executable, "-c", JOB, "{reward_url}")
    head.wait_for(r"right \[1.0\] wrong \[0.0\]", stream="stdout", timeout=BOOT)
    status = json.loads(head.exec([AGENT, "status", "--json"]).stdout)
    (cost,) = [one["judge"] for one in status["services"] if one["name"] == "reward server"]
    assert cost["prompt_tokens"] == 40 * cost["requests"] > 0
    pid = (cluster.pods[1].tmp / "judge.pid").read_text().strip()
    assert worker.exec(["kill", "-9", pid]).returncode == 0
    head.wait_for(r"✓ judge on podb [\s\S]*✓ judge on podb ", timeout=30)
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker]) == [0, 0], head.tail()
    assert head.stdout().splitlines()[-1] == "after [1.0]"
    log = head.stderr()
    assert log.index("✓ judge on podb ") < log.index("✓ reward server ")
    for number in range(2):
        folder = cluster.file(number, "agent.log").parent
        for file in folder.rglob("*"):
            assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


@pytest.mark.pods(2)
def test_the_rehearsal_by_a_judge(cluster: Cluster) -> None:
    """A whole job is graded by it."""
    write(cluster, JUDGE)
    cluster.env["AGENT_JOB_ARGS"] = "--steps 5 --target 0"
    head, worker = cluster.agents()
    assert ends([head, worker]) == [0, 0], head.tail()
    assert "step 5/5 mean reward" in head.stdout()
