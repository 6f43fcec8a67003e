"""The table of verbs: what each does, where it stands, and on which systems it works."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """A verb: its line in `--help`, and its module in agent/cli/ with OPTIONS and `run`."""

    about: str
    module: str = ""  # '' for `run` itself, and for the programs in agent/__main__.py
    takes_command: bool = False  # whether a command may follow after --
    works_anywhere: bool = False  # it starts nothing: also on a Mac and Windows


VERBS = {
    "run": Verb(
        "boot this node, run the job, end with its exit code (default)", takes_command=True
    ),
    "plan": Verb(
        "print what run would do, and touch nothing",
        "plan_verb",
        takes_command=True,
        works_anywhere=True,
    ),
    "doctor": Verb("check this machine and its settings", "doctor_verb"),
    "status": Verb(
        "show the state of the run, from the head's agent", "status_verb", works_anywhere=True
    ),
    "logs": Verb(
        "print a log of any node, through the head's agent", "logs_verb", works_anywhere=True
    ),
    "explain": Verb("summarize a run in ten lines: what took long, why it ended", "explain_verb"),
    "stop": Verb(
        "stop the run as SIGTERM on the head does, and wait until it has ended", "stop_verb"
    ),
    "env": Verb(
        "list the environment variables that are set (--all: all of them)",
        "env_verb",
        works_anywhere=True,
    ),
    "init": Verb(
        "write the files that start a run on a platform",
        "init_verb",
        takes_command=True,
        works_anywhere=True,
    ),
    "recipes": Verb(
        "list the recipes, one a line",
        "recipes_verb",
        works_anywhere=True,
    ),
    "recipe": Verb(
        "print the command that a recipe would submit, and why",
        "recipe_verb",
        works_anywhere=True,
    ),
    "warm": Verb(
        "fetch models to this node, read them into its memory, and seed its compile caches",
        "warm_verb",
        takes_command=True,
    ),
    "completion": Verb(
        "print the completion for a shell",
        "completion_verb",
        works_anywhere=True,
    ),
    "reward-server": Verb("the bundled reward server (--help for its flags)"),
    "retriever": Verb("a stand-in for Search-R1's retriever (--help for its flags)"),
    "rehearsal": Verb("the bundled GPU-free GRPO job (--help for its flags)"),
    "rehearsal-engine": Verb("a stand-in for an inference engine (--help for its flags)"),
    "rehearsal-async": Verb("the same job with engines outside (--help for its flags)"),
}
"""Every verb, in the order of `--help`."""
