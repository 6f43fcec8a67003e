"""The role of this node and the address of its head, from the platform and the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import Problem, SettingsError
from agent.base.ports import DEFAULTS
from agent.base.value import Value
from agent.platforms import kuberay, rank_variables, slurm
from agent.platforms.rank_variables import DSTACK, PlatformInfo, own_pod
from agent.settings.jobs import runs_by_shares
from agent.settings.model import TOKEN_MODE
from agent.settings.rules import NEEDS_PRICE, POD_ACTIONS, changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.base.ports import Ports
    from agent.node.facts import Facts
    from agent.platforms.rank_variables import GivenRay
    from agent.settings.model import Settings

    Detector = Callable[[Mapping[str, str], Settings], PlatformInfo | None]

PLATFORMS: tuple[tuple[str, Detector], ...] = (
    # Platforms that run on other platforms come first: the variables of both are set.
    ("dstack", DSTACK.detect),  # also on RunPod's pods, which have no ranks
    ("skypilot-group", rank_variables.detect_sky_group),
    ("skypilot", rank_variables.SKYPILOT.detect),  # also on RunPod, Kubernetes and Slurm
    # srun passes on the caller's environment, such as that of a cloud's login node.
    ("slurm", slurm.detect_slurm),
    # before "runpod": its nodes are pods, too
    ("runpod-cluster", rank_variables.RUNPOD_CLUSTER.detect),
    # Kubernetes: KubeRay first, since it decides where Ray already runs.
    ("kuberay", kuberay.detect_kuberay),
    ("lws", rank_variables.detect_lws),
    ("kubeflow-trainer", rank_variables.KUBEFLOW_TRAINER.detect),
    # after Trainer, which also sets PET_NODE_RANK
    ("pytorchjob", rank_variables.detect_pytorchjob),
    ("aws-batch", rank_variables.detect_aws_batch),
    ("sagemaker", rank_variables.detect_sagemaker),
    # General variables, which the platforms above may also set for their jobs. On platforms
    # without ranks the user must have set them, so they come before those.
    ("torchrun", rank_variables.detect_torchrun),
    ("runpod", rank_variables.detect_runpod),
    ("vast", rank_variables.detect_vast),
    ("plain", rank_variables.detect_plain),  # matches everything else
)
"""To add a platform with a rank variable, add a `RankVariables` constant to rank_variables.py and a
line here.
"""


def detect_platform(environ: Mapping[str, str], settings: Settings) -> PlatformInfo:
    """Return the node as the first matching platform describes it."""
    return next(filter(None, (detect(environ, settings) for _, detect in PLATFORMS)))


def port_base(environ: Mapping[str, str], settings: Settings) -> Ports:
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
        if self.platform.rank is None and self.is_head:
            return 0
        return self.platform.rank

    @property
    def is_idle(self) -> bool:
        """Return whether this node needs no agent: a worker whose Ray the platform starts."""
        return self.given_ray is not None and not self.is_head

    def deletes_cluster(self, settings: Settings) -> bool:
        """Return whether AGENT_ON_DONE deletes the Instant Cluster that this pod belongs to."""
        return _is_member(self.platform) and settings.on_done == "terminate-pod"

    def sentence(self) -> str:
        """Describe this node in one line: worker, rank 2 of 3: DSTACK_NODE_RANK=2, …."""
        rank = self.platform.rank
        nodes = self.platform.nodes
        place = "" if rank is None else f", rank {rank}"
        if place and nodes is not None:
            place += f" of {nodes}"
        return f"{self.role}{place}: {', '.join(self.evidence)}"


def _is_member(platform: PlatformInfo) -> bool:
    """Return whether this pod is one of an Instant Cluster."""
    return platform.name == rank_variables.RUNPOD_CLUSTER.platform.name


def resolve(environ: Mapping[str, str], settings: Settings, facts: Facts) -> Topology:
    """Combine settings and platform; settings win, contradictions raise SettingsError."""
    platform = detect_platform(environ, settings)
    own = own_pod(environ)
    claims = _claims(settings, platform, facts, own)

    # Is this node the head?
    given_role = settings.ray_worker
    is_head = platform.is_head
    evidence = platform.evidence
    if given_role is not None:
        is_head = not given_role
        evidence = (claims["RAY_WORKER"][1], *evidence)
    elif settings.head is not None and not platform.role_variable:
        is_head = facts.is_own(settings.head)
        verb = "is" if is_head else "is not"
        evidence = (f"AGENT_HEAD={settings.head} {verb} an address of this node",)

    # Where is the head, and how many workers does it expect?
    head_host = settings.head or platform.head_host
    if settings.head is not None:
        evidence = (*evidence, f"head from AGENT_HEAD={settings.head}")
    expected = settings.expected_workers
    if expected is None and platform.nodes is not None:
        expected = platform.nodes - 1
    elif expected is None:
        expected = 0 if head_host is None else 1

    # Do variables contradict each other, or is one missing or without effect?
    problems = []
    if len({role for role, _ in claims.values()}) > 1:
        roles = (f"{why} ({'head' if role else 'worker'})" for role, why in claims.values())
        got = f"a contradiction: {' but '.join(roles)}"
        wanted = "one role: unset what is wrong, or set RAY_WORKER and AGENT_HEAD on all nodes"
        problems.append(Problem(" + ".join(claims), got, wanted))
    given = platform.given_ray
    if not (is_head or head_host or given):
        got = f"neither, on a worker ({', '.join(evidence)})"
        wanted = "HEAD_POD_ID (RunPod) or AGENT_HEAD, so that a worker finds its head"
        problems.append(Problem("HEAD_POD_ID + AGENT_HEAD", got, wanted))
    if settings.on_done in POD_ACTIONS and own is None:
        got = f"'{settings.on_done}' without RUNPOD_POD_ID"
        wanted = "exit or hold: only a pod of RunPod can be stopped"
        problems.append(Problem("AGENT_ON_DONE", got, wanted))
    elif settings.on_done == "stop-pod" and _is_member(platform):
        got = "'stop-pod', which RunPod refuses to a pod of an Instant Cluster"
        wanted = "terminate-pod, which deletes the whole cluster after the run, or hold"
        problems.append(Problem("AGENT_ON_DONE", got, wanted))
    if settings.max_cost is not None and settings.price_per_hour is None and own is None:
        got = "a limit without a price, and without RUNPOD_POD_ID"
        problems.append(Problem("AGENT_MAX_COST", got, NEEDS_PRICE))
    if given is not None and is_head:
        problems += settings_without_effect(settings, given)
    if given is None and not runs_by_shares(settings):
        problems += _auth_mode_problems(environ, settings)
    if problems:
        raise SettingsError(tuple(problems))

    return Topology(
        platform=platform,
        is_head=is_head,
        node_name=platform.node_name or facts.hostname,
        expected_workers=expected,
        head_host=head_host,
        evidence=evidence,
        must_own_head_host=is_head and platform.must_own_head_host and given_role is None,
        owns_machine=platform.owns_machine or facts.is_first_process,
    )


def _claims(
    settings: Settings, platform: PlatformInfo, facts: Facts, own: str | None
) -> dict[str, tuple[bool, str]]:
    """Return whether this node is the head by each variable that determines it, with the evidence.

    RAY_WORKER and AGENT_HEAD together override the platform. A mismatch means two heads, or none.
    """
    worker = settings.ray_worker
    head = settings.head
    claims: dict[str, tuple[bool, str]] = {}

    # The user names the role, or the head's address, for this agent. A worker may be on the
    # machine of its head, which is another process there.
    if worker is not None:
        claims["RAY_WORKER"] = not worker, f"RAY_WORKER={int(worker)}"
    is_beside_head = worker is True and head is not None and facts.is_own(head)
    if head is not None and not is_beside_head and (facts.is_own(head) or facts.addresses_of(head)):
        is_own = facts.is_own(head)
        verb = "is" if is_own else "is not"
        addresses = ", ".join(facts.addresses()) or "none found"
        what = f"AGENT_HEAD={head} {verb} an address of this node ({addresses})"
        claims["AGENT_HEAD"] = is_own, what

    # The platform numbers its nodes, or HEAD_POD_ID names the head's pod.
    by_rank = platform.role_variable not in {"", "HEAD_POD_ID"}
    if by_rank and worker is not None and head is not None:
        return claims
    pod = settings.head_pod_id
    if by_rank and pod is not None:
        here = "no RUNPOD_POD_ID" if own is None else f"RUNPOD_POD_ID={own}"
        claims["HEAD_POD_ID"] = own == pod, f"HEAD_POD_ID={pod} with {here}"
    if platform.role_variable:
        claims[platform.role_variable] = platform.is_head, ", ".join(platform.evidence)
    return claims


def _auth_mode_problems(environ: Mapping[str, str], settings: Settings) -> Iterator[Problem]:
    """Yield a problem where Ray's own variable contradicts the token; others are Ray's affair."""
    mode = environ.get(TOKEN_MODE, "").strip()
    has_token = settings.ray_auth_token is not None
    if mode.lower() == "token" and not has_token:
        wanted = "the token in RAY_AUTH_TOKEN, the same on every node, or it unset"
        yield Problem(TOKEN_MODE, f"{mode} without RAY_AUTH_TOKEN", wanted)
    elif mode.lower() == "disabled" and has_token:
        wanted = "one of the two unset: the token turns on Ray's token authentication"
        yield Problem(TOKEN_MODE, f"{mode} beside RAY_AUTH_TOKEN", wanted)


def settings_without_effect(settings: Settings, given: GivenRay) -> Iterator[Problem]:
    """Yield a problem for settings that have no effect on a Ray the agent does not start."""
    names = [*changed(settings, _FOR_OWN_RAY)]
    if runs_by_shares(settings):
        names.append("AGENT_LAUNCHER")
    if names:
        got = f"a value, though {given.owner} starts Ray, with no agent on its nodes"
        pods = "rayStartParams, environment and init containers"
        yield Problem(" + ".join(names), got, f"unset; {given.owner}'s pods have {pods} for it")


_FOR_OWN_RAY = (
    *("AGENT_NUM_CPUS", "AGENT_NUM_GPUS", "AGENT_RESOURCES", "AGENT_RAY_ARGS"),
    *("AGENT_DASHBOARD_HOST", "DEBUG_RAY", "AGENT_PREPARE_EACH", "AGENT_NOTICE_SIGNAL"),
    *("AGENT_PREFLIGHT", "AGENT_CACHE_DIR"),
)
