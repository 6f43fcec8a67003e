"""The parent process, which restarts a killed agent; the first signal handlers.

As a container's first process the parent is the init. Its only children are the agent and orphans,
so that it can reap them all.

Signals are recorded from the start of the process until they are handled, so this module imports
almost nothing. They are handled, never ignored or blocked: children inherit that, but not handlers.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_FORK_AGAIN = 10.0  # A killed agent is started again within this, once there is room for a process.
_AGENT_CRASH_WINDOW = 600.0  # An agent that is killed four times within this is not started again.
_PARENT_SWEEP = 5.0  # For the parent to kill what a restarted agent left.
_GIVE_UP = 5.0  # For a last agent, after one that was killed too often, to record the end.
_AGENT_EXIT = 2.0  # An agent that has sent its code exits within this, unless a disk blocks.
NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals forwarded to the job, such as Slurm's `--signal=USR1@120` before the time limit."""
_UNHANDLED = (
    *(signal.SIGKILL, signal.SIGSTOP),
    # Crashes: the default action reports them best.
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
    *(signal.SIGSYS, signal.SIGTRAP),
    *(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them, but not in its children
    # They do not end a process by default.
    *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
_REQUESTS = signal.valid_signals() - {*_UNHANDLED, *NOTICES}
STOPS: dict[int, signal.Signals] = {
    # All others that would end the agent without teardown count as SIGTERM: a closed terminal,
    # a batch system's limit (SIGXCPU), `docker stop` of an image for systemd (SIGRTMIN+3).
    **dict.fromkeys(_REQUESTS, signal.SIGTERM),
    signal.SIGINT: signal.SIGINT,
}
"""Signals that request a stop, and the signal that each counts as."""

_HIDDEN = (b"RAY_AUTH_TOKEN", b"WANDB_API_KEY", b"AGENT_JUDGE_KEY", b"AGENT_NOTIFY")
"""Secrets that services do not get."""

_pending: set[int] = set()
_handler: Callable[[int], object] = _pending.add

MAX_CRASHES = 3  # An agent killed more often within AGENT_CRASH_WINDOW is not restarted
# AGENT_KILLED and NO_PROCESS in base/ends.py, not imported here
GAVE_UP = 70
NO_PROCESS = 69
_CRASHES = {
    *(signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT),
    *(signal.SIGILL, signal.SIGFPE),
}
"""Signals after which the agent is restarted; it handles all others itself."""
_MAX_WAIT = 86_400.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

is_init = False  # Whether the parent of this agent is the container's first process
former_agents: tuple[int, ...] = ()  # The pids of the killed agents before this one, the last first
gave_up_after: tuple[str, int] | None = None
"""The signal and the number of kills after which this last agent only records the end."""
unsaved_records: int | None = None
"""A file in memory for records that the log disk does not take (agent/record/memory.py)."""
_code_pipe: int | None = None  # The pipe on which the agent sends its exit code to the parent


def hide_secrets() -> None:
    """Overwrite the cluster's secrets in the environment with which this process was started.

    The kernel shows that memory as /proc/PID/environ to all processes of this user: services too,
    whose own environment lacks the token. Python and the C library keep a copy for the children.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    for name in _HIDDEN:
        text = os.environb.get(name, b"")
        first = getenv(name)
        if text and first and ctypes.string_at(first) == text:
            os.environb[name] = text
            if getenv(name) != first:
                ctypes.memset(first, 0, len(text))


def install_handlers() -> None:
    """Record NOTICES, and reset inherited dispositions that children would get.

    A stop signal that was ignored at the start (nohup, a shell's background job) still does
    nothing. With SIGCHLD ignored, no child's exit code would be available.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # No KeyboardInterrupt at an arbitrary place: the parent logs why the agent ended.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for signum in NOTICES:
        signal.signal(signum, _handle)
    for ignored in [n for n in STOPS if signal.getsignal(n) is signal.SIG_IGN]:
        signal.signal(ignored, _ignore)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def record_stop_requests() -> None:
    """Record stop signals, too, instead of ending by them."""
    for signum in [n for n in STOPS if signal.getsignal(n) is not _ignore]:
        signal.signal(signum, _handle)


def set_handler(handler: Callable[[int], object]) -> None:
    """Call a function for each signal, including those recorded so far.

    It may run between any two bytecodes.
    """
    global _handler  # noqa: PLW0603 - a process has one handler
    install_handlers()
    _handler = handler
    record_stop_requests()
    signal.signal(signal.SIGCHLD, _handle)
    while _pending:
        handler(_pending.pop())


def ignore_signals() -> None:
    """Ignore all signals from now on: the exit code is decided."""
    global _handler  # noqa: PLW0603 - a process has one handler
    _handler = _pending.discard


def keep_exit_code(code: int) -> int:
    """Return an exit code that no late signal changes.

    As it ends, Python gives handled signals their defaults back, but not ignored ones.
    """
    for signum in (*NOTICES, *STOPS):
        signal.signal(signum, signal.SIG_IGN)
    return code


def _handle(signum: int, _frame: FrameType | None) -> None:
    _handler(signum)


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    pass


def send_exit_code(code: int) -> None:
    """Send the parent the exit code just before the exit.

    The kernel reports it only once every thread has ended, and a thread blocked by a disk may stay
    for hours.
    """
    if _code_pipe is not None:
        with suppress(OSError):
            os.write(_code_pipe, bytes([code & 0xFF]))
            os.kill(os.getppid(), signal.SIGCHLD)


def become_parent(*, restarts_agent: bool) -> int | None:
    """Fork; return the agent's exit code in the parent, and None in the agent itself."""
    global is_init, gave_up_after, unsaved_records  # noqa: PLW0603 - facts of this process
    is_init = os.getpid() == 1

    # All signals are blocked here and taken one by one; a shell keeps its job control.
    job_control = {signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    shells = set() if is_init else job_control
    everything = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *shells}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    become_subreaper()  # what a killed agent leaves must stay a descendant

    if restarts_agent:
        # Some Pythons are built without this call: a killed agent's records are those on the disk.
        with suppress(OSError, AttributeError):
            unsaved_records = os.memfd_create("pod-agent-records")

    # Start an agent, and another one for each that is killed.
    crashes: list[float] = []
    killed: tuple[int, ...] = ()
    while True:
        forked = _fork(before, killed)
        if forked is None:
            return None
        agent, code_pipe = forked
        status = _follow(agent, code_pipe, everything)
        os.close(code_pipe)
        if not restarts_agent or -status not in _CRASHES:
            break

        # Was it killed too often? Then a last one only records the end.
        now = time.monotonic()
        crashes = [*(at for at in crashes if now - at < _AGENT_CRASH_WINDOW), now]
        name = signal.Signals(-status).name
        if len(crashes) > MAX_CRASHES:
            _say(f"the agent was killed by {name} {len(crashes)} times: giving up")
            forked = _fork(before, (agent, *killed))
            if forked is None:
                gave_up_after = (name, len(crashes))
                return None
            _follow(*forked, everything, time.monotonic() + _GIVE_UP)
            status = GAVE_UP
            break

        _say(f"the agent was killed by {name}: starting it again ({len(crashes)} of {MAX_CRASHES})")
        killed = (agent, *killed)

    # A restarted agent is not the parent of its predecessor's children.
    if crashes:
        _kill_leftovers()

    # The code of this process: the agent's own, or that of the signal that ended it.
    if status >= 0:
        return status
    if -status not in STOPS:
        return 128 - status
    code = 128 + STOPS[-status]  # a stop signal came before the agent handled any
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal
        name = f"signal {-status}"
    _say(f"stopped: asked to stop by {name} (exit code {code})")
    return code


def _fork(mask: set[int | signal.Signals], killed: tuple[int, ...]) -> tuple[int, int] | None:
    """Start an agent; return its pid and the pipe of its exit code, and None in the agent."""
    global former_agents, _code_pipe  # noqa: PLW0603 - as above
    parent = os.getpid()
    reading, writing = os.pipe()

    # In place of a killed agent, wait for room: its processes may still end.
    until = time.monotonic() + (_FORK_AGAIN if killed else 0.0)
    child = None
    while child is None:
        try:
            child = os.fork()
        except OSError as error:  # noqa: PERF203 - a wait for room: pids.max is reached
            if time.monotonic() >= until:
                _say(f"no room for a process: {error.strerror}; raise pids.max")
                _kill_leftovers()
                os._exit(NO_PROCESS)
            signal.sigtimedwait({signal.SIGCHLD}, 0.1)  # each child that ends makes room

    # In the parent.
    if child:
        os.close(writing)
        os.set_blocking(reading, False)
        return child, reading

    # In the agent.
    os.close(reading)
    _code_pipe = writing
    os.setsid()  # Ctrl-C then reaches the agent once, through the parent
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if killed:  # the former agent's job may run and must be stopped in order
        record_stop_requests()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # children would inherit the blocked mask
    if os.getppid() != parent:  # the parent ended before the line above
        os.kill(os.getpid(), signal.SIGTERM)
    former_agents = killed
    return None


def _follow(
    agent: int, code_pipe: int, everything: set[signal.Signals], until: float = math.inf
) -> int:
    """Forward signals and reap until the agent has ended; return its code, below 0 for a signal.

    An agent that has neither ended nor sent its code at `until` counts as one that gave up.
    """
    code = None
    while True:
        info = signal.sigtimedwait(everything, min(_MAX_WAIT, max(0.0, until - time.monotonic())))

        # No signal: is the time over?
        if info is None:
            if code is None and time.monotonic() >= until:
                return GAVE_UP
            if code is None:
                continue
            what = "the agent has sent its exit code, but does not exit"
            _say(f"{what}: a thread is blocked by a disk")
            return code

        # The agent gets all signals but those about children.
        if info.si_signo != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(agent, info.si_signo)
            continue

        # Has it ended, or sent its code? After that its exit has a limit.
        ended = _reap(agent)
        if ended is not None:
            return ended
        if code is None:
            with suppress(BlockingIOError):
                if sent := os.read(code_pipe, 1):
                    code = sent[0]
                    until = time.monotonic() + _AGENT_EXIT


def _reap(agent: int) -> int | None:
    """Reap all ended children; return the agent's exit code if it is one of them."""
    code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == agent:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _kill_leftovers() -> None:
    """Kill all descendants, until there are none or the time limit is reached."""
    until = time.monotonic() + _PARENT_SWEEP
    while time.monotonic() < until:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        children = []
        with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:  # noqa: PTH123 - pathlib costs 10 ms here
            children = [int(pid) for pid in file.read().split()]
        if not children:
            return
        for pid in children:  # not reaped yet, so the pid is not reused
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, 1.0)  # the children of each are adopted after its end


def become_subreaper() -> None:
    """Make orphaned descendants children of this process; if that fails, they are PID 1's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, int(value), 0, 0, 0)


def _say(sentence: str) -> None:
    with suppress(OSError):
        erase = "\r\033[K" if os.isatty(2) else ""  # a line that the agent draws again and again
        os.write(2, f"{erase}pod-agent: {sentence}\n".encode())
