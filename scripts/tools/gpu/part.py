"""What a part has: its folder, its figures, its deadline, and the processes that it starts.

A part raises for what goes wrong; the figures that it has by then are kept. Every wait ends at the
deadline. Each process carries a mark in its environment, by which all that is left is killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

MARK = "POD_AGENT_GPU_PART"
STOP_SECONDS = 30.0
KILLED_SECONDS = 2.0
POLL_SECONDS = 0.05
LONGEST = 400


class PartError(Exception):
    """A part failed; the message has the evidence."""


class Part(NamedTuple):
    """A part: its name, the seconds that it may take, and its function."""

    name: str
    seconds: float
    run: Callable[[Work], None]


class Program:
    """A process with its output in files."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], folder: Path, name: str
    ) -> None:
        self.name = name
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self.began = time.monotonic()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """Return its stdout so far."""
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def errors(self) -> str:
        """Return its stderr so far."""
        return self._err.read_text(encoding="utf-8", errors="replace")

    def tail(self) -> str:
        """Return the end of what it said, on one line."""
        said = f"{self.output[-LONGEST:]} {self.errors[-LONGEST:]}"
        return " ".join(said.split())


class Work:
    """A part at work."""

    def __init__(
        self, name: str, folder: Path, until: float, *, has_gpu: bool, scale: float
    ) -> None:
        self.name, self.folder, self.until = name, folder, until
        self.has_gpu, self.scale = has_gpu, scale
        self.figures: dict[str, Any] = {}
        self.programs: list[Program] = []
        folder.mkdir(parents=True)

    def left(self, limit: float | None = None) -> float:
        """Return the seconds that a wait may take."""
        rest = self.until - time.monotonic()
        if rest <= 0:
            raise PartError("its time was over")
        return rest if limit is None else min(rest, limit * self.scale)

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Program:
        """Start a process."""
        whole = {**os.environ, **(env or {}), MARK: mark_of(self.name)}
        program = Program(argv, whole, self.folder, name)
        self.programs.append(program)
        return program

    def wait(self, program: Program, limit: float | None = None) -> int:
        """Return a process's exit code, negative for a signal; stop it at its limit."""
        seconds = self.left(limit)
        try:
            return program.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop(program)
            why = f"{program.name} did not end in {seconds:.0f} s: {program.tail()}"
            raise PartError(why) from None

    def run(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        limit: float | None = None,
    ) -> Program:
        """Run a process to its end with 0."""
        program = self.start(name, argv, env)
        code = self.wait(program, limit)
        if code != 0:
            raise PartError(f"{name} ended with {code}: {program.tail()}")
        return program

    def wait_for(
        self, program: Program, pattern: str, limit: float | None = None, *, errors: bool = False
    ) -> re.Match[str] | None:
        """Wait for a text in the output of a process; None at the limit, or once it has ended."""
        until = time.monotonic() + self.left(limit)
        while True:
            ended = program.process.poll() is not None
            found = re.search(pattern, program.errors if errors else program.output, re.MULTILINE)
            if found is not None or ended or time.monotonic() >= until:
                return found
            time.sleep(POLL_SECONDS)

    def stop(self, program: Program) -> int:
        """Send SIGTERM to a process, after a while SIGKILL to its session; return its code."""
        with suppress(ProcessLookupError):
            program.process.terminate()
        try:
            return program.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(program.process.pid, signal.SIGKILL)
            return program.process.wait()

    def kill_all(self) -> int:
        """Kill what still runs for this part; return how many processes that were."""
        found = self.marked()
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        for program in self.programs:
            with suppress(subprocess.TimeoutExpired):  # one that hangs in the driver
                program.process.wait(KILLED_SECONDS)
        return len(found)

    def marked(self) -> list[psutil.Process]:
        """Return the processes that run for this part."""
        return processes_of(self.name)


def mark_of(name: str) -> str:
    """Return the mark of a part's processes."""
    return f"{name} of {os.getpid()}"


def processes_of(name: str) -> list[psutil.Process]:
    """Return the running processes of a part."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark_of(name):
                found.append(process)
    return found
