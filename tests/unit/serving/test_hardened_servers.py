"""The bundled HTTP servers under attack: connections, headers, bodies and hard expressions."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.reward_process import ROOT, SECONDS, ask, reward_server

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from agent.serving import bodies, connections
connections.HEADER = float(sys.argv[1])
bodies.BODY = float(sys.argv[2])
from agent.bundled.{module} import main
sys.exit(main(sys.argv[3:]))
"""
FLOOD = 1_100  # more than the usual limit of open files
MIB = 1 << 20


class Server(NamedTuple):
    """A server of this name, its process, its URL, and a body that it answers."""

    process: subprocess.Popen[bytes]
    url: str
    good: dict[str, object]

    @property
    def port(self) -> int:
        """Return its port."""
        return int(self.url.split(":")[2].split("/")[0])

    def peak(self) -> int:
        """Return the most memory that it has used."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10

    def stop(self) -> list[str]:
        """End it; return the lines of its log since the first one."""
        self.process.send_signal(signal.SIGTERM)
        _, stderr = self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == 0
        return stderr.decode().splitlines()


BODIES: dict[str, dict[str, object]] = {
    "reward_server": {"query": ["7"], "labels": ["7"]},
    "retriever": {"queries": ["Hamlet"], "topk": 1},
}


@contextlib.contextmanager
def running(module: str, *, header: float = 10.0, body: float = 10.0) -> Iterator[Server]:
    """Run a server with these deadlines, and with the usual limit of open files."""
    command = [sys.executable, "-c", PROGRAM.format(module=module), str(header), str(body)]
    process = subprocess.Popen([*command, "--port", "0"], cwd=ROOT, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        assert "listening on" in line, line
        yield Server(process, line.split()[-1], BODIES[module])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextlib.contextmanager
def connected(port: int, count: int, said: bytes, source: str) -> Iterator[list[socket.socket]]:
    """Open connections from an address, and send something on each."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port), SECONDS, (source, 0))
            opened.append(stack.enter_context(one))
            with contextlib.suppress(ConnectionError):  # it may be closed already
                one.sendall(said)
        yield opened


@pytest.fixture(autouse=True)
def _enough_files() -> None:
    """Have descriptors for our ends of all connections."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.mark.parametrize("module", BODIES)
def test_half_sent_requests_block_nobody(module: str) -> None:
    """A good request from the same address is answered meanwhile; the log stays short."""
    half = b"POST /get_reward HTTP/1.1\r\nHost: a\r\nX-Half: "
    with running(module) as server:
        with connected(server.port, FLOOD, half, "127.0.0.1"):
            for _ in range(3):
                assert ask(server.url, server.good).status == 200
        assert len([line for line in server.stop() if "not installed" not in line]) <= 1


@pytest.fixture(scope="module", params=BODIES)
def impatient(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that waits a second for headers and bodies."""
    with running(request.param, header=1.0, body=1.0) as server:
        yield server


def posting(server: Server, length: object, body: bytes = b"") -> bytes:
    """Return a request that announces a length."""
    path = server.url[server.url.index("/", 8) :]
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n".encode() + body


@pytest.mark.parametrize("said", [b"", b"POST /x HTTP/1.1\r\nHost: a\r\nX-Half: "])
def test_a_header_has_a_deadline(impatient: Server, said: bytes) -> None:
    """A connection without a complete header is closed."""
    with connected(impatient.port, 1, said, "127.0.0.1") as (one,):
        assert one.recv(1000) == b""


def test_a_body_has_a_deadline(impatient: Server) -> None:
    """A body that does not arrive is a 408."""
    with connected(impatient.port, 1, posting(impatient, 9, b"ab"), "127.0.0.1") as (one,):
        assert b" 408 " in one.recv(1000)


@pytest.mark.parametrize("length", ["-1", "+9", "1e3", "9" * 30])
def test_a_wrong_length_is_refused(impatient: Server, length: str) -> None:
    """No body without limit is read."""
    with connected(impatient.port, 1, posting(impatient, length), "127.0.0.1") as (one,):
        assert one.recv(1000).split()[1] in {b"400", b"413"}
    assert ask(impatient.url, impatient.good).status == 200


@pytest.mark.parametrize(
    ("module", "longest", "sent"),
    [("reward_server", 60 * MIB, 2 * MIB), ("retriever", 4 * MIB, 6_000)],
)
def test_stalled_bodies_block_nobody(module: str, longest: int, sent: int) -> None:
    """Twenty addresses announce the largest body and send its start; good ones are answered."""
    with running(module, body=600.0) as server, contextlib.ExitStack() as stack:
        said = posting(server, longest, b"x" * sent)
        for number in range(20):
            stack.enter_context(connected(server.port, 4, said, f"127.0.0.{2 + number}"))
        for _ in range(3):
            assert ask(server.url, server.good).status == 200


def status_of(url: str, body: bytes) -> int:
    """Send a body, which may have to wait for others; return the status."""
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=90)
    with contextlib.closing(connection):
        connection.request("POST", url[url.index("/", 8) :], body)
        return connection.getresponse().status


@pytest.mark.serial
def test_large_bodies_at_once_take_bounded_memory() -> None:
    """Ten of them wait for each other; none is refused for good, and a small one is answered."""
    with running("reward_server") as server:
        body = json.dumps({**server.good, "query": ["x" * 30 * MIB]}).encode()
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(status_of(server.url, body)))
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        assert ask(server.url, server.good).status == 200
        for thread in threads:
            thread.join(90)
        assert set(answers) <= {200, 408, 503}  # the last two under load
        assert 200 in answers
        assert server.peak() < 400 * MIB


HARD = """
from pathlib import Path

FOLDER = Path(__file__).parent

def parse(text):
    with (FOLDER / "order").open("a") as file:
        print(text, file=file)
    if "hard" in text:
        (FOLDER / "begun").touch()
        time.sleep(0.3)
    return "".join(sorted(text))

def verify(gold, answer):
    return gold == answer
"""


@pytest.mark.serial
def test_hard_expressions_do_not_delay_a_good_batch(tmp_path: Path) -> None:
    """It passes four batches of them, which came first: only what runs already goes before it."""
    (tmp_path / "math_verify.py").write_text(HARD)

    def pairs(word: str, count: int) -> dict[str, object]:
        query = [rf"\boxed{{{word}{n}+x}}" for n in range(count)]
        return {"query": query, "labels": [f"y+{word}{n}" for n in range(count)]}

    with reward_server(env={"PYTHONPATH": str(tmp_path)}) as server:
        hard = [
            threading.Thread(target=ask, args=(server.url, pairs(f"hard{n}a", 6))) for n in range(4)
        ]
        for thread in hard:
            thread.start()
        while not (tmp_path / "begun").exists():
            assert hard[0].is_alive()
        before = (tmp_path / "order").read_text().count("hard")
        assert ask(server.url, pairs("good", 20)).status == 200
        after = (tmp_path / "order").read_text().count("hard")
        # of 48 texts: what runs already and the first pair of each batch, 8, and more under load
        assert after - before <= 22
        for thread in hard:
            thread.join(SECONDS * 3)
