"""The small parent of every run: forwards signals, reaps, starts a killed agent again.

As a container's first process it is its init, too. It imports next to nothing, and is parent of
nothing but the agent and orphans, so no exit code can be taken from anybody who waits for it.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time
from contextlib import suppress

from agent.runtime.first_signals import LEFT_TO_A_SHELL, STOPS, note_requests

MOST_DEATHS = 3
"""An agent that is killed more often within `WITHIN` seconds is not started again."""
WITHIN = 600.0
GAVE_UP = 70
_CRASHES = {
    *(signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT),
    *(signal.SIGILL, signal.SIGFPE),
}
"""How an agent dies that could not end in order; every other signal it handles itself."""
_SWEEP = 5.0
_ENDS_WITHIN = 2.0
"""Who has told its code ends sooner than this, unless a disk holds one of its threads."""
_LONG = 86_400.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_first_process = False
_former: tuple[int, ...] = ()
_word: int | None = None
"""The agent's way to tell its code to its parent."""


def is_init() -> bool:
    """Say whether the parent of this agent is the container's first process."""
    return _first_process


def former() -> tuple[int, ...]:
    """Return the pids of the killed agents in whose stead this one was started, the last first."""
    return _former


def settle(code: int) -> None:
    """Tell our parent the code with which we are about to end.

    The kernel tells it only when every thread is gone, and a thread whose write a disk holds up may
    be there for hours: no signal ends it.
    """
    if _word is not None:
        with suppress(OSError):
            os.write(_word, bytes([code & 0xFF]))
            os.kill(os.getppid(), signal.SIGCHLD)


def become_parent(*, of_a_run: bool) -> int | None:
    """Split in two: the parent, which returns its child's code, and the child, which returns None.

    Only a run is started again: a question that was killed can be asked again.
    """
    global _first_process  # noqa: PLW0603 - a fact of this process, which its children do not inherit
    _first_process = os.getpid() == 1
    shells = set() if _first_process else {*LEFT_TO_A_SHELL}
    everything = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *shells}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a killed agent leaves must stay below us
    forked = _fork(before, ())
    if forked is None:
        return None
    agent, word = forked
    deaths: list[float] = []
    killed: tuple[int, ...] = ()
    while True:
        status = _follow(agent, word, everything)
        if not of_a_run or -status not in _CRASHES:
            break
        deaths = [at for at in deaths if time.monotonic() - at < WITHIN] + [time.monotonic()]
        _regain_terminal()
        name = signal.Signals(-status).name
        if len(deaths) > MOST_DEATHS:
            _say(f"the agent was ended by {name} {len(deaths)} times: giving up")
            status = GAVE_UP
            break
        _say(f"the agent was ended by {name}: starting it again ({len(deaths)} of {MOST_DEATHS})")
        os.close(word)
        killed = (agent, *killed)
        forked = _fork(before, killed)
        if forked is None:
            return None
        agent, word = forked
    if deaths:
        _end_what_is_left()  # of a killed agent's children its follower was never the parent
    return _code_of(status)


def _code_of(status: int) -> int:
    """Return the run's code; a request to stop may come before the agent listens for any."""
    if status >= 0:
        return status
    wish = STOPS.get(-status)
    if wish is None:
        return 128 - status
    code = 128 + wish
    from agent.base.outcome import name_of_signal  # noqa: PLC0415 - once all has ended

    _say(f"stopped: asked to stop by {name_of_signal(-status)} (exit code {code})")
    return code


def _fork(mask: set[int | signal.Signals], killed: tuple[int, ...]) -> tuple[int, int] | None:
    """Start an agent; return its pid and where it tells its code, and None in the agent itself."""
    global _former, _word  # noqa: PLW0603 - as above
    parent = os.getpid()
    heard, word = os.pipe()
    try:
        child = os.fork()
    except OSError as error:  # not even a second process: pids.max
        _say(f"no room for a process: {error.strerror}; raise pids.max")
        os._exit(69)
    if child:
        os.close(word)
        os.set_blocking(heard, False)
        return child, heard
    os.close(heard)
    _word = word
    os.setsid()  # a terminal's Ctrl-C then reaches the agent once, through its parent
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if killed:  # a job may live, which is to be stopped in order: nobody else would do that
        note_requests()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # children would inherit the other
    if os.getppid() != parent:  # it died before it could be watched
        os.kill(os.getpid(), signal.SIGTERM)
    _former = killed
    return None


def _follow(agent: int, word: int, everything: set[signal.Signals]) -> int:
    """Forward signals and reap until the agent has ended; return its code, below 0 for a signal."""
    code, until = None, math.inf
    while True:
        heard = signal.sigtimedwait(everything, min(_LONG, max(0.0, until - time.monotonic())))
        if heard is None:
            if code is None:
                continue
            _say("the agent is done, but a disk holds one of its threads: it is left to that disk")
            return code
        if heard.si_signo != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(agent, heard.si_signo)
            continue
        ended = _reap(agent)
        if ended is not None:
            return ended
        if code is None and (code := _told(word)) is not None:
            until = time.monotonic() + _ENDS_WITHIN


def _told(word: int) -> int | None:
    """Return the code that the agent told, if it did."""
    try:
        told = os.read(word, 1)
    except BlockingIOError:
        return None
    return told[0] if told else None


def _reap(agent: int) -> int | None:
    """Reap all that ended; return how the agent did, once it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == agent:
            code = os.waitstatus_to_exitcode(status)


def _end_what_is_left() -> None:
    """Kill everything below us, until nothing is, or what is left takes no signal."""
    until = time.monotonic() + _SWEEP
    while time.monotonic() < until:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        children = _children()
        if not children:
            return
        for pid in children:  # ours until we reap it, so no other can have the pid
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, 1.0)  # the children of each are ours after it


def _children() -> list[int]:
    try:
        with open("/proc/self/task/%d/children" % os.getpid(), encoding="ascii") as file:  # noqa: PTH123, UP031 - pathlib costs 10 ms here
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, int(value), 0, 0, 0)


def _regain_terminal() -> None:
    """Take back the rows that a killed agent kept for its view, where stderr is a terminal."""
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, b"\0337\033[r\0338")


def _say(sentence: str) -> None:
    with suppress(OSError):
        os.write(2, f"pod-agent: {sentence}\n".encode())
