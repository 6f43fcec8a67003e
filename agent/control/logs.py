"""`logs`: a node's log through the head's agent, once or as it grows."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agent.control.ask import head_of, own_port
from agent.control.keyed import ask_with_key, why_not
from agent.settings import load
from agent.topology.platforms import port_base

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HEAD = "head"
_JOB, _AGENT = "job", "agent"


def show(environ: Mapping[str, str], log_root: Path, words: list[str], *, follow: bool) -> int:
    """Print a log; return 0, or 69 where no head answers or it has no such log."""
    settings = load(environ).settings
    port = own_port(settings, port_base(environ, settings))
    status, evidence, where = head_of(settings, port)
    if status is None:
        print(f"pod-agent: no head's agent answers: {evidence}", file=sys.stderr)
        return 69
    node, name = _meant(words, status)
    url = f"http://{where}/logs/{quote(node, safe='')}/{quote(name, safe='')}"
    after = ""
    while True:
        answer = ask_with_key(url + after, settings, log_root)
        if answer.status != 200:
            if after and not answer.status:  # the head has gone, and the log is at its end
                return 0
            print(f"pod-agent: {where}: {why_not(answer, 'logs are shown')}", file=sys.stderr)
            return 69
        data = json.loads(answer.body)
        print(data["text"], end="", flush=True)
        if not follow:
            return 0
        if data["next"] is None:
            what = f"the log of {node} comes as its last lines only, which cannot be followed"
            print(f"pod-agent: {what}", file=sys.stderr)
            return 0
        after = f"?after={data['next']}"


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
