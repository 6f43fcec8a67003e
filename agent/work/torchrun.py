"""A job for torchrun: what of its command torchrun is given, how many processes, on which nodes."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.base.ranges import SEATS, Attempt, ExitCode, Rank, Seconds
    from agent.settings import Settings
    from agent.work.recipes.recipe import NodeSize

RANKS_MARK = "TORCHELASTIC_RUN_ID"
"""What every rank has in its environment: the attempt's id, by which torchrun is told to meet."""
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_ITSELF = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Seat:
    """Which share of a job is a node's: its rank, and every node's size in the order of ranks."""

    rank: Rank
    nodes: Annotated[tuple[NodeSize, ...], SEATS]
    reward_ip: str = ""
    """The address of the node with the reward server, where the run has one."""

    @property
    def gpus(self) -> list[int]:
        """Return each node's GPUs."""
        return [node.gpus for node in self.nodes]


@dataclass(frozen=True)
class PartEnd:
    """How a node's share of a job ended."""

    code: ExitCode
    """0, or the code of its first rank that failed, or torchrun's own, as a shell would tell it."""
    local_rank: Rank | None = None
    """The rank on its node that failed first; None where torchrun named none."""
    words: str = ""
    """What it said at its end."""
    ago: Seconds = 0.0
    """How long before this was told the rank failed, by the node's own clock."""
    by_order: bool = False
    """True where nothing had failed before it was told to stop."""
    lost: bool = False
    """True where its node stopped it, being out of the head's reach: it tells nothing of the job.
    """

    @property
    def failed(self) -> bool:
        """Say whether it failed by itself."""
        return self.code != 0 and not self.by_order


@dataclass(frozen=True)
class PartOver:
    """This node's share of an attempt has ended."""

    attempt: Attempt
    end: PartEnd


def is_python(word: str) -> bool:
    """Say whether a word names a Python: python, python3.11, /opt/conda/bin/python."""
    return _PYTHON.fullmatch(PurePath(word).name) is not None


def leading_python(command: Sequence[str]) -> str | None:
    """Return the Python with which a command begins, which torchrun starts in its stead."""
    return command[0] if command and is_python(command[0]) else None


def words_of(command: Sequence[str]) -> list[str]:
    """Return what torchrun is given of a job's command: its own flags for it, and its words.

    Without a leading Python it runs a script (`train.py`), a module (`-m pkg.train`), or any other
    program as it stands.
    """
    named = leading_python(command) is not None
    words = list(command[1:]) if named else list(command)
    while named and words[:1] == ["-u"]:  # so torchrun runs every script
        words = words[1:]
    if named or words[:1] == ["-m"] or words[0].endswith(".py"):
        return words
    return ["--no_python", *words]


def runs_a_program(command: Sequence[str]) -> bool:
    """Say whether a command is neither a script nor a module, but a program to be found."""
    return words_of(command)[:1] == ["--no_python"]


def fault_of(command: Sequence[str]) -> tuple[str, str] | None:
    """Return what of a command torchrun could not run, and what to give instead."""
    words = list(command[1:]) if leading_python(command) is not None else list(command)
    while words[:1] == ["-u"]:
        words = words[1:]
    first = words[0] if words else ""
    module = words[1] if first == "-m" and len(words) > 1 else ""
    if PurePath(first).name in _ITSELF or module in _ITSELF:
        wanted = "the script alone, which the agent starts by torchrun: -- train.py ARG…"
        return f"{module or first} itself", wanted
    if not first or (first == "-m" and not module):
        return "nothing for torchrun to run", "a script or a module: -- train.py, -- -m pkg.train"
    if first.startswith("-") and first != "-m":
        return f"{first!r}, a flag of Python's", "a script, or -m and a module, without other flags"
    return None


def gpus_of(settings: Settings, seen: int, environ: Mapping[str, str]) -> int:
    """Return the GPUs of a node that its processes share: those that it shows them."""
    if settings.num_gpus is not None:
        return settings.num_gpus
    shown = [environ[name] for name in _VISIBLE if name in environ]
    return min([seen, *(len([one for one in text.split(",") if one.strip()]) for text in shown)])


def processes(gpus: int, settings: Settings) -> int:
    """Return how many processes a node runs: one for each GPU, else as many as were asked for."""
    return gpus or settings.num_cpus or 1
