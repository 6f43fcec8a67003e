"""A process that a killed agent left behind, and that goes on under the one in its stead."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from agent.runtime import orphans
from agent.runtime.child_log import ChildLog
from agent.runtime.process import UNKNOWN, Child, start_time

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from pathlib import Path


class Adopted(Child):
    """It is no child of ours: our parent reaps it, and its code is not known."""

    def __init__(self, pid: int, name: str, log: Callable[[], Path], *, rest_stays: bool) -> None:
        self._process_of = psutil.Process(pid)
        output = ChildLog(log)
        output.reopen(pid)
        super().__init__(pid, name, output, rest_stays=rest_stays)

    def _look(self) -> None:
        """Notice its end, and end what is left of its session."""
        if _lives(self._process_of):
            self._look_again()
            return
        if not self._rest_stays:
            orphans.kill_session(self.pid)
        self._close(UNKNOWN)

    def _signal(self, send: Callable[[int, int], None], signum: signal.Signals) -> None:
        """Signal it while it lives: its pid is nobody else's then, and its group's neither."""
        if not self._is_over and _lives(self._process_of):
            with suppress(ProcessLookupError, PermissionError):
                send(self.pid, signum)


def adopt(name: str, pid: int, started: int, log: Callable[[], Path]) -> Adopted | None:
    """Take a process over, if it still lives and is the one that was meant."""
    with suppress(psutil.Error):
        if start_time(pid) == started:
            return Adopted(pid, name, log, rest_stays=False)
    return None


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
