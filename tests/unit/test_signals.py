"""Signals: each is passed on while somebody listens, and none counts after that."""

from __future__ import annotations

import subprocess
import sys

import pytest

STORY = """
import os, signal, anyio
from agent.runtime import signals
from agent.runtime.exiting import exit_now

async def live():
    heard = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(signals.watch, heard.append)
        await anyio.wait_all_tasks_blocked()
        os.kill(os.getpid(), {number})
        with anyio.fail_after(5):
            while not heard:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    return heard

heard = anyio.run(live)
os.kill(os.getpid(), {number})
print(*map(int, heard), flush=True)
exit_now(7)
"""


@pytest.mark.parametrize(("number", "passed_on"), [(15, 15), (2, 2), (1, 15)])
def test_a_late_signal_does_not_change_the_code(number: int, passed_on: int) -> None:
    """The first one is heard, the one after the end is not, and the code stays."""
    story = STORY.format(number=number)
    done = subprocess.run(
        [sys.executable, "-c", story], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (7, f"{passed_on}\n"), done.stderr
