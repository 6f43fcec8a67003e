"""Ray's own processes below `ray start`: one that is gone or stopped is noticed by us.

`ray start --block` looks at them once it has started everything, and until then, for 40 to 70 s,
not at all (2.40 to 2.60); of one that is stopped (SIGSTOP, a debugger) it never knows.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio

from agent.plan.waits import HANG_LIMIT
from agent.runtime.orphans import children_of
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.runtime.process import Child

PARTS = ("gcs_server", "raylet")
"""Without these a node is none; all else Ray itself looks after."""
HANGS_AFTER = HANG_LIMIT
_STEP = 0.5
_LAST_WORDS = 1.5
"""Where `ray start` does look, it ends within a second, and tells more."""
_ENDED, STOPPED = {"Z", "X", "x"}, {"T", "t"}


class Part(NamedTuple):
    """One of Ray's processes, as it was seen last."""

    pid: int
    state: str


class Verdict(NamedTuple):
    """What a look at Ray's processes says."""

    gone: str = ""
    """Why this Ray is no more, or ''."""
    stopped: str = ""
    """Which part does not run, though it is there, or ''."""


class PartsSeen:
    """What was seen of Ray's processes so far, and since when one is stopped."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._stopped_since: dict[str, float] = {}

    def judge(self, seen: Mapping[str, Part], now: float) -> Verdict:
        """Take in one look: a part that was there once must be there, and run."""
        for name in PARTS:
            part = seen.get(name)
            if part is not None:
                self._known[name] = part.pid
                self._note(name, part, now)
            if name in self._known and (part is None or part.state in _ENDED):
                return Verdict(gone=f"its {name} (pid {self._known[name]}) is gone")
        for name, since in self._stopped_since.items():
            what = f"its {name} (pid {self._known[name]}) is stopped"
            seconds = now - since
            if seconds >= HANGS_AFTER:
                return Verdict(gone=f"{what} for {round(seconds)} s")
            return Verdict(stopped=what)
        return Verdict()

    def _note(self, name: str, part: Part, now: float) -> None:
        if part.state in STOPPED:
            self._stopped_since.setdefault(name, now)
        else:
            self._stopped_since.pop(name, None)


class RayParts:
    """Watches the processes of one `ray start`, and ends it all when it is no Ray any more."""

    def __init__(
        self, child: Child, clock: Callable[[], float], complain: Callable[[str], None]
    ) -> None:
        self._child = child
        self._clock = clock
        self._complain = complain
        self.evidence = ""
        """Why it was ended, where it was."""

    async def watch(self) -> None:
        """Watch until one is gone, or stopped for too long; then end what is left of this Ray."""
        seen, told = PartsSeen(), ""

        async def look() -> str | NotYet:
            nonlocal told
            if self._child.is_stopping:
                return NotYet()
            verdict = seen.judge(parts_of(self._child.pid), self._clock())
            if verdict.stopped and verdict.stopped != told:
                self._complain(f"{verdict.stopped}: Ray is taken for lost after {HANGS_AFTER:g} s")
            told = verdict.stopped
            return verdict.gone or NotYet()

        self.evidence = await until(look, None, step=_STEP, longest=_STEP)
        with anyio.move_on_after(_LAST_WORDS):
            await self._child.wait()
        await self._child.stop(0.0)

    async def end_sentence(self, code: int) -> str:
        """Say how this Ray ended."""
        end = f"`ray start` ended, {await self._child.end_sentence(code)}"
        return f"{self.evidence}; {end}" if self.evidence else end


def parts_of(pid: int) -> dict[str, Part]:
    """Return the parts of Ray among a process's children."""
    found: dict[str, Part] = {}
    for child in children_of(pid):
        with suppress(OSError, IndexError):
            stat = Path(f"/proc/{child}/stat").read_text(encoding="utf-8", errors="replace")
            name, state = stat.partition("(")[2].rpartition(")")[0], stat.rpartition(")")[2].split()
            if name in PARTS:
                found[name] = Part(child, state[0])
    return found
