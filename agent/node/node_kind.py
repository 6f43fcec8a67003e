"""The kind of a node: the hardware and the software for which compiled code is valid."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.node.python_facts import CUDA, TORCH, text_of

if TYPE_CHECKING:
    from agent.node.facts import Facts, RayPython

_CPUS = Path("/proc/cpuinfo")
_MODULES = Path("/sys/module")
_MODULE_OF = {"nvidia": "nvidia", "amd": "amdgpu"}
_FLAGS = ("flags", "Features")  # x86 and Arm
_COMPILERS = (TORCH, CUDA, "vllm", "sglang")
"""The libraries whose versions belong to the kind, beside Triton and the framework."""


class NodeKind(Value):
    """What compiled code depends on; '' for what is not known or not there."""

    gpu: str
    driver: str
    machine: str  # the architecture of the CPUs
    cpu_flags: str  # a digest of their features: inductor compiles for exactly these
    libc: str
    python: str
    versions: Mapping[str, str]  # of torch, CUDA, Triton, engines and the framework, by name

    @property
    def software(self) -> str:
        """Return a digest of the software alone, which is the same on all nodes of a run."""
        return _digest([self.python, dict(self.versions)])

    @property
    def digest(self) -> str:
        """Return a digest of the whole."""
        hardware = [self.gpu, self.driver, self.machine, self.cpu_flags, self.libc]
        return _digest([*hardware, self.software])

    def sentence(self) -> str:
        """Return the kind in words."""
        gpu = "no GPU"
        if self.gpu:
            gpu = f"{self.gpu}, driver {self.driver or 'unknown'}"
        cpu = f"{self.machine} with features {self.cpu_flags or 'unknown'}"
        versions = [f"{name} {version}" for name, version in self.versions.items()]
        if TORCH not in self.versions:
            versions.append("torch unknown")
        return ", ".join([gpu, cpu, self.libc or "no glibc", f"Python {self.python}", *versions])


def _digest(parts: object) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_kind(facts: Facts, python: RayPython) -> NodeKind:
    """Return the kind of this node for a job that runs in this Python."""
    versions = {name: python.libraries[name] for name in _COMPILERS if name in python.libraries}
    if "triton" in python.packages:
        versions["triton"] = python.packages["triton"]
    if facts.framework is not None and facts.framework.version:
        versions[facts.framework.name] = facts.framework.version

    module = _MODULE_OF.get(facts.gpu_maker, "")
    driver = text_of(_MODULES / module / "version").strip() if module else ""
    return NodeKind(
        gpu=" + ".join(facts.node_versions.gpu_models),
        driver=driver,
        machine=platform.machine(),
        cpu_flags=cpu_flags(_CPUS),
        libc=_libc(),
        python=python.python,
        versions=dict(sorted(versions.items())),
    )


def cpu_flags(file: Path) -> str:
    """Return a digest of the features of the first CPU, in whatever order they are listed."""
    with suppress(OSError, UnicodeDecodeError), file.open(encoding="utf-8") as lines:
        for line in lines:
            name, _, features = line.partition(":")
            if name.strip() in _FLAGS:
                return _digest(sorted(features.split()))[:8]
    return ""


def _libc() -> str:
    """Return the version of glibc; '' with another libc."""
    with suppress(ValueError, OSError):
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    return ""
