"""`pod-agent plan`: print what `run` would do, in short, in full or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.cli.options import JSON, flag
from agent.cli.printing import print_json, terminal_of
from agent.plan.show import render, summary, to_json
from agent.run.framework_answer import refused_by_framework
from agent.run.make_ready import with_taken_ports
from agent.run.plan_input import plan_from_environment, with_checkpoints
from agent.run.read_caches import with_archive_size
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

OPTIONS = (
    JSON,
    flag("-v --verbose", "print every command, environment, port and wait"),
    flag("--check", "ask the framework, too; exit with the code that `run` would be refused with"),
)


def run(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    """Print the plan; return 0, or with `--check` 78 if the run would be refused."""
    plan = with_taken_ports(plan_from_environment(environ, options.command))
    plan = with_checkpoints(with_archive_size(plan))
    if options.check and not plan.failed():
        refusal = refused_by_framework(plan)
        plan = replace(plan, findings=(*plan.findings, *filter(None, (refusal,))))
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    if options.json:
        print_json(to_json(plan), redactor.clean)
    elif options.verbose:
        print(render(plan, redactor))
    else:
        print(terminal_of(environ).render(summary(plan), redactor.clean))
    return ends.REFUSED.exit_code if options.check and plan.failed() else 0
