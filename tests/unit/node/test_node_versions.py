"""What nodes compare, read from trees that look like a machine's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from agent import __version__
from agent.node.facts import compared_variables
from agent.node.python_facts import installed
from agent.node.read import gather, gpu_models
from agent.settings.jobs import FRAMEWORKS
from support.worlds import MACHINE

if TYPE_CHECKING:
    from pathlib import Path

CUDA_TORCH = """__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '2.6.0+cu124'
debug = False
cuda: Optional[str] = '12.4'
hip: Optional[str] = None
"""
ROCM_TORCH = "__version__ = '2.6.0'\ncuda = None\nhip = '6.2.41134'\n"


def site(folder: Path, *names: str, torch: str = "") -> str:
    """Make a folder in which packages lie."""
    for name in names:
        (folder / name).mkdir(parents=True)
    if torch:
        (folder / "torch").mkdir(parents=True)
        (folder / "torch" / "version.py").write_text(torch)
    return str(folder)


@pytest.mark.parametrize(
    ("names", "torch", "expected"),
    [
        ((), "", {}),
        (("verl-0.5.0.dist-info", "verl", "numpy-2.0.dist-info"), "", {"verl": "0.5.0"}),
        (("flash_attn-2.7.4.dist-info",), "", {"flash-attn": "2.7.4"}),
        (("nvidia_nccl_cu12-2.21.5.dist-info",), "", {"NCCL": "2.21.5"}),
        (
            ("torch-2.6.0.dist-info",),
            CUDA_TORCH,
            {"torch": "2.6.0+cu124", "CUDA of torch": "12.4"},
        ),
        (
            ("torch-2.6.0.dist-info",),
            ROCM_TORCH,
            {"torch": "2.6.0", "CUDA of torch": "ROCm 6.2.41134"},
        ),
        (("torch-2.6.0.dist-info",), "", {"torch": "2.6.0"}),
    ],
)
def test_libraries(
    tmp_path: Path, names: tuple[str, ...], torch: str, expected: dict[str, str]
) -> None:
    """A library's version is that of its metadata's name; torch's file knows more."""
    paths = [str(tmp_path / "nothing"), site(tmp_path / "site", *names, torch=torch)]
    assert installed(paths, FRAMEWORKS) == expected


def test_the_first_on_the_path_counts(tmp_path: Path) -> None:
    """As with an import, what lies earlier on the path hides what lies later."""
    paths = [site(tmp_path / n, f"vllm-0.{n}.dist-info") for n in "98"]
    assert installed(paths) == {"vllm": "0.9"}


def test_this_pythons_libraries_are_no_invention() -> None:
    """What is reported of this Python is what its own metadata says."""
    import importlib.metadata  # noqa: PLC0415 - the judge, slow to load

    for name, version in installed(sys.path).items():
        if name not in {"NCCL", "CUDA of torch"}:
            assert version.startswith(importlib.metadata.version(name))


def test_nvidias_models(tmp_path: Path) -> None:
    """The driver's files name the model of each GPU; each model is named once."""
    for bus in ("0000:1b:00.0", "0000:43:00.0"):
        (tmp_path / bus).mkdir()
        lines = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 17\nGPU UUID: \t GPU-x\n"
        (tmp_path / bus / "information").write_text(lines)
    assert gpu_models("nvidia", tmp_path, tmp_path) == ("NVIDIA H100 80GB HBM3",)
    assert gpu_models("", tmp_path, tmp_path) == ()


def test_amds_models(tmp_path: Path) -> None:
    """A board that names no product is named by its memory."""
    for name, product in (("renderD128", "AMD Instinct MI300X\n"), ("renderD129", None)):
        device = tmp_path / name / "device"
        device.mkdir(parents=True)
        (device / "mem_info_vram_total").write_text(f"{192 << 30}\n")
        if product is not None:
            (device / "product_name").write_text(product)
    assert gpu_models("amd", tmp_path, tmp_path) == ("AMD 192 GiB", "AMD Instinct MI300X 192 GiB")


def test_the_versions_of_a_node() -> None:
    """Only what nodes compare is picked from the environment, and no long text of it."""
    environ = {
        "NCCL_DEBUG": "INFO",
        "GLOO_TIMEOUT": "e" * 1000,
        "DEBUG_RAY": "1",
        "WANDB_API_KEY": "secret",
    }
    found = gather({}, MACHINE.ray, environ, None, is_first_process=False, temp="/tmp")
    assert found.node_versions.agent == __version__
    picked = {"DEBUG_RAY": "1", "GLOO_TIMEOUT": "e" * 200, "NCCL_DEBUG": "INFO"}
    assert compared_variables(environ) == picked
