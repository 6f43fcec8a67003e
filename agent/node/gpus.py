"""Queries the GPU driver by its tool: which GPUs it has, and why it shows none.

A driver that hangs holds who asks it, even at its exit: `doctor` and a start therefore ask by a
process that they can leave behind, and by the tool whose message a user can repeat. The figures of
a run (read_figures.py) are read by NVML in the agent itself, since Xid errors are sent only to a
process that stays; a child that stays for them would be one more to supervise on each node.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any

from agent.node.facts import MIB, Driver, DriverGpu
from agent.node.python_facts import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_GPUS_ANSWER = 20.0  # Without the persistence daemon the driver initializes each GPU first.
MODULES = Path("/sys/module")
_CARD = re.compile(r"card(\d+)")
_JSON = re.compile(r"^[\[{]", re.MULTILINE)


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


def ask_driver(maker: str, path: str | None = None, limit: float = _GPUS_ANSWER) -> Driver | None:
    """Return the report of the driver's tool; None without GPUs."""
    if not maker:
        return None
    (tool, *options), read, module = _DRIVERS[maker]
    program = shutil.which(tool, path=path)
    if program is None:
        return Driver(tool, fault="not installed here")

    # What the tool prints may also be why it fails. It may hang, too.
    try:
        code, text = answer_of([program, *options], limit, STDOUT)
    except TimeoutExpired:
        return Driver(tool, fault=f"no answer within {limit:g} s: the driver hangs")
    first = next((line for line in text.splitlines() if line.strip()), "no message").strip()
    if code:
        return Driver(tool, fault=f"exit code {code}: {first}")
    try:
        return Driver(tool, read(text), version=text_of(MODULES / module / "version").strip())
    except ValueError:
        return Driver(tool, fault=f"its output is no list: {first}")


def answer_of(argv: Sequence[str], limit: float, stderr: int = DEVNULL) -> tuple[int, str]:
    """Run a tool of a driver; return its exit code and output, with STDOUT also its errors.

    Raises TimeoutExpired at the limit, and leaves the tool behind.
    """
    child = Popen(argv, stdin=DEVNULL, stdout=PIPE, stderr=stderr, text=True, errors="replace")
    try:
        text, _ = child.communicate(timeout=limit)
    except TimeoutExpired:
        child.kill()
        # a process that hangs in the driver cannot be killed
        with suppress(TimeoutExpired):
            child.communicate(timeout=1)
        raise
    return child.returncode, text
