"""`logs`: a node's log through the head's agent, once or as it grows."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from agent.control.ask import find_head
from agent.control.keyed import ask_with_key, why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from agent.control.http import Answer

HEAD = "head"
PATIENCE = 15.0
"""An agent that is killed is started again within 2 s, on a busy machine within some more."""
_AGAIN = 0.5
_JOB, _AGENT = "job", "agent"


class _Part(NamedTuple):
    """What was heard last of a log: where it goes on, and whether the run has its verdict."""

    next: int | None
    over: bool


def show(environ: Mapping[str, str], log_root: Path, words: list[str], *, follow: bool) -> int:
    """Print a log; return 0, or 69 where no head answers or it has no such log."""
    found = find_head(environ)
    if found is None:
        return 69
    status, where, settings = found
    node, name = _meant(words, status)
    url = f"http://{where}/logs/{quote(node, safe='')}/{quote(name, safe='')}"
    answer = ask_with_key(url, settings, log_root)
    if answer.status != 200:
        print(f"pod-agent: {where}: {why_not(answer, 'logs are shown')}", file=sys.stderr)
        return 69
    part = _shown(answer)
    if not follow:
        return 0
    if part.next is None:
        what = f"the log of {node} comes as its last lines only, which cannot be followed"
        print(f"pod-agent: {what}", file=sys.stderr)
        return 0
    return _follow(part, where, lambda after: ask_with_key(url + after, settings, log_root))


def _follow(part: _Part, where: str, ask: Callable[[str], Answer]) -> int:
    """Print what comes until the run is over; an agent that is killed is back within seconds."""
    silent_since: float | None = None
    while True:
        answer = ask(f"?after={part.next}")
        if answer.status == 200:
            part, silent_since = _shown(answer), None
            continue
        if part.over and not answer.status:  # the head has gone, and the log is at its end
            return 0
        now = time.monotonic()
        silent_since = now if silent_since is None else silent_since
        if now >= silent_since + PATIENCE:
            why = why_not(answer, "logs are shown")
            what = f"the head's agent gave no more of the log for {PATIENCE:g} s, and no verdict"
            print(f"pod-agent: {where}: {what}: giving up ({why})", file=sys.stderr)
            return 69
        time.sleep(_AGAIN)  # a person watches; nothing waits on this


def _shown(answer: Answer) -> _Part:
    """Print a part of a log."""
    data = json.loads(answer.body)
    print(data["text"], end="", flush=True)
    return _Part(data["next"], data.get("over", False))


def _meant(words: list[str], status: Mapping[str, Any]) -> tuple[str, str]:
    """Tell node and log from one word or two: a word alone that names no node names a log."""
    if len(words) == 2:
        return words[0], words[1]
    nodes = {str(node.get("name")) for node in status.get("nodes", [])}
    if not words:
        return HEAD, _JOB
    if words[0] in nodes:
        return words[0], _AGENT
    return (HEAD, _JOB) if words[0] == HEAD else (HEAD, words[0])
