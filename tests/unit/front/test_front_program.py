"""The front as a program: its command line, its key and its end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from agent.front.front_program import main
from support.free_ports import free_port
from support.sources import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes


@contextmanager
def front(*options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a front; yield it and its control port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "agent", "front", "--control-port", "0", *options],
        cwd=ROOT,
        env={**os.environ, "AGENT_FRONT_KEY": "secret"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        found = re.fullmatch(r"front: takes orders on 127.0.0.1:(\d+)\n", process.stderr.readline())
        assert found is not None
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate(timeout=10)


def put(port: int, order: object) -> dict[str, object]:
    """Send an order; return the reply."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/front",
        json.dumps(order).encode(),
        {"Authorization": "Bearer secret"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310 - same
        data: dict[str, object] = json.load(reply)
        return data


def test_a_front_ends_on_sigterm_although_requests_are_held() -> None:
    """Within 3 s, with 0 and without a traceback."""
    with front() as (process, control):
        port = free_port()
        slot = {"port": port, "name": "e0", "address": "", "generation": 0, "answers": False}
        reply = put(control, {"attempt": 1, "slots": [slot]})
        assert reply["members"] == [
            {
                "port": port,
                "generation": 0,
                "state": "down",
                "version": "",
                "requests": 0,
                "errors": 0,
                "waiting": 0,
                "refits": 0,
                "why": "",
                "is_wedged": False,
            }
        ]
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
            assert process.stderr is not None
            lines = [process.stderr.readline() for _ in range(3)]
            assert lines == [
                "front: attempt 1 begins\n",
                "front: e0: new -> down, generation 0\n",
                "front: no member serves: requests are held\n",
            ]
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0
            assert time.monotonic() - began < 5  # on a busy machine
            assert [line for line in process.stderr if "held up to 1 requests" not in line] == []


def test_a_front_without_a_key_ends_with_78(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody on the head could change the members."""
    monkeypatch.delenv("AGENT_FRONT_KEY", raising=False)
    assert main(["--control-port", "0"]) == 78
    assert "AGENT_FRONT_KEY is not set" in capsys.readouterr().err


def test_a_control_port_that_is_taken_ends_with_78(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another front, or another program."""
    monkeypatch.setenv("AGENT_FRONT_KEY", "secret")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--control-port", str(port)]) == 78
    assert f"cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [[], ["--control-port", "70000"], ["--control-port", "0", "--dialect", "nccl"]]
)
def test_wrong_flags_end_with_2(options: list[str]) -> None:
    """As those of all programs."""
    with pytest.raises(SystemExit) as end:
        main(options)
    assert end.value.code == 2
