"""Queries the GPU driver: state, errors and utilization."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.base import times
from agent.node.facts import MIB, Driver, DriverGpu
from agent.node.python_facts import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


MODULES = Path("/sys/module")
_IDLE = 5  # percent up to which a GPU counts as idle
_CARD = re.compile(r"card(\d+)")
_JSON = re.compile(r"^[\[{]", re.MULTILINE)

GpuUtilization = dict[int, int]  # percent by GPU number; GPUs that report none are left out


class Tool(NamedTuple):
    """A tool that reports the utilization of GPUs."""

    argv: tuple[str, ...]
    read: Callable[[str], GpuUtilization]  # parses its output; raises ValueError for anything else


def busy_gpu(uses: GpuUtilization) -> str:
    """Return a busy GPU with its utilization, or ''."""
    return next((f"GPU {gpu} at {use} %" for gpu, use in uses.items() if use >= _IDLE), "")


def read_nvidia(text: str) -> GpuUtilization:
    """Read nvidia-smi's list."""
    cells = (line.split(",") for line in text.splitlines() if line.count(",") == 1)
    return {int(gpu): int(use) for gpu, use in cells if use.strip().isdigit()}


def read_rocm(text: str) -> GpuUtilization:
    """Read rocm-smi's JSON."""
    uses = {card: values.get("gpu use (%)", "") for card, values in cards_in(text).items()}
    return {card: int(use) for card, use in uses.items() if use.isdigit()}


def read_amd(text: str) -> GpuUtilization:
    """Read amd-smi's JSON: a list of GPUs, which newer ones have under `gpu_data`."""
    gpus = json_in(text)
    if isinstance(gpus, dict):
        gpus = gpus.get("gpu_data")
    if not isinstance(gpus, list):
        return {}
    uses = {}
    for gpu in gpus:
        with suppress(KeyError, TypeError, ValueError):  # a GPU without a value has "N/A"
            uses[int(gpu["gpu"])] = int(gpu["usage"]["gfx_activity"]["value"])
    return uses


TOOLS: Mapping[str, tuple[Tool, ...]] = {
    "nvidia": (
        Tool(
            ("nvidia-smi", "--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits"),
            read_nvidia,
        ),
    ),
    "amd": (
        Tool(("rocm-smi", "--showuse", "--json"), read_rocm),
        Tool(("amd-smi", "metric", "--usage", "--json"), read_amd),
    ),
}
"""Tools by GPU vendor; the first one that works is used."""


def cards_in(text: str) -> dict[int, dict[str, str]]:
    """Return the values of each card in rocm-smi's JSON, with names in lower case."""
    data = json_in(text)
    if not isinstance(data, dict):
        return {}
    cards = {}
    for name, values in data.items():
        card = _CARD.fullmatch(name)
        if card is not None and isinstance(values, dict):
            cards[int(card[1])] = {str(key).lower(): str(value) for key, value in values.items()}
    return cards


def json_in(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Parse a tool's JSON, after possible warnings; raises ValueError without JSON."""
    begin = _JSON.search(text)
    if begin is None:
        raise ValueError("no JSON")
    return json.loads(text[begin.start() :])


_FIELDS = "index,name,memory.total,ecc.errors.uncorrected.volatile.total"
_NVIDIA = ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
_AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")


def driver_of_nvidia(text: str) -> tuple[DriverGpu, ...]:
    """Parse nvidia-smi's list; raises ValueError for anything else."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line]
    return tuple(
        DriverGpu(int(index), name, _whole(memory), _whole(errors))
        for index, name, memory, errors in rows
    )


def driver_of_amd(text: str) -> tuple[DriverGpu, ...]:
    """Parse rocm-smi's JSON; raises ValueError for anything else."""
    gpus = []
    for card, values in cards_in(text).items():
        memory = _whole(values.get("vram total memory (b)", "")) // MIB
        gpus.append(DriverGpu(card, values.get("card series", "AMD GPU"), memory))
    return tuple(gpus)


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0  # such as `[N/A]`


_DRIVERS = {
    "nvidia": (_NVIDIA, driver_of_nvidia, "nvidia"),
    "amd": (_AMD, driver_of_amd, "amdgpu"),  # the kernel's own has no version
}
"""By vendor: the tool that reports the driver's GPUs, its reader, and the kernel's module."""


def ask_driver(
    maker: str, path: str | None = None, limit: float = times.GPUS_ANSWER
) -> Driver | None:
    """Return the report of the driver's tool; None without GPUs."""
    if not maker:
        return None
    (tool, *options), read, module = _DRIVERS[maker]
    program = shutil.which(tool, path=path)
    if program is None:
        return Driver(tool, fault="not installed here")

    # What the tool prints may also be why it fails. It may hang, too.
    child = Popen(
        [program, *options], stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, errors="replace"
    )
    try:
        text, _ = child.communicate(timeout=limit)
        first = next((line for line in text.splitlines() if line.strip()), "no message").strip()
        if child.returncode:
            return Driver(tool, fault=f"exit code {child.returncode}: {first}")
        return Driver(tool, read(text), version=text_of(MODULES / module / "version").strip())
    except ValueError:
        return Driver(tool, fault=f"its output is no list: {first}")
    except TimeoutExpired:
        child.kill()
        # a process that hangs in the driver cannot be killed
        with suppress(TimeoutExpired):
            child.communicate(timeout=1)
        return Driver(tool, fault=f"no answer within {limit:g} s: the driver hangs")
