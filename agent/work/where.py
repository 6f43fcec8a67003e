"""On which nodes something runs, and the values that are filled in there."""

from __future__ import annotations

import re
from typing import Literal

from agent.base.addresses import in_url
from agent.base.value import dataclass

NODE_IP = "{node_ip}"
"""Stands for a node's address where only the run will find it."""
HEAD_IP = "{head_ip}"
"""Stands for the head's address likewise."""

_PLACEHOLDER = re.compile(r"(?<!\$)(//)?\{(node_ip|head_ip|rank|log_dir)\}(:\d)?")


def has_placeholder(text: str) -> bool:
    """Say whether a text holds what only the run will find."""
    return _PLACEHOLDER.search(text) is not None


@dataclass(frozen=True)
class Where:
    """The nodes on which something runs."""

    kind: Literal["head", "every", "workers", "rank"] = "head"
    rank: int | None = None

    def includes(self, rank: int | None, *, is_head: bool) -> bool:
        """Say whether a node is one of them."""
        if self.kind == "rank":
            return rank == self.rank
        return self.kind == "every" or is_head == (self.kind == "head")

    def may_include(self, rank: int | None, *, is_head: bool) -> bool:
        """Say whether a node is one of them, or may be once the head has given it a rank."""
        if self.kind == "rank" and rank is None and not is_head:
            return True
        return self.includes(rank, is_head=is_head)

    def meets(self, other: Where) -> bool:
        """Say whether some node may be one of these and one of the others."""
        if self.kind == other.kind:
            return self.rank == other.rank
        pair = {self.kind, other.kind}
        return pair not in ({"head", "workers"}, {"head", "rank"})

    def sentence(self) -> str:
        """Name them as a person would."""
        names = {"head": "the head", "every": "every node", "workers": "the workers"}
        return names.get(self.kind, f"rank {self.rank}")


ON_HEAD = Where("head")
ON_EVERY = Where("every")


@dataclass(frozen=True)
class Place:
    """One node, as the commands that run there know it: the values of their placeholders."""

    node_ip: str = NODE_IP
    head_ip: str = HEAD_IP
    rank: str = "{rank}"
    log_dir: str = "{log_dir}"

    def fill(self, text: str) -> str:
        """Put values in place of the placeholders; `${…}` is the shell's own, and stays.

        As part of a URL, or before a port, an IPv6 address stands in brackets.
        """
        return _PLACEHOLDER.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        before, name, after = found[1] or "", found[2], found[3] or ""
        value = str(getattr(self, name))
        return f"{before}{in_url(value) if before or after else value}{after}"
