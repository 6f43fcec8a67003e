"""Serves this node's model files to other nodes of the run: one of them downloads for all.

A program of its own, since a read may hang with its disk: each node that fetches a model of the hub
runs it. It serves two things:

- The files by digest, from any byte on. A file that still arrives is sent as it grows, so that a
  chain of nodes takes little longer than one node.
- On the head, the sources: the nodes that asked for them before, the last one first. Thus each node
  takes its files from its predecessor, and from an earlier one where that fails.

With a token, both ends prove that they have it (proof.py). Without one, only models are served that
the hub gives to everybody.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import sys
import urllib.request
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from agent.base import times
from agent.base.text import is_public
from agent.job.model_sharing import KEY_VARIABLE
from agent.node.read import hub_folder
from agent.port.access import PortAccess
from agent.port.proof import SESSION_HEADER
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.background import result_in_thread
from agent.serving.connections import trust
from agent.serving.program import Program
from agent.serving.replies import error_reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SOURCES_PATH = "/sources"
FILES_PATH = "/files/"
HAS_HEADER = "Pod-Agent-Has"
"""Header of a 404: the bytes that this node has of the model, which grow while it fetches them."""
ARRIVING = ".arriving"
"""The suffix of a file that another node sends: its bytes are in order, up to its size."""
MOST_SOURCES = 4
_MOST_NODES = 1 << 14
_PIECE = 1 << 22
_DIGEST = re.compile("[0-9a-f]{64}")
_RANGE = re.compile(r"bytes=(\d{1,15})-")


# --- who takes the files from whom ---------------------------------------------------------------


class Chain:
    """The nodes in the order in which they asked for their sources; the head is before them all."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def sources_of(self, node: str) -> list[str]:
        """Return the nodes before this one, the nearest first; it is the last one from now on."""
        if len(self._places) < _MOST_NODES:
            self._places.setdefault(node, len(self._places))
        place = self._places.get(node, len(self._places))
        before = [*self._places][:place]
        return before[::-1][:MOST_SOURCES]


# --- the files -----------------------------------------------------------------------------------


class OpenFile(NamedTuple):
    """A file of the cache that is being sent."""

    fd: int
    whole: Path  # its name once it is complete

    def read(self, begin: int) -> bytes | None:
        """Return its next bytes; b'' at its end, None where more may arrive."""
        data = os.pread(self.fd, _PIECE, begin)
        if data:
            return data
        if not self.whole.exists():
            if os.fstat(self.fd).st_nlink == 0:
                raise OSError("the file was removed, since it comes from elsewhere")
            return None

        # It is complete, perhaps by the hub's client: then it is another file.
        if not os.path.samestat(self.whole.stat(), os.fstat(self.fd)):
            complete = os.open(self.whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.dup2(complete, self.fd, inheritable=False)
            os.close(complete)
        return os.pread(self.fd, _PIECE, begin)


class Blobs:
    """The files of one model in the hub's cache, by their digests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "blobs"

    def open(self, digest: str) -> OpenFile | None:
        """Open a file that is complete, or that another node sends; None without."""
        whole = self._folder / digest
        for path in (whole, whole.with_name(digest + ARRIVING)):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return OpenFile(fd, whole)
            os.close(fd)
        return None

    def size(self) -> int:
        """Return the bytes on the disk of all files, also of those that arrive."""
        total = 0
        # The folder may not be there yet, and a file may get another name.
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                total += entry.stat().st_blocks * 512
        return total


# --- the server ----------------------------------------------------------------------------------


class ModelServer:
    """Answers the nodes that want a model's files."""

    def __init__(self, folder: Path, key: str | None, is_for_all: Callable[[], bool]) -> None:
        """Without a key, `is_for_all` says whether everybody may have the model."""
        self._blobs = Blobs(folder)
        self._access = PortAccess(key, None)
        self._has_key = key is not None
        self._is_for_all = is_for_all
        self._is_open: bool | None = None
        self._chain = Chain()
        self.program = Program("model server", SOURCES_PATH, self._guarded(self._get_sources))
        router = self.program.app.router
        router.add_get(SOURCES_PATH, self._guarded(self._get_sources))
        router.add_get(FILES_PATH + "{digest}", self._guarded(self._get_file))
        self.program.app.on_response_prepare.append(self._prove)

    def _guarded(self, handler: Handler) -> Handler:
        async def guard(request: web.Request) -> web.StreamResponse:
            refusal = await self._refusal(request)
            return await handler(request) if refusal is None else refusal

        return guard

    async def _refusal(self, request: web.Request) -> web.Response | None:
        """Return why a request is refused, or None."""
        if self._has_key:
            if not self._access.has_token(request):
                session = {SESSION_HEADER: self._access.verifier.session}
                return error_reply(401, "a proof of the token is needed", session)
            trust(request)
            return None

        # Without a token: not at a public address, and only what the hub gives to everybody.
        own = request.transport and request.transport.get_extra_info("sockname")
        if not own or is_public(own[0]):
            return error_reply(403, "not at a public address without RAY_AUTH_TOKEN")
        if self._is_open is None:
            self._is_open = await result_in_thread(self._is_for_all)
        if not self._is_open:
            return error_reply(403, "without RAY_AUTH_TOKEN only models of everybody are served")
        return None

    async def _prove(self, request: web.Request, response: web.StreamResponse) -> None:
        body = response.body if isinstance(response, web.Response) else None
        headers = self._access.reply_headers(
            request, response.status, body if isinstance(body, bytes) else None
        )
        response.headers.update(headers)

    async def _get_sources(self, request: web.Request) -> web.Response:
        return web.json_response({"sources": self._chain.sources_of(request.remote or "")})

    async def _get_file(self, request: web.Request) -> web.StreamResponse:
        digest = request.match_info["digest"]
        if _DIGEST.fullmatch(digest) is None:
            return error_reply(400, "expected a digest")
        bytes_range = _RANGE.fullmatch(request.headers.get("Range", "bytes=0-"))
        if bytes_range is None:
            return error_reply(416, "expected one range to the end")

        # Is it here, complete or arriving? If not, how much of the model is?
        file = await result_in_thread(partial(self._blobs.open, digest))
        if file is None:
            size = await result_in_thread(self._blobs.size)
            return error_reply(404, "not here yet", {HAS_HEADER: str(size)})
        try:
            return await self._send(request, file, int(bytes_range[1]))
        finally:
            os.close(file.fd)

    async def _send(self, request: web.Request, file: OpenFile, at: int) -> web.StreamResponse:
        """Send a file from a byte on, as far and as fast as it is here."""
        reply = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        await reply.prepare(request)

        # Piece by piece; at the end of what has arrived, more is awaited.
        while True:

            async def more(begin: int = at) -> bytes | NotYet:
                data = await result_in_thread(partial(file.read, begin))
                return NotYet() if data is None else data

            try:
                data = await until(more, times.MODEL_STALLED, longest=times.MODEL_POLL)
            except (TimedOutError, OSError):
                if request.transport is not None:  # the caller sees that this is not the end
                    request.transport.abort()
                return reply
            if not data:
                await reply.write_eof()
                return reply
            await reply.write(data)
            at += len(data)


def may_everybody_have(endpoint: str, model: str) -> bool:
    """Return whether the hub gives a model to everybody: its own answer, without a token."""
    url = f"{endpoint}/api/models/{model}"
    with urllib.request.urlopen(url, timeout=times.HUB_ANSWERS) as answer:  # noqa: S310 - HF_ENDPOINT
        about = json.loads(answer.read(1 << 24))
    return about.get("gated") in {False, None} and not about.get("private")


def is_for_everybody(environ: Mapping[str, str], model: str) -> bool:
    """Return whether everybody may have a model; False where the hub does not say so."""
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        return may_everybody_have(endpoint.rstrip("/"), model)
    except (OSError, ValueError, AttributeError):
        return False


def main(argv: Sequence[str]) -> int:
    """Serve one model until a signal."""
    parser = argparse.ArgumentParser(prog="pod-agent model-server", description=__doc__)
    parser.add_argument("model", help="id on the hub")
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 - its address is known later
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args(argv)
    environ = dict(os.environ)
    key = environ.get(KEY_VARIABLE)
    folder = hub_folder(asked.model, environ)
    server = ModelServer(folder, key, partial(is_for_everybody, environ, asked.model))
    return server.program.run(asked.host, asked.port)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
