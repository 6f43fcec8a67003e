"""The commands that the framework has accepted.

Nothing waits for its answer about them again: to ask it means to import it, which may take 25 s,
and with torchrun nothing else takes so long before the job. An empty file in AGENT_CACHE_DIR stands
for a command and all that the answer depends on: the versions, the kind of node, and the number of
its GPUs. Nothing is remembered of a refusal.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.json import encode
from msgspec.structs import replace

from agent.base import times

if TYPE_CHECKING:
    from agent.job.compile_caches import CompileCaches
    from agent.job.framework_question import FrameworkQuestion

FOLDER = "accepted-commands"


class AcceptedCommands:
    """The accepted commands of one kind of node on a volume; without a volume none is known."""

    def __init__(
        self, caches: CompileCaches | None, program: Path, gpus: list[int], checkpoints: str
    ) -> None:
        self._folder = None if caches is None else Path(caches.volume, FOLDER)
        self._kind = "" if caches is None else caches.kind.digest
        self._program = program  # the one that asks
        self._gpus = gpus  # of all nodes
        self._checkpoints = checkpoints  # a folder whose name decides nothing

    def has(self, question: FrameworkQuestion) -> bool:
        """Return whether this command was accepted lately; False where the volume fails."""
        file = self._file_of(question)
        if file is None:
            return False
        with suppress(OSError):
            return time.time() - file.stat().st_mtime < times.COMMAND_ACCEPTED
        return False

    def add(self, question: FrameworkQuestion) -> None:
        """Remember a command, and forget the old ones; a volume that fails is none of the run's."""
        file = self._file_of(question)
        if file is None:
            return
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            for other in file.parent.iterdir():
                if time.time() - other.stat().st_mtime > times.COMMAND_ACCEPTED:
                    other.unlink()

    def drop(self, question: FrameworkQuestion) -> None:
        """Forget a command that is accepted no longer."""
        file = self._file_of(question)
        if file is not None:
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def _file_of(self, question: FrameworkQuestion) -> Path | None:
        if self._folder is None:
            return None
        asks = self._program.read_bytes()
        argv = tuple(map(self._without_checkpoints, question.argv))
        own = tuple(map(self._without_checkpoints, question.own))
        known = encode([replace(question, argv=argv, own=own), self._kind, self._gpus])
        return self._folder / hashlib.sha256(asks + known).hexdigest()[:32]

    def _without_checkpoints(self, word: str) -> str:
        """Return a word without the folder of checkpoints, which each experiment names anew."""
        return word.replace(self._checkpoints, "CHECKPOINTS") if self._checkpoints else word
