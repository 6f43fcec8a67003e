"""KubeRay: Ray is there already, so this version starts nothing, and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.platforms.claim import fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

MARKS = ("FQ_RAY_IP", "KUBERAY_GEN_RAY_START_CMD", "RAY_CLUSTER_NAME", "RAY_NODE_TYPE_NAME")
"""What the operator sets; Ray's autoscaler may set the last two elsewhere: both, or none."""


def detect(environ: Mapping[str, str], settings: Settings) -> None:
    """Refuse a pod of KubeRay's, unless the user has said by hand who is who."""
    if settings.head is not None or settings.ray_worker is not None:
        return
    found = [name for name in MARKS if name in environ]
    if not found or found in (["RAY_CLUSTER_NAME"], ["RAY_NODE_TYPE_NAME"]):
        return
    seen = ", ".join(name if name.endswith("CMD") else f"{name}={environ[name]}" for name in found)
    raise fault(
        "AGENT_HEAD + RAY_WORKER",
        f"a pod of KubeRay, whose Ray runs already ({seen}); to submit to it and only follow is "
        "'not in this version'",
        "`ray job submit` to that Ray; or pods without KubeRay, a LeaderWorkerSet for one; or "
        "AGENT_HEAD on every pod, for a Ray of the agent's own",
    )
