"""Nodes that share a model: each with a cache, a model server in a thread, and an address."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import TYPE_CHECKING, NamedTuple

import anyio

from agent.node.read import hub_folder
from agent.port.model_pull import WeightFile
from agent.port.model_server import ModelServer
from agent.port.sockets import bind
from support.served import served

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

MODEL = "acme/m"
KEY = "a-key-of-the-cluster"


class ModelNode(NamedTuple):
    """One node."""

    address: str
    blobs: Path

    @property
    def folder(self) -> Path:
        """Return the model's folder in the cache."""
        return self.blobs.parent

    def digests(self) -> set[str]:
        """Return the files that are complete."""
        return {path.name for path in self.blobs.iterdir() if "." not in path.name}


def weights(number: int = 3, size: int = 300_000) -> dict[WeightFile, bytes]:
    """Make some weights."""
    made = {}
    for at in range(1, number + 1):
        data = os.urandom(size)
        name = f"model-{at:05}-of-{number:05}.safetensors"
        made[WeightFile(name, size, hashlib.sha256(data).hexdigest())] = data
    return made


def node_of(root: Path, address: str) -> ModelNode:
    """Make a node without a server."""
    folder = hub_folder(MODEL, {"HF_HOME": str(root / address)})
    (folder / "blobs").mkdir(parents=True)
    return ModelNode(address, folder / "blobs")


class ServedModel:
    """A node's model server, until it is told to stop."""

    def __init__(self, node: ModelNode, port: int, key: str | None, *, is_for_all: bool) -> None:
        self.server = ModelServer(node.folder, key, lambda: is_for_all)
        self.up = threading.Event()
        self.over = threading.Event()
        self._socket = bind(node.address, port)

    def live(self) -> None:
        """Serve until it is stopped."""
        anyio.run(self._live)

    async def _live(self) -> None:
        async with self.server.program.served([self._socket]):
            self.up.set()
            while not self.over.is_set():
                await anyio.to_thread.run_sync(self.over.wait, 0.1)


def serving(
    node: ModelNode, port: int, key: str | None = None, *, is_for_all: bool = True
) -> AbstractContextManager[ServedModel]:
    """Serve a node's files in a thread."""
    return served(ServedModel(node, port, key, is_for_all=is_for_all))
