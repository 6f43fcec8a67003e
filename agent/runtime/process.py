"""Child processes: started in a session of their own, logged to a file, ended as a group."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from agent.base.outcome import name_of_code, shell_code
from agent.node.process_limits import starting
from agent.runtime import orphans

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import Process


class Child:
    """A process of ours and whatever it starts in its group."""

    def __init__(self, process: Process, name: str, log: Callable[[], Path]) -> None:
        self._process = process
        self.name = name
        self.log = log

    @classmethod
    async def start(
        cls, name: str, argv: Sequence[str], env: Mapping[str, str], log: Callable[[], Path]
    ) -> Child:
        """Start a command whose output goes to `log`, a file that may move while it runs."""
        with log().open("ab") as output, orphans.spawning() as managed, starting(name):
            process = await anyio.open_process(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
            )
            managed.add(process.pid)
        return cls(process, name, log)

    @classmethod
    async def start_piped(
        cls, name: str, argv: Sequence[str], env: Mapping[str, str], log: Callable[[], Path]
    ) -> Child:
        """Start a command that is talked to through its stdin and stdout."""
        with log().open("ab") as errors, orphans.spawning() as managed, starting(name):
            process = await anyio.open_process(
                list(argv), stderr=errors, env=dict(env), start_new_session=True
            )
            managed.add(process.pid)
        return cls(process, name, log)

    @property
    def process(self) -> Process:
        """The process itself, for its pipes."""
        return self._process

    @property
    def pid(self) -> int:
        """Its process id, which is its group's too."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Say whether it has not been seen to end."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Wait for its end; return the code as a shell would tell it."""
        code = shell_code(await self._process.wait())
        orphans.forget(self.pid)
        return code

    def signal_group(self, signum: signal.Signals) -> None:
        """Send a signal to the whole group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    async def stop(self, grace: float, *, leader_ends_group: bool = False) -> None:
        """End the group: TERM, `grace` seconds, KILL.

        `ray start --block` ends its own group, in 2 s; TERM to all of it at once makes that 28 s
        (measured on 2.60), since each part then waits for another that is gone.
        """
        if self.running:
            if leader_ends_group:
                self._process.terminate()
            else:
                self.signal_group(signal.SIGTERM)
            with anyio.move_on_after(grace):
                await self._process.wait()
        self.signal_group(signal.SIGKILL)
        with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
            await self._process.wait()

    def end_sentence(self, code: int) -> str:
        """Say how it ended, with the end of its log."""
        tail = self.tail()
        text = f"exit code {name_of_code(code)}"
        return f"{text}; its last words: {tail}" if tail else text

    def tail(self, lines: int = 3, longest: int = 300) -> str:
        """Return the last non-empty lines of its log, on one line."""
        return tail_of(self.log(), lines, longest)


def tail_of(path: Path, lines: int = 3, longest: int = 300) -> str:
    """Return a file's last non-empty lines, joined and cut to `longest` characters."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    last = [line.strip() for line in text.splitlines() if line.strip()][-lines:]
    return " | ".join(last)[-longest:]
