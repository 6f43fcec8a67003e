"""The command line on a Mac or Windows: the verbs that need neither Linux nor Ray.

A run needs Linux: its processes, signals, locks and Ray. The file that starts a run is written on a
laptop, and the run is looked at from there. `stand_ins.py` has what the modules of a run name.
"""

from __future__ import annotations

import os
import sys

from agent import load
from agent.base.errors import AgentError
from agent.cli.failures import failure_lines
from agent.cli.parser import parse
from agent.cli.verbs import VERBS
from agent.settings.redact import redactor_for

WRONG_SYSTEM = 78


def main() -> int:
    """Run one verb; return its exit code."""
    arguments = sys.argv[1:]
    before, command = arguments, None
    if "--" in arguments:
        at = arguments.index("--")
        before, command = arguments[:at], arguments[at + 1 :]
    first = next((word for word in before if not word.startswith("-")), "")
    is_run = not arguments or (not first and command is not None)
    if is_run or (first in VERBS and not VERBS[first].works_anywhere):
        return _refuse(first or "run")

    load("cli.stand_ins:install")()
    options = parse(before, command)
    if options.version:
        load("cli.version:print_versions")(os.environ)
        return 0
    verb = VERBS[options.verb]
    try:
        return load(f"cli.{verb.module}:run")(dict(os.environ), options) or 0
    except KeyboardInterrupt:
        return 130
    except AgentError as error:
        redactor = redactor_for(os.environ, None)
        print(*map(redactor.clean, failure_lines(error)), sep="\n", file=sys.stderr)
        return error.end.exit_code


def _refuse(verb: str) -> int:
    works = ", ".join(name for name, verb in VERBS.items() if verb.works_anywhere)
    print(
        f"pod-agent: `{verb}` needs Linux, and this is {sys.platform}. Here work: {works}."
        " Use `init` to write the file that starts a run on your platform"
        f" (exit code {WRONG_SYSTEM}).",
        file=sys.stderr,
    )
    return WRONG_SYSTEM
