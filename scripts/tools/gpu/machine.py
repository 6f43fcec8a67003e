"""What the agent sees of the machine, against nvidia-smi and NVML."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.node import gpus, read
from tools.gpu import nvml
from tools.gpu.part import PartError

if TYPE_CHECKING:
    from tools.gpu.part import Work

QUERIES = {
    "name": "name",
    "driver": "driver_version",
    "memory_total_mib": "memory.total",
    "memory_used_mib": "memory.used",
    "utilization": "utilization.gpu",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "celsius": "temperature.gpu",
    "ecc_errors": "ecc.errors.uncorrected.volatile.total",
}
PACKAGES = ("torch", "transformers", "accelerate", "trl", "datasets", "pyarrow", "triton", "py-spy")
TEXTS = {"name", "driver"}
TOLD = 120


def run(at: Work) -> None:
    """Compare three readers of one GPU; a difference in what does not change is a failure."""
    figures = at.figures
    figures["versions"] = {name: version_of(name) for name in PACKAGES}
    figures["kernel"] = os.uname().release
    figures["cpus"] = os.cpu_count()
    figures["shm_gb"] = round(shutil.disk_usage("/dev/shm").total / 1e9, 1)
    doctor(at)
    maker, devices = read.gpus_of(Path("/dev"))
    began = time.monotonic()
    driver = gpus.ask_driver(maker)
    seconds = time.monotonic() - began
    models = read.gpu_models(maker, Path("/proc/driver/nvidia/gpus"), Path("/sys/class/drm"))
    agent: dict[str, Any] = {
        "maker": maker,
        "device_files": [str(one) for one in devices],
        "models_by_kernel": list(models),
        "driver_seconds": round(seconds, 2),
        "driver": None,
    }
    if driver is not None:
        agent["driver"] = {"version": driver.version, "fault": driver.fault}
        agent["gpus"] = [[one.index, one.name, one.memory] for one in driver.gpus]
    figures["agent"] = agent
    if not at.has_gpu:
        return
    figures["nvml"] = nvml.state()
    figures["nvidia_smi"] = smi = by_nvidia_smi(at)
    at.run("nvidia-smi-q", ["nvidia-smi", "-q"], limit=20)
    dmesg = at.start("dmesg", ["dmesg"])
    figures["dmesg_code"] = at.wait(dmesg, 10)
    figures["xid_lines"] = dmesg.output.count("NVRM: Xid")
    figures["differences"] = differences(agent, figures["nvml"], smi)
    if figures["differences"]:
        raise PartError(f"readers differ: {figures['differences']}")


def version_of(name: str) -> str:
    """Return a package's version, '' if it is missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def doctor(at: Work) -> None:
    """Run `doctor --json`, as a machine for torchrun."""
    env = {"AGENT_LAUNCHER": "torchrun"}
    program = at.start("doctor", [sys.executable, "-m", "agent", "doctor", "--json"], env)
    code = at.wait(program, 40)
    seconds = round(time.monotonic() - program.began, 2)
    at.figures["doctor"] = {"code": code, "seconds": seconds}
    report = json.loads(program.output)
    worse = [one for one in report["findings"] if one["level"] not in {"ok", "info"}]
    lines = [f"{one['level']} {one['check']}: {one['what'][:TOLD]}" for one in worse]
    gpus_found = [one["what"] for one in report["findings"] if "GPU" in one["check"]]
    at.figures["doctor"] |= {"ok": report["ok"], "findings": lines, "gpus": gpus_found}


def by_nvidia_smi(at: Work) -> dict[str, Any]:
    """Return the first GPU's row of nvidia-smi."""
    query = f"--query-gpu={','.join(QUERIES.values())}"
    argv = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    row = next(csv.reader(at.run("nvidia-smi", argv, limit=20).output.splitlines()))
    cells = dict(zip(QUERIES, (cell.strip() for cell in row), strict=True))
    return {name: cell if name in TEXTS else number_in(cell) for name, cell in cells.items()}


def number_in(text: str) -> str | float:
    """Return a number of nvidia-smi; its text where it is none, such as [N/A]."""
    try:
        return float(text)
    except ValueError:
        return text


def differences(agent: dict[str, Any], by_nvml: dict[str, Any], smi: dict[str, Any]) -> list[str]:
    """Return in what the agent differs from NVML and nvidia-smi."""
    first = (agent.get("gpus") or [[None, None, None]])[0]
    version = (agent["driver"] or {}).get("version")
    pairs = [
        ("name", first[1], by_nvml["name"]),
        ("name by nvidia-smi", first[1], smi["name"]),
        ("name by the kernel", next(iter(agent["models_by_kernel"]), None), by_nvml["name"]),
        ("memory", first[2], by_nvml["memory_total_mib"]),
        ("memory by nvidia-smi", first[2], smi["memory_total_mib"]),
        ("driver", version, by_nvml["driver"]),
        ("driver by nvidia-smi", version, smi["driver"]),
    ]
    return [f"{what}: {ours} and {theirs}" for what, ours, theirs in pairs if ours != theirs]
