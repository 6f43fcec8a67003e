"""RunPod pods with Global Networking: no rank; HEAD_POD_ID says which pod is the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.topology.platforms.claim import Claim, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

POD = "RUNPOD_POD_ID"
DOMAIN = "runpod.internal"
INTERFACE = "podnet1"


def own_pod(environ: Mapping[str, str]) -> str | None:
    """Return this pod's id; other platforms run on RunPod's pods too."""
    return environ.get(POD, "").strip() or None


def detect(environ: Mapping[str, str], settings: Settings) -> Claim | None:
    """Claim the node where RunPod's pod id or the user's HEAD_POD_ID is set."""
    own = own_pod(environ)
    head = settings.head_pod_id
    if own is None and head is None:
        return None
    called = head or _first(own, settings)
    return Claim(
        platform="runpod",
        is_head=_is_head(own, head, settings),
        evidence=_evidence(own, head, settings),
        role_variable="RAY_WORKER + HEAD_POD_ID",
        knows_role=own is not None and head is not None,
        head_host=f"{called}.{DOMAIN}" if called is not None else None,
        must_own_head_host=own is None,
        node_name=own,
        restarts=own is not None,
        own_names=tuple(f"{pod}.{DOMAIN}" for pod in [own or head] if pod is not None),
        gpus_per_node=number(environ, "RUNPOD_GPU_COUNT"),
        interface=INTERFACE,
        owns_machine=own is not None,
        alone=head is None and settings.head is None,
    )


def _is_head(own: str | None, head: str | None, settings: Settings) -> bool:
    if own is not None and head is not None:
        return own == head
    return settings.ray_worker is not True


def _first(own: str | None, settings: Settings) -> str | None:
    """Return the pod that the others will name as their head, where this one waits for them.

    A pod's id is known only when it runs: the first one cannot be told its own as HEAD_POD_ID, so
    that it must listen on the network between the pods of its own accord.
    """
    waits = bool(settings.expected_workers) and settings.head is None
    return own if waits and settings.ray_worker is not True else None


def _evidence(own: str | None, head: str | None, settings: Settings) -> tuple[str, ...]:
    if own is None:
        return (f"HEAD_POD_ID={head} without RUNPOD_POD_ID",)
    if head is None:
        waits = f", EXPECTED_WORKERS={settings.expected_workers}"
        more = waits if _first(own, settings) is not None else ""
        return (f"RUNPOD_POD_ID={own} without HEAD_POD_ID{more}",)
    return (f"RUNPOD_POD_ID={own}", f"HEAD_POD_ID={head}")
