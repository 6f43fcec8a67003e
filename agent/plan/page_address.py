"""How a person opens a run's page, and copies its files, from a machine of their own."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from agent.platforms.rank_variables import RUNPOD, RUNPOD_CLUSTER, own_pod
from agent.settings.jobs import TORCHRUN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.plan.plan import Plan


_ON_RUNPOD = {RUNPOD, RUNPOD_CLUSTER.platform.name, TORCHRUN}
"""The platforms whose nodes are RunPod's pods and have no other way to the page."""


def proxied_ip(plan: Plan) -> str | None:
    """Return the further address of a head on RunPod at which the proxy reaches it; None without.

    The proxy comes in by the default route's interface, which is not that between the pods. It
    shows a port to everyone, so that nothing listens there without a token.
    """
    source = plan.facts.default_source
    is_proxied = own_pod(plan.environ) is not None and plan.topology.platform.name in _ON_RUNPOD
    if not is_proxied or not plan.topology.is_head or plan.secret() is None:
        return None
    return None if source == plan.address.ip else source


def page_address(plan: Plan) -> str:
    """Return the command or address that opens the head's page."""
    environ = plan.environ
    platform = plan.topology.platform.name
    node = plan.topology.node_name
    port = plan.ports.agent
    local = f"http://localhost:{port}"

    # Its proxy shows a port of the pod to everyone, so that the page is only open with a token.
    pod = own_pod(environ)
    if pod is not None and platform in _ON_RUNPOD:
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


def how_to_fetch(plan: Plan, path: str) -> str:
    """Return the command that copies a folder of the head; '' where it stays on a machine's disk.

    It holds after the run, too, when the run's own containers may have ended. `rl-files` and
    get.dstack.yml are of the files that `init` writes.
    """
    environ = plan.environ
    platform = plan.topology.platform.name
    name = PurePosixPath(path).name
    if own_pod(environ) is not None and platform in _ON_RUNPOD:
        return f"runpodctl send {path} on this pod, then what it prints on your machine"
    if platform == "dstack":
        run = environ.get("DSTACK_RUN_NAME", "").strip() or "RUN"
        return f"dstack apply -y -f get.dstack.yml, and meanwhile: scp -r get-{run}:{path} ."
    if platform == "skypilot":
        return f"rsync -az {_skypilot_cluster(environ) or 'CLUSTER'}:{path} ."
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return f"kubectl cp rl-files:{path} {name} (or from another pod that mounts the disk)"
    return ""


def _skypilot_cluster(environ: Mapping[str, str]) -> str:
    """Return the cluster's name, under which SkyPilot writes it into the user's ssh config."""
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(environ["SKYPILOT_CLUSTER_INFO"])["cluster_name"])
    return ""
