"""The GPUs of a node, split between its services with `gpus` and the job.

A service's GPUs are its own: Ray, the job and other services do not see them, and a recipe does not
count them. Services take theirs from the end, in the order of their tables, so that each gets the
same ones again after a restart, and the job's begin with the first. A service of a group takes its
GPUs as often as they fit: each time one of its members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.job.services import MOST_MEMBERS, REWARD, ServiceSpec
from agent.job.share import gpus_of
from agent.node.facts import HIP, chosen_devices, device_variables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.node.facts import Facts
    from agent.settings.model import Settings

JOB_GPUS = "{gpus of the job}"
"""Placeholder of a worker without a rank of its platform, until the head has given it one."""
_NO_DEVICE = {"", "-1", "NoDevFiles"}


class GpuSplit(Value):
    """This node's GPUs, and the services of the run that have GPUs of their own."""

    devices: tuple[str, ...] = ()  # as the variable that selects GPUs names them, in order
    services: tuple[ServiceSpec, ...] = ()
    variables: tuple[str, ...] = ()  # those by which this node's processes select GPUs
    rank: int | None = None  # this node's; None where the head gives it
    is_head: bool = False

    @property
    def waits_for_rank(self) -> bool:
        """Return whether only the head's reply shows which services take GPUs here."""
        return self.rank is None and any(spec.where.is_by_rank for spec in self.services)

    @property
    def fits(self) -> dict[str, int]:
        """Return how many members of each service of a group a node like this one has.

        They have what the services on every node, or on the workers, leave.
        """
        others = [s for s in self.services if s.where.includes(None, is_head=False)]
        free = len(self.devices) - sum(spec.gpus for spec in others)
        fits = {spec.name: free // spec.gpus for spec in self.services if spec.has_members}
        return {name: max(0, min(count, MOST_MEMBERS)) for name, count in fits.items()}

    def members(self, specs: Iterable[ServiceSpec]) -> tuple[ServiceSpec, ...]:
        """Return what runs of these services on a node like this one, where they run."""
        fits = self.fits
        return tuple(one for spec in specs for one in spec.members(fits.get(spec.name, 1)))

    def of_services(self, rank: int | None = None) -> dict[str, tuple[str, ...]]:
        """Return the GPUs of each service here; fewer than it asks for where they are too few."""
        free = [*self.devices]
        devices = {}
        for spec in self._here(rank):
            first = max(0, len(free) - spec.gpus)
            devices[spec.name] = tuple(free[first:])
            free = free[:first]
        return devices

    def of_job(self, rank: int | None = None) -> tuple[str, ...]:
        """Return the GPUs that are left for Ray and the job."""
        return self.devices[: self.count_for(self._own(rank), is_head=self.is_head)]

    def count_for(self, rank: int | None, *, is_head: bool) -> int:
        """Return the job's GPUs of a node with as many GPUs as this one."""
        there = self._of_rank(rank, is_head=is_head)
        return max(0, len(self.devices) - sum(spec.gpus for spec in there))

    def job_indexes(self, rank: int | None = None) -> frozenset[int] | None:
        """Return the job's GPUs by number; None if no service here has any."""
        if not self._here(rank):
            return None
        return frozenset(int(device) for device in self.of_job(rank) if device.isdecimal())

    def fault(self, rank: int | None = None) -> tuple[str, str]:
        """Return the table and key that ask for more GPUs than are here, and why; or empty."""
        own = self._own(rank)
        for spec in self.services:
            is_here = spec.where.includes(own, is_head=self.is_head)
            if is_here and self.fits.get(spec.name) == 0:
                got = f"{spec.gpus}, on a node with {len(self.devices)} GPU(s)"
                return f"[services.{spec.name}] gpus", got
        asked = 0
        for spec in self._here(rank):
            asked += spec.gpus
            if asked > len(self.devices):
                more = "" if asked == spec.gpus else f", {asked} with the services before it"
                got = f"{spec.gpus}{more}, on a node with {len(self.devices)} GPU(s)"
                table = "reward" if spec.name == REWARD else spec.name
                return f"[services.{table}] gpus", got
        return "", ""

    def job_environment(self, rank: int | None = None) -> dict[str, str]:
        """Return what shows Ray, the job and other programs only the GPUs that are left."""
        return self._selection(self.of_job(rank)) if self._here(rank) else {}

    def service_environment(self, name: str, rank: int | None = None) -> dict[str, str]:
        """Return what shows a service its own GPUs; nothing if it has none."""
        devices = self.of_services(rank).get(name)
        return {} if devices is None else self._selection(devices)

    def _selection(self, devices: tuple[str, ...]) -> dict[str, str]:
        # ROCm takes an empty selection for none given.
        nothing = "-1" if HIP in self.variables else ""
        return dict.fromkeys(self.variables, ",".join(devices) or nothing)

    def _here(self, rank: int | None) -> tuple[ServiceSpec, ...]:
        return self._of_rank(self._own(rank), is_head=self.is_head)

    def _of_rank(self, rank: int | None, *, is_head: bool) -> tuple[ServiceSpec, ...]:
        specs = (spec for spec in self.services if spec.where.includes(rank, is_head=is_head))
        return self.members(specs)

    def _own(self, rank: int | None) -> int | None:
        return rank if self.rank is None else self.rank


def split_gpus(  # noqa: PLR0913 - what a node's GPUs depend on
    services: Iterable[ServiceSpec],
    settings: Settings,
    facts: Facts,
    environ: Mapping[str, str],
    rank: int | None,
    *,
    is_head: bool,
) -> GpuSplit:
    """Return the split of this node; a selection of the user's is what is split."""
    with_gpus = tuple(spec for spec in services if spec.gpus)
    variables = device_variables(environ, facts.gpu_maker, facts.ray.version)
    chosen = chosen_devices(environ, facts.gpu_maker)
    total = gpus_of(settings, facts.gpus, environ)
    devices = tuple(map(str, range(total)))
    if chosen is not None:
        words = (word.strip() for word in chosen.split(","))
        devices = tuple(word for word in words if word not in _NO_DEVICE)[:total]
    return GpuSplit(devices, with_gpus, variables, rank, is_head)
