"""Child processes, each a group with a log; and all other descendants, reaped and stopped.

A group's id is its leader's pid, which can be reused once the leader is reaped. So a child's end is
detected without reaping; the rest of its group is killed while the leader is a zombie; then the
leader is reaped. Ray's job driver starts its own session and so leaves its process group; when its
parent exits, this process, a child subreaper, becomes its parent.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import anyio
import psutil

from agent.base import times
from agent.base.ends import exit_sentence, shell_code
from agent.base.text import with_output, without_controls
from agent.node.limits import starting
from agent.processes import parent
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.background import Writer
from agent.record.files import appending, read_end
from agent.record.log import disk_alarm, mask
from agent.record.node_record import read_stat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_PROCESS_POLL = 0.1  # Between two checks of a child whose end the kernel does not report.
_WRITE_PAUSE = 0.02  # Output is read again after this while its disk is slow.


T = TypeVar("T")

_CHUNK = 1 << 16
_MAX_LINE = 1 << 22  # Longest line of a piped stdout; the bridge sends all nodes in one

_PIPE_BYTES = 1 << 20  # Buffer for a second or two without a reader
_QUEUE_BYTES = 3 * _PIPE_BYTES
"""While half of it waits for a slow disk, nothing is read; a full pipe at the end still fits."""
_TAIL_BYTES = 1 << 14  # Bytes of the end that are kept in memory, or read from a file
_WRITE_STEPS = 50  # Steps of `_WRITE_PAUSE`, one second in all, to write the end of the log
UNKNOWN_CODE = 255  # Of a child that another process reaped; it must not look like success
_PREAMBLE = re.compile(r"^[\d-]+ [\d:,]+\s+(?:SUCC|INFO|WARNING|ERR|PANIC)\s+\w+\.py:\d+ -- ")
_BOILERPLATE = re.compile(
    r"\t(?:SUCC|INFO)\s+\w+\.py:\d+ -- |authentication_token_setup\.py:\d+ -- |network_util\.cc:"
    r"|^\[[\d-]+ [\d:,]+ [ID] \d+ \d+\] "
    r"|(?:^|-- )(?:Some Ray subprocesses exited unexpectedly:"
    r"|Remaining processes will be killed\.|----- (?:BEGIN|END) .*)$"
)
"""Lines that `ray start` prints at every start or end (2.40 to 2.60), and those of level I or D."""
_EXITED_SUBPROCESS = re.compile(r"\[exit code=")
managed: set[int] = set()  # Children whose ends are awaited: `reap` must not take their codes


class ChildLog:
    """Reads a child's output and writes it to a log, without blocking the event loop."""

    def __init__(
        self,
        log: Callable[[], Path],
        fd: int = -1,
        on_output: Callable[[bytes], None] = lambda _data: None,
    ) -> None:
        """Write to the file at `log()`; `fd` is the pipe of a child that runs already.

        `on_output` gets the output, too, whatever the file's disk does.
        """
        writer = Writer(log().name, appending(log), most=_QUEUE_BYTES)
        self._writer = disk_alarm.follow(writer)
        self._fd = fd
        self._on_output = on_output
        self._is_over = False  # True once nothing waits for the file any more
        self.end = b""  # The last bytes of the output

    @contextmanager
    def open_pipe(self) -> Iterator[int]:
        """Open the pipe; yield the file descriptor for the child's stdout."""
        self._fd, writing = os.pipe()
        try:
            os.set_blocking(self._fd, False)
            with suppress(OSError):  # above the user's limit
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

            # With a descriptor for both ways the pipe does not break when this agent is killed.
            with open(f"/proc/self/fd/{writing}", "r+b", buffering=0) as both:  # noqa: PTH123 - a pipe
                yield both.fileno()
        except BaseException:
            self.close()
            self._writer.close()
            raise
        finally:
            os.close(writing)

    def start_reading(self) -> None:
        """Start reading the output."""
        if self._fd >= 0:
            asyncio.get_running_loop().add_reader(self._fd, self._read)

    def read_rest(self) -> None:
        """Read what is available now."""
        for _ in range(_PIPE_BYTES // _CHUNK + 1):
            if not self._read_chunk():
                return

    def when_written(self, act: Callable[[], None], steps: int = _WRITE_STEPS) -> None:
        """Call `act` once the output is in the file, or writing it failed."""
        is_over = self._writer.is_idle or self._writer.is_failing or steps == 0
        if not is_over:
            loop = asyncio.get_running_loop()
            loop.call_later(_WRITE_PAUSE, self.when_written, act, steps - 1)
            return
        self._is_over = True
        if self._fd < 0:
            self._writer.close()
        act()

    def close(self) -> None:
        """Stop reading; what was read is still written."""
        if self._fd >= 0:
            with suppress(RuntimeError):  # the loop has ended
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        """Read a chunk; while the disk is slow, read nothing, so that the child waits."""
        if self._writer.is_behind:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._fd)
            loop.call_later(_WRITE_PAUSE, self.start_reading)
        else:
            self._read_chunk()

    def _read_chunk(self) -> bool:
        try:
            data = os.read(self._fd, _CHUNK) if self._fd >= 0 else None
        except BlockingIOError:
            return False
        if data:
            self.end = (self.end + data)[-_TAIL_BYTES:]
            self._writer.put_bytes(data)
            self._on_output(data)
        elif data is not None:  # no writer is left
            self.close()
            if self._is_over:
                self._writer.close()
        return bool(data)


def _open_pipe_of(pid: int) -> int:
    """Open a child's output, the pipe with a descriptor for both ways; -1 for none."""
    for number in (1, 2):
        place = Path(f"/proc/{pid}/fd/{number}")
        with suppress(OSError, ValueError, IndexError):
            info = Path(f"/proc/{pid}/fdinfo/{number}").read_text(encoding="ascii")
            flags = int(info.partition("flags:")[2].split()[0], 8)
            is_ours = place.readlink().name.startswith("pipe:")
            if is_ours and flags & os.O_ACCMODE == os.O_RDWR:
                return os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return -1


class Child:
    """A child process and its process group."""

    def __init__(self, pid: int, name: str, output: ChildLog, *, keep_group: bool = False) -> None:
        self.pid = pid  # also that of its group and its session
        self.name = name
        self._keep_group = keep_group

        # Its streams: pipes of a child that was started `piped`, and the log.
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout = asyncio.StreamReader(_MAX_LINE)
        self._reading: asyncio.ReadTransport | None = None
        self._output = output

        # Its end.
        self.is_stopping = False  # True once `stop` was called
        self._group_until = 0.0  # until then the rest of a stopped group may end by itself
        self._code: int | None = None
        self._is_over = False  # True once its end was detected: the pid may be reused
        self._ended = anyio.Event()

        self._output.start_reading()
        self._await_end()

    @classmethod
    async def start(  # noqa: PLR0913 - a command, its log and what it is tied to
        cls,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Callable[[], Path],
        *,
        keep_group: bool = False,
        piped: bool = False,
        on_output: Callable[[bytes], None] = lambda _data: None,
    ) -> Child:
        """Start a command in its own session; its end kills its group unless `keep_group`.

        Its output is logged to `log`; `piped`: only stderr, and stdin and stdout are pipes.
        """
        output = ChildLog(log, on_output=on_output)
        with output.open_pipe() as end, starting(name):
            popen = subprocess.Popen(  # noqa: ASYNC220 - asyncio would reap it before its group ends
                list(argv),
                env=dict(env),
                bufsize=0,
                start_new_session=True,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else end,
                stderr=end,
            )
            managed.add(popen.pid)
        popen.returncode = 0  # Popen need not reap it: `_check_end` does

        child = cls(popen.pid, name, output, keep_group=keep_group)
        try:
            await child._connect(popen)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await child.stop(0.0)
            raise
        return child

    async def _connect(self, popen: subprocess.Popen[bytes]) -> None:
        """Connect `stdin` and `stdout` to the process's pipes, if it has them."""
        if popen.stdin is None or popen.stdout is None:
            return
        loop = asyncio.get_running_loop()

        unfed = asyncio.StreamReader()  # it reports a closed pipe to the writer
        protocol = asyncio.StreamReaderProtocol(unfed)
        writing, _ = await loop.connect_write_pipe(lambda: protocol, popen.stdin)
        self.stdin = asyncio.StreamWriter(writing, protocol, unfed, loop)

        reading = asyncio.StreamReaderProtocol(self.stdout)
        self._reading, _ = await loop.connect_read_pipe(lambda: reading, popen.stdout)

    @property
    def running(self) -> bool:
        """Return whether no end was detected."""
        return self._code is None

    async def wait(self) -> int:
        """Wait for its end; return the exit code as a shell does."""
        await self._ended.wait()
        assert self._code is not None  # noqa: S101 - set before the event
        return self._code

    async def stop(self, grace: float, *, leader_ends_group: bool = False) -> None:
        """Stop the group: TERM, `grace` seconds, KILL. Each of its processes has that grace.

        A shell ends by the signal at once, before the programs that it started.

        `ray start --block` stops its own group within 2 s. TERM to the whole group takes 28 s
        (measured on 2.60), since each process then waits for another that is gone.
        """
        self._keep_group = False
        self.is_stopping = True
        if not leader_ends_group:
            self._group_until = time.monotonic() + grace
        try:
            self._signal(os.kill if leader_ends_group else os.killpg, signal.SIGTERM)
            with anyio.move_on_after(grace):
                await self._ended.wait()
        finally:
            self._group_until = 0.0
            self._signal(os.killpg, signal.SIGKILL)
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await self._ended.wait()
            for pipe in (self.stdin, self._reading):
                if pipe is not None:
                    pipe.close()

    def end_sentence(self, code: int) -> str:
        """Return a sentence with its exit code and the end of its output, as logs have it."""
        return with_output(exit_sentence(code), self.tail())

    @property
    def last_output(self) -> str:
        """The end of its output, with secrets in it, as far as it is kept in memory."""
        return self._output.end.decode(errors="replace")

    def tail(self, lines: int = 3, longest: int = 300) -> str:
        """Return the last non-empty lines of its output, masked, on one line."""
        return informative_lines(self._output.end, lines, longest, mask)

    def _await_end(self) -> None:
        """Check for its end when the kernel reports it, without a task or a thread.

        There is no pidfd before Linux 5.3, in some sandboxes, and in conda's Pythons.
        """
        loop = asyncio.get_running_loop()
        try:
            pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            loop.call_soon(self._check_end)
            return

        def check() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self._check_end()

        loop.add_reader(pidfd, check)

    def _check_end(self) -> None:
        """If the leader has ended, kill the rest of its group, then reap it; else check again."""
        # Has it ended? It is not reaped yet, so that its pid stays that of the group.
        try:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            runs = os.waitid(os.P_PID, self.pid, options) is None
        except ChildProcessError:  # adopted, or reaped by another process
            runs = Path(f"/proc/{self.pid}").exists()
        has_grace = not runs and time.monotonic() < self._group_until
        if runs or (has_grace and _has_group(self.pid)):
            asyncio.get_running_loop().call_later(_PROCESS_POLL, self._check_end)
            return

        # The rest of its group, then the leader itself.
        if not self._keep_group:
            self._signal(os.killpg, signal.SIGKILL)
        self._is_over = True
        code = UNKNOWN_CODE
        with suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            code = shell_code(os.waitstatus_to_exitcode(status))
        managed.discard(self.pid)

        # What it has written comes before its end.
        self._output.read_rest()
        if not self._keep_group:
            self._output.close()

        def end() -> None:
            self._code = code
            if self.stdin is not None:
                self.stdin.close()  # stdout may still have data; it closes at its end
            self._ended.set()

        self._output.when_written(end)

    def _signal(self, send: Callable[[int, int], None], signum: signal.Signals) -> None:
        """Signal the leader or its group, unless the pid may be reused."""
        if not self._is_over:
            with suppress(ProcessLookupError, PermissionError):
                send(self.pid, signum)


def _has_group(leader: int) -> bool:
    """Return whether any other process of a leader's group runs."""
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if pid != leader and os.getpgid(pid) == leader:
                stat = read_stat(pid)
                if stat is not None and stat.state != "Z":
                    return True
    return False


class StartChild(Protocol):
    """The form of `Child.start`."""

    async def __call__(  # noqa: PLR0913 - as `Child.start`
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Callable[[], Path],
        *,
        keep_group: bool = False,
        piped: bool = False,
        on_output: Callable[[bytes], None] = ...,
    ) -> Child:
        """Start a command in its own session."""


def start_time(pid: int) -> int:
    """Return a process's start time in ticks since boot; 0 if unknown."""
    stat = read_stat(pid)
    return 0 if stat is None else stat.start


def tail_of(path: Path, lines: int, longest: int, clean: Callable[[str], str]) -> str:
    """Return a file's last informative lines, masked, joined and cut to `longest` characters."""
    return informative_lines(read_end(path, _TAIL_BYTES) or b"", lines, longest, clean)


def informative_lines(end: bytes, lines: int, longest: int, clean: Callable[[str], str]) -> str:
    """Return the last informative lines of a text, masked by `clean`, joined and cut.

    `end` has at most _TAIL_BYTES. A secret that is cut in two would not be recognized: it is masked
    before the cut, and a first line without its start is left out. Control characters may be part
    of a secret, or hide one: it is masked before and after they are removed.
    """
    if len(end) >= _TAIL_BYTES:
        end = end.partition(b"\n")[2] or end
    text = clean(without_controls(clean(end.decode(errors="replace"))))
    every = [line.rstrip() for line in text.splitlines() if line.strip()]
    informative = [line for line in every if not _BOILERPLATE.search(line)] or every
    last = informative[-lines:]

    # The line that names the process of Ray that ended takes the first one's place.
    ended = [line for line in informative if _EXITED_SUBPROCESS.search(line)]
    if ended and ended[-1] not in last:
        last = [ended[-1], *last[1:]]

    return _fitting([_PREAMBLE.sub("", line).strip() for line in last], longest)


def _fitting(lines: Sequence[str], longest: int) -> str:
    """Return the newest lines that fit whole; one that is too long loses its end.

    The line that names the process of Ray that ended stays before them.
    """
    kept = [*lines]
    oldest = 0
    if kept and _EXITED_SUBPROCESS.search(kept[0]):
        oldest = 1
    while len(kept) > oldest + 1 and len(" | ".join(kept)) > longest:
        del kept[oldest]
    return " | ".join(kept)[:longest]


def adopt(name: str, pid: int, started: int, log: Callable[[], Path]) -> Child | None:
    """Adopt a killed agent's child, if it still runs; the parent reaps it, its code is unknown."""
    if start_time(pid) != started:
        return None
    return Child(pid, name, ChildLog(log, _open_pipe_of(pid)))


# --- descendants --------------------------------------------------------------------------------


def reap() -> None:
    """Reap ended orphans; called on SIGCHLD, in the thread that starts children."""
    for pid in children_of("self"):
        if pid not in managed:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def children_of(pid: int | Literal["self"]) -> list[int]:
    """Return a process's children, without a scan of all processes."""
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += [int(child) for child in path.read_text().split()]
    return children


def list_descendants() -> list[psutil.Process]:
    """Return all running descendants, and those of a killed agent, which are the parent's."""
    own = os.getpid()
    tops = (own, os.getppid()) if parent.former_agents else (own,)
    below = {process for top in tops for process in tree_of(top)[1:]}
    return [process for process in below if process.pid != own and is_alive(process)]


async def stop_descendants(
    grace: float,
    descendants: Callable[[], list[psutil.Process]] = list_descendants,
    reap: Callable[[], None] = reap,
) -> list[str]:
    """Stop all descendants, of any session; return the names of those killed."""

    async def are_gone() -> bool | NotYet:
        alive = descendants()
        reap()  # after the check, so that the last one leaves no zombie
        return NotYet() if alive else True

    async def wait_until_gone(limit: float) -> bool:
        try:
            return await until(are_gone, limit, longest=0.1)
        except TimedOutError:
            return False

    send_signal(descendants(), signal.SIGTERM)
    if await wait_until_gone(grace):
        return []
    killed = kill(descendants())
    await wait_until_gone(2.0)
    return killed


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants, of any parent, and wait for their end.

    An exiting process loses its command line first and its ports last: without the wait, its ports
    would still be taken, by no visible process.
    """
    tree = tree_of(pid)
    send_signal(tree, signal.SIGKILL)
    psutil.wait_procs(tree, timeout=times.DESCENDANTS_EXIT)


def tree_of(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; nothing if it has ended."""
    with suppress(psutil.Error):
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    return []


def kill_marked(
    variable: str,
    matches: Callable[[str], bool],
    descendants: Callable[[], list[psutil.Process]] = list_descendants,
) -> list[str]:
    """Kill descendants by a variable in their environment; return their names."""
    marked = []
    for process in descendants():
        environ = known(process.environ, dict[str, str]())
        if matches(environ.get(variable, "")):
            marked.append(process)
    return kill(marked)


def kill(processes: Iterable[psutil.Process]) -> list[str]:
    """Kill processes of any parent; return the names of those that were running."""
    alive = [process for process in processes if is_alive(process)]
    names = [f"{known(process.name, 'a process')} (pid {process.pid})" for process in alive]
    send_signal(alive, signal.SIGKILL)
    return names


def send_signal(processes: Iterable[psutil.Process], signum: int) -> None:
    """Signal those of the processes that still run; a reused pid is no such process."""
    for process in processes:
        with suppress(psutil.Error, OSError):
            process.send_signal(signum)


def known(read: Callable[[], T], otherwise: T) -> T:
    """Return what psutil reads; the default if the process has ended or belongs to another user."""
    with suppress(psutil.Error, OSError):
        return read()
    return otherwise


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still runs; a zombie and a reused pid do not count."""
    return known(
        lambda: bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE),
        otherwise=False,
    )


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time that a process has used so far."""
    return known(lambda: float(sum(process.cpu_times()[:2])), 0.0)


def cpu_of(pid: int) -> float:
    """Return the CPU seconds used by a process and its descendants."""
    return sum(map(cpu_seconds, tree_of(pid)), 0.0)
