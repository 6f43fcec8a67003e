"""Impostors, relays, replayed reports and stalled requests: none gets or delays anything."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from agent.port.protocol import VERSION
from support.scenario import BOOT, Cluster, await_true, ends, keep_running

if TYPE_CHECKING:
    from tools.lab import Container

TOKEN = "t0ken-0123456789abcdef0123456789"  # noqa: S105 - a secret to search for
IMPOSTOR = r"""
import http.server, json, os, socket, threading, time

def record(data):
    with open("/tmp/received", "ab") as file:
        file.write(data + b"\n")

def gcs():
    with socket.create_server(("0.0.0.0", 6379)) as listener:
        while True:
            connection, _ = listener.accept()
            connection.settimeout(1)
            try:
                record(b"GCS " + connection.recv(65536))
            except OSError:
                pass
            connection.close()

class Port(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        record(f"{self.requestline} {self.headers.items()} ".encode() + body)
        status = 200 if "Authorization" in self.headers else 401
        outcome = {"kind": "done", "exit_code": 0, "phase": "job", "culprit": "", "reason": "over"}
        reply = {
            "protocol": PROTOCOL, "agent": "0", "epoch": 10**14, "run_id": "forged",
            "phase": "leaving", "ray_ready": True, "head_ip": "10.9.9.9", "news": 1,
            "verdict": {**outcome, "remedy": ""},
            "refusal": "forged", "orders": [],
        }
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Pod-Agent-Session", "00" * 16)
        self.send_header("Pod-Agent-Proof", "00" * 32)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

threading.Thread(target=gcs, daemon=True).start()
while not os.path.exists("/tmp/open"):
    time.sleep(0.1)
http.server.ThreadingHTTPServer(("0.0.0.0", 8266), Port).serve_forever()
""".replace("PROTOCOL", str(VERSION))
"""First plain Ray, as far as its open port goes; after `/tmp/open` an agent with a verdict."""

RELAY = r"""
import socket, sys, threading

def copy(source, target):
    with open("/tmp/received", "ab") as file:
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            file.write(data)
            file.flush()
            try:
                target.sendall(data) if data else target.shutdown(socket.SHUT_WR)
            except OSError:
                data = b""
            if not data:
                return

def serve(port):
    with socket.create_server(("0.0.0.0", port)) as listener:
        while True:
            near, _ = listener.accept()
            try:
                far = socket.create_connection((sys.argv[1], port))
            except OSError:
                near.close()
                continue
            for pair in ((near, far), (far, near)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

threading.Thread(target=serve, args=(6379,), daemon=True).start()
serve(8266)
"""
"""Passes what it receives at the agent's port and at GCS's on to the head, and keeps a copy."""

REPLAY = """
import sys, urllib.request, urllib.error
from agent.port.proof import Prover
from agent.port.protocol import Report
import json

url, token = sys.argv[1], sys.argv[2]
prover, content = Prover(token), json.dumps(Report("a1", "", "x").to_dict()).encode()

def send(signed):
    headers = {"Content-Type": "application/json", **signed.headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, signed.body, headers)) as answer:
            status, headers, body = answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        status, headers, body = error.code, error.headers, error.read()
    return status, prover.check(signed, status, headers, body).name

unsigned = send(prover.sign("POST", "/report", content))
signed = prover.sign("POST", "/report", content)
print(unsigned, send(signed), send(signed))
"""


STALLED = r"""
import selectors, socket, sys

head = sys.argv[1]
kinds = ((300, 8266, b"/login", b"application/x-www-form-urlencoded", 262144, b""),
         (8, 5000, b"/get_reward", b"application/json", 60 << 20, b"x" * 6000))
waiting = selectors.DefaultSelector()

def connect(kind):
    count, port, path, form, length, start = kind
    peer = socket.create_connection((head, port), 20)
    said = b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    peer.sendall(said % (path, head.encode(), form, length) + start)
    waiting.register(peer, selectors.EVENT_READ, kind)

for kind in kinds:
    for _ in range(kind[0]):
        connect(kind)
print("stalled", flush=True)
while True:
    for key, _ in waiting.select():
        waiting.unregister(key.fileobj)
        key.fileobj.close()
        connect(key.data)
"""
"""Requests whose bodies do not come, to the head's login and its reward server; again for ever."""

REWARDED = r"""
import json, os, sys, time, urllib.request

body = json.dumps({"query": ["It is 7"], "labels": ["7"]}).encode()
print("running", flush=True)
longest = 0.0
while not os.path.exists("/tmp/go"):
    began = time.monotonic()
    with urllib.request.urlopen(sys.argv[1], body, timeout=30) as reply:
        assert json.load(reply)["rewards"] == [1.0]
    longest = max(longest, time.monotonic() - began)
    time.sleep(0.1)
print(f"the longest request took {longest:.2f} s", flush=True)
sys.exit(7 if longest < 5 else 1)
"""
"""A job that asks for rewards until it may end."""


@pytest.mark.fault(
    "stalled",
    "strangers have hundreds of requests whose bodies do not come, to head and reward server",
    "no report and no reward is delayed; without a body in time each request ends",
)
@pytest.mark.pods(4)
@pytest.mark.parametrize("token", [TOKEN, None])
def test_stalled_requests_delay_neither_reports_nor_rewards(
    cluster: Cluster, token: str | None
) -> None:
    """Two strangers have hundreds of requests without a body for three times the grace."""
    cluster.env |= {"EXPECTED_WORKERS": "1", "AGENT_HEAD_GRACE": "15s", "AGENT_REWARD": "builtin"}
    if token is not None:
        cluster.env["RAY_AUTH_TOKEN"] = token
    head, worker, *strangers = cluster.pods
    job = (sys.executable, "-c", REWARDED, "{reward_url}")
    agents = [cluster.agent(pod, *job) for pod in (head, worker)]
    agents[0].wait_for("^running$", stream="stdout", timeout=BOOT)
    stalled = [pod.start([sys.executable, "-c", STALLED, head.ip], env={}) for pod in strangers]
    for container in stalled:
        container.wait_for("^stalled$", stream="stdout", timeout=30)
    keep_running(45.0, *agents, *stalled)
    (head.tmp / "go").touch()
    assert ends(agents) == [7, 7], agents[0].tail() + agents[1].tail()
    assert "restart" not in agents[0].stderr()


@pytest.mark.fault(
    "impostor",
    "a process without the token answers at the head's name",
    "a worker sends it no token, and applies nothing that it answers; it joins the real head",
)
@pytest.mark.pods(3)
def test_an_impostor_at_the_head_s_name(cluster: Cluster) -> None:
    """Its worker names it, sends it no token, and follows the head once that is there."""
    cluster.env |= {"EXPECTED_WORKERS": "1", "RAY_AUTH_TOKEN": TOKEN}
    false = cluster.pods[2]
    cluster.lab.publish("poda", false.ip)
    impostor = false.start([sys.executable, "-c", IMPOSTOR], env={})
    worker = cluster.agent(1, "sh", "-c", "exit 7")
    worker.wait_for("no agent that proves to hold RAY_AUTH_TOKEN", timeout=BOOT)
    (false.tmp / "open").touch()
    worker.wait_for(f"{false.ip}:8266 does not prove that it holds this node's", timeout=BOOT)
    received = (false.tmp / "received").read_bytes()
    assert b"GCS " in received
    assert b"('Authorization', 'Pod-Agent 00" in received
    assert TOKEN.encode() not in received
    cluster.lab.publish("poda", cluster.pods[0].ip)
    head = cluster.agent(0, "sh", "-c", JOB)
    head.wait_for("^running$", stream="stdout", timeout=BOOT)
    assert replayed(worker, cluster.pods[0].ip) == "(401, 'AGAIN') (200, 'PROVEN') (401, 'REFUSED')"
    cluster.lab.publish("poda", false.ip)
    cluster.pods[1].drop(cluster.pods[0])
    worker.wait_for("does not prove.* for [1-9]", timeout=30)
    assert worker.running
    cluster.lab.publish("poda", cluster.pods[0].ip)
    cluster.pods[1].heal()
    await_true("worker and head are in touch", lambda: "following" in status(worker), 60)
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker]) == [7, 7], head.tail() + worker.tail()
    assert impostor.running
    assert TOKEN.encode() not in (false.tmp / "received").read_bytes()


@pytest.mark.pods(3)
def test_a_relay_at_the_head_s_name(cluster: Cluster) -> None:
    """The proof passes through it, but the worker's Ray goes to the address in the proof."""
    cluster.env |= {"EXPECTED_WORKERS": "1", "RAY_AUTH_TOKEN": TOKEN}
    head, relay = cluster.pods[0], cluster.pods[2]
    cluster.lab.publish("poda", relay.ip)
    relay.start([sys.executable, "-c", RELAY, head.ip], env={})
    worker = cluster.agent(1, "sh", "-c", "exit 7")
    agent = cluster.agent(0, "sh", "-c", "exit 7", env={"AGENT_NODE_IP": head.ip})
    assert ends([agent, worker]) == [7, 7], agent.tail() + worker.tail()
    received = (relay.tmp / "received").read_bytes()
    assert b"POST /report" in received
    assert b"Authorization: Pod-Agent " in received
    assert TOKEN.encode() not in received


JOB = "echo running; while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 7"


def replayed(worker: Container, head: str) -> str:
    """Send the head a signed report twice; return what came back."""
    argv = [sys.executable, "-c", REPLAY, f"http://{head}:8266/report", TOKEN]
    done = worker.exec(argv, timeout=30)
    return done.stdout.strip() or done.stderr


def status(worker: Container) -> str:
    """Return what the worker's own port shows."""
    url, bearer = "http://127.0.0.1:8266/status", f"Authorization: Bearer {TOKEN}"
    return worker.exec(["curl", "-s", "-H", bearer, url], timeout=30).stdout
