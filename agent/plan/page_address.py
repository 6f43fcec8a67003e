"""How a person opens the page of a run from a machine of their own, by the platform."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.platforms.rank_variables import RUNPOD_CLUSTER, own_pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.plan.plan import Plan


def page_address(plan: Plan) -> str:
    """Return the command or address that opens the head's page."""
    environ = plan.environ
    platform = plan.topology.platform.name
    node = plan.topology.node_name
    port = plan.ports.agent
    local = f"http://localhost:{port}"

    # Its proxy shows a port of the pod to everyone, so that the page is only open with a token.
    pod = own_pod(environ)
    if pod is not None and platform in {"runpod", RUNPOD_CLUSTER.platform.name, "torchrun"}:
        if plan.secret() is None:
            return (
                f"ssh -L {port}:localhost:{port} {pod} · {local} (the proxy wants RAY_AUTH_TOKEN)"
            )
        return f"https://{pod}-{port}.proxy.runpod.net (with {port}/http among the pod's ports)"

    # It forwards the ports of the configuration to the machine of `dstack apply`.
    if platform == "dstack":
        return f"{local} where `dstack apply` is attached (with {port} among its ports)"

    # Compute nodes are reached through the login node.
    if platform == "slurm":
        login = environ.get("SLURM_SUBMIT_HOST", "").strip() or "LOGIN_NODE"
        return f"ssh -L {port}:{node}:{port} {login} · {local}"

    if environ.get("KUBERNETES_SERVICE_HOST") and platform != "skypilot":
        name = environ.get("HOSTNAME", "").strip() or node
        return f"kubectl port-forward {name} {port} · {local}"
    host = _skypilot_cluster(environ) if platform == "skypilot" else node
    return f"ssh -L {port}:localhost:{port} {host or node} · {local}"


def _skypilot_cluster(environ: Mapping[str, str]) -> str:
    """Return the cluster's name, under which SkyPilot writes it into the user's ssh config."""
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(environ["SKYPILOT_CLUSTER_INFO"])["cluster_name"])
    return ""
