"""On which nodes something runs, and the placeholders of its command."""

from __future__ import annotations

import re
from typing import Literal

from agent.base.text import in_url
from agent.base.value import Value

NODE_IP = "{node_ip}"
"""Placeholder for a node's address."""
HEAD_IP = "{head_ip}"
"""Placeholder for the head's address."""

NODE_PLACEHOLDERS = ("node_ip", "head_ip", "rank", "log_dir")
_PLACEHOLDER = re.compile(r"(?<!\$)(//)?\{(" + "|".join(NODE_PLACEHOLDERS) + r")\}(:\d)?")


def has_placeholder(text: str) -> bool:
    """Return whether a text contains a placeholder."""
    return _PLACEHOLDER.search(text) is not None


class Where(Value):
    """The nodes on which something runs."""

    kind: Literal["head", "every", "workers", "rank"] = "head"
    rank: int | None = None

    def includes(self, rank: int | None, *, is_head: bool) -> bool:
        """Return whether a node is one of them."""
        if self.kind == "rank":
            return rank == self.rank
        return self.kind == "every" or is_head == (self.kind == "head")

    def may_include(self, rank: int | None, *, is_head: bool) -> bool:
        """Return whether a node is one of them, or may be once the head has assigned its rank."""
        if self.kind == "rank" and rank is None and not is_head:
            return True
        return self.includes(rank, is_head=is_head)

    def meets(self, other: Where) -> bool:
        """Return whether a node may be in both."""
        if self.kind == other.kind:
            return self.rank == other.rank
        pair = {self.kind, other.kind}
        return pair not in ({"head", "workers"}, {"head", "rank"})

    def sentence(self) -> str:
        """Return the nodes in words."""
        names = {"head": "the head", "every": "every node", "workers": "the workers"}
        return names.get(self.kind, f"rank {self.rank}")


ON_HEAD = Where("head")
ON_EVERY = Where("every")


class Placeholders(Value):
    """The values of the placeholders on one node."""

    node_ip: str = NODE_IP
    head_ip: str = HEAD_IP
    rank: str = "{rank}"
    log_dir: str = "{log_dir}"

    def fill(self, text: str) -> str:
        """Fill in the placeholders; `${…}` of a shell stays.

        In a URL or before a port an IPv6 address gets brackets.
        """
        return _PLACEHOLDER.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        before, name, after = found[1] or "", found[2], found[3] or ""
        value = str(getattr(self, name))
        return f"{before}{in_url(value) if before or after else value}{after}"
