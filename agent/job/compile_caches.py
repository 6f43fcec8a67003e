"""Compile caches of the job: variables, the node's folder, and its archive.

Each library gets a folder of this node's own disk: on a network disk the nodes would overwrite each
other's files. The path is the same on all nodes, since caches contain it and some frameworks pass
the head's environment on to workers. `AGENT_CACHE_DIR` holds one archive for each kind of node and
role: what the head compiles may be more, or less, than what the workers do.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import shlex
import sys
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from agent.base import times
from agent.base.text import own_command
from agent.base.value import Value
from agent.job.services import CACHES, ON_EVERY, PREPARE_EACH, PrepareStep
from agent.node.node_kind import NodeKind
from agent.node.python_facts import TORCH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings.model import Settings


class LibraryCache(NamedTuple):
    """A cache of one library: its variables, which replace each other, and its folder."""

    variables: tuple[str, ...]
    folder: str
    by_user: tuple[str, ...] = ()
    """Further variables by which a user has chosen the place."""
    needs: str = ""
    """The library whose version must be known: it loads the files of another one unchecked."""
    is_archived: bool = True


LIBRARY_CACHES = (
    LibraryCache(("VLLM_CACHE_ROOT",), "vllm"),
    LibraryCache(("TORCHINDUCTOR_CACHE_DIR",), "inductor"),
    LibraryCache(("TRITON_CACHE_DIR",), "triton", ("TRITON_HOME",)),
    LibraryCache(("CUDA_CACHE_PATH",), "cuda"),
    LibraryCache(("TORCH_EXTENSIONS_DIR",), "torch_extensions", needs=TORCH),
    # FlashInfer adds `.cache/flashinfer` to it.
    LibraryCache(("FLASHINFER_WORKSPACE_BASE",), "flashinfer"),
    # SGLang replaces DeepGEMM's own variable by its own.
    LibraryCache(("SGLANG_DG_CACHE_DIR", "DG_JIT_CACHE_DIR"), "deep_gemm"),
    LibraryCache(("TVM_FFI_CACHE_DIR",), "tvm_ffi"),
    LibraryCache(("TILELANG_CACHE_DIR",), "tilelang"),
    LibraryCache(("JAX_COMPILATION_CACHE_DIR",), "jax"),
    # The Python code of models: copied from the hub's cache in milliseconds.
    LibraryCache(("HF_MODULES_CACHE",), "hf_modules", is_archived=False),
)
"""Read in the sources of vLLM, torch 2.13, Triton, FlashInfer, SGLang, DeepGEMM, tvm-ffi, TileLang,
JAX and transformers. CUDA_CACHE_PATH is the driver's.
"""
SEAL = "POD_AGENT_SEAL"
"""The variable in which the program that reads and writes archives gets the key of signatures."""
OFF = "off"
FOLDER = "compile-caches"  # beside the checkpoints
PROGRAM = "compile-caches"
_PURPOSE = b"pod-agent compile caches 1"
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9]+")


def seal_of(token: str | None) -> str:
    """Return the key with which archives are signed, as hex; '' without a token."""
    if not token:
        return ""
    return hmac.new(token.encode(), _PURPOSE, hashlib.sha256).hexdigest()


def default_folder(checkpoints: str, mount: str) -> str:
    """Return the folder of archives beside the checkpoints, on their disk.

    A mount has only other disks beside it. Below it the folder has a dot before its name: no
    framework takes such a one for a checkpoint.
    """
    if checkpoints == mount:
        return str(PurePosixPath(checkpoints, f".{FOLDER}"))
    return str(PurePosixPath(checkpoints).parent / FOLDER)


class CompileCaches(Value):
    """The compile caches of this node."""

    volume: str  # the folder that outlives the node, AGENT_CACHE_DIR
    around: str  # this user's private folder on the node
    kind: NodeKind
    signer: str  # who signs archives: by a token's key, or by the user's id
    is_head: bool = True
    archive_found: str = ""  # the archive that was there when the plan was made, if any
    archive_bytes: int | None = None  # its size
    archive_fault: str = ""  # why it could not be read then
    why_not_kept: str = ""  # why nothing can be written to the volume, or ''

    @property
    def folder(self) -> str:
        """Return the node's folder, whose path depends on the software alone."""
        return f"{self.around}/caches-{self.kind.software[:8]}"

    @property
    def archives(self) -> tuple[str, ...]:
        """Return the file names of this kind's archives: this role's, then the other one's."""
        label = _NOT_IN_NAME.sub("-", self.kind.gpu).strip("-").lower()[:40] or self.kind.machine
        roles = ("head", "worker") if self.is_head else ("worker", "head")
        return tuple(f"{label}-{self.kind.digest}-{role}-{self.signer}.tar.gz" for role in roles)

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables to set; where the user has chosen a place, it stays."""
        chosen: dict[str, str] = {}
        for library in LIBRARY_CACHES:
            is_known = not library.needs or library.needs in self.kind.versions
            if is_known and environ.keys().isdisjoint((*library.variables, *library.by_user)):
                place = f"{self.folder}/{library.folder}"
                chosen |= dict.fromkeys(library.variables, place)
        return chosen

    def argv(self, *words: str) -> list[str]:
        """Return the command of the program that reads or writes this node's archive."""
        place = ("--volume", self.volume, "--folder", self.folder, "--kind", self.kind.digest)
        names = [word for name in self.archives for word in ("--archive", name)]
        return own_command(sys.executable, PROGRAM, *words, *place, *names)

    def seeding(self, settings: Settings) -> PrepareStep:
        """Return the prepare step that seeds the node's folder."""
        command = shlex.join((*self.argv("seed"), "--limit", f"{times.CACHES_SEED:g}"))
        within = settings.wait_prepare
        return PrepareStep(CACHES, command, ON_EVERY, within, after=(PREPARE_EACH,))


def signer_of(seal: str, uid: int) -> str:
    """Return who signs: nodes with one token share archives, and without a token one user's."""
    if seal:
        return "s" + hashlib.sha256(seal.encode()).hexdigest()[:8]
    return f"u{uid}"
