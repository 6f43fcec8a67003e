"""`pod-agent explain`: a run in ten lines, from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.errors import UnavailableError
from agent.base.text import Line
from agent.cli.options import value
from agent.cli.past_run import no_run_in, warn_left_out
from agent.cli.printing import terminal_of
from agent.cli.running_head import reader_settings
from agent.plan.plan import log_root
from agent.record.run_folder import choose_newest_run
from agent.record.summary import explain
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

OPTIONS = (
    value("folder", "FOLDER", "a run's, or one above runs; default: AGENT_LOG_DIR", nargs="?"),
)


def run(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    """Print what took long in a run, and why it ended."""
    folder = Path(options.folder) if options.folder else _newest_run(environ)
    lines = (Line("", line) for line in explain(folder))
    print(terminal_of(environ).render(lines, redactor_for(environ, None).clean))


def _newest_run(environ: Mapping[str, str]) -> Path:
    """Return the newest run in AGENT_LOG_DIR; raises if there is none."""
    root = log_root(reader_settings(environ))
    chosen = choose_newest_run(root)
    warn_left_out(root, chosen)
    if chosen.run is None:
        raise UnavailableError(
            no_run_in(root, chosen),
            remedy="Name a run's folder, or set AGENT_LOG_DIR to the folder that holds the runs",
            culprit="RUN FOLDER",
        )
    return chosen.run
