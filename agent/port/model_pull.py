"""Takes a model's weights from the nodes that have them, before the hub's own client runs.

A program of its own, first in the step that fetches the model on a worker:

1. It asks the hub which files the revision has, with the digest of each.
2. It asks the head for its sources: the nodes that asked before it, the nearest first. The head
   itself is the last.
3. It takes the weights from the first source, several files at a time, each from the byte at which
   an earlier try ended. A source that fails, or that neither gets nor sends anything, is replaced
   by the next.
4. A file with the digest of the hub gets its place in the hub's cache. Any other is removed.

Whatever is missing in the end, all of it at worst, the hub's client fetches from the hub: this
program always ends with 0.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import requests

from agent.base import times
from agent.base.text import error_text, gigabytes, in_url
from agent.job.model_sharing import KEY_VARIABLE
from agent.node.read import hub_folder, hub_home
from agent.port.model_server import ARRIVING, FILES_PATH, HAS_HEADER, SOURCES_PATH
from agent.port.proof import TRIES, Prover, ReplyProof
from agent.record.background import start_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILES_AT_A_TIME = 4
LEAST = 8 << 20  # Bytes of a file that is worth it; the hub's client fetches the smaller ones
_PIECE = 1 << 20
_LONGEST_BODY = 1 << 16  # Of an answer that is no file
_DIGEST = re.compile("[0-9a-f]{64}")
_TRUE = {"1", "true", "yes", "on"}


class WeightFile(NamedTuple):
    """A file of the model, as the hub describes it."""

    name: str
    size: int
    digest: str  # its SHA-256


class PullError(OSError):
    """Why nothing, or nothing more, comes from other nodes."""


# --- what the hub says ---------------------------------------------------------------------------


def list_weights(model: str, revision: str | None, environ: Mapping[str, str]) -> list[WeightFile]:
    """Return the weights of a revision in the order in which the hub's client fetches them."""
    endpoint = (environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    url = f"{endpoint}/api/models/{model}/revision/{revision or 'main'}"
    token = hub_token(environ)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = requests.get(url, params={"blobs": "true"}, headers=headers, timeout=times.HUB_ANSWERS)
    if answer.status_code != 200:
        raise PullError(f"{endpoint} answered {answer.status_code}")
    try:
        return weights_among(answer.json()["siblings"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PullError(f"{endpoint} does not list its files with digests") from None


def weights_among(siblings: list[dict[str, object]]) -> list[WeightFile]:
    """Return the safetensors of a list of files; other formats are left to the hub's client."""
    files = []
    for row in siblings:
        name = str(row["rfilename"])
        lfs = row.get("lfs")
        if not name.endswith(".safetensors") or "/" in name or not isinstance(lfs, dict):
            continue
        digest = str(lfs["sha256"])
        size = int(lfs["size"])
        if _DIGEST.fullmatch(digest) and size >= LEAST:
            files.append(WeightFile(name, size, digest))
    return sorted(files)


def hub_token(environ: Mapping[str, str]) -> str | None:
    """Return the token for the hub, where its own library looks for it."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environ.get(name, "").strip():
            return environ[name].strip()
    file = environ.get("HF_TOKEN_PATH") or f"{hub_home(environ)}/token"
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


# --- a source ------------------------------------------------------------------------------------


class ProvenAnswer(NamedTuple):
    """A proven answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    stream: requests.Response | None  # what is to be read, instead of a body


class ModelSource:
    """Sends signed requests to one node's model server; used by one thread alone."""

    def __init__(self, address: str, port: int, key: str | None) -> None:
        self.address = address
        self._base = f"http://{in_url(address)}:{port}"
        self._prover = Prover(key)
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy stands between two nodes

    def get(self, path: str, begin: int | None = None) -> ProvenAnswer:
        """Return a proven answer; with `begin` a stream from that byte on."""
        ranged = {} if begin is None else {"Range": f"bytes={begin}-"}
        for _ in range(TRIES):
            signed = self._prover.sign("GET", path)
            response = self._session.get(
                self._base + path,
                headers={**ranged, **signed.headers},
                stream=True,
                timeout=(times.MODEL_CONNECT, times.MODEL_STALLED + times.MODEL_CONNECT),
                allow_redirects=False,
            )
            status = response.status_code
            is_stream = begin is not None and status == 200
            body = None if is_stream else next(response.iter_content(_LONGEST_BODY), b"")
            verdict = self._prover.check(signed, status, response.headers, body)
            if verdict is ReplyProof.PROVEN:
                stream = response if is_stream else None
                return ProvenAnswer(status, response.headers, body or b"", stream)
            response.close()
            if verdict is ReplyProof.REFUSED:
                raise PullError(f"{self.address} asks for another RAY_AUTH_TOKEN than this node's")
            if verdict is not ReplyProof.AGAIN:
                break
        raise PullError(f"{self.address} does not prove that it holds this node's RAY_AUTH_TOKEN")

    def list_sources(self) -> list[str]:
        """Return the nodes that asked this one, the head, before."""
        answer = self.get(SOURCES_PATH)
        if answer.status != 200:
            why = answer.body.decode(errors="replace")[:200]
            raise PullError(f"{self.address} answered {answer.status}: {why}")
        try:
            return [str(address) for address in json.loads(answer.body)["sources"]]
        except (ValueError, KeyError, TypeError):
            raise PullError(f"{self.address} answered with no list of sources") from None


def find_sources(head: str, port: int, key: str | None) -> list[str]:
    """Return the nodes to take the files from, in order; wait for the head for a while."""
    deadline = time.monotonic() + times.MODEL_HEAD
    pause = threading.Event()
    while True:
        answer = _ask_head(head, port, key)
        if not isinstance(answer, str):
            return [*answer, head]
        if time.monotonic() > deadline:
            what = f"no model server at {head}, port {port}, for {times.MODEL_HEAD:g} s"
            raise PullError(f"{what}: {answer}")
        pause.wait(times.MODEL_ASKED)


def _ask_head(head: str, port: int, key: str | None) -> list[str] | str:
    """Return the nodes before this one, or why the head does not answer."""
    try:
        return ModelSource(head, port, key).list_sources()
    except requests.RequestException as error:
        return error_text(error)[:200]


# --- the pull ------------------------------------------------------------------------------------


class SourceProgress:
    """When a source sent or got anything last; several threads use it."""

    def __init__(self) -> None:
        self._moved_at = time.monotonic()
        self._has = ""

    def moved(self) -> None:
        """Note that it sent something."""
        self._moved_at = time.monotonic()

    def has(self, size: str) -> None:
        """Note how much of the model it has by its own answer."""
        if size != self._has:
            self._has = size
            self.moved()

    def check(self, address: str) -> None:
        """Raise if it neither sent nor got anything for too long."""
        if time.monotonic() - self._moved_at > times.MODEL_STALLED:
            raise PullError(f"{address} sent and got nothing for {times.MODEL_STALLED:g} s")


class ModelPull:
    """Takes files from other nodes into the cache."""

    def __init__(
        self, files: Sequence[WeightFile], folder: Path, port: int, key: str | None
    ) -> None:
        self._files = files
        self._blobs = folder / "blobs"
        self._port = port
        self._key = key
        self._stop = threading.Event()  # set once a source has failed
        self._why = ""
        self._lock = threading.Lock()
        self.taken = 0  # bytes that came from other nodes

    def run(self, sources: Sequence[str]) -> list[WeightFile]:
        """Take the files from the first source that has them; return those that are missing."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        for address in sources:
            missing = self._missing()
            if not missing:
                return []
            self._stop.clear()
            self._take_from(address, deque(missing))
            if self._why:
                print(self._why, flush=True)

        # What the hub's client fetches from its first byte is not resumed.
        missing = self._missing()
        for file in missing:
            part = self._part_of(file)
            if part.exists():
                with part.open("a+b") as out:
                    if _is_ours(part, out):
                        part.unlink()
        return missing

    def _part_of(self, file: WeightFile) -> Path:
        return self._blobs / f"{file.digest}{ARRIVING}"

    def _missing(self) -> list[WeightFile]:
        return [file for file in self._files if not (self._blobs / file.digest).exists()]

    def _take_from(self, address: str, waiting: deque[WeightFile]) -> None:
        """Take the files from one source, several at a time, until one of them fails."""
        self._why = ""
        progress = SourceProgress()

        def work() -> None:
            source = ModelSource(address, self._port, self._key)
            try:
                while waiting and not self._stop.is_set():
                    self._take(source, waiting.popleft(), progress)
            except IndexError:  # another thread took the last one
                return
            except OSError as error:
                with self._lock:
                    self._why = self._why or f"from {address}: {error_text(error)[:300]}"
                self._stop.set()

        threads = [start_thread(work) for _ in range(FILES_AT_A_TIME)]
        for thread in threads:
            if thread is not None:
                thread.join()

    def _take(self, source: ModelSource, file: WeightFile, progress: SourceProgress) -> None:
        """Take a file; raise if the source fails."""
        began = time.monotonic()
        part = self._part_of(file)
        with part.open("a+b") as out:
            if not _is_ours(part, out):
                return
            digest = _digest_so_far(out)
            while out.tell() < file.size and not self._stop.is_set():
                self._receive(source, file, out, digest, progress)
            if self._stop.is_set() and out.tell() < file.size:
                return
            if out.tell() != file.size or digest.hexdigest() != file.digest:
                part.unlink()
                raise PullError(f"{file.name} has another digest than the hub's")
            part.replace(self._blobs / file.digest)
        took = time.monotonic() - began
        size = gigabytes(file.size)
        print(f"{file.name}: {size} from {source.address} in {took:.0f} s", flush=True)

    def _receive(
        self,
        source: ModelSource,
        file: WeightFile,
        out: BinaryIO,
        digest: hashlib._Hash,
        progress: SourceProgress,
    ) -> None:
        """Write what the source sends of a file; wait a while where it does not have it yet."""
        # Has the source any of it?
        answer = source.get(f"{FILES_PATH}{file.digest}", out.tell())
        if answer.status == 404:
            progress.has(answer.headers.get(HAS_HEADER, ""))
            progress.check(source.address)
            self._stop.wait(times.MODEL_ASKED)
            return
        if answer.stream is None:
            why = answer.body.decode(errors="replace")[:200]
            raise PullError(f"{source.address} answered {answer.status}: {why}")

        # What it sends, up to the size that the hub names.
        with answer.stream as stream:
            for data in stream.iter_content(_PIECE):
                out.write(data)
                out.flush()
                digest.update(data)
                progress.moved()
                with self._lock:
                    self.taken += len(data)
                if self._stop.is_set() or out.tell() > file.size:
                    return
        if out.tell() < file.size:
            raise PullError(f"{source.address} ended {file.name} too early")


def _is_ours(part: Path, out: BinaryIO) -> bool:
    """Lock an open file; return False if another process has the lock, or had it until now."""
    try:
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with suppress(FileNotFoundError):  # it was renamed or removed between opening and locking
        return os.path.samestat(part.stat(), os.fstat(out.fileno()))
    return False


def _digest_so_far(out: BinaryIO) -> hashlib._Hash:
    """Return the digest of what an earlier try has written; the file is at its end then."""
    digest = hashlib.sha256()
    out.seek(0)
    while data := out.read(_PIECE):
        digest.update(data)
    return digest


def pull(model: str, revision: str | None, head: str, port: int, environ: Mapping[str, str]) -> str:
    """Take a model's weights from other nodes; return a sentence about it."""
    if environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        raise PullError("HF_HUB_OFFLINE is set, so that the hub names no digests")
    files = list_weights(model, revision, environ)
    folder = hub_folder(model, environ)
    key = environ.get(KEY_VARIABLE)
    pulling = ModelPull(files, folder, port, key)
    if all((folder / "blobs" / file.digest).exists() for file in files):
        return "they are here already"
    began = time.monotonic()
    missing = pulling.run(find_sources(head, port, key))
    sentence = f"{gigabytes(pulling.taken)} in {time.monotonic() - began:.0f} s"
    if missing:
        sentence += f"; {len(missing)} of {len(files)} file(s) are left to the hub"
    return sentence


def main(argv: Sequence[str]) -> int:
    """Take one model; the last line says what came from other nodes."""
    parser = argparse.ArgumentParser(prog="pod-agent pull-model", description=__doc__)
    parser.add_argument("model", help="id on the hub")
    parser.add_argument("--revision", help="branch, tag or commit; default: the newest")
    parser.add_argument("--head", required=True, help="address or name of the head")
    parser.add_argument("--port", type=int, required=True, help="of all model servers")
    asked = parser.parse_args(argv)
    try:
        done = pull(asked.model, asked.revision, asked.head, asked.port, os.environ)
        print(f"{asked.model} from other nodes: {done}", flush=True)
    except OSError as error:
        print(f"{asked.model}: nothing from other nodes: {error_text(error)[:300]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
