"""A real reward server for tests: a separate process on a free loopback port."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.bundled.reward_server import WITHOUT_MATH_VERIFY

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 20.0
PROGRAM = "agent.bundled.reward_server"
WITHOUT = """
import sys
sys.modules["math_verify"] = None
from agent.bundled import reward_server
vars(reward_server).update({constants})
sys.exit(reward_server.main(sys.argv[1:]))
"""
"""Runs the server as if math-verify were not installed, with constants of its own."""
NOTICE = f"reward server: {WITHOUT_MATH_VERIFY}\n"
"""The notice that it then writes to stderr."""


class Reply(NamedTuple):
    """Status and JSON body of a reply."""

    status: int
    body: dict[str, Any]


class RewardProcess:
    """The server's process and its URL."""

    def __init__(self, process: subprocess.Popen[bytes], line: str) -> None:
        self.process = process
        self.line = line
        self.urls = line.partition("listening on ")[2].strip().split(", ")
        self.url = self.urls[0]
        self.port = int(self.url.split(":")[2].split("/")[0])

    def at(self, path: str) -> str:
        """Return the URL of another path."""
        return f"http://127.0.0.1:{self.port}{path}"

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Signal it; return its exit code and the rest of its stderr."""
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, stderr.decode()


@contextlib.contextmanager
def reward_server(
    *flags: str, env: dict[str, str] | None = None, **constants: float
) -> Iterator[RewardProcess]:
    """Run a reward server during the block; math-verify is found only on a PYTHONPATH."""
    has_math_verify = "PYTHONPATH" in (env or {})
    without = WITHOUT.format(constants=constants)
    program = ["-m", PROGRAM] if has_math_verify else ["-c", without]
    process = subprocess.Popen(
        [sys.executable, *program, "--port", "0", *flags],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stderr=subprocess.PIPE,
    )
    try:
        yield RewardProcess(process, _first_line(process))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _first_line(process: subprocess.Popen[bytes]) -> str:
    if process.stderr is None:
        raise RuntimeError("its stderr is no pipe")
    deadline, line = time.monotonic() + SECONDS, b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stderr], [], [], deadline - time.monotonic())
        piece = os.read(process.stderr.fileno(), 1) if ready else b""
        if not piece:
            raise RuntimeError(f"the reward server did not come up: {line.decode()}")
        line += piece
    return line.decode()


def ask(url: str, body: bytes | dict[str, object] | None = None) -> Reply:
    """POST a body, or GET without one; return the reply."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    try:
        with urllib.request.urlopen(url, data, timeout=SECONDS) as reply:  # noqa: S310 # loopback
            return Reply(reply.status, json.load(reply))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Reply(refusal.code, json.load(refusal))
