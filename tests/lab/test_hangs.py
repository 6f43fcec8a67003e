"""Eight kinds of hangs: the alarm's sentence names the right node, process and function."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, ends
from support.volumes import loop_disk

if TYPE_CHECKING:
    from support.scenario import Cluster
    from tools.lab import Container

LEAST = "15"
"""The least limit of a step in seconds, instead of five minutes; the job's own steps decide."""
NAMED = 60.0
"""Seconds from the alarm to the sentence."""

BY_RAY = """
import multiprocessing, os, sys, threading, time, urllib.request
import ray
ray.init(logging_level="ERROR")

def steps():
    for step in range(1, 4):
        print(f"step {step}/100 reward 0.5", flush=True)

def on(node):  # the index of a node: the driver's is 0
    here = ray.get_runtime_context().get_node_id()
    others = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != here]
    place = [here, *others][node]
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(place, soft=False)

@ray.remote(num_cpus=0)
class Engine:
    def warm_up(self):
        return os.getpid()
    def generate(self, batch):
        return batch
    def lose_a_request(self):
        threading.Thread(target=self.log_metrics, daemon=True).start()
        self.wait_for_tokens()
    def wait_for_tokens(self):
        threading.Event().wait()
    def log_metrics(self):
        os.makedirs("/tmp/skyrl-logs", exist_ok=True)
        with open("/tmp/skyrl-logs/engine.log", "a") as log:
            while True:
                print("GET /metrics 200 OK", file=log, flush=True)
                print("GET /metrics 200 OK", flush=True)  # output is no step
                time.sleep(1)
    def load(self):
        child = multiprocessing.get_context("fork").Process(target=read_shard)
        child.start()
        child.join()

def read_shard():
    cache_shard()

def cache_shard():
    with open("/tmp/data/shard", "w") as file:
        file.write("tokens")

def compute_score():
    threading.Event().wait()

def request_score():
    urllib.request.urlopen("http://127.0.0.1:5055/score", b"{}")

def lock_both(first, second, has_first, other_has_first):
    with first:
        has_first.set()
        other_has_first.wait()
        with second:
            pass

def transfer():
    a, b = threading.Lock(), threading.Lock()
    one, two = threading.Event(), threading.Event()
    threads = [threading.Thread(target=lock_both, args=(a, b, one, two)),
               threading.Thread(target=lock_both, args=(b, a, two, one))]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

def reserve_gpus():
    group = ray.util.placement_group([{"GPU": 64}])
    ray.get(group.ready())

def rollout(kind):
    engines = [Engine.options(scheduling_strategy=on(n)).remote() for n in (0, 0, 1)]
    pids = ray.get([engine.warm_up.remote() for engine in engines])
    steps()
    if kind == "stopped":
        print("stop", pids[2], flush=True)
        time.sleep(5)  # until the test has stopped it
    if kind == "engine":
        answers = [engine.generate.remote(1) for engine in engines[:2]]
        ray.get([*answers, engines[2].lose_a_request.remote()])
    elif kind == "loader":
        ray.get(engines[2].load.remote())
    else:
        ray.get([engine.generate.remote(1) for engine in engines])

ways = {"reward": compute_score, "locks": transfer}
ways |= {"placement": reserve_gpus, "service": request_score}
kind = sys.argv[1]
if kind in ways:
    steps()
    ways[kind]()
else:
    rollout(kind)
"""

NAMES = {
    "reward": r"driver on poda is in `compute_score` \(train.py:\d+\)",
    "locks": (
        r"driver on poda is in `transfer` \(train.py:\d+\) "
        r"\(other threads: `lock_both` \(train.py:\d+\)"
    ),
    "placement": r"a placement group waits for a node with GPU: 64; "
    r"driver on poda waits for a result of Ray in `reserve_gpus` \(train.py:\d+\)",
    "service": r"driver on poda is in `request_score` \(train.py:\d+\)",
    "engine": (
        r"driver on poda waits for a result of Ray in `rollout` \(train.py:\d+\); "
        r"ray::Engine.lose_a_request on podb is in `(Engine\.)?wait_for_tokens` \(train.py:\d+\)"
    ),
    "loader": (
        r"child of ray::Engine.load on podb is blocked in the kernel( \(\w+\))? "
        r"in `cache_shard` \(train.py:\d+\)"
    ),
    "stopped": r"ray::Engine(.generate)? on podb is stopped by a signal",
}
"""Node, process and function of each kind of hang."""

SERVICE = """
import http.server, threading, socketserver
class Judge(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        self.score()
    def score(self):
        threading.Event().wait()
    def log_message(self, *words):
        print("GET /health 200 OK", flush=True)
http.server.ThreadingHTTPServer(("0.0.0.0", 5055), Judge).serve_forever()
"""
SERVICES = f"""
[services.judge]
command = "exec {sys.executable} /tmp/judge.py"
ready.http = "http://{{node_ip}}:5055/health"
"""


def sentence_of(head: Container, began: float) -> str:
    """Return the sentence of the alarm; it comes within a minute of the alarm."""
    head.wait_for(r"AGENT_STALL\): examining the job", timeout=120)
    alarm = time.monotonic()
    head.wait_for(r"stall: the job .*all stacks are in", timeout=NAMED)
    assert time.monotonic() - alarm < NAMED, began
    return next(line for line in head.stderr().splitlines() if "all stacks are in" in line)


def start(
    cluster: Cluster, script: str, *words: str, python: str = sys.executable
) -> list[Container]:
    """Start a job that hangs on both pods."""
    cluster.env |= {"POD_AGENT_STALL_LEAST": LEAST}
    for pod in cluster.pods:
        (Path(pod.tmp) / "train.py").write_text(script)
    return cluster.agents(python, "/tmp/train.py", *words)


@pytest.mark.pods(2)
@pytest.mark.parametrize("kind", [*NAMES])
def test_a_hang_is_named(kind: str, cluster: Cluster, tmp_path: Path) -> None:
    """Of a reward function, locks, a placement, a service, an engine, a disk, or a stopped rank."""
    if kind == "service":
        (Path(cluster.pods[0].tmp) / "judge.py").write_text(SERVICE)
        (Path(cluster.pods[0].tmp) / "services.toml").write_text(SERVICES)
        (Path(cluster.pods[1].tmp) / "services.toml").write_text(SERVICES)
        cluster.env["AGENT_SERVICES"] = "/tmp/services.toml"
    with loop_disk(Path(cluster.pods[1].tmp) / "data", tmp_path / "disk.img") as disk:
        if kind == "loader":
            disk.freeze()
        head, worker = start(cluster, BY_RAY, kind)
        head.wait_for("^step 3/100", "stdout", timeout=BOOT)
        if kind == "stopped":
            head.wait_for(r"^stop \d+", "stdout", timeout=BOOT)
            engine = next(p for p in worker.processes() if p.cmdline.startswith("ray::Engine"))
            os.kill(engine.host_pid, signal.SIGSTOP)
        sentence = sentence_of(head, time.monotonic())
        disk.thaw() if kind == "loader" else None
    assert re.search(NAMES[kind], sentence), sentence
    log = head.stderr()
    if kind == "placement":
        assert "a placement group waits for a node with GPU: 64" in log
    if kind == "service":
        assert re.search(r"service judge is in `(Judge\.)?score` \(judge.py:\d+\)", log)
    if kind == "engine":
        assert "GET /metrics 200 OK" in cluster.file(0, "stacks-1.log").read_text()
    head.signal(signal.SIGTERM)
    ends([head, worker])


PYTHON = os.environ.get("POD_AGENT_TORCH_PYTHON", "")
BY_TORCH = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
numbers = torch.ones(4)

def compute_score():
    time.sleep(1000)

def sync():
    dist.all_reduce(numbers)

for step in range(1, 5):
    if step == 4 and rank == 3:
        compute_score()
    sync()
    if rank == 0:
        os.write(1, f"step {step}/100 reward 0.5\\n".encode())
"""


@pytest.mark.skipif(not PYTHON, reason="POD_AGENT_TORCH_PYTHON names no Python that has torch")
@pytest.mark.pods(2)
def test_a_rank_that_joins_no_collective(cluster: Cluster) -> None:
    """Real torch by gloo: three ranks wait in all_reduce for the one in `compute_score`."""
    cluster.env |= {"AGENT_LAUNCHER": "torchrun", "AGENT_NUM_CPUS": "2", "OMP_NUM_THREADS": "1"}
    head, worker = start(cluster, BY_TORCH, python=PYTHON)
    head.wait_for("^step 3/100", "stdout", timeout=150)
    sentence = sentence_of(head, time.monotonic())
    assert re.search(
        r"rank 0 on poda, rank 1 on poda and rank 2 on podb wait in `all_reduce` \(train.py:\d+\); "
        r"rank 3 on podb is in `compute_score` \(train.py:\d+\) since \d\d:\d\d",
        sentence,
    ), sentence
    head.signal(signal.SIGTERM)
    ends([head, worker])
