"""What is known about a framework beside its commands: each framework's table has it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, Protocol

from agent.base.value import Value
from agent.frameworks.step_format import StepFormat
from agent.node.facts import Package
from agent.settings.rules import flags_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.base.versions import Version
    from agent.frameworks.recipe import Command, RecipeInput


class CheckpointFormat(Value, forbid_unknown_fields=True):
    """How a framework writes checkpoints, and when it can resume from them."""

    prefix: str = ""
    """The name of a checkpoint's folder before the number of its step; `a/b` if it has to be in a
    folder `a`.
    """
    digits: int = 0  # Of that number, which zeros fill up; 0 if nothing does
    tracker: str = ""
    """The file with the step of the last complete checkpoint, without which it starts at 0."""
    last_file: str = ""  # The file that it writes last into a checkpoint, if known
    can_resume: bool = True
    can_reshard: bool = True  # Whether it resumes with another number of processes


class AnswerFlags(Value, forbid_unknown_fields=True):
    """By which arguments it generates how much, for the division of the nodes."""

    longest: str  # The flag of the tokens of its longest answer
    tokens: int  # Of the longest answer without that flag
    ahead: str = ""  # The argument with which it generates while it trains; '' if it always does

    def read(self, words: Sequence[str]) -> tuple[int, bool]:
        """Return the tokens of the longest answer, and whether it generates only in turns."""
        given = dict(flags_of(tuple(words))).get(self.longest) or ""
        in_turns = self.ahead != "" and self.ahead not in words
        return int(given) if given.isdecimal() else self.tokens, in_turns


DEFAULT_DIALECT: Literal["openrlhf"] = "openrlhf"  # Of the bundled reward server


_HINT_FOR_VERL = re.compile(r" \((?:in verl|verl:) [^()]*\)")


class FrameworkInfo(Value, forbid_unknown_fields=True):
    """What other parts of the agent read about a framework."""

    package: Package | None = None  # How it is found on a Python's path
    checkpoints: CheckpointFormat = CheckpointFormat()
    steps: StepFormat | None = None  # how it prints its steps
    programs: str = ""  # The folder of its programs in its image, where that has it on no PATH
    services: str = ""
    """The file beside its table with the groups and services that its recipes bring, or ''."""
    answers: AnswerFlags | None = None  # Where its recipes bring a group that generates
    loads_folder: bool = False  # Whether it needs the folder of a model, and takes no id of the hub
    is_sized_by_links: bool = False  # Whether its arguments depend on the links between the nodes
    dialect: Literal["openrlhf", "openrlhf-m"] = DEFAULT_DIALECT  # What its reward client reads
    settings: tuple[tuple[str, str], ...] = ()  # Its names of the engines' settings, by theirs

    def in_own_words(self, remedy: str) -> str:
        """Return a remedy with the framework's names of an engine's settings."""
        if not self.settings:
            return remedy
        text = _HINT_FOR_VERL.sub(self._kept_hint, remedy)
        for name, own in self.settings:
            text = re.sub(rf"(?<![\w.-]){name}\b", own, text)
        return text

    def _kept_hint(self, hint: re.Match[str]) -> str:
        """Return a hint for verl if this is verl, unless `settings` has it."""
        is_verl = self.package is not None and self.package.name == "verl"
        return hint[0] if is_verl and "rollout." not in hint[0] else ""


class Checkout(Value, forbid_unknown_fields=True):
    """A framework that runs from a clone of its repository."""

    url: str
    tag: str
    folder: str

    def command(self, code: str) -> str:
        """Return the shell command that clones it unless it is there.

        Nodes may share the folder: each clones into one of its own, and the first one that is
        complete gets the name.
        """
        target = f"{code}/{self.folder}"
        if "$" in code:
            target = f'"{target}"'
        clone = f'git clone --quiet --depth 1 --branch {self.tag} {self.url} "$new"'
        rename = f'chmod 755 "$new" && {{ mv -T "$new" {target} || test -e {target}; }}'
        return f"test -e {target} || {{ new=$(mktemp -d {target}.XXXXXX) && {clone} && {rename}; }}"


class Preset(Value, forbid_unknown_fields=True):
    """What a start file sets for a recipe: its usual image, model, data and arguments.

    `{data}` and `{code}` stand for the folders of data and of checkouts on a platform, `{train}`
    for the training data.
    """

    about: str
    image: str = ""  # '' where there is no public one
    user: str = ""  # The user of that image, who may write to no volume; '' for root
    no_image: str = ""  # What an image needs, where there is no public one
    checkout: Checkout | None = None
    install: tuple[str, ...] = ()  # Shell commands that install the framework into the image
    code: str = ""  # The folder of the image in which the job starts
    model: str = ""
    train: str = ""
    has_own_data: bool = False  # Whether `train` names an environment, which brings its data
    evaluate: str = ""
    prepare: str = ""
    args: tuple[str, ...] = ()
    data_args: tuple[str, ...] = ()  # Arguments that name the columns of `train`
    imports: str = ""  # The module by which the framework's Python is known
    services: str = ""  # An example's file for AGENT_SERVICES
    reward: str = ""
    resumes: bool = True


class Recipe(Protocol):
    """The contents of a recipe's module."""

    FRAMEWORK: FrameworkInfo
    VERSIONS: tuple[Version, ...]  # The known releases, oldest first; () if versions do not matter
    ABOUT: str  # What it trains, in one line
    PRESETS: Mapping[str, Preset]  # By the names of its recipes

    @staticmethod
    def make(asked: RecipeInput) -> Command:
        """Return the command; raises MisfitError if it does not fit the nodes."""
