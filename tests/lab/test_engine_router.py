"""An engine that hangs is out of its router's list until it generates again."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from support.scenario import BOOT, Cluster, await_true, ends

SUPPORT = Path(__file__).parents[1]
ENGINE = """
import http.server, pathlib, sys, time

class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer()
    def do_POST(self):
        if pathlib.Path("/tmp/hangs").exists():
            time.sleep(1000)
        self.answer()
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"text": "2"}')

http.server.ThreadingHTTPServer((sys.argv[1], 8003), Engine).serve_forever()
"""
SERVICES = """
[services.router]
command = "exec {python} -m support.router_server {{node_ip}} 8005"
env = {{ PYTHONPATH = "{support}" }}
ready.http = "http://{{node_ip}}:8005/health"

[services.engine]
command = "exec {python} /tmp/engine.py {{node_ip}}"
where = "rank 1"
router = "http://{{address:router}}:8005"
ready.http = "http://{{node_ip}}:8003/generate"
ready.body = '{{"text": "1+1="}}'
ready.expect = "text"
alive = {{ every = "1s", within = "1s", misses = 2 }}
"""


@pytest.mark.pods(2)
def test_an_engine_that_hangs_leaves_the_routers_list(cluster: Cluster) -> None:
    """Its port answers all the while: only the agent's generation shows that it hangs.

    A router that is started again has no engines: they are listed again, too.
    """
    text = SERVICES.format(python=sys.executable, support=SUPPORT)
    for pod in cluster.pods:
        (pod.tmp / "services.toml").write_text(text)
        (pod.tmp / "engine.py").write_text(ENGINE)
    cluster.env |= {"AGENT_SERVICES": "/tmp/services.toml"}
    head, worker = cluster.agents(
        "sh", "-c", "echo works; until [ -e /tmp/over ]; do sleep 0.2; done"
    )
    head.wait_for("^works$", "stdout", timeout=BOOT)
    url = f"http://{cluster.pods[1].ip}:8003"

    def changes() -> list[str]:
        return cluster.file(0, "router.log").read_text().splitlines()

    await_true("the engine is listed", lambda: changes() == [f"+ {url}"], 20)

    (cluster.pods[1].tmp / "hangs").touch()
    await_true("it is taken out", lambda: changes()[1:] == [f"- {url}"], 30)
    worker.wait_for("engine: taken out of the list of its router", timeout=10)
    (cluster.pods[1].tmp / "hangs").unlink()
    await_true("it is listed again", lambda: changes()[2:] == [f"+ {url}"], 60)

    # A router that is started again has an empty list.
    (router,) = [one for one in head.processes() if "support.router_server" in one.cmdline]
    os.kill(router.host_pid, signal.SIGKILL)
    await_true("it is listed once more", lambda: changes()[3:] == [f"+ {url}"], 60)

    (cluster.pods[0].tmp / "over").touch()
    assert ends([head, worker]) == [0, 0]
    assert [one["service"] for one in cluster.outcome(0)["outages"]] == ["engine", "router"]
