"""The GPU driver's own tools, and what doctor finds on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.checks.machine import found_on
from agent.node import gpus
from agent.node.facts import MIB, Driver, DriverGpu, Framework, RdmaDevice
from agent.node.read import rdma_devices
from support.machine_files import program
from support.worlds import MACHINE, with_ray

if TYPE_CHECKING:
    from pathlib import Path

TWO = "0, NVIDIA H200, 143771, 0\n1, NVIDIA H200, 143771, 3\n"
OLD = "0, Tesla T4, 15360, [N/A]\n"
ROCM = """WARNING: AMD GPU device(s) is/are in a low-power state.
{"card0": {"VRAM Total Memory (B)": "206141652992", "Card Series": "AMD Instinct MI300X"},
 "card1": {"VRAM Total Memory (B)": "206141652992"}, "system": {"Driver version": "6.7"}}
"""


def tool(folder: Path, name: str, script: str) -> str:
    """Put a program with that name on a separate PATH."""
    program(folder, name, script)
    return f"{folder}:/usr/bin:/bin"


def asked(maker: str, path: str, limit: float = 20) -> Driver:
    """Ask a driver's tool."""
    driver = gpus.ask_driver(maker, path, limit=limit)
    assert driver is not None
    return driver


def test_lists_of_both_makers() -> None:
    """Numbers are parsed, values that are missing are None, and what is no card is ignored."""
    assert gpus.driver_of_nvidia(TWO) == (
        DriverGpu(0, "NVIDIA H200", 143_771),
        DriverGpu(1, "NVIDIA H200", 143_771, 3),
    )
    assert gpus.driver_of_nvidia(OLD) == (DriverGpu(0, "Tesla T4", 15_360),)
    assert gpus.driver_of_amd(ROCM) == (
        DriverGpu(0, "AMD Instinct MI300X", 196_592),
        DriverGpu(1, "AMD GPU", 196_592),
    )


FAULTS = {
    "NVML": ("echo 'Failed to initialize NVML: Unknown Error'; exit 255", "exit code 255: Failed"),
    "silent": ("exit 9", "exit code 9: no message"),
    "no list": ("echo 'No devices were found'", "is no list: No devices were found"),
    "no text": ("printf 'No devices \\377\\n'", "is no list: No devices \ufffd"),
    "hangs": ("exec sleep 30", "no answer within 0.5 s: the driver hangs"),
}


@pytest.mark.parametrize(("script", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_tool_without_output(tmp_path: Path, script: str, words: str) -> None:
    """The tool's error message is the fault; one that hangs is abandoned at its deadline."""
    driver = asked("nvidia", tool(tmp_path, "nvidia-smi", script), 0.5)
    assert words in driver.fault
    assert driver.gpus == ()


def test_a_tool_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the version that the kernel shows beside the module; a driver of its own has none."""
    monkeypatch.setattr(gpus, "MODULES", tmp_path)
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "version").write_text("550.54.15\n")
    path = tool(tmp_path, "nvidia-smi", f"printf '{TWO}'")
    tool(tmp_path, "rocm-smi", f"echo '{ROCM}'")
    nvidia, amd = asked("nvidia", path), asked("amd", path)
    assert (nvidia.version, [gpu.errors for gpu in nvidia.gpus]) == ("550.54.15", [0, 3])
    assert (amd.version, len(amd.gpus)) == ("", 2)


def test_no_tool_and_no_gpus(tmp_path: Path) -> None:
    """Without GPUs no tool runs; with GPUs a missing tool is the fault."""
    assert gpus.ask_driver("") is None
    driver = asked("amd", str(tmp_path))
    assert (driver.tool, driver.fault) == ("rocm-smi", "not installed here")


# --- what doctor finds on a machine -----------------------------------------------------------


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
