"""A kind of GPU of RunPod by the name that a user gives."""

from __future__ import annotations

import pytest

from agent.cli.start_files.recipe_check import memory_of
from agent.cli.start_files.runpod_gpus import GPUS, runpod_gpu


@pytest.mark.parametrize(
    ("name", "in_cluster", "id_"),
    [
        ("NVIDIA H100 80GB HBM3", False, "NVIDIA H100 80GB HBM3"),
        ("h100 sxm", False, "NVIDIA H100 80GB HBM3"),
        ("H100", True, "NVIDIA H100 80GB HBM3"),
        ("A100-80GB", True, "NVIDIA A100-SXM4-80GB"),
        ("H200", False, "NVIDIA H200"),
        ("H200 NVL", False, "NVIDIA H200 NVL"),
        ("L40", False, "NVIDIA L40"),
        ("4090", False, "NVIDIA GeForce RTX 4090"),
        ("RTX 3090", False, "NVIDIA GeForce RTX 3090"),
        ("6000 Ada", False, "NVIDIA RTX 6000 Ada Generation"),
        ("V100 32GB", False, "Tesla V100-SXM2-32GB"),
        ("NVIDIA R100 288GB", True, "NVIDIA R100 288GB"),
    ],
)
def test_a_name_that_means_one_kind_is_taken(name: str, id_: str, *, in_cluster: bool) -> None:
    """An id, the console's name, or words of them; a whole id may be newer than the table."""
    assert runpod_gpu(name, in_cluster=in_cluster).id == id_


@pytest.mark.parametrize(
    ("name", "in_cluster", "said"),
    [
        ("H100", False, "may be 'H100 SXM' or 'H100 NVL' or 'H100 PCIe'"),
        ("A100", False, "may be 'A100 PCIe' or 'A100 SXM'"),
        ("RTX 4090", True, "Instant Clusters of A100 SXM, B200, H100 SXM, H200 SXM"),
        ("H1000", False, "did you mean H100 SXM"),
        ("xyz", False, "v2/catalog/gpus lists them"),
        ("-", False, "is no GPU of RunPod"),
    ],
)
def test_another_name_is_refused(name: str, said: str, *, in_cluster: bool) -> None:
    """The refusal says what to write instead."""
    with pytest.raises(ValueError, match="--gpu-type") as refusal:
        runpod_gpu(name, in_cluster=in_cluster)
    assert said in str(refusal.value)


def test_every_id_and_name_means_its_own_kind() -> None:
    """No name of the table is ambiguous."""
    for gpu in GPUS:
        assert runpod_gpu(gpu.id, in_cluster=False) == gpu
        assert runpod_gpu(gpu.name, in_cluster=False) == gpu


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        *(("", None), ("H100", 80), ("H200", 141), ("RTX4090", 24), ("L4", 24)),
        *(("A100:40GB", 40), ("A100-80GB", 80), ("of tomorrow", None)),
    ],
)
def test_the_memory_of_a_kind(name: str, gigabytes: int | None) -> None:
    """It is in the name, or known by it; of several kinds it is the least."""
    assert memory_of(name) == gigabytes
