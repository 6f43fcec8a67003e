"""The choice of GPUs: passed on as it is, but where Ray or a framework would end on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.node.facts import contradiction, visible_devices
from agent.node.read import gpus_of
from agent.plan.environment import for_node
from support.worlds import MACHINE, plan_of, settings_of, with_ray

if TYPE_CHECKING:
    from pathlib import Path

ALL = "0,1,2,3,4,5,6,7"
ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
SEED = {
    HIP: ALL,
    ROCR: ALL,
    CUDA: ALL,
    "NCCL_IB_HCA": "mlx5_0,mlx5_1",
    "NCCL_IB_GID_INDEX": "3",
    "RCCL_MSCCL_ENABLE": "0",
    "HSA_NO_SCRATCH_RECLAIM": "1",
}
"""What verl's script for Slurm on AMD GPUs exports."""


@pytest.mark.parametrize(
    ("given", "maker", "ray", "left"),
    [
        ({ROCR: ALL}, "amd", "2.60.0", {HIP: ALL}),
        ({ROCR: "4,5", HIP: "4,5"}, "amd", "2.60.0", {HIP: "4,5"}),
        ({CUDA: "2,3"}, "amd", "2.46.0", {HIP: "2,3"}),
        ({HIP: "2,3", CUDA: "2,3"}, "amd", "2.48.0", {HIP: "2,3"}),
        ({HIP: "2,3"}, "amd", "2.60.0", {HIP: "2,3"}),
        ({ROCR: "2,3"}, "amd", "2.44.1", {ROCR: "2,3"}),
        ({ROCR: "0", CUDA: "0"}, "nvidia", "2.60.0", {CUDA: "0"}),
        ({HIP: "0", CUDA: "0"}, "nvidia", "2.60.0", {HIP: "0", CUDA: "0"}),
        ({ROCR: "0", HIP: "1", CUDA: "2"}, "", "2.60.0", {ROCR: "0", HIP: "1", CUDA: "2"}),
    ],
)
def test_one_choice(given: dict[str, str], maker: str, ray: str, left: dict[str, str]) -> None:
    """The selected GPUs stay the same, and a note describes every change."""
    found, note = visible_devices(given, maker, ray)
    assert found == left
    assert bool(note) == (left != given)
    assert all(name in note for name in given.keys() - left.keys())
    assert contradiction(given, maker, ray) == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({HIP: "0", CUDA: "1"}, "HIP_VISIBLE_DEVICES=0 and CUDA_VISIBLE_DEVICES=1 differ"),
        ({ROCR: "4,5", HIP: "1"}, "HIP_VISIBLE_DEVICES=1 and ROCR_VISIBLE_DEVICES=4,5 differ"),
    ],
)
def test_what_cannot_be_one(given: dict[str, str], words: str) -> None:
    """Contradicting selections are named, where Ray assigns by HIP."""
    assert words in contradiction(given, "amd", "2.60.0")
    assert contradiction(given, "amd", "2.44.0") == contradiction(given, "nvidia", "2.60.0") == ""


def test_the_seeds_environment() -> None:
    """Ray and the job get the merged selection, and the plan has a note."""
    amd = replace(MACHINE, gpus=8, gpu_maker="amd")
    found = for_node(SEED, settings_of(SEED), amd, "10.0.0.5", "10.0.0.5")
    expected = {name: text for name, text in SEED.items() if name not in {ROCR, CUDA}}
    assert expected.items() <= found.items()
    assert not {ROCR, CUDA} & found.keys()
    (note,) = [n for n in plan_of(SEED, amd).notes if ROCR in n]
    assert note.startswith(f"{HIP}={ALL} stands for {ROCR} and {CUDA}")
    for facts in (MACHINE, with_ray(amd, version="2.40.0")):
        passed = for_node(SEED, settings_of(SEED), facts, "10.0.0.5", "10.0.0.5")
        assert passed.items() >= SEED.items()


@pytest.mark.parametrize(
    ("files", "maker", "count"),
    [
        (("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"), "nvidia", 2),
        (("kfd", "dri/renderD128", "dri/renderD129", "dri/card0"), "amd", 2),
        (("dri/renderD128",), "", 0),
        (("kfd",), "", 0),
    ],
)
def test_whose_they_are(tmp_path: Path, files: tuple[str, ...], maker: str, count: int) -> None:
    """Device files tell; a display card alone is no GPU to train on."""
    (tmp_path / "dri").mkdir()
    for name in files:
        (tmp_path / name).touch()
    found, gpus = gpus_of(tmp_path)
    assert (found, len(gpus)) == (maker, count)
