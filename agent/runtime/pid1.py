"""The container's first process: forwards signals, reaps everything, returns the agent's code.

It imports next to nothing and is parent of nothing but the agent and orphans, so no exit code
can be taken from anybody who waits for it.
"""

from __future__ import annotations

import os
import signal
import sys

FIRST_PROCESS = "POD_AGENT_FIRST_PROCESS"
"""Set for the agent proper when it runs under this init; taken out of its environment at once."""


def run_under_init() -> int:
    """Start the same command again as a child, and be a correct init to it."""
    everything = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    child = os.fork()
    if child == 0:
        os.setsid()  # a terminal's Ctrl-C then reaches the agent once, through us
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # children would inherit the mask
        environ = {**os.environ, FIRST_PROCESS: "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606 - ourselves
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
