"""`pod-agent plan`: print what `run` would do, in short, in full or as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.checks import NAMES
from agent.checks.finding import Finding, Level
from agent.checks.job_needs import PLACEHOLDERS, SCRIPT
from agent.cli.options import JSON, flag
from agent.cli.printing import print_json, terminal_of
from agent.plan.show import render, summary, to_json
from agent.run.framework_answer import refused_by_framework
from agent.run.make_ready import with_own_address, with_taken_ports
from agent.run.plan_input import plan_from_environment, with_checkpoints
from agent.run.read_caches import with_archive_size
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from agent.plan.plan import Plan

OPTIONS = (
    JSON,
    flag("-v --verbose", "print every command, environment, port and wait"),
    flag("--check", "ask the framework and DNS, too; exit with 78 if `run` would be refused here"),
)

_OF_THE_JOB = {NAMES, SCRIPT, PLACEHOLDERS}
"""Checks whose findings are true on every machine."""


def run(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    """Print the plan; return 0, or with `--check` 78 if the run would be refused."""
    plan = with_taken_ports(plan_from_environment(environ, options.command))
    plan = with_checkpoints(with_archive_size(plan))
    if sys.platform != "linux":
        plan = _seen_from(sys.platform, plan)
    if options.check:
        plan = _checked(plan)

    # In which form is it printed?
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    if options.json:
        print_json(to_json(plan), redactor.clean)
    elif options.verbose:
        print(render(plan, redactor))
    else:
        print(terminal_of(environ).render(summary(plan), redactor.clean))

    return ends.REFUSED.exit_code if options.check and plan.failed() else 0


def _checked(plan: Plan) -> Plan:
    """Add what takes a question to DNS and to the framework, which is asked last."""
    if sys.platform == "linux":
        plan = with_own_address(plan)
    if plan.failed():
        return plan
    refusal = refused_by_framework(plan)
    if refusal is None:
        return plan
    return replace(plan, findings=(*plan.findings, refusal))


def _seen_from(system: str, plan: Plan) -> Plan:
    """Leave out the findings about this machine: a run starts on others."""
    what = (
        f"this is {system}, and a run needs Linux: sizes are of this machine, checks are left out"
    )
    notice = Finding("system", Level.WARN, what, "Run `pod-agent doctor` on a node")
    of_the_job = [finding for finding in plan.findings if finding.check in _OF_THE_JOB]
    return replace(plan, findings=(notice, *of_the_job))
