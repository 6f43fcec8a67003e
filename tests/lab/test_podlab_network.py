"""The pod lab's network: what the scenarios rely on, with real namespaces, without Ray."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from support.scenario import await_true, lookup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.lab import Container, Lab, Pod

LISTEN = """
import socket, sys
server = socket.create_server(("", 7000))
print("listening", flush=True)
while True:
    peer = server.accept()[0]
    peer.sendall(socket.gethostname().encode())
    peer.close()
"""
CONNECT = """
import socket, sys
address, port, timeout, interface = sys.argv[1:]
peer = socket.socket()
peer.settimeout(float(timeout))
if interface:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
try:
    peer.connect((address, int(port)))
    print(peer.recv(100).decode())
except OSError as problem:
    print(type(problem).__name__)
"""
RECEIVE = """
import socket, sys
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind((sys.argv[1], 7001))
print("listening", flush=True)
while True:
    print(receiver.recvfrom(100)[1][0], flush=True)
"""
SEND = """
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int((sys.argv + ["1"])[2])):
    sender.sendto(b"x", (sys.argv[1], 7001))
    time.sleep(0.002)
"""


@pytest.fixture
def greeter(lab: Lab) -> Iterator[Pod]:
    """Start a server on the second pod, port 7000, which sends its host name."""
    server = lab.pods[1].start([sys.executable, "-c", LISTEN])
    server.wait_for("listening")
    yield lab.pods[1]
    server.kill()


def connect(
    container: Container, address: str, *, timeout: float = 2, port: int = 7000, interface: str = ""
) -> str:
    """Return the server's reply, or the name of the exception."""
    words = ["-c", CONNECT, address, str(port), str(timeout), interface]
    return container.exec([sys.executable, *words], timeout=20).stdout.strip()


def test_names(lab: Lab, idle: list[Container]) -> None:
    """Pods resolve each other by short and full name; unknown names fail fast.

    A pod's own short name resolves to loopback, as on RunPod.
    """
    for pod in lab.pods[1:]:
        assert lookup(idle[0], pod.name) == pod.ip
        assert lookup(idle[0], f"{pod.name}.runpod.internal") == pod.ip
    assert lookup(idle[0], "pod0.runpod.internal") == lab.pods[0].ip
    assert lookup(idle[0], "pod0").startswith("127.")
    began = time.monotonic()
    for name in ("pod9", "pod9.runpod.internal", "example.org"):
        assert lookup(idle[0], name) == ""
    assert time.monotonic() - began < 1.5


def test_publish_later(lab: Lab, idle: list[Container]) -> None:
    """A name can be published late, moved and removed; each takes effect at once."""
    name = "late.runpod.internal"
    assert lookup(idle[0], name) == ""
    lab.publish("late", "10.77.0.99")
    assert lookup(idle[0], name) == "10.77.0.99"
    lab.publish("late", "10.77.0.98")
    assert lookup(idle[0], name) == "10.77.0.98"
    lab.unpublish("late")
    assert lookup(idle[0], name) == ""
    lab.pods[1].unpublish()
    assert lookup(idle[0], "pod1.runpod.internal") == ""
    lab.pods[1].publish()
    assert lookup(idle[0], "pod1.runpod.internal") == lab.pods[1].ip


def test_silent_dns(lab: Lab, idle: list[Container]) -> None:
    """A DNS server that does not answer takes the resolver's whole timeout."""
    lab.dns(answering=False)
    began = time.monotonic()
    assert lookup(idle[0], "pod1") == ""
    assert time.monotonic() - began > 0.9
    lab.dns(answering=True)
    assert lookup(idle[0], "pod1") == lab.pods[1].ip


def test_network(greeter: Pod, idle: list[Container]) -> None:
    """Pods reach each other over podnet1, never over the decoy, which has the default route."""
    assert connect(idle[0], greeter.ip) == "pod1"
    assert connect(idle[2], greeter.ip, interface="podnet1") == "pod1"
    assert connect(idle[0], greeter.ip, interface="eth0", timeout=0.3) == "TimeoutError"
    assert connect(idle[0], greeter.decoy_ip, timeout=0.3) == "TimeoutError"
    assert connect(idle[0], "192.0.2.1", timeout=0.3) == "TimeoutError"
    routes = idle[0].exec(["ip", "route"]).stdout
    assert "default via 172.31.250.1 dev eth0" in routes
    addresses = idle[0].exec(["ip", "-brief", "-4", "address"]).stdout
    assert {line.split("@")[0].split()[0] for line in addresses.splitlines()} == {
        "lo",
        "eth0",
        "podnet1",
    }
    assert sorted(idle[0].exec(["ls", "/sys/class/net"]).stdout.split()) == [
        "eth0",
        "lo",
        "podnet1",
    ]


def test_cut_and_heal(lab: Lab, greeter: Pod, idle: list[Container]) -> None:
    """A cut pod can neither send nor receive, with its link up; `heal` restores both."""
    greeter.cut()
    assert connect(idle[0], greeter.ip, timeout=0.3) == "TimeoutError"
    assert connect(idle[1], lab.pods[0].ip, timeout=0.3) == "TimeoutError"
    assert "UP" in idle[1].exec(["ip", "-brief", "link", "show", "podnet1"]).stdout.split()
    greeter.heal()
    assert connect(idle[0], greeter.ip) == "pod1"


def test_drop_one_way(lab: Lab, greeter: Pod, idle: list[Container]) -> None:
    """`drop` discards a pod's packets to one peer; all other packets arrive."""
    echo = idle[1].spawn([sys.executable, "-c", RECEIVE, greeter.ip])
    echo.wait_for("listening")
    lab.pods[0].drop(greeter)
    assert connect(idle[0], greeter.ip, timeout=0.3) == "TimeoutError"
    assert connect(idle[2], greeter.ip) == "pod1"
    idle[0].exec([sys.executable, "-c", SEND, greeter.ip])
    idle[2].exec([sys.executable, "-c", SEND, greeter.ip])
    echo.wait_for(f"^{lab.pods[2].ip}$")
    assert lab.pods[0].ip not in echo.stdout()
    greeter.drop(lab.pods[0])
    lab.pods[0].heal()
    assert connect(idle[0], greeter.ip, timeout=0.3) == "TimeoutError"
    idle[0].exec([sys.executable, "-c", SEND, greeter.ip])
    echo.wait_for(f"^{lab.pods[0].ip}$")
    greeter.heal()
    assert connect(idle[0], greeter.ip) == "pod1"
    echo.kill()


def test_slow(lab: Lab, greeter: Pod, idle: list[Container]) -> None:
    """A slow link delays every packet, loses its share of them, and corrupts none."""
    greeter.slow(delay=0.2)
    assert _seconds_to(idle[0], greeter) > 0.4
    greeter.slow(loss=0.3)
    sent = 400
    receiver = idle[1].spawn([sys.executable, "-c", RECEIVE, greeter.ip])
    receiver.wait_for("listening")
    idle[0].exec([sys.executable, "-c", SEND, greeter.ip, str(sent)])
    await_true("packets arrive", lambda: _count(receiver.stdout()) > 0.5 * sent)
    assert _count(receiver.stdout()) < 0.9 * sent
    receiver.kill()
    assert connect(idle[0], greeter.ip, timeout=20) == "pod1"
    assert lookup(idle[1], "pod0.runpod.internal") in {lab.pods[0].ip, ""}
    greeter.heal()
    assert _seconds_to(idle[0], greeter) < 0.2


def _count(text: str) -> int:
    return len(text.splitlines()) - 1


def _seconds_to(container: Container, pod: Pod) -> float:
    """Return the seconds until a connection's first bytes, the best of three."""
    code = (
        "import socket, sys, time\nbegan = time.monotonic()\n"
        "socket.create_connection((sys.argv[1], 7000), 10).recv(100)\n"
        "print(time.monotonic() - began)"
    )
    argv = [sys.executable, "-c", code, pod.ip]
    return min(float(container.exec(argv, timeout=20).stdout) for _ in range(3))


def test_lose(lab: Lab, idle: list[Container]) -> None:
    """A lost pod does not answer at all, whereas a killed process's port refuses."""
    assert connect(idle[0], lab.pods[2].ip, port=1) == "ConnectionRefusedError"
    lab.pods[2].lose()
    assert idle[2].poll() == 137
    assert connect(idle[0], lab.pods[2].ip, port=1, timeout=0.3) == "TimeoutError"
    lab.pods[2].heal()
