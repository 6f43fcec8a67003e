"""The platforms, one file each, asked in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.platforms import dstack, plain, runpod

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.platforms.claim import Claim
    from agent.settings import Settings

PLATFORMS: tuple[Callable[[Mapping[str, str], Settings], Claim | None], ...] = (
    dstack.detect,  # before RunPod, on whose pods it runs too: it knows ranks, RunPod does not
    runpod.detect,
    plain.detect,  # claims whatever is left
)
