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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from agent import __version__
from agent.base.text import NO_TERMINAL, Line, Terminal, map_texts
from agent.checks import misspelling_findings
from agent.checks.finding import Level, passed_lines, problem_lines
from agent.checks.machine import found_on
from agent.cli import init, recipes
from agent.cli import remote as of_the_head
from agent.cli.init import PLATFORMS
from agent.frameworks.recipe import ModelShape
from agent.node.read import find_ray
from agent.plan.plan import log_root
from agent.plan.show import render, summary, to_json
from agent.port.log_filter import LogFilter, time_since
from agent.record.summary import explain
from agent.run.make_ready import with_taken_ports
from agent.run.plan_input import examine_machine, plan_from_environment
from agent.settings import load
from agent.settings.jobs import BY_NAME
from agent.settings.load import env_lines, env_rows, read_settings
from agent.settings.redact import redactor_for
from agent.settings.values import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Option = tuple[Sequence[str], dict[str, Any]]  # names and arguments of `add_argument`


SHELLS = ("bash", "zsh", "fish")
_TAKE_A_COMMAND = ("run", "plan")
_AFTER_DASHES = "A job's command goes after --: pod-agent run -- python train.py"
_OF_RUN = """\
variables (`pod-agent env` lists all):
  AGENT_JOB            a recipe, or `none`: start the cluster and no job
  AGENT_MODEL          the recipe's model; AGENT_TRAIN_DATA its data
  HEAD_POD_ID          RunPod: the id of the head pod, the same on every pod
  AGENT_HEAD           elsewhere, without a platform: the head's address
  EXPECTED_WORKERS     workers that the head waits for
  RAY_AUTH_TOKEN       the cluster's secret, the same on every node

placeholders in the command, filled in when all nodes have joined:
  {nodes} {gpus_per_node} {total_gpus} {head_ip} {reward_url} {log_dir} {attempt} {checkpoints}

examples:
  AGENT_JOB=verl-grpo AGENT_MODEL=Qwen/Qwen2.5-7B AGENT_TRAIN_DATA=/data/train.parquet pod-agent
  pod-agent run -- python3 train.py --nodes {nodes} --gpus {gpus_per_node}
  AGENT_JOB=none EXPECTED_WORKERS=2 pod-agent run
"""


def _meant_by(given: str, known: Iterable[str]) -> str:
    """Return the known word that a mistyped one resembles, or ''."""
    return next(iter(difflib.get_close_matches(given, [*known], n=1)), "")


def name_among(what: str, known: Iterable[str]) -> Callable[[str], str]:
    """Return the reader of a name that must be known."""

    def read(text: str) -> str:
        if text in known:
            return text
        meant = _meant_by(text, known)
        hint = f"did you mean {meant}?" if meant else f"known are {', '.join(known)}"
        raise ValueError(f"no {what} {text!r}: {hint}")

    return read


def whole_number(text: str) -> int:
    """Read a number of nodes, processors or lines."""
    return whole(0, 100_000, f"{text!r} is no whole number")(text)


def whole_numbers(text: str) -> list[int]:
    """Read the GPUs of each node."""
    return [whole_number(word) for word in text.split(",")]


def gigabytes(text: str) -> int:
    """Read the memory of a GPU or a node, with or without GB."""
    return whole_number(text.strip().upper().removesuffix("GB"))


def model_size(text: str) -> ModelShape:
    """Read the size of a model."""
    found = ModelShape.from_name(text.strip(), "--model-size")
    if found is None:
        raise ValueError(f"{text!r} is no size such as 7B or 30B-A3B")
    return found


def _flag(names: str, about: str) -> Option:
    return names.split(), {"action": "store_true", "help": about}


def _value(
    name: str, metavar: str | None, about: str, read: Callable[[str], object] = str, **more: object
) -> Option:
    def parse(text: str) -> object:
        try:
            return read(text)
        except (ValueError, re.error) as error:  # argparse shows the text of this one alone
            raise argparse.ArgumentTypeError(str(error)) from None

    return [name], {"type": parse, "metavar": metavar, "help": about, **more}


_JSON = _flag("--json", "print JSON")
_RECIPE = name_among("recipe", BY_NAME)
_PLATFORM = name_among("platform", PLATFORMS)
_CONTAINERS = PLATFORMS["slurm"].variants
_KINDS = (*PLATFORMS["kubernetes"].variants, *PLATFORMS["runpod"].variants)
_ABOUT = {
    "run": "boot this node, run the job, end with its exit code (default)",
    "plan": "print what run would do, and touch nothing",
    "doctor": "check this machine and its settings",
    "status": "show the state of the run, from the head's agent",
    "logs": "print a log of any node, through the head's agent",
    "explain": "summarize a run in ten lines: what took long, why it ended",
    "stop": "stop the run as SIGTERM on the head does, and wait until it has ended",
    "env": "list all environment variables with their current values",
    "init": "write the file that starts a run on a platform",
    "recipes": "list the recipes, one a line",
    "recipe": "print the command that a recipe would submit, and why",
    "completion": "print the completion for a shell",
    "reward-server": "the bundled reward server (--help for its flags)",
    "retriever": "a stand-in for Search-R1's retriever (--help for its flags)",
    "rehearsal": "the bundled GPU-free GRPO job (--help for its flags)",
}
_OPTIONS: dict[str, Sequence[Option]] = {
    "plan": (_JSON, _flag("-v --verbose", "print every command, environment, port and wait")),
    "doctor": (
        _JSON,
        _flag("-v --verbose", "print checks that pass, too"),
        _flag("--all", "every node of a running cluster, by its head"),
    ),
    "status": (
        _JSON,
        _flag("--watch", "update until the run ends"),
        _flag("--live", "check only whether this node's agent is up: 0 or 69"),
    ),
    "logs": (
        _value("node", "NODE", "default: the head", nargs="?"),
        _value("log", "LOG", "agent, ray, job or a service", nargs="?"),
        _flag("-f --follow", "follow the log as it grows"),
        _value("-n", "N", "only the last N lines", whole_number),
        _value("--grep", "RE", "only lines that match", re.compile),
        _value("--since", "T", "only lines since then: 10m, or 2026-11-23T10:52Z", time_since),
    ),
    "explain": (
        _value("folder", "FOLDER", "a run's, or one above runs; default: AGENT_LOG_DIR", nargs="?"),
    ),
    "env": (_JSON,),
    "init": (
        _value("platform", "PLATFORM", ", ".join(PLATFORMS), _PLATFORM, nargs="?"),
        _value("recipe", "RECIPE", "see `recipes`", _RECIPE, nargs="?"),
        _value("--nodes", "N", "nodes, the head among them", whole_number),
        _value("--gpus", "G", "GPUs of each node", whole_number),
        _value("--container", None, "Slurm: what the job runs in", choices=_CONTAINERS),
        _value("--kind", "KIND", f"Kubernetes and RunPod: {', '.join(_KINDS)}", choices=_KINDS),
        _value("--volume", "ID", "RunPod: network volume that has the one file"),
        _value("--image", "IMAGE", "another image than the recipe's usual one"),
        _value("--agent", "PATH", "where the one file is; default: usual place", default=""),
        _value("--agent-url", "URL", "nodes fetch the one file from there", default=""),
        _value("--sha256", "DIGEST", "its digest, with --agent-url", default=""),
        _value("--to", "FOLDER", "where to write; default: here", Path, default=Path()),
        _flag("--force", "overwrite files that exist"),
    ),
    "recipes": (_JSON,),
    "recipe": (
        _JSON,
        _value("name", "NAME", "see `recipes`", _RECIPE),
        _value("--nodes", "N", "how many would join", whole_number, required=True),
        _value("--gpus", "G", "of each: 8, or 8,8,4", whole_numbers, required=True),
        _value("--cpus", "C", "of each; left out: enough of them", whole_number),
        _value("--gpu-memory", "GB", "of each GPU; left out: 80 is assumed", gigabytes),
        _value("--host-memory", "GB", "of each node; left out: 128 a GPU are assumed", gigabytes),
        _value("--model-size", "B", "such as 7B; left out: AGENT_MODEL's", model_size),
        _value("--framework-version", "V", "default: the one installed here, else the newest"),
    ),
    "completion": (_value("shell", "SHELL", ", ".join(SHELLS), name_among("shell", SHELLS)),),
}
_EPILOGS = {"run": _OF_RUN, "completion": 'bash and zsh: eval "$(pod-agent completion bash)"'}


def parse(before: list[str], command: list[str] | None) -> argparse.Namespace:
    """Parse verb and options; an error shows the verb's usage and what was probably meant."""
    parser = argparse.ArgumentParser(
        prog="pod-agent",
        description="Turn this pod and the other pods of its run into one RL training job. "
        "What to do comes from the environment: see `pod-agent env`.",
        epilog=_AFTER_DASHES,
        allow_abbrev=False,
    )
    about = "versions of agent, Python and Ray"
    parser.add_argument("--version", action="store_true", help=about)
    parser.set_defaults(verb="run")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB")
    verbs: dict[str, argparse.ArgumentParser] = {}
    for name, about in _ABOUT.items():
        verbs[name] = verb = subparsers.add_parser(
            name,
            help=about,
            description=about,
            epilog=_EPILOGS.get(name, ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        verb.set_defaults(verb=name)
        for names, settings in _OPTIONS.get(name, ()):
            verb.add_argument(*names, **settings)
    verbs["run"].usage = "pod-agent run [-h] [-- CMD ARG...]"

    given = next((word for word in before if not word.startswith("-")), None)
    if given is not None and given not in verbs:
        meant = _meant_by(given, verbs)
        known = f"known are {', '.join(verbs)}. {_AFTER_DASHES}"
        parser.error(f"no verb {given!r}: {f'did you mean {meant!r}?' if meant else known}")
    options, unknown = parser.parse_known_args(before)
    verb = verbs[options.verb] if given else parser
    takes_a_command = options.verb in _TAKE_A_COMMAND
    if unknown:
        known_flags = flags_of(options.verb) if given else ["--version"]
        flags = [_meant_by(word.partition("=")[0], known_flags) for word in unknown]
        hint = ""
        if any(flags):
            hint = f": did you mean {' '.join(filter(None, flags))}?"
        elif takes_a_command:
            hint = f". {_AFTER_DASHES}"
        verb.error(f"unrecognized arguments: {shlex.join(unknown)}{hint}")
    if command is not None and not takes_a_command:
        verb.error(f"{options.verb} takes no command after --")
    return options


def flags_of(verb: str) -> list[str]:
    """Return the flags of a verb."""
    names = (name for names, _ in _OPTIONS.get(verb, ()) for name in names)
    return [*(name for name in names if name.startswith("-")), "--help"]


# --- completion ----------------------------------------------------------------------------------

_WORDS = {
    "recipe": tuple(BY_NAME),
    "logs": ("head", "agent", "ray", "job"),
    "completion": SHELLS,
    "init": (*PLATFORMS, *BY_NAME),
}
"""What a verb takes besides its options."""


_BASH = """\
_pod_agent() {
    local verb='' word words=''
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case $word in
        --) return ;;
        -*) ;;
        *) verb=$word; break ;;
        esac
    done
    case $verb in
CASES
    esac
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _pod_agent pod-agent"""


def completion_for(shell: str) -> str:
    """Return the script that a shell evaluates, made from the tables of verbs and options."""
    words = {verb: [*_WORDS.get(verb, ()), *flags_of(verb)] for verb in _ABOUT}
    if shell == "fish":
        return "\n".join(_fish_lines(words))
    words["''"] = [*_ABOUT, "--version", "--help"]
    cases = (f"    {verb}) words='{' '.join(follow)}' ;;" for verb, follow in words.items())
    script = _BASH.replace("CASES", "\n".join(cases))
    return f"autoload -Uz bashcompinit && bashcompinit\n{script}" if shell == "zsh" else script


def _fish_lines(words: Mapping[str, list[str]]) -> Iterator[str]:
    first = "complete -c pod-agent -n __fish_use_subcommand"
    yield f"{first} -l version"
    for verb, about in _ABOUT.items():
        yield f"{first} -f -a {verb} -d {shlex.quote(about)}"
        for word in words[verb]:
            kind = "-l" if word.startswith("--") else "-s" if word.startswith("-") else "-a"
            within = f"complete -c pod-agent -n '__fish_seen_subcommand_from {verb}'"
            yield f"{within} {kind} {word.lstrip('-')}"


def main(environ: Mapping[str, str], before: list[str], command: list[str] | None) -> int | None:
    """Run one verb; return its exit code, None for `run`. `command` follows `--`."""
    options = parse(before, command)
    options.command = command
    if options.version:
        ray = find_ray(environ.get("PATH"))
        where = "" if ray.executable == sys.executable else f" ({ray.executable})"
        found = f"Ray {ray.version or 'not installed'}"
        print(f"pod-agent {__version__}, Python {ray.python}{where}, {found}")
        return 0
    return None if options.verb == "run" else _VERBS[options.verb](environ, options) or 0


def _plan(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    plan = with_taken_ports(plan_from_environment(environ, options.command))
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    if options.json:
        _print_json(to_json(plan), redactor.clean)
    elif options.verbose:
        print(render(plan, redactor))
    else:
        print(_terminal(environ).render(summary(plan), redactor.clean))


def _doctor(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    terminal = _terminal(environ)
    verbose = options.verbose
    if options.all:
        return of_the_head.show_findings(environ, terminal, as_json=options.json, verbose=verbose)
    facts, findings = examine_machine(environ)
    failed = any(finding.level is Level.FAIL for finding in findings)
    clean = redactor_for(environ, None).clean
    found = found_on(facts)
    if options.json:
        rows = [{"what": what, "is": value} for what, value in found]
        _print_json({"ok": not failed, "findings": to_builtins(findings), "found": rows}, clean)
    else:
        lines = problem_lines(findings, verbose=verbose)
        lines += [] if verbose else passed_lines(findings)
        lines.append(Line("found: ", "; ".join(f"{what} {value}" for what, value in found)))
        print(terminal.render(lines, clean))
    return 78 if failed else 0


def _print_json(data: Any, clean: Callable[[str], str]) -> None:  # noqa: ANN401 - any JSON
    """Print JSON data with the secrets of every text masked."""
    print(json.dumps(map_texts(data, clean), indent=2))


def _status(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    if options.live:
        of_the_head.check_live(environ)
    else:
        about = (environ, _terminal(environ))
        of_the_head.show_status(*about, as_json=options.json, watch=options.watch)


def _logs(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    words = [word for word in (options.node, options.log) if word is not None]
    chosen = LogFilter(options.n, options.grep, options.since)
    of_the_head.show_logs(environ, words, chosen, follow=options.follow)


def _recipe(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    try:
        nodes = recipes.node_sizes(
            options.nodes, options.gpus, options.cpus, options.gpu_memory, options.host_memory
        )
    except argparse.ArgumentTypeError as error:
        print(f"pod-agent recipe: error: {error}", file=sys.stderr)
        return 2
    made, warning = recipes.recipe_command(
        environ, options.name, nodes, options.framework_version, options.model_size
    )
    for text in (*filter(None, (warning,)), *made.warnings):
        print(f"pod-agent: {text}", file=sys.stderr)
    text = recipes.command_json(made) if options.json else recipes.command_text(made)
    print(redactor_for(environ, None).clean(text))
    return 0


def _recipes(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    if options.json:
        _print_json([*recipes.recipe_rows()], str)
    else:
        print(_terminal(environ).render(recipes.recipe_lines(), str))


def _explain(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    folder = options.folder or log_root(load(environ).settings)
    lines = (Line("", line) for line in explain(Path(folder)))
    print(_terminal(environ).render(lines, redactor_for(environ, None).clean))


def _env(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    loaded, problems = read_settings(environ)
    clean = redactor_for(environ, loaded.settings).clean
    rows = [*env_rows(loaded, environ)]
    if options.json:
        for problem in problems:
            print(f"pod-agent: {clean(problem.sentence())}", file=sys.stderr)
        _print_json(rows, clean)
    else:
        wrong = [Line("FAIL ", problem.sentence(), "bad") for problem in problems]
        warnings = problem_lines(misspelling_findings(loaded.misspelled))
        print(_terminal(environ).render([*wrong, *warnings, *env_lines(rows)], clean))


_VERBS: dict[str, Callable[[Mapping[str, str], argparse.Namespace], int | None]] = {
    "plan": _plan,
    "doctor": _doctor,
    "status": _status,
    "stop": lambda environ, _: of_the_head.stop(environ),
    "explain": _explain,
    "logs": _logs,
    "env": _env,
    "init": lambda _, options: init.run(options),
    "recipes": _recipes,
    "recipe": _recipe,
    "completion": lambda _, options: print(completion_for(options.shell)),
}


def _terminal(environ: Mapping[str, str]) -> Terminal:
    """Return the terminal of stdout, if it is one."""
    if not sys.stdout.isatty():
        return NO_TERMINAL
    return Terminal.of(environ, shutil.get_terminal_size().columns)
