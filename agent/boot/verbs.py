"""The verbs of the command line, `run` apart: their arguments, and what each prints.

`run` loads none of this: its parser alone takes 10 ms.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shlex
import shutil
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace

from agent import __version__
from agent.base.errors import PreflightError, Problem, SettingsError
from agent.base.terminal import NO_TERMINAL, Line, Terminal
from agent.boot import init
from agent.boot.plan_input import examine_machine, plan_from_environment, read_shape
from agent.checks.finding import Level, passed_lines, problem_lines
from agent.checks.found import found_on
from agent.control import verbs as of_the_head
from agent.control.log_filter import LogFilter, time_since
from agent.node import pythons
from agent.node.data_columns import columns_of
from agent.plan.make import checkpoint_folder
from agent.plan.plan import log_root
from agent.plan.show import render
from agent.plan.summary import summary, to_json
from agent.record.explain import explain
from agent.settings import load
from agent.settings.jobs import BY_NAME, JOBS
from agent.settings.load import text_table
from agent.settings.redact import redactor_for
from agent.work.job import command_of, recipe_input, version_of
from agent.work.recipes import recipe_of
from agent.work.recipes.model_shape import ModelShape
from agent.work.recipes.recipe import (
    ChosenVersion,
    Command,
    JobBasis,
    MisfitError,
    NodeSize,
    UnknownVersionError,
    choose,
    version_list,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent.settings.jobs import KnownJob

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

    def add(name: str, about: str, *, json: bool = False) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=about, description=about, allow_abbrev=False)
        made.set_defaults(verb=name)
        if json:
            made.add_argument("--json", action="store_true", help="print JSON")
        return made

    add("run", "boot this node, run the job, end with its exit code (default)")
    plan = add("plan", "print what run would do, and touch nothing", json=True)
    all_of_it = "print every command, environment, port and wait"
    plan.add_argument("-v", "--verbose", action="store_true", help=all_of_it)
    doctor = add("doctor", "check this machine and its settings", json=True)
    doctor.add_argument("-v", "--verbose", action="store_true", help="print checks that pass, too")
    every_node = "every node of a running cluster, by its head"
    doctor.add_argument("--all", action="store_true", help=every_node)
    status = add("status", "show the state of the run, from the head's agent", json=True)
    status.add_argument("--watch", action="store_true", help="update until the run ends")
    is_up = "check only whether this node's agent is up: 0 or 69"
    status.add_argument("--live", action="store_true", help=is_up)
    add("stop", "stop the run as SIGTERM on the head does, and wait until it has ended")
    explain = add("explain", "summarize a run in ten lines: what took long, why it ended")
    folder = "a run's, a node's in it, or one above runs: the newest; default: AGENT_LOG_DIR"
    explain.add_argument("folder", metavar="FOLDER", nargs="?", help=folder)
    logs = add("logs", "print a log of any node, through the head's agent")
    words = (
        "a node's name (default: the head), and agent, ray, job or a service (default: the "
        "job; of a worker, the agent)"
    )
    logs.add_argument("words", metavar="NODE LOG", nargs="*", help=words)
    logs.add_argument("-f", "--follow", action="store_true", help="follow the log as it grows")
    logs.add_argument("-n", type=whole_number, metavar="N", help="only the last N lines")
    logs.add_argument("--grep", type=pattern, metavar="RE", help="only lines that match")
    since = "only lines since then: 10m, or 2026-11-23T10:52Z"
    logs.add_argument("--since", type=since_time, metavar="T", help=since)
    add("env", "list all environment variables with their current values")
    init.add_arguments(add("init", "write the file that starts a run on a platform"))
    add("recipes", "list the recipes, one a line")
    recipe = add("recipe", "print the command that a recipe would submit, and why", json=True)
    recipe.add_argument("name", metavar="NAME", choices=tuple(BY_NAME), help="see `recipes`")
    for flag, kind, metavar, about in (
        ("--nodes", whole_number, "N", "how many would join"),
        ("--gpus", whole_numbers, "G", "of each: 8, or 8,8,4"),
        ("--cpus", whole_number, "C", "of each; left out: enough of them"),
        ("--gpu-memory", gigabytes, "GB", "of each GPU; left out: 80 is assumed"),
        ("--model-size", model_size, "B", "of the model, such as 7B; left out: AGENT_MODEL's"),
        ("--framework-version", str, "V", "default: the one installed here, else the newest"),
    ):
        is_needed = flag in {"--nodes", "--gpus"}
        recipe.add_argument(flag, type=kind, required=is_needed, metavar=metavar, help=about)
    verbs.add_parser("reward-server", help="the bundled reward server (--help for its flags)")
    verbs.add_parser("rehearsal", help="the bundled GPU-free GRPO job (--help for its flags)")
    return parser, tuple(verbs.choices)


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
    if not options.watch:
        return of_the_head.print_status(environ, _log_root(environ), as_json=options.json)
    return of_the_head.watch_status(environ, _log_root(environ), as_json=options.json)


def _explain(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    folder = options.folder or _log_root(environ)
    return _print_clean(environ, "\n".join(explain(Path(folder))))


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


_VERBS: dict[str, Callable[[Mapping[str, str], argparse.Namespace], int]] = {
    "plan": _plan,
    "doctor": _doctor,
    "status": _status,
    "stop": lambda environ, _: of_the_head.stop(environ, _log_root(environ)),
    "explain": _explain,
    "logs": _logs,
    "env": lambda environ, _: _print_clean(environ, text_table(load(environ), environ)),
    "init": lambda _, options: init.run(options),
    "recipes": lambda environ, _: _print_clean(environ, "\n".join(recipe_lines())),
    "recipe": _recipe,
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


_PYTHON = "python3"
"""First word of the printed command, valid on any machine."""
_LARGEST = 100_000
_MOST_GPU_MEMORY = 10_000


def command_json(made: Command) -> str:
    """Return a command as JSON."""
    return json.dumps({"argv": made.argv, "env": {**made.env}, "why": {**made.why}}, indent=2)


def command_text(made: Command) -> str:
    """Return a command, which can be pasted after `--`, and the reason for each argument."""
    lines = [" \\\n    ".join(shlex.join(words) for words in split_lines(made.argv))]
    lines += [f"# in the environment: {name}={text}" for name, text in made.env.items()]
    lines += [f"# {find_argument(made.argv, key)}: {reason}" for key, reason in made.why.items()]
    return "\n".join([*lines, *(f"# {note}" for note in made.notes)])


def recipe_lines() -> Iterator[str]:
    """Yield a line for each recipe: name, framework, needs, reward server, launcher."""
    for known in JOBS:
        recipe = recipe_of(known)
        versions = f" {version_list(recipe.VERSIONS)}" if recipe.VERSIONS else ""
        needs = ", ".join(known.needs) or "nothing"
        yield (
            f"{known.name:<16} {known.framework or 'no framework'}{versions}; needs {needs}; "
            f"reward server {known.reward}; by {known.launcher}; {recipe.ABOUT}"
        )


def recipe_command(
    environ: Mapping[str, str],
    name: str,
    nodes: tuple[NodeSize, ...],
    version: str | None,
    model: ModelShape | None = None,
) -> tuple[Command, str]:
    """Return a recipe's command for some nodes, and a warning or ''."""
    known = BY_NAME[name]
    settings = load({**environ, "AGENT_JOB": name}).settings
    chosen = _version(known, version, environ.get("PATH"))
    folder = checkpoint_folder(settings, None)
    given = recipe_input(known, settings, chosen.version, folder, _PYTHON, nodes)
    asked = replace(
        given,
        columns=columns_of(settings.train_data or ""),
        basis=JobBasis(model or read_shape(settings.model, environ)),
    )
    try:
        made = command_of(known, asked)
    except MisfitError as error:
        raise PreflightError(
            f"{known.name} does not fit", why=str(error), culprit="AGENT_JOB"
        ) from None
    if known.launcher == "torchrun":
        made = replace(made, notes=(*made.notes, "after -- it wants AGENT_LAUNCHER=torchrun"))
    return made, f"{known.framework} {chosen.warning}" if chosen.warning else ""


def node_sizes(
    count: int, gpus: Sequence[int], cpus: int | None, gpu_memory: int | None = None
) -> tuple[NodeSize, ...]:
    """Return the size of each node; one number of GPUs applies to all."""
    if not count:
        raise argparse.ArgumentTypeError("--nodes must be at least 1")
    each = [*gpus] * count if len(gpus) == 1 else gpus
    if len(each) != count:
        raise argparse.ArgumentTypeError(f"--gpus names {len(gpus)} nodes, and --nodes {count}")
    return tuple(NodeSize(one, cpus, gpu_memory=gpu_memory) for one in each)


def whole_number(text: str) -> int:
    """Parse --nodes or --cpus."""
    word = text.strip()
    if not (word.isascii() and word.isdigit() and len(word) < 9 and int(word) <= _LARGEST):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {_LARGEST}")
    return int(word)


def pattern(text: str) -> re.Pattern[str]:
    """Parse --grep."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def since_time(text: str) -> datetime:
    """Parse --since."""
    try:
        return time_since(text, datetime.now(timezone.utc))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def gigabytes(text: str) -> int:
    """Parse --gpu-memory, with or without GB."""
    number = whole_number(text.strip().upper().removesuffix("GB"))
    if not 0 < number <= _MOST_GPU_MEMORY:
        raise argparse.ArgumentTypeError(f"{text!r} is no memory of a GPU in GB, such as 80")
    return number


def model_size(text: str) -> ModelShape:
    """Parse --model-size."""
    found = ModelShape.from_name(text.strip(), "--model-size")
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 7B or 30B-A3B")
    return found


def whole_numbers(text: str) -> list[int]:
    """Parse --gpus."""
    return [whole_number(word) for word in text.split(",")]


def _version(known: KnownJob, text: str | None, path: str | None) -> ChosenVersion:
    """Choose the given version, or else the installed one."""
    versions = recipe_of(known).VERSIONS
    if not versions:
        ignored = f"has no versions: {text} changes nothing" if text is not None else ""
        return ChosenVersion((), ignored)
    try:
        return choose(versions, text) if text is not None else _installed(known, path)
    except UnknownVersionError as error:
        expected = f"one of {version_list(versions)}, or a later patch of one"
        raise SettingsError((Problem("--framework-version", str(error), expected),)) from None


def _installed(known: KnownJob, path: str | None) -> ChosenVersion:
    found = pythons.find_framework(known.framework, pythons.find_ray(path).executable, ".")
    return version_of(known, found)


def split_lines(argv: tuple[str, ...]) -> list[list[str]]:
    """Split a command into lines: the program, then each argument."""
    lines: list[list[str]] = [[]]
    flags = False
    for word in argv:
        begins = word.startswith("--") or ("=" in word and lines[-1][-1:] != ["-m"])
        if begins and (word.startswith("--") or not flags):
            flags = word.startswith("--")
            lines.append([])
        lines[-1].append(word)
    return lines


def find_argument(argv: tuple[str, ...], key: str) -> str:
    """Return an argument of the command by its flag or key."""
    for at, word in enumerate(argv):
        if word.lstrip("+~").startswith(f"{key}="):
            return word
        if word.lstrip("-") == key.lstrip("-"):
            value = argv[at + 1 : at + 2]
            return word if not value or value[0].startswith("--") else f"{word} {value[0]}"
    return key
