"""Signals as events: the handler only notes, the loop acts."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from typing import TYPE_CHECKING

from anyio import TASK_STATUS_IGNORED

from agent.record.log import say
from agent.runtime import orphans
from agent.runtime.exiting import exit_now
from agent.runtime.first_signals import NOTICES, hand_to, heed_no_more

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskStatus

_KEPT = 2
"""How many of one signal wait to be acted on, as two SIGINTs are more than one."""


async def watch(
    stop: Callable[[int], None],
    notify: Callable[[int], None],
    *,
    task_status: TaskStatus[None] = TASK_STATUS_IGNORED,
) -> None:
    """Pass on each request to stop as it came, and each notice; a second Ctrl-C ends all at once.

    Who starts this waits until signals are heard (`await tasks.start(watch, …)`): whatever is
    started before would be left behind by the first of them.

    Reaps orphans too. Once nobody listens any more the code is settled, and a late request
    (srun's, which stops all others when the first node has left with the job's code) must not
    turn it into 143.
    """
    loop, some = asyncio.get_running_loop(), asyncio.Event()
    heard: deque[int] = deque()

    def tell(signum: int) -> None:
        if heard.count(signum) < _KEPT:
            heard.append(signum)
            loop.call_soon_threadsafe(some.set)

    interrupts = 0
    hand_to(tell)
    task_status.started()
    try:
        while True:
            await some.wait()
            some.clear()
            while heard:
                signum = heard.popleft()
                interrupts += signum == signal.SIGINT
                if interrupts > 1:
                    say("second SIGINT: killing everything", "warning")
                    orphans.kill_descendants()
                    exit_now(128 + signal.SIGINT)
                _act(signum, stop, notify)
    finally:
        heed_no_more()


def _act(signum: int, stop: Callable[[int], None], notify: Callable[[int], None]) -> None:
    if signum == signal.SIGCHLD:
        orphans.reap()
    elif signum in NOTICES:
        notify(signum)
    else:
        stop(signum)
