"""The role of this node and the address of its head, from the platform and the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import Problem, SettingsError
from agent.base.ports import DEFAULTS
from agent.base.value import Value
from agent.settings.jobs import launcher
from agent.settings.model import TOKEN_MODE
from agent.settings.rules import POD_ACTIONS
from agent.topology import kuberay, platforms, slurm
from agent.topology.platforms import DSTACK, LWS, PlatformInfo, own_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.base.ports import PortBase
    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.topology.platforms import GivenRay

    Detector = Callable[[Mapping[str, str], Settings], PlatformInfo | None]

PLATFORMS: tuple[tuple[str, Detector], ...] = (
    # Platforms that run on other platforms come first: the variables of both are set.
    ("dstack", DSTACK.detect),  # also on RunPod's pods, which have no ranks
    ("skypilot", platforms.detect_skypilot),  # also on RunPod, Kubernetes and Slurm
    # srun passes on the caller's environment, such as that of a cloud's login node.
    ("slurm", slurm.detect_slurm),
    ("runpod-cluster", platforms.detect_runpod_cluster),  # before "runpod": its nodes are pods, too
    # Kubernetes: KubeRay first, since it decides where Ray already runs.
    ("kuberay", kuberay.detect_kuberay),
    ("lws", LWS.detect),
    ("kubeflow-trainer", platforms.detect_kubeflow_trainer),
    ("pytorchjob", platforms.detect_pytorchjob),  # after Trainer, which also sets PET_NODE_RANK
    ("aws-batch", platforms.detect_aws_batch),
    ("sagemaker", platforms.detect_sagemaker),
    # General variables, which the platforms above may also set for their jobs. On platforms
    # without ranks the user must have set them, so they come before those.
    ("torchrun", platforms.detect_torchrun),
    ("runpod", platforms.detect_runpod),
    ("vast", platforms.detect_vast),
    ("plain", platforms.detect_plain),  # matches everything else
)
"""To add a platform with a rank variable, add a `RankVariables` constant to platforms.py and a
line here.
"""


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
    is_head: bool
    node_name: str
    expected_workers: int
    head_host: str | None  # its name or address; None where this is the head and nothing names it
    evidence: tuple[str, ...]
    must_own_head_host: bool = False  # is the head only if the head's name resolves to it
    owns_machine: bool = False  # in a container of the agent: any running Ray is left over from it

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
    is_head, evidence = platform.is_head, platform.evidence
    head_host, expected = settings.head or platform.head_host, settings.expected_workers
    if settings.ray_worker is not None:
        is_head = not settings.ray_worker
        evidence = (f"RAY_WORKER={int(settings.ray_worker)}", *evidence)
    elif settings.head is not None and not platform.role_is_proven:
        is_head = facts.is_own(settings.head)
        verb = "is" if is_head else "is not"
        evidence = (f"AGENT_HEAD={settings.head} {verb} an address of this node",)
    if settings.head is not None:
        evidence = (*evidence, f"head from AGENT_HEAD={settings.head}")
    if expected is None and platform.nodes is not None:
        expected = platform.nodes - 1
    elif expected is None:
        expected = 0 if head_host is None or platform.single_node else 1
    given = platform.given_ray
    problems = (
        *_role_problems(settings, platform, is_head=is_head),
        *_head_address(settings, platform, facts, is_head=is_head),
        *_pod_problems(settings, platform, own_pod(environ)),
        *(() if given is None or not is_head else settings_without_effect(settings, given)),
    )
    if problems:
        raise SettingsError(problems)
    return Topology(
        platform=platform,
        is_head=is_head,
        node_name=platform.node_name or facts.hostname,
        expected_workers=expected,
        head_host=head_host,
        evidence=evidence,
        must_own_head_host=is_head and platform.must_own_head_host and settings.ray_worker is None,
        owns_machine=platform.owns_machine or facts.is_first_process,
    )


def _role_problems(
    settings: Settings, platform: PlatformInfo, *, is_head: bool
) -> Iterator[Problem]:
    """Check that a worker can find its head, and RAY_WORKER against a proven role."""
    role = settings.ray_worker
    evidence = (*(() if role is None else (f"RAY_WORKER={int(role)}",)), *platform.evidence)
    if not (is_head or settings.head or platform.head_host or platform.given_ray):
        got = f"neither, on a worker ({', '.join(evidence)})"
        expected = "HEAD_POD_ID (RunPod) or AGENT_HEAD, so that a worker finds its head"
        yield Problem("HEAD_POD_ID + AGENT_HEAD", got, expected)
    overrides = settings.head is not None and platform.has_ranks  # both may override a rank
    contradicts = platform.role_is_proven and platform.is_head != is_head
    if role is not None and contradicts and not overrides:
        got = f"a contradiction: {' and '.join(evidence)}"
        expected = "one of the two: unset RAY_WORKER, or correct the other"
        yield Problem(platform.role_variable, got, expected)


def _head_address(
    settings: Settings, platform: PlatformInfo, facts: Facts, *, is_head: bool
) -> Iterator[Problem]:
    """Check AGENT_HEAD against role, pod and rank: a mismatch means two heads, or none."""
    head, role = settings.head, settings.ray_worker
    if head is None:
        return
    owns, resolves = facts.is_own(head), bool(facts.addresses_of(head))
    own = ", ".join(facts.addresses()) or "none found"
    what = f"AGENT_HEAD={head} {'is' if owns else 'is not'} an address of this node ({own})"
    mismatch = owns != platform.is_head
    if resolves and role is not None and owns != is_head:
        got = f"a contradiction: RAY_WORKER={int(role)}, but {what}"
        expected = "RAY_WORKER=0 on the head alone, or RAY_WORKER unset"
        yield Problem("RAY_WORKER + AGENT_HEAD", got, expected)
    elif resolves and settings.head_pod_id is not None and platform.role_is_proven and mismatch:
        got = f"two heads: {', '.join(platform.evidence)}, but {what}"
        yield Problem("HEAD_POD_ID + AGENT_HEAD", got, "one of the two")
    if role is None and platform.has_ranks and mismatch and (owns or resolves):
        yield Problem(
            platform.role_variable.replace("RAY_WORKER", "AGENT_HEAD"),
            f"a contradiction: {_evidence_and_role(platform)}, but {what}",
            "AGENT_HEAD unset, as the platform sets the head; or RAY_WORKER set beside it on "
            "every node",
        )


def _pod_problems(
    settings: Settings, platform: PlatformInfo, own_pod: str | None
) -> Iterator[Problem]:
    """Check HEAD_POD_ID against the rank, unless AGENT_HEAD overrides both, and AGENT_ON_DONE."""
    head_pod = settings.head_pod_id
    overridden = settings.ray_worker is not None and settings.head is not None
    differs = own_pod is None or (own_pod == head_pod) != platform.is_head
    if head_pod is not None and platform.has_ranks and not overridden and differs:
        here = f"RUNPOD_POD_ID={own_pod}" if own_pod else "no RUNPOD_POD_ID"
        yield Problem(
            platform.role_variable.replace("RAY_WORKER", "HEAD_POD_ID"),
            f"a contradiction: HEAD_POD_ID={head_pod} with {here}, "
            f"but {_evidence_and_role(platform)}",
            "HEAD_POD_ID unset, as the platform sets the head",
        )
    if settings.on_done in POD_ACTIONS and own_pod is None:
        got = f"'{settings.on_done}' without RUNPOD_POD_ID"
        yield Problem("AGENT_ON_DONE", got, "exit or hold: only a pod of RunPod can be stopped")


def _evidence_and_role(platform: PlatformInfo) -> str:
    return f"{', '.join(platform.evidence)} ({'head' if platform.is_head else 'worker'})"


def settings_without_effect(settings: Settings, given: GivenRay) -> Iterator[Problem]:
    """Yield a problem for every setting that has no effect on a Ray the agent does not start."""
    owner = given.owner
    flag = f"nothing here, but rayStartParams of the pods' group in {owner}"
    debug = "RAY_DEBUG=legacy" if settings.debug_ray == "1" else "RAY_DEBUG_POST_MORTEM=1"
    debug = f"nothing here, but {debug} in the environment of the pods' groups"
    prepare = "AGENT_PREPARE, which runs once; or an init container in each pods' group"
    instead: dict[str, dict[str, object]] = {
        flag: {
            "AGENT_NUM_CPUS": settings.num_cpus is not None,
            "AGENT_NUM_GPUS": settings.num_gpus is not None,
            "AGENT_RESOURCES": settings.resources,
            "AGENT_RAY_ARGS": settings.ray_args,
            "AGENT_DASHBOARD_HOST": settings.dashboard_host is not None,
        },
        debug: {"DEBUG_RAY": settings.debug_ray != "0"},
        "ray; or other pods, without Ray": {"AGENT_LAUNCHER": launcher(settings, None) != "ray"},
        prepare: {"AGENT_PREPARE_EACH": settings.prepare_each is not None},
        "unset": {
            "AGENT_NOTICE_SIGNAL": settings.notice_signal,
            "AGENT_PREFLIGHT": settings.preflight is not None,
        },
    }
    got = f"a value, though {owner} starts Ray, with no agent on {owner}'s nodes"
    for expected, variables in instead.items():
        names = " + ".join(name for name, is_set in variables.items() if is_set)
        if names:
            yield Problem(names, got, expected)
    if given.asks_token and settings.ray_auth_token is None:
        expected = f"the token of {owner}'s Ray (key auth_token of the secret named as the cluster)"
        yield Problem("RAY_AUTH_TOKEN", f"nothing beside {TOKEN_MODE}=token", expected)
