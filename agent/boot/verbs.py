"""The verbs of the command line, `run` apart: their arguments, and what each prints.

`run` loads none of this: its parser alone takes 10 ms.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent import __version__
from agent.boot import recipe_verb
from agent.boot.plan_input import examine_machine, plan_from_environment
from agent.checks.finding import Level
from agent.control import verbs as of_the_head
from agent.node.pythons import find_ray
from agent.plan.plan import log_root
from agent.plan.show import finding_line, render
from agent.record.explain import explain
from agent.settings import load
from agent.settings.jobs import BY_NAME
from agent.settings.load import text_table
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TAKE_A_COMMAND = ("run", "plan")


def main(environ: Mapping[str, str], before: list[str], command: list[str] | None) -> int | None:
    """Run one verb; return its exit code, None for `run`.

    `before` are the arguments before `--`, `command` those after it.
    """
    options = _parse(environ, before, command)
    options.command = command
    return None if options.verb == "run" else int(_VERBS[options.verb](environ, options))


def _parse(
    environ: Mapping[str, str], before: list[str], command: list[str] | None
) -> argparse.Namespace:
    """Parse verb and flags; suggest the verb that was probably meant."""
    parser, verbs = _parser(environ)
    given = next((word for word in before if not word.startswith("-")), None)
    if given is not None and given not in verbs:
        parser.error(_no_verb(given, verbs, [*before[before.index(given) :], *(command or ())]))
    options, unknown = parser.parse_known_args(before)
    if unknown:
        message = f"unrecognized arguments: {shlex.join(unknown)}"
        if options.verb in _TAKE_A_COMMAND and not unknown[0].startswith("-"):
            message += _how_to_run(options.verb, [*unknown, *(command or ())])
        parser.error(message)
    if command is not None and options.verb not in _TAKE_A_COMMAND:
        parser.error(f"{options.verb} takes no command after --")
    return options


def _no_verb(given: str, verbs: Sequence[str], words: list[str]) -> str:
    close = difflib.get_close_matches(given, verbs, n=1)
    if close:
        return f"no verb {given!r}: did you mean {close[0]!r}?"
    return f"no verb {given!r} ({', '.join(verbs)}){_how_to_run('run', words)}"


def _how_to_run(verb: str, words: list[str]) -> str:
    return f"; a job's command goes after --: pod-agent {verb} -- {shlex.join(words)}"


def _parser(environ: Mapping[str, str]) -> tuple[argparse.ArgumentParser, tuple[str, ...]]:
    """Return the parser and its verbs."""

    class Version(argparse.Action):
        """Prints the versions, which are read only on request."""

        def __call__(self, *_ignored: object) -> None:
            _print_versions(environ)
            raise SystemExit(0)

    parser = argparse.ArgumentParser(
        prog="pod-agent",
        description="Turn this pod and the other pods of its run into one RL training job. "
        "What to do comes from the environment: see `pod-agent env`.",
        epilog="A job's command goes after --: pod-agent run -- python train.py",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=Version, nargs=0, help="versions of agent, Python and Ray"
    )
    parser.set_defaults(verb="run")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    add = partial(_add_verb, verbs)
    add("run", "boot this node, run the job, end with its exit code (default)")
    add("plan", "print what run would do, and touch nothing")
    doctor = add("doctor", "check this machine and its settings")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument(
        "--all", action="store_true", help="every node of a running cluster, by its head"
    )
    status = add("status", "show the state of the run, from the head's agent")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument("--watch", action="store_true", help="update until the run ends")
    status.add_argument(
        "--live", action="store_true", help="check only whether this node's agent is up: 0 or 69"
    )
    add(
        "stop",
        "stop the run as SIGTERM on the head does, and wait until it has ended",
    )
    explain = add("explain", "summarize a run in ten lines: what took long, why it ended")
    explain.add_argument(
        "folder",
        metavar="RUN FOLDER",
        nargs="?",
        help="a run's, or a node's in it; default: the last",
    )
    logs = add("logs", "print a log of any node, through the head's agent")
    logs.add_argument(
        "words",
        metavar="NODE LOG",
        nargs="*",
        help="a node's name (default: the head), and agent, ray, job or a service (default: the "
        "job; of a worker, the agent)",
    )
    logs.add_argument("--follow", action="store_true", help="follow the log as it grows")
    add("env", "list all environment variables with their current values")
    add("recipes", "list the recipes, one a line")
    recipe = add("recipe", "print the command that a recipe would submit, and why")
    recipe.add_argument("name", metavar="NAME", choices=tuple(BY_NAME), help="see `recipes`")
    number, numbers = recipe_verb.whole_number, recipe_verb.whole_numbers
    recipe.add_argument(
        "--nodes", type=number, required=True, metavar="N", help="how many would join"
    )
    recipe.add_argument(
        "--gpus", type=numbers, required=True, metavar="G", help="of each: 8, or 8,8,4"
    )
    recipe.add_argument(
        "--cpus", type=number, metavar="C", help="of each; left out: enough of them"
    )
    recipe.add_argument(
        "--framework-version", metavar="V", help="default: the one installed here, else the newest"
    )
    recipe.add_argument("--json", action="store_true", help="print JSON")
    verbs.add_parser("reward-server", help="the bundled reward server (--help for its flags)")
    verbs.add_parser("rehearsal", help="the bundled GPU-free GRPO job (--help for its flags)")
    return parser, tuple(verbs.choices)


def _add_verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=about, description=about, allow_abbrev=False)
    parser.set_defaults(verb=name)
    return parser


def _print_versions(environ: Mapping[str, str]) -> None:
    ray = find_ray(environ.get("PATH"))
    where = "" if ray.executable == sys.executable else f" ({ray.executable})"
    found = f"Ray {ray.version or 'not installed'}"
    print(f"pod-agent {__version__}, Python {ray.python}{where}, {found}")


def _plan(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    plan = plan_from_environment(environ, options.command)
    print(render(plan, redactor_for(environ, plan.settings, plan.services_file_texts)))
    return 0


def _doctor(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    if options.all:
        return of_the_head.show_findings(environ, _log_root(environ), as_json=options.json)
    findings = examine_machine(environ)
    failed = any(finding.level is Level.FAIL for finding in findings)
    if options.json:
        rows = [
            {"check": f.check, "level": f.level.value, "what": f.what, "remedy": f.remedy}
            for f in findings
        ]
        print(json.dumps({"ok": not failed, "findings": rows}, indent=2))
    else:
        print("\n".join(finding_line(finding) for finding in findings))
    return 78 if failed else 0


def _status(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    if options.live:
        return of_the_head.check_live(environ)
    if not options.watch:
        return of_the_head.print_status(environ, as_json=options.json)
    return of_the_head.watch_status(environ, _log_root(environ), as_json=options.json)


def _stop(environ: Mapping[str, str], _options: argparse.Namespace) -> int:
    return of_the_head.stop(environ, _log_root(environ))


def _explain(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    folder = options.folder or _log_root(environ) / "latest"
    _print_clean(environ, "\n".join(explain(Path(folder))))
    return 0


def _logs(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    if len(options.words) > 2:
        print("pod-agent logs: error: at most a node and a log", file=sys.stderr)
        return 2
    root = _log_root(environ)
    return of_the_head.show_logs(environ, root, options.words, follow=options.follow)


def _env(environ: Mapping[str, str], _options: argparse.Namespace) -> int:
    _print_clean(environ, text_table(load(environ), environ))
    return 0


def _recipes(_environ: Mapping[str, str], _options: argparse.Namespace) -> int:
    print("\n".join(recipe_verb.rows()))
    return 0


def _recipe(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    try:
        nodes = recipe_verb.node_sizes(options.nodes, options.gpus, options.cpus)
    except argparse.ArgumentTypeError as error:
        print(f"pod-agent recipe: error: {error}", file=sys.stderr)
        return 2
    command, warning = recipe_verb.show(environ, options.name, nodes, options.framework_version)
    if warning:
        print(f"pod-agent: {warning}", file=sys.stderr)
    render_command = recipe_verb.to_json if options.json else recipe_verb.to_text
    _print_clean(environ, render_command(command))
    return 0


_VERBS: dict[str, Callable[[Mapping[str, str], argparse.Namespace], int]] = {
    "plan": _plan,
    "doctor": _doctor,
    "status": _status,
    "stop": _stop,
    "explain": _explain,
    "logs": _logs,
    "env": _env,
    "recipes": _recipes,
    "recipe": _recipe,
}


def _log_root(environ: Mapping[str, str]) -> Path:
    return log_root(load(environ).settings)


def _print_clean(environ: Mapping[str, str], text: str) -> None:
    print(redactor_for(environ, None).clean(text))
