"""The command line: runs a verb, and reports errors."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from agent import load
from agent.base import times
from agent.base.errors import AgentError, SettingsError
from agent.processes import parent
from agent.processes.signals import exit_now, make_streams_safe
from agent.record.background import finish_all, run_within
from agent.record.log import say
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code."""
    make_streams_safe()
    arguments = list(sys.argv[1:] if argv is None else argv)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    before = arguments[:at]
    command = arguments[at + 1 :] if at < len(arguments) else None
    code = None
    try:
        # a pod's default goes without the cost of a parser
        if arguments and before != ["run"]:
            code = load("cli.local:main")(dict(os.environ), before, command)
        if code is None:
            outcome = load("run.main:run_safely")(dict(os.environ), command)
            say(outcome.sentence(), "info" if outcome.exit_code == 0 else "error")
            code = outcome.exit_code
            exit_now(code)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except SettingsError as error:
        return _report_failure(
            error.end.exit_code,
            "pod-agent: the settings are wrong, nothing was started:",
            *(f"  {problem.sentence()}" for problem in error.problems),
            *(f"  {hint}" for hint in error.hints),
            f"refused: {len(error.problems)} problem(s) (exit code 78). {error.remedy}",
        )
    except AgentError as error:
        return _report_failure(error.end.exit_code, f"pod-agent: {error.sentence()}")
    return int(code)


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
