"""Who this node is among the others, and on what evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import SettingsError
from agent.base.value import dataclass
from agent.topology.conflicts import conflicts
from agent.topology.given_ray import settings_without_effect
from agent.topology.platforms import claim_of
from agent.topology.platforms.runpod import own_pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.given_ray import GivenRay
    from agent.topology.platforms.claim import Claim


@dataclass(frozen=True)
class Topology:
    """Role and the way to the head: the platform's word, with the user's own weighed against it."""

    claim: Claim
    """What the platform says of this node; where the fields here differ, the user's word won."""
    is_head: bool
    node_name: str
    expected_workers: int
    head_host: str | None
    """Name or address of the head; None where this is the head and nothing names it."""
    evidence: tuple[str, ...]
    must_own_head_host: bool = False
    """True where this node is the head only if the head's name turns out to be its own."""
    owns_machine: bool = False
    """True in a container of our own, where any Ray that runs is a stale one of ours."""

    @property
    def given_ray(self) -> GivenRay | None:
        """Return the Ray that the platform starts and stops; None where that is our work."""
        return self.claim.ray

    @property
    def role(self) -> str:
        """Say head or worker."""
        return "head" if self.is_head else "worker"

    @property
    def is_idle(self) -> bool:
        """Say whether this node needs no agent: somebody else joins it to a Ray that is given."""
        return self.given_ray is not None and not self.is_head

    def sentence(self) -> str:
        """Describe this node in one line: worker, rank 2 of 3: DSTACK_NODE_RANK=2, …."""
        rank, nodes = self.claim.rank, self.claim.nodes
        place = "" if rank is None else f", rank {rank} of {nodes}"
        return f"{self.role}{place}: {', '.join(self.evidence)}"


def resolve(environ: Mapping[str, str], settings: Settings, facts: Facts) -> Topology:
    """Join what was set by hand with what the platform says; the hand wins, conflicts are told."""
    claim = claim_of(environ, settings)
    is_head, why = _role(settings, claim, facts)
    head_host, host_evidence = _head_host(settings, claim)
    pod = own_pod(environ)
    problems = [*conflicts(settings, claim, facts, pod, is_head=is_head, head_host=head_host)]
    if claim.ray is not None and is_head:
        problems += settings_without_effect(settings, claim.ray)
    if problems:
        raise SettingsError(tuple(problems))
    return Topology(
        claim=claim,
        is_head=is_head,
        node_name=claim.node_name or facts.hostname,
        expected_workers=_expected(settings, claim, head_host),
        head_host=head_host,
        evidence=(*why, *host_evidence),
        must_own_head_host=is_head and claim.must_own_head_host and settings.ray_worker is None,
        owns_machine=claim.owns_machine or facts.is_first_process,
    )


def _role(settings: Settings, claim: Claim, facts: Facts) -> tuple[bool, tuple[str, ...]]:
    if settings.ray_worker is not None:
        return not settings.ray_worker, (f"RAY_WORKER={int(settings.ray_worker)}", *claim.evidence)
    if settings.head is not None and not claim.knows_role:
        owns = facts.is_own(settings.head)
        mine = "is" if owns else "is not"
        return owns, (f"AGENT_HEAD={settings.head} {mine} an address of this node",)
    return claim.is_head, claim.evidence


def _head_host(settings: Settings, claim: Claim) -> tuple[str | None, tuple[str, ...]]:
    if settings.head is not None:
        return settings.head, (f"head from AGENT_HEAD={settings.head}",)
    return claim.head_host, ()


def _expected(settings: Settings, claim: Claim, head_host: str | None) -> int:
    if settings.expected_workers is not None:
        return settings.expected_workers
    if claim.nodes is not None:
        return claim.nodes - 1
    return 0 if head_host is None or claim.alone else 1
