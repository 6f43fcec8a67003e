"""What a platform claims about a node from its environment alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.errors import Problem, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Claim:
    """A platform's word on who this node is, before the user's own word is weighed against it."""

    platform: str
    is_head: bool
    evidence: tuple[str, ...]
    role_variable: str = "RAY_WORKER"
    """The variables to name when the user's word contradicts this claim."""
    knows_role: bool = False
    """True where the environment proves the role, rather than leaving it to a default."""
    knows_ranks: bool = False
    head_host: str | None = None
    must_own_head_host: bool = False
    node_name: str | None = None
    own_names: tuple[str, ...] = ()
    rank: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    run_id: str | None = None
    interface: str | None = None
    owns_machine: bool = False
    alone: bool = False
    """True where nothing points to a second node."""


def number(
    environ: Mapping[str, str], name: str, low: int = 0, high: int | None = None
) -> int | None:
    """Read a platform's number; a value that is none is the platform's error, told by its name."""
    text = environ.get(name)
    if text is None:
        return None
    if re.fullmatch(r"\d{1,9}", text.strip()):
        value = int(text)
        if value >= low and (high is None or value <= high):
            return value
    most = "" if high is None else f" and at most {high}"
    raise SettingsError((Problem(name, repr(text), f"a whole number of at least {low}{most}"),))
