"""The container's first process: forwards signals, reaps everything, returns the agent's code.

It imports next to nothing and is parent of nothing but the agent and orphans, so no exit code
can be taken from anybody who waits for it.
"""

from __future__ import annotations

import os
import signal

_over_us = False


def is_over_us() -> bool:
    """Say whether this process runs under our own init, as a container's first program."""
    return _over_us


def become_init() -> int | None:
    """Split in two: an init, which returns its child's code, and the child, which returns None."""
    global _over_us  # noqa: PLW0603 - a fact of this process, which none of its children inherits
    everything = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    try:
        child = os.fork()
    except OSError as error:  # not even a second process: this container's pids.max is 1
        os.write(
            2, f"pod-agent: no room for a process: {error.strerror}; raise pids.max\n".encode()
        )
        return 69
    if child == 0:
        os.setsid()  # a terminal's Ctrl-C then reaches the agent once, through us
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # children would inherit the mask
        _over_us = True
        return None
    while True:
        signum = signal.sigwaitinfo(everything).si_signo
        if signum != signal.SIGCHLD:
            os.kill(child, signum)
            continue
        code = _reap(child)
        if code is not None:
            return code


def _reap(child: int) -> int | None:
    """Reap all that ended; return the child's code once it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            ended = os.waitstatus_to_exitcode(status)
            code = 128 - ended if ended < 0 else ended
