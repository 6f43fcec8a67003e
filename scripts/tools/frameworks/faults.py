"""The errors that a check can find in a recipe's command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["refused", "ignored", "abbreviated", "dead", "twice", "waits", "crash"]


@dataclass(frozen=True)
class Fault:
    """One error, in the framework's words if it has any."""

    kind: Kind
    """refused: its parser or an assertion; ignored: it goes on with another value, or says that
    this one is of no use; dead: nothing reads it; waits: for ever, for a place on the nodes;
    crash: its code ends with an error that was not meant as a refusal."""
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(frozen=True)
class Case:
    """One command and the nodes that it is for."""

    name: str
    argv: tuple[str, ...]
    """The framework's own arguments: those after the module's name."""
    nodes: tuple[tuple[int, int], ...]
    """GPUs and CPUs of each."""
    module: str = ""
    """The module that is run, such as openrlhf.cli.train_ppo_ray; or a script, by its path."""
