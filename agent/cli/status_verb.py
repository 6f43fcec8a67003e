"""`pod-agent status`: the state of a run, once or until its end, or a health check."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.base.errors import UnavailableError
from agent.base.text import NO_TERMINAL, Line
from agent.cli.http_request import ask
from agent.cli.options import JSON, flag
from agent.cli.past_run import newest_run, past_status
from agent.cli.printing import terminal_of
from agent.cli.running_head import find_head, own_port, reader_settings
from agent.cli.watch_status import follow_status, screen, show_until_end
from agent.port.brief_status import brief_lines
from agent.port.status import status_lines
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from agent.base.text import Terminal

OPTIONS = (
    JSON,
    flag("--watch", "update until the run ends"),
    flag("--all", "also every node, service and phase"),
    flag("--live", "check only whether this node's agent is up: 0 or 69"),
)


def run(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    """Print the status, or check this node's agent."""
    if options.live:
        check_live(environ)
    else:
        terminal = terminal_of(environ)
        show_status(
            environ, terminal, as_json=options.json, watch=options.watch, has_all=options.all
        )


def show_status(
    environ: Mapping[str, str],
    terminal: Terminal = NO_TERMINAL,
    *,
    as_json: bool,
    watch: bool = False,
    has_all: bool = False,
) -> None:
    """Print the status, with `watch` until the end; raises where there is neither head nor run."""
    head = find_head(environ)
    if isinstance(head, str):
        past = past_status(newest_run(environ, head)[0], as_json=as_json)
        print(redactor_for(environ, None).clean(past), flush=True)
        return

    if watch:
        with screen(as_json=as_json) as show:
            show_until_end(show, head.where, follow_status(head))
        return

    if as_json:
        text = json.dumps(head.data)
    else:
        lines = brief_lines(head.status)
        if has_all:
            lines += [Line(""), *status_lines(head.status)]
        text = terminal.render(lines, str)
    print(text, flush=True)


def check_live(environ: Mapping[str, str]) -> None:
    """Health check of this node's agent; raises if it does not answer."""
    where = f"127.0.0.1:{own_port(environ, reader_settings(environ))}"
    answer = ask(f"http://{where}/livez")
    if answer.status != 200:
        raise UnavailableError(f"no agent runs here: {where}: {answer.failure}")
