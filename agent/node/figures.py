"""The figures of a machine at one moment: GPUs, memory, disks and network, as values.

A worker sends them with its reports: a GPU and a disk are arrays there, since a thousand workers
with eight GPUs each send them every ten seconds.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Literal

from msgspec import Meta

from agent.base.fields import not_zero, of_node, says
from agent.base.value import Bytes, Count, Gpus, Items, Rate, Seconds, Value

MOST_GPUS = 16
MOST_DISKS = 4

Throttle = Literal["power", "temperature", "hardware", "power brake", "sync"]
"""Why a GPU's clock is limited; `power` alone is usual at full load."""

_BUSY = 5  # percent of utilization up to which a GPU counts as idle
_WAITING = 35
"""Percent of its usual power up to which a GPU only waits. A hung NCCL all-reduce takes 131 W
at 100 % utilization, the lightest work on the same GPU 399 W (docs/evidence/gpu.md).
"""
_WAITING_OF_LIMIT = 25  # The same of its power limit, while its usual power is not known.
_MOST_SAMPLES = 360
_USUAL = 90  # The usual power is this percentile of the samples in which the GPU worked.


class GpuFigures(Value, array_like=True):
    """The figures of one GPU; None where its driver has none."""

    index: Gpus
    use: Count | None = None  # percent
    memory_used: Count | None = None  # MiB, also below
    memory_total: Count | None = None
    power: Count | None = None  # watts, also below
    power_limit: Count | None = None
    temperature: Count | None = None  # degrees Celsius
    clock: Count | None = None  # MHz of its processors
    throttled: Items[Throttle] = ()
    xid: Count = 0  # the number of the last Xid error since the agent's start; 0 for none
    errors: Count = 0  # uncorrected ECC errors since the driver was loaded
    usual_power: Count = 0  # watts while it worked so far; 0 if not known
    fault: str = ""  # why the driver does not report it, such as a lost GPU
    is_of_service: bool = False  # true if a service has it alone: it does not work for the job

    @property
    def is_working(self) -> bool:
        """Return whether it works, by its utilization and its power."""
        return works(self, self.usual_power or None)


class DiskFigures(Value, array_like=True):
    """How full the disk of a folder is."""

    folder: str
    used: Bytes
    total: Bytes


class Forecast(Value):
    """When a memory or disk of a machine will be full, by its growth."""

    what: str  # `host memory`, or `disk` and its folder
    seconds: Seconds  # from now on
    per_hour: Bytes  # by how much it grows
    since: Seconds  # for how long it has grown so
    program: str = ""  # the program that took most of it, if one did


class MachineFigures(Value, kw_only=True):
    """What the status shows of a machine as it was read; 0 and empty for what could not be read."""

    gpu_fault: Annotated[str, says("why the driver reports no GPUs, such as one that hangs")] = ""
    host_memory_used: Annotated[
        Bytes,
        says("bytes, without caches that the kernel can free"),
        of_node("host_memory_used_bytes", "Host memory in use.", not_zero),
    ] = 0
    host_memory_total: Annotated[
        Bytes,
        says("bytes that the node's container may use"),
        of_node("host_memory_bytes", "Host memory of a node.", not_zero),
    ] = 0
    network_received: Annotated[
        Rate,
        says("bytes a second, RDMA included"),
        of_node("received_bytes_per_second", "Over the network.", not_zero),
    ] = 0.0
    network_sent: Annotated[
        Rate, of_node("sent_bytes_per_second", "Over the network.", not_zero)
    ] = 0.0


class Figures(MachineFigures, omit_defaults=True):
    """The figures of one machine at one moment, as its node reports them."""

    at: Seconds  # when they were read, on the clock of the node's run
    gpus: Annotated[tuple[GpuFigures, ...], Meta(max_length=MOST_GPUS)] = ()
    disks: Annotated[tuple[DiskFigures, ...], Meta(max_length=MOST_DISKS)] = ()
    forecasts: Items[Forecast] = ()  # of what will be full soon


def works(gpu: GpuFigures, usual_power: float | None) -> bool:
    """Return whether a GPU works; a hung collective has full utilization, but little power.

    `usual_power` is what it takes when it works; None if not known.
    """
    if gpu.use is None or gpu.use < _BUSY:
        return False

    # Which power does it take while it only waits?
    if usual_power is not None:
        waiting = usual_power * _WAITING / 100
    elif gpu.power_limit:
        waiting = gpu.power_limit * _WAITING_OF_LIMIT / 100
    else:
        return True
    return gpu.power is None or gpu.power > waiting


class UsualPower:
    """The power that one GPU takes when it works, by its latest samples."""

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=_MOST_SAMPLES)

    def with_sample(self, gpu: GpuFigures) -> int:
        """Add a sample; return the usual power in watts, 0 if not known yet."""
        usual = self._quantile()
        if gpu.power is not None and works(gpu, usual or None):
            self._samples.append(gpu.power)
            usual = self._quantile()
        return usual

    def _quantile(self) -> int:
        if not self._samples:
            return 0
        return sorted(self._samples)[_USUAL * (len(self._samples) - 1) // 100]
