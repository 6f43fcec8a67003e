"""What the tests' own start must not bring into what they start: signals that are ignored."""

from __future__ import annotations

import signal


def keep_ignored_signals_from_children() -> None:
    """Handle signals that we were started to ignore (nohup, `&`) by doing nothing.

    For us it is the same. But an ignored signal is inherited, no shell can trap it, and whatever
    a test starts, and ends by it, would never end.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
