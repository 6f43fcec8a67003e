"""The run folder `<log dir>/<run id>/<node>/`: taken by this node, and moved to its run.

`latest` in the log dir points to the newest run.
"""

from __future__ import annotations

import errno
import secrets
import stat
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.errors import PreflightError
from agent.base.text import error_text
from agent.record import files, node_record
from agent.record.files import safe_name
from agent.record.log import say
from agent.record.log_dir import RefusedPathError, log_dir
from agent.record.node_record import NodeRecord, own_record
from agent.record.outcome_file import OUTCOME_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_FOLDER_MOVE = 0.1  # For a blocked writer before the run folder moves: the next reply tries again.
_LOCK = ".agent.lock"
_FORMER_OUTCOME = "outcome.former-1.json"
NO_HEAD = "no-head"  # instead of the run id while a worker does not know it


def stacks_file(attempt: int) -> str:
    """Return the name of the file with all stacks of an attempt that stalled."""
    return f"stacks-{attempt}.log"


class RunFolder:
    """This node's folder in a run; a worker's folder is renamed once the run id is known.

    A restarted node uses its folder again if it starts with the run id. Otherwise, or if another
    agent may hold it, the node takes a numbered folder.
    """

    def __init__(self, root: Path, run_id: str, node: str, *, link: bool = True) -> None:
        """Make or reuse the folder; the `run_id` '' stands for a run that is not known yet."""
        link = link and bool(run_id)
        run_id = run_id or NO_HEAD
        self._root = root.absolute()
        self._name = node
        self._moving = threading.RLock()
        self._refused = ""  # the run whose folder could not be used; logged once
        self.own = own_record(node, run_id)  # the initial record; a NodeRecorder updates it later
        self.former: NodeRecord | None = None  # of the previous agent of this node in this run
        self._lock: files.FileLock
        self.path = self._make(safe_name(run_id))
        if link:
            self.become_latest()

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder."""
        return self.path / name

    @contextmanager
    def held(self, name: str) -> Iterator[Path]:
        """Yield the path of a file while the folder is kept from moving."""
        with self._moving:
            yield self.path / name

    def close(self) -> None:
        """Release the folder for the next agent of this node."""
        self._lock.release()

    # --- taking a folder -------------------------------------------------------------------------

    def _make(self, run_id: str) -> Path:
        try:
            log_dir.guard(self._root)
            paths = map((self._root / run_id).joinpath, files.numbered_names(safe_name(self._name)))
            path = next(filter(self._claim, paths))
        except RefusedPathError as error:
            raise PreflightError(
                f"AGENT_LOG_DIR={self._root}: the folder of this run is not used",
                why=error_text(error),
                remedy="Remove what others made there, or choose another folder in AGENT_LOG_DIR",
                culprit="AGENT_LOG_DIR",
            ) from None
        except OSError as error:
            raise PreflightError(
                f"AGENT_LOG_DIR={self._root} cannot be written",
                why=error_text(error),
                remedy="Choose a writable folder in AGENT_LOG_DIR",
                culprit="AGENT_LOG_DIR",
            ) from None
        if log_dir.fault:
            remedy = "Choose a disk with file modes in AGENT_LOG_DIR, or set AGENT_LOG_MODE=umask"
            say(f"AGENT_LOG_MODE: others can read {path}: {log_dir.fault}. {remedy}", "warning")
        return path

    def _claim(self, path: Path) -> bool:
        """Take a folder, unless another agent holds it."""
        is_new = _make_folder(path)
        if not stat.S_ISDIR(log_dir.stat(path).st_mode):
            return False

        # May it be used?
        lock = files.FileLock(path / _LOCK)
        holder = lock.take()
        read = NodeRecord.read_patiently(path / node_record.NODE_FILE)
        former = read if isinstance(read, NodeRecord) else None
        if not node_record.may_reuse(former, holder, self._name, self.own.place, is_new=is_new):
            lock.release()
            return False
        self._lock = lock
        self.former = former

        # Put the previous agent's outcome aside, and remove what it left incomplete.
        with suppress(OSError):
            log_dir.rename(path / OUTCOME_FILE, path / _FORMER_OUTCOME)
        names = log_dir.names(path)
        # Its logs go on: what follows is of this start.
        self.own = replace(self.own, log_begins=_sizes_of_logs(path, names))
        for name in names:
            if name.startswith(".") and name.endswith(files.PART_SUFFIX):
                with suppress(OSError):
                    log_dir.remove(path / name)
        self.own.write(path / node_record.NODE_FILE)  # a full disk is logged later
        return True

    def become_latest(self) -> None:
        """Make `latest` point to this run."""
        part = self._root / f".latest-{secrets.token_hex(4)}"
        with suppress(OSError):  # some disks have no links
            part.symlink_to(self.path.parent.name, target_is_directory=True)
            part.replace(self._root / "latest")
        with suppress(OSError):
            part.unlink(missing_ok=True)

    # --- moving to the run's folder --------------------------------------------------------------

    def move_to_run(self, run_id: str) -> None:
        """Move to the run's folder, with open files; if the disk refuses, the run goes on here."""
        target = self._root / safe_name(run_id)
        old = self.path
        if old.parent == target or run_id == self._refused:
            return

        # If a writer is blocked, the head's next reply tries again.
        if not self._moving.acquire(timeout=_FOLDER_MOVE):
            return
        try:
            log_dir.make_folder(target)
            names = map(target.joinpath, files.numbered_names(safe_name(self._name)))
            self.path = next(name for name in names if _renamed(old, name))
        except OSError as error:
            self._refused = run_id
            say(f"the log stays in {old}: {error_text(error)}", "warning")
            return
        finally:
            self._moving.release()

        for folder in (old, old.parent):
            with suppress(OSError):  # gone, or in use by another node
                log_dir.remove_folder(folder)
        self.become_latest()


def _make_folder(path: Path) -> bool:
    """Make a node's folder; return False if it is there."""
    for _ in range(100):
        with suppress(FileNotFoundError):  # another node removed the empty parent
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            log_dir.make_folder(path.parent)
            try:
                log_dir.make_folder(path, exist_ok=False)
            except FileExistsError:
                return False
            return True
    raise FileNotFoundError(errno.ENOENT, f"{path.parent} cannot be made")


def _sizes_of_logs(folder: Path, names: Iterable[str]) -> dict[str, int]:
    sizes = {}
    for name in names:
        if name.endswith(".log"):
            with suppress(OSError):
                sizes[name] = log_dir.stat(folder / name).st_size
    return sizes


def _renamed(old: Path, new: Path) -> bool:
    """Rename a folder; return False if the new name exists."""
    try:
        if not log_dir.exists(new):
            log_dir.rename(old, new)
            return True
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:  # it was just made
            raise
    return False
