"""A stand-in for the Hugging Face hub's HTTP API, and the real client for it."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parent.parent
COMMIT, OLDER = "c0ffee" * 6 + "c0ff", "0dd" * 13 + "0"
MODEL = "acme/tiny-2b"
FILES = {
    "config.json": b'{"model_type": "tiny"}',
    "model.safetensors": bytes(24 << 20),  # the client stores a download in pieces of 10 MiB
    "pytorch_model.bin": b"the same once more" * 1000,
    "original/consolidated.00.pth": b"and once more",
    "README.md": b"# tiny",
}
REVISIONS = {
    "main": (COMMIT, FILES),
    "v1": (OLDER, {"config.json": b'{"model_type": "old"}', "pytorch_model.bin": b"a pickle"}),
}
"""Branches and tags of the model: commit and files. A commit is a revision, too."""


class Hub(ThreadingHTTPServer):
    """One model, and the requests for it; the first downloads of weights can be broken off."""

    daemon_threads = True

    def __init__(self, host: str = "127.0.0.1", port: int = 0, breaks: int = 0) -> None:
        super().__init__((host, port), Handler)
        self.asked: list[str] = []
        self.breaks = breaks
        """How many downloads of weights are broken off halfway."""
        self.busy = 0
        """How many requests are answered with 503."""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Return the value for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """Serves the requests with which `huggingface_hub` fetches a snapshot."""

    server: Hub
    protocol_version = "HTTP/1.1"
    PATTERN: ClassVar = re.compile(r"/(?:(api)/models/)?([\w.-]+/[\w.-]+)(?:/(.*))?")

    def do_HEAD(self) -> None:
        """Send a file's size and hash."""
        self._answer(with_body=False)

    def do_GET(self) -> None:
        """Send the list of files, or one of them."""
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        server, path = self.server, self.path.partition("?")[0]
        with server.lock:
            server.asked.append(f"{self.command} {path}")
            if server.busy > 0:
                server.busy -= 1
                self._send(503, b"busy", {})
                return
        found = self.PATTERN.fullmatch(path)
        if found is None or found[2] != MODEL:
            gated = found is not None and found[2] == "acme/gated"
            header = {"X-Error-Code": "GatedRepo" if gated else "RepoNotFound"}
            self._send(403 if gated else 404, b"{}", header, with_body=with_body)
            return
        verb, _, rest = (found[3] or "revision/main").partition("/")
        revision, _, name = rest.partition("/")
        both = REVISIONS.get(revision) or next(
            (one for one in REVISIONS.values() if one[0] == revision), None
        )
        if both is None:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body=with_body)
            return
        commit, files = both
        if not found[1]:
            self._file(commit, files.get(name), name, with_body=with_body)
            return
        answer: object = {
            "id": MODEL,
            "modelId": MODEL,
            "sha": commit,
            "private": False,
            "gated": False,
            "siblings": [_sibling(name, body) for name, body in files.items()],
        }
        if verb == "tree":
            answer = [
                {"type": "file", "path": name, "size": len(body), "oid": _oid(body)}
                for name, body in files.items()
            ]
        self._send(200, json.dumps(answer).encode(), {}, with_body=with_body)

    def _file(self, commit: str, body: bytes | None, name: str, *, with_body: bool) -> None:
        if body is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body=with_body)
            return
        headers = {
            "ETag": f'"{_oid(body)}"',
            "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
        }
        start = re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("Range", ""))
        status, part = 200, body
        if start is not None:
            status, part = 206, body[int(start[1]) :]
            headers["Content-Range"] = f"bytes {start[1]}-{len(body) - 1}/{len(body)}"
            with self.server.lock:
                self.server.asked.append(f"RANGE {name} from {start[1]}")
        breaks = False
        if with_body and name.endswith(".safetensors"):
            print(f"the hub sends {name} to {self.client_address[0]}", flush=True)
            with self.server.lock:
                breaks = self.server.breaks > 0
                self.server.breaks -= breaks
        self._send(status, part, headers, with_body=with_body, breaks=breaks)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str],
        *,
        with_body: bool = True,
        breaks: bool = False,
    ) -> None:
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body[: len(body) // 2] if breaks else body)
        if breaks:
            self.close_connection = True

    def log_message(self, *_ignored: object) -> None:
        """Print nothing: requests are recorded."""


def _sibling(name: str, body: bytes) -> dict[str, object]:
    """Return a file as the hub lists it; weights are in its store of large files."""
    row: dict[str, object] = {"rfilename": name, "size": len(body)}
    if name.endswith(".safetensors"):
        row["lfs"] = {"sha256": _oid(body), "size": len(body), "pointerSize": 134}
    return row


def _oid(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def client() -> Path:
    """Return a folder with `huggingface_hub` for this Python; installed once.

    Raises CalledProcessError if it cannot be installed, for example without a network.
    """
    place = ROOT / ".versions" / f"hub-{sys.version_info[0]}.{sys.version_info[1]}"
    place.parent.mkdir(exist_ok=True)
    with (place.parent / "hub.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / ".made").exists():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
            install += ["--disable-pip-version-check", "--retries", "1", "--timeout", "10"]
            install += ["--target", str(place), "huggingface_hub"]
            subprocess.run(install, check=True, capture_output=True, timeout=120)
            (place / ".made").touch()
    return place


def environment(home: Path, endpoint: str) -> dict[str, str]:
    """Return the environment of a process that uses that client and this hub."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=9100)
    given = options.parse_args()
    hub = Hub(given.host, given.port)
    print("the hub listens", flush=True)
    hub.serve_forever()
