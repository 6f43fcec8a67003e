"""The parser of the command line: verbs, options, and hints for what was mistyped.

`run` without options goes without it: it takes 10 ms. Only the module of the given verb is loaded.
"""

from __future__ import annotations

import argparse
import re
import shlex
from typing import TYPE_CHECKING, NoReturn

from agent import load
from agent.base.arguments import VerbParser
from agent.cli.options import closest
from agent.cli.verbs import VERBS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.cli.options import Option

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")
_AFTER_DASHES = "A job's command goes after --: pod-agent {verb} -- python train.py"
_RUN_EPILOG = """\
variables (`pod-agent env` lists all):
  AGENT_JOB            a recipe, or `none`: start the cluster and no job
  AGENT_MODEL          the recipe's model; AGENT_TRAIN_DATA its data
  HEAD_POD_ID          RunPod: the id of the head pod, the same on every pod
  AGENT_HEAD           elsewhere, without a platform: the head's address
  EXPECTED_WORKERS     workers that the head waits for
  RAY_AUTH_TOKEN       the cluster's secret, the same on every node

placeholders in the command, filled in when all nodes have joined:
  {nodes} {gpus_per_node} {total_gpus} {head_ip} {reward_url} {log_dir} {attempt} {checkpoints}
  with a number: {nodes-1} {total_gpus/2}

examples:
  AGENT_JOB=verl-grpo AGENT_MODEL=Qwen/Qwen2.5-7B AGENT_TRAIN_DATA=/data/train.parquet pod-agent
  pod-agent run -- python3 train.py --nodes {nodes} --gpus {gpus_per_node}
  AGENT_JOB=none EXPECTED_WORKERS=2 pod-agent run
"""
_WARM_EPILOG = """\
A job's command goes after --, as for run: the versions in its Python decide which compile
caches this node gets. It is not started.
"""
_EPILOGS = {
    "run": _RUN_EPILOG,
    "warm": _WARM_EPILOG,
    "completion": 'bash and zsh: eval "$(pod-agent completion bash)"',
}


def options_of(verb: str) -> Sequence[Option]:
    """Return the options of a verb, from its module."""
    module = VERBS[verb].module
    options: Sequence[Option] = load(f"cli.{module}:OPTIONS") if module else ()
    return options


def flags_of(verb: str) -> list[str]:
    """Return the flags of a verb."""
    names = (name for names, _ in options_of(verb) for name in names)
    return [*(name for name in names if name.startswith("-")), "--help"]


def parse(before: list[str], command: list[str] | None) -> argparse.Namespace:
    """Parse verb and options; an error names what was probably meant.

    `command` is what follows `--`, None without it.
    """
    given = next((word for word in before if not word.startswith("-")), None)
    parser, verb_parsers = _parsers(given)

    # Is an option of a verb before it? Its value would be taken for the verb.
    misplaced = before[0] if before and before[0].startswith("-") else ""
    if given is not None and misplaced not in {"", "--version", "--help", "-h"}:
        parser.error(f"{misplaced} stands before the verb: pod-agent VERB {misplaced}")

    # Is the verb known?
    if given is not None and given not in verb_parsers:
        meant = closest(given, [*verb_parsers, "--help", "--version"])
        hint = f"known are {', '.join(verb_parsers)}. {_AFTER_DASHES.format(verb='run')}"
        if meant:
            hint = f"did you mean {meant!r}?"
        parser.error(f"no verb {given!r}: {hint}")

    # Are its options? The value of an unknown one would be taken for an argument.
    verb_parser = parser if given is None else verb_parsers[given]
    if given is not None:
        flags = flags_of(given)
        unknown = [
            word for word in before if word.startswith("--") and word.partition("=")[0] not in flags
        ]
        if unknown:
            _refuse_unknown(verb_parser, given, unknown, has_verb=True)
    if given is None or misplaced:
        options, unknown = parser.parse_known_args(before)
    else:  # arguments and options in any order: init dstack --nodes 2 verl-grpo
        options = argparse.Namespace(version=False)
        options, unknown = verb_parser.parse_known_intermixed_args(before[1:], options)
    options.command = command
    if unknown:
        _refuse_unknown(verb_parser, options.verb, unknown, has_verb=given is not None)

    # Does it take a command?
    if command is not None and given is None:
        parser.error("a command after -- needs a verb: pod-agent run -- CMD")
    if command is not None and not VERBS[options.verb].takes_command:
        verb_parser.error(f"{options.verb} takes no command after --")
    return options


def _parsers(
    given: str | None,
) -> tuple[VerbParser, dict[str, VerbParser]]:
    """Return the parser, and that of each verb; only the given verb's has its options."""
    parser = VerbParser(
        prog="pod-agent",
        description="Turn this pod and the other pods of its run into one RL training job. "
        "What to do comes from the environment: see `pod-agent env`.",
        epilog=_AFTER_DASHES.format(verb="run"),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="versions of agent, Python and Ray")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB")

    verb_parsers: dict[str, VerbParser] = {}
    for name, verb in VERBS.items():
        verb_parser = subparsers.add_parser(
            name,
            help=verb.about,
            description=verb.about,
            epilog=_EPILOGS.get(name, ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        verb_parser.set_defaults(verb=name)
        verb_parsers[name] = verb_parser

    if given in verb_parsers:
        for names, settings in options_of(given):
            verb_parsers[given].add_argument(*names, **settings)
    verb_parsers["run"].usage = "pod-agent run [-h] [-- CMD ARG...]"
    return parser, verb_parsers


def _refuse_unknown(
    parser: VerbParser, verb: str, unknown: list[str], *, has_verb: bool
) -> NoReturn:
    """Exit with the flags that were probably meant."""
    known_flags = flags_of(verb) if has_verb else ["--version"]
    is_command = not unknown[0].startswith("-")
    flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    meant = [closest(flag, known_flags) for flag in flags]

    hint = ""
    variables = [word for word in unknown if _VARIABLE.match(word)]
    if variables:
        hint = f". Variables stand before: {shlex.join(variables)} pod-agent {verb}"
    elif any(meant):
        hint = f": did you mean {' '.join(filter(None, meant))}?"
    elif has_verb and VERBS[verb].takes_command and (verb == "run" or is_command):
        hint = f". {_AFTER_DASHES.format(verb=verb)}"
    parser.error(f"unrecognized arguments: {shlex.join(unknown)}{hint}")
