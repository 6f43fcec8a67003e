"""The verbs and options of the command line, and what was meant by a mistyped one."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from agent.boot import init
from agent.boot.init import PLATFORMS
from agent.boot.recipe_verb import (
    gigabytes,
    model_size,
    one_of,
    whole_number,
    whole_numbers,
)
from agent.control.log_filter import time_since
from agent.settings.jobs import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SHELLS = ("bash", "zsh", "fish")
_TAKE_A_COMMAND = ("run", "plan")
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


_Argument = tuple[str, dict[str, Any]]
"""The names of an argument of a verb, and its options for argparse."""


def _flag(names: str, about: str) -> _Argument:
    return names, {"action": "store_true", "help": about}


def _option(
    name: str, read: Callable[[str], object], metavar: str, about: str, *, required: bool = False
) -> _Argument:
    needed = {"required": True} if required else {}
    return name, {"type": read, "metavar": metavar, "help": about, **needed}


class VerbParser(argparse.ArgumentParser):
    """A parser that remembers its options, for suggestions and completion."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - as argparse has it
        self.flags: dict[str, str] = {}
        """The help of each option by its name."""
        super().__init__(**{**options, "allow_abbrev": False})

    def add_argument(self, *names: Any, **about: Any) -> argparse.Action:  # noqa: ANN401 - same
        """Add an argument."""
        options = [name for name in names if str(name).startswith("-")]
        self.flags |= {name: str(about.get("help", "")) for name in options}
        return super().add_argument(*names, **about)


class CommandLine:
    """The parser of all verbs."""

    def __init__(self, print_versions: Callable[[], None]) -> None:
        class Version(argparse.Action):
            """Prints the versions, which are read only on request."""

            def __call__(self, *_ignored: object) -> None:
                print_versions()
                raise SystemExit(0)

        self.parser = VerbParser(
            prog="pod-agent",
            description="Turn this pod and the other pods of its run into one RL training job. "
            "What to do comes from the environment: see `pod-agent env`.",
            epilog="A job's command goes after --: pod-agent run -- python train.py",
        )
        about = "versions of agent, Python and Ray"
        self.parser.add_argument("--version", action=Version, nargs=0, help=about)
        self.parser.set_defaults(verb="run")
        self._subparsers = self.parser.add_subparsers(dest="verb", metavar="VERB")
        self.verbs: dict[str, VerbParser] = {}
        self.about: dict[str, str] = {}
        self._add_verbs()

    def _add(
        self, name: str, about: str, *arguments: _Argument, json: bool = False, epilog: str = ""
    ) -> VerbParser:
        made = self._subparsers.add_parser(
            name,
            help=about,
            description=about,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(verb=name)
        if json:
            made.add_argument("--json", action="store_true", help="print JSON")
        for names, options in arguments:
            made.add_argument(*names.split(), **options)
        self.verbs[name], self.about[name] = made, about
        return made

    def _add_verbs(self) -> None:
        about = "boot this node, run the job, end with its exit code (default)"
        run = self._add("run", about, epilog=_OF_RUN)
        run.usage = "pod-agent run [-h] [-- CMD ARG...]"
        verbose = _flag("-v --verbose", "print every command, environment, port and wait")
        self._add("plan", "print what run would do, and touch nothing", verbose, json=True)
        self._add(
            *("doctor", "check this machine and its settings"),
            _flag("-v --verbose", "print checks that pass, too"),
            _flag("--all", "every node of a running cluster, by its head"),
            json=True,
        )
        self._add(
            *("status", "show the state of the run, from the head's agent"),
            _flag("--watch", "update until the run ends"),
            _flag("--live", "check only whether this node's agent is up: 0 or 69"),
            json=True,
        )
        words = (
            "a node's name (default: the head), and agent, ray, job or a service (default: the "
            "job; of a worker, the agent)"
        )
        since = "only lines since then: 10m, or 2026-11-23T10:52Z"
        self._add(
            *("logs", "print a log of any node, through the head's agent"),
            ("words", {"metavar": "NODE LOG", "nargs": "*", "help": words}),
            _flag("-f --follow", "follow the log as it grows"),
            _option("-n", whole_number, "N", "only the last N lines"),
            _option("--grep", pattern, "RE", "only lines that match"),
            _option("--since", since_time, "T", since),
        )
        folder = "a run's, a node's in it, or one above runs: the newest; default: AGENT_LOG_DIR"
        self._add(
            *("explain", "summarize a run in ten lines: what took long, why it ended"),
            ("folder", {"metavar": "FOLDER", "nargs": "?", "help": folder}),
        )
        self._add("stop", "stop the run as SIGTERM on the head does, and wait until it has ended")
        self._add("env", "list all environment variables with their current values", json=True)
        init.add_arguments(self._add("init", "write the file that starts a run on a platform"))
        self._add("recipes", "list the recipes, one a line", json=True)
        version = "default: the one installed here, else the newest"
        self._add(
            *("recipe", "print the command that a recipe would submit, and why"),
            _option("name", one_of("recipe", BY_NAME), "NAME", "see `recipes`"),
            _option("--nodes", whole_number, "N", "how many would join", required=True),
            _option("--gpus", whole_numbers, "G", "of each: 8, or 8,8,4", required=True),
            _option("--cpus", whole_number, "C", "of each; left out: enough of them"),
            _option("--gpu-memory", gigabytes, "GB", "of each GPU; left out: 80 is assumed"),
            _option(
                *("--model-size", model_size, "B"),
                "of the model, such as 7B; left out: AGENT_MODEL's",
            ),
            _option("--framework-version", str, "V", version),
            json=True,
        )
        self._add(
            *("completion", "print the completion for a shell"),
            _option("shell", shell, "SHELL", ", ".join(SHELLS)),
            epilog='bash and zsh: eval "$(pod-agent completion bash)"',
        )
        self._add("reward-server", "the bundled reward server (--help for its flags)")
        self._add("rehearsal", "the bundled GPU-free GRPO job (--help for its flags)")

    def parse(self, before: list[str], command: list[str] | None) -> argparse.Namespace:
        """Parse verb and options; an error shows the verb's usage and what was probably meant."""

        def how_to_run(verb: str, words: Sequence[str]) -> str:
            line = shlex.join([*words, *(command or ())])
            return f"; a job's command goes after --: pod-agent {verb} -- {line}"

        given = next((word for word in before if not word.startswith("-")), None)
        if given is not None and given not in self.verbs:
            meant = meant_by(given, self.verbs)
            if meant:
                self.parser.error(f"no verb {given!r}: did you mean {meant!r}?")
            known = f"no verb {given!r} ({', '.join(self.verbs)})"
            self.parser.error(f"{known}{how_to_run('run', before[before.index(given) :])}")
        options, unknown = self.parser.parse_known_args(before)
        verb = self.verbs.get(options.verb if given else "", self.parser)
        takes_a_command = options.verb in _TAKE_A_COMMAND
        if unknown:
            flags = [meant_by(word.partition("=")[0], verb.flags) for word in unknown]
            hint = ""
            if any(flags):
                hint = f": did you mean {' '.join(filter(None, flags))}?"
            elif takes_a_command and not unknown[0].startswith("-"):
                hint = how_to_run(options.verb, unknown)
            verb.error(f"unrecognized arguments: {shlex.join(unknown)}{hint}")
        if command is not None and not takes_a_command:
            verb.error(f"{options.verb} takes no command after --")
        return options


def meant_by(given: str, known: Iterable[str]) -> str:
    """Return the known word that a mistyped one resembles, or ''."""
    return next(iter(difflib.get_close_matches(given, [*known], n=1)), "")


def shell(text: str) -> str:
    """Parse the name of a shell."""
    if text not in SHELLS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(SHELLS)}")
    return text


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


# --- completion ----------------------------------------------------------------------------------

_WORDS = {
    "recipe": tuple(BY_NAME),
    "logs": ("head", "agent", "ray", "job"),
    "completion": SHELLS,
    "init": (*PLATFORMS, *BY_NAME),
    "run": ("--",),
}
"""What a verb takes besides its options."""


def completion_for(shell: str, line: CommandLine) -> str:
    """Return the script that a shell evaluates, made from the parser."""
    if shell == "fish":
        return "\n".join(_fish_lines(line))
    return _bash(line) if shell == "bash" else _zsh(line)


def _cases(line: CommandLine) -> Iterator[tuple[str, str]]:
    """Yield what may follow each verb; '' for the verb itself."""
    yield "''", " ".join([*line.verbs, *line.parser.flags])
    for verb, parser in line.verbs.items():
        yield verb, " ".join([*_WORDS.get(verb, ()), *parser.flags])


def _bash(line: CommandLine) -> str:
    cases = "\n".join(f"        {verb}) words='{words}' ;;" for verb, words in _cases(line))
    return f"""\
_pod_agent() {{
    local verb='' word words=''
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in
        --) return ;;
        -*) ;;
        *) verb=$word; break ;;
        esac
    done
    case $verb in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _pod_agent pod-agent"""


def _zsh(line: CommandLine) -> str:
    cases = "\n".join(f"    {verb}) compadd -- {words} ;;" for verb, words in _cases(line))
    return f"""\
#compdef pod-agent
_pod_agent() {{
    local verb='' word
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case $word in
        --) _files; return ;;
        -*) ;;
        *) verb=$word; break ;;
        esac
    done
    case $verb in
{cases}
    esac
    _files
}}
compdef _pod_agent pod-agent"""


def _fish_lines(line: CommandLine) -> Iterator[str]:
    first = "complete -c pod-agent -n __fish_use_subcommand"
    for verb, about in line.about.items():
        yield f"{first} -f -a {verb} -d {shlex.quote(about)}"
    yield f"{first} -l version"
    for verb, parser in line.verbs.items():
        within = f"complete -c pod-agent -n '__fish_seen_subcommand_from {verb}'"
        for flag, about in parser.flags.items():
            kind = "-l" if flag.startswith("--") else "-s"
            text = f" -d {shlex.quote(about)}" if about and "==" not in about else ""
            yield f"{within} {kind} {flag.lstrip('-')}{text}"
        words = " ".join(word for word in _WORDS.get(verb, ()) if word != "--")
        if words:
            yield f"{within} -a '{words}'"
