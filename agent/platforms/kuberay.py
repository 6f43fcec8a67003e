"""KubeRay: its operator starts and stops Ray, so the agent only submits the job."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent.base.text import in_url, reached_at
from agent.platforms.rank_variables import (
    GivenRay,
    PlatformInfo,
    parse_host,
    platform_error,
    read_host,
    read_number,
    require,
)
from agent.settings.model import TOKEN_MODE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings.model import Settings


NAME = "kuberay"
OWNER = "KubeRay"
START_COMMAND = "KUBERAY_GEN_RAY_START_CMD"
"""The command that the operator runs in a Ray container (since KubeRay 1.0)."""
WORKER_HEAD = "FQ_RAY_IP"  # the name of the head's service, set on workers only
CLUSTER_VARIABLES = ("RAY_CLUSTER_NAME", "RAY_NODE_TYPE_NAME")
"""One of these alone may come from Ray's autoscaler."""
OPERATOR_VARIABLES = (START_COMMAND, WORKER_HEAD, *CLUSTER_VARIABLES)
DASHBOARD = "RAY_DASHBOARD_ADDRESS"
SUBMISSION = "RAY_JOB_SUBMISSION_ID"
"""Set in the submitter pod of a RayJob."""
ENTRYPOINT_MARKER = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray for a job's entrypoint
K8S_TOKEN = "RAY_ENABLE_K8S_TOKEN_AUTH"  # noqa: S105 - a variable's name
"""Set where Ray accepts Kubernetes tokens, which Ray's client finds by itself."""
GCS_PORT = 6379
DASHBOARD_PORT = 8265


def detect_kuberay(environ: Mapping[str, str], settings: Settings) -> PlatformInfo | None:
    """Detect a Ray container of KubeRay, or the submitter of a RayJob.

    With AGENT_HEAD the agent starts its own Ray instead.
    """
    if settings.head is not None:
        return None
    words = (word.partition("=") for word in environ.get(START_COMMAND, "").split())
    start = {name: value for name, _, value in words}
    given = [name for name in OPERATOR_VARIABLES if name in environ]
    cluster = tuple(f"{name}={environ[name]}" for name in CLUSTER_VARIABLES if environ.get(name))

    # Is this a submitter, the head's container, a worker's, or no pod of KubeRay?
    if environ.get(DASHBOARD) and environ.get(SUBMISSION):
        ray = _of_submitter(environ, settings)
        evidence = tuple(f"{name}={environ[name]}" for name in (DASHBOARD, SUBMISSION))
    elif not given or (len(given) == 1 and given[0] in CLUSTER_VARIABLES):
        return None
    elif "--head" in start or (not start and WORKER_HEAD not in environ):
        ray = _of_head(settings, start)
        evidence = (*cluster, f"{START_COMMAND} has --head" if start else f"no {WORKER_HEAD}")
    else:
        return _worker(environ, cluster)

    # What no variable of the operator holds must be in the settings.
    if settings.expected_workers is None:
        seen = f"nothing, in a pod of KubeRay ({', '.join(evidence)})"
        wanted = (
            "the number of Ray's worker pods (replicas of all worker groups), which KubeRay does "
            "not pass to pods; or AGENT_HEAD on every pod, so that the agent starts its own Ray"
        )
        raise platform_error("EXPECTED_WORKERS", seen, wanted)
    kubernetes_own = environ.get(K8S_TOKEN, "").strip().lower() in {"1", "true"}
    asks_token = environ.get(TOKEN_MODE, "").strip() == "token" and not kubernetes_own
    if asks_token and settings.ray_auth_token is None:
        wanted = f"the token of {OWNER}'s Ray (key auth_token of the cluster's secret)"
        raise platform_error("RAY_AUTH_TOKEN", f"nothing beside {TOKEN_MODE}=token", wanted)

    return PlatformInfo(
        name=NAME,
        is_head=True,
        evidence=evidence,
        role_variable=START_COMMAND,
        run_id=ray.submission_id,
        given_ray=ray,
    )


def _of_submitter(environ: Mapping[str, str], settings: Settings) -> GivenRay:
    """Return the Ray of a RayJob's submitter pod."""
    address = environ[DASHBOARD].strip()
    submission = environ[SUBMISSION].strip()
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        name = parts.hostname or ""
        port = parts.port
    except ValueError:
        raise platform_error(DASHBOARD, repr(address), "the dashboard's host and port") from None
    head = parse_host(name, DASHBOARD)
    port = settings.dashboard_port or port or DASHBOARD_PORT
    dashboard = f"{parts.scheme}://{in_url(head)}:{port}"
    gcs_port = settings.ray_port or GCS_PORT
    return GivenRay(
        owner=OWNER,
        gcs_host=head,
        gcs_port=gcs_port,
        dashboard=dashboard,
        submission_id=submission,
    )


def _of_head(settings: Settings, start: Mapping[str, str]) -> GivenRay:
    """Return the Ray that the operator starts in this container."""
    port = settings.dashboard_port or read_number(start, "--dashboard-port", 1) or DASHBOARD_PORT
    listens = start.get("--dashboard-host") or "0.0.0.0"  # noqa: S104 - compared
    return GivenRay(
        owner=OWNER,
        gcs_host="127.0.0.1",
        gcs_port=settings.ray_port or read_number(start, "--port", 1) or GCS_PORT,
        dashboard=f"http://{in_url(reached_at(listens))}:{port}",
        session=start.get("--temp-dir") or "/tmp/ray",
    )


def _worker(environ: Mapping[str, str], cluster: tuple[str, ...]) -> PlatformInfo:
    """Describe a worker, which needs no agent."""
    head = require(read_host(environ, WORKER_HEAD), WORKER_HEAD, "the name of the head's service")
    evidence = (*cluster, f"{WORKER_HEAD}={head}")
    if ENTRYPOINT_MARKER in environ:
        names = "entrypointNumCpus + entrypointNumGpus + entrypointResources"
        got = f"the agent as a RayJob's entrypoint on a worker ({', '.join(evidence)})"
        on_head = "none of them, so that Ray runs the entrypoint on the head"
        raise platform_error(names, got, f"{on_head}; or the agent in submitterPodTemplate")
    return PlatformInfo(
        name=NAME,
        is_head=False,
        evidence=evidence,
        role_variable=WORKER_HEAD,
        head_host=head,
        given_ray=GivenRay(OWNER, head, GCS_PORT, f"http://{head}:{DASHBOARD_PORT}"),
    )
