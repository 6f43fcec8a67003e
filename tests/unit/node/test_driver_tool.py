"""The GPU driver's own tools: their output is parsed, and every failure is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.node import gpus
from agent.node.facts import DriverGpu

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
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_nvidias_list() -> None:
    """Numbers are parsed, and values that a GPU does not report are None."""
    assert gpus.driver_of_nvidia(TWO) == (
        DriverGpu(0, "NVIDIA H200", 143_771),
        DriverGpu(1, "NVIDIA H200", 143_771, 3),
    )
    assert gpus.driver_of_nvidia(OLD) == (DriverGpu(0, "Tesla T4", 15_360),)


def test_amds_list() -> None:
    """Warnings before the JSON are skipped, and entries that are not cards are ignored."""
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
    path = tool(tmp_path, "nvidia-smi", script)
    driver = gpus.ask_driver("nvidia", path, limit=0.5)
    assert driver is not None
    assert words in driver.fault
    assert driver.gpus == ()


def test_a_tool_that_answers(tmp_path: Path) -> None:
    """Its output becomes the driver's report."""
    path = tool(tmp_path, "nvidia-smi", f"printf '{TWO}'")
    driver = gpus.ask_driver("nvidia", path, limit=20)
    assert driver is not None
    assert [gpu.errors for gpu in driver.gpus] == [0, 3]


def test_the_drivers_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows it beside the module; a driver of the kernel's own has none."""
    monkeypatch.setattr(gpus, "MODULES", tmp_path)
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "version").write_text("550.54.15\n")
    path = tool(tmp_path, "nvidia-smi", f"printf '{TWO}'")
    tool(tmp_path, "rocm-smi", f"echo '{ROCM}'")
    nvidia, amd = gpus.ask_driver("nvidia", path, 20), gpus.ask_driver("amd", path, 20)
    assert nvidia is not None
    assert amd is not None
    assert (nvidia.version, len(nvidia.gpus)) == ("550.54.15", 2)
    assert (amd.version, len(amd.gpus)) == ("", 2)


def test_no_tool_and_no_gpus(tmp_path: Path) -> None:
    """Without GPUs no tool runs; with GPUs a missing tool is the fault."""
    assert gpus.ask_driver("") is None
    driver = gpus.ask_driver("amd", str(tmp_path))
    assert driver is not None
    assert (driver.tool, driver.fault) == ("rocm-smi", "not installed here")
