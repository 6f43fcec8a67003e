"""The command line: runs a verb, and reports errors."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from agent import load
from agent.base import times
from agent.base.errors import AgentError, SettingsError
from agent.record.background import finish_all, run_within
from agent.record.log import say
from agent.runtime import parent
from agent.runtime.signals import exit_now, make_streams_safe
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code."""
    make_streams_safe()
    arguments = list(sys.argv[1:] if argv is None else argv)
    before, command = _split(arguments)
    try:
        if before == ["run"] or not arguments:  # the default of a pod, without the cost of a parser
            code = None
        else:
            code = load("boot.verbs:main")(dict(os.environ), before, command)
        if code is None:
            code = _run(command)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except SettingsError as error:
        return _report_failure(error.exit_code, partial(_print_settings_error, error))
    except AgentError as error:
        sentence = _clean(f"pod-agent: {error.sentence()}")
        return _report_failure(error.exit_code, partial(print, sentence, file=sys.stderr))
    return code


def _report_failure(code: int, print_error: Callable[[], None]) -> int:
    """Print an error within a time limit, since stderr may block; return the code."""
    printed = False

    def report() -> None:
        nonlocal printed
        with suppress(OSError):
            print_error()
            sys.stderr.flush()
            printed = True

    finish_all()  # earlier log lines come first
    run_within(times.FLUSH, report)
    if not printed:  # a normal exit would block on stderr, or end with 120
        exit_now(code)
    parent.send_exit_code(code)  # a slow disk may block one of our threads
    return code


def _split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Split our arguments from the job's command at `--`."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _run(command: list[str] | None) -> int:
    """Boot this node, and exit with the outcome's code."""
    outcome = load("boot.run:run_safely")(dict(os.environ), command)
    say(outcome.sentence(), "info" if outcome.exit_code == 0 else "error")
    exit_now(outcome.exit_code)
    return int(outcome.exit_code)


def _print_settings_error(error: SettingsError) -> None:
    print("pod-agent: the settings are wrong, nothing was started:", file=sys.stderr)
    for problem in error.problems:
        print(_clean(f"  {problem.sentence()}"), file=sys.stderr)
    for hint in error.hints:
        print(_clean(f"  {hint}"), file=sys.stderr)
    count = len(error.problems)
    print(
        f"refused: {count} problem{'s' if count > 1 else ''} in the settings (exit code 78). "
        f"{error.remedy}",
        file=sys.stderr,
    )


def _clean(text: str) -> str:
    return redactor_for(os.environ, None).clean(text)
