"""The question to the installed framework whether it accepts the job's command.

A table of versions is out of date every month, and a typo in AGENT_JOB_ARGS is otherwise found only
after the boot. The question is made from the job's command, a recipe's or the user's own, and its
answer becomes a refusal here. `bundled/ask_framework.py` asks it in the framework's own Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agent.base import ends
from agent.base.value import Value
from agent.base.versions import version_list
from agent.frameworks import recipe_of
from agent.job.torchrun_command import split_python

if TYPE_CHECKING:
    from agent.base.ends import Outcome
    from agent.job.job import Job
    from agent.node.facts import Facts

_TRL_PROGRAM = "bundled/trl_grpo.py"
_PACKAGES = ("verl", "openrlhf")
"""The packages whose programs can be asked; every other program could do anything."""
_REPLACES = ("pip", "uv", "conda", "container", "image_uri", "py_executable", "py_modules")
"""Keys of a runtime_env that may bring another framework than is installed here."""


class FrameworkQuestion(Value):
    """A command, as far as its framework can be asked about it."""

    framework: str  # with its version, as far as it is known
    python: str  # that runs the command
    module: str  # what `python -m` runs, or the path of a program
    argv: tuple[str, ...]  # its arguments; with placeholders
    own: tuple[str, ...]  # those that the user gave
    is_recipe: bool
    known: str = ""  # the versions that the recipe knows
    folder: str = ""  # where it runs, '' for the agent's directory
    env: tuple[tuple[str, str], ...] = ()  # what its runtime_env adds to the environment


class FrameworkAnswer(Value):
    """What the framework says."""

    verdict: Literal["accepted", "refused", "unknown"]
    what: str = ""  # its own words
    key: str = ""  # the argument that they are about
    near: str = ""  # an argument that it has, with nearly that name


def question_of(job: Job | None, facts: Facts) -> FrameworkQuestion | None:
    """Return the question about a job's command; None if no known framework runs it."""
    if job is None or why_not_asked(job):
        return None
    program = _program(job.argv)
    if program is None:
        return None
    module, argv = program

    # Which framework is it? Of a recipe the installed version is known, too.
    name = "TRL" if module.endswith(".py") else module.partition(".")[0]
    known = ""
    own = argv
    recipe = job.recipe
    if recipe is not None:
        known = version_list(recipe_of(recipe.known).VERSIONS)
        own = recipe.input.args
        if facts.framework is not None:
            name = f"{name} {facts.framework.version}".strip()

    variables = job.runtime_env.get("env_vars")
    if not isinstance(variables, dict):
        variables = {}
    return FrameworkQuestion(
        framework=name,
        python=split_python(job.argv)[0] or facts.job_python,
        module=module,
        argv=argv,
        own=own,
        is_recipe=recipe is not None,
        known=known,
        folder=str(job.runtime_env.get("working_dir", "")),
        env=tuple((str(key), str(value)) for key, value in variables.items()),
    )


def _program(argv: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
    """Return the program of a framework in a command, and its arguments."""
    words = split_python(argv)[1]
    if words and words[0].endswith(_TRL_PROGRAM):
        return words[0], tuple(words[1:])
    for at, word in enumerate(words[:-1]):  # torchrun and accelerate have their own words before it
        module = words[at + 1]
        if word == "-m" and module.partition(".")[0] in _PACKAGES:
            return module, tuple(words[at + 2 :])
    return None


def why_not_asked(job: Job) -> str:
    """Return why the installed framework may not be the job's; '' if it is."""
    if _program(job.argv) is None:
        return ""
    brought = [key for key in _REPLACES if job.runtime_env.get(key)]
    if brought:
        return f"its runtime_env may bring another ({', '.join(brought)})"
    folder = job.runtime_env.get("working_dir")
    if folder and "://" in str(folder):
        return f"Ray fetches its working_dir {folder}"
    return ""


def refusal_of(question: FrameworkQuestion, answer: FrameworkAnswer) -> Outcome:
    """Return the end of a run whose command the framework refuses."""
    # Who gave the argument: the user's command, the user beside a recipe, or the recipe?
    bare = answer.key.lstrip("+~")
    is_users = any(bare and bare in word for word in question.own)
    remedy = "Correct it there"
    if not question.is_recipe:
        place = "the command after --"
        culprit = "job"
    elif is_users:
        place = "AGENT_JOB_ARGS"
        culprit = "AGENT_JOB_ARGS"
    else:
        place = "the recipe's command"
        culprit = "AGENT_JOB"
        remedy = f"Install a version that the recipe knows ({question.known})"
        remedy += ", or give your own command after --"

    if answer.near:
        remedy = f"Did you mean {answer.near}? {remedy}"
    what = f"{answer.key} in {place}" if answer.key else place
    return ends.FRAMEWORK_REFUSES.outcome(
        framework=question.framework,
        what=what,
        words=answer.what or "no reason is given",
        culprit=culprit,
        remedy=remedy,
    )
