"""The GPU by NVML: its state, and what it does meanwhile."""

from __future__ import annotations

import functools
import importlib
import statistics
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SAMPLE_SECONDS = 0.2
SETTLE_SECONDS = 1.5  # The driver's utilization is that of the last second or less
MIB = 1 << 20
DEVICES = Path("/dev")


@functools.cache
def library() -> Any | None:  # noqa: ANN401 - nvidia-ml-py has no types
    """Return nvidia-ml-py, initialized; None without it or a driver."""
    try:
        found = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        found.nvmlInit()
    except found.NVMLError:
        return None
    return found


def has_gpu() -> bool:
    """Return whether there is a GPU, by its device file: NVML may fail where there is one."""
    return any(DEVICES.glob("nvidia[0-9]*"))


def known(read: Callable[[], Any]) -> Any:  # noqa: ANN401 - any value of NVML
    """Return a value, or None where this GPU or driver has none."""
    try:
        value = read()
    except Exception:  # noqa: BLE001 - NVML's errors, and functions that a version lacks
        return None
    return value.decode() if isinstance(value, bytes) else value


def state(index: int = 0) -> dict[str, Any]:
    """Return what NVML says about a GPU; empty without one."""
    lib = library()
    if lib is None:
        return {}
    gpu = lib.nvmlDeviceGetHandleByIndex(index)
    power = known(lambda: lib.nvmlDeviceGetPowerUsage(gpu))
    limit = known(lambda: lib.nvmlDeviceGetEnforcedPowerLimit(gpu))
    return {
        "name": known(lambda: lib.nvmlDeviceGetName(gpu)),
        "driver": known(lib.nvmlSystemGetDriverVersion),
        "memory_total_mib": known(lambda: lib.nvmlDeviceGetMemoryInfo(gpu).total // MIB),
        "memory_used_mib": known(lambda: lib.nvmlDeviceGetMemoryInfo(gpu).used // MIB),
        "utilization": known(lambda: lib.nvmlDeviceGetUtilizationRates(gpu).gpu),
        "memory_utilization": known(lambda: lib.nvmlDeviceGetUtilizationRates(gpu).memory),
        "power_w": None if power is None else power / 1000,
        "power_limit_w": None if limit is None else limit / 1000,
        "sm_mhz": known(lambda: lib.nvmlDeviceGetClockInfo(gpu, lib.NVML_CLOCK_SM)),
        "memory_mhz": known(lambda: lib.nvmlDeviceGetClockInfo(gpu, lib.NVML_CLOCK_MEM)),
        "celsius": known(lambda: lib.nvmlDeviceGetTemperature(gpu, lib.NVML_TEMPERATURE_GPU)),
        "slowed_by": known(lambda: lib.nvmlDeviceGetCurrentClocksEventReasons(gpu)),
        "ecc_errors": known(
            lambda: lib.nvmlDeviceGetTotalEccErrors(
                gpu, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, lib.NVML_VOLATILE_ECC
            )
        ),
        "processes": known(lambda: len(lib.nvmlDeviceGetComputeRunningProcesses(gpu))),
    }


class Sample(NamedTuple):
    """What the GPU did at a moment."""

    at: float  # Seconds since 1970
    values: dict[str, float]


FIELDS = ("utilization", "memory_utilization", "power_w", "sm_mhz", "memory_mhz", "slowed_by")


class Sampler:
    """Samples the GPU in a thread; without a GPU there are no samples."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:  # noqa: PYI034 - Self is newer than Python 3.10
        if library() is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(RuntimeError):  # it was not started
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            values = state()
            kept = {name: float(values[name]) for name in FIELDS if values.get(name) is not None}
            self.samples.append(Sample(time.time(), kept))

    def between(self, begin: float, end: float) -> dict[str, Any]:
        """Return what the samples of a time say, after the GPU has settled."""
        return summary([one for one in self.samples if begin + SETTLE_SECONDS <= one.at <= end])


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the least, the median and the most of each value."""
    found: dict[str, Any] = {"samples": len(samples)}
    for name in FIELDS:
        values = [one.values[name] for one in samples if name in one.values]
        if values:
            found[name] = [min(values), statistics.median(values), max(values)]
    return found
