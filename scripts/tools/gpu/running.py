"""Run the parts within their times, and report what they found.

Phases follow each other; the lanes of a phase run side by side, the parts of a lane one after
another. `hang` measures a GPU with nothing else on it, and `compile` takes all CPU cores.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.gpu import (
    compiling,
    hangs,
    machine,
    memory,
    nvml,
    preflight,
    second_start,
    training,
)
from tools.gpu.part import Part, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

PHASES: tuple[tuple[tuple[Part, ...], ...], ...] = (
    (
        (
            Part("machine", 45, machine.run),
            Part("preflight", 75, preflight.run),
            Part("training", 110, training.run),
        ),
        (Part("memory", 170, memory.run),),
    ),
    ((Part("compile", 90, compiling.run),),),
    ((Part("hang", 170, hangs.run),),),
)
BY_NAME: tuple[tuple[tuple[Part, ...], ...], ...] = (
    ((Part("second-start", 380, second_start.run),),),
)
"""Phases that only run if their parts are named: with them all parts would take too long."""
LAST_SECONDS = 150.0
"""Kept for the last phase, which measures what nothing else does."""
END_SECONDS = 12.0  # For a part to end after its deadline
MOST_LOG = 2_000_000
NOT_IN_TAR = {".out", ".err", ".key", ".safetensors", ".pt"}
MOST_IN_TAR = 1_000_000  # Of one file; what comes back is limited


class Report:
    """The figures of all parts, and their file."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._lock = threading.Lock()
        self.figures: dict[str, Any] = {}

    def add(self, name: str, figures: dict[str, Any]) -> None:
        """Add the figures of a part, and write all so far."""
        with self._lock:
            self.figures[name] = figures
            text = json.dumps(self.figures, indent=1)
            (self._out / "gpu.json").write_text(text, encoding="utf-8")


def main(work: Path, only: Sequence[str], began: float, seconds: float, scale: float) -> int:
    """Run the parts; print the figures last."""
    out = Path(os.environ.get("OUT") or work / "out")
    out.mkdir(parents=True, exist_ok=True)
    passed = time.time() - began
    end = time.monotonic() + seconds * scale - passed
    report = Report(out)
    report.add("overlay", {"seconds": round(passed, 1), "python": sys.version.split()[0]})
    phases = chosen(only)
    for number, lanes in enumerate(phases):
        is_last = number == len(phases) - 1
        until = end if is_last else max(time.monotonic(), end - LAST_SECONDS * scale)
        run_phase(lanes, work, report, until, scale)
    pack_logs(work, out)
    if not out.is_relative_to(work):
        shutil.rmtree(work, ignore_errors=True)
    figures = report.figures
    print(json.dumps(figures), flush=True)
    failed = [name for name, one in figures.items() if one.get("failure")]
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # a part that did not end may still wait in a thread


def chosen(only: Sequence[str]) -> list[list[list[Part]]]:
    """Return the phases with the chosen parts; all without a choice."""
    phases_with_names = (*PHASES, *BY_NAME) if only else PHASES
    known = [part.name for lanes in (*PHASES, *BY_NAME) for lane in lanes for part in lane]
    if unknown := [name for name in only if name not in known]:
        sys.exit(f"scripts/gpu: no part {', '.join(unknown)}: {', '.join(known)}")
    phases = []
    for lanes in phases_with_names:
        kept = [[part for part in lane if not only or part.name in only] for lane in lanes]
        if some := [lane for lane in kept if lane]:
            phases.append(some)
    return phases


def run_phase(
    lanes: Sequence[Sequence[Part]], work: Path, report: Report, until: float, scale: float
) -> None:
    """Run the lanes of a phase side by side, to their end or that of the phase."""
    threads = [
        threading.Thread(target=run_lane, args=(lane, work, report, until, scale), daemon=True)
        for lane in lanes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_lane(parts: Sequence[Part], work: Path, report: Report, until: float, scale: float) -> None:
    """Run parts one after another; each ends alone, whatever happens in it."""
    for part in parts:
        report.add(part.name, run_part(part, work, until, scale))


def run_part(part: Part, work: Path, until: float, scale: float) -> dict[str, Any]:
    """Run a part within its time; return its figures, with the failure if there was one."""
    began = time.monotonic()
    deadline = min(until, began + part.seconds * scale)
    at = Work(part.name, work / part.name, deadline, has_gpu=nvml.has_gpu(), scale=scale)
    failures = []

    def run() -> None:
        try:
            part.run(at)
        except Exception as error:  # noqa: BLE001 - any failure is a figure, and the others go on
            failures.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()) + END_SECONDS)
    if thread.is_alive():
        failures.append("it did not end at its deadline")
    killed = at.kill_all()
    figures = {"seconds": round(time.monotonic() - began, 1), **at.figures}
    if killed:
        figures["killed_at_the_end"] = killed
    if failures:
        figures["failure"] = failures[0]
    print(f"{part.name}: {failures[0] if failures else 'ok'}, {figures['seconds']} s", flush=True)
    return figures


def pack_logs(work: Path, out: Path) -> None:
    """Write one log of each part, and an archive of the runs' small files."""
    folders = sorted(one for one in work.iterdir() if one.is_dir() and one != out)
    parts = [one for one in folders if one.name != "python"]
    for folder in parts:
        with (out / f"{folder.name}.log").open("wb") as log:
            for file in sorted([*folder.glob("*.out"), *folder.glob("*.err")]):
                log.write(f"--- {file.name}\n".encode() + file.read_bytes()[-MOST_LOG:] + b"\n")
    with tarfile.open(out / "folders.tar.gz", "w:gz") as archive:
        for folder in parts:
            for file in sorted(folder.rglob("*")):
                is_small = file.is_file() and file.stat().st_size < MOST_IN_TAR
                if is_small and file.suffix not in NOT_IN_TAR:
                    archive.add(file, file.relative_to(work))
