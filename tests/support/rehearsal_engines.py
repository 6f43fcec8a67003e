"""Rehearsal engines for tests: separate processes on free loopback ports."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from agent.bundled.rehearsal_wires import ask
from support.fake_server import Answer, Asked, FakeServer, fake_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

ENGINE = (sys.executable, "-m", "agent.bundled.rehearsal_engine")


class EngineProcess:
    """An engine: its process, its address, and the file of its log."""

    def __init__(self, process: subprocess.Popen[str], address: str, log: Path) -> None:
        self.process = process
        self.address = address
        self._log = log

    def ask(self, verb: str, body: object = None, method: str = "POST") -> Any:  # noqa: ANN401 - JSON
        """Send it a request; return the reply's JSON."""
        return ask(self.address, verb, body, 20, method)

    def lines(self) -> list[dict[str, Any]]:
        """Return what its log has so far."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def verbs(self) -> list[str]:
        """Return the verbs of its log, without generations."""
        return [line["what"] for line in self.lines() if line["what"] != "generate"]


@contextlib.contextmanager
def running_engine(log: Path, *flags: str, port: int = 0) -> Iterator[EngineProcess]:
    """Run an engine during the block."""
    command = [*ENGINE, "--port", str(port), "--log", str(log), *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "listening on http://" in line, line
            address = line.split("http://")[1].partition("/")[0]
            yield EngineProcess(process, address, log)
        finally:
            process.kill()


def scoring() -> AbstractContextManager[FakeServer]:
    """Serve rewards: 1 for the right sum, 0 for another."""

    def answer(asked: Asked) -> Answer:
        pairs = zip(asked.body["query"], asked.body["labels"], strict=True)
        return Answer({"rewards": [float(f"{{{label}}}" in text) for text, label in pairs]})

    return fake_server(answer)
