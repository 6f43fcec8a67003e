"""The kind of a node: what changes it, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.node.facts import Framework, NodeVersions
from agent.node.node_kind import NodeKind, cpu_flags, read_kind
from support.worlds import MACHINE

if TYPE_CHECKING:
    from pathlib import Path

KIND = NodeKind("H100", "570.1", "x86_64", "ab", "glibc 2.36", "3.11.7", {"torch": "2.8.0"})


@pytest.mark.parametrize(
    "change",
    [
        *({"gpu": "H200"}, {"driver": "580.2"}, {"machine": "aarch64"}, {"cpu_flags": "cd"}),
        *({"libc": "glibc 2.31"}, {"python": "3.12.1"}, {"versions": {"torch": "2.9.0"}}),
        {"versions": {"torch": "2.8.0", "vllm": "0.11.0"}},
    ],
)
def test_what_changes_the_kind(change: dict[str, object]) -> None:
    """Each part does; the node's path depends on the software alone."""
    other = replace(KIND, **change)
    assert other.digest != KIND.digest
    is_software = bool(change.keys() & {"python", "versions"})
    assert (other.software != KIND.software) == is_software


def test_it_is_read_of_the_jobs_python() -> None:
    """Versions of torch, CUDA, engines, Triton and the framework count; other libraries do not."""
    libraries = {"torch": "2.8.0", "CUDA of torch": "12.8", "vllm": "0.11.0", "deepspeed": "1"}
    python = replace(MACHINE.ray, libraries=libraries, packages={"triton": "3.4.0", "numpy": "2"})
    facts = replace(
        MACHINE,
        framework=Framework("verl", "/x", "0.6.0"),
        node_versions=NodeVersions(gpu_models=("NVIDIA H100 80GB HBM3",)),
    )
    kind = read_kind(facts, python)
    assert kind.versions == {
        "torch": "2.8.0",
        "CUDA of torch": "12.8",
        "vllm": "0.11.0",
        "triton": "3.4.0",
        "verl": "0.6.0",
    }
    assert kind.sentence().startswith("NVIDIA H100 80GB HBM3, driver unknown, ")
    assert read_kind(facts, python).digest == kind.digest
    assert "torch 2.8.0" in kind.sentence()
    bare = read_kind(MACHINE, MACHINE.ray)
    assert bare.sentence().endswith("Python 3.11.7, torch unknown")


def test_features_of_cpus(tmp_path: Path) -> None:
    """Their order does not matter; a machine without the file has none."""
    first = tmp_path / "first"
    first.write_text("processor : 0\nflags\t\t: avx sse\n\nflags\t: other\n")
    second = tmp_path / "second"
    second.write_text("Features\t: sse avx\n")
    assert cpu_flags(first) == cpu_flags(second) != ""
    assert cpu_flags(tmp_path / "none") == ""
