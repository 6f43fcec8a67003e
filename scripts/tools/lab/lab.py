"""The lab: pods, their network and their DNS, created on entry and removed at exit."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import re
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tools.lab.dns import Dns
from tools.lab.errors import LabError
from tools.lab.mounts import needed_paths
from tools.lab.network import Network, Shape, mount_points
from tools.lab.pod import Pod

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self

STATE_DIR = Path("/tmp")  # each pod mounts its own folders over it, so that pods do not see it
PREFIX = "podlab"
OWNER = "owner"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MOST_PODS = 100
LONGEST_INTERFACE = 15

_numbers = itertools.count(1)


def start_time(pid: int) -> str:
    """Return a process's start time in kernel ticks, which with the PID identifies it."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[19]


def checked_names(pods: int, names: Sequence[str] | None) -> list[str]:
    """Return the pods' names, or raise LabError for invalid host names."""
    chosen = list(names) if names is not None else [f"pod{i}" for i in range(pods)]
    if not 1 <= len(chosen) <= MOST_PODS:
        raise LabError(f"a lab has 1 to {MOST_PODS} pods, not {len(chosen)}")
    wrong = [name for name in chosen if not NAME.fullmatch(name)]
    if wrong:
        raise LabError(f"not a host name (a-z, 0-9 and -): {', '.join(map(repr, wrong))}")
    if len(set(chosen)) < len(chosen):
        raise LabError(f"pods' names must differ: {', '.join(chosen)}")
    return chosen


def checked_shape(shape: Shape) -> Shape:
    """Return the network's shape, or raise LabError for invalid interface names."""
    names = (shape.interface, shape.decoy)
    if len({*names, "lo"}) < len(names) + 1 or any(len(n) > LONGEST_INTERFACE for n in names):
        raise LabError(f"interfaces must differ and have up to 15 characters: {', '.join(names)}")
    return shape


class Lab:
    """N pods on this machine, for the duration of a with block; needs root (see missing())."""

    def __init__(  # noqa: PLR0913 - a lab is described once, by keyword
        self,
        pods: int = 3,
        names: Sequence[str] | None = None,
        *,
        interface: str = "podnet1",
        decoy: str = "eth0",
        subnet: str = "10.77.0",
        decoy_subnet: str = "172.31.250",
        domain: str = "runpod.internal",
        unpublished: Collection[str] = (),
        shm: str = "2g",
        share: Iterable[Path] = (),
        log_dir: Path | None = None,
    ) -> None:
        chosen = checked_names(pods, names)
        unknown = sorted(set(unpublished) - set(chosen))
        if unknown:
            raise LabError(f"unpublished names no pod of this lab: {', '.join(unknown)}")
        shape = checked_shape(Shape(interface, decoy, subnet, decoy_subnet))
        self._creator = os.getpid()
        self.id = f"{PREFIX}-{self._creator}-{next(_numbers)}"
        self.folder = STATE_DIR / self.id
        self.domain = domain
        self._logs = log_dir or self.folder / "logs"
        self._unpublished = frozenset(unpublished)
        self._network = Network(self.id, chosen, shape)
        self._dns = Dns(self._network.hub, shape.gateway, domain, self.folder)
        needed = needed_paths(share)
        self.pods = [
            Pod(
                port=port,
                network=self._network,
                dns=self._dns,
                folder=self.folder / "pods" / str(port.index),
                logs=self._logs,
                shm=shm,
                needed=needed,
            )
            for port in self._network.ports
        ]

    def open(self) -> None:
        """Make everything, or, on a failure, nothing."""
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError:  # left by a dead lab, whose creator had our PID
            raise LabError(
                f"{self.folder} is left over: remove it by `scripts/lab clean`"
            ) from None
        atexit.register(self.close)
        try:
            (self.folder / OWNER).write_text(start_time(self._creator))
            self._logs.mkdir(parents=True, exist_ok=True)
            self._network.up()
            for pod in self.pods:
                pod.prepare()
            names = {pod.name: pod.ip for pod in self.pods if pod.name not in self._unpublished}
            self._dns.up(names)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop and remove everything; can be called again, also after an interruption."""
        if os.getpid() != self._creator:
            return  # a forked child of ours, at its exit
        for pod in self.pods:
            for container in pod.containers:
                # a signal to all first, so that they end at the same time
                container.signal(signal.SIGKILL)
        forget = functools.partial(remove_folder, self.folder)
        steps: list[Callable[[], None]] = [pod.close for pod in self.pods]
        steps += [self._dns.down, self._network.down, forget]
        problems = [problem for step in steps if (problem := _problem_of(step))]
        if problems:
            raise LabError(f"{self.id} is not wholly removed: {'; '.join(problems)}")
        atexit.unregister(self.close)

    def publish(self, name: str, ip: str) -> None:
        """Add this name (and name.domain, if it has no dot) to DNS; takes effect on return."""
        self._dns.publish(name, ip)

    def unpublish(self, name: str) -> None:
        """Remove the name from DNS; takes effect on return."""
        self._dns.unpublish(name)

    def dns(self, *, answering: bool) -> None:
        """Make the DNS server silent, so that lookups time out; or let it answer again."""
        self._dns.answer(answering=answering)

    def __getitem__(self, name: str) -> Pod:
        """Return the pod of that name."""
        return next(pod for pod in self.pods if pod.name == name)

    def __iter__(self) -> Iterator[Pod]:
        return iter(self.pods)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _problem_of(step: Callable[[], None]) -> str | None:
    """Run one step of the removal; a failure must not prevent the other steps."""
    try:
        step()
    except (LabError, OSError) as problem:
        return str(problem)
    return None


def remove_folder(folder: Path) -> None:
    """Remove a lab's folder, unless a mount in it leads to other files."""
    inside = [point for point in mount_points() if point.startswith(f"{folder}/")]
    if inside:
        raise LabError(f"{folder} is not removed: mounted in it are {', '.join(inside)}")
    shutil.rmtree(folder, ignore_errors=True)
