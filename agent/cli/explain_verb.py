"""`pod-agent explain`: a run in ten lines, from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.text import Line
from agent.cli.options import value
from agent.cli.printing import terminal_of
from agent.plan.plan import log_root
from agent.record.summary import explain
from agent.settings import load
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

OPTIONS = (
    value("folder", "FOLDER", "a run's, or one above runs; default: AGENT_LOG_DIR", nargs="?"),
)


def run(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    """Print what took long in a run, and why it ended."""
    folder = options.folder or log_root(load(environ).settings)
    lines = (Line("", line) for line in explain(Path(folder)))
    print(terminal_of(environ).render(lines, redactor_for(environ, None).clean))
