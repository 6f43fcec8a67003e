"""Have this node's compile caches written back: beside the job, and after its end.

The agent only looks at the folder. A program with the least priority writes (cache_program.py):
once no new file has come for a while, so that the first steps have compiled what they need, then
rarely, and once more after the job's end. After a failure the newest files may be incomplete: the
folder is written as it was before. A stop has no time for it.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.base.ends import Kind
from agent.base.value import Value
from agent.job.compile_caches import SEAL, seal_of
from agent.plan import environment
from agent.plan.plan import CACHES_LOG
from agent.processes.cache_folder import UNCHANGED, Seeded, list_files, read_seeded
from agent.record.background import in_thread
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from typing import Literal

    from agent.base.ends import Outcome
    from agent.plan.plan import Plan
    from agent.processes.process import Child

    RunProgram = Callable[..., AbstractAsyncContextManager[Child]]  # `NodeRun.running`

CACHES_SAVE_AT_END = 15.0  # For a write after the job, while services and Ray stop.
PROGRAM = "compile caches"
_LONGEST_LINE = 400
_SAVED = (Kind.DONE, Kind.JOB_FAILED, Kind.LOST)
"""Ends after which what is new is written back: the job had begun, and there is time for it."""


class CacheLook(Value):
    """The files of a node's cache folder that would be archived."""

    files: int = 0
    size: int = 0
    changed: float = 0.0  # when the newest was written, in seconds since 1970

    def differs_from(self, other: CacheLook) -> bool:
        """Return whether there are other files."""
        return (self.files, self.size) != (other.files, other.size)


def look_at(folder: Path) -> CacheLook:
    """Look at a node's cache folder."""
    files = list_files(folder)
    newest = max((file.mtime_ns for file in files), default=0)
    return CacheLook(len(files), sum(file.size for file in files), newest / 1e9)


def is_due(look: CacheLook, saved: CacheLook, now: float, next_save: float) -> bool:
    """Return whether to write the archive now: the job has compiled, and compiles no more.

    `saved` is what the archive has, `next_save` when another write may be.
    """
    is_quiet = look.changed + times.CACHES_QUIET <= now
    return look.files > 0 and look.differs_from(saved) and is_quiet and now >= next_save


class CacheKeeper:
    """Watches a node's cache folder, and starts the program that writes it back."""

    def __init__(
        self,
        plan: Plan,
        running: RunProgram,
        *,
        is_seeded: bool,
    ) -> None:
        self._plan = plan
        self._caches = plan.caches
        self._running = running
        self._is_seeded = is_seeded
        self.seeded: Seeded | None = None
        self._saved = CacheLook()  # what the archive has
        self._next_save = 0.0  # when another write may be, in seconds since 1970
        self._writing = anyio.Lock()

    async def note_seeded(self) -> None:
        """Read how the folder was seeded, after the prepare step that did it."""
        self._is_seeded = True
        await self._read_seeded()
        if self.seeded is not None:
            say(f"compile caches: {self.seeded.in_words()}")

    async def _read_seeded(self) -> None:
        if self._caches is not None and self._is_seeded and self.seeded is None:
            read = partial(read_seeded, Path(self._caches.folder))
            self.seeded = await in_thread(read)
            if self.seeded is not None:
                self._saved = CacheLook(self.seeded.files, self.seeded.size)

    @property
    def state(self) -> Literal["", "seeded", "cold"]:
        """Return how this node's caches were seeded; '' before, and without any."""
        return "" if self.seeded is None else self.seeded.state

    def to_status(self) -> tuple[str, str] | None:
        """Return how this node's caches were seeded, and a sentence; None without any."""
        if self._caches is None:
            return None
        if self.seeded is None:
            return "seeding", ""
        return self.seeded.state, self.seeded.sentence

    async def look(self) -> None:
        """Look at the folder, and write it back when that is due."""
        await self._read_seeded()
        look = await self._look()
        now = time.time()
        if look is None or not is_due(look, self._saved, now, self._next_save):
            return
        self._next_save = now + times.CACHES_SAVED_AGAIN
        await self._save(look, times.CACHES_SAVE)

    async def save_at_end(self, outcome: Outcome) -> None:
        """Write back what is new after the job's end, while all else stops."""
        if outcome.kind not in _SAVED or outcome.is_superseded:
            return
        settled = None if outcome.kind is Kind.DONE else times.CACHES_SETTLED
        with anyio.move_on_after(CACHES_SAVE_AT_END):
            look = await self._look()
            if look is None:
                return
            if look.files:
                await self._save(look, CACHES_SAVE_AT_END, settled)
            elif self.state == "cold" and not self._saved.files:
                say("compile caches: nothing was compiled, so that nothing is kept")

    async def _look(self) -> CacheLook | None:
        """Return what the folder is like; None before it is seeded, or if its disk hangs."""
        caches = self._caches
        if caches is None or not self._is_seeded:
            return None
        return await in_thread(partial(look_at, Path(caches.folder)), times.CACHES_LOOK)

    async def _save(self, look: CacheLook, limit: float, settled: float | None = None) -> None:
        """Run the program that writes, after one that still does.

        After a failure only what did not change for `settled` seconds is written.
        """
        caches = self._caches
        assert caches is not None  # noqa: S101 - there is a look
        plan = self._plan
        async with self._writing:
            if not look.differs_from(self._saved):
                return
            argv = [*caches.argv("save"), "--limit", f"{limit:g}"]
            if settled is not None:
                argv += ["--settled", f"{settled:g}"]
            own = environment.for_children(plan.environ, plan.settings)
            env = environment.without_cluster_auth(own, plan.settings)
            env[SEAL] = seal_of(plan.secret())
            async with self._running(PROGRAM, argv, env, CACHES_LOG, grace=0.0) as child:
                code = await child.wait()
            result = child.tail(1, _LONGEST_LINE)
            self._saved = look
            say(f"compile caches: {result}", "debug" if code == UNCHANGED else "info")
