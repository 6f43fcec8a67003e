"""`pod-agent stop`: end the run as SIGTERM on the head does, and wait until it has ended."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.base.errors import UnavailableError
from agent.cli.http_request import ask
from agent.cli.printing import warn
from agent.cli.running_head import require_head
from agent.port.status_model import StopAnswer
from agent.processes.waiting import NotYet, TimedOutError, until

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

_STOP_VERB_MARGIN = 10.0  # `stop` waits longer than the head's grace: it also sends the verdict.
OPTIONS = ()


def run(environ: Mapping[str, str], _: argparse.Namespace) -> None:
    """Stop the run."""
    stop(environ)


def stop(environ: Mapping[str, str]) -> None:
    """Ask the head to stop, and wait until its port is closed; raises if refused."""
    head = require_head(environ)
    within = head.ask("/stop", StopAnswer, post=True).within + _STOP_VERB_MARGIN
    warn(f"run {head.agent.run_id} is being stopped")

    async def is_closed() -> bool | NotYet:
        return NotYet() if ask(f"http://{head.where}/livez", limit=2.0).status else True

    pause = times.VERB_RETRY_PAUSE
    try:
        anyio.run(partial(until, is_closed, within, step=pause, longest=pause))
    except TimedOutError:
        raise UnavailableError(f"{head.where} still answers after {within:g} s") from None
