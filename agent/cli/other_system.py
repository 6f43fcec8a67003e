"""The command line on a Mac or Windows: the verbs that need neither Linux nor Ray.

A run needs Linux: its processes, signals, locks and Ray. The file that starts a run is written on a
laptop, and the run is looked at from there.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from importlib.util import find_spec
from types import ModuleType

from agent import load
from agent.base.errors import AgentError
from agent.cli.parser import parse
from agent.cli.verbs import VERBS
from agent.settings.redact import redactor_for

WRONG_SYSTEM = 78


def main() -> int:
    """Run one verb; return its exit code."""
    arguments = sys.argv[1:]
    before, command = arguments, None
    if "--" in arguments:
        at = arguments.index("--")
        before, command = arguments[:at], arguments[at + 1 :]
    first = next((word for word in before if not word.startswith("-")), "")
    is_run = not arguments or (not first and command is not None)
    if is_run or (first in VERBS and not VERBS[first].works_anywhere):
        return _refuse(first or "run")

    _install_stand_ins()
    options = parse(before, command)
    if options.version:
        load("cli.version:print_versions")(os.environ)
        return 0
    verb = VERBS[options.verb]
    try:
        return load(f"cli.{verb.module}:run")(dict(os.environ), options) or 0
    except KeyboardInterrupt:
        return 130
    except AgentError as error:
        redactor = redactor_for(os.environ, None)
        print(*map(redactor.clean, error.lines()), sep="\n", file=sys.stderr)
        return error.end.exit_code


def _refuse(verb: str) -> int:
    works = ", ".join(name for name, verb in VERBS.items() if verb.works_anywhere)
    print(
        f"pod-agent: `{verb}` needs Linux, and this is {sys.platform}. Here work: {works}."
        " Use `init` to write the file that starts a run on your platform"
        f" (exit code {WRONG_SYSTEM}).",
        file=sys.stderr,
    )
    return WRONG_SYSTEM


# --- names of Linux -------------------------------------------------------------------------------

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


def _install_stand_ins() -> None:
    """Add the names of Linux that this system lacks, so that the modules of a run can be imported.

    `plan`, `status` and `logs` share modules with a run, which name flags, signals and modules of
    Linux when they are imported. On a Mac some of these are missing, on Windows most. Each gets a
    value that has no effect: what needs them in earnest is never reached.
    """
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
