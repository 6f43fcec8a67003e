"""Steps of a job: from its output or its own file, also after only the agent is killed."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent.record.summary import explain
from support.scenario import AGENT, BOOT, Cluster, await_true, ends, kill_agent, last_line

if TYPE_CHECKING:
    from tools.lab import Container

TOKEN = "t0ken-0123456789abcdef0123456789"  # noqa: S105 - of this test
WRITES_A_FILE = """
import json, os, time
for step in range(1, 61):
    with open(os.environ["AGENT_PROGRESS_FILE"], "a") as file:
        print(json.dumps({"step": step, "of": 60, "reward": step / 100, "loss": 1.5}), file=file)
    print("working: 1/3 of it", flush=True)
    time.sleep(0.5)
while not os.path.exists("/tmp/go"):
    time.sleep(0.1)
"""


def status(cluster: Cluster, head: Container) -> dict[str, Any]:
    """Return the head's status, or {} while no agent answers."""
    done = head.exec([AGENT, "status", "--json"], env=cluster.env, timeout=60)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def last_step(cluster: Cluster, head: Container) -> int:
    """Return the last step in the status; 0 without one."""
    return int((status(cluster, head).get("progress") or {"step": 0})["step"])


def series(head: Container, since: int | None = None) -> dict[str, Any]:
    """Return the series from the head's port."""
    url = "http://127.0.0.1:8266/series" + ("" if since is None else f"?since={since}")
    output = ("-H", f"Authorization: Bearer {TOKEN}")
    return dict(json.loads(head.exec(["curl", "-s", "-m", "10", *output, url], timeout=30).stdout))


@pytest.mark.pods(1)
def test_a_jobs_own_file_and_an_agent_that_is_killed(cluster: Cluster) -> None:
    """The next agent goes on with the steps, their times and the series."""
    cluster.env["RAY_AUTH_TOKEN"] = TOKEN
    (head,) = cluster.agents(sys.executable, "-c", WRITES_A_FILE)
    await_true("ten steps are known", lambda: last_step(cluster, head) >= 10, BOOT)
    kill_agent(head)
    head.wait_for("continuing the job's step count at step", timeout=20)
    await_true("further steps are known", lambda: last_step(cluster, head) >= 30, 40)
    shown = status(cluster, head)["progress"]
    assert (shown["attempt"], shown["of"]) == (1, 60)
    assert 0.4 < shown["seconds_per_step"] < 1
    assert shown["reward_trend"] == pytest.approx(0.1)
    await_true("all steps are known", lambda: last_step(cluster, head) == 60, 60)
    (cluster.pods[0].tmp / "go").touch()
    whole = series(head)
    assert whole["keys"]["reward"]["steps"] == [*range(1, 61)]
    assert whole["keys"]["reward"]["values"] == [step / 100 for step in range(1, 61)]
    assert whole["attempts"] == [{"number": 1, "first": 1, "after": None}]
    assert ends([head], 60) == [0]
    (line,) = [text for text in explain(cluster.pods[0].tmp / "logs") if "steps:" in text]
    shown = r"steps: step 60 of 60, 0\.[5-9]\d? s a step, mean reward 0\.6 \(\+0\.1 over"
    assert re.match(shown, line)


@pytest.mark.pods(2)
def test_the_rehearsals_steps(cluster: Cluster) -> None:
    """They are in the status, in the series and in explain, without a setting."""
    cluster.env |= {"RAY_AUTH_TOKEN": TOKEN, "AGENT_JOB": "rehearsal", "AGENT_ON_DONE": "exit"}
    head, worker = cluster.agents()
    await_true("a step is known", lambda: last_step(cluster, head) >= 2, BOOT)
    output = head.exec([AGENT, "status"], env=cluster.env, timeout=60).stdout
    assert re.search(r"^step +\d+/40 · ", output, re.MULTILINE), output
    assert "nodes     2 fine" in output
    assert series(head, since=1)["keys"]["reward"]["steps"][0] == 2
    assert ends([head, worker], BOOT) == [0, 0]
    (line,) = [text for text in explain(cluster.pods[0].tmp / "logs") if "steps:" in text]
    assert line.startswith("steps: step 40 of 40, ")
    assert "mean reward 0.9" in line or "mean reward 1" in line


@pytest.mark.pods(1)
def test_a_resumed_job_that_makes_no_step_ends_with_a_warning(cluster: Cluster) -> None:
    """Its code stays 0; the two attempts are one run of W&B, and run.json has the last step."""
    job = (
        'echo "wandb $WANDB_RUN_ID $WANDB_RESUME"; [ "$AGENT_ATTEMPT" = 1 ] || exit 0; '
        "for n in 1 2 3; do echo step $n/400 mean reward 0.5; sleep 0.3; done; exec sleep 1000"
    )
    cluster.env |= {"AGENT_JOB_RETRIES": "1", "WANDB_API_KEY": "0" * 40}
    head = cluster.agent(0, "sh", "-c", job)
    head.wait_for("^step 3/400", "stdout", timeout=BOOT)
    await_true("its step is known", lambda: last_step(cluster, head) == 3, 20)
    raylet = next(process for process in head.processes() if process.name == "raylet")
    assert head.exec(["kill", "-9", str(raylet.pid)]).returncode == 0
    assert ends([head], BOOT) == [0]

    warning = (
        "warning: the job exited with 0 without a step, though an earlier attempt had come to "
        "step 3"
    )
    assert f" {warning}" in last_line(head)
    outcome = cluster.outcome(0)
    assert f"warning: {outcome['reason']}".startswith(warning)
    assert outcome["is_warning"]
    record = json.loads((cluster.pods[0].tmp / "logs/latest/run.json").read_text())
    assert record["durable"]["ended"][0]["last_step"] == 3
    printed = [line for line in head.stdout().splitlines() if line.startswith("wandb ")]
    assert printed == [f"wandb {record['durable']['run_id']} allow"] * 2
    (line,) = [text for text in explain(cluster.pods[0].tmp / "logs") if text.startswith("end: ")]
    assert line.startswith(f"end: {warning}")
