"""Ray's own TLS: its variables on every node, and a run that ends as without them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, Cluster, ends

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "t0ken-0123456789abcdef0123456789"  # noqa: S105 - any will do
JOB = """
import os, time, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init()

@ray.remote(num_cpus=0)
def where():
    return ray.util.get_node_ip_address()

nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
each = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
found = ray.get([where.options(scheduling_strategy=one).remote() for one in each])
print("nodes", len({*found}), flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.1)
raise SystemExit(7)
"""
SPEAKS_TLS = """
import socket, ssl, sys
context = ssl.create_default_context(cafile="/tmp/tls/ca.pem")
context.load_cert_chain("/tmp/tls/node.pem", "/tmp/tls/node.key")
for port in sys.argv[2:]:
    with socket.create_connection((sys.argv[1], int(port)), 10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=sys.argv[1]) as tls:
                print(port, tls.version())
        except ssl.SSLError:
            print(port, "in clear")
"""
PORTS = {"GCS": 6379, "node manager": 8267, "object manager": 8268}
IN_CLEAR = {"dashboard": 8265, "dashboard agent": 8269, "runtime_env agent": 8271}
"""Ray's HTTP ports, which have no TLS."""


def certify(folder: Path, names: str) -> None:
    """Make an authority, and one certificate for all nodes."""
    folder.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl(*new, "-x509", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(*new, "-subj", "/CN=node", "-keyout", "node.key", "-out", "node.csr")
    (folder / "san").write_text(f"subjectAltName={names}\n")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "san")
    openssl("x509", "-req", "-in", "node.csr", *signing, "-days", "2", "-out", "node.pem")


@pytest.mark.pods(2)
def test_a_run_with_ray_s_tls(cluster: Cluster) -> None:
    """Boot, submission, job and verdict work; GCS speaks TLS."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make certificates")
    addresses = [pod.ip for pod in cluster.pods]
    names = ",".join([*(f"IP:{ip}" for ip in [*addresses, "127.0.0.1"]), "DNS:localhost"])
    first, second = (pod.tmp / "tls" for pod in cluster.pods)
    certify(first, names)
    shutil.copytree(first, second)
    (cluster.pods[0].tmp / "job.py").write_text(JOB)
    cluster.env |= {
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": "/tmp/tls/node.pem",
        "RAY_TLS_SERVER_KEY": "/tmp/tls/node.key",
        "RAY_TLS_CA_CERT": "/tmp/tls/ca.pem",
    }
    head, worker = cluster.agents(sys.executable, "/tmp/job.py")
    head.wait_for("^nodes 2$", stream="stdout", timeout=2 * BOOT)
    ports = [str(port) for port in (*PORTS.values(), *IN_CLEAR.values())]
    asked = head.exec([sys.executable, "-c", SPEAKS_TLS, addresses[0], *ports])
    wanted = [f"{port} TLSv1.3" for port in PORTS.values()]
    wanted += [f"{port} in clear" for port in IN_CLEAR.values()]
    assert asked.stdout.splitlines() == wanted, asked.stderr
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker]) == [7, 7], head.tail() + worker.tail()
