"""What a recipe is: a pure function from what joined, a version and the settings to a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.ranges import Bytes, Cpus, Gpus

Version = tuple[int, ...]
"""A framework's release: (0, 9, 1)."""


@dataclass(frozen=True)
class NodeSize:
    """What one node brings; None where that is not known."""

    gpus: Gpus
    cpus: Cpus | None = None
    memory: Bytes | None = None


@dataclass(frozen=True)
class Asked:
    """All that a recipe rests on."""

    recipe: str
    nodes: tuple[NodeSize, ...]
    """Every node that joined, the head first."""
    version: Version
    """The framework's version: one of those that the recipe knows, by its minor release."""
    model: str
    train_data: str
    eval_data: str = ""
    checkpoints: str = ""
    """The absolute folder of its checkpoints."""
    tensor_parallel: int = 1
    args: tuple[str, ...] = ()
    """The user's own arguments, which replace the recipe's."""
    scores: bool = False
    """True where a reward server scores: its URL is `{reward_url}` until the run knows it."""
    wandb: bool = False
    python: str = "python3"
    """The Python that has the framework."""

    @property
    def gpu_nodes(self) -> tuple[NodeSize, ...]:
        """Return the nodes that have GPUs; all of them where none has any."""
        return tuple(node for node in self.nodes if node.gpus) or self.nodes


@dataclass(frozen=True)
class Command:
    """What a recipe makes: `{head_ip}`, `{reward_url}`, `{rank}` stay until the run knows them."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """What the job needs in its environment, where the user set nothing else."""
    why: Mapping[str, str]
    """The reason of each derived argument, by its flag or key."""
    notes: tuple[str, ...] = ()
    """What a person should know of it: the arithmetic, what cannot be resumed."""


def many(number: int, thing: str) -> str:
    """Return a number of things, in words: 1 GPU, 2 GPUs."""
    ending = "" if number == 1 else "es" if thing.endswith(("s", "ch")) else "s"
    return f"{number} {thing}{ending}"


class MisfitError(ValueError):
    """What was asked for cannot run on what is there: a sentence that says what does not fit."""


class Recipe(Protocol):
    """What a recipe's file has to have."""

    VERSIONS: tuple[Version, ...]
    """The releases that it knows, oldest first; () where none counts."""
    ABOUT: str
    """What it trains, in a line."""

    @staticmethod
    def make(asked: Asked) -> Command:
        """Make the command; raises MisfitError where it cannot be."""
