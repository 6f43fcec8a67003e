"""Seed this node's compile caches outside a run, for `pod-agent warm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base import times
from agent.base.errors import SettingsError
from agent.caches.cache_archive import Trust
from agent.caches.cache_folder import CachePlace
from agent.caches.cache_store import seed
from agent.job.compile_caches import seal_of
from agent.record.background import run_within
from agent.run.plan_input import plan_from_environment

if TYPE_CHECKING:
    from collections.abc import Mapping


def seed_caches(environ: Mapping[str, str]) -> str:
    """Seed them as a run would; return what came of it, or '' if this node keeps none."""
    try:
        plan = plan_from_environment(environ, None, wants_job=False)
    except SettingsError as error:
        return f"left out: {error.what}"
    caches = plan.caches
    if caches is None:
        return ""
    kind = caches.kind.digest
    place = CachePlace(caches.volume, caches.folder, caches.archive, kind, caches.packages)
    trust = Trust(seal_of(plan.secret()), plan.facts.uid)
    result = run_within(times.CACHES_SEED, lambda: seed(place, trust).in_words())
    return result or f"left out: {caches.volume} took longer than {times.CACHES_SEED:g} s"
