"""Compressed bodies of requests and answers are never inflated."""

from __future__ import annotations

import json
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest

from agent.decisions.worker.worker_state import HeadSilent
from agent.port.client import download_sample
from support.agent_ports import FIRST, served_port
from support.http_peer import Peer, answering, reply
from support.linked_worker import Link
from support.reward_process import reward_server
from support.served import ask
from support.worlds import SECRET

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

pytestmark = pytest.mark.processes

MIB = 1 << 20
JSON = {"Content-Type": "application/json"}
REQUESTS = 10


def bomb(mib: int) -> bytes:
    """Return a gzip stream of so many MiB of zeros, which is a thousand times smaller."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(MIB)
    return b"".join([*(packer.compress(zeros) for _ in range(mib)), packer.flush()])


def post(port: int, path: str, body: bytes) -> tuple[int, str]:
    """Post a body that is compressed; return the status and the sentence of the answer."""
    answer = ask(port, "POST", path, {**JSON, "Content-Encoding": "gzip"}, body)
    return answer.status, str(answer.data.get("error", ""))


@pytest.mark.parametrize("token", [None, SECRET])
def test_the_agents_port_inflates_nothing(token: str | None) -> None:
    """Bombs cost no CPU time, without a token and before the token is checked."""
    body = bomb(60)
    began = time.process_time()
    zlib.decompress(body, wbits=31)
    inflating = time.process_time() - began
    with served_port(token) as port:
        began = time.process_time()
        answers = {post(port.number, "/report", body) for _ in range(REQUESTS)}
        assert time.process_time() - began < REQUESTS * inflating / 2
        ((status, sentence),) = answers
        assert status == 415
        assert "Content-Encoding" in sentence
        assert post(port.number, "/login", body)[0] == 415


def highest_memory(port: int) -> int:
    """Return the highest resident memory, in bytes, of the process that listens on a port."""
    listening = (one for one in psutil.net_connections("tcp4") if one.status == psutil.CONN_LISTEN)
    pid = next(one.pid for one in listening if one.laddr[1:] == (port,))
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.slow
def test_the_reward_server_inflates_nothing() -> None:
    """A small body cannot take its memory: half a megabyte, in which there are 500."""
    with reward_server() as server:
        before = highest_memory(server.port)
        status, sentence = post(server.port, "/get_reward", bomb(500))
        assert highest_memory(server.port) - before < 50 * MIB
        assert (status, "Content-Encoding" in sentence) == (415, True)


# --- answers -------------------------------------------------------------------------------------


def compressed(body: bytes) -> Callable[[socket.socket, Peer], None]:
    """Make a response with a body that is compressed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return reply(packer.compress(body) + packer.flush(), "200 OK\r\nContent-Encoding: gzip")


def test_a_worker_inflates_no_reply() -> None:
    """What answers at the head's name may be anyone: a compressed reply is none."""
    with answering(compressed(json.dumps(FIRST.to_dict()).encode())) as peer:
        worker = Link(peer.port, gcs=peer.port, joins_plain_ray=False)
        anyio.run(worker.run_until, HeadSilent)
        assert {type(event) for event in worker.events} == {HeadSilent}
        assert b"Accept-Encoding: identity\r\n" in peer.asked[0]


def test_a_measurement_counts_what_arrives() -> None:
    """The bytes of the network, not what they are inflated to."""
    with answering(compressed(bytes(30 * MIB))) as peer:
        result = anyio.run(download_sample, "127.0.0.1", peer.port, None, "run-1", 10.0)
    assert not isinstance(result, str)
    assert result[0] < MIB
