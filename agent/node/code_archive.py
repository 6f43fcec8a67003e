"""Packs the code of a command into code.tar.gz, which the nodes get.

    python3 pack.py

`pod-agent init` writes this file as pack.py beside the start files, and packs once itself: it
imports nothing of the agent. Left out are what .gitignore names, .git, logs, checkpoints, virtual
environments, the files of `init`, and files that hold credentials.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FOLDER = "."
"""The folder with the code, seen from this file; `init` writes it."""
SCRIPT = ""
"""The script that the command starts, by its path in the folder; `init` writes it, too."""
ARCHIVE = "code.tar.gz"
LIMIT = 100 << 20  # bytes of all files; what Ray's dashboard takes of a working_dir, too
_MOST_FILES = 50_000
_LEFT_OUT = frozenset(
    (
        *(".git", "agent-logs", "logs", "checkpoints", "wandb", "mlruns"),
        *("__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"),
        *(".ruff_cache", ".ipynb_checkpoints", ".DS_Store"),
    )
)
"""Names of files and folders that no node needs; git may track one, which is code then."""
_CHECKPOINT = re.compile(r"(?:global_step_?|checkpoint-)\d+")
_OF_INIT = re.compile(r"code\.tar\.gz|pod_agent-.*\.whl|pod-agent")

_CREDENTIALS = re.compile(
    r"""(?:^|/)(?:
        \.env(?:\.[^/]*|rc)? | [^/]*\.env
      | id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)? | [^/]*\.(?:p12|pfx|ppk)
      | [._]netrc | \.pgpass | \.git-credentials | \.pypirc | kaggle\.json
      | \.aws/credentials | \.docker/config\.json | \.kube/config | kubeconfig
      | (?:\.huggingface|huggingface)/(?:token|stored_tokens)
      | application_default_credentials\.json
    )$""",
    re.VERBOSE,
)
"""Paths of files that hold credentials."""
_EXAMPLE = re.compile(r"\.(?:example|sample|template|tmpl|dist|defaults?)$")
_MAYBE = re.compile(r"\.(?:pem|key|json|npmrc)$|(?:^|/)\.npmrc$")
"""Paths of files whose content decides: a .pem file is often a public certificate."""
_PRIVATE = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\"type\":\s*\"service_account\"|_authToken\s*="
)


class UnpackableError(Exception):
    """The folder cannot be packed; the text says why, with the remedy."""


class Packed(NamedTuple):
    """An archive, and what is in it."""

    content: bytes
    names: tuple[str, ...]
    size: int  # bytes of its files
    left_out: tuple[str, ...] = ()  # what this program left out by its own rules
    credentials: tuple[str, ...] = ()  # files that were left out since they hold credentials
    reads_gitignore: bool = True

    def about(self) -> str:
        """Return what is in the archive, and what is not, in a line."""
        count = f"{len(self.names)} file{'' if len(self.names) == 1 else 's'}"
        text = f"{count}, {_size_text(self.size)}"
        if self.left_out:
            text += f"; left out: {_some(self.left_out)}"
        if self.credentials:
            text += f"; left out, since they hold credentials: {_some(self.credentials)}"
        if not self.reads_gitignore:
            text += "; .gitignore was not read, since git is missing"
        return text


def holds_credentials(path: Path, relative: str, size: int) -> bool:
    """Return whether a file holds credentials, by its path in the folder or by its content."""
    if _EXAMPLE.search(relative):
        return False
    if _CREDENTIALS.search(relative):
        return size > 0
    if not _MAYBE.search(relative) or size > 64 << 10:  # keys are small
        return False
    try:
        return _PRIVATE.search(path.read_bytes()) is not None
    except OSError:  # who packs it reports what cannot be read
        return False


def pack(folder: Path, beside: Path, script: str = "") -> Packed:
    """Pack a folder; that of the start files, `beside`, is left out if it is in it.

    `script` must be in the archive: the command starts it.
    """
    folder = folder.resolve()
    beside = beside.resolve()
    if not folder.is_dir():
        raise UnpackableError(f"{folder} is no folder")

    # Which files, and how large are they?
    names: list[str] = []
    credentials: list[str] = []
    left_out: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for name, is_tracked in _files(folder):
        path = folder / name
        if folder in beside.parents and beside in path.parents:
            continue
        # The files of `init`, also of another platform: each archive would hold those before it.
        if _OF_INIT.fullmatch(name if is_tracked else path.name):
            continue
        reason = "" if is_tracked else _why_left_out(name)
        if reason:
            left_out[reason] += 1
            continue
        if path.is_dir():  # a link: what it leads to may be anywhere
            left_out[name] += 1
            continue
        if not path.is_file():
            continue  # removed, a socket, or a link that leads nowhere
        size = path.stat().st_size
        linked = path.resolve().as_posix()
        if holds_credentials(path, name, size) or holds_credentials(path, linked, size):
            credentials.append(name)
            continue
        names.append(name)
        parts[PurePosixPath(name).parts[0]] += size
        if len(names) > _MOST_FILES:
            raise UnpackableError(f"{folder} has more than {_MOST_FILES:,} files: {_SHRINK}")

    # Is that what a folder of code has?
    size = sum(parts.values())
    if script and script not in names:
        raise UnpackableError(_why_missing(folder, script))
    if not names:
        raise UnpackableError(f"{folder} has no files to send")
    if size > LIMIT:
        largest = [f"{name} {_size_text(amount)}" for name, amount in parts.most_common(4)]
        raise UnpackableError(
            f"{folder}: {_size_text(size)} in {len(names)} files ({', '.join(largest)}), and at"
            f" most {_size_text(LIMIT)} are sent: {_SHRINK}"
        )
    names.sort()
    return Packed(
        _archive(folder, names),
        tuple(names),
        size,
        tuple(left_out),
        tuple(credentials),
        reads_gitignore=_has_git() or not (folder / ".gitignore").exists(),
    )


_SHRINK = "leave the largest out by .gitignore, or choose another folder with --code DIR"


def _why_missing(folder: Path, script: str) -> str:
    """Return why the archive would lack the command's script, with the remedy."""
    if not (folder / script).is_file():
        return (
            f"{script}, which the command starts, is not in {folder}: put it back, or run"
            " `pod-agent init` again with another command"
        )
    return (
        f"{script} is in {folder}, but would not be sent: .gitignore names it, or a folder above it"
        " is one for logs, checkpoints or packages"
    )


def _why_left_out(name: str) -> str:
    """Return the part of a path for which it is left out, or ''."""
    for part in PurePosixPath(name).parts:
        if part in _LEFT_OUT or _CHECKPOINT.fullmatch(part):
            return part
    return ""


def _archive(folder: Path, names: Iterable[str]) -> bytes:
    """Return the archive; the same files give the same bytes."""
    packed = io.BytesIO()
    zipped = gzip.GzipFile(fileobj=packed, mode="wb", mtime=0)
    with zipped, tarfile.open(fileobj=zipped, mode="w", dereference=True) as archive:
        for name in names:
            archive.add(folder / name, name, recursive=False, filter=_without_owner)
    return packed.getvalue()


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = 0
    member.gid = 0
    member.uname = ""
    member.gname = ""
    return member


# --- the files of a folder ---------------------------------------------------------------------


def _files(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield each file that git does not ignore, and whether git tracks it."""
    tracked = _by_git(folder, "ls-files", "-z") or []
    others = _by_git(folder, "ls-files", "-z", "--others", "--exclude-standard")
    if not tracked and not others:
        others = _in_no_repository(folder)
    if others is None:
        yield from ((name, False) for name in _walk(folder))
        return

    is_tracked = dict.fromkeys(others, False)
    is_tracked.update(dict.fromkeys(tracked, True))
    for name, tracks in is_tracked.items():
        path = folder / name
        if path.is_dir() and not path.is_symlink():  # a repository in it, or a submodule
            inner = name.rstrip("/")
            yield from ((f"{inner}/{below}", tracks and its) for below, its in _files(path))
        else:
            yield name, tracks


def _has_git() -> bool:
    return shutil.which("git") is not None


def _by_git(folder: Path, *words: str) -> list[str] | None:
    """Return the paths that a command of git lists; None where git or a repository is missing."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            check=False,
        )
    except OSError:
        return None
    if done.returncode != 0:
        return None
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def _in_no_repository(folder: Path) -> list[str] | None:
    """Return the files that .gitignore does not name, where no repository is; None without git."""
    with tempfile.TemporaryDirectory() as place:
        if _by_git(folder, "init", "--quiet", "--bare", place) is None:
            return None
        at = (f"--git-dir={place}", f"--work-tree={folder}")
        return _by_git(folder, *at, "ls-files", "-z", "--others", "--exclude-standard")


def _walk(folder: Path) -> Iterator[str]:
    """Yield all files, without git; what is left out is not entered."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _why_left_out(name))
        for name in names:
            yield Path(place, name).relative_to(folder).as_posix()


def _size_text(size: int) -> str:
    if size < 1 << 20:
        return f"{max(1, round(size / 1024))} KiB"
    return f"{size / (1 << 20):.1f} MiB"


def _some(names: Iterable[str], most: int = 4) -> str:
    found = [*names]
    rest = len(found) - most
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(found[:most]) + more


def main() -> int:
    """Pack the code again; return 0, or 1 where it cannot be packed."""
    here = Path(__file__).resolve().parent
    target = here / ARCHIVE
    try:
        packed = pack(here / FOLDER, here, SCRIPT)
        new = target.with_name(f".{ARCHIVE}.new")
        new.write_bytes(packed.content)
        new.replace(target)
    except (UnpackableError, OSError) as error:
        print(f"pack.py: {error}", file=sys.stderr)
        return 1
    print(f"packed {ARCHIVE}: {packed.about()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
