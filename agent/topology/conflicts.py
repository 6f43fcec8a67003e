"""Contradictions between the user's settings, the platform and the facts of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import Problem
from agent.settings.jobs import launcher
from agent.settings.model import TOKEN_MODE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.topology.claim import GivenRay, PlatformInfo


def conflicts(  # noqa: PLR0913 - everything that can contradict
    settings: Settings,
    platform: PlatformInfo,
    facts: Facts,
    own_pod: str | None,
    *,
    is_head: bool,
    head_host: str | None,
) -> tuple[Problem, ...]:
    """Return a problem for every contradiction."""
    given = platform.given_ray
    return (
        *_worker_without_head(settings, platform, is_head=is_head, head_host=head_host),
        *_role_against_platform(settings, platform, is_head=is_head),
        *_head_address(settings, platform, facts, is_head=is_head),
        *_pod_against_rank(settings, platform, own_pod),
        *(() if given is None or not is_head else _settings_without_effect(settings, given)),
    )


def _worker_without_head(
    settings: Settings, platform: PlatformInfo, *, is_head: bool, head_host: str | None
) -> Iterator[Problem]:
    if is_head or head_host is not None or platform.given_ray is not None:
        return  # _role_against_platform reports RAY_WORKER=1 where the platform starts Ray
    role = () if settings.ray_worker is None else ("RAY_WORKER=1",)
    yield Problem(
        "HEAD_POD_ID + AGENT_HEAD",
        f"neither, on a worker ({', '.join((*role, *platform.evidence))})",
        "HEAD_POD_ID (RunPod) or AGENT_HEAD, so that a worker finds its head",
    )


def _role_against_platform(
    settings: Settings, platform: PlatformInfo, *, is_head: bool
) -> Iterator[Problem]:
    """Check RAY_WORKER against a proven role; with AGENT_HEAD it may override a rank."""
    if settings.ray_worker is None or not platform.role_is_proven or platform.is_head == is_head:
        return
    if settings.head is not None and platform.has_ranks:
        return
    sides = " and ".join((f"RAY_WORKER={int(settings.ray_worker)}", *platform.evidence))
    yield Problem(
        platform.role_variable,
        f"a contradiction: {sides}",
        "one of the two: unset RAY_WORKER, or correct the other",
    )


def _head_address(
    settings: Settings, platform: PlatformInfo, facts: Facts, *, is_head: bool
) -> Iterator[Problem]:
    """Check AGENT_HEAD and this node's addresses against RAY_WORKER, HEAD_POD_ID and the rank.

    A mismatch means two heads, or none.
    """
    head, role = settings.head, settings.ray_worker
    if head is None:
        return
    owns, resolves = facts.is_own(head), facts.can_resolve(head)
    own = ", ".join(facts.addresses()) or "none found"
    what = f"AGENT_HEAD={head} {'is' if owns else 'is not'} an address of this node ({own})"
    mismatch = owns != platform.is_head
    if resolves and role is not None and owns != is_head:
        yield Problem(
            "RAY_WORKER + AGENT_HEAD",
            f"a contradiction: RAY_WORKER={int(role)}, but {what}",
            "RAY_WORKER=0 on the head alone, or RAY_WORKER unset",
        )
    elif resolves and settings.head_pod_id is not None and platform.role_is_proven and mismatch:
        evidence = ", ".join(platform.evidence)
        got = f"two heads: {evidence}, but {what}"
        yield Problem("HEAD_POD_ID + AGENT_HEAD", got, "one of the two")
    if role is None and platform.has_ranks and mismatch and (owns or resolves):
        yield Problem(
            platform.role_variable.replace("RAY_WORKER", "AGENT_HEAD"),
            f"a contradiction: {_evidence_and_role(platform)}, but {what}",
            "AGENT_HEAD unset, as the platform sets the head; or RAY_WORKER set beside it on "
            "every node",
        )


def _pod_against_rank(
    settings: Settings, platform: PlatformInfo, own_pod: str | None
) -> Iterator[Problem]:
    """Check HEAD_POD_ID against the rank; RAY_WORKER with AGENT_HEAD overrides both."""
    head_pod = settings.head_pod_id
    overridden = settings.ray_worker is not None and settings.head is not None
    if head_pod is None or not platform.has_ranks or overridden:
        return
    if own_pod is None or (own_pod == head_pod) != platform.is_head:
        here = f"RUNPOD_POD_ID={own_pod}" if own_pod else "no RUNPOD_POD_ID"
        yield Problem(
            platform.role_variable.replace("RAY_WORKER", "HEAD_POD_ID"),
            f"a contradiction: HEAD_POD_ID={head_pod} with {here}, "
            f"but {_evidence_and_role(platform)}",
            "HEAD_POD_ID unset, as the platform sets the head",
        )


def _evidence_and_role(platform: PlatformInfo) -> str:
    return f"{', '.join(platform.evidence)} ({'head' if platform.is_head else 'worker'})"


def _settings_without_effect(settings: Settings, given: GivenRay) -> Iterator[Problem]:
    """Yield a problem for every setting that has no effect on a Ray the agent does not start."""
    owner = given.owner
    a_value, no_agent = f"a value, though {owner} starts Ray", f"no agent on {owner}'s nodes"
    flags = {
        "AGENT_NUM_CPUS": settings.num_cpus is not None,
        "AGENT_NUM_GPUS": settings.num_gpus is not None,
        "AGENT_RESOURCES": bool(settings.resources),
        "AGENT_RAY_ARGS": bool(settings.ray_args),
        "AGENT_DASHBOARD_HOST": settings.dashboard_host is not None,
    }
    names = " + ".join(name for name, is_set in flags.items() if is_set)
    if names:
        expected = f"nothing here, but rayStartParams of the pods' group in {owner}"
        yield Problem(names, a_value, expected)
    if settings.debug_ray != "0":
        flag = "RAY_DEBUG=legacy" if settings.debug_ray == "1" else "RAY_DEBUG_POST_MORTEM=1"
        expected = f"nothing here, but {flag} in the environment of the pods' groups"
        yield Problem("DEBUG_RAY", a_value, expected)
    if launcher(settings, None) != "ray":
        got = f"{launcher(settings, None)!r}, though {owner}'s nodes run Ray"
        yield Problem("AGENT_LAUNCHER", got, "ray; or other pods, without Ray")
    if settings.prepare_each is not None:
        expected = "AGENT_PREPARE, which runs once; or an init container in each pods' group"
        yield Problem("AGENT_PREPARE_EACH", f"a command, but {no_agent}", expected)
    if settings.preflight is not None:
        yield Problem("AGENT_PREFLIGHT", f"{settings.preflight!r}, but {no_agent}", "unset")
    if given.asks_token and settings.ray_auth_token is None:
        expected = f"the token of {owner}'s Ray (key auth_token of the secret named as the cluster)"
        yield Problem("RAY_AUTH_TOKEN", f"nothing beside {TOKEN_MODE}=token", expected)
