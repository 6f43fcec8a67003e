"""`pod-agent explain`: a run in ten lines, from its folder; -v: why a line is the cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.errors import UnavailableError
from agent.base.text import Line, escaped
from agent.cli.options import flag, value
from agent.cli.past_run import no_run_in, warn_left_out
from agent.cli.printing import terminal_of
from agent.cli.running_head import reader_settings
from agent.diagnosis.find_cause import weighed
from agent.diagnosis.searched_log import Log
from agent.plan.plan import JOB_LOG, log_root
from agent.record.files import read_end_from
from agent.record.run_search import choose_newest_run, newest_run, node_folders
from agent.record.summary import explain
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

OPTIONS = (
    value("folder", "FOLDER", "a run's, or one above runs; default: AGENT_LOG_DIR", nargs="?"),
    flag("-v --verbose", "print the errors of the job's output, and why each is the cause or not"),
)
_JOB_TAIL = 5 << 20  # bytes of the job's output that are read
_MOST_ERRORS = 20


def run(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    """Print what took long in a run, and why it ended."""
    folder = Path(options.folder) if options.folder else _newest_run(environ)
    lines = [Line("", line) for line in explain(folder)]
    if options.verbose:
        lines += [Line("", line) for line in _weighed(folder)]
    print(terminal_of(environ).render(lines, redactor_for(environ, None).clean))


def _weighed(folder: Path) -> list[str]:
    """Return the errors of the job's output, each with why it is the cause or is not."""
    run = newest_run(folder)
    nodes = [] if run is None else node_folders(run)
    node = folder if folder.resolve() in nodes else next(iter(nodes), folder)
    data, first_line = read_end_from(node / JOB_LOG, _JOB_TAIL)
    errors = weighed(Log("", JOB_LOG, data.decode(errors="replace"), first_line=first_line))
    if not errors:
        return ["no error in the job's output"]
    shown = [f"errors in the job's output ({len(errors)}), the cause first:"]
    shown += [escaped(line) for line in errors[:_MOST_ERRORS]]
    if len(errors) > _MOST_ERRORS:
        shown.append(f"{len(errors) - _MOST_ERRORS} more")
    return shown


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
