"""What `doctor` finds on a machine: GPUs, driver, RDMA devices, Ray, framework, disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.checks.machine import found_on
from agent.node.facts import MIB, Driver, DriverGpu, Framework, RdmaDevice
from agent.node.read import rdma_devices
from support.worlds import MACHINE, with_ray

if TYPE_CHECKING:
    from pathlib import Path


def leave_port(device: Path, number: int, link: str, state: str) -> None:
    """Make a port of a device as the kernel shows it."""
    port = device / "ports" / str(number)
    port.mkdir(parents=True)
    (port / "link_layer").write_text(f"{link}\n")
    (port / "state").write_text(f"{state}\n")


def test_rdma_devices(tmp_path: Path) -> None:
    """A device is active if one of its ports is; one without readable ports has no link."""
    leave_port(tmp_path / "mlx5_1", 1, "Ethernet", "1: DOWN")
    leave_port(tmp_path / "mlx5_0", 1, "InfiniBand", "1: DOWN")
    leave_port(tmp_path / "mlx5_0", 2, "InfiniBand", "4: ACTIVE")
    (tmp_path / "odd").mkdir()
    assert rdma_devices(tmp_path) == (
        RdmaDevice("mlx5_0", "InfiniBand", is_active=True),
        RdmaDevice("mlx5_1", "Ethernet"),
        RdmaDevice("odd"),
    )
    assert rdma_devices(tmp_path / "none") == ()


def test_what_a_machine_has() -> None:
    """GPUs by name and memory, and all else in a few words."""
    gpus = tuple(DriverGpu(index, "NVIDIA H100", 81_920) for index in range(8))
    facts = replace(
        with_ray(MACHINE, libraries={"torch": "2.6.0"}),
        gpus=8,
        driver=Driver("nvidia-smi", gpus, version="550.54.15"),
        rdma=(RdmaDevice("mlx5_0", "InfiniBand", is_active=True),),
        framework=Framework("verl", "/site/verl", "0.6.1"),
        temp_free=80 * 1024 * MIB,
    )
    assert dict(found_on(facts)) == {
        "GPUs": "8 x NVIDIA H100 80 GiB",
        "driver": "550.54.15",
        "RDMA": "mlx5_0 (InfiniBand, active)",
        "Ray": "2.60.0 on Python 3.11.7",
        "verl": "0.6.1",
        "libraries": "torch 2.6.0",
        "CPUs": "16",
        "memory": "64 GiB",
        "/tmp": "80 GiB free",
    }
    assert dict(found_on(MACHINE))["GPUs"] == "none"


def test_different_gpus_and_none_that_the_driver_reports() -> None:
    """Each kind with its number; without the driver's report, what the devices say."""
    kinds = (DriverGpu(0, "A", 0), DriverGpu(1, "B", 24_576), DriverGpu(2, "B", 24_576))
    mixed = replace(MACHINE, gpus=3, driver=Driver("nvidia-smi", kinds))
    assert dict(found_on(mixed))["GPUs"] == "1 x A, 2 x B 24 GiB"
    assert dict(found_on(replace(MACHINE, gpus=2)))["GPUs"] == "2 x GPU"
