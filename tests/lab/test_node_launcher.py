"""AGENT_LAUNCHER=node: the command once on each pod, without Ray; its code is every node's.

The script meets over MASTER_ADDR and MASTER_PORT by plain sockets. If POD_AGENT_ACCELERATE_PYTHON
names a Python with accelerate, test_accelerate_trains_and_resumes runs that, too.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scenario import Cluster, ends, last_line

if TYPE_CHECKING:
    from tools.lab import Container

START = 40.0
TRAINER = r'''
"""Each step the nodes send a number to node 0, which adds them up and saves the sum."""
import json, os, socket, sys, time

rank, nodes = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
os.makedirs(sys.argv[1], exist_ok=True)
state = sys.argv[1] + "/state.json"
steps = int(sys.argv[2])
fails_at = int(sys.argv[3]) if len(sys.argv) > 3 and rank == 1 else 0

def meet():
    """Return the lines to the other nodes: node 0's to all, theirs to node 0."""
    if rank == 0:
        listener = socket.create_server(("", place[1]))
        return [listener.accept()[0].makefile("rw") for _ in range(nodes - 1)]
    while True:
        try:
            return [socket.create_connection(place).makefile("rw")]
        except OSError:
            time.sleep(0.05)

def exchange(lines, mine):
    """Return the sum of all nodes' numbers."""
    if rank:
        lines[0].write(f"{mine}\n")
        lines[0].flush()
        return int(lines[0].readline())
    total = mine + sum(int(line.readline()) for line in lines)
    for line in lines:
        line.write(f"{total}\n")
        line.flush()
    return total

lines = meet()
step = total = 0
if rank == 0 and os.path.exists(state):
    step, total = json.load(open(state)).values()
step = exchange(lines, step)  # node 0's; the others have 0
print("node", rank, "of", nodes, "begins at", step, "attempt", os.environ["AGENT_ATTEMPT"],
      "x", os.environ["NPROC_PER_NODE"], flush=True)
while step < steps:
    step += 1
    total = total + exchange(lines, rank + 1)
    if rank == 0:
        json.dump({"step": step, "total": total}, open(state + ".new", "w"))
        os.replace(state + ".new", state)
        print(f"step {step}/{steps} total {total}", flush=True)
    if step == fails_at:
        os._exit(7)
    time.sleep(0.1)
print("env", *sorted(name for name in os.environ if name.startswith("RAY_")), flush=True)
'''
STAY = r"""
import os, signal, socket, sys, time

def clean_up(*_):
    print("cleaned up", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, clean_up)
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["NODE_RANK"] == "0":
    line = socket.create_server(("", place[1])).accept()
    print("running", flush=True)
else:
    while True:
        try:
            line = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.05)
time.sleep(600)
"""
BACKGROUND = r"""
setsid sleep 611 &
sleep 612 &
python3 -c 'import os, signal; os.kill(os.getppid(), signal.SIGKILL)'
sleep 613
"""


def start(cluster: Cluster, script: str, *args: str, name: str = "train.py") -> list[Container]:
    """Start the agents with a command of their pods."""
    cluster.env |= {"AGENT_LAUNCHER": "node", "AGENT_NUM_CPUS": "2"}
    for pod in cluster.pods:
        (Path(pod.tmp) / name).write_text(script)
    program = "bash" if name.endswith(".sh") else sys.executable
    return cluster.agents(program, f"/tmp/{name}", *args)


def job_log(cluster: Cluster, pod: int) -> str:
    """Return the output of a pod's command."""
    return cluster.file(pod, "job.log").read_text()


@pytest.mark.pods(3)
def test_trained_over_three_pods(cluster: Cluster) -> None:
    """The nodes meet at the head, train, and end with 0; node 0's output is the run's; no Ray."""
    agents = start(cluster, TRAINER, "{log_dir}", "5")
    assert ends(agents, START) == [0, 0, 0], agents[0].tail()
    lines = agents[0].stdout().splitlines()
    assert "node 0 of 3 begins at 0 attempt 1 x 2" in lines
    assert "step 5/5 total 30" in lines
    assert "env" in lines
    theirs = job_log(cluster, 1) + job_log(cluster, 2)
    assert {f"node {rank} of 3 begins at 0 attempt 1 x 2" for rank in (1, 2)} <= {
        *theirs.splitlines()
    }
    for pod, agent in enumerate(agents):
        assert not cluster.file(pod, "ray-start.log").exists()
        assert cluster.outcome(pod)["kind"] == "done"
        assert "Traceback" not in agent.stderr()


@pytest.mark.pods(3)
def test_the_commands_code_is_every_nodes(cluster: Cluster) -> None:
    """Node 1 ends with 7 at step 3: that is the end of all, with the node's name."""
    agents = start(cluster, TRAINER, "{log_dir}", "600", "3")
    assert ends(agents, START) == [7, 7, 7], agents[0].tail()
    for pod, agent in enumerate(agents):
        assert "the job failed with exit code 7 (the command on pod" in last_line(agent)
        assert cluster.outcome(pod)["kind"] == "job-failed"


@pytest.mark.pods(3)
def test_a_killed_pod_and_the_next_attempt(cluster: Cluster) -> None:
    """A pod is killed and comes back: the next attempt resumes where node 0 saved."""
    cluster.env |= {"AGENT_NODE_GRACE": "2s", "AGENT_JOB_RETRIES": "1"}
    agents = start(cluster, TRAINER, "{checkpoints}", "60")
    agents[0].wait_for("step 20/60", stream="stdout", timeout=START)
    agents[2].kill()
    again = cluster.agent(2, sys.executable, "/tmp/train.py", "{checkpoints}", "60")
    assert ends([agents[0], agents[1], again], 90) == [0, 0, 0], agents[0].tail()
    begun = [line for line in agents[0].stdout().splitlines() if line.startswith("node 0 of 3")]
    assert len(begun) == 2
    assert "attempt 2" in begun[1]
    assert int(begun[1].split()[6]) >= 20
    assert "step 60/60 total 360" in agents[0].stdout().splitlines()
    assert [one["number"] for one in cluster.outcome(0)["attempts"]] == [1, 2]


@pytest.mark.pods(2)
def test_a_stop_reaches_what_a_shell_script_started(cluster: Cluster) -> None:
    """SIGTERM to the head: bash passes no signal on, so its whole group gets it."""
    for pod in cluster.pods:
        (Path(pod.tmp) / "stay.py").write_text(STAY)
    script = "python3 /tmp/stay.py\necho not reached\n"
    head, worker = start(cluster, script, name="go.sh")
    head.wait_for("running", stream="stdout", timeout=START)
    began = time.monotonic()
    head.signal(signal.SIGTERM)
    assert ends([head, worker], 40) == [143, 143], head.tail()
    assert time.monotonic() - began < 25
    assert "cleaned up" in head.stdout()
    assert "cleaned up" in job_log(cluster, 1)


@pytest.mark.pods(1)
def test_nothing_is_left_of_a_killed_command(cluster: Cluster) -> None:
    """A killed script leaves a process in a session of its own: it is killed, and said so."""
    (head,) = start(cluster, BACKGROUND, name="go.sh")
    assert head.wait(START) == 137, head.tail()
    assert "the command on" in last_line(head)
    assert head.stderr().count("node command had left sleep") == 1


@pytest.mark.pods(2)
def test_a_different_command_is_refused_by_name(cluster: Cluster) -> None:
    """A worker with another command ends with 78 at once, and the head names it."""
    cluster.env |= {"AGENT_LAUNCHER": "node", "AGENT_WAIT_WORKERS": "8s"}
    head = cluster.agent(0, "sleep", "60")
    worker = cluster.agent(1, "sleep", "61")
    assert worker.wait(30) == 78, worker.tail()
    assert "differs from the head's" in last_line(worker)
    assert head.wait(30) == 69


# --- accelerate ----------------------------------------------------------------------------------

PYTHON = os.environ.get("POD_AGENT_ACCELERATE_PYTHON", "")
ACCELERATE_START = 180.0
TRAIN = """
import os, sys, torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
folder, steps = sys.argv[1], int(sys.argv[2])
kept = [(0, None)]
if accelerator.is_main_process and os.path.exists(folder + "/kept.pt"):
    kept = [torch.load(folder + "/kept.pt")]
step, weights = broadcast_object_list(kept)[0]  # the pods share no disk
model = torch.nn.Linear(8, 1)
if weights is not None:
    model.load_state_dict(weights)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = accelerator.prepare(model, optimizer)
accelerator.print(f"begins at {step} of {accelerator.num_processes} processes", flush=True)
target = torch.arange(8.0).unsqueeze(1)
torch.manual_seed(accelerator.process_index)
while step < steps:
    step += 1
    x = torch.randn(32, 8)
    loss = ((model(x) - x @ target) ** 2).mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    if step % 10 == 0:
        if accelerator.is_main_process:
            torch.save((step, accelerator.unwrap_model(model).state_dict()), folder + "/kept.new")
            os.replace(folder + "/kept.new", folder + "/kept.pt")
        accelerator.print(f"step {step}/{steps} loss {loss.item():.4f}", flush=True)
"""


@pytest.mark.skipif(not PYTHON, reason="POD_AGENT_ACCELERATE_PYTHON names no Python")
@pytest.mark.pods(3)
def test_accelerate_trains_and_resumes(cluster: Cluster) -> None:
    """One process a pod by gloo: trained, a pod is killed, resumed. `--multi_gpu`: by torchrun."""
    cluster.env |= {
        "AGENT_LAUNCHER": "node",
        "AGENT_NODE_GRACE": "3s",
        "AGENT_JOB_RETRIES": "1",
        "OMP_NUM_THREADS": "1",
    }
    for pod in cluster.pods:
        (Path(pod.tmp) / "train.py").write_text(TRAIN)
    command = (
        *(PYTHON, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "{nodes}"),
        *("--machine_rank", "{rank}", "--main_process_ip", "{head_ip}"),
        *("--main_process_port", "{master_port}", "--num_processes", "{nodes}"),
        *("/tmp/train.py", "/tmp", "4000"),
    )
    agents = cluster.agents(*command)
    agents[0].wait_for("step 500/4000", stream="stdout", timeout=ACCELERATE_START)
    agents[2].kill()
    again = cluster.agent(2, *command)
    assert ends([agents[0], agents[1], again], ACCELERATE_START) == [0, 0, 0], agents[0].tail()
    begun = [line for line in agents[0].stdout().splitlines() if line.startswith("begins at")]
    assert begun[0] == "begins at 0 of 3 processes"
    assert len(begun) == 2
    assert int(begun[1].split()[2]) >= 500
    assert "step 4000/4000" in agents[0].stdout()
