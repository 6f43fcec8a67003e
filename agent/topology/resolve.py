"""The role of this node and the address of its head, from the platform and the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import SettingsError
from agent.base.ports import DEFAULTS
from agent.base.value import Value
from agent.topology import kuberay, ranked, runpod, slurm
from agent.topology.claim import PlatformInfo
from agent.topology.conflicts import conflicts
from agent.topology.ranked import DSTACK, LWS, detector
from agent.topology.runpod import own_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.base.ports import PortBase
    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.topology.claim import GivenRay

    Detector = Callable[[Mapping[str, str], Settings], PlatformInfo | None]

PLATFORMS: tuple[tuple[str, Detector], ...] = (
    # Platforms that run on other platforms come first: the variables of both are set.
    ("dstack", detector(DSTACK)),  # also on RunPod's pods, which have no ranks
    ("skypilot", ranked.detect_skypilot),  # also on RunPod, Kubernetes and Slurm
    # srun passes on the caller's environment, such as that of a cloud's login node.
    ("slurm", slurm.detect_slurm),
    ("runpod-cluster", runpod.detect_runpod_cluster),  # before "runpod": its nodes are pods, too
    # Kubernetes: KubeRay first, since it decides where Ray already runs.
    ("kuberay", kuberay.detect_kuberay),
    ("lws", detector(LWS)),
    ("kubeflow-trainer", ranked.detect_kubeflow_trainer),
    ("pytorchjob", ranked.detect_pytorchjob),  # after Trainer, which also sets PET_NODE_RANK
    ("aws-batch", ranked.detect_aws_batch),
    ("sagemaker", ranked.detect_sagemaker),
    # General variables, which the platforms above may also set for their jobs. On platforms
    # without ranks the user must have set them, so they come before those.
    ("torchrun", ranked.detect_torchrun),
    ("runpod", runpod.detect_runpod),
    ("vast", ranked.detect_vast),
    ("plain", ranked.detect_plain),  # matches everything else
)
"""To add a platform with a rank variable, add a row to `ranked` and a line here."""


def detect_platform(environ: Mapping[str, str], settings: Settings) -> PlatformInfo:
    """Return the node as the first matching platform describes it."""
    return next(filter(None, (detect(environ, settings) for _, detect in PLATFORMS)))


def port_base(environ: Mapping[str, str], settings: Settings) -> PortBase:
    """Return the default ports of this platform; the usual ones if its variables are invalid."""
    try:
        return detect_platform(environ, settings).ports
    except SettingsError:
        return DEFAULTS


class Topology(Value):
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
    """True in a container of the agent, where any running Ray is left over from it."""

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
    head_host = settings.head or platform.head_host
    host_evidence = (f"head from AGENT_HEAD={settings.head}",) if settings.head else ()
    pod = own_pod(environ)
    problems = conflicts(settings, platform, facts, pod, is_head=is_head, head_host=head_host)
    if problems:
        raise SettingsError(problems)
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
        verb = "is" if owns else "is not"
        return owns, (f"AGENT_HEAD={settings.head} {verb} an address of this node",)
    return platform.is_head, platform.evidence


def _expected(settings: Settings, platform: PlatformInfo, head_host: str | None) -> int:
    if settings.expected_workers is not None:
        return settings.expected_workers
    if platform.nodes is not None:
        return platform.nodes - 1
    return 0 if head_host is None or platform.single_node else 1
