"""Signals as events, the exit of the process, and its standard streams."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.processes import parent, process
from agent.processes.parent import NOTICES, ignore_signals, set_handler
from agent.record.background import finish_all, start_thread
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskStatus


def exit_now(code: int) -> None:
    """Exit within about a second, despite a thread in the resolver or a pipe without a reader."""

    def flush() -> None:  # may block forever
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()

    flushing = start_thread(flush)
    finish_all(times.FLUSH)
    if flushing is not None:
        flushing.join(0.1)
    parent.send_exit_code(code)
    os._exit(code)


def make_streams_safe() -> None:
    """Open closed standard streams, and escape what stdout cannot encode.

    If the caller closed one (`>&-`), the next opened file would get its number, and with it the
    job's output.
    """
    for number in range(3):
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


async def watch_signals(
    stop: Callable[[int], None],
    notify: Callable[[int], None],
    record_kill: Callable[[], object] = lambda: None,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Call `stop` and `notify` for signals, and reap orphans; a second Ctrl-C kills everything.

    After that `record_kill` records the end, within a limit of its own.

    Start it with `await tasks.start(watch_signals, …)`, before any process: a signal before that
    would leave the process behind.

    When it ends, signals are ignored: the exit code is decided, and a late signal (srun stops all
    nodes when the first one has left) must not change it to 143.
    """
    loop = asyncio.get_running_loop()
    interrupts = 0

    def act(signum: int) -> None:
        nonlocal interrupts

        # A second Ctrl-C ends everything at once.
        if signum == signal.SIGINT:
            interrupts += 1
        if interrupts > 1:
            say("second SIGINT: killing everything", "warning")
            process.kill(process.list_descendants())
            record_kill()
            exit_now(128 + signal.SIGINT)

        if signum == signal.SIGCHLD:
            process.reap()
        elif signum in NOTICES:
            notify(signum)
        else:
            stop(signum)

    set_handler(lambda signum: loop.call_soon_threadsafe(act, signum))
    task_status.started()
    try:
        await anyio.sleep_forever()
    finally:
        ignore_signals()
