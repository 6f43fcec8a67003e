"""`pod-agent doctor`: the checks of this machine, or with `--all` of every node of a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec import to_builtins

from agent.base.text import NO_TERMINAL, Line, escaped, first_names
from agent.checks.finding import ORDER, Level, passed_lines, problem_lines, toned_line
from agent.checks.machine import found_on
from agent.cli.options import JSON, flag
from agent.cli.printing import print_json, terminal_of
from agent.cli.running_head import require_head
from agent.port.status_model import FindingsStatus
from agent.run.plan_input import examine_machine
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from agent.base.text import Terminal

OPTIONS = (
    JSON,
    flag("-v --verbose", "print checks that pass, too"),
    flag("--all", "every node of a running cluster, by its head"),
)
_REFUSED = 78


def run(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    """Print findings; return 0, or 78 where a check fails."""
    terminal = terminal_of(environ)
    if options.all:
        return show_findings(environ, terminal, as_json=options.json, verbose=options.verbose)

    facts, findings = examine_machine(environ)
    failed = any(finding.level is Level.FAIL for finding in findings)
    machine = found_on(facts)
    clean = redactor_for(environ, None).clean

    if options.json:
        rows = [{"what": what, "is": value} for what, value in machine]
        print_json({"ok": not failed, "findings": to_builtins(findings), "found": rows}, clean)
    else:
        lines = problem_lines(findings, verbose=options.verbose)
        if not options.verbose:
            lines += passed_lines(findings)
        lines.append(Line("found: ", "; ".join(f"{what} {value}" for what, value in machine)))
        print(terminal.render(lines, clean))
    return _REFUSED if failed else 0


def show_findings(
    environ: Mapping[str, str],
    terminal: Terminal = NO_TERMINAL,
    *,
    as_json: bool,
    verbose: bool = False,
) -> int:
    """Print all nodes' findings, which the head has; return 0, or 78 where a check fails."""
    known = require_head(environ).ask("/findings", FindingsStatus, clean=escaped)

    # Which findings are there, and of which nodes? The worst come first.
    count = len(known.nodes)
    findings = [(finding, "between nodes") for finding in known.between]
    findings += [(finding, _names_of(finding.nodes, count)) for finding in known.findings]
    findings.sort(key=lambda pair: ORDER.index(pair[0].level))
    failed = any(finding.level is Level.FAIL for finding, _ in findings)

    lines = [
        toned_line(finding, f" [{nodes}]")
        for finding, nodes in findings
        if verbose or finding.level is not Level.OK
    ]
    lines += [
        Line("     ", f"nothing is known about {name}: no agent runs there")
        for name in known.unknown
    ]
    if not verbose:
        lines += passed_lines(finding for finding, _ in findings)

    if as_json:
        print(json.dumps({"ok": not failed, **to_builtins(known)}, indent=2))
    else:
        print(terminal.render(lines, str))
    return _REFUSED if failed else 0


def _names_of(nodes: tuple[str, ...], count: int) -> str:
    return "all nodes" if len(nodes) == count > 1 else first_names(nodes)
