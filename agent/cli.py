"""The command line: parses verbs, and reports errors."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent import __version__
from agent.base.errors import AgentError, SettingsError
from agent.boot import plan_input
from agent.record.background import FLUSH_LIMIT, finish_all
from agent.record.log import say
from agent.runtime import parent
from agent.runtime.signals import exit_now, make_streams_safe, run_within
from agent.settings import load
from agent.settings.jobs import BY_NAME
from agent.settings.load import text_table
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from agent.base.outcome import Outcome


_TAKE_A_COMMAND = ("run", "plan")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code."""
    make_streams_safe()
    arguments = list(sys.argv[1:] if argv is None else argv)
    before, command = _split(arguments)
    try:
        if before == ["run"] or not arguments:  # the default of a pod, without the cost of a parser
            code = _boot(command)
        else:
            options = _parse(before, command)
            code = options.act(options, command)
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
    run_within(FLUSH_LIMIT, report)
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


def _parse(before: list[str], command: list[str] | None) -> argparse.Namespace:
    """Parse verb and flags; suggest the verb that was probably meant."""
    parser, verbs = _parser()
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
    import difflib  # noqa: PLC0415 - only for a misspelled verb

    close = difflib.get_close_matches(given, verbs, n=1)
    if close:
        return f"no verb {given!r}: did you mean {close[0]!r}?"
    return f"no verb {given!r} ({', '.join(verbs)}){_how_to_run('run', words)}"


def _how_to_run(verb: str, words: list[str]) -> str:
    return f"; a job's command goes after --: pod-agent {verb} -- {shlex.join(words)}"


def _parser() -> tuple[argparse.ArgumentParser, tuple[str, ...]]:
    """Return the parser and its verbs."""
    import argparse  # noqa: PLC0415 - takes 10 ms, which `run` does not need

    class Version(argparse.Action):
        """Prints the versions, which are read only on request."""

        def __call__(self, *_ignored: object) -> None:
            _print_versions()
            raise SystemExit(0)

    parser = argparse.ArgumentParser(
        prog="pod-agent",
        description="Turn this pod and its fellows into one running RL training job. "
        "What to do comes from the environment: see `pod-agent env`.",
        epilog="A job of your own goes after --: pod-agent run -- python train.py",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=Version, nargs=0, help="versions of agent, Python and Ray"
    )
    parser.set_defaults(act=_run, verb="run")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    _verb(verbs, "run", _run, "boot this node, run the job, end with its exit code (default)")
    _verb(verbs, "plan", _plan, "print what run would do, and touch nothing")
    doctor = _verb(verbs, "doctor", _doctor, "check this machine and its settings")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument(
        "--all", action="store_true", help="every node of a running cluster, by its head"
    )
    status = _verb(verbs, "status", _status, "show the state of the run, from the head's agent")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument("--watch", action="store_true", help="update until the run ends")
    status.add_argument(
        "--live", action="store_true", help="check only whether this node's agent is up: 0 or 69"
    )
    _verb(
        verbs,
        "stop",
        _stop,
        "stop the run as SIGTERM on the head does, and wait until it has ended",
    )
    explain = _verb(
        verbs, "explain", _explain, "summarize a run in ten lines: what took long, why it ended"
    )
    explain.add_argument(
        "folder",
        metavar="RUN FOLDER",
        nargs="?",
        help="a run's, or a node's in it; default: the last",
    )
    logs = _verb(verbs, "logs", _logs, "print a log of any node, through the head's agent")
    logs.add_argument(
        "words",
        metavar="NODE LOG",
        nargs="*",
        help="a node's name (default: the head), and agent, ray, job or a service (default: the "
        "job; of a worker, the agent)",
    )
    logs.add_argument("--follow", action="store_true", help="follow the log as it grows")
    _verb(verbs, "env", _env, "list all environment variables with their current values")
    _verb(verbs, "recipes", _recipes, "list the recipes, one a line")
    recipe = _verb(
        verbs, "recipe", _recipe, "print the command that a recipe would submit, and why"
    )
    recipe.add_argument("name", metavar="NAME", choices=tuple(BY_NAME), help="see `recipes`")
    recipe.add_argument("--nodes", required=True, metavar="N", help="how many would join")
    recipe.add_argument("--gpus", required=True, metavar="G", help="of each: 8, or 8,8,4")
    recipe.add_argument("--cpus", metavar="C", help="of each; left out: enough of them")
    recipe.add_argument(
        "--framework-version", metavar="V", help="default: the one installed here, else the newest"
    )
    recipe.add_argument("--json", action="store_true", help="print JSON")
    verbs.add_parser("reward-server", help="the bundled reward server (--help for its flags)")
    verbs.add_parser("rehearsal", help="the bundled GPU-free GRPO job (--help for its flags)")
    return parser, tuple(verbs.choices)


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    act: Callable[[argparse.Namespace, list[str] | None], int],
    about: str,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=about, description=about, allow_abbrev=False)
    parser.set_defaults(act=act, verb=name)
    return parser


def _print_versions() -> None:
    from agent.node.pythons import find_ray  # noqa: PLC0415 - for --version only

    ray = find_ray(os.environ.get("PATH"))
    where = "" if ray.executable == sys.executable else f" ({ray.executable})"
    found = f"Ray {ray.version or 'not installed'}"
    print(f"pod-agent {__version__}, Python {ray.python}{where}, {found}")


def _run(_options: argparse.Namespace, command: list[str] | None) -> int:
    return _boot(command)


def _boot(command: list[str] | None) -> int:
    outcome = _run_safely(command)
    say(outcome.sentence(), "info" if outcome.exit_code == 0 else "error")
    exit_now(outcome.exit_code)
    return outcome.exit_code


def _run_safely(command: list[str] | None) -> Outcome:
    from agent.boot import run  # noqa: PLC0415 - the other verbs need no event loop

    try:
        return run.run(dict(os.environ), command)
    except AgentError:
        raise
    except Exception as failure:  # noqa: BLE001 - a bug before the run folder exists
        return run.bug(failure)


def _plan(_options: argparse.Namespace, command: list[str] | None) -> int:
    from agent.plan.show import render  # noqa: PLC0415 - one verb, one import

    environ = dict(os.environ)
    plan = plan_input.plan_from_environment(environ, command)
    print(render(plan, redactor_for(environ, plan.settings, plan.services_file_texts)))
    return 0


def _doctor(options: argparse.Namespace, _command: list[str] | None) -> int:
    from agent.checks.finding import Level  # noqa: PLC0415 - one verb, one import
    from agent.plan.show import finding_line  # noqa: PLC0415 - one verb, one import

    if options.all:
        from agent.control.verbs import show_findings  # noqa: PLC0415 - same
        from agent.plan.plan import log_root  # noqa: PLC0415 - same

        environ = dict(os.environ)
        return show_findings(environ, log_root(load(environ).settings), as_json=options.json)
    findings = plan_input.examine_machine(dict(os.environ))
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


def _status(options: argparse.Namespace, _command: list[str] | None) -> int:
    from agent.control import verbs  # noqa: PLC0415 - one verb, one import

    environ = dict(os.environ)
    if options.live:
        return verbs.check_live(environ)
    if not options.watch:
        return verbs.print_status(environ, as_json=options.json)
    from agent.plan.plan import log_root  # noqa: PLC0415 - same

    return verbs.watch_status(environ, log_root(load(environ).settings), as_json=options.json)


def _stop(_options: argparse.Namespace, _command: list[str] | None) -> int:
    from agent.control.verbs import stop  # noqa: PLC0415 - one verb, one import
    from agent.plan.plan import log_root  # noqa: PLC0415 - same

    environ = dict(os.environ)
    return stop(environ, log_root(load(environ).settings))


def _explain(options: argparse.Namespace, _command: list[str] | None) -> int:
    from agent.plan.plan import log_root  # noqa: PLC0415 - one verb, one import
    from agent.record.explain import explain  # noqa: PLC0415 - same

    folder = options.folder or log_root(load(dict(os.environ)).settings) / "latest"
    print(_clean("\n".join(explain(Path(folder)))))
    return 0


def _logs(options: argparse.Namespace, _command: list[str] | None) -> int:
    from agent.control.verbs import show_logs  # noqa: PLC0415 - one verb, one import
    from agent.plan.plan import log_root  # noqa: PLC0415 - same

    if len(options.words) > 2:
        print("pod-agent logs: error: at most a node and a log", file=sys.stderr)
        return 2
    environ = dict(os.environ)
    root = log_root(load(environ).settings)
    return show_logs(environ, root, options.words, follow=options.follow)


def _env(_options: argparse.Namespace, _command: list[str] | None) -> int:
    environ = dict(os.environ)
    print(_clean(text_table(load(environ), environ)))
    return 0


def _recipes(_options: argparse.Namespace, _command: list[str] | None) -> int:
    from agent.boot import recipe_verb  # noqa: PLC0415 - one verb, one import

    print("\n".join(recipe_verb.rows()))
    return 0


def _recipe(options: argparse.Namespace, _command: list[str] | None) -> int:
    from agent.boot import recipe_verb  # noqa: PLC0415 - one verb, one import

    sizes = (options.nodes, options.gpus, options.cpus)
    wanted = recipe_verb.RecipeQuery(options.name, *sizes, options.framework_version)
    try:
        shown = recipe_verb.show(dict(os.environ), wanted)
    except recipe_verb.UsageError as error:
        print(f"pod-agent recipe: error: {error}", file=sys.stderr)
        return 2
    for warning in shown.warnings:
        print(f"pod-agent: {warning}", file=sys.stderr)
    print(_clean(shown.to_json() if options.json else shown.to_text()))
    return 0


def _print_settings_error(error: SettingsError) -> None:
    print("pod-agent: the settings are wrong, nothing was started:", file=sys.stderr)
    for problem in error.problems:
        print(_clean(f"  {problem.sentence()}"), file=sys.stderr)
    for hint in error.hints:
        print(_clean(f"  perhaps: {hint}"), file=sys.stderr)
    count = len(error.problems)
    print(
        f"refused: {count} problem{'s' if count > 1 else ''} in the settings (exit code 78). "
        f"{error.remedy}",
        file=sys.stderr,
    )


def _clean(text: str) -> str:
    return redactor_for(os.environ, None).clean(text)
