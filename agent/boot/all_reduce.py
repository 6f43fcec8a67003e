"""This node's share of the all-reduce before the job (AGENT_PREFLIGHT): a program of its own.

It runs in the job's Python and environment, ends by its own deadline, and is killed a little later.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from agent.decisions.probing import ALL_REDUCE, Answer
from agent.plan import environment
from agent.plan.plan import ALL_REDUCE as PROCESS
from agent.plan.preflight import GPUS, OUT
from agent.plan.waits import PREFLIGHT_LIMIT
from agent.runtime.last_words import in_thread

if TYPE_CHECKING:
    from pathlib import Path

    from agent.boot.node_run import NodeRun
    from agent.work.torchrun import Seat
    from agent.work.where import Place

_KILLED_AFTER = 5.0
_STOP = 1.0
_NO_WORD = "its ranks ended without a word"


async def share(run: NodeRun, seat: Seat, place: Place) -> Answer:
    """Take part; the head's own answer has what came of it, another's only why it could not."""
    plan = run.plan
    out = run.folder.file(OUT)
    await in_thread(lambda: _removed(out))
    here = replace(place, rank=str(seat.rank), log_dir=str(out.parent))
    gpus, process = ",".join(map(str, seat.gpus)), plan.process(PROCESS)
    argv = [word.replace(GPUS, gpus) for word in process.command(here)]
    full = plan.environment(place.node_ip, place.head_ip)
    env = environment.for_service(full, plan.settings)
    child = await run.start(process.name, argv, env, process.log)
    try:
        with anyio.move_on_after(PREFLIGHT_LIMIT + _KILLED_AFTER):
            await child.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await child.stop(_STOP, leader_ends_group=True)
        run.child_ended(child)
    words = await in_thread(lambda: _text_of(out))
    if plan.topology.is_head and words:
        return Answer(ALL_REDUCE, "", words=words)
    is_well = not plan.topology.is_head and _ended_well(words)
    return Answer(ALL_REDUCE, "", "" if is_well else await child.tail() or _NO_WORD)


def _removed(path: Path) -> str:
    """Remove a file of a former life; return why that cannot be, '' where it is gone."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _ended_well(words: str) -> bool:
    """Say whether this node's ranks all ended with 0; why not, the end of their output tells."""
    try:
        told = json.loads(words)
    except ValueError:
        return False
    return isinstance(told, dict) and not any(told.get("codes", [1]))
