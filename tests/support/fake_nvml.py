"""A stand-in for nvidia-ml-py's module `pynvml`, with its published names and units."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar


class NVMLError(Exception):
    """NVML's error: str() is the text of its code, as nvidia-ml-py 13 has it."""

    texts: ClassVar = {3: "Not Supported", 10: "Timeout", 15: "GPU is lost", 9: "Driver Not Loaded"}

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return self.texts[self.value]


NOT_SUPPORTED = 3
TIMEOUT = 10
LOST = 15
NOT_LOADED = 9
H100: dict[str, Any] = {
    "use": 100,
    "memory": (72_000 << 20, 81_559 << 20),
    "power": 697_412,  # milliwatts
    "limit": 700_000,
    "celsius": 61,
    "sm_mhz": 1_395,
    "reasons": 0x4,  # nvmlClocksEventReasonSwPowerCap
    "ecc": 0,
}
"""One GPU at work; a value that is an NVMLError is raised."""


class FakeNvml(ModuleType):
    """The functions that the agent calls, for some GPUs."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    nvmlMemory_v2 = 0x02000028  # noqa: N815 - NVML's names, also below
    nvmlEventTypeXidCriticalError = 8  # noqa: N815
    nvmlClocksThrottleReasonGpuIdle = 0x1  # noqa: N815
    nvmlClocksThrottleReasonSwPowerCap = 0x4  # noqa: N815
    nvmlClocksThrottleReasonHwSlowdown = 0x8  # noqa: N815
    nvmlClocksThrottleReasonSyncBoost = 0x10  # noqa: N815
    nvmlClocksThrottleReasonSwThermalSlowdown = 0x20  # noqa: N815
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40  # noqa: N815
    nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80  # noqa: N815

    def __init__(self, *gpus: dict[str, Any], init: NVMLError | None = None) -> None:
        super().__init__("pynvml")
        self.NVMLError = NVMLError
        self.gpus = [dict(gpu) for gpu in gpus]
        self.init = init
        self.opened = 0
        self.xids: list[tuple[int, int]] = []  # of a GPU, its Xid
        self.registered: list[int] = []

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names, also below
        """Load the driver."""
        self.opened += 1
        if self.init is not None:
            raise self.init

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """Return how many GPUs there are."""
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        """Return a handle."""
        return index

    def value(self, handle: int, name: str) -> Any:  # noqa: ANN401
        """Return a GPU's value."""
        found = self.gpus[handle][name]
        if isinstance(found, NVMLError):
            raise found
        return found

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        """Return percents."""
        return SimpleNamespace(gpu=self.value(handle, "use"), memory=34)

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int = 1) -> SimpleNamespace:  # noqa: N802
        """Return bytes; the first version counts what the driver keeps for itself."""
        used, total = self.value(handle, "memory")
        reserved = self.gpus[handle].get("reserved")
        if version == self.nvmlMemory_v2 and reserved is None:
            raise NVMLError(NOT_SUPPORTED)
        if version == 1:
            used += reserved or 0
        return SimpleNamespace(used=used, total=total, free=total - used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        """Return the processes of a GPU; none unless the GPU has some."""
        if "pids" not in self.gpus[handle]:
            return []
        return [SimpleNamespace(pid=pid) for pid in self.value(handle, "pids")]

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        """Return milliwatts."""
        return int(self.value(handle, "power"))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:  # noqa: N802
        """Return milliwatts."""
        return int(self.value(handle, "limit"))

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        """Return degrees Celsius."""
        assert sensor == self.NVML_TEMPERATURE_GPU
        return int(self.value(handle, "celsius"))

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        """Return MHz."""
        assert kind == self.NVML_CLOCK_SM
        return int(self.value(handle, "sm_mhz"))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:  # noqa: N802
        """Return a mask."""
        return int(self.value(handle, "reasons"))

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:  # noqa: N802
        """Return a count."""
        assert (kind, counter) == (1, 0)
        return int(self.value(handle, "ecc"))

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        """Return the place on the bus."""
        return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0".encode())

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        """Return a set of events."""
        return self.xids

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: object) -> None:  # noqa: N802
        """Collect a GPU's Xid errors from now on."""
        assert (kinds, events) == (self.nvmlEventTypeXidCriticalError, self.xids)
        self.registered.append(handle)

    def nvmlEventSetWait(self, events: object, milliseconds: int) -> SimpleNamespace:  # noqa: N802
        """Return the next event; raise a timeout without one."""
        assert (events, milliseconds) == (self.xids, 0)
        if not self.xids:
            raise NVMLError(TIMEOUT)
        handle, xid = self.xids.pop(0)
        return SimpleNamespace(device=handle, eventType=8, eventData=xid)
