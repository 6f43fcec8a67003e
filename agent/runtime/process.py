"""Child processes: started in a session of their own, logged to a file, ended as a group."""

from __future__ import annotations

import os
import re
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


_CONTROLS = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]"
)
"""Colours, titles and whatever else only a terminal understands; what parts lines stays."""
_PREAMBLE = re.compile(r"^[\d-]+ [\d:,]+\s+(?:SUCC|INFO|WARNING|ERR|PANIC)\s+\w+\.py:\d+ -- ")
_BOILERPLATE = re.compile(
    r"""\t(?:SUCC|INFO)\s+(?:scripts|cli_output_helpers|usage_lib)\.py:\d+\ --
      | authentication_token_setup\.py:\d+\ -- | network_util\.cc:
      | (?:^|--\ )(?:Some\ Ray\ subprocesses\ exited\ unexpectedly:
        | Remaining\ processes\ will\ be\ killed\. | -----\ (?:BEGIN|END)\ .*)$
    """,
    re.VERBOSE,
)
"""Lines of `ray start` that stand there at every start, or at every end (2.40 to 2.60)."""
_ENDED_PART = re.compile(r"\[exit code=")


def tail_of(path: Path, lines: int = 3, longest: int = 300) -> str:
    """Return a file's last lines that tell something, joined and cut to `longest` characters."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    said = [line.rstrip() for line in _CONTROLS.sub("", text).splitlines() if line.strip()]
    telling = [line for line in said if not _BOILERPLATE.search(line)] or said
    last = telling[-lines:]
    ended = next((line for line in reversed(telling) if _ENDED_PART.search(line)), None)
    if ended is not None and ended not in last:
        last = [ended, *last[1:]]  # which part of Ray it was that ended
    return " | ".join(_PREAMBLE.sub("", line).strip() for line in last)[-longest:]
