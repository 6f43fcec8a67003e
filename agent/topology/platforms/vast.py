"""Vast.ai: no rank and remapped ports, so that only the user can say where the head is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.topology.platforms.claim import Claim, fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

LABEL, PORT = "VAST_CONTAINERLABEL", "VAST_TCP_PORT_"


def detect(environ: Mapping[str, str], settings: Settings) -> Claim | None:
    """Claim an instance; CONTAINER_ID alone could be anybody's."""
    label = environ.get(LABEL) or environ.get("CONTAINER_ID")
    if LABEL not in environ and not any(name.startswith(PORT) for name in environ):
        return None
    evidence = f"{LABEL}={label}" if label else f"{PORT}*"
    if settings.head is not None:
        return Claim(
            "vast",
            is_head=False,
            evidence=(f"AGENT_HEAD={settings.head}", evidence),
            owns_machine=True,
        )
    wants_more = settings.ray_worker is True or bool(settings.expected_workers)
    if wants_more:
        raise fault(
            "AGENT_HEAD",
            f"nothing, on an instance of Vast.ai ({evidence}), which tells no ranks",
            "the head's address in AGENT_HEAD, the same on every instance, in a network where "
            "ports are not remapped (instances of one cluster or overlay)",
        )
    return Claim("vast", is_head=True, evidence=(evidence,), owns_machine=True, alone=True)
