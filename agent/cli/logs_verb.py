"""`pod-agent logs`: a log of any node, by the head or from the newest run folder."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING
from urllib.parse import quote

from agent.base import times
from agent.base.errors import UnavailableError
from agent.base.text import plain
from agent.cli.options import flag, value, whole_number
from agent.cli.past_run import newest_run, node_and_log, past_log
from agent.cli.printing import warn
from agent.cli.running_head import find_head
from agent.port.log_filter import LogFilter, time_since
from agent.port.status_model import LogPart
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from agent.cli.running_head import RunningHead

AGENT_RESTARTS = 15.0  # A verb waits for a killed agent: it starts within 2 s, or a little later.
OPTIONS = (
    value("node", "NODE", "default: the head", nargs="?"),
    value("log", "LOG", "agent, ray, job or a service", nargs="?"),
    flag("-f --follow", "follow the log as it grows"),
    value("-n", "N", "only the last N lines", whole_number),
    value("--grep", "RE", "only lines that match", re.compile),
    value("--since", "T", "only lines since then: 10m, or 2026-11-23T10:52Z", time_since),
)


def run(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    """Print the log."""
    words = [word for word in (options.node, options.log) if word is not None]
    chosen = LogFilter(options.n, options.grep, options.since)
    show_logs(environ, words, chosen, follow=options.follow)


def show_logs(
    environ: Mapping[str, str], words: list[str], chosen: LogFilter, *, follow: bool
) -> None:
    """Print a log; raises where there is neither a head nor a run with such a log."""
    head = find_head(environ)
    if isinstance(head, str):
        text = past_log(newest_run(environ, head), words, chosen)
        _print_log(redactor_for(environ, None).clean(text))
        return

    workers = {node.name for node in head.agent.nodes}
    node, name = node_and_log(words, workers)
    path = f"/logs/{quote(node, safe='')}/{quote(name, safe='')}"
    part = _print_part(head, path, chosen)
    if follow and part.next is None:
        warn(f"the log of {node} comes as its last lines only, which cannot be followed")
    elif follow:
        _follow_log(part, head, path, chosen._replace(last=None, since=None))


def _follow_log(part: LogPart, head: RunningHead, path: str, chosen: LogFilter) -> None:
    """Print new parts until the run is over; a head that is restarted is back within seconds."""
    received = time.monotonic()
    while True:
        try:
            part = _print_part(head, f"{path}?after={part.next}", chosen)
            received = time.monotonic()
            # The head answers once there is more; after the run's end it answers at once.
            if not part.over:
                continue
        except UnavailableError as error:
            if part.over:  # the head is gone and the log complete
                return
            if time.monotonic() - received > AGENT_RESTARTS:
                what = f"no log and no verdict for {AGENT_RESTARTS:g} s"
                raise UnavailableError(f"{what}: {error}") from None
        time.sleep(times.VERB_RETRY_PAUSE)  # for a person only; nothing waits on it


def _print_part(head: RunningHead, path: str, chosen: LogFilter) -> LogPart:
    """Print the selected lines of a part of a log; return it."""
    part = head.ask(path, LogPart)
    _print_log(chosen.apply(part.text, datetime.now(timezone.utc)))
    return part


def _print_log(text: str) -> None:
    """Print a part of a log; a terminal gets no sequences that steer it (OSC 52: its clipboard)."""
    print(plain(text) if sys.stdout.isatty() else text, end="", flush=True)
