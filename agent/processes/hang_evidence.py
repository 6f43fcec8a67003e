"""What besides stacks may explain a hang here: GPUs, kernel messages, engines' logs."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.text import listed, plain
from agent.record.files import read_end

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.node.figures import Figures

_KERNEL_RECENT = 3600.0  # Older messages of the kernel do not explain a hang.
_MOST_NOTES = 8


def gpu_notes(figures: Figures | None) -> list[str]:
    """Return a sentence about all GPUs, and one for each that has a fault."""
    if figures is None:
        return []
    notes = [f"no GPU is reported: {figures.gpu_fault}"] if figures.gpu_fault else []
    gpus = [gpu for gpu in figures.gpus if not gpu.fault]
    if gpus:
        working = sum(gpu.is_working for gpu in gpus)
        notes.append(
            f"{working} of {len(gpus)} GPUs work: utilization {_range(gpu.use for gpu in gpus)} %, "
            f"power {_range(gpu.power for gpu in gpus)} of "
            f"{_range(gpu.power_limit for gpu in gpus)} W, "
            f"clock {_range(gpu.clock for gpu in gpus)} MHz"
        )
    for gpu in figures.gpus:
        faults = []
        if gpu.fault:
            faults.append(gpu.fault)
        if gpu.xid:
            faults.append(f"Xid {gpu.xid}")
        if gpu.errors:
            faults.append(f"{gpu.errors} uncorrected memory errors")
        slowed = [reason for reason in gpu.throttled if reason != "power"]  # usual at full load
        if slowed:
            faults.append(f"slowed by {listed(slowed)}")
        if faults:
            notes.append(f"GPU {gpu.index}: {', '.join(faults)}")
    return notes[:_MOST_NOTES]


def _range(values: Iterable[int | None]) -> str:
    """Return the smallest and the largest of some numbers, as in `98 to 100`."""
    known = [value for value in values if value is not None]
    if not known:
        return "unknown"
    least = min(known)
    most = max(known)
    return f"{least}" if least == most else f"{least} to {most}"


_KERNEL = re.compile(
    r"NVRM: (Xid|GPU)\b|blocked for more than|Out of memory|I/O error|not responding|link is down"
    r"|Hardware Error|amdgpu.{0,200}(reset|timeout|hang)",
    re.IGNORECASE,
)
_LARGEST_MESSAGE = 8192
_MOST_MESSAGES = 100_000


def kernel_notes(device: str) -> list[str]:
    """Return the kernel's last messages about GPUs, disks and memory, where they may be read."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    notes = []
    try:
        for _ in range(_MOST_MESSAGES):
            message = os.read(descriptor, _LARGEST_MESSAGE)
            note = kernel_note(message.decode(errors="replace"), time.monotonic())
            if note:
                notes.append(note)
            if not message:
                break
    except OSError:  # the end, or a message that was overwritten
        return notes[-_MOST_NOTES:]
    finally:
        os.close(descriptor)
    return notes[-_MOST_NOTES:]


def kernel_note(message: str, now: float) -> str:
    """Return a message of the last hour about a GPU, a disk or memory; '' for any other."""
    head, _, text = message.partition(";")
    fields = head.split(",")
    if len(fields) < 3 or not fields[2].isdecimal() or not _KERNEL.search(text):
        return ""
    age = now - int(fields[2]) / 1e6
    first = plain(text).partition("\n")[0]
    return f"kernel, {age:.0f} s ago: {first}" if age <= _KERNEL_RECENT else ""


_RAY_LOGS = ("worker-*.out", "worker-*.err")
_LOGS_BELOW = ("*.log", "*/*.log", "*/*/*.log")
_MOST_LOGS = 6
_LAST_LINES = 5
_LONGEST_END = 4096
_FOLDERS = ("/tmp/skyrl-logs",)  # of SkyRL's engines


def engine_logs(ray_logs: Path | None, folders: Iterable[str] = _FOLDERS) -> str:
    """Return the last lines of the logs that engines wrote last."""
    places = [(Path(name), pattern) for name in folders for pattern in _LOGS_BELOW]
    if ray_logs is not None:
        places += [(ray_logs, pattern) for pattern in _RAY_LOGS]

    files: list[tuple[float, Path]] = []
    for folder, pattern in places:
        with suppress(OSError):
            for path in folder.glob(pattern):
                status = path.stat()
                if status.st_size:
                    files.append((status.st_mtime, path))

    # The last lines of the newest.
    parts = []
    for changed, path in sorted(files, reverse=True)[:_MOST_LOGS]:
        end = plain((read_end(path, _LONGEST_END) or b"").decode(errors="replace"))
        lines = "\n".join(end.splitlines()[-_LAST_LINES:])
        parts.append(f"{path.name}, changed {max(0, time.time() - changed):.0f} s ago:\n{lines}")
    return "\n".join(parts)
