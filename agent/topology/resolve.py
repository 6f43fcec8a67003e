"""The role of this node and the address of its head, from the platform and the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import Problem, SettingsError
from agent.base.ports import DEFAULTS
from agent.base.value import Value
from agent.settings.jobs import launcher
from agent.settings.model import TOKEN_MODE
from agent.settings.rules import POD_ACTIONS
from agent.topology import kuberay, ranked, slurm
from agent.topology.claim import PlatformInfo
from agent.topology.ranked import DSTACK, LWS, detector, own_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
    ("runpod-cluster", ranked.detect_runpod_cluster),  # before "runpod": its nodes are pods, too
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
    ("runpod", ranked.detect_runpod),
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
    def own_rank(self) -> int | None:
        """Return this node's rank; without ranks of the platform the head has 0."""
        return 0 if self.platform.rank is None and self.is_head else self.platform.rank

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
    given = platform.given_ray
    problems = (
        *_worker_without_head(settings, platform, is_head=is_head, head_host=head_host),
        *_role_against_platform(settings, platform, is_head=is_head),
        *_head_address(settings, platform, facts, is_head=is_head),
        *_pod_against_rank(settings, platform, own_pod(environ)),
        *_pod_to_stop(settings, own_pod(environ)),
        *(() if given is None or not is_head else settings_without_effect(settings, given)),
    )
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


def _pod_to_stop(settings: Settings, own_pod: str | None) -> Iterator[Problem]:
    if settings.on_done in POD_ACTIONS and own_pod is None:
        got = f"'{settings.on_done}' without RUNPOD_POD_ID"
        yield Problem("AGENT_ON_DONE", got, "exit or hold: only a pod of RunPod can be stopped")


def _evidence_and_role(platform: PlatformInfo) -> str:
    return f"{', '.join(platform.evidence)} ({'head' if platform.is_head else 'worker'})"


def settings_without_effect(settings: Settings, given: GivenRay) -> Iterator[Problem]:
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
    if settings.notice_signal:
        yield Problem("AGENT_NOTICE_SIGNAL", f"{settings.notice_signal}, but {no_agent}", "unset")
    if settings.preflight is not None:
        yield Problem("AGENT_PREFLIGHT", f"{settings.preflight!r}, but {no_agent}", "unset")
    if given.asks_token and settings.ray_auth_token is None:
        expected = f"the token of {owner}'s Ray (key auth_token of the secret named as the cluster)"
        yield Problem("RAY_AUTH_TOKEN", f"nothing beside {TOKEN_MODE}=token", expected)
