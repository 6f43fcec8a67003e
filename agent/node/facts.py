"""The facts about a machine, as values."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from ipaddress import ip_address
from itertools import chain
from typing import Annotated, Literal

from msgspec import Meta, field

from agent.base.text import is_ip
from agent.base.value import (
    MOST_ITEMS,
    Address,
    Addresses,
    ByName,
    Bytes,
    Count,
    Cpus,
    Difference,
    Gpus,
    Items,
    Limit,
    Port,
    Surplus,
    Timestamp,
    UserId,
    Value,
    Variables,
)
from agent.base.versions import release_of

OLDEST = (2, 40)
FIRST_WITH_HIP = (2, 45)  # the first Ray that assigns AMD GPUs by HIP_VISIBLE_DEVICES
FIRST_DEBUGPY = (1, 8)  # the oldest debugpy that Ray's distributed debugger accepts
FIRST_WITH_TOKEN = (2, 52)


def supports_token_auth(ray: str | None) -> bool:
    """Return whether Ray supports token authentication; True without Ray."""
    return ray is None or release_of(ray) >= FIRST_WITH_TOKEN


MIB = 1 << 20
_LABELED = re.compile(r"(?<!GH200 )\b(\d{1,4}) ?Gi?B\b")
"""The memory in a GPU's name; GH200 480GB counts the memory of its CPU."""
_NAMES_BY_MEMORY = {
    279: ("B300", "GB300"),
    179: ("B200", "GB200"),
    141: ("H200",),
    96: ("GH200", "H20", "PRO 6000"),
    94: ("H100 NVL",),
    80: ("H100", "H800"),
    48: ("L40S", "L40", "A40", "A6000", "RTX 6000 Ada"),
    32: ("RTX 5000 Ada", "RTX 5090"),
    24: ("RTX 4090", "RTX 3090", "A5000", "A10G", "A10", "A30", "L4"),
    20: ("A4500", "RTX 4000 Ada"),
    16: ("A4000", "T4"),
}
"""The memory in GB of GPUs whose name does not contain it, with parts of the names."""


class Folder(Value):
    """What exists at a path that should be a private folder."""

    path: str
    is_folder: bool  # False for a link or a file
    uid: UserId
    mode: Count
    strangers: Items[str] = ()  # entries of other users


class RayPython(Value):
    """A Python and its Ray."""

    executable: str
    python: str  # Python's full version, which Ray compares between nodes
    version: str | None  # Ray's version; None if it is not installed
    missing: Items[str] = ()  # missing modules of ray[default] that job submission needs
    command: Items[str] = ("ray",)  # the argv of its `ray` command
    click: str | None = None  # the version of click, which that command uses
    enum_copies_are_same: bool = True  # whether a copied enum member is the member itself
    folder: str = ""  # the folder of its `ray` package, or ''
    hub: str | None = None  # the version of huggingface_hub, which fetches models; or None
    debugpy: str | None = None  # the version of debugpy, which Ray's distributed debugger needs
    libraries: ByName[str] = field(default_factory=dict)  # versions of known libraries by name
    packages: ByName[str] = field(default_factory=dict)  # of those that may not fit each other
    built_for: ByName[str] = field(default_factory=dict)  # the torch of compiled packages

    def breaks_command_line(self) -> bool:
        """Return whether the `ray` command fails with "is not a valid Sentinel".

        Ray up to 2.52 deep-copies a command of click, which fails for an enum member on older
        Pythons. Seen on Python 3.10 with Ray 2.40, 2.49 and 2.52 and click 8.3.0 to 8.5.0.
        """
        copies = not self.enum_copies_are_same and release_of(self.version or "") < (2, 53)
        return copies and (8, 3) <= release_of(self.click or "") < (8, 5, 1)


class Package(Value):
    """How a framework is found on a Python's path; files are relative to its package's folder."""

    name: str  # of its distribution
    module: str  # the package that the job's command runs
    own_file: str = ""  # a file that only this fork has, since forks share a package name
    version_files: tuple[str, ...] = ()  # of a checkout


class Framework(Value):
    """A recipe's framework, as the job's Python finds it; '' for what is not known."""

    name: str
    folder: str = ""  # the folder that contains its package
    version: str = ""


class Mount(Value):
    """The mounted file system of a folder."""

    folder: str
    kind: str  # the type of the file system, such as ext4, nfs4 or overlay
    source: str

    @property
    def is_containers_own(self) -> bool:
        """Return whether it is lost with the container or with the machine's memory."""
        return self.kind in _OF_A_CONTAINER

    @property
    def is_shared(self) -> bool:
        """Return whether other machines may mount it, as all file systems that are not known."""
        return not self.is_containers_own and self.kind not in _OF_A_MACHINE


_OF_A_CONTAINER = {"overlay", "aufs", "fuse.fuse-overlayfs", "tmpfs", "ramfs"}
_OF_A_MACHINE = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "rootfs", "vfat", "squashfs"),
}


class TorchPython(Value):
    """The Python that has torch, for a job that torchrun starts."""

    executable: str
    version: str | None  # torch's version; None if no Python has it
    asked: Items[str] = ()  # the Pythons that were searched, if none has it


ScriptAction = Literal["start", "stop", "submit", "kill", "agent", "size", "address"]
"""What a line of a script does: `ray start`, `ray stop`, `ray job submit`, `pkill`, `pod-agent`, or
`ray.init` with a number of GPUs or CPUs, or with an address."""


class ScriptLine(Value):
    """A line of the job's script that would end the agent or its Ray, or start another one."""

    path: str
    number: Count
    text: str
    action: ScriptAction
    is_sure: bool  # False if it may not be reached


class UploadSize(Value):
    """The size in bytes of what Ray uploads of a working_dir."""

    size: int
    files: int
    largest: tuple[tuple[str, int], ...]  # its largest entries by name, the largest first
    credentials: tuple[str, ...] = ()  # paths of files that hold credentials


class Room(Value):
    """How many more processes and threads may start, by the lowest limit."""

    left: Surplus
    limit: str


class NodeVersions(Value):
    """Versions that should be equal on all nodes, besides Python, Ray and libraries."""

    agent: str = ""
    gpu_models: Items[str] = ()  # the distinct models of its GPUs, as the driver names them
    clock_ahead: Difference | None = None  # seconds ahead of the head's clock; None on the head


class Facts(Value):
    """The facts about one machine."""

    hostname: str
    interfaces: Addresses  # IP addresses by the interface that carries them, loopback included
    ray: RayPython = RayPython(sys.executable, "", None)
    """The Python with Ray, which an image may keep apart from the agent's."""
    torch: TorchPython | None = None  # set only if a launcher without Ray starts the job
    script_lines: Items[ScriptLine] = ()  # of the job's script, where this node runs it
    cpus: Cpus = 1
    machine_cpus: Cpus = 0  # CPUs of the whole machine, which Ray would use; 0 if not read
    memory: Bytes = 0
    machine_memory: Bytes = 0  # memory of the whole machine; 0 if not read
    shm: Bytes = 0
    shm_free: Bytes = 0
    temp: str = "/tmp"  # the folder for Ray's sessions: logs, sockets, spilled objects
    temp_free: Bytes = 0
    temp_total: Bytes = 0
    nofile_soft: Limit = 0
    nofile_hard: Limit = 0
    room: Room | None = None  # for processes and threads; None without a limit
    ephemeral_ports: tuple[Port, Port] = (32_768, 60_999)
    """The first and last port that the kernel uses for outgoing connections."""
    reserved_ports: Items[tuple[Port, Port]] = ()  # ranges of these that the kernel does not use
    clock: Timestamp | None = None
    variables: Variables = field(default_factory=dict)
    """Environment variables that checks read and nodes compare, without secrets."""
    gpus: Gpus = 0
    gpu_maker: Literal["", "nvidia", "amd"] = ""  # the vendor of the GPUs, or ''
    gpu_fault: str = ""  # why the driver refuses access to GPUs that have device files, or ''
    driver: Driver | None = None  # its tool's report; None if not queried, which takes seconds
    gpu_contradiction: str = ""  # which variables select GPUs in contradictory ways, or ''
    is_first_process: bool = False
    uid: UserId = 0
    default_source: Address | None = (
        None  # the source address of the default route, if there is one
    )
    taken_ports: Annotated[Mapping[Port, str], Meta(max_length=MOST_ITEMS)] | None = None
    """Ports of the run that other processes use, with the process; None if not checked."""
    program_fault: str = ""  # why the program after `--` cannot start here, or ''
    wandb_login: bool = False  # whether W&B has credentials on this machine, from `wandb login`
    model_is_here: bool = False  # whether AGENT_MODEL names a file or folder of this machine
    logs_fault: str = ""  # why AGENT_LOG_DIR cannot be written to, or ''
    ray_temp: Folder | None = None  # what exists at the path of Ray's temp dir
    disks: ByName[str] = field(default_factory=dict)
    """The disk of each `once` file of prepare steps, with equal names on nodes that share it."""
    known_names: Addresses = field(default_factory=dict)
    """Names resolved for the role or the address, with their addresses."""
    framework: Framework | None = None
    checkpoints: Mount | None = None  # the mount of the checkpoint folder, if the job has one
    checkpoints_free: Bytes | None = None
    checkpoints_fault: str = ""  # why that folder cannot be written to, or ''
    missing_inputs: ByName[str] = field(default_factory=dict)
    """Absolute paths of model and data that do not exist here, by their variables."""
    unreadable_inputs: ByName[str] = field(default_factory=dict)
    """Those that exist, and that this user may not read."""
    data_columns: ByName[bool] | None = None
    """Columns of AGENT_TRAIN_DATA, and whether each holds lists; None if not known."""
    rdma: Items[RdmaDevice] = ()
    rdma_is_open: bool = False  # whether processes here can open one; a container may not allow it
    model_bytes: Bytes = 0  # bytes of the weights of AGENT_MODEL, if it is a local folder
    node_versions: NodeVersions = field(default_factory=NodeVersions)

    @property
    def gpu_memory(self) -> int | None:
        """Return the memory in GB of the smallest GPU; None if one is not known."""
        sizes = []
        for model in self.node_versions.gpu_models:
            if labeled := _LABELED.search(model):
                sizes.append(int(labeled[1]))
                continue
            pairs = ((part, gb) for gb, parts in _NAMES_BY_MEMORY.items() for part in parts)
            known = [(len(part), gb) for part, gb in pairs if re.search(rf"\b{part}\b", model)]
            if not known:
                return None
            sizes.append(max(known)[1])
        return min(sizes, default=None)

    @property
    def job_python(self) -> str:
        """Return the Python of the job and its framework."""
        return self.ray.executable if self.torch is None else self.torch.executable

    def owns_exclusively(self, folder: Folder) -> bool:
        """Return whether a folder and all its entries belong to this user."""
        return folder.is_folder and folder.uid == self.uid and not folder.strangers

    def addresses(self) -> tuple[str, ...]:
        """Return this node's addresses except loopback."""
        return tuple(a for a in chain(*self.interfaces.values()) if not ip_address(a).is_loopback)

    def is_own(self, host: str) -> bool:
        """Return whether a name or address is this node's own."""
        if host in {self.hostname, "localhost"} or self.own_address_of(host) is not None:
            return True
        return any(ip_address(address).is_loopback for address in self.addresses_of(host))

    def is_own_name(self, host: str) -> bool:
        """Return whether it is this node's host name, in full or short."""
        return host in {self.hostname, self.hostname.partition(".")[0]}

    def own_address_of(self, host: str, hint: str | None = None) -> str | None:
        """Return this node's address that a host resolves to; the hint is for its own name."""
        own = set(self.addresses())
        return next((a for a in self.addresses_of(host, hint) if a in own), None)

    def addresses_of(self, host: str, hint: str | None = None) -> tuple[str, ...]:
        """Return the known addresses of a host; the hint is as in `own_address_of`."""
        if is_ip(host):
            return (host,)
        resolved = self.known_names.get(host, ())
        if not self.is_own_name(host):
            return resolved
        # The address to which other nodes resolve this name comes first. Debian resolves a host's
        # own name to 127.0.1.1: then the platform's address, then that of the default route.
        own = self.addresses()
        likely = (*resolved, hint, self.default_source, *own)
        return tuple(dict.fromkeys(address for address in likely if address in own))

    def interface_of(self, address: str) -> str | None:
        """Return the interface that has an address."""
        for name, addresses in self.interfaces.items():
            if address in addresses:
                return name
        return None


class DriverGpu(Value):
    """A GPU as its driver reports it."""

    index: Count
    name: str
    memory: Count  # in MiB; 0 if unknown
    errors: Count = 0  # uncorrected ECC errors since the driver was loaded


class Driver(Value):
    """The report of the GPU driver's tool, or why there is none; '' for what is not known."""

    tool: str
    gpus: Items[DriverGpu] = ()
    fault: str = ""
    version: str = ""


class RdmaDevice(Value):
    """An InfiniBand or RoCE device."""

    name: str
    link: str = ""  # `InfiniBand`, or `Ethernet` for RoCE; '' if unknown
    is_active: bool = False

    def sentence(self) -> str:
        """Return the device in words: mlx5_0 (InfiniBand, active)."""
        state = "active" if self.is_active else "no active port"
        return f"{self.name} ({', '.join(filter(None, (self.link, state)))})"


INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Names of interfaces: in NCCL's syntax, and plain lists for the others."""
STALE_ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")  # of another Ray
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
PROXIES = (*_PROXIES, *map(str.upper, _PROXIES))  # their values may hold passwords
DEBUGGER = "DEBUG_RAY"
CUDA = "CUDA_VISIBLE_DEVICES"
_PLAIN = (*INTERFACES, *STALE_ADDRESSES, DEBUGGER, CUDA, "WANDB_MODE")
COLLECTIVES = ("NCCL_", "TORCH_NCCL_", "GLOO_")  # nodes that differ may wait forever


def compared_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that checks read, those of NCCL and Gloo cut to fit a small message.

    Proxies, which may hold passwords, are only `set`.
    """
    collective = sorted(n for n in environ if n.startswith(COLLECTIVES) and n not in _PLAIN)
    return {
        **{name: environ[name] for name in _PLAIN if name in environ},
        **{name: environ[name][:200] for name in collective[:64]},
        **dict.fromkeys(sorted(name for name in PROXIES if environ.get(name)), "set"),
    }


ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"


def visible_devices(
    environ: Mapping[str, str], maker: str, ray: str | None
) -> tuple[dict[str, str], str]:
    """Turn the selection of AMD GPUs into the variable that Ray sets for its actors.

    Return the environment in the form that Ray and frameworks accept, and what is changed and why.
    """
    passed = dict(environ)
    if maker == "nvidia" and passed.pop(ROCR, None) is not None:
        why = "it means nothing to NVIDIA GPUs, and verl refuses it beside CUDA_VISIBLE_DEVICES"
        return passed, f"{ROCR} is not passed on: {why}"
    dropped = [name for name in (ROCR, CUDA) if name in environ]
    if not _assigns_by_hip(maker, ray) or not dropped or contradiction(environ, maker, ray):
        return passed, ""
    chosen = environ[dropped[0]]
    passed = {name: text for name, text in passed.items() if name not in dropped}
    why = "Ray gives AMD GPUs to its actors by it alone, and refuses or contradicts the others"
    note = f"{HIP}={chosen} stands for {' and '.join(dropped)}, not passed on: {why}"
    return {**passed, HIP: chosen}, note


def device_variables(environ: Mapping[str, str], maker: str, ray: str | None) -> tuple[str, ...]:
    """Return the variables by which a node's processes select GPUs, as `visible_devices` passes."""
    if maker != "amd":
        return (CUDA,)
    if _assigns_by_hip(maker, ray):
        return (HIP,)
    given = tuple(name for name in (HIP, ROCR, CUDA) if name in environ)
    return given or (ROCR,)  # by which an earlier Ray assigns them


def chosen_devices(environ: Mapping[str, str], maker: str) -> str | None:
    """Return the GPUs that the user has selected for this node; None for all."""
    names = (HIP, ROCR, CUDA) if maker == "amd" else (CUDA,)
    return next((environ[name] for name in names if name in environ), None)


def contradiction(environ: Mapping[str, str], maker: str, ray: str | None) -> str:
    """Return which selections of AMD GPUs differ, or ''."""
    given = {name: environ[name] for name in (HIP, ROCR, CUDA) if name in environ}
    if not _assigns_by_hip(maker, ray) or len({*given.values()}) <= 1:
        return ""
    selections = " and ".join(f"{name}={text}" for name, text in given.items())
    return f"{selections} differ"


def _assigns_by_hip(maker: str, ray: str | None) -> bool:
    return maker == "amd" and ray is not None and release_of(ray) >= FIRST_WITH_HIP
