"""A command that runs in a pod: its output, its exit code, and waits for both."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from tools.lab.errors import LabError
from tools.lab.waiting import until

if TYPE_CHECKING:
    from tools.lab.launch import Spec

LAUNCHER = Path(__file__).with_name("launch.py")
START_TIMEOUT = 20.0
END_TIMEOUT = 10.0
TAIL_LINES = 30

Stream = Literal["stdout", "stderr", "both"]


class _Report(TypedDict, total=False):
    """A report of the launcher; see launch.py."""

    pid: int
    pidns: str
    at: float
    status: int
    error: str


class Running:
    """A command in a pod, from its exec to its exit code; made by Pod.start and Container.spawn.

    `pid` is the host's, `started_at` and `ended_at` are time.monotonic() values taken by the
    launcher, `log_paths` are the files with stdout and stderr.
    """

    def __init__(self, spec: Spec, logs: Path, label: str) -> None:
        self.spec = spec
        self.label = f"{label}: {shlex.join(spec['argv'])}"
        self.log_paths = (logs.with_suffix(".out"), logs.with_suffix(".err"))
        self.ended_at: float | None = None
        self._status: int | None = None
        self._over = threading.Event()
        self._launcher, report = self._launch()
        self._stdin = self._launcher.stdin
        first = self._first_report(report)
        self.pid = first["pid"]
        self.pidns = first["pidns"]
        self.started_at = first["at"]
        self._pidfd = self._open_pidfd()
        watcher = threading.Thread(target=self._watch, args=(report,), daemon=True)
        watcher.start()

    def _launch(self) -> tuple[subprocess.Popen[bytes], int]:
        reader, writer = os.pipe()
        try:
            with self.log_paths[0].open("ab") as out, self.log_paths[1].open("ab") as err:
                launcher = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(LAUNCHER), str(writer)],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=err,
                    pass_fds=(writer,),
                    start_new_session=True,  # the lab forwards Ctrl-C of the terminal
                )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        assert launcher.stdin is not None  # noqa: S101 - PIPE was asked for
        # the launcher's report, or its absence, gives the error
        with contextlib.suppress(BrokenPipeError):
            launcher.stdin.write(json.dumps(self.spec).encode() + b"\n")
            launcher.stdin.flush()
        return launcher, reader

    def _first_report(self, report: int) -> _Report:
        try:
            ready = select.select([report], [], [], START_TIMEOUT)[0]
            report_read = _read_report(report) if ready else None
        except BaseException:
            self._let_go()
            os.close(report)
            raise
        if report_read is None or "error" in report_read:
            self._let_go()
            os.close(report)
            why = (
                report_read["error"]
                if report_read
                else f"no report from it within {START_TIMEOUT:g} s"
            )
            raise LabError(f"{self.label}: cannot start: {why}{self.tail()}")
        return report_read

    def _open_pidfd(self) -> int | None:
        """Open a pidfd: the kernel may reuse the PID before we signal it."""
        try:
            return os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None

    def _let_go(self) -> None:
        """Close the lifeline and wait for the launcher, which kills what still runs."""
        if self._stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._stdin.close()
        self._launcher.wait()

    def _watch(self, report: int) -> None:
        last = _read_report(report) or {"status": 137, "at": time.monotonic()}
        os.close(report)
        self._let_go()
        self.ended_at = last["at"]
        self._status = last["status"]
        self._over.set()

    @property
    def running(self) -> bool:
        """True until its exit was reported."""
        return not self._over.is_set()

    def poll(self) -> int | None:
        """Return the exit code as a shell gives it, or None while it runs."""
        return self._status if self._over.is_set() else None

    def wait(self, timeout: float = 60.0) -> int:
        """Wait for its exit; return the exit code as a shell gives it (128+n for signal n)."""
        if not self._over.wait(timeout):
            raise TimeoutError(f"{self.label}: still running after {timeout:g} s{self.tail()}")
        assert self._status is not None  # noqa: S101 - set before the event
        return self._status

    def signal(self, number: int) -> None:
        """Send it a signal; a PID 1 without a handler ignores all but KILL and STOP."""
        if self.running and self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Kill it (and, for a PID 1, all its container's processes); return when it is gone."""
        self.signal(signal.SIGKILL)
        self.wait(END_TIMEOUT)

    def close(self) -> None:
        """Kill it and close the descriptors; for the lab's end."""
        self.kill()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def stdout(self) -> str:
        """Return its stdout so far."""
        return self.log_paths[0].read_text(errors="replace")

    def stderr(self) -> str:
        """Return its stderr so far."""
        return self.log_paths[1].read_text(errors="replace")

    def tail(self) -> str:
        """Return the last lines of both streams, for an error message."""
        return "".join(
            f"\n--- last of {name}:\n" + "\n".join(text.splitlines()[-TAIL_LINES:])
            for name, text in (("stdout", self.stdout()), ("stderr", self.stderr()))
            if text.strip()
        )

    def wait_for(
        self, pattern: str, stream: Stream = "both", timeout: float = 30.0
    ) -> re.Match[str]:
        """Wait until its output matches (re.MULTILINE); raise at once if it exits before."""
        compiled = re.compile(pattern, re.MULTILINE)

        def found() -> re.Match[str] | None:
            # checked before reading: the last output may come with the exit
            over = not self.running
            for name, read in (("stdout", self.stdout), ("stderr", self.stderr)):
                if stream in {name, "both"} and (match := compiled.search(read())):
                    return match
            if over:
                what = f"{self.label}: ended with {self._status} and never wrote {pattern!r}"
                raise LabError(what + self.tail())
            return None

        try:
            return until(found, timeout, f"{self.label}: {pattern!r} in its output")
        except TimeoutError as late:
            raise TimeoutError(f"{late}{self.tail()}") from None

    def __repr__(self) -> str:
        state = "running" if self.running else f"ended with {self._status}"
        return f"<{type(self).__name__} {self.label} (pid {self.pid}, {state})>"


def _read_report(fd: int) -> _Report | None:
    """Read one report, unbuffered, since another thread reads the next one; None at the end."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(fd, 1)
        if not more:
            return None
        line += more
    report: _Report = json.loads(line)
    return report
