"""The run folder: `<log dir>/<run id>/<node>/`, with `latest` pointing at the run."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.base.errors import PreflightError

if TYPE_CHECKING:
    from pathlib import Path

    from agent.settings.redact import Redactor


class RunFolder:
    """This node's folder of this run; a worker's moves once it hears the run's id."""

    def __init__(
        self, root: Path, run_id: str, node: str, redactor: Redactor, *, link: bool = True
    ) -> None:
        self._root = root.absolute()
        self._node = _safe(node)
        self._redactor = redactor
        self.path = self._make(_safe(run_id))
        if link:
            self._link(_safe(run_id))

    @classmethod
    def waiting(cls, root: Path, node: str, redactor: Redactor) -> RunFolder:
        """Make the folder of a worker that does not know its run yet."""
        name = f"no-head-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        return cls(root, name, node, redactor, link=False)

    def belongs_to(self, run_id: str) -> None:
        """Move to the run's own folder; files that are open move along."""
        target = self._root / _safe(run_id)
        if self.path.parent == target:
            return
        target.mkdir(parents=True, exist_ok=True)
        new = _free_name(target / self._node)
        old_parent = self.path.parent
        self.path.rename(new)
        self.path = new
        with suppress(OSError):  # another node on a shared disk may still wait in it
            old_parent.rmdir()
        self._link(_safe(run_id))

    def file(self, name: str) -> Path:
        """Return the path of a file in it."""
        return self.path / name

    def record(self, event: dict[str, object]) -> None:
        """Append one event to events.jsonl."""
        line = self._redactor.clean(json.dumps(event, default=str, ensure_ascii=False))
        path = self.file("events.jsonl")
        # a full disk must not end a running job; the log says it once
        with suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _make(self, run_id: str) -> Path:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            for _ in range(100):
                path = _free_name(self._root / run_id / self._node)
                with suppress(FileExistsError):  # another node of this name was quicker
                    path.mkdir(parents=True)
                    return path
            raise FileExistsError(errno.EEXIST, "its folders appear faster than they can be named")
        except OSError as error:
            raise PreflightError(
                f"AGENT_LOG_DIR={self._root} cannot be written",
                why=error.strerror or str(error),
                remedy="Choose a writable folder in AGENT_LOG_DIR",
                culprit="AGENT_LOG_DIR",
            ) from None

    def _link(self, run_id: str) -> None:
        part = self._root / f".latest-{os.getpid()}"
        with suppress(OSError):  # a disk without links still holds the logs
            part.unlink(missing_ok=True)
            part.symlink_to(run_id, target_is_directory=True)
            part.replace(self._root / "latest")


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name).strip(".") or "node"


def _free_name(path: Path) -> Path:
    """Return the path, or with a number where a former attempt of this node took it."""
    candidates = (path.with_name(f"{path.name}-{n}") if n > 1 else path for n in range(1, 10_000))
    return next(p for p in candidates if not p.exists())
