"""Facts about this machine, as values: read once, never guessed at again."""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from agent.base.addresses import is_ip
from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.ranges import (
        Addresses,
        Bytes,
        Count,
        Cpus,
        Difference,
        Gpus,
        Limit,
        Moment,
        Port,
        Surplus,
        UserId,
        Variables,
    )
    from agent.node.driver import Driver

MIB = 1 << 20


@dataclass(frozen=True)
class Folder:
    """What lies at a path that should be a folder of our own."""

    path: str
    is_folder: bool
    """False where it is a link or a file."""
    uid: UserId
    mode: Count
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
    folder: str = ""
    """Where its `ray` package lies; '' where it has none."""
    hub: str | None = None
    """The version of huggingface_hub, which fetches models; None where it is not installed."""
    debugpy: str | None = None
    """That of debugpy, which Ray's distributed debugger and post-mortem rest on."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Versions of what a job rests on, as far as it is installed there, by name."""


@dataclass(frozen=True)
class Framework:
    """A recipe's framework, as the job's Python would find it."""

    name: str
    """As the recipe's row names it."""
    folder: str = ""
    """The folder around its package; '' where it has none."""
    version: str = ""
    """'' where it does not tell."""


@dataclass(frozen=True)
class Mount:
    """What a folder lies on."""

    folder: str
    kind: str
    """The file system's, such as ext4, nfs4 or overlay."""
    source: str

    @property
    def is_containers_own(self) -> bool:
        """Say whether it goes when the container, or the machine's memory, does."""
        return self.kind in _OF_A_CONTAINER

    @property
    def is_shared(self) -> bool:
        """Say whether other machines can have the same one."""
        over_a_network = self.kind in _NETWORK or self.kind.startswith("fuse.")
        return over_a_network and not self.is_containers_own


_OF_A_CONTAINER = {"overlay", "aufs", "fuse.fuse-overlayfs", "tmpfs", "ramfs"}
_NETWORK = {
    *("nfs", "nfs4", "lustre", "ceph", "gpfs", "beegfs", "cifs", "smb3", "9p", "virtiofs", "afs"),
    *("wekafs", "ocfs2", "gfs2", "fuse"),
}


@dataclass(frozen=True)
class TorchPython:
    """The Python that has torch, for a job that torchrun starts."""

    executable: str
    version: str | None
    """torch's own version; None where no Python has it."""
    asked: tuple[str, ...] = ()
    """The Pythons that were asked, where none has it."""


@dataclass(frozen=True)
class Room:
    """How many more processes and threads there may be, by the tightest of all limits."""

    left: Surplus
    limit: str
    """Which limit that is, with its number."""


@dataclass(frozen=True)
class Outfit:
    """What should be the same on all nodes of a run, beside Ray's Python and what it has."""

    agent: str = ""
    """The agent's own version."""
    image: str = ""
    """What the container was made from, where anything tells."""
    gpu_models: tuple[str, ...] = ()
    """The models of its GPUs, each once, as their driver names them."""
    clock_ahead: Difference | None = None
    """Seconds by which its clock is ahead of the head's, as its hello showed; None on the head."""


@dataclass(frozen=True)
class Facts:
    """What this machine is and allows."""

    hostname: str
    interfaces: Addresses
    """IP addresses by the interface that carries them, loopback included."""
    ray: RayPython = RayPython(sys.executable, "", None)
    """The Python that has Ray, and that Ray: our own, but for an image that keeps them apart."""
    torch: TorchPython | None = None
    """Looked for only where torchrun is to start the job."""
    cpus: Cpus = 1
    machine_cpus: Cpus = 0
    """Those of the whole machine, which Ray would take for ours; 0 where nobody looked."""
    memory: Bytes = 0
    machine_memory: Bytes = 0
    """The whole machine's, likewise."""
    shm: Bytes = 0
    shm_free: Bytes = 0
    temp: str = "/tmp"
    """The disk on which Ray keeps its sessions: logs, sockets, what it spills and unpacks."""
    temp_free: Bytes = 0
    temp_total: Bytes = 0
    temp_inodes: Bytes | None = None
    """How many more files that disk takes; None where it does not count them."""
    nofile_soft: Limit = 0
    nofile_hard: Limit = 0
    room: Room | None = None
    """For processes and threads; None where nothing limits them."""
    ephemeral_ports: tuple[Port, Port] = (32_768, 60_999)
    """The first and the last port that the kernel gives to outgoing connections."""
    reserved_ports: tuple[tuple[Port, Port], ...] = ()
    """Ranges within, which it leaves out."""
    clock: Moment | None = None
    """Seconds since 1970, as this machine has it; None where nobody looked."""
    variables: Variables = field(default_factory=dict)
    """Of the environment what checks weigh and nodes compare: no secret is among it."""
    gpus: Gpus = 0
    gpu_maker: Literal["", "nvidia", "amd"] = ""
    """Whose GPUs they are; '' where none is seen."""
    gpu_fault: str = ""
    """Why the GPUs' driver lets nobody in, though their device files are here."""
    driver: Driver | None = None
    """What its tool says of the GPUs; None where it was not asked, since that takes seconds."""
    gpu_contradiction: str = ""
    """Which variables choose GPUs in ways that do not go together; '' where none do."""
    is_first_process: bool = False
    uid: UserId = 0
    default_source: str | None = None
    """The address with which this node leaves by its default route, if it has one."""
    taken_ports: Mapping[Port, str] | None = None
    """Ports of ours on which somebody listens already, and who; None where nobody looked."""
    program_fault: str = ""
    """Why the program after `--` cannot be started from here, with its name; '' where it can."""
    wandb_login: bool = False
    """Whether W&B finds credentials on this machine, as `wandb login` leaves them."""
    model_is_here: bool = False
    """Whether AGENT_MODEL names a file or folder of this machine."""
    ray_temp: Folder | None = None
    """What is there already where Ray's temp dir is to be kept."""
    disks: Mapping[str, str] = field(default_factory=dict)
    """Which disk each path lies on that prepare steps mark, named alike where nodes share it."""
    known_names: Addresses = field(default_factory=dict)
    """Names that had to be looked up to know the role or the address, and what was found."""
    framework: Framework | None = None
    """The framework of the recipe that was asked for, where it has one."""
    checkpoints: Mount | None = None
    """What the folder for checkpoints lies on, where the job has one."""
    checkpoints_free: Bytes | None = None
    """Bytes that are free there; None where nobody looked."""
    model_bytes: Bytes = 0
    """What the weights of AGENT_MODEL take, where it is a folder of this machine."""
    outfit: Outfit = field(default_factory=Outfit)
    """What the nodes of a run compare."""

    @property
    def job_python(self) -> str:
        """Return the Python in which the job and its framework live."""
        return self.ray.executable if self.torch is None else self.torch.executable

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
