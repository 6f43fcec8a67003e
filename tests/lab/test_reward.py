"""The reward server: readiness, early exit, wrong replies, restarts; it starts beside Ray."""

from __future__ import annotations

import re
import sys
import textwrap
import time

import pytest

from support.scenario import Cluster, await_true, ends, last_line, status_of_head

SERVER = textwrap.dedent(
    """
    import http.server, json, os, sys, time
    delay, reply = float(sys.argv[1]), sys.argv[2]
    time.sleep(delay)
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            if reply == "silence":
                time.sleep(3600)
            body = reply.encode()
            self.send_response(500 if os.path.exists("/tmp/ill") else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
    address = ("", int(os.environ["AGENT_REWARD_PORT"]))
    http.server.ThreadingHTTPServer(address, Handler).serve_forever()
    """
)
GOOD = '{"rewards": [1.0]}'
ANSWER = "the reward server did not answer"
TRAINER = textwrap.dedent(
    """
    import os, sys, time, urllib.request
    step = 0
    while not os.path.exists("/tmp/go"):
        step += 1
        time.sleep(0.5)
        reward = 0.6 + 0.01 * (step % 3)
        try:
            urllib.request.urlopen(sys.argv[1], b"{}", timeout=1).read()
        except OSError:
            reward = 0.0  # as reward functions do that handle every error
        print(f"step:{step} - critic/rewards/mean:{reward}", flush=True)
    """
)


def server(cluster: Cluster, delay: float, reply: str) -> str:
    """Write a reward server into the pod's /tmp; return its command line."""
    (cluster.pods[0].tmp / "server.py").write_text(SERVER)
    return f"exec {sys.executable} /tmp/server.py {delay:g} '{reply}'"


@pytest.mark.fault(
    "reward-never",
    "a reward server exits before it is ready, or its answers stay wrong",
    "69 with the last lines of its log",
)
@pytest.mark.pods(1)
def test_a_reward_server_that_exits_early(cluster: Cluster) -> None:
    """A server that exits before it is ready ends the run at once, with its last lines."""
    cluster.env["AGENT_REWARD"] = "echo no such model: qwen >&2; exit 4"
    head = cluster.agent(0, "echo", "{reward_url}")
    began = time.monotonic()
    assert head.wait(60) == 69
    assert time.monotonic() - began < 8
    assert re.search(r"exit code 4.*no such model: qwen", last_line(head))
    assert cluster.outcome(0)["culprit"] == "reward server"


@pytest.mark.pods(1)
def test_a_slow_reward_server_overlaps_with_the_boot(cluster: Cluster) -> None:
    """A server that takes 12 s starts in parallel with Ray; its URL is on the head."""
    cluster.env["AGENT_REWARD"] = server(cluster, 12, GOOD)
    head = cluster.agent(0, "echo", "url={reward_url}")
    began = time.monotonic()
    head.wait_for("url=http", timeout=60)
    seconds = time.monotonic() - began
    assert head.wait(60) == 0
    assert 12 < seconds < 12 + 7, seconds
    assert head.stdout() == f"url=http://{cluster.pods[0].ip}:5000/get_reward\n"
    submitted = head.stderr().index("✓ nodes ")
    assert head.stderr().index("✓ reward server ") < submitted


@pytest.mark.fault("reward-never")
@pytest.mark.pods(1)
@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        ("what is a reward", "not JSON"),
        ('{"rewards": [NaN]}', "not a finite number"),
        ("silence", "no answer within"),
    ],
    ids=["nonsense", "nan", "silence"],
)
def test_a_wrong_reply_is_retried_until_the_deadline(
    cluster: Cluster, reply: str, complaint: str
) -> None:
    """Wrong replies and silence are retried until AGENT_WAIT_REWARD, then reported."""
    cluster.env |= {"AGENT_REWARD": server(cluster, 0, reply), "AGENT_WAIT_REWARD": "12s"}
    head = cluster.agent(0, "echo", "{reward_url}")
    began = time.monotonic()
    assert ends([head], 60) == [69]
    assert 11 < time.monotonic() - began < 20
    assert complaint in last_line(head)


@pytest.mark.fault(
    "reward",
    "the reward server exits, hangs or answers 500",
    "it is restarted with growing pauses; the job continues; outcome.json lists the outages",
)
@pytest.mark.pods(1)
def test_a_killed_reward_server_is_restarted(cluster: Cluster) -> None:
    """A server that is killed while the job runs is started again; the job continues."""
    (cluster.pods[0].tmp / "server.py").write_text(SERVER)
    start = (
        f"{sys.executable} /tmp/server.py 0 '{GOOD}' & echo $! > /tmp/server.pid; wait $!; exit 9"
    )
    cluster.env["AGENT_REWARD"] = start
    ask = "import urllib.request as u, sys; print(u.urlopen(sys.argv[1], b'{}').read())"
    wait = "while [ ! -e /tmp/go ]; do sleep 0.1; done"
    job = f'{wait}; exec {sys.executable} -c "{ask}" {{reward_url}}'
    head = cluster.agent(0, "sh", "-c", job)
    head.wait_for("✓ job ", timeout=60)
    pid = (cluster.pods[0].tmp / "server.pid").read_text().strip()
    assert head.exec(["kill", "-9", pid]).returncode == 0
    head.wait_for("restart 1 of 3", timeout=20)
    head.wait_for(r"✓ reward server [\s\S]*✓ reward server ", timeout=20)
    (cluster.pods[0].tmp / "go").touch()
    assert head.wait(60) == 0, head.tail()
    assert "rewards" in head.stdout()


@pytest.mark.fault("reward")
@pytest.mark.pods(1)
def test_a_reward_server_that_hangs_or_fails_is_restarted(cluster: Cluster) -> None:
    """SIGSTOP, then 500 for every request: the probe finds both; both are recorded as outages.

    The job goes on without rewards: advice names the server.
    """
    tmp = cluster.pods[0].tmp
    (tmp / "server.py").write_text(SERVER)
    start = f"exec {sys.executable} /tmp/server.py 0 '{GOOD}'"
    slow = "[ ! -e /tmp/server.pid ] || sleep 5"
    (tmp / "start").write_text(f"{slow}; echo $$ > /tmp/server.pid; rm -f /tmp/ill; {start}")
    services = """
        [services.reward]
        command = "exec sh /tmp/start"
        alive = { every = "1s", within = "1s", misses = 2 }
    """
    (tmp / "services.toml").write_text(textwrap.dedent(services))
    cluster.env["AGENT_SERVICES"] = "/tmp/services.toml"
    (tmp / "trainer.py").write_text(TRAINER)
    head = cluster.agent(0, sys.executable, "/tmp/trainer.py", "{reward_url}")
    head.wait_for("✓ job ", timeout=60)
    await_true("12 steps", lambda: "step:12 " in head.stdout(), 60)
    pid = (tmp / "server.pid").read_text().strip()
    assert head.exec(["kill", "-STOP", pid]).returncode == 0
    head.wait_for(r"is down \(no answer within 1 s, 2 times in a row\): restart 1 of 3", timeout=20)
    lost = r"the mean reward fell from [\d.]+ to 0 in one step, at step \d+: " + ANSWER
    await_true(
        "advice",
        lambda: any(re.fullmatch(lost, one["what"]) for one in status_of_head(head)["advice"]),
    )
    head.wait_for(r"✓ reward server [\s\S]*✓ reward server ", timeout=20)
    (tmp / "ill").touch()
    head.wait_for(r"is down \(it answered 500.*2 times in a row\): restart 2 of 3", timeout=20)
    head.wait_for(r"(✓ reward server [\s\S]*){3}", timeout=20)
    (tmp / "go").touch()
    assert head.wait(60) == 0, head.tail()
    outages = cluster.outcome(0)["outages"]
    assert [(one["service"], one["node"]) for one in outages] == [("reward server", "poda")] * 2
    assert all(one["from"] < one["to"] for one in outages)
