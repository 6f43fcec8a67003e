"""Kills the engines of a lab one after the other, and counts them."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tools.lab.container import Container, ProcessInfo

ENGINE = "rehearsal-engine"


class Killer:
    """Kills an engine at an interval, by its process id, in the order of pods and ports."""

    def __init__(
        self, containers: Sequence[Container], every: float, say: Callable[[str], None]
    ) -> None:
        self._containers = containers
        self._every = every
        self._say = say
        self._next_at: float | None = None
        self._last = ""
        self.kills = 0

    def step(self, now: float, *, is_training: bool) -> None:
        """Kill the next engine if it is due; the first is due one interval after the first step."""
        if not is_training:
            return
        if self._next_at is None:
            self._next_at = now + self._every
        if now >= self._next_at:
            self._next_at = now + self._every
            self._kill_one()

    def _kill_one(self) -> None:
        engines = {
            f"{container.label.partition(':')[0]} {process.cmdline}": process
            for container in self._containers
            for process in container.processes()
            if is_engine(process)
        }
        if not engines:
            self._say("no engine runs, so that none is killed")
            return
        names = sorted(engines)
        name = next((name for name in names if name > self._last), names[0])
        self._last = name
        process = engines[name]
        with contextlib.suppress(ProcessLookupError):  # it has exited by itself
            os.kill(process.host_pid, signal.SIGKILL)
            self.kills += 1
            port = process.cmdline.partition("--port ")[2].split()[0]
            pod = name.partition(" ")[0]
            self._say(f"engine at port {port} of {pod} (pid {process.pid}) is killed")


def is_engine(process: ProcessInfo) -> bool:
    """Return whether a process is an engine, and not the shell or the agent that starts it."""
    words = process.cmdline.split()
    return ENGINE in words[:4] and not process.zombie
