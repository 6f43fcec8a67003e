"""A message about the end of a run reaches a real server, and a bad one delays no run."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT

if TYPE_CHECKING:
    from support.scenario import Cluster

RECEIVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print(self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", 9100), Handler).serve_forever()
"""
SILENT = """
import socket, time
server = socket.create_server(("127.0.0.1", 9101))
print("serving", flush=True)
while True:
    kept = server.accept(); time.sleep(3600)
"""
KEY = "k3y-of-the-hook"


@pytest.mark.pods(1)
def test_the_end_of_a_failed_run_is_sent(cluster: Cluster) -> None:
    """Start and end arrive, with the cause; a server that never answers costs at most its grace."""
    pod = cluster.pods[0]
    servers = [pod.start([sys.executable, "-u", "-c", code]) for code in (RECEIVER, SILENT)]
    for server in servers:
        server.wait_for("serving", stream="stdout", timeout=30)
    receiver = servers[0]
    urls = f"http://127.0.0.1:9100/{KEY} http://127.0.0.1:9101/{KEY}"
    job = "echo running; until [ -e /tmp/go ]; do sleep 0.1; done; exit 5"
    head = cluster.agent(0, "sh", "-c", job, env={"AGENT_NOTIFY": urls, "AGENT_RUN_NAME": "sums"})
    head.wait_for("^running$", "stdout", timeout=BOOT)
    receiver.wait_for('"state": "start"', stream="stdout", timeout=30)

    (pod.tmp / "go").touch()
    began = time.monotonic()
    assert head.wait(BOOT) == 5
    assert time.monotonic() - began < 20
    messages = [json.loads(line) for line in receiver.stdout().splitlines()[1:]]
    assert [message["state"] for message in messages] == ["start", "end"]
    assert messages[1]["text"].startswith("■ sums: job-failed: the job failed with exit code 5")
    assert {message["run"] for message in messages} == {messages[0]["run"]} != {""}
    assert "AGENT_NOTIFY: 127.0.0.1 has not accepted the end of the run" in head.stderr()
    for text in (head.stderr(), cluster.file(0, "agent.log").read_text()):
        assert KEY not in text
    for server in servers:
        server.kill()
