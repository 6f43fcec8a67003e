"""What besides stacks may explain a hang here: GPUs, kernel messages, engines' logs."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base import times
from agent.base.text import plain
from agent.processes.driver import output_of
from agent.record.files import read_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_QUERY = "index,utilization.gpu,power.draw,power.limit,clocks.sm,clocks_throttle_reasons.active"
_GPUS = (
    "nvidia-smi",
    f"--query-gpu={_QUERY},ecc.errors.uncorrected.volatile.total",
    "--format=csv,noheader",
)
_MOST_NOTES = 8
_NO_THROTTLING = {0, 1}  # none, or an idle GPU


async def gpu_notes(env: Mapping[str, str], log: Callable[[], Path]) -> list[str]:
    """Return a sentence about each NVIDIA GPU: use, power, clock, throttling and errors."""
    text, fault = await output_of(_GPUS, env, log, times.STACK_DUMP)
    if fault:
        return [f"nvidia-smi: {fault}"]
    return [note for line in text.splitlines()[:_MOST_NOTES] if (note := gpu_note(line))]


def gpu_note(line: str) -> str:
    """Return a line of nvidia-smi as a sentence; '' for any other line."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 7:
        return ""
    index, used, power, limit, clock, throttled, errors = cells
    note = f"GPU {index}: {used}, {power} of {limit}, {clock}"
    with suppress(ValueError):
        reasons = int(throttled, 16)
        if reasons not in _NO_THROTTLING:
            note += f", throttled (reasons {throttled})"
    if errors.isdecimal() and int(errors):
        note += f", {errors} uncorrected memory errors"
    return note


KMSG = "/dev/kmsg"
_KERNEL = re.compile(
    r"NVRM: (Xid|GPU)|blocked for more than|Out of memory|I/O error|not responding|link is down"
    r"|Hardware Error|amdgpu.*(reset|timeout|hang)",
    re.IGNORECASE,
)
_LARGEST_MESSAGE = 8192
_MOST_MESSAGES = 100_000


def kernel_notes(device: str = KMSG) -> list[str]:
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
    return f"kernel, {age:.0f} s ago: {first}" if age <= times.KERNEL_RECENT else ""


_LOG_NAMES = ("worker-*.out", "worker-*.err", "*.log")
_MOST_LOGS = 6
_LAST_LINES = 5
_LONGEST_END = 4096
_FOLDERS = ("/tmp/skyrl-logs",)  # of SkyRL's engines


def engine_logs(ray_logs: Path | None, folders: Iterable[str] = _FOLDERS) -> str:
    """Return the last lines of the logs that engines wrote last."""
    files: list[tuple[float, Path]] = []
    for folder, depth in [(ray_logs, 0), *((Path(name), 2) for name in folders)]:
        patterns = ("*.log", "*/*.log", "*/*/*.log") if depth else _LOG_NAMES[:2]
        for pattern in patterns if folder is not None else ():
            with suppress(OSError):
                for path in folder.glob(pattern) if folder is not None else ():
                    status = path.stat()
                    if status.st_size:
                        files.append((status.st_mtime, path))
    parts = []
    for changed, path in sorted(files, reverse=True)[:_MOST_LOGS]:
        end = plain((read_end(path, _LONGEST_END) or b"").decode(errors="replace"))
        lines = "\n".join(end.splitlines()[-_LAST_LINES:])
        parts.append(f"{path.name}, changed {max(0, time.time() - changed):.0f} s ago:\n{lines}")
    return "\n".join(parts)
