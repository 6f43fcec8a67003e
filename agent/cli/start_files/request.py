"""What start files are made from: the request, and the usual settings of its recipe."""

from __future__ import annotations

import re
import shlex
from functools import cache

from agent.base.value import Value
from agent.cli.start_files.agent_file import AgentFile
from agent.cli.start_files.own_code import PACK, OwnCode
from agent.frameworks import recipe_of
from agent.frameworks.framework import Preset
from agent.job.groups import NodeGroup
from agent.node.code_archive import ARCHIVE
from agent.settings.jobs import BY_NAME, RECIPES
from agent.settings.rules import TRAINER

_PLAIN = re.compile(r"[\w@%+=:./-]*(?:\{\w+\}[\w@%+=:./-]*)*")
"""A word that no shell changes; it may have placeholders such as {nodes}."""
OWN_COMMAND = "command"
"""The name of a job that is a command after `--`."""


class Request(Value, frozen=True):
    """What start files are wanted for."""

    job: str  # A recipe, or OWN_COMMAND
    nodes: int
    gpus: int
    agent: AgentFile
    variant: str = ""  # The container of Slurm, or the kind of Kubernetes and RunPod
    command: tuple[str, ...] = ()  # With OWN_COMMAND
    code: OwnCode | None = None  # The folder that the command's files are in
    image: str = ""  # Another image than the recipe's usual one
    model: str = ""
    data: str = ""  # Other training data than the recipe's usual ones
    gpu_type: str = ""
    center: str = ""  # Data center or region
    volume: str = ""  # What outlives the nodes, by the platform's name
    partition: str = ""
    group_nodes: str = ""  # Where groups run: Slurm's partition, or a label of Kubernetes' nodes
    account: str = ""
    time: str = ""  # Slurm's limit
    python: str = ""  # Slurm without a container: the framework's Python
    fleet: str = ""
    hosts: tuple[str, ...] = ()
    is_spot: bool = False
    has_wandb: bool = False  # Whether the platform's store has a secret for Weights & Biases
    has_hf_token: bool = False
    services: str = ""  # The text of the user's own file for AGENT_SERVICES
    groups: tuple[NodeGroup, ...] = ()  # With their ranks, which follow the trainer's
    shares_weights: bool = False  # Whether engines load weights from a disk of all nodes

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Return the name and the nodes of the trainer and of each group, in their order."""
        groups = tuple((group.name, group.nodes) for group in self.groups)
        in_groups = sum(nodes for _, nodes in groups)
        return ((TRAINER, self.nodes - in_groups), *groups)

    @property
    def preset(self) -> Preset:
        """Return the usual settings of the recipe."""
        return preset_of(self.job)

    @property
    def container_image(self) -> str:
        """Return the image to run in."""
        return self.image or self.preset.image

    @property
    def installs(self) -> tuple[str, ...]:
        """Return what installs the framework; an image that was given has it."""
        return () if self.image else self.preset.install

    @property
    def is_rehearsal(self) -> bool:
        """Return whether the job needs neither GPUs nor data."""
        return self.job == "rehearsal"

    @property
    def words(self) -> str:
        """Return what follows the agent's name: `run`, and the command of one's own."""
        return f"run{self.words_of_command}"

    @property
    def words_of_command(self) -> str:
        """Return what follows a verb: ` -- ` and the command of one's own, or ''."""
        return " ".join(["", "--", *map(_quoted, self.command)]) if self.command else ""


def _quoted(word: str) -> str:
    return word if word and _PLAIN.fullmatch(word) else shlex.quote(word)


class StartFile(Value, frozen=True):
    """A file to write."""

    name: str
    content: bytes
    is_program: bool = False
    is_made_again: bool = False  # From what the user has elsewhere: no loss if it is overwritten

    @property
    def text(self) -> str:
        """Return the content of a text file."""
        return self.content.decode()


def text_file(name: str, text: str, *, is_program: bool = False) -> StartFile:
    """Return a file with a text."""
    return StartFile(name, text.encode(), is_program)


class ModelPlace(Value, frozen=True):
    """Where the checkpoints of a run are after it."""

    where: str
    get: tuple[str, ...] = ()  # The commands that copy them, if they are not there already
    warning: str = ""  # How the only copy would be lost


class StartFiles(Value, frozen=True):
    """All files of a run, what to type next, what to know before, and where its model is."""

    files: tuple[StartFile, ...]
    steps: tuple[str, ...]  # Commands, and comments with a leading `#`
    model: ModelPlace
    notes: tuple[str, ...] = ()
    train_data: str = ""  # AGENT_TRAIN_DATA as the files set it; it may begin with $PWD


@cache
def presets() -> dict[str, Preset]:
    """Return the usual settings of each recipe, in the order of `pod-agent recipes`."""
    return {known.name: recipe_of(known).PRESETS[known.name] for known in RECIPES}


def preset_of(job: str) -> Preset:
    """Return the usual settings of a recipe, or of a command of one's own."""
    if job == OWN_COMMAND:
        return Preset(about="A command of your own", image="")
    return presets()[job]


def runs_by_torchrun(job: str) -> bool:
    """Return whether a launcher starts the job on every node, without Ray."""
    known = BY_NAME.get(job)
    return known is not None and known.launcher != "ray"


def brings_services(job: str) -> bool:
    """Return whether a recipe brings services and nodes of their own."""
    known = BY_NAME.get(job)
    return known is not None and recipe_of(known).FRAMEWORK.services != ""


def programs_of_image(request: Request) -> str:
    """Return the folder of the framework's programs in the usual image, if it is on no PATH."""
    known = BY_NAME.get(request.job)
    return "" if known is None or request.image else recipe_of(known).FRAMEWORK.programs


class Folders(Value, frozen=True):
    """Where things are on a platform."""

    data: str
    code: str
    checkpoints: str
    logs: str = ""
    models: str = ""
    is_shared: bool = True  # Whether every node sees the same `data`
    has_hub: bool = True  # Whether nodes reach the hub; else data were fetched to `data` before
    services: str = ""  # The file for AGENT_SERVICES, where a recipe has one
    archive: str = ""  # The folder in which the code of a command arrives
    own_code: str = "/opt/code"  # Where it is unpacked, on each node's own disk


def checkout_commands(request: Request, folders: Folders) -> list[str]:
    """Return the shell command that clones the framework's repository, if there is one."""
    checkout = request.preset.checkout
    return [] if checkout is None else [checkout.command(folders.code)]


def setup_commands(request: Request, folders: Folders) -> list[str]:
    """Return the shell commands that must have run in the container before the agent starts."""
    checkout = checkout_commands(request, folders)
    return [*checkout, *unpack_commands(request, folders), *request.installs]


def unpack_commands(request: Request, folders: Folders) -> list[str]:
    """Return the shell commands that unpack the code of a command, if it was sent."""
    if request.code is None:
        return []
    target = folders.own_code
    return [
        f"rm -rf {target}",
        f"mkdir -p {target}",
        f"tar -xzf {folders.archive}/{ARCHIVE} --no-same-owner -C {target}",
    ]


def enter_commands(request: Request, folders: Folders) -> list[str]:
    """Return the shell command that enters the job's folder: the code's, or one of the image."""
    code = folders.own_code if request.code is not None else request.preset.code
    return [f"cd {code}"] if code else []


def packed_again(request: Request) -> str:
    """Return what a step begins with, so that it sends the code as it is then."""
    return "" if request.code is None else f"python3 {PACK} && "


def is_hub_data(preset: Preset) -> bool:
    """Return whether the usual data are a data set of the hub, by its id."""
    return bool(preset.train) and "{" not in preset.train and not preset.has_own_data


def usual_data(preset: Preset, folders: Folders) -> str:
    """Return where a recipe's usual data are: the id on the hub, or a path on the nodes."""
    if is_hub_data(preset) and not folders.has_hub:
        return f"{folders.data}/{preset.train.rpartition('/')[2]}"
    return preset.train.format_map({"data": folders.data, "code": folders.code})


def checkpoints_of(request: Request, folders: Folders) -> str:
    """Return the folder of the job's checkpoints."""
    return f"{folders.checkpoints}/{request.job}"


def job_variables(request: Request, folders: Folders, *, restarted: bool) -> dict[str, str]:
    """Return the variables of the job; `restarted`: the platform starts a lost node again."""
    preset = request.preset
    has_services = bool(preset.services or request.services)
    common = {
        "AGENT_SERVICES": folders.services if has_services else "",
        "AGENT_LOG_DIR": folders.logs,
    }
    if request.is_rehearsal:
        return {name: text for name, text in common.items() if text}

    # A command of one's own has arguments and data of its own.
    if request.command:
        own = {
            "AGENT_CHECKPOINTS": checkpoints_of(request, folders),
            "AGENT_MODEL": request.model,
            "AGENT_TRAIN_DATA": request.data,
            **common,
            "HF_HOME": folders.models,
        }
        return {name: text for name, text in own.items() if text}

    known = {"data": folders.data, "code": folders.code}
    code = ""
    if preset.checkout is not None:
        code = f"{folders.code}/{preset.checkout.folder}"

    # The usual data come with what prepares them, and with the names of their columns.
    args = preset.args
    train = request.data
    usual = {}
    if not train:
        args = (*preset.data_args, *args)
        train = usual_data(preset, folders)
        usual["AGENT_EVAL_DATA"] = preset.evaluate.format_map(known)
        if folders.has_hub:
            prepare = "AGENT_PREPARE" if folders.is_shared else "AGENT_PREPARE_EACH"
            usual[prepare] = preset.prepare.format_map(known)

    known["train"] = train
    variables = {
        "AGENT_JOB": request.job,
        "AGENT_MODEL": request.model or preset.model,
        "AGENT_TRAIN_DATA": train,
        **usual,
        "AGENT_CHECKPOINTS": checkpoints_of(request, folders),
        "AGENT_JOB_ARGS": " ".join(args),
        "AGENT_JOB_RETRIES": "3" if restarted and preset.resumes else "",
        "AGENT_REWARD": preset.reward.format_map(known),
        **common,
        "PYTHONPATH": code,
        "HF_HOME": folders.models,
    }
    return {name: text for name, text in variables.items() if text}


def variables_of_plan(request: Request, train_data: str) -> str:
    """Return the variables with which `plan` shows this job on a node, as a shell reads them."""
    preset = request.preset
    values = {"EXPECTED_WORKERS": str(request.nodes - 1)}
    if not request.command:
        values["AGENT_JOB"] = request.job
    if preset.train:
        values["AGENT_MODEL"] = request.model or preset.model
        values["AGENT_TRAIN_DATA"] = train_data
    return " ".join(f"{name}={_expanded(text)}" for name, text in values.items())


def _expanded(text: str) -> str:
    """Quote a value for a shell, which still expands the current folder at its beginning."""
    start, folder, rest = text.partition("$PWD")
    if start or not folder:
        return shlex.quote(text)
    return f'"{folder}"{shlex.quote(rest)}'
