"""No platform: one machine, or nodes that AGENT_HEAD brings together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.topology.platforms.claim import Claim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings


def detect(_environ: Mapping[str, str], settings: Settings) -> Claim:
    """Claim whatever no platform claimed."""
    if settings.head is not None:
        return Claim("plain", is_head=False, evidence=(f"AGENT_HEAD={settings.head}",))
    expected = settings.expected_workers
    if settings.ray_worker is None and not expected:
        return Claim(
            "single",
            is_head=True,
            evidence=("no platform, no AGENT_HEAD: one machine",),
            alone=True,
        )
    return Claim("plain", is_head=True, evidence=("no platform",), alone=True)
