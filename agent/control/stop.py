"""`stop`: ask the head's agent to end the run, and wait until it has."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import anyio

from agent.control.ask import find_head
from agent.control.http import ask
from agent.control.keyed import ask_with_key, why_not
from agent.runtime.waiting import NotYet, TimedOutError, until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MARGIN = 10.0
"""Seconds beyond the head's own grace: the verdict is written and told within them."""


def stop(environ: Mapping[str, str], log_root: Path) -> int:
    """End the run as SIGTERM on the head would; return 0 after its end, 69 if no head answers."""
    found = find_head(environ)
    if found is None:
        return 69
    status, where, settings = found
    answer = ask_with_key(f"http://{where}/stop", settings, log_root, post=True)
    if answer.status != 200:
        why = why_not(answer, "a run is stopped")
        print(f"pod-agent: {where} was not stopped: {why}", file=sys.stderr)
        return 69
    within = float(json.loads(answer.body)["within"]) + _MARGIN
    print(f"pod-agent: run {status.get('run_id')} is told to end", file=sys.stderr)
    return anyio.run(_wait_for_its_end, where, within)


async def _wait_for_its_end(where: str, limit: float) -> int:
    async def gone() -> bool | NotYet:
        answer = await anyio.to_thread.run_sync(lambda: ask(f"http://{where}/livez", limit=2.0))
        return NotYet("it still answers") if answer.status else True

    try:
        await until(gone, limit)
    except TimedOutError:
        print(f"pod-agent: {where} still answers after {limit:g} s", file=sys.stderr)
        return 69
    return 0
