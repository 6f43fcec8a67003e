"""The figures that the agent reports, against nvidia-smi, and whether a GPU works by them."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import to_builtins

from agent.node.figures import UsualPower, works
from agent.node.read_figures import NvmlReader, read_disks, read_host_memory
from tools.gpu import nvml
from tools.gpu.machine import by_nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.node.figures import GpuFigures
    from tools.gpu.part import Program, Work

PAUSE_SECONDS = 0.5
TOLERANCES = {
    "memory_total": ("memory_total_mib", 0),
    "power_limit": ("power_limit_w", 1),
    "memory_used": ("memory_used_mib", 64),
    "temperature": ("celsius", 3),
    "power": ("power_w", 20),
    "use": ("utilization", 10),
    "errors": ("ecc_errors", 0),
}
"""By figure: nvidia-smi's name for it, and by how much two readings of an idle GPU may differ."""
WORKS = {
    "a context alone": False,
    "matmul": True,
    "small matmuls": True,
    "copies": True,
    "one thread spins": False,
}
"""Whether the GPU works in each state of load.py."""


class Reading(NamedTuple):
    """The first GPU's figures at a moment, in seconds since 1970."""

    at: float
    gpu: GpuFigures


def compare(at: Work, figures: dict[str, Any]) -> list[str]:
    """Add the agent's figures of an idle machine; return in what they differ from nvidia-smi's."""
    reader = NvmlReader()
    seconds = []
    gpus: tuple[GpuFigures, ...] = ()
    fault = ""
    for _ in range(2):  # the first reading opens the library
        began = time.monotonic()
        gpus, fault = reader.read()
        seconds.append(round(time.monotonic() - began, 3))
    figures |= {"seconds": seconds, "fault": fault, "gpus": to_builtins(gpus)}
    figures["host_memory"] = read_host_memory()._asdict()
    figures["disks"] = to_builtins(read_disks(["/tmp", "/dev/shm"]))
    if not at.has_gpu:
        return []
    if not gpus:
        return [f"the agent's reader has no GPU: {fault}"]
    smi = by_nvidia_smi(at)
    figures["nvidia_smi"] = smi
    return differences(gpus[0], smi)


def differences(gpu: GpuFigures, smi: Mapping[str, Any]) -> list[str]:
    """Return in what a reading differs from nvidia-smi's."""
    found = []
    for name, (theirs, most) in TOLERANCES.items():
        ours = getattr(gpu, name)
        other = smi.get(theirs)
        if isinstance(other, float) and (ours is None or abs(ours - other) > most):
            found.append(f"{name}: {ours} here, {other:g} by nvidia-smi")
    return found


def read_during(at: Work, program: Program) -> list[Reading]:
    """Read the figures until a program ends."""
    reader = NvmlReader()
    readings = []
    while program.process.poll() is None:
        at.left()  # raises once the time of the part is over
        gpus, _ = reader.read()
        readings += [Reading(time.time(), gpu) for gpu in gpus[:1]]
        time.sleep(PAUSE_SECONDS)
    return readings


def judge(
    readings: Sequence[Reading], lines: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of each state, and where it was judged wrongly."""
    usual = UsualPower()
    power = 0
    for reading in readings:
        power = usual.with_sample(reading.gpu)
    states: dict[str, Any] = {"usual_power": power}
    wrong = []
    for line in lines:
        begin = line["begin"] + nvml.SETTLE_SECONDS
        gpus = [one.gpu for one in readings if begin <= one.at <= line["end"]]
        if not gpus:
            continue
        share = sum(works(gpu, power or None) for gpu in gpus) / len(gpus)
        states[line["state"]] = {
            "readings": len(gpus),
            "use": median([gpu.use or 0 for gpu in gpus]),
            "power": median([gpu.power or 0 for gpu in gpus]),
            "clock": median([gpu.clock or 0 for gpu in gpus]),
            "works": round(share, 2),
        }
        if WORKS[line["state"]] != (share > 1 / 2):
            wrong.append(f"{line['state']}: works in {share:.0%} of the readings")
    return states, wrong
