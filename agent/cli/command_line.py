"""The command line: how a verb runs and reports its errors.

Without a verb, or with `run`, this node boots: agent/run/main.py. Another verb is parsed by
agent/cli/parser.py, and runs in its own module. Some verbs are programs with arguments of their
own, which agent/__main__.py starts before this file is loaded.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from agent import load
from agent.base import times
from agent.base.errors import AgentError, PreflightError
from agent.cli.verbs import VERBS
from agent.processes import parent
from agent.processes.signals import exit_now, make_streams_safe
from agent.record.background import finish_all, run_within
from agent.record.log import say
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code."""
    make_streams_safe()
    arguments = list(sys.argv[1:] if argv is None else argv)
    before, command = _split_at_dashes(arguments)
    environ = dict(os.environ)
    try:
        _check_folder()
        # A pod's default goes without the cost of a parser.
        is_plain_run = not arguments or before == ["run"]
        code = None if is_plain_run else _run_verb(environ, before, command)
        if code is None:
            outcome = load("run.main:run_safely")(environ, command)
            level = "info" if outcome.exit_code == 0 else "error"
            say(outcome.sentence(), "warning" if outcome.is_warning else level, is_last=True)
            code = outcome.exit_code
            exit_now(code)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except AgentError as error:
        return _report_failure(error.end.exit_code, *error.lines())
    return int(code)


def _check_folder() -> None:
    """Refuse to run in a folder that was removed: Ray and the job could not start in it."""
    try:
        os.getcwd()  # noqa: PTH109 - pathlib would be imported for it
    except OSError as error:
        what = f"the current folder cannot be used: {error.strerror}"
        raise PreflightError(what, remedy="cd to another one", culprit="FOLDER") from None


def _split_at_dashes(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Return the words before `--`, and the command after it; None without `--`."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _run_verb(
    environ: Mapping[str, str], before: list[str], command: list[str] | None
) -> int | None:
    """Run a verb other than `run`, for which None is returned; return its exit code."""
    options = load("cli.parser:parse")(before, command)
    if options.version:
        load("cli.version:print_versions")(environ)
        return 0
    if options.verb == "run":
        return None
    run = load(f"cli.{VERBS[options.verb].module}:run")
    return run(environ, options) or 0


def _report_failure(code: int, *lines: str) -> int:
    """Print an error within a time limit, since stderr may block; return the code."""

    def report() -> bool:
        with suppress(OSError):
            redactor = redactor_for(os.environ, None)
            print(*map(redactor.clean, lines), sep="\n", file=sys.stderr, flush=True)
            return True
        return False

    finish_all()  # earlier log lines come first
    if not run_within(times.FLUSH, report):  # a normal exit would block on stderr, or end with 120
        exit_now(code)
    parent.send_exit_code(code)  # a slow disk may block one of our threads
    return code
