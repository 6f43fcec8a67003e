"""Signal handlers from the start of the process on: record signals until they are handled.

This module imports almost nothing, so that signals during other imports are recorded too. Signals
are handled, never ignored or blocked: children inherit that, but not handlers.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

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
SHELL_JOB_CONTROL = (signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""A shell's job control stops and continues processes with these."""
_REQUESTS = signal.valid_signals() - {*_UNHANDLED, *NOTICES}
STOPS: dict[int, signal.Signals] = {
    # All others that would end the agent without teardown count as SIGTERM: a closed terminal,
    # a batch system's limit (SIGXCPU), `docker stop` of an image for systemd (SIGRTMIN+3).
    **dict.fromkeys(_REQUESTS, signal.SIGTERM),
    signal.SIGINT: signal.SIGINT,
}
"""Signals that request a stop, and the signal that each counts as."""

_pending: set[int] = set()
_handler: Callable[[int], None] = _pending.add


def install_handlers() -> None:
    """Record NOTICES; give children default dispositions, whatever was inherited.

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


def set_handler(handler: Callable[[int], None]) -> None:
    """Pass every signal to a function, including those recorded so far.

    It runs between any two bytecodes of the main thread.
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
    _handler = _drop


def _handle(signum: int, _frame: FrameType | None) -> None:
    _handler(signum)


def _drop(_signum: int) -> None:
    pass


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    pass
