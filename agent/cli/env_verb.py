"""`pod-agent env`: the variables that are set, then all others, and what is wrong with them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from agent.base.text import Line
from agent.checks import misspelling_findings
from agent.checks.finding import problem_lines
from agent.cli.options import JSON, flag
from agent.cli.printing import print_json, terminal_of
from agent.settings.load import env_lines, env_rows, read_settings
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

OPTIONS = (JSON, flag("--all", "also those that have their defaults"))


def run(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    """Print the variables, below the problems and warnings; wrong settings are no failure."""
    loaded, problems = read_settings(environ)
    clean = redactor_for(environ, loaded.settings).clean
    rows = [*env_rows(loaded, environ)]
    if options.json:
        for problem in problems:
            print(f"pod-agent: {clean(problem.sentence())}", file=sys.stderr)
        print_json([row.to_json() for row in rows], clean)
        return
    wrong = [Line("FAIL ", problem.sentence(), "bad") for problem in problems]
    warnings = problem_lines(misspelling_findings(loaded.misspelled))
    lines = [*wrong, *warnings, *env_lines(rows, has_all=options.all)]
    print(terminal_of(environ).render(lines, clean))
