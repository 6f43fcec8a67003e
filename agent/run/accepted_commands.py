"""The commands that the framework has accepted.

Nothing waits for its answer about them again: to ask it means to import it, which may take 25 s,
and with torchrun nothing else takes so long before the job. An empty file in AGENT_CACHE_DIR stands
for a command and all that the answer depends on: the installed packages, the kind of node, and the
number of its GPUs. Nothing is remembered of a refusal.

Whoever can write to the volume can add such a file: then nothing waits for the framework, and the
job itself refuses its arguments. No link there leads to files elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.json import encode
from msgspec.structs import replace

from agent.base import times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.job.compile_caches import CompileCaches
    from agent.job.framework_question import FrameworkQuestion

FOLDER = "accepted-commands"
_NAME = re.compile(r"[0-9a-f]{32}")
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class AcceptedCommands:
    """The accepted commands of one kind of node on a volume; without a volume none is known."""

    def __init__(
        self, caches: CompileCaches | None, program: Path, gpus: list[int], checkpoints: str
    ) -> None:
        self._folder = None if caches is None else Path(caches.volume, FOLDER)
        self._kind = () if caches is None else (caches.kind.digest, caches.installed)
        self._program = program  # the one that asks
        self._gpus = gpus  # of all nodes
        self._checkpoints = checkpoints  # a folder whose name decides nothing

    def has(self, question: FrameworkQuestion) -> bool:
        """Return whether this command was accepted lately; False where the volume fails."""
        with suppress(OSError), self._opened() as folder:
            accepted_at = _time_of(self._name_of(question), folder)
            return accepted_at is not None and not _is_old(accepted_at)
        return False

    def add(self, question: FrameworkQuestion) -> None:
        """Remember a command, and forget the old ones; a volume that fails is none of the run's."""
        if self._folder is None:
            return
        with suppress(OSError):
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(OSError), self._opened() as folder:
            name = self._name_of(question)
            os.close(os.open(name, _FILE_FLAGS, 0o600, dir_fd=folder))
            os.utime(name, dir_fd=folder, follow_symlinks=False)
            for other in os.listdir(folder):  # noqa: PTH208 - a descriptor
                accepted_at = _time_of(other, folder)
                if accepted_at is not None and _is_old(accepted_at):
                    os.unlink(other, dir_fd=folder)

    def drop(self, question: FrameworkQuestion) -> None:
        """Forget a command that is accepted no longer."""
        with suppress(OSError), self._opened() as folder:
            name = self._name_of(question)
            if _time_of(name, folder) is not None:
                os.unlink(name, dir_fd=folder)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Yield the folder's descriptor; raise OSError without one, and if it is a link."""
        if self._folder is None:
            raise FileNotFoundError
        folder = os.open(self._folder, _FOLDER_FLAGS)
        try:
            yield folder
        finally:
            os.close(folder)

    def _name_of(self, question: FrameworkQuestion) -> str:
        asks = self._program.read_bytes()
        argv = tuple(map(self._without_checkpoints, question.argv))
        own = tuple(map(self._without_checkpoints, question.own))
        known = encode([replace(question, argv=argv, own=own), self._kind, self._gpus])
        return hashlib.sha256(asks + known).hexdigest()[:32]

    def _without_checkpoints(self, word: str) -> str:
        """Return a word without the folder of checkpoints, which each experiment names anew."""
        return word.replace(self._checkpoints, "CHECKPOINTS") if self._checkpoints else word


def _time_of(name: str, folder: int) -> float | None:
    """Return when a command was accepted; None where a name or a file is none of these."""
    if not _NAME.fullmatch(name):
        return None
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    is_empty_file = stat.S_ISREG(status.st_mode) and status.st_size == 0
    return status.st_mtime if is_empty_file else None


def _is_old(accepted_at: float) -> bool:
    return time.time() - accepted_at >= times.COMMAND_ACCEPTED
