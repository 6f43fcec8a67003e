"""The small parent of every run: forwards signals, reaps, starts a killed agent again.

As a container's first process it is its init, too. It imports next to nothing, and is parent of
nothing but the agent and orphans, so no exit code can be taken from anybody who waits for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress

from agent.runtime.first_signals import LEFT_TO_A_SHELL

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
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_first_process = False
_former: int | None = None


def is_init() -> bool:
    """Say whether the parent of this agent is the container's first process."""
    return _first_process


def former() -> int | None:
    """Return the pid of the agent in whose stead this one was started, if there was one."""
    return _former


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
    agent = _fork(before, None)
    if agent is None:
        return None
    deaths: list[float] = []
    while True:
        status = _follow(agent, everything)
        if not of_a_run or -status not in _CRASHES:
            break
        deaths = [at for at in deaths if time.monotonic() - at < WITHIN] + [time.monotonic()]
        name = signal.Signals(-status).name
        if len(deaths) > MOST_DEATHS:
            _say(f"the agent was ended by {name} {len(deaths)} times: giving up")
            status = GAVE_UP
            break
        _say(f"the agent was ended by {name}: starting it again ({len(deaths)} of {MOST_DEATHS})")
        next_agent = _fork(before, agent)
        if next_agent is None:
            return None
        agent = next_agent
    if deaths:
        _end_what_is_left()  # of a killed agent's children its follower was never the parent
    return 128 - status if status < 0 else status


def _fork(mask: set[int | signal.Signals], killed: int | None) -> int | None:
    """Start an agent; return its pid, and None in the agent itself."""
    global _former  # noqa: PLW0603 - as above
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError as error:  # not even a second process: pids.max
        _say(f"no room for a process: {error.strerror}; raise pids.max")
        os._exit(69)
    if child:
        return child
    os.setsid()  # a terminal's Ctrl-C then reaches the agent once, through its parent
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # children would inherit the other
    if os.getppid() != parent:  # it died before it could be watched
        os.kill(os.getpid(), signal.SIGTERM)
    _former = killed
    return None


def _follow(agent: int, everything: set[signal.Signals]) -> int:
    """Forward signals and reap until the agent has ended; return its code, below 0 for a signal."""
    while True:
        signum = signal.sigwaitinfo(everything).si_signo
        if signum != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(agent, signum)
            continue
        ended = _reap(agent)
        if ended is not None:
            return ended


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


def _say(sentence: str) -> None:
    with suppress(OSError):
        os.write(2, f"pod-agent: {sentence}\n".encode())
