"""Signals as events: the handler only notes, the loop acts."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import anyio

from agent.record.log import say
from agent.runtime import orphans
from agent.runtime.exiting import exit_now

if TYPE_CHECKING:
    from collections.abc import Callable

_STOPS = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGHUP: signal.SIGTERM,  # a closed terminal asks for the same
}


async def watch(stop: Callable[[int], None]) -> None:
    """Pass on each request to stop; a second Ctrl-C ends everything at once. Reaps orphans too.

    Once nobody listens any more the code is settled, and a late request (srun's, which stops all
    others when the first node has left with the job's code) must not turn it into 143.
    """
    interrupts = 0
    # What was ignored when we were started (nohup, a shell's background job) stays ignored.
    heeded = [signum for signum in _STOPS if signal.getsignal(signum) is not signal.SIG_IGN]
    try:
        with anyio.open_signal_receiver(*heeded, signal.SIGCHLD) as signals:
            async for signum in signals:
                if signum == signal.SIGCHLD:
                    orphans.reap()
                    continue
                interrupts += signum == signal.SIGINT
                if interrupts > 1:
                    say("second SIGINT: killing everything", "warning")
                    orphans.kill_descendants()
                    exit_now(128 + signal.SIGINT)
                stop(_STOPS[signal.Signals(signum)])
    finally:
        for heard in heeded:
            signal.signal(heard, signal.SIG_IGN)
