"""What signals do from the first moment of a run on: they are noted, and kill nobody unheard.

It imports next to nothing, since whatever comes while the rest is imported must be noted, too.
Signals are handled, never ignored or blocked: children inherit that, but a handler they do not.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that tell the job something: Slurm's `--signal=USR1@120`, that its time is nearly up."""
_LEFT_ALONE = (
    *(signal.SIGKILL, signal.SIGSTOP),
    # Faults of our own: their default tells of them best.
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
    *(signal.SIGSYS, signal.SIGTRAP),
    *(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them, and not for its children
    # By default they end nobody.
    *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
LEFT_TO_A_SHELL = (signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""By these a shell stops its jobs and has them go on."""
_REQUESTS = signal.valid_signals() - {*_LEFT_ALONE, *NOTICES}
STOPS: dict[int, signal.Signals] = {
    # Whatever else would end us without teardown asks for the same as SIGTERM: a closed terminal,
    # a batch system's limit (SIGXCPU), `docker stop` of an image for systemd (SIGRTMIN+3).
    **dict.fromkeys(_REQUESTS, signal.SIGTERM),
    signal.SIGINT: signal.SIGINT,
}
"""Requests to stop, and what each is told as."""

_early: set[int] = set()
_tell: Callable[[int], None] = _early.add


def listen() -> None:
    """Note notices from now on; give children default dispositions, whatever ours were.

    A request to stop that was ignored when we were started (nohup, a shell's background job)
    still does nothing here. Ignored SIGCHLDs would cost us every child's exit code.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # No exception wherever we happen to be: as after SIGTERM, our parent says why we ended.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for signum in NOTICES:
        signal.signal(signum, _note)
    for ignored in [n for n in STOPS if signal.getsignal(n) is signal.SIG_IGN]:
        signal.signal(ignored, _disregard)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def note_requests() -> None:
    """Note requests to stop, too, until they are handed to somebody, and do not die of them."""
    for signum in [n for n in STOPS if signal.getsignal(n) is not _disregard]:
        signal.signal(signum, _note)


def hand_to(tell: Callable[[int], None]) -> None:
    """Hand every signal to a function from now on, what was noted before included.

    It is called between any two steps of the main thread.
    """
    global _tell  # noqa: PLW0603 - a process has one handler
    listen()
    _tell = tell
    note_requests()
    signal.signal(signal.SIGCHLD, _note)
    while _early:
        tell(_early.pop())


def heed_no_more() -> None:
    """Let signals do nothing from now on: the code is settled."""
    global _tell  # noqa: PLW0603 - a process has one handler
    _tell = _drop


def _note(signum: int, _frame: FrameType | None) -> None:
    _tell(signum)


def _drop(_signum: int) -> None:
    pass


def _disregard(_signum: int, _frame: FrameType | None) -> None:
    pass
