"""The states of a group's members, and the reasons for which members do not serve.

Members with the same reason are named together. A service may have hundreds of members: up to three
are named, more are counted, with their nodes.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from agent.base.text import first_names, listed, with_output
from agent.base.value import Value
from agent.decisions.head.head_state import Key, SeenMember

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_NAMED = 3  # members by name
_MOST_REASONS = 4
_NUMBERS = re.compile(r"\d+")


class MemberState(str, Enum):
    """The state of a member, as status and page show it."""

    PENDING = "pending"  # not started: something else comes first
    LOADING = "loading"  # started, and does not answer yet
    STALE = "stale"  # answers, with older weights than the trainer's
    SERVING = "serving"
    DEAD = "dead"  # ended or silent; it is started again
    RETIRED = "retired"  # given up, or its node has left


class GroupMember(Value):
    """One process of a group's service."""

    key: Key
    title: str  # `engine.0 on n5`
    node: str  # its node's name
    rank: int
    index: int  # on its node
    state: MemberState
    address: str = ""  # its own `HOST:PORT`
    generation: int = 1
    answers: bool = False
    is_cut_off: bool = False  # its node is silent or has left
    evidence: str = ""
    output: str = ""  # what it printed last, if the evidence is its end
    last_end: str = ""  # why it ended last, until it is ready again
    seen: SeenMember | None = None  # by its front

    @property
    def in_full(self) -> str:
        """Return the evidence with what it printed last."""
        return with_output(self.evidence, self.output)

    @property
    def may_serve(self) -> bool:
        """Return whether it is not given up."""
        return self.state is not MemberState.RETIRED

    @property
    def serves(self) -> bool:
        """Return whether it serves."""
        return self.state is MemberState.SERVING


def reasons_text(members: Sequence[GroupMember], *, in_full: bool = False) -> str:
    """Return why those of a service's members that do not serve do not; '' if all serve.

    In full: with what the first of each reason printed last.
    """
    by_reason: dict[tuple[str, str], list[GroupMember]] = {}
    for member in members:
        if not member.serves:
            by_reason.setdefault(_reason_key(member), []).append(member)
    groups = sorted(by_reason.values(), key=len, reverse=True)
    parts = [
        f"{_who(group, len(members))}{_reason(group, in_full=in_full)}"
        for group in groups[:_MOST_REASONS]
    ]
    others = sum(len(group) for group in groups[_MOST_REASONS:])
    if others:
        parts.append(f"{others} more for other reasons")
    return "; ".join(parts)


def _reason_key(member: GroupMember) -> tuple[str, str]:
    """Return what is equal for members that do not serve for the same reason.

    Members that ended in the same way belong together, whether they are started again already.
    What probes say has addresses and ports in it.
    """
    if _has_ended(member):
        return "", member.last_end
    return member.state.value, _NUMBERS.sub("#", member.evidence)


def _has_ended(member: GroupMember) -> bool:
    """Return whether it has not been ready since its last end, and may be ready again."""
    if not member.last_end:
        return False
    return member.evidence == member.last_end or member.state.value in {"pending", "loading"}


def _who(members: Sequence[GroupMember], of: int) -> str:
    if len(members) == 1:
        return members[0].title
    nodes = first_names(dict.fromkeys(member.node for member in members))
    if len(members) == of:
        return f"all {of} on {nodes}"
    if len(members) <= _MOST_NAMED:
        return listed(member.title for member in members)
    return f"{len(members)} on {nodes}"


def _reason(members: Sequence[GroupMember], *, in_full: bool) -> str:
    """Return the reason of members that share one, as the end of a sentence about them."""
    first = members[0]
    if _has_ended(first):
        outputs = (member.output for member in members if member.output)
        return f": {with_output(first.last_end, next(outputs, '') if in_full else '')}"
    verb = "is" if len(members) == 1 else "are"
    evidence = first.in_full if in_full else first.evidence
    return f" {verb} {first.state.value}{f' ({evidence})' if evidence else ''}"
