"""The run folder: `<log dir>/<run id>/<node>/`, with `latest` pointing at the run."""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.errors import PreflightError
from agent.record import node_record, outcome_file
from agent.record.files import PART, FileLock, numbered, safe, why
from agent.record.log import say
from agent.record.node_record import Found, NodeRecord, own_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


_LOCK = ".agent.lock"
_MOST_LIVES = 50
"""Of so many former lives each file is kept."""
_PATIENCE = 0.1
_WAITING = "no-head-"


class RunFolder:
    """This node's folder of this run; a worker's moves once it hears the run's id.

    A node that is started again goes on in its own folder; only where another living agent, or
    another machine's, holds that it takes one with a number.
    """

    def __init__(
        self,
        root: Path,
        run_id: str,
        node: str,
        *,
        link: bool = True,
        tell: Callable[[str, str], None] = say,
    ) -> None:
        self._root = root.absolute()
        self._name = node
        self._tell = tell
        self._moving = threading.RLock()
        self._refused = ""
        """The run whose folder could not be had: that is said once."""
        self.own = own_record(node, run_id)
        """This agent's record, as it begins; a NodeRecorder keeps it from then on."""
        self.former: NodeRecord | None = None
        """The record of this node's former life in this run, if it had one."""
        self._lock: FileLock
        self.path = self._make(safe(run_id))
        if link:
            self._link(safe(run_id))

    @classmethod
    def waiting(cls, root: Path, node: str) -> RunFolder:
        """Make the folder of a worker that does not know its run yet.

        One that starts again and again before there is a head goes on in the same.
        """
        name = f"{_WAITING}{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        return cls(root, _waited_in(root, safe(node)) or name, node, link=False)

    def file(self, name: str) -> Path:
        """Return the path of a file in it."""
        return self.path / name

    @contextmanager
    def steady(self, name: str) -> Iterator[Path]:
        """Yield the path of a file in it, which does not move meanwhile."""
        with self._moving:
            yield self.path / name

    def close(self) -> None:
        """Let go of the folder: the next agent of this node goes on in it."""
        self._lock.release()

    # --- a folder of our own --------------------------------------------------------------------

    def _make(self, run_id: str) -> Path:
        try:
            for name in numbered(safe(self._name)):
                path = self._root / run_id / name
                if self._claim(path):
                    return path
            raise FileExistsError(errno.EEXIST, "all its numbers are taken")
        except OSError as error:
            raise PreflightError(
                f"AGENT_LOG_DIR={self._root} cannot be written",
                why=why(error),
                remedy="Choose a writable folder in AGENT_LOG_DIR",
                culprit="AGENT_LOG_DIR",
            ) from None

    def _claim(self, path: Path) -> bool:
        """Take a folder as ours, unless another agent holds it."""
        found = _enter(path)
        if found is None:
            return False
        lock, what = found
        if not node_record.may_hold(what, self._name, self.own.place):
            lock.release()
            return False
        self._lock, self.former = lock, what.record
        self._set_aside(path, outcome_file.FILE)  # it tells of the former life
        for part in path.glob(f".*{PART}"):  # what that life left half written
            with suppress(OSError):
                part.unlink()
        self.own.write(path / node_record.FILE)  # the log says later that the disk is full
        return True

    @staticmethod
    def _set_aside(folder: Path, name: str) -> None:
        """Give a file of a former life a number."""
        if os.path.lexists(folder / name):
            with suppress(OSError):
                (folder / name).replace(_number_for(folder / name))

    def become_latest(self) -> None:
        """Have `latest` point to this run."""
        self._link(self.path.parent.name)

    def _link(self, run_id: str) -> None:
        part = self._root / f".latest-{secrets.token_hex(4)}"
        with suppress(OSError):  # a disk without links still holds the logs
            part.symlink_to(run_id, target_is_directory=True)
            part.replace(self._root / "latest")
        with suppress(OSError):
            part.unlink(missing_ok=True)

    # --- the way into the run's folder ----------------------------------------------------------

    def belongs_to(self, run_id: str) -> None:
        """Move to the run's own folder; files that are open move along.

        Where the disk does not let us, the folder stays where it is, and the run goes on.
        """
        target = self._root / safe(run_id)
        if self.path.parent == target or run_id == self._refused:
            return
        if not self._moving.acquire(timeout=_PATIENCE):
            return  # the disk holds up who writes: the next word of the head brings us back
        try:
            if self.path.parent != target:
                self._move_into(target, run_id)
        except OSError as error:
            self._refused = run_id
            self._tell(f"the log stays in {self.path}: {why(error)}", "warning")
        finally:
            self._moving.release()

    def _move_into(self, target: Path, run_id: str) -> None:
        old = self.path
        target.mkdir(parents=True, exist_ok=True)
        names = numbered(safe(self._name))
        new = next((n for n in map(target.joinpath, names) if self._moved(old, n)), None)
        if new is None:
            raise FileExistsError(errno.EEXIST, "all its numbers are taken")
        self.path, self.own = new, replace(self.own, run_id=run_id)
        record = NodeRecord.read(new / node_record.FILE)
        if isinstance(record, NodeRecord):
            replace(record, run_id=run_id).write(new / node_record.FILE, durable=False)
        for folder in (old, old.parent):
            with suppress(OSError):  # gone, or another node on a shared disk still waits in it
                folder.rmdir()
        self._link(safe(run_id))

    def _moved(self, old: Path, new: Path) -> bool:
        """Move there, if that folder is none yet, or our own from a former life."""
        if _renamed(old, new):
            return True
        lock, former = self._lock, self.former
        if not self._claim(new):
            return False
        try:
            _pour(old, new)
        except OSError:
            self._lock.release()
            if self.former is not None:
                self.former.write(new / node_record.FILE)
            self._lock, self.former = lock, former
            raise
        lock.release()
        with suppress(OSError):  # the newer of the two; none where the disk was full
            (old / node_record.FILE).replace(new / node_record.FILE)
        for rest in (old / _LOCK, *old.glob(f".*{PART}")):
            with suppress(OSError):
                rest.unlink()
        return True


def _waited_in(root: Path, node: str) -> str | None:
    """Name the folder in which this node waited last, where it found no head then."""
    try:
        found = [path.name for path in root.glob(f"{_WAITING}*") if (path / node).is_dir()]
    except OSError:  # the folder that is made next says it
        return None
    return max(found, default=None)


def _enter(path: Path) -> tuple[FileLock, Found] | None:
    """Make a folder, or find what is in it; None where no folder can be."""
    is_new = True
    for _ in range(100):
        try:
            path.mkdir(parents=True)
        except FileNotFoundError:  # its parent went in between: another node left it empty
            continue
        except FileExistsError:
            is_new = False
        break
    if path.is_symlink() or not path.is_dir():
        return None
    lock = FileLock(path / _LOCK)
    claim = lock.take()
    now = lock.now_on_disk()
    record = NodeRecord.read(path / node_record.FILE)
    if isinstance(record, str):
        return lock, Found(claim, is_new, None)
    age = node_record.age_of(path / node_record.FILE, time.time() if now is None else now)
    return lock, Found(claim, is_new, record, node_record.agent_lives(record), age)


def _renamed(old: Path, new: Path) -> bool:
    """Move a folder where there is none yet."""
    if os.path.lexists(new):
        return False
    try:
        old.rename(new)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:  # it just came to be
            return False
        raise
    return True


def _number_for(path: Path) -> Path:
    """Return a name for a file of a former life; of very many lives the oldest gives way."""
    stem, dot, ending = path.name.partition(".")
    names = (path.with_name(f"{stem}.former-{n}{dot}{ending}") for n in range(1, _MOST_LIVES + 1))
    candidates = list(names)
    free = next((name for name in candidates if not os.path.lexists(name)), None)
    return free or min(candidates, key=lambda name: name.lstat().st_mtime)


def _pour(old: Path, new: Path) -> None:
    """Move everything from one folder into another, or nothing.

    A file is moved and never copied, since it may be open; one of its name that lies there
    already is given a number. Only of events is there one sequence.
    """
    from agent.record import events  # noqa: PLC0415 - Ray's start need not wait for it

    apart = {_LOCK, node_record.FILE, events.FILE, events.FORMER}
    moved: list[tuple[Path, Path]] = []
    try:
        for source in sorted(old.iterdir()):
            if source.name in apart or source.name.endswith(PART):
                continue
            there = new / source.name
            if os.path.lexists(there):
                aside = _number_for(there)
                there.rename(aside)
                moved.append((there, aside))
            source.rename(there)
            moved.append((source, there))
        _join_events(old, new)
    except OSError:
        for source, there in reversed(moved):
            with suppress(OSError):
                there.rename(source)
        raise


def _join_events(old: Path, new: Path) -> None:
    from agent.record import events  # noqa: PLC0415 - as above

    parts = [old / name for name in (events.FORMER, events.FILE) if (old / name).exists()]
    if not parts:
        return
    events.append_whole(new / events.FILE, b"".join(part.read_bytes() for part in parts))
    for part in parts:
        part.unlink()
