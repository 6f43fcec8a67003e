"""Stand-ins for names of Linux, so that the modules of a run can be imported elsewhere.

`plan`, `status` and `logs` share modules with a run, which name flags, signals and
modules of Linux when they are imported. On a Mac some of these are missing, on Windows most. Here
each gets a value that has no effect: what needs them in earnest is never reached.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from importlib.util import find_spec
from types import ModuleType

_OPEN_FLAGS = ("O_PATH", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK")
_SIGNALS = (
    *("SIGHUP", "SIGQUIT", "SIGKILL", "SIGSTOP", "SIGBUS", "SIGSYS", "SIGTRAP", "SIGPIPE"),
    *("SIGXFSZ", "SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGTSTP", "SIGTTIN", "SIGTTOU"),
    *("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGPOLL"),
    *("SIGXCPU", "SIGRTMIN"),
)
_FIRST = 100  # no signal has such a number
_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty")
_UNLIMITED = -1


def install() -> None:
    """Add what this system lacks."""
    for name in _OPEN_FLAGS:
        if not hasattr(os, name):
            setattr(os, name, 0)
    for number, name in enumerate(_SIGNALS, start=_FIRST):
        if not hasattr(signal, name):
            setattr(signal, name, number)
    for name in _MODULES:
        if name not in sys.modules and find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
    for name in ("getuid", "geteuid"):
        if not hasattr(os, name):
            setattr(os, name, int)  # 0
    if not hasattr(os, "sched_getaffinity"):
        os.sched_getaffinity = _all_cpus
    resource = sys.modules.get("resource")
    if resource is not None and not hasattr(resource, "getrlimit"):
        vars(resource).update(
            RLIM_INFINITY=_UNLIMITED, RLIMIT_NOFILE=0, RLIMIT_NPROC=0, getrlimit=_no_limit
        )
    if not hasattr(socket, "AF_UNIX"):
        socket.AF_UNIX = _UNLIMITED  # type: ignore[misc,assignment]


def _all_cpus(_pid: int) -> set[int]:
    return set(range(os.cpu_count() or 1))


def _no_limit(_which: int) -> tuple[int, int]:
    return _UNLIMITED, _UNLIMITED
