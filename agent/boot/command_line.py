"""The verbs and options of the command line, and what was meant by a mistyped one."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from agent.boot import init
from agent.boot.recipe_verb import (
    gigabytes,
    model_size,
    recipe_name,
    whole_number,
    whole_numbers,
)
from agent.control.log_filter import time_since

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
        self._add_verbs_of_a_node()
        self._add_verbs_of_a_run()
        self._add_tables()

    def _add(self, name: str, about: str, *, json: bool = False, epilog: str = "") -> VerbParser:
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
        self.verbs[name], self.about[name] = made, about
        return made

    def _add_verbs_of_a_node(self) -> None:
        about = "boot this node, run the job, end with its exit code (default)"
        run = self._add("run", about, epilog=_OF_RUN)
        run.usage = "pod-agent run [-h] [-- CMD ARG...]"
        plan = self._add("plan", "print what run would do, and touch nothing", json=True)
        all_of_it = "print every command, environment, port and wait"
        plan.add_argument("-v", "--verbose", action="store_true", help=all_of_it)
        doctor = self._add("doctor", "check this machine and its settings", json=True)
        passed = "print checks that pass, too"
        doctor.add_argument("-v", "--verbose", action="store_true", help=passed)
        every_node = "every node of a running cluster, by its head"
        doctor.add_argument("--all", action="store_true", help=every_node)

    def _add_verbs_of_a_run(self) -> None:
        status = self._add("status", "show the state of the run, from the head's agent", json=True)
        status.add_argument("--watch", action="store_true", help="update until the run ends")
        is_up = "check only whether this node's agent is up: 0 or 69"
        status.add_argument("--live", action="store_true", help=is_up)
        logs = self._add("logs", "print a log of any node, through the head's agent")
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
        explain = self._add("explain", "summarize a run in ten lines: what took long, why it ended")
        folder = "a run's, a node's in it, or one above runs: the newest; default: AGENT_LOG_DIR"
        explain.add_argument("folder", metavar="FOLDER", nargs="?", help=folder)
        self._add("stop", "stop the run as SIGTERM on the head does, and wait until it has ended")

    def _add_tables(self) -> None:
        about = "list all environment variables with their current values"
        self._add("env", about, json=True)
        init.add_arguments(self._add("init", "write the file that starts a run on a platform"))
        self._add("recipes", "list the recipes, one a line", json=True)
        about = "print the command that a recipe would submit, and why"
        recipe = self._add("recipe", about, json=True)
        recipe.add_argument("name", metavar="NAME", type=recipe_name, help="see `recipes`")
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
        completion = self._add("completion", "print the completion for a shell")
        completion.epilog = 'bash and zsh: eval "$(pod-agent completion bash)"'
        completion.add_argument("shell", metavar="SHELL", type=shell, help=", ".join(SHELLS))
        for name, what in (
            ("reward-server", "the bundled reward server"),
            ("rehearsal", "the bundled GPU-free GRPO job"),
        ):
            self._add(name, f"{what} (--help for its flags)")

    def parse(self, before: list[str], command: list[str] | None) -> argparse.Namespace:
        """Parse verb and options; an error shows the verb's usage and what was probably meant."""
        given = next((word for word in before if not word.startswith("-")), None)
        if given is not None and given not in self.verbs:
            words = [*before[before.index(given) :], *(command or ())]
            self.parser.error(self._no_verb(given, words))
        options, unknown = self.parser.parse_known_args(before)
        verb = self.verbs.get(options.verb if given else "", self.parser)
        if unknown:
            self._refuse(verb, options.verb, unknown, command)
        if command is not None and options.verb not in _TAKE_A_COMMAND:
            verb.error(f"{options.verb} takes no command after --")
        return options

    def _no_verb(self, given: str, words: list[str]) -> str:
        meant = meant_by(given, self.verbs)
        if meant:
            return f"no verb {given!r}: did you mean {meant!r}?"
        return f"no verb {given!r} ({', '.join(self.verbs)}){_how_to_run('run', words)}"

    def _refuse(
        self, verb: VerbParser, name: str, unknown: list[str], command: list[str] | None
    ) -> NoReturn:
        message = f"unrecognized arguments: {shlex.join(unknown)}"
        meant = [meant_by(word.partition("=")[0], verb.flags) for word in unknown]
        if any(meant):
            message += f": did you mean {' '.join(filter(None, meant))}?"
        elif name in _TAKE_A_COMMAND and not unknown[0].startswith("-"):
            message += _how_to_run(name, [*unknown, *(command or ())])
        verb.error(message)


def meant_by(given: str, known: Iterable[str]) -> str:
    """Return the known word that a mistyped one resembles, or ''."""
    return next(iter(difflib.get_close_matches(given, [*known], n=1)), "")


def _how_to_run(verb: str, words: Sequence[str]) -> str:
    return f"; a job's command goes after --: pod-agent {verb} -- {shlex.join(words)}"


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
