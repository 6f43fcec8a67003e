"""The job: its command line, sized for the nodes that joined."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import field
from msgspec.structs import replace

from agent.base.errors import Problem, SettingsError
from agent.base.value import Value
from agent.base.versions import version_text
from agent.frameworks import recipe_of
from agent.frameworks.recipe import (
    RUN_ID,
    Command,
    JobBasis,
    MisfitError,
    NodeSize,
    RecipeInput,
    check_weights,
    choose,
)
from agent.job.checkpoints import CheckpointOwner
from agent.node.facts import UploadSize
from agent.settings.jobs import RecipeInfo
from agent.settings.rules import TRAINER, reward_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agent.base.versions import Version
    from agent.job.groups import NodeGroup
    from agent.job.services import Placeholders
    from agent.node.facts import Framework
    from agent.settings.model import Settings


_ADAPTERS = "AGENT_LORA_RANK"
_USUAL_RANK = 32
COMMAND = "command"  # The name of a job given as a command after `--`
_SIZES = ("nodes", "gpus_per_node", "total_gpus")
_OF_TRAINER = (f"nodes:{TRAINER}", f"gpus:{TRAINER}")
PLACEHOLDERS = (*_SIZES, "head_ip", "reward_url", "log_dir", "attempt", "checkpoints")
NUMBERS = (*_SIZES, "attempt", "master_port")
"""Those that a command can compute with: `{nodes-1}`, `{total_gpus/2}`."""


_OF_GROUP = r"(?:nodes|gpus):[A-Za-z0-9-]+"
_COMPUTED = "|".join([*NUMBERS, _OF_GROUP])
_BRACES = re.compile(rf"\{{(\w+|{_OF_GROUP})\}}|(?<!\$)\{{({_COMPUTED})([-+*/])(\d{{1,9}})\}}")
"""A placeholder, or one with a number; `${nodes-1}` is a shell's."""
_NONE: Mapping[str, str] = {}


class Job(Value):
    """What to submit."""

    name: str
    argv: tuple[str, ...]
    """For a recipe the command for the expected nodes; () if it does not fit them."""
    runtime_env: dict[str, object]
    checkpoints: str = ""  # The absolute folder for its checkpoints
    recipe: RecipeJob | None = None  # The recipe, if the job has one
    upload: UploadSize | None = None  # The size of the upload of its working_dir

    @property
    def framework(self) -> str:
        """Return the framework of its recipe, or ''."""
        return "" if self.recipe is None else self.recipe.known.framework


def sizes(gpus: Sequence[int]) -> tuple[int, int, int]:
    """Return the number of nodes, the smallest number of GPUs of a node, and all GPUs.

    Nodes without GPUs are left out if others have some.
    """
    counts = [count for count in gpus if count > 0]
    if not counts:
        return len(gpus), 0, 0
    return len(counts), min(counts), sum(counts)


def fill(  # noqa: PLR0913 - all that is filled in
    argv: tuple[str, ...],
    gpus: Sequence[int],
    place: Placeholders,
    reward_url: str,
    attempt: int,
    checkpoints: str,
    of_launcher: Mapping[str, str] = _NONE,
) -> list[str]:
    """Fill in the placeholders, known once every node has joined; other braces stay.

    `of_launcher` has those of a launcher, which precede the others. Raises MisfitError as
    `fill_words` does.
    """
    nodes, gpus_per_node, total_gpus = sizes(gpus)
    values = {
        "nodes": str(nodes),
        "gpus_per_node": str(gpus_per_node),
        "total_gpus": str(total_gpus),
        "head_ip": place.head_ip,
        "reward_url": reward_url,
        "log_dir": place.log_dir,
        "attempt": str(attempt),
        "checkpoints": checkpoints,
    }
    known = [filled for word in argv for filled in place.words(word)]
    return fill_words(known, {**values, **of_launcher})


def fill_words(argv: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """Fill in the placeholders that have a value; other braces stay.

    Raises MisfitError where a computed one is no whole number from 1 on.
    """

    def value_of(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        value = values.get(name)
        if value is None:
            return match[0]
        return value if match[1] else str(_computed(match[0], int(value), match[3], int(match[4])))

    return [_BRACES.sub(value_of, word) for word in argv]


def is_computed(text: str) -> bool:
    """Return whether a text is a placeholder with a number: `{nodes-1}`."""
    match = _BRACES.fullmatch(text)
    return match is not None and match[2] is not None


def _computed(text: str, value: int, sign: str, number: int) -> int:
    """Return the result of `{nodes-1}` and the like."""
    if sign == "/":
        if not number or value % number:
            raise MisfitError(f"{text} is no whole number: {value}/{number}")
        return value // number
    result = {"+": value + number, "-": value - number, "*": value * number}[sign]
    if result < 1:
        raise MisfitError(f"{text} is {result}, and must be at least 1")
    return result


def fill_expected(
    argv: Iterable[str], nodes: int, gpus: int, groups: Iterable[NodeGroup] = ()
) -> list[str]:
    """Fill in the sizes, if so many nodes join that have so many GPUs each.

    Those of GPUs stay if this machine has none: the nodes may be others. Raises MisfitError.
    """
    values = {"nodes": str(nodes)}
    if gpus:
        values |= {"gpus_per_node": str(gpus), "total_gpus": str(nodes * gpus)}
    of_groups = {group.name: (group.nodes, group.nodes * gpus) for group in groups}
    of_groups[TRAINER] = (nodes, nodes * gpus)
    known = group_sizes(of_groups)
    if not gpus:
        known = {name: value for name, value in known.items() if not name.startswith("gpus:")}
    return fill_words(argv, {**values, **known})


def group_sizes(of_groups: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Return the values of `{nodes:GROUP}` and `{gpus:GROUP}`."""
    values = {f"nodes:{name}": str(nodes) for name, (nodes, _) in of_groups.items()}
    return values | {f"gpus:{name}": str(gpus) for name, (_, gpus) in of_groups.items()}


def is_sized(job: Job) -> bool:
    """Return whether the command depends on the number of nodes or GPUs."""
    return job.recipe is not None or not _placeholders(job).isdisjoint((*_SIZES, *_OF_TRAINER))


def is_sized_by(job: Job, group: str) -> bool:
    """Return whether the command has the number of nodes or GPUs of a group."""
    return not _placeholders(job).isdisjoint((f"nodes:{group}", f"gpus:{group}"))


def _placeholders(job: Job) -> set[str]:
    return {match[1] or match[2] for word in job.argv for match in _BRACES.finditer(word)}


def prints_steps(job: Job) -> bool:
    """Return whether the job's framework prints its steps in a known way."""
    return job.recipe is not None and recipe_of(job.recipe.known).FRAMEWORK.steps is not None


def is_sized_by_links(job: Job | None) -> bool:
    """Return whether the command depends on the measured bandwidth between the nodes.

    With InfiniBand it does not: the links that are measured are not those that the job uses.
    """
    if job is None or job.recipe is None or job.recipe.input.infiniband:
        return False
    return recipe_of(job.recipe.known).FRAMEWORK.is_sized_by_links


PROGRESS_VARIABLE = "AGENT_PROGRESS_FILE"
"""The file of an attempt to which the job may append its steps."""


def entrypoint(
    argv: list[str],
    attempt: int,
    file: str = "",
    clean: Callable[[str], str] = str,
    progress: str = "",
) -> tuple[str, str]:
    """Return the shell command of a job, which Ray shows and logs, and the secrets that it needs.

    It is the argv, with AGENT_ATTEMPT and AGENT_PROGRESS_FILE exported: Ray's runtime_env cannot
    carry them, since Ray refuses a job whose own one differs. Words that `clean` would mask become
    variables that the shell reads from `file`, which it then removes; an option's name stays.
    """
    words: list[str] = []
    values: list[str] = []
    for word in argv:
        if not file or clean(word) == word:
            words.append(shlex.quote(word))
            continue

        # Is it --option=secret, or a secret as a whole?
        name, _, value = word.partition("=")
        is_option = value and clean(name) == name
        option = shlex.quote(f"{name}=") if is_option else ""
        secret = value if is_option else word
        values.append(f"AGENT_SECRET_{len(values) + 1}={shlex.quote(secret)}")
        words.append(f'{option}"$AGENT_SECRET_{len(values)}"')

    exports = f"export AGENT_ATTEMPT={attempt}"
    if progress:
        exports += f" {PROGRESS_VARIABLE}={shlex.quote(progress)}"
    line = f"{exports}; exec {' '.join(words)}"
    if not values:
        return line, ""
    place = shlex.quote(file)
    return f". {place}; {line}", "\n".join([*values, f"rm -f {place}", ""])


def job_identity(job: Job | None) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """Return argv and settings that identify a job on any node.

    A recipe's argv depends on the nodes, so its name and the user's arguments replace it.
    """
    if job is None:
        return None, {}
    if job.recipe is None:
        return job.argv, {}
    given = job.recipe.input
    settings = {
        "model": given.model,
        "train_data": given.train_data,
        "eval_data": given.eval_data,
        "tensor_parallel": str(given.tensor_parallel or 1),
        "lora_rank": str(given.lora_rank or 0),
        "rollout": given.rollout,
        "version": version_text(given.version),
        "checkpoints": given.checkpoints,
        "model_revision": given.revision,
        "reward_model": given.reward_model,
    }
    return (job.name, *given.args), settings


_ENOUGH_CPUS = 1 << 20  # More CPUs than any recipe needs
_SHAPES = tuple(
    (NodeSize(gpus, _ENOUGH_CPUS),) * nodes
    for gpus in (1, 2, 4, 8, 16)
    for nodes in (1, 2, 4, 8, 16)
)
"""Clusters to try: a recipe that fits none of them fits no cluster."""


class RecipeJob(Value):
    """The input of a recipe, and its command for the expected nodes."""

    known: RecipeInfo
    input: RecipeInput  # For the expected nodes
    expected_command: Command | None
    """The command for the expected nodes; None if it does not fit them."""
    misfit: str = ""  # Why it does not fit, or ''
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for every node, whatever the cluster's size."""

    def command(self, nodes: tuple[NodeSize, ...], run_id: str, basis: JobBasis) -> Command:
        """Return the command for the nodes that joined; raises MisfitError."""
        given = replace(self.input, nodes=nodes, run_id=run_id, basis=basis)
        return command_of(self.known, given)


def command_of(known: RecipeInfo, given: RecipeInput) -> Command:
    """Return a recipe's command, with the run id as W&B's group; raises MisfitError."""
    check_weights(given)
    try:
        made = recipe_of(known).make(given)
    except MisfitError as misfit:
        raise MisfitError(f"{misfit}{_adapters_instead(known, given)}") from None
    if not given.wandb or not known.framework:
        return made
    return replace(made, env={**made.env, "WANDB_RUN_GROUP": given.run_id})


def _adapters_instead(known: RecipeInfo, given: RecipeInput) -> str:
    """Return adapters (LoRA) as a remedy where they fit and full training does not, or ''."""
    if _ADAPTERS not in known.takes or given.lora_rank is not None or given.basis.kept:
        return ""
    try:
        recipe_of(known).make(replace(given, lora_rank=_USUAL_RANK))
    except MisfitError:
        return ""
    return f", or with {_ADAPTERS}={_USUAL_RANK}, which trains adapters instead of all weights"


def checkpoint_owner(
    recipe: RecipeJob, nodes: tuple[NodeSize, ...], settings: Mapping[str, str]
) -> CheckpointOwner:
    """Return the owner of a job's checkpoints; their format depends on these settings.

    There is a training process per GPU, or per node without GPUs.
    """
    given = recipe.input
    return CheckpointOwner(
        recipe=recipe.known.name,
        framework=recipe.known.framework,
        version=version_text(given.version),
        model=given.model,
        world_size=sum(node.gpus for node in nodes) or len(nodes),
        tensor_parallel=given.tensor_parallel or 1,
        settings=settings,
    )


def version_of(known: RecipeInfo, framework: Framework | None) -> tuple[Version, str]:
    """Return the known version nearest to the installed one, else the newest, and a warning."""
    versions = recipe_of(known).VERSIONS
    if not versions:
        return (), ""

    # A fork without version numbers has one version.
    numberless = framework is not None and not framework.version and len(versions) == 1
    if framework is None or not framework.folder or numberless:
        return versions[-1], ""
    return choose(versions, framework.version)


def recipe_input(  # noqa: PLR0913 - all inputs of a recipe
    known: RecipeInfo,
    settings: Settings,
    version: Version,
    checkpoints: str,
    python: str,
    nodes: tuple[NodeSize, ...],
) -> RecipeInput:
    """Return the input of a recipe for these nodes."""
    reward = reward_choice(settings, None)
    return RecipeInput(
        recipe=known.name,
        nodes=nodes,
        version=version,
        model=settings.model or "",
        revision=settings.model_revision or "",
        train_data=settings.train_data or "",
        eval_data=settings.eval_data or "",
        checkpoints=checkpoints,
        tensor_parallel=settings.tensor_parallel,
        lora_rank=settings.lora_rank,
        rollout=settings.rollout or "vllm",
        backend=settings.backend or "",
        args=settings.job_args,
        scores=known.reward != "unused" and reward != "off",
        needs_labels=reward == "builtin",
        reward_model=settings.reward_model or "",
        wandb=settings.wandb_api_key is not None,
        run_name=settings.run_name or "",
        python=python,
    )


def plan_recipe(known: RecipeInfo, given: RecipeInput) -> RecipeJob:
    """Plan a recipe for the expected nodes; raises SettingsError if it fits no cluster.

    If it fits only another cluster it is not refused yet, since other nodes may join.
    """
    # Does it fit the expected nodes, or any cluster at all?
    made = None
    misfit = ""
    for nodes in (given.nodes, *_SHAPES):
        try:
            made = command_of(known, replace(given, nodes=nodes))
            break
        except MisfitError as error:
            misfit = misfit or str(error)
    if made is None:
        got = f"{known.name}, which cannot be made: {misfit}"
        raise SettingsError((Problem("AGENT_JOB", got, "settings that go together"),))

    # What every node can set before the run id is known.
    env = {name: text for name, text in made.env.items() if text != RUN_ID}
    return RecipeJob(known, given, None if misfit else made, misfit, env)
