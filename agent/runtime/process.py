"""Child processes: started in a session of their own, logged to a file, ended as a group.

A group's number is its leader's pid, which is the leader's for as long as nobody has reaped it,
and anybody's after that. So a child's end is noticed without reaping, what is left of its group
is killed while the leader is a zombie, and then the leader is reaped, by us and nobody else.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from agent.base.outcome import name_of_code, shell_code
from agent.base.words import without_controls
from agent.node.process_limits import starting
from agent.runtime import orphans
from agent.runtime.child_log import ChildLog
from agent.runtime.last_words import in_thread
from agent.runtime.pipes import PipeReader, Pipes, PipeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LOOK_AGAIN = 0.1
UNKNOWN = 255
"""The code of a child that somebody else reaped, which must not pass for a success."""


class Child:
    """A process of ours and whatever it starts in its group."""

    def __init__(
        self,
        pid: int,
        name: str,
        output: ChildLog,
        *,
        rest_stays: bool,
        popen: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.pid = pid
        """Its process id, which is its group's and its session's too."""
        self._popen = popen
        self.name = name
        self.started = start_time(pid)
        """When it was started, in ticks since the machine's boot: with its pid, who it is."""
        self.process = Pipes()
        """Its pipes, where it was started with some."""
        self._output = output
        self._rest_stays = rest_stays
        self.is_stopping = False
        """True once its end was asked for."""
        self._code: int | None = None
        self._is_over = False
        """True once its end was seen: the pid is nobody's then, or another's."""
        self._ended = anyio.Event()
        self._pidfd = -1
        with suppress(OSError):
            self._pidfd = orphans.open_pidfd(pid)
        self._output.follow()
        self._watch()

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Callable[[], Path],
        *,
        rest_stays: bool = False,
    ) -> Child:
        """Start a command whose output goes to `log`, a file that may move while it runs.

        What it leaves running in its group ends with it, unless `rest_stays`.
        """
        output = ChildLog(log)
        with output.childs_end() as end, starting(name):
            process = _spawn(
                argv, env, stdin=subprocess.DEVNULL, stdout=end, stderr=subprocess.STDOUT
            )
        return cls(process.pid, name, output, rest_stays=rest_stays, popen=process)

    @classmethod
    async def start_piped(
        cls, name: str, argv: Sequence[str], env: Mapping[str, str], log: Callable[[], Path]
    ) -> Child:
        """Start a command that is talked to through its stdin and stdout."""
        output = ChildLog(log)
        with output.childs_end() as end, starting(name):
            process = _spawn(argv, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=end)
        child = cls(process.pid, name, output, rest_stays=False, popen=process)
        try:
            await child._connect(process)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await child.stop(0.0)
            raise
        return child

    async def _connect(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None  # noqa: S101 - started with pipes
        assert process.stdout is not None  # noqa: S101 - same
        stdin = await PipeWriter.connect(process.stdin)
        self.process = Pipes(stdin)  # closed, should the other fail
        self.process = Pipes(stdin, await PipeReader.connect(process.stdout))

    @property
    def running(self) -> bool:
        """Say whether it has not been seen to end."""
        return self._code is None

    async def wait(self) -> int:
        """Wait for its end; return the code as a shell would tell it."""
        await self._ended.wait()
        assert self._code is not None  # noqa: S101 - known before the end is told
        return self._code

    async def stop(self, grace: float, *, leader_ends_group: bool = False) -> None:
        """End the group: TERM, `grace` seconds, KILL.

        `ray start --block` ends its own group, in 2 s; TERM to all of it at once makes that 28 s
        (measured on 2.60), since each part then waits for another that is gone.
        """
        self._rest_stays, self.is_stopping = False, True
        try:
            if leader_ends_group:
                self._signal(os.kill, signal.SIGTERM)
            else:
                self._signal(os.killpg, signal.SIGTERM)
            with anyio.move_on_after(grace):
                await self._ended.wait()
        finally:
            self._signal(os.killpg, signal.SIGKILL)
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await self._ended.wait()
            self.process.close()

    async def end_sentence(self, code: int) -> str:
        """Say how it ended, with the end of its log."""
        tail = await self.tail()
        text = f"exit code {name_of_code(code)}"
        return f"{text}; its last words: {tail}" if tail else text

    async def tail(self, lines: int = 3, longest: int = 300) -> str:
        """Return the last non-empty lines of its log, on one line."""
        if self._output.end:  # known, also where no disk takes it
            return telling(self._output.end, lines, longest)
        return await in_thread(lambda: tail_of(self._output.path(), lines, longest))

    # --- its end ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Have its end seen by the loop: told by the kernel, or looked for where that cannot be.

        No task does this, and no thread: a child is watched from its start, whoever waits for
        it, also where no further thread may be started.
        """
        loop = asyncio.get_running_loop()
        if self._pidfd >= 0:
            loop.add_reader(self._pidfd, self._look)
        else:
            loop.call_later(_LOOK_AGAIN, self._look)

    def _look(self) -> None:
        """If the leader has ended, end the rest of its group, then reap it."""
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._close(UNKNOWN)
            return
        if ended is None:  # a tracer, strace or py-spy, has the end first and hands it on
            self._look_again()
            return
        if not self._rest_stays:
            self._signal(os.killpg, signal.SIGKILL)
        code = UNKNOWN if self._popen is None else self._popen.wait()
        self._close(shell_code(code))

    def _look_again(self) -> None:
        """Look in a moment: the kernel tells of each end but once."""
        loop = asyncio.get_running_loop()
        if self._pidfd >= 0:
            loop.remove_reader(self._pidfd)
        loop.call_later(_LOOK_AGAIN, self._look)

    def _let_go(self) -> None:
        """Watch it no more."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _close(self, code: int) -> None:
        """Take leave of it, once its log has its last words."""
        self._is_over = True
        if self._popen is not None:
            self._popen.returncode = code  # known, also where it was not ours to reap
        orphans.forget(self.pid)
        self._let_go()
        self._output.take_rest()
        if not self._rest_stays:
            self._output.close()
        self._output.when_written(partial(self._end, code))

    def _end(self, code: int) -> None:
        self._code = code
        if self.process.stdin is not None:
            self.process.stdin.close()  # stdout may hold last words: it closes at its end
        self._ended.set()

    def _signal(self, send: Callable[[int, int], None], signum: signal.Signals) -> None:
        """Signal the leader or its group, while the pid is certain to be theirs."""
        if not self._is_over:
            with suppress(ProcessLookupError, PermissionError):
                send(self.pid, signum)


def _spawn(argv: Sequence[str], env: Mapping[str, str], **streams: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - Popen's own, by name
    """Start a process in a session of its own, which the reaper keeps away from."""
    with orphans.spawning() as managed:
        process = subprocess.Popen(
            list(argv), env=dict(env), bufsize=0, start_new_session=True, **streams
        )
        managed.add(process.pid)
    return process


def start_time(pid: int) -> int:
    """Return when a process was started, in ticks since boot; 0 where /proc does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])  # field 22; the second may hold spaces
    except (OSError, ValueError, IndexError):
        return 0


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
            return telling(file.read(), lines, longest)
    except OSError:
        return ""


def telling(end: bytes, lines: int = 3, longest: int = 300) -> str:
    """Return the last lines of a text that tell something, joined and cut."""
    text = end.decode(errors="replace")
    said = [line.rstrip() for line in without_controls(text).splitlines() if line.strip()]
    telling = [line for line in said if not _BOILERPLATE.search(line)] or said
    last = telling[-lines:]
    ended = next((line for line in reversed(telling) if _ENDED_PART.search(line)), None)
    if ended is not None and ended not in last:
        last = [ended, *last[1:]]  # which part of Ray it was that ended
    return " | ".join(_PREAMBLE.sub("", line).strip() for line in last)[-longest:]
