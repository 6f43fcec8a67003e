"""GPUs, kernel messages and engines' logs, in an examination of a hung job."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.processes.hang_evidence import (
    engine_logs,
    gpu_note,
    gpu_notes,
    kernel_note,
    kernel_notes,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("line", "note"),
    [
        (
            "0, 100 %, 131.25 W, 700.00 W, 1980 MHz, 0x0000000000000000, 0",
            "GPU 0: 100 %, 131.25 W of 700.00 W, 1980 MHz",
        ),
        (
            "3, 99 %, 300.00 W, 700.00 W, 345 MHz, 0x0000000000000048, 2",
            (
                "GPU 3: 99 %, 300.00 W of 700.00 W, 345 MHz, throttled (reasons "
                "0x0000000000000048), 2 uncorrected memory errors"
            ),
        ),
        (
            "0, 0 %, 77 W, 700 W, 345 MHz, 0x0000000000000001, [N/A]",
            "GPU 0: 0 %, 77 W of 700 W, 345 MHz",
        ),
        ("No devices were found", ""),
        ("", ""),
    ],
)
def test_a_gpu(line: str, note: str) -> None:
    """Use, power and clock; throttling and errors where there are some."""
    assert gpu_note(line) == note


def test_no_tool(tmp_path: Path) -> None:
    """The reason is a note."""
    (note,) = anyio.run(partial(gpu_notes, {"PATH": ""}, lambda: tmp_path / "log"))
    assert note.startswith("nvidia-smi: ")


def test_kernel_messages() -> None:
    """Those of the last hour about GPUs, disks and memory."""
    xid = "3,1432,5000000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n SUB=x"
    assert kernel_note(xid, 5060.0) == (
        "kernel, 60 s ago: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    )
    assert kernel_note(xid, 9000.0) == ""
    hung = "4,1,10000000,-;INFO: task python:812 blocked for more than 122 seconds."
    assert kernel_note(hung, 11.0).endswith("blocked for more than 122 seconds.")
    for other in ("6,1,10000000,-;eth0: link up", "", "x;NVRM: Xid", "\0" * 9):
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
