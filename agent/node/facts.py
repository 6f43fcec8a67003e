"""Facts about this machine, as values: read once, never guessed at again."""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import field
from typing import TYPE_CHECKING

from agent.base.addresses import is_ip
from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20


@dataclass(frozen=True)
class Folder:
    """What lies at a path that should be a folder of our own."""

    path: str
    is_folder: bool
    """False where it is a link or a file."""
    uid: int
    mode: int
    strangers: tuple[str, ...] = ()
    """What others have put into it."""


@dataclass(frozen=True)
class RayPython:
    """A Python, and the Ray that it has."""

    executable: str
    python: str
    """Python's full version, which Ray compares between nodes."""
    version: str | None
    """Ray's own version; None where it has none."""
    missing: tuple[str, ...] = ()
    """Modules of ray[default] that a job submission cannot do without, and that are not there."""
    command: tuple[str, ...] = ("ray",)
    """How its `ray` is run, wherever PATH points."""
    click: str | None = None
    """The version of click, with which that command is written."""
    enum_copies_are_same: bool = True
    """Whether this Python copies an enum's member as itself."""


@dataclass(frozen=True)
class Facts:
    """What this machine is and allows."""

    hostname: str
    interfaces: Mapping[str, tuple[str, ...]]
    """IP addresses by the interface that carries them, loopback included."""
    ray: RayPython = RayPython(sys.executable, "", None)
    """The Python that has Ray, and that Ray: our own, but for an image that keeps them apart."""
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
    program_fault: str = ""
    """Why the program after `--` cannot be started from here, with its name; '' where it can."""
    wandb_login: bool = False
    """Whether W&B finds credentials on this machine, as `wandb login` leaves them."""
    ray_temp: Folder | None = None
    """What is there already where Ray's temp dir is to be kept."""
    known_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names that had to be looked up to know the role or the address, and what was found."""

    def owns_wholly(self, folder: Folder) -> bool:
        """Say whether a folder is a real one of ours, in which nobody else has left anything."""
        return folder.is_folder and folder.uid == self.uid and not folder.strangers

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
