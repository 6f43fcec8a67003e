"""GPUs, kernel messages and engines' logs, in an examination of a hung job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.node.figures import Figures, GpuFigures
from agent.processes.hang_evidence import engine_logs, gpu_notes, kernel_note, kernel_notes

if TYPE_CHECKING:
    from pathlib import Path


def test_gpus_that_only_wait() -> None:
    """All together in one sentence; one with a fault by itself."""
    gpus = tuple(
        GpuFigures(n, use=98 + n, power=131, power_limit=700, clock=1980, usual_power=500)
        for n in range(3)
    )
    assert gpu_notes(Figures(at=9.0, gpus=gpus)) == [
        "0 of 3 GPUs work: utilization 98 to 100 %, power 131 of 700 W, clock 1980 MHz"
    ]
    slow = replace(gpus[1], power=450, clock=345, throttled=("power", "temperature"), errors=2)
    lost = GpuFigures(2, fault="GPU is lost", xid=79)
    assert gpu_notes(Figures(at=9.0, gpus=(slow, lost))) == [
        "1 of 1 GPUs work: utilization 99 %, power 450 of 700 W, clock 345 MHz",
        "GPU 1: 2 uncorrected memory errors, slowed by temperature",
        "GPU 2: GPU is lost, Xid 79",
    ]
    hangs = Figures(at=9.0, gpu_fault="the driver does not answer")
    assert gpu_notes(hangs) == ["no GPU is reported: the driver does not answer"]
    assert gpu_notes(None) == gpu_notes(Figures(at=9.0)) == []


def test_kernel_messages() -> None:
    """Those of the last hour about GPUs, disks and memory."""
    xid = "3,1432,5000000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n SUB=x"
    assert kernel_note(xid, 5060.0) == (
        "kernel, 60 s ago: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    )
    assert kernel_note(xid, 9000.0) == ""
    hung = "4,1,10000000,-;INFO: task python:812 blocked for more than 122 seconds."
    assert kernel_note(hung, 11.0).endswith("blocked for more than 122 seconds.")
    routine = "4,1,10000000,-;NVRM: gpuClearFbhubPoison: FBHUB Interrupt detected. Clearing it."
    for other in (routine, "6,1,10000000,-;eth0: link up", "", "x;NVRM: Xid", "\0" * 9):
        assert kernel_note(other, 11.0) == ""


def test_a_kernel_that_may_not_be_read(tmp_path: Path) -> None:
    """Most containers may not; a file of another kind ends."""
    assert kernel_notes(str(tmp_path / "none")) == []
    device = tmp_path / "kmsg"
    device.write_text("6,1,1,-;eth0: link up")
    assert kernel_notes(str(device)) == []


def test_the_last_lines_of_engines(tmp_path: Path) -> None:
    """Of the logs that were written last, Ray's workers' and SkyRL's."""
    ray = tmp_path / "ray"
    skyrl = tmp_path / "skyrl-logs"
    (skyrl / "run-1").mkdir(parents=True)
    ray.mkdir()
    for n in range(9):
        log = ray / f"worker-{n}.out"
        log.write_text(f"line {n}\n" * 20)
        os.utime(log, (n, n))
    (ray / "raylet.out").write_text("not an engine's")
    (ray / "worker-empty.err").write_text("")
    (skyrl / "run-1" / "infra.log").write_bytes(b"\x1b[31mstuck\x1b[0m \xff\n")
    text = engine_logs(ray, [str(skyrl), str(tmp_path / "none")])
    assert text.startswith("infra.log, changed 0 s ago:\nstuck \ufffd\nworker-8.out, changed ")
    assert text.count("line 8") == 5
    assert "line 3" not in text
    assert "raylet" not in text
    assert engine_logs(None, []) == ""
