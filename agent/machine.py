"""Facts about this machine: read once, cheap, never guessed at again."""

from __future__ import annotations

import ipaddress
import os
import re
import resource
import shutil
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.ray_python import RayPython

MIB = 1 << 20


@dataclass(frozen=True)
class Facts:
    """What this machine is and allows."""

    hostname: str
    interfaces: Mapping[str, tuple[str, ...]]
    """IP addresses by the interface that carries them, loopback included."""
    ray_python: str = sys.executable
    """The Python that has Ray: our own, but for an image where the two are kept apart."""
    ray_command: tuple[str, ...] = ("ray",)
    """How the `ray` of that Python is run."""
    python: str = ""
    ray: str | None = None
    ray_missing: tuple[str, ...] = ()
    """Modules of ray[default] that are not installed."""
    click: str | None = None
    """The version of click, with which Ray's command line is written."""
    enums_copy: bool = True
    """Whether this Python's deep copy of an enum's member is that member; 3.10 makes a new one."""
    cpus: int = 1
    memory: int = 0
    shm: int = 0
    shm_free: int = 0
    temp_free: int = 0
    nofile_soft: int = 0
    nofile_hard: int = 0
    gpus: int = 0
    is_first_process: bool = False
    uid: int = 0
    default_source: str | None = None
    """The address with which this node leaves by its default route, if it has one."""
    taken_ports: Mapping[int, str] | None = None
    """Ports of ours on which somebody listens already, and who; None where nobody looked."""
    known_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names that had to be looked up to know the role or the address, and what was found."""

    def addresses(self) -> tuple[str, ...]:
        """Return this node's addresses but loopback's."""
        everything = (a for found in self.interfaces.values() for a in found)
        return tuple(a for a in everything if not ipaddress.ip_address(a).is_loopback)

    def knows(self, host: str) -> bool:
        """Say whether it can be told whose `host` is."""
        return bool(self._addresses_of(host))

    def is_own(self, host: str) -> bool:
        """Say whether a name or address is this node's own."""
        looped = any(ipaddress.ip_address(a).is_loopback for a in self._addresses_of(host))
        return (
            host in {self.hostname, "localhost"} or looped or self.own_address_of(host) is not None
        )

    def is_own_name(self, host: str) -> bool:
        """Say whether it is this node's host name; schedulers list short ones."""
        return host in {self.hostname, self.hostname.partition(".")[0]}

    def own_address_of(self, host: str, hint: str | None = None) -> str | None:
        """Return the address of this node that a name or address stands for, if it is one.

        The hint is for this node's own name where the resolver is of no use.
        """
        mine = set(self.addresses())
        return next((a for a in self._addresses_of(host, hint) if a in mine), None)

    def _addresses_of(self, host: str, hint: str | None = None) -> tuple[str, ...]:
        if is_ip(host):
            return (host,)
        found = self.known_names.get(host, ())
        if not self.is_own_name(host):
            return found
        # What others find under our name comes first. Debian gives a host its own name as
        # 127.0.1.1: then what the platform saw, then what the default route leaves with.
        mine = self.addresses()
        likely = (*found, hint, self.default_source, *mine)
        return tuple(dict.fromkeys(a for a in likely if a in mine))

    def interface_of(self, address: str) -> str | None:
        """Name the interface that carries an address."""
        return next((name for name, found in self.interfaces.items() if address in found), None)


def is_ip(text: str) -> bool:
    """Say whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Say whether an address is routable on the internet."""
    return ipaddress.ip_address(address).is_global


def gather(
    known_names: Mapping[str, tuple[str, ...]], ray: RayPython, *, is_first_process: bool
) -> Facts:
    """Look at this machine; takes a few milliseconds and starts nothing."""
    shm = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Facts(
        hostname=socket.gethostname(),
        interfaces=_interfaces(),
        ray_python=ray.executable,
        ray_command=ray.command,
        python=ray.python,
        ray=ray.ray,
        ray_missing=ray.missing,
        click=ray.click,
        enums_copy=ray.enums_copy,
        cpus=_cpus(Path("/sys/fs/cgroup")),
        memory=_memory(Path("/sys/fs/cgroup")),
        shm=shm.total if shm else 0,
        shm_free=shm.free if shm else 0,
        temp_free=shutil.disk_usage("/tmp").free,
        nofile_soft=soft,
        nofile_hard=hard,
        gpus=_gpus(),
        is_first_process=is_first_process,
        uid=os.getuid(),
        default_source=source_towards("192.0.2.1"),  # a test network: nobody is asked, none is sent
        known_names=known_names,
    )


def source_towards(address: str) -> str | None:
    """Return the address with which this node reaches another; no packet is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def taken_ports(ports: Iterable[int]) -> dict[int, str]:
    """Return the ports on which somebody listens already, and who, where that can be told."""
    found = {}
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                found[port] = _listener_on(port)
    return found


def _listener_on(port: int) -> str:
    try:
        listeners = [c for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port]
        pid = next(c.pid for c in listeners if c.pid and c.status == psutil.CONN_LISTEN)
        return f"{psutil.Process(pid).name()} (pid {pid})"
    except (psutil.Error, StopIteration, OSError):
        return "another process"


def _interfaces() -> dict[str, tuple[str, ...]]:
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: tuple(a.address.partition("%")[0] for a in found if a.family in families)
        for name, found in psutil.net_if_addrs().items()
    }


def _cpus(cgroup: Path) -> int:
    """Count the CPUs that this pod may use: Ray itself misses a container's quota and cpuset."""
    limits = [float(len(os.sched_getaffinity(0)))]
    with suppress(OSError, ValueError):
        limits.append(float(_count_of_list((cgroup / "cpuset.cpus.effective").read_text())))
    with suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text().split()
        limits.append(int(quota) / int(period))
    with suppress(OSError, ValueError):
        quota_v1 = int((cgroup / "cpu/cpu.cfs_quota_us").read_text())
        if quota_v1 > 0:
            limits.append(quota_v1 / int((cgroup / "cpu/cpu.cfs_period_us").read_text()))
    return max(1, int(min(limits)))


def _count_of_list(text: str) -> int:
    """Count a kernel list such as `0-3,8`."""
    total = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _memory(cgroup: Path) -> int:
    limits = [int(psutil.virtual_memory().total)]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int((cgroup / name).read_text()))
    return min(limits)


def _gpus() -> int:
    """Count the GPUs whose device files this container got."""
    dev = Path("/dev")
    nvidia = [p for p in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    if nvidia:
        return len(nvidia)
    return len(list((dev / "dri").glob("renderD*"))) if (dev / "kfd").exists() else 0
