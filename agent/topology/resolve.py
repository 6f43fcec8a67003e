"""The role of this node and the address of its head, with the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import Problem, SettingsError
from agent.base.value import dataclass
from agent.topology.platform_info import settings_without_effect
from agent.topology.platforms import detect_platform
from agent.topology.runpod import own_pod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.topology.platform_info import GivenRay, PlatformInfo


def conflicts(  # noqa: PLR0913 - everything that can contradict
    settings: Settings,
    platform: PlatformInfo,
    facts: Facts,
    own_pod: str | None,
    *,
    is_head: bool,
    head_host: str | None,
) -> tuple[Problem, ...]:
    """Return a problem for every contradiction between settings, platform and facts."""
    return (
        *_worker_without_head(settings, platform, is_head=is_head, head_host=head_host),
        *_role_against_platform(settings, platform, is_head=is_head),
        *_head_address(settings, platform, facts, is_head=is_head),
        *_head_against_rank(settings, platform, facts),
        *_pod_against_rank(settings, platform, own_pod),
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
    """Check AGENT_HEAD against this node's addresses and HEAD_POD_ID."""
    head = settings.head
    if head is None or not facts.can_resolve(head):
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
    elif settings.head_pod_id is not None and platform.role_is_proven and owns != platform.is_head:
        does = "is" if owns else "is not"
        yield Problem(
            "HEAD_POD_ID + AGENT_HEAD",
            f"two heads: {', '.join(platform.evidence)}, but AGENT_HEAD={head} {does} an address "
            f"of this node ({mine})",
            "one of the two",
        )


def _head_against_rank(
    settings: Settings, platform: PlatformInfo, facts: Facts
) -> Iterator[Problem]:
    """Check AGENT_HEAD against the rank: a mismatch means two heads, or none."""
    head = settings.head
    if head is None or not platform.has_ranks or settings.ray_worker is not None:
        return
    owns = facts.is_own(head)
    if owns != platform.is_head and (owns or facts.can_resolve(head)):
        does = "is" if owns else "is not"
        mine = ", ".join(facts.addresses()) or "none found"
        yield Problem(
            platform.role_variable.replace("RAY_WORKER", "AGENT_HEAD"),
            f"a contradiction: {_evidence_and_role(platform)}, but AGENT_HEAD={head} {does} an "
            f"address of this node ({mine})",
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


@dataclass(frozen=True)
class Topology:
    """This node's role and the address of its head; the user's settings override the platform."""

    platform: PlatformInfo
    """The node as the platform describes it."""
    is_head: bool
    node_name: str
    expected_workers: int
    head_host: str | None
    """Name or address of the head; None where this is the head and nothing names it."""
    evidence: tuple[str, ...]
    must_own_head_host: bool = False
    """True if this node is the head only if the head's name resolves to it."""
    owns_machine: bool = False
    """True in a container of our own, where any Ray that runs is a stale one of ours."""

    @property
    def given_ray(self) -> GivenRay | None:
        """Return the Ray that the platform starts and stops; None if the agent does."""
        return self.platform.given_ray

    @property
    def role(self) -> str:
        """Return `head` or `worker`."""
        return "head" if self.is_head else "worker"

    @property
    def is_idle(self) -> bool:
        """Return whether this node needs no agent: a worker whose Ray the platform starts."""
        return self.given_ray is not None and not self.is_head

    def sentence(self) -> str:
        """Describe this node in one line: worker, rank 2 of 3: DSTACK_NODE_RANK=2, …."""
        rank, nodes = self.platform.rank, self.platform.nodes
        place = "" if rank is None else f", rank {rank} of {nodes}"
        return f"{self.role}{place}: {', '.join(self.evidence)}"


def resolve(environ: Mapping[str, str], settings: Settings, facts: Facts) -> Topology:
    """Combine settings and platform; settings win, contradictions raise SettingsError."""
    platform = detect_platform(environ, settings)
    is_head, why = _role(settings, platform, facts)
    head_host, host_evidence = _head_host(settings, platform)
    pod = own_pod(environ)
    problems = [*conflicts(settings, platform, facts, pod, is_head=is_head, head_host=head_host)]
    if platform.given_ray is not None and is_head:
        problems += settings_without_effect(settings, platform.given_ray)
    if problems:
        raise SettingsError(tuple(problems))
    return Topology(
        platform=platform,
        is_head=is_head,
        node_name=platform.node_name or facts.hostname,
        expected_workers=_expected(settings, platform, head_host),
        head_host=head_host,
        evidence=(*why, *host_evidence),
        must_own_head_host=is_head and platform.must_own_head_host and settings.ray_worker is None,
        owns_machine=platform.owns_machine or facts.is_first_process,
    )


def _role(settings: Settings, platform: PlatformInfo, facts: Facts) -> tuple[bool, tuple[str, ...]]:
    if settings.ray_worker is not None:
        return not settings.ray_worker, (
            f"RAY_WORKER={int(settings.ray_worker)}",
            *platform.evidence,
        )
    if settings.head is not None and not platform.role_is_proven:
        owns = facts.is_own(settings.head)
        mine = "is" if owns else "is not"
        return owns, (f"AGENT_HEAD={settings.head} {mine} an address of this node",)
    return platform.is_head, platform.evidence


def _head_host(settings: Settings, platform: PlatformInfo) -> tuple[str | None, tuple[str, ...]]:
    if settings.head is not None:
        return settings.head, (f"head from AGENT_HEAD={settings.head}",)
    return platform.head_host, ()


def _expected(settings: Settings, platform: PlatformInfo, head_host: str | None) -> int:
    if settings.expected_workers is not None:
        return settings.expected_workers
    if platform.nodes is not None:
        return platform.nodes - 1
    return 0 if head_host is None or platform.single_node else 1
