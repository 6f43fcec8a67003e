"""KubeRay: its operator starts and stops Ray, so the agent submits to it and only follows."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent.base.addresses import in_url, reached_at
from agent.settings.model import TOKEN_MODE
from agent.topology.given_ray import GivenRay
from agent.topology.platforms.claim import Claim, as_host, fault, host, required

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

NAME = "kuberay"
OWNER = "KubeRay"
START = "KUBERAY_GEN_RAY_START_CMD"
"""What the operator runs in a Ray container, before or beside us (since KubeRay 1.0)."""
WORKERS_ALONE = "FQ_RAY_IP"
"""The name of the head's service, set on workers only."""
MARKS = (START, WORKERS_ALONE, "RAY_CLUSTER_NAME", "RAY_NODE_TYPE_NAME")
"""What the operator sets; Ray's autoscaler may set the last two elsewhere: both, or none."""
DASHBOARD, SUBMISSION = "RAY_DASHBOARD_ADDRESS", "RAY_JOB_SUBMISSION_ID"
"""What it sets in the pod of a RayJob that is to submit the job."""
DRIVER = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""What Ray sets for a job's own entrypoint."""
K8S_TOKEN = "RAY_ENABLE_K8S_TOKEN_AUTH"  # noqa: S105 - a variable's name
"""Set where Ray takes Kubernetes' own tokens, which Ray's client finds by itself."""
GCS_PORT, DASHBOARD_PORT = 6379, 8265
SESSIONS = "/tmp/ray"


def detect(environ: Mapping[str, str], settings: Settings) -> Claim | None:
    """Claim a Ray container of KubeRay's, or the submitter of a RayJob.

    AGENT_HEAD asks for a Ray of the agent's own, so that KubeRay's is none of its business.
    """
    if settings.head is not None:
        return None
    if environ.get(DASHBOARD) and environ.get(SUBMISSION):
        return _submitter(environ, settings)
    found = [name for name in MARKS if name in environ]
    if not found or found in (["RAY_CLUSTER_NAME"], ["RAY_NODE_TYPE_NAME"]):
        return None
    start = _words(environ.get(START, ""))
    if "--head" in start or (not start and WORKERS_ALONE not in environ):
        return _head(environ, settings, start)
    return _worker(environ)


def _submitter(environ: Mapping[str, str], settings: Settings) -> Claim:
    address = environ[DASHBOARD].strip()
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        name, port = parts.hostname or "", parts.port
    except ValueError:
        raise fault(DASHBOARD, repr(address), "the dashboard's host and port") from None
    head = as_host(name, DASHBOARD)
    shown = in_url(head)
    port = settings.dashboard_port or port or DASHBOARD_PORT
    submission = environ[SUBMISSION].strip()
    return _claim(
        settings,
        GivenRay(
            owner=OWNER,
            gcs_host=head,
            gcs_port=settings.ray_port or GCS_PORT,
            dashboard=f"{parts.scheme}://{shown}:{port}",
            submission_id=submission,
            asks_token=_asks_token(environ),
        ),
        (f"{DASHBOARD}={address}", f"{SUBMISSION}={submission}"),
    )


def _head(environ: Mapping[str, str], settings: Settings, start: list[str]) -> Claim:
    gcs = settings.ray_port or _number(start, "--port", GCS_PORT)
    port = settings.dashboard_port or _number(start, "--dashboard-port", DASHBOARD_PORT)
    listens = _flag(start, "--dashboard-host") or "0.0.0.0"  # noqa: S104 - compared
    near = in_url(reached_at(listens))
    by = f"{START} has --head" if start else f"no {WORKERS_ALONE}"
    return _claim(
        settings,
        GivenRay(
            owner=OWNER,
            gcs_host="127.0.0.1",
            gcs_port=gcs,
            dashboard=f"http://{near}:{port}",
            session=_flag(start, "--temp-dir") or SESSIONS,
            asks_token=_asks_token(environ),
        ),
        (*_cluster(environ), by),
    )


def _claim(settings: Settings, ray: GivenRay, evidence: tuple[str, ...]) -> Claim:
    """Claim the one node that submits; the number of the others stands in no variable."""
    if settings.expected_workers is None:
        seen = f"nothing, in a pod of KubeRay ({', '.join(evidence)})"
        wanted = (
            "the number of Ray's worker pods (replicas of all worker groups), which KubeRay tells "
            "no pod; or AGENT_HEAD on every pod, for a Ray of the agent's own"
        )
        raise fault("EXPECTED_WORKERS", seen, wanted)
    return Claim(
        platform=NAME,
        is_head=True,
        evidence=evidence,
        knows_role=True,
        knows_ranks=True,
        run_id=ray.submission_id,
        alone=settings.expected_workers == 0,
        ray=ray,
    )


def _worker(environ: Mapping[str, str]) -> Claim:
    """Claim a node on which nothing is left to do: the operator joins it to Ray."""
    head = required(host(environ, WORKERS_ALONE), WORKERS_ALONE, "the name of the head's service")
    evidence = (*_cluster(environ), f"{WORKERS_ALONE}={head}")
    if DRIVER in environ:
        raise fault(
            "entrypointNumCpus + entrypointNumGpus + entrypointResources",
            f"the agent as a RayJob's entrypoint on a worker ({', '.join(evidence)})",
            "none of them, so that Ray runs the entrypoint on the head; or the agent in "
            "submitterPodTemplate",
        )
    return Claim(
        platform=NAME,
        is_head=False,
        evidence=evidence,
        knows_role=True,
        knows_ranks=True,
        head_host=head,
        ray=GivenRay(OWNER, head, GCS_PORT, f"http://{head}:{DASHBOARD_PORT}"),
    )


def _asks_token(environ: Mapping[str, str]) -> bool:
    kubernetes_own = environ.get(K8S_TOKEN, "").strip().lower() in {"1", "true"}
    return environ.get(TOKEN_MODE, "").strip() == "token" and not kubernetes_own


def _cluster(environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"{name}={environ[name]}"
        for name in ("RAY_CLUSTER_NAME", "RAY_NODE_TYPE_NAME")
        if environ.get(name)
    )


def _words(command: str) -> list[str]:
    """Split the generated command as its shell does; one with a stray quote as well as can be."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _flag(words: list[str], name: str) -> str | None:
    return next((w.partition("=")[2] for w in words if w.startswith(f"{name}=")), None)


def _number(words: list[str], name: str, default: int) -> int:
    text = _flag(words, name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and 0 < int(text) < 65_536:
        return int(text)
    raise fault(START, f"{name}={text}", "a port's number")
