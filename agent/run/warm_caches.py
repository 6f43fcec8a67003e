"""Seed this node's compile caches outside a run, for `pod-agent warm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base import times
from agent.base.text import error_text
from agent.caches.cache_archive import Trust
from agent.caches.cache_folder import CachePlace
from agent.caches.cache_store import seed
from agent.job.compile_caches import seal_of
from agent.record.background import run_within
from agent.run.plan_input import plan_from_environment
from agent.run.read_caches import NO_PLACE

if TYPE_CHECKING:
    from collections.abc import Mapping


def seed_caches(environ: Mapping[str, str], command: list[str] | None = None) -> str:
    """Seed them as a run of this job would; return what came of it, or '' if nobody asked for any.

    What would refuse the run is raised.
    """
    plan = plan_from_environment(environ, command, wants_job=False)
    caches = plan.caches
    if caches is None:
        why = next((note for note in plan.notes if note.startswith(NO_PLACE)), "")
        return why.replace(NO_PLACE, "left out", 1)
    kind = caches.kind.digest
    place = CachePlace(caches.volume, caches.folder, caches.archive, kind, caches.packages)
    trust = Trust(seal_of(plan.secret()), plan.facts.uid)

    def seed_here() -> str | Exception:
        try:
            return seed(place, trust).in_words()
        except OSError as error:
            return f"cold: {caches.folder} cannot be used: {error_text(error)}"
        except Exception as error:  # noqa: BLE001 - raised in the caller
            return error

    result = run_within(times.CACHES_SEED, seed_here)
    if isinstance(result, Exception):
        raise result
    return result or f"cold: {caches.volume} took longer than {times.CACHES_SEED:g} s"
