"""AGENT_LOG_DIR: file modes below it, and the links and folders below it that are refused.

Other users may write into AGENT_LOG_DIR, for example on a scratch disk, and make the folder of a
run before the run does. So each path below it is opened folder by folder (openat), no symbolic link
is followed, and every folder must have the owner that a new file there gets. Links at and above
AGENT_LOG_DIR are the user's choice.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.text import error_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
MODES: Mapping[str, tuple[int, int] | None] = {
    "private": (0o700, 0o600),
    "group": (0o750, 0o640),
    "umask": None,
}
"""The modes of folders and files for each AGENT_LOG_MODE; None: as the umask has it."""


class RefusedPathError(OSError):
    """A path below AGENT_LOG_DIR that is not used: it has a link, or another owner's folder."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EPERM, why)


class LogDir:
    """Opens, makes, renames and removes what is below AGENT_LOG_DIR.

    Paths elsewhere, and all paths before `guard`, are used as any program does.
    """

    def __init__(self) -> None:
        self._mode = "private"
        self._root: Path | None = None
        self._owner: int | None = None  # of all folders below it; None: any
        self.fault = ""  # why a disk keeps other modes, if it does

    # --- rules -----------------------------------------------------------------------------------

    def allow(self, mode: str) -> None:
        """Set the modes of AGENT_LOG_MODE, before the first file."""
        self._mode = mode
        self.fault = ""

    def guard(self, root: Path) -> None:
        """Make AGENT_LOG_DIR, and refuse links and other owners' folders below it from now on."""
        root = root.absolute()
        if root == self._root:
            return
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._owner = _owner_of_new_file(root)

    @property
    def rules(self) -> tuple[str, int | None, str]:
        """Return the arguments of `obey` for a process that the agent starts."""
        return str(self._root or ""), self._owner, self._mode

    def obey(self, root: str, owner: int | None, mode: str) -> None:
        """Use the rules of the agent that started this process, or none for owners."""
        self._root = Path(root) if root else None
        self._owner = owner
        self._mode = mode

    # --- files and folders -----------------------------------------------------------------------

    @contextmanager
    def at(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of a path's folder and the last name, for calls with `dir_fd`."""
        with self._folder(path.parent) as folder:
            yield folder, path.name

    def open(self, path: Path, flags: int) -> int:
        """Open a file to write it, with the modes of AGENT_LOG_MODE; make it if `flags` say so."""
        modes = MODES[self._mode]
        descriptor = self.open_as_is(path, flags, 0o666 if modes is None else 0o600)
        if modes is not None and stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._change(descriptor, modes[1])
        return descriptor

    def open_as_is(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """Open a file to read it, or make one with another mode."""
        flags |= os.O_CLOEXEC
        if self._below(path):
            flags |= os.O_NOFOLLOW
        with self.at(path) as (folder, name):
            try:
                return os.open(name, flags, mode, dir_fd=folder)
            except OSError as error:
                if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
                    raise RefusedPathError(f"{path} is a symbolic link") from None
                raise

    def make_folder(self, path: Path, *, exist_ok: bool = True) -> None:
        """Make a folder of a run, with the modes of AGENT_LOG_MODE."""
        modes = MODES[self._mode]
        with self.at(path) as (parent, name):
            try:
                os.mkdir(name, 0o777 if modes is None else 0o700, dir_fd=parent)
            except FileExistsError:
                if not exist_ok:
                    raise
        with self._folder(path) as folder:
            if modes is not None:
                self._change_folder(folder, modes[0])

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or folder; a file that has the new name is replaced."""
        with self.at(old) as (source, former), self.at(new) as (target, name):
            os.rename(former, name, src_dir_fd=source, dst_dir_fd=target)

    def remove(self, path: Path) -> None:
        """Remove a file or link if it is there."""
        with self.at(path) as (folder, name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        with self.at(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        with self._folder(path) as folder:
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            return sorted(os.listdir(readable))  # noqa: PTH208 - a descriptor
        finally:
            os.close(readable)

    def stat(self, path: Path) -> os.stat_result:
        """Return the status of a file, folder or link itself."""
        with self.at(path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def exists(self, path: Path) -> bool:
        """Return whether there is a file, folder or link; False if it cannot be reached."""
        with suppress(OSError):
            self.stat(path)
            return True
        return False

    def is_folder(self, path: Path) -> bool:
        """Return whether a path is a folder that may be used."""
        with suppress(OSError), self._folder(path):
            return True
        return False

    # --- one folder after the other --------------------------------------------------------------

    def _below(self, path: Path) -> tuple[str, ...]:
        """Return the names that lead from AGENT_LOG_DIR to a path; none if it is elsewhere."""
        path = path.absolute()
        if self._root is None or not path.is_relative_to(self._root):
            return ()
        return path.relative_to(self._root).parts

    @contextmanager
    def _folder(self, path: Path) -> Iterator[int]:
        """Yield the descriptor of a folder, entered from AGENT_LOG_DIR where it is below it."""
        if os.open not in os.supports_dir_fd:
            raise OSError(errno.ENOTSUP, "this system opens no file from a folder")  # Windows
        names = self._below(path)
        start = self._root if names and self._root is not None else path
        folder = os.open(start, _FOLDER)
        try:
            for name in names:
                entered = self._enter(folder, name, path)
                os.close(folder)
                folder = entered
            yield folder
        finally:
            os.close(folder)

    def _enter(self, parent: int, name: str, path: Path) -> int:
        """Return the descriptor of a folder of the right owner in another one."""
        if name == os.pardir:
            raise RefusedPathError(f"{path} leads out of AGENT_LOG_DIR")
        try:
            folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
        except NotADirectoryError:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                raise RefusedPathError(f"{name} in {path} is a symbolic link") from None
            raise
        owner = os.fstat(folder).st_uid
        if self._owner in {None, owner}:
            return folder
        os.close(folder)
        whose = f"user {owner}, and new files here to user {self._owner}"
        raise RefusedPathError(f"{name} in {path} belongs to {whose}")

    # --- modes -----------------------------------------------------------------------------------

    def _change_folder(self, folder: int, mode: int) -> None:
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            descriptor = os.open(".", flags, dir_fd=folder)  # modes need more than O_PATH
        except OSError as error:  # a folder of another user
            self.fault = self.fault or error_text(error)
            return
        try:
            self._change(descriptor, mode)
        finally:
            os.close(descriptor)

    def _change(self, descriptor: int, mode: int) -> None:
        fault = ""
        try:
            if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
                os.fchmod(descriptor, mode)
                kept = stat.S_IMODE(os.fstat(descriptor).st_mode)
                fault = "" if kept == mode else f"mode {kept:o} instead of {mode:o}"
        except OSError as error:  # a file of another user, or a disk without modes
            fault = error_text(error)
        self.fault = self.fault or fault


def why_refused(root: Path, path: Path, disk: str) -> str:
    """Return why a run would not use a folder below AGENT_LOG_DIR; '' if it would, or makes it.

    Nothing is written. Only on a `disk` of `_LOCAL` is the owner of a new file known before.
    """
    rules = LogDir()
    rules.obey(str(root.absolute()), os.geteuid() if disk in _LOCAL else None, "umask")
    try:
        rules.names(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error_text(error)
    return ""


_LOCAL = {"btrfs", "ext2", "ext3", "ext4", "overlay", "tmpfs", "xfs", "zfs"}
"""File systems that give a file to the user who makes it; network disks may map users."""


def owner_of_runs(root: Path) -> int | None:
    """Return whose runs a reader of AGENT_LOG_DIR may use; None: all, since others write none."""
    with suppress(OSError):
        if root.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return _owner_of_new_file(root)
    return None


def _owner_of_new_file(folder: Path) -> int:
    """Return the owner that a new file gets: on NFS that maps users, another than this one."""
    probe = folder / f".owner-{secrets.token_hex(4)}"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:  # a full disk, or one where only the folders of runs are writable
        return os.geteuid()
    try:
        return os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
        with suppress(OSError):
            probe.unlink()


log_dir = LogDir()
"""The one AGENT_LOG_DIR of this process."""
