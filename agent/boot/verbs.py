"""The verbs of the command line, `run` apart: their arguments, and what each prints.

`run` loads none of this: its parser alone takes 10 ms.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from agent import __version__
from agent.base.text import NO_TERMINAL, Line, Terminal
from agent.boot import init
from agent.boot.command_line import CommandLine, completion_for
from agent.boot.plan_input import examine_machine, plan_from_environment
from agent.boot.recipe_verb import (
    command_json,
    command_text,
    node_sizes,
    recipe_command,
    recipe_lines,
    recipe_rows,
)
from agent.checks import misspelling_findings
from agent.checks.finding import Level, passed_lines, problem_lines
from agent.checks.machine import found_on
from agent.control import verbs as of_the_head
from agent.control.log_filter import LogFilter
from agent.node import pythons
from agent.plan.plan import log_root
from agent.plan.show import render, summary, to_json
from agent.record.explain import explain
from agent.settings import load
from agent.settings.load import env_lines, env_rows
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def main(environ: Mapping[str, str], before: list[str], command: list[str] | None) -> int | None:
    """Run one verb; return its exit code, None for `run`.

    `before` are the arguments before `--`, `command` those after it.
    """
    options = CommandLine(partial(_print_versions, environ)).parse(before, command)
    options.command = command
    return None if options.verb == "run" else int(_VERBS[options.verb](environ, options))


def _print_versions(environ: Mapping[str, str]) -> None:
    ray = pythons.find_ray(environ.get("PATH"))
    where = "" if ray.executable == sys.executable else f" ({ray.executable})"
    found = f"Ray {ray.version or 'not installed'}"
    print(f"pod-agent {__version__}, Python {ray.python}{where}, {found}")


def _plan(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    plan = plan_from_environment(environ, options.command)
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    if options.json:
        print(json.dumps(_all_clean(to_json(plan), redactor.clean), indent=2))
    elif options.verbose:
        print(render(plan, redactor))
    else:
        print(_terminal(environ).render(summary(plan), redactor.clean))
    return 0


def _doctor(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    terminal = _terminal(environ)
    if options.all:
        return of_the_head.show_findings(
            environ, _log_root(environ), terminal, as_json=options.json, verbose=options.verbose
        )
    facts, findings = examine_machine(environ)
    failed = any(finding.level is Level.FAIL for finding in findings)
    clean = redactor_for(environ, None).clean
    if options.json:
        found = [{"what": what, "is": value} for what, value in found_on(facts)]
        data = {"ok": not failed, "findings": to_builtins(findings), "found": found}
        print(json.dumps(_all_clean(data, clean), indent=2))
    else:
        lines = [*problem_lines(findings), *passed_lines(findings, verbose=options.verbose)]
        lines.append(
            Line("found: ", "; ".join(f"{what} {value}" for what, value in found_on(facts)))
        )
        print(terminal.render(lines, clean))
    return 78 if failed else 0


def _all_clean(data: Any, clean: Callable[[str], str]) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON data with the secrets of every text masked."""
    if isinstance(data, dict):
        return {name: _all_clean(one, clean) for name, one in data.items()}
    if isinstance(data, list | tuple):
        return [_all_clean(one, clean) for one in data]
    return clean(data) if isinstance(data, str) else data


def _status(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    if options.live:
        return of_the_head.check_live(environ)
    root, terminal = _log_root(environ), _terminal(environ)
    return of_the_head.show_status(
        environ, root, terminal, as_json=options.json, watch=options.watch
    )


def _explain(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    folder = options.folder or _log_root(environ)
    lines = (Line("", line) for line in explain(Path(folder)))
    print(_terminal(environ).render(lines, redactor_for(environ, None).clean))
    return 0


def _logs(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    if len(options.words) > 2:
        print("pod-agent logs: error: at most a node and a log", file=sys.stderr)
        return 2
    root = _log_root(environ)
    chosen = LogFilter(options.n, options.grep, options.since)
    return of_the_head.show_logs(environ, root, options.words, chosen, follow=options.follow)


def _recipe(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    try:
        nodes = node_sizes(options.nodes, options.gpus, options.cpus, options.gpu_memory)
    except argparse.ArgumentTypeError as error:
        print(f"pod-agent recipe: error: {error}", file=sys.stderr)
        return 2
    made, warning = recipe_command(
        environ, options.name, nodes, options.framework_version, options.model_size
    )
    for text in (*filter(None, (warning,)), *made.warnings):
        print(f"pod-agent: {text}", file=sys.stderr)
    return _print_clean(environ, command_json(made) if options.json else command_text(made))


def _env(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    loaded = load(environ)
    clean = redactor_for(environ, loaded.settings).clean
    rows = [*env_rows(loaded, environ)]
    if options.json:
        print(json.dumps(_all_clean(rows, clean), indent=2))
        return 0
    warnings = problem_lines(misspelling_findings(loaded.misspelled))
    print(_terminal(environ).render([*warnings, *env_lines(rows)], clean))
    return 0


def _recipes(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps([*recipe_rows()], indent=2))
    else:
        terminal = _terminal(environ)
        print(terminal.render(recipe_lines(grouped=terminal.width is not None), str))
    return 0


def _completion(_environ: Mapping[str, str], options: argparse.Namespace) -> int:
    print(completion_for(options.shell, CommandLine(lambda: None)))
    return 0


_VERBS: dict[str, Callable[[Mapping[str, str], argparse.Namespace], int]] = {
    "plan": _plan,
    "doctor": _doctor,
    "status": _status,
    "stop": lambda environ, _: of_the_head.stop(environ, _log_root(environ)),
    "explain": _explain,
    "logs": _logs,
    "env": _env,
    "init": lambda _, options: init.run(options),
    "recipes": _recipes,
    "recipe": _recipe,
    "completion": _completion,
}


def _terminal(environ: Mapping[str, str]) -> Terminal:
    """Return the terminal of stdout, if it is one."""
    if not sys.stdout.isatty():
        return NO_TERMINAL
    return Terminal.of(environ, shutil.get_terminal_size().columns)


def _log_root(environ: Mapping[str, str]) -> Path:
    return log_root(load(environ).settings)


def _print_clean(environ: Mapping[str, str], text: str) -> int:
    print(redactor_for(environ, None).clean(text))
    return 0
