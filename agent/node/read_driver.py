"""How the GPUs' driver is asked, by its own tool: that takes seconds, so only `doctor` does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from agent.node.driver import Driver, DriverGpu
from agent.node.facts import MIB
from agent.node.gpu_use import cards

_LIMIT = 20.0
"""Without its persistence daemon the driver wakes each GPU anew, which takes seconds."""
_FIELDS = "index,name,memory.total,ecc.errors.uncorrected.volatile.total"
_NVIDIA = ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
_AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
_KERNEL_LOG = Path("/dev/kmsg")
_MOST_LOG = 8 << 20
_XID = re.compile(r"NVRM: (Xid [^\n]{1,120})")


def ask(
    maker: str, path: str | None = None, limit: float = _LIMIT, log: Path = _KERNEL_LOG
) -> Driver | None:
    """Return what the driver's tool says; None where there are no GPUs to ask of."""
    if not maker:
        return None
    command = _NVIDIA if maker == "nvidia" else _AMD
    tool = command[0]
    found = shutil.which(tool, path=path)
    if found is None:
        return Driver(tool, fault="not installed here")
    text, fault = _output([found, *command[1:]], limit)
    if fault:
        return Driver(tool, fault=fault)
    try:
        gpus = of_nvidia(text) if maker == "nvidia" else of_amd(text)
    except ValueError:
        return Driver(tool, fault=f"it says {text.strip().splitlines()[:1]}, which is no list")
    return Driver(tool, gpus, events=xids(log) if maker == "nvidia" else ())


def _output(argv: list[str], limit: float) -> tuple[str, str]:
    """Return what a tool prints, or why it printed nothing of use."""
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        text, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # one that hangs in its driver outlives that
            child.communicate(timeout=1)
        return "", f"no answer within {limit:g} s: the driver hangs"
    if child.returncode:
        said = next((line for line in text.splitlines() if line.strip()), "no word of why")
        return "", f"exit code {child.returncode}: {said.strip()}"
    return text, ""


def of_nvidia(text: str) -> tuple[DriverGpu, ...]:
    """Read nvidia-smi's list; raises ValueError where it is none."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line]
    return tuple(
        DriverGpu(int(index), name, _whole(memory), _whole(errors))
        for index, name, memory, errors in rows
    )


def of_amd(text: str) -> tuple[DriverGpu, ...]:
    """Read rocm-smi's JSON; raises ValueError where it is none."""
    return tuple(
        DriverGpu(
            card,
            about.get("card series", "AMD GPU"),
            _whole(about.get("vram total memory (b)", "")) // MIB,
        )
        for card, about in cards(text).items()
    )


def _whole(text: str) -> int:
    """Read a number, 0 where the tool knows none, such as `[N/A]`."""
    return int(text) if text.isdigit() else 0


def xids(log: Path = _KERNEL_LOG) -> tuple[str, ...]:
    """Return the faults of GPUs that the kernel's log tells of; few containers may read it."""
    read = bytearray()
    with suppress(OSError):  # not for us, or its end: a reader that would have to wait
        handle = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while len(read) < _MOST_LOG and (record := os.read(handle, 8192)):
                read += record
        finally:
            os.close(handle)
    return tuple(_XID.findall(read.decode(errors="replace")))
