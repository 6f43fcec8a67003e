"""Reads the figures of this machine: GPUs by NVML or AMD's tools, memory, disks and network.

Each reader may block: a driver or a network disk can hang. The caller runs each in a thread of its
own, within a limit.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from agent.base import times
from agent.node import limits
from agent.node.facts import MIB
from agent.node.figures import MOST_DISKS, MOST_GPUS, DiskFigures, GpuFigures
from agent.node.gpus import answer_of, cards_in, json_in
from agent.node.python_facts import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.node.figures import Throttle


# --- NVIDIA --------------------------------------------------------------------------------------

_THROTTLES: Mapping[str, Throttle] = {
    "SwPowerCap": "power",
    "SwThermalSlowdown": "temperature",
    "HwThermalSlowdown": "temperature",
    "HwSlowdown": "hardware",
    "HwPowerBrakeSlowdown": "power brake",
    "SyncBoost": "sync",
}
"""Throttling by NVML's names of the reasons; an idle GPU and set clocks are none."""
_MOST_HOLDERS = 16  # processes of one GPU that are named
_XID_EVENTS = 16  # most Xid errors that are read at once


class NvmlReader:
    """Reads NVIDIA's GPUs by NVML."""

    def __init__(self) -> None:
        self._nvml: Any = None  # nvidia-ml-py has no types
        self._handles: list[Any] = []
        self._events: Any = None
        self._numbers: dict[object, int] = {}  # of the GPUs by their place on the bus
        self._xids: dict[int, int] = {}  # the last Xid error of a GPU, by its number

    def read(self) -> tuple[tuple[GpuFigures, ...], str]:
        """Return the GPUs' figures, or why there are none."""
        try:
            if self._nvml is None:
                self._open()
            self._read_xids()
            return tuple(self._gpu(index) for index in range(len(self._handles))), ""
        except ImportError:
            return (), "nvidia-ml-py is not installed"
        except Exception as error:  # noqa: BLE001 - NVML's errors are made at run time
            return (), str(error)

    def holders(self) -> dict[int, list[str]]:
        """Return the processes with memory of each GPU, as far as driver and container show them.

        In a container the driver often shows none.
        """
        if self._nvml is None:
            self.read()
        if self._nvml is None:
            return {}
        holders: dict[int, list[str]] = {}
        for index, handle in enumerate(self._handles):
            read = partial(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
            processes = self._known(read) or ()
            holders[index] = []
            for process in processes[:_MOST_HOLDERS]:
                with suppress(psutil.Error, OSError):
                    name = psutil.Process(process.pid).name()
                    holders[index].append(f"{name}, pid {process.pid}")
        return holders

    def _open(self) -> None:
        import pynvml  # noqa: PLC0415 - only a node with NVIDIA's GPUs needs it

        pynvml.nvmlInit()
        count = min(MOST_GPUS, pynvml.nvmlDeviceGetCount())
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self._nvml = pynvml
        self._numbers = {self._bus(handle): index for index, handle in enumerate(self._handles)}

        # Xid errors from now on, where driver and rights allow it.
        with suppress(pynvml.NVMLError, AttributeError):
            self._events = pynvml.nvmlEventSetCreate()
        for handle in self._handles:
            with suppress(pynvml.NVMLError, AttributeError):
                kind = pynvml.nvmlEventTypeXidCriticalError
                pynvml.nvmlDeviceRegisterEvents(handle, kind, self._events)

    def _read_xids(self) -> None:
        if self._events is None:
            return
        for _ in range(_XID_EVENTS):
            event = self._known(lambda: self._nvml.nvmlEventSetWait(self._events, 0))
            if event is None:  # none is left
                return
            number = self._numbers.get(self._bus(event.device))
            if number is not None:
                self._xids[number] = int(event.eventData)

    def _bus(self, handle: Any) -> object:  # noqa: ANN401 - a pointer
        return self._known(lambda: self._nvml.nvmlDeviceGetPciInfo(handle).busId)

    def _memory(self, handle: Any) -> Any:  # noqa: ANN401 - NVML's pointer and structure
        """Return a GPU's memory without what its driver keeps for itself, as nvidia-smi does."""
        nvml = self._nvml
        second = getattr(nvml, "nvmlMemory_v2", None)  # not in packages before 2022
        if second is not None:
            with suppress(nvml.NVMLError):  # not in drivers before 510
                return nvml.nvmlDeviceGetMemoryInfo(handle, second)
        return nvml.nvmlDeviceGetMemoryInfo(handle)

    def _gpu(self, index: int) -> GpuFigures:
        nvml = self._nvml
        handle = self._handles[index]
        fault = ""
        memory = None
        try:
            memory = self._memory(handle)
        except nvml.NVMLError as error:
            fault = str(error)

        # What some GPUs and drivers do not report is None.
        use = self._known(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        power = self._known(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit = self._known(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        errors = self._known(
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        )

        return GpuFigures(
            index=index,
            use=use,
            memory_used=None if memory is None else memory.used // MIB,
            memory_total=None if memory is None else memory.total // MIB,
            power=None if power is None else round(power / 1000),
            power_limit=None if limit is None else round(limit / 1000),
            temperature=self._known(
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            clock=self._known(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            throttled=self._throttles(handle),
            xid=self._xids.get(index, 0),
            errors=errors or 0,
            fault=fault,
        )

    def _throttles(self, handle: Any) -> tuple[Throttle, ...]:  # noqa: ANN401 - a pointer
        # Drivers before 535, and their nvidia-ml-py, have the latter name.
        nvml = self._nvml
        bits = self._known(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        if bits is None:
            bits = self._known(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return self._names_of(bits or 0)

    def _names_of(self, bits: int) -> tuple[Throttle, ...]:
        throttles = {}
        for name, throttle in _THROTTLES.items():
            bit = getattr(self._nvml, f"nvmlClocksThrottleReason{name}", 0)
            if bits & bit:
                throttles[throttle] = True
        return tuple(throttles)

    def _known(self, read: Callable[[], Any]) -> Any:  # noqa: ANN401 - any value of NVML
        """Return a value; None where this GPU, its driver or its nvidia-ml-py has none."""
        try:
            return read()
        except (self._nvml.NVMLError, AttributeError):
            return None


# --- AMD -----------------------------------------------------------------------------------------

_AMD_SMI = ("amd-smi", "metric", "--json")
_ROCM_SMI = (
    *("rocm-smi", "--showuse", "--showmeminfo", "vram", "--showpower", "--showmaxpower"),
    *("--showtemp", "--showclocks", "--json"),
)


def read_amd(path: str | None = None) -> tuple[tuple[GpuFigures, ...], str]:
    """Return the figures of AMD's GPUs by the first of its tools that reports some, or why not."""
    fault = "neither amd-smi nor rocm-smi is installed"
    for argv, read in ((_AMD_SMI, figures_of_amd), (_ROCM_SMI, figures_of_rocm)):
        program = shutil.which(argv[0], path=path)
        if program is None:
            continue
        try:
            _, text = answer_of((program, *argv[1:]), times.FIGURES_GPUS)
            gpus = read(text)
        except (OSError, ValueError, TimeoutExpired) as error:
            fault = f"{argv[0]}: {error}"
            continue
        if gpus:
            return gpus[:MOST_GPUS], ""
        fault = f"{argv[0]} reports no GPU"
    return (), fault


def figures_of_amd(text: str) -> tuple[GpuFigures, ...]:
    """Read amd-smi's JSON: a list of GPUs, which newer ones have under `gpu_data`."""
    gpus = json_in(text)
    if isinstance(gpus, dict):
        gpus = gpus.get("gpu_data")
    if not isinstance(gpus, list):
        raise ValueError("its output is no list of GPUs")  # noqa: TRY004 - as json's own error
    return tuple(_of_amd(gpu) for gpu in gpus if isinstance(gpu, dict))


def _of_amd(gpu: dict[str, Any]) -> GpuFigures:
    throttle = _at(gpu, "power", "throttle_status")
    hot = _number(_at(gpu, "temperature", "hotspot"))
    return GpuFigures(
        index=_number(gpu.get("gpu")) or 0,
        use=_number(_at(gpu, "usage", "gfx_activity")),
        memory_used=_number(_at(gpu, "mem_usage", "used_vram")),
        memory_total=_number(_at(gpu, "mem_usage", "total_vram")),
        power=_number(_at(gpu, "power", "socket_power")),
        temperature=_number(_at(gpu, "temperature", "edge")) if hot is None else hot,
        clock=_number(_at(gpu, "clock", "gfx_0", "clk")),
        throttled=("hardware",) if throttle == "THROTTLED" else (),
        errors=_number(_at(gpu, "ecc", "total_uncorrectable_count")) or 0,
    )


def figures_of_rocm(text: str) -> tuple[GpuFigures, ...]:
    """Read rocm-smi's JSON: the values of each card by their titles."""
    return tuple(_of_rocm(card, values) for card, values in cards_in(text).items())


def _of_rocm(card: int, values: dict[str, str]) -> GpuFigures:
    def first(*titles: str) -> int | None:
        numbers = (_number(values.get(title)) for title in titles)
        return next((number for number in numbers if number is not None), None)

    used = first("vram total used memory (b)")
    total = first("vram total memory (b)")
    return GpuFigures(
        index=card,
        use=first("gpu use (%)"),
        memory_used=None if used is None else used // MIB,
        memory_total=None if total is None else total // MIB,
        power=first(
            "current socket graphics package power (w)", "average graphics package power (w)"
        ),
        power_limit=first("max graphics package power (w)"),
        temperature=first("temperature (sensor junction) (c)", "temperature (sensor edge) (c)"),
        clock=first("sclk clock speed:"),
    )


def _at(data: Any, *path: str) -> Any:  # noqa: ANN401 - any JSON
    for key in path:
        if not isinstance(data, dict):
            return None
        data = data.get(key)
    return data


def _number(value: Any) -> int | None:  # noqa: ANN401 - any JSON
    """Return a number of AMD's tools: 41, "41.0", "(132Mhz)" or {"value": 41, "unit": "W"}."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, str):
        value = value.strip("() ").lower().removesuffix("mhz")
    try:
        return max(0, round(float(value)))
    except (TypeError, ValueError, OverflowError):  # such as "N/A"
        return None


# --- host memory ---------------------------------------------------------------------------------


class HostMemory(NamedTuple):
    """Bytes of memory that are in use here, and that may be used."""

    used: int
    total: int


_CGROUP_FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
"""Of cgroup v2 and v1: limit, use, and the caches of files in memory.stat, which can be freed."""


def read_host_memory(proc: Path = limits.PROC, base: Path = limits.BASE) -> HostMemory:
    """Return the memory of this container, or of the machine where that is less."""
    whole = psutil.virtual_memory()
    memories = [HostMemory(int(whole.total - whole.available), int(whole.total))]
    for folder in limits.folders("memory", proc, base):
        for limit, usage, caches in _CGROUP_FILES:
            with suppress(OSError, ValueError):  # "max" means no limit
                total = int((folder / limit).read_text())
                used = int((folder / usage).read_text())
                rows = (line.split() for line in text_of(folder / "memory.stat").splitlines())
                cached = sum(int(row[1]) for row in rows if len(row) == 2 and row[0] in caches)
                memories.append(HostMemory(max(0, used - cached), total))
    return min(memories, key=lambda memory: memory.total)


_NAMED = 256 << 20  # bytes of memory of its own from which a process is named
_MOST_NAMES = 16
_PYTHON = ("python", "pypy")


def memory_by_program(proc: Path = limits.PROC) -> dict[str, int]:
    """Return the bytes of memory that the largest programs have for themselves, by their names.

    Shared memory, such as Ray's objects, belongs to no process.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    sizes: dict[str, int] = {}
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # it has ended
            fields = (folder / "statm").read_text().split()
            own = (int(fields[1]) - int(fields[2])) * page
            if own >= _NAMED:
                name = program_name((folder / "cmdline").read_bytes())
                sizes[name] = sizes.get(name, 0) + own
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    return dict(largest[:_MOST_NAMES])


def program_name(command_line: bytes) -> str:
    """Return the name of a program: its script or module for Python, its class for a Ray actor."""
    words = [word.decode(errors="replace") for word in command_line.split(b"\0") if word]
    if not words:
        return "a process"

    # Ray's actors and tasks set a title: `ray::WorkerDict.update_actor`, idle without a method.
    title = words[0].split()[0] if words[0].split() else words[0]
    if title.startswith("ray::"):
        return title.partition(".")[0]

    program = Path(title).name
    if not program.startswith(_PYTHON):
        return program
    arguments = iter(words[1:])
    for word in arguments:
        if word == "-m":
            return next(arguments, program)
        if not word.startswith("-"):
            return Path(word).name
    return program


# --- disks ---------------------------------------------------------------------------------------


def read_disks(folders: Iterable[str]) -> tuple[DiskFigures, ...]:
    """Return how full the disks of these folders are, each disk once."""
    disks: dict[int, DiskFigures] = {}
    for folder in folders:
        with suppress(OSError):
            place = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
            device = place.stat().st_dev
            if device not in disks:
                usage = shutil.disk_usage(place)
                # What only root may use counts as used: a job cannot write there.
                disks[device] = DiskFigures(folder, usage.total - usage.free, usage.total)
    return tuple(disks.values())[:MOST_DISKS]


# --- network -------------------------------------------------------------------------------------

_RDMA = Path("/sys/class/infiniband")
_RDMA_WORD = 4  # bytes that its counters count as one


class NetworkReader:
    """Reads the bytes a second of this machine's network interfaces and RDMA devices."""

    def __init__(self, rdma: Path = _RDMA, clock: Callable[[], float] = time.monotonic) -> None:
        self._rdma = rdma
        self._clock = clock
        self._last: tuple[float, int, int] | None = None

    def read(self) -> tuple[float, float]:
        """Return the bytes a second that were received and sent since the last call."""
        received = sent = 0
        for name, counters in psutil.net_io_counters(pernic=True).items():
            if name != "lo":
                received += counters.bytes_recv
                sent += counters.bytes_sent
        for port in self._rdma.glob("*/ports/*/counters"):
            received += _RDMA_WORD * _counter(port / "port_rcv_data")
            sent += _RDMA_WORD * _counter(port / "port_xmit_data")

        now = self._clock()
        last = self._last
        self._last = (now, received, sent)
        if last is None or now <= last[0]:
            return 0.0, 0.0
        seconds = now - last[0]
        return (
            round(max(0, received - last[1]) / seconds),
            round(max(0, sent - last[2]) / seconds),
        )


def _counter(path: Path) -> int:
    text = text_of(path).strip()
    return int(text) if text.isdigit() else 0
