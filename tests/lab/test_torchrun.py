"""torchrun on each pod, without Ray; the first failed rank's code is every node's.

Torch is not a dependency: `stand_in/torch` starts processes as torchrun does. If
POD_AGENT_TORCH_PYTHON names a Python with torch, test_torchrun_real.py runs the real one.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from support.scenario import AGENT, Cluster, ends, last_line
from support.torchrun_nodes import BY_TORCHRUN, START, job_log, start

WHO = r"""
import os, sys

def say(*words):  # a line at once: torchrun runs scripts with -u, and ranks share one stdout
    sys.stdout.write(" ".join(words) + "\n")

say("I am", *(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")))
"""
STAY = (
    "import os, time\n"
    "print(f\"running {os.environ['RANK']}\\n\", end='', flush=True)\n"  # ranks share a pipe
    "time.sleep(600)"
)


@pytest.mark.pods(3)
def test_ranks_over_three_pods_and_no_ray(cluster: Cluster) -> None:
    """Six ranks connect; rank 0 is on the head, whose output is the run's; no Ray runs."""
    say_more = (
        f"{WHO}\n"
        'say("given", *sys.argv[1:], os.environ["AGENT_ATTEMPT"])\n'
        'say("env", *(n for n in os.environ if n.startswith("RAY_")))\n'
        'say("ifname", os.environ["GLOO_SOCKET_IFNAME"])\n'
    )
    agents = start(cluster, say_more, "{nodes}", "{head_ip}", "{attempt}", "{other}")
    assert ends(agents, START) == [0, 0, 0], agents[0].tail()
    lines = agents[0].stdout().splitlines()
    assert {"I am 0 0 6", "I am 1 1 6"} == {line for line in lines if line.startswith("I am")}
    assert f"given 3 {cluster.pods[0].ip} 1 {{other}} 1" in lines
    assert "env" in lines
    assert "ifname podnet1" in lines
    theirs = job_log(cluster, 1) + job_log(cluster, 2)
    expected = {f"I am {rank} {rank % 2} 6" for rank in (2, 3, 4, 5)}
    assert expected <= {*theirs.splitlines()}, theirs
    for pod, agent in enumerate(agents):
        assert "ray" not in {path.suffix for path in cluster.file(pod, "").iterdir()}
        assert not (cluster.file(pod, "ray-start.log")).exists()
        assert cluster.outcome(pod)["kind"] == "done"
        assert "Traceback" not in agent.stderr()


@pytest.mark.pods(3)
def test_the_first_failed_ranks_code_ends_all_nodes(cluster: Cluster) -> None:
    """Rank 3 ends with 7: all stop at once, every node ends with 7; node and rank are named."""
    script = "import os, time\nif os.environ['RANK'] == '3':\n    os._exit(7)\ntime.sleep(600)\n"
    agents = start(cluster, script)
    assert ends(agents, START) == [7, 7, 7], agents[0].tail()
    for pod, agent in enumerate(agents):
        assert "the job failed with exit code 7 (local rank 1 on pod" in last_line(agent)
        assert cluster.outcome(pod)["exit_code"] == 7
        assert cluster.outcome(pod)["kind"] == "job-failed"


@pytest.mark.pods(1)
def test_one_node_with_an_exception_and_a_signal(cluster: Cluster) -> None:
    """EXPECTED_WORKERS=0: the rank and its code are named; a killed rank's code is 128+n."""
    script = "import os, sys\nif sys.argv[1] == 'kill':\n    os.kill(os.getpid(), 9)\nsys.exit(3)\n"
    (head,) = start(cluster, script, "raise")
    assert head.wait(START) == 3, head.tail()
    assert "the job failed with exit code 3 (local rank" in last_line(head)
    (head,) = start(cluster, script, "kill")
    assert head.wait(START) == 137, head.tail()
    assert "137 (SIGKILL)" in last_line(head)


@pytest.mark.pods(2)
def test_sigterm_to_the_head_stops_the_ranks(cluster: Cluster) -> None:
    """All nodes end with 143 within the grace; the ranks receive SIGTERM; none is left."""
    script = (
        "import os, signal, sys, time\n"
        "def end(*_):\n    print('cleaned up', os.environ['RANK'], flush=True)\n    sys.exit(0)\n"
        f"signal.signal(signal.SIGTERM, end)\n{STAY}\n"
    )
    head, worker = start(cluster, script)
    head.wait_for("running 0", stream="stdout", timeout=START)
    began = time.monotonic()
    head.signal(signal.SIGTERM)
    assert ends([head, worker], 40) == [143, 143]
    assert time.monotonic() - began < 25
    assert "cleaned up 0" in head.stdout()
    assert "cleaned up 2" in job_log(cluster, 1)


@pytest.mark.pods(2)
def test_a_killed_pod_is_a_lost_node(cluster: Cluster) -> None:
    """The other ranks keep sleeping: after AGENT_NODE_GRACE, 75 with the node's name."""
    cluster.env["AGENT_NODE_GRACE"] = "3s"
    head, worker = start(cluster, STAY)
    head.wait_for("running 0", stream="stdout", timeout=START)
    worker.kill()
    assert head.wait(60) == 75, head.tail()
    assert "podb" in last_line(head)
    assert cluster.outcome(0)["kind"] == "lost"


@pytest.mark.pods(2)
def test_ranks_that_fail_after_a_killed_pod(cluster: Cluster) -> None:
    """Ranks that fail because another node was lost do not hide the loss: 75 with its name."""
    script = f"import os, time\n{WHO}\ntime.sleep(4)\nraise SystemExit(1)\n"
    head, worker = start(cluster, script)
    head.wait_for("I am 0", stream="stdout", timeout=START)
    worker.kill()
    assert head.wait(60) == 75, head.tail()
    assert "lost a needed node while the job ran: podb" in last_line(head)


@pytest.mark.pods(2)
def test_another_attempt_when_the_node_is_back(cluster: Cluster) -> None:
    """AGENT_JOB_RETRIES: all nodes run again, with new ranks."""
    cluster.env |= {"AGENT_NODE_GRACE": "2s", "AGENT_JOB_RETRIES": "1"}
    script = (
        "import os, time\n"
        "print('attempt', os.environ['AGENT_ATTEMPT'], os.environ['WORLD_SIZE'], flush=True)\n"
        "time.sleep(600 if os.environ['AGENT_ATTEMPT'] == '1' else 1)\n"
    )
    head, worker = start(cluster, script)
    head.wait_for("attempt 1 4", stream="stdout", timeout=START)
    worker.kill()
    again = cluster.agent(1, sys.executable, "/tmp/train.py")
    assert ends([head, again], 90) == [0, 0], head.tail()
    assert head.stdout().count("attempt 2 4") == 2
    outcome = cluster.outcome(0)
    assert [attempt["number"] for attempt in outcome["attempts"]] == [1, 2]


@pytest.mark.pods(2)
def test_a_killed_torchrun_ends_the_job(cluster: Cluster) -> None:
    """A worker's torchrun is killed, so no rank is named: the run ends with 137.

    Its ranks, each in its own session, keep running; all are stopped before another attempt.
    """
    head, worker = start(cluster, STAY)
    head.wait_for("running 0", stream="stdout", timeout=START)
    launchers = [p for p in worker.processes() if "torch.distributed.run" in p.cmdline]
    assert launchers
    os.kill(launchers[0].host_pid, signal.SIGKILL)
    assert ends([head, worker], 40) == [137, 137], head.tail()
    assert "torchrun itself on podb" in last_line(head)
    assert worker.stderr().count("torchrun had left") == 2


@pytest.mark.pods(2)
def test_a_different_command_is_refused_by_name(cluster: Cluster) -> None:
    """A worker with another command ends with 78 at once, and the head names it."""
    cluster.env |= {**BY_TORCHRUN, "AGENT_WAIT_WORKERS": "8s"}
    head = cluster.agent(0, sys.executable, "train.py")
    worker = cluster.agent(1, sys.executable, "train.py", "--lr=1")
    assert worker.wait(30) == 78, worker.tail()
    assert "the job of podb differs from the head's" in last_line(worker)
    assert head.wait(30) == 69
    assert "podb was refused" in last_line(head)


@pytest.mark.pods(1)
def test_plan_and_refusals(cluster: Cluster) -> None:
    """`plan` shows torchrun's command line and port; a leading torchrun is refused."""
    pod = cluster.pods[0]
    idle = pod.start(["sleep", "infinity"])
    env = {**cluster.env, **BY_TORCHRUN, "RUNPOD_POD_ID": pod.name}
    shown = idle.exec([AGENT, "plan", "-v", "--", "python", "train.py"], env=env)
    assert shown.returncode == 0, shown.stderr
    assert "-m torch.distributed.run --nnodes 1 --node_rank 0" in shown.stdout
    assert "torchrun's rendezvous" in shown.stdout
    refused = idle.exec([AGENT, "run", "--", "torchrun", "train.py"], env=env)
    assert refused.returncode == 78
    assert "torchrun itself" in refused.stderr
    idle.kill()
