"""Signals that the test runner ignores must not be ignored in its children."""

from __future__ import annotations

import signal


def keep_ignored_signals_from_children() -> None:
    """Replace "ignore" by a handler that does nothing, for signals ignored at start (nohup, `&`).

    The effect on this process is the same. But child processes inherit an ignored signal, and no
    shell can trap it: a process that a test stops by this signal would never end.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
