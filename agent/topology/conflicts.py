"""Where the user's word, the platform's and this node's addresses contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.platforms.claim import Claim


def conflicts(  # noqa: PLR0913 - all sides that can contradict each other
    settings: Settings,
    claim: Claim,
    facts: Facts,
    own_pod: str | None,
    *,
    is_head: bool,
    head_host: str | None,
) -> tuple[Problem, ...]:
    """Find every contradiction; each shows both sides."""
    return (
        *_worker_without_head(settings, claim, is_head=is_head, head_host=head_host),
        *_role_by_hand(settings, claim, is_head=is_head),
        *_head_by_hand(settings, claim, facts, is_head=is_head),
        *_head_against_rank(settings, claim, facts),
        *_pod_against_rank(settings, claim, own_pod),
    )


def _worker_without_head(
    settings: Settings, claim: Claim, *, is_head: bool, head_host: str | None
) -> Iterator[Problem]:
    if is_head or head_host is not None or claim.ray is not None:
        return  # where Ray is given, a worker by hand is a contradiction, and told as one
    by_hand = () if settings.ray_worker is None else ("RAY_WORKER=1",)
    yield Problem(
        "HEAD_POD_ID + AGENT_HEAD",
        f"neither, on a worker ({', '.join((*by_hand, *claim.evidence))})",
        "HEAD_POD_ID (RunPod) or AGENT_HEAD, so that a worker knows its head",
    )


def _role_by_hand(settings: Settings, claim: Claim, *, is_head: bool) -> Iterator[Problem]:
    """RAY_WORKER against what the platform proves; AGENT_HEAD may overrule a rank, never a pod."""
    if settings.ray_worker is None or not claim.knows_role or claim.is_head == is_head:
        return
    if settings.head is not None and claim.knows_ranks:
        return
    sides = " and ".join((f"RAY_WORKER={int(settings.ray_worker)}", *claim.evidence))
    yield Problem(
        claim.role_variable,
        f"a contradiction: {sides}",
        "one of the two: unset RAY_WORKER, or correct the other",
    )


def _head_by_hand(
    settings: Settings, claim: Claim, facts: Facts, *, is_head: bool
) -> Iterator[Problem]:
    """AGENT_HEAD against the addresses of this node, and against HEAD_POD_ID."""
    head = settings.head
    if head is None or not facts.knows(head):
        return
    owns = facts.is_own(head)
    mine = ", ".join(facts.addresses()) or "none found"
    if settings.ray_worker is not None and owns != is_head:
        does = "is" if owns else "is not"
        yield Problem(
            "RAY_WORKER + AGENT_HEAD",
            f"a contradiction: RAY_WORKER={int(settings.ray_worker)}, but AGENT_HEAD={head} "
            f"{does} an address of this node ({mine})",
            "RAY_WORKER=0 on the head alone, or RAY_WORKER unset",
        )
    elif settings.head_pod_id is not None and claim.knows_role and owns != claim.is_head:
        does = "is" if owns else "is not"
        yield Problem(
            "HEAD_POD_ID + AGENT_HEAD",
            f"two heads: {', '.join(claim.evidence)}, but AGENT_HEAD={head} {does} an address of "
            f"this node ({mine})",
            "one of the two",
        )


def _head_against_rank(settings: Settings, claim: Claim, facts: Facts) -> Iterator[Problem]:
    """AGENT_HEAD against the rank that decides the role: two heads, or none, would come of it."""
    head = settings.head
    if head is None or not claim.knows_ranks or settings.ray_worker is not None:
        return
    owns = facts.is_own(head)
    if owns != claim.is_head and (owns or facts.knows(head)):
        does = "is" if owns else "is not"
        mine = ", ".join(facts.addresses()) or "none found"
        yield Problem(
            claim.role_variable.replace("RAY_WORKER", "AGENT_HEAD"),
            f"a contradiction: {_said(claim)}, but AGENT_HEAD={head} {does} an address of this "
            f"node ({mine})",
            "AGENT_HEAD unset, as the platform knows the head; or RAY_WORKER set beside it on "
            "every node",
        )


def _pod_against_rank(settings: Settings, claim: Claim, own_pod: str | None) -> Iterator[Problem]:
    """HEAD_POD_ID against the ranks of a platform; RAY_WORKER with AGENT_HEAD settles both."""
    head_pod = settings.head_pod_id
    settled = settings.ray_worker is not None and settings.head is not None
    if head_pod is None or not claim.knows_ranks or settled:
        return
    if own_pod is None or (own_pod == head_pod) != claim.is_head:
        here = f"RUNPOD_POD_ID={own_pod}" if own_pod else "no RUNPOD_POD_ID"
        yield Problem(
            claim.role_variable.replace("RAY_WORKER", "HEAD_POD_ID"),
            f"a contradiction: HEAD_POD_ID={head_pod} with {here}, but {_said(claim)}",
            "HEAD_POD_ID unset, as the platform knows the head",
        )


def _said(claim: Claim) -> str:
    return f"{', '.join(claim.evidence)} ({'head' if claim.is_head else 'worker'})"
