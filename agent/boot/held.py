"""A verdict that a killed agent held, or was to leave with: the next one begins no new run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.record.log import say
from agent.runtime import parent

if TYPE_CHECKING:
    from pathlib import Path

    from agent.base.outcome import Outcome


_STANDS = "the agent was killed when its run was over: its verdict stands"


def verdict(root: Path, node: str) -> Outcome | None:
    """Return how the run had ended here when the agent was killed that this one replaces."""
    from agent.record.node_record import folder_of  # noqa: PLC0415 - most agents have no former
    from agent.record.outcome_file import read_outcome  # noqa: PLC0415 - same

    folder = folder_of(root, node, parent.former())
    return None if folder is None else read_outcome(folder)


def again(outcome: Outcome, *, stays: bool) -> Outcome:
    """Leave with that verdict, or stay with it until a stop is asked for."""
    if stays and outcome.is_worth_a_hold:
        anyio.run(_until_stopped, outcome)
    else:
        say(_STANDS, "warning")
    return outcome


async def _until_stopped(outcome: Outcome) -> None:
    """Listen first: who reads that the pod is held may ask for its end at once."""
    from agent.runtime import signals  # noqa: PLC0415 - same

    stopped = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(signals.watch, lambda _signum: stopped.set(), lambda _signum: None)
        say(_STANDS, "warning")
        say(outcome.sentence())
        say("holding the pod, which would be started again: stop it when you have what you need")
        await stopped.wait()
        tasks.cancel_scope.cancel()
