"""`pod-agent env`: the table of all variables, with values and problems."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from agent.base.text import Line
from agent.checks import misspelling_findings
from agent.checks.finding import problem_lines
from agent.cli.options import JSON
from agent.cli.printing import print_json, terminal_of
from agent.settings.load import env_lines, env_rows, read_settings
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

OPTIONS = (JSON,)


def run(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    """Print the table, below the problems and warnings."""
    loaded, problems = read_settings(environ)
    clean = redactor_for(environ, loaded.settings).clean
    rows = [*env_rows(loaded, environ)]
    if options.json:
        for problem in problems:
            print(f"pod-agent: {clean(problem.sentence())}", file=sys.stderr)
        print_json(rows, clean)
        return
    wrong = [Line("FAIL ", problem.sentence(), "bad") for problem in problems]
    warnings = problem_lines(misspelling_findings(loaded.misspelled))
    print(terminal_of(environ).render([*wrong, *warnings, *env_lines(rows)], clean))
