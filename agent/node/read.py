"""Reads the facts of this machine, and finds the Python with Ray, torch or a framework."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import psutil
from msgspec.structs import replace

from agent import __version__
from agent.base.text import own_command
from agent.base.typed import convert, decode
from agent.base.value import MOST_ITEMS
from agent.node import limits
from agent.node.facts import (
    Facts,
    Folder,
    Framework,
    Mount,
    NodeVersions,
    Package,
    RayPython,
    RdmaDevice,
    TorchPython,
    compared_variables,
    contradiction,
)
from agent.node.python_facts import TORCH, framework_facts, of_command, ray_facts, text_of
from agent.settings.jobs import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

# For another Python to report its packages: a network disk is slow at first.
_PYTHON_ANSWERS = 30.0


T = TypeVar("T")


def gpu_models(maker: str, nvidia: Path, drm: Path) -> tuple[str, ...]:
    """Return the models of this node's GPUs from the driver's files; AMD's with their memory."""
    models: set[str] = set()
    if maker == "nvidia":
        for file in nvidia.glob("*/information"):
            lines = text_of(file).splitlines()
            models |= {line[6:].strip() for line in lines if line.startswith("Model:")}
    elif maker == "amd":
        for device in drm.glob("renderD*/device"):
            memory = text_of(device / "mem_info_vram_total").strip()
            if memory.isdigit():
                name = text_of(device / "product_name").strip() or "AMD"
                models.add(f"{name} {round(int(memory) / (1 << 30))} GiB")
    return tuple(sorted(models))


def rdma_devices(folder: Path = Path("/sys/class/infiniband")) -> tuple[RdmaDevice, ...]:
    """Return the InfiniBand and RoCE devices of this machine."""
    devices = []
    for device in sorted(folder.glob("*"))[:MOST_ITEMS]:
        ports = sorted(device.glob("ports/*"))
        links = filter(None, (text_of(port / "link_layer").strip() for port in ports))
        is_active = any("ACTIVE" in text_of(port / "state") for port in ports)
        devices.append(RdmaDevice(device.name, next(links, ""), is_active))
    return tuple(devices)


_INTERPRETER = re.compile(r"python[\d.]*|bash|sh")


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_BUILTINS = {"cd", "export", "source", ".", "set", "ulimit", "exec"}
"""Words that a shell itself understands, and with which people begin a command."""


def shell_hint(program: str) -> str:
    """Return how to give a first word that only a shell understands, or ''."""
    if any(sign.isspace() for sign in program):
        return "give its words one by one, or a shell: -- bash -c '…'"
    if _ASSIGNMENT.match(program):
        return f"no shell reads it: -- env {program} COMMAND"
    if program in _BUILTINS:
        return "no shell reads it: -- bash -c '…'"
    return ""


def command_fault(command: Sequence[str] | None, path: str | None) -> str:
    """Return why the job's program or script cannot start, or ''; no placeholder is checked."""
    program, script, *_ = (*(command or ()), "", "")
    if command is None or "{" in program:
        return ""

    # Is it a program?
    if shutil.which(program, path=path) is None:
        fault = "does not exist" if "/" in program else "is no program on PATH"
        if "/" in program and Path(program).exists():
            fault = "may not be executed: run `chmod +x`, or name its interpreter before it"
        elif hint := shell_hint(program):
            fault += f": {hint}"
        return f"{program!r} {fault}"

    # Is the interpreter's script there?
    is_script = _INTERPRETER.fullmatch(Path(program).name) and script.endswith((".py", ".sh"))
    if is_script and "{" not in script and not Path(script).exists():
        return f"{script!r} does not exist (in {Path.cwd()})"
    return ""


def has_login(environ: Mapping[str, str]) -> bool:
    """Return whether a netrc file has a key of W&B; an unreadable file counts as none."""
    file = Path(environ.get("NETRC") or Path(environ.get("HOME") or "/", ".netrc"))
    try:  # a pipe would block
        entry = netrc(str(file)).hosts.get("api.wandb.ai") if file.is_file() else None
    except (OSError, ValueError, NetrcParseError):
        return False
    return entry is not None and bool(entry[2])


_SYS = Path("/proc/sys/net/ipv4")


def ephemeral_range(sys: Path = _SYS) -> tuple[int, int]:
    """Return the first and last port of outgoing connections; Linux's default without /proc."""
    words = text_of(sys / "ip_local_port_range").split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return 32_768, 60_999
    return int(words[0]), int(words[1])


def reserved_ranges(sys: Path = _SYS) -> tuple[tuple[int, int], ...]:
    """Return the port ranges that the kernel does not use for outgoing connections."""
    with suppress(ValueError):
        parts = text_of(sys / "ip_local_reserved_ports").strip().split(",")  # `0-3,8`
        pairs = (part.partition("-") for part in parts)
        return tuple((int(first), int(last or first)) for first, _, last in pairs)
    return ()


def gather(  # noqa: PLR0913 - all inputs of the facts
    known_names: Mapping[str, tuple[str, ...]],
    ray: RayPython,
    environ: Mapping[str, str],
    command: Sequence[str] | None,
    *,
    is_first_process: bool,
    temp: str,
) -> Facts:
    """Read the facts of this machine; takes a few milliseconds and starts nothing."""
    shm = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    soft, hard = limits.open_files()
    disk = shutil.disk_usage(existing_parent(Path(temp)))  # Windows has no /tmp
    machine_memory = int(psutil.virtual_memory().total)
    maker, gpus = gpus_of(Path("/dev"))
    models = gpu_models(maker, Path("/proc/driver/nvidia/gpus"), Path("/sys/class/drm"))
    verbs = Path("/dev/infiniband").glob("uverbs*")

    return Facts(
        hostname=socket.gethostname(),
        interfaces=interfaces(),
        ray=ray,
        cpus=limits.cpus(),
        machine_cpus=os.cpu_count() or 0,
        memory=limits.memory(machine_memory),
        machine_memory=machine_memory,
        shm=shm.total if shm else 0,
        shm_free=shm.free if shm else 0,
        temp=temp,
        temp_free=disk.free,
        temp_total=disk.total,
        nofile_soft=soft,
        nofile_hard=hard,
        room=limits.process_room(os.getuid()),
        ephemeral_ports=ephemeral_range(),
        reserved_ports=reserved_ranges(),
        clock=time.time(),
        variables=compared_variables(environ),
        gpus=len(gpus),
        gpu_maker=maker,
        gpu_fault=gpu_fault(Path("/dev"), maker),
        gpu_contradiction=contradiction(environ, maker, ray.version),
        is_first_process=is_first_process,
        uid=os.getuid(),
        default_source=source_towards("192.0.2.1"),  # a test network; no packet is sent
        program_fault=command_fault(command, environ.get("PATH")),
        wandb_login=has_login(environ),
        rdma=rdma_devices(),
        rdma_is_open=any(os.access(device, os.R_OK | os.W_OK) for device in verbs),
        known_names=known_names,
        node_versions=NodeVersions(__version__, models),
    )


def read_folder(path: str) -> Folder | None:
    """Return what exists at a path, without following a link; None if nothing does."""
    try:
        status = Path(path).lstat()
    except OSError:
        return None
    strangers: list[str] = []
    with suppress(OSError):  # an unreadable one belongs to another user
        inside = [(entry.name, entry.lstat().st_uid) for entry in Path(path).iterdir()]
        strangers = sorted(name for name, uid in inside if uid != status.st_uid)
    return Folder(
        path,
        is_folder=stat.S_ISDIR(status.st_mode),
        uid=status.st_uid,
        mode=stat.S_IMODE(status.st_mode),
        strangers=tuple(strangers),
    )


def gpus_of(dev: Path) -> tuple[Literal["", "nvidia", "amd"], list[Path]]:
    """Return the vendor and the device files of this container's GPUs."""
    nvidia = [file for file in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", file.name)]
    if nvidia:
        return "nvidia", nvidia
    if (dev / "kfd").exists():
        amd = list((dev / "dri").glob("renderD*"))
        if amd:
            return "amd", amd
    return "", []


def gpu_fault(dev: Path, maker: str) -> str:
    """Return why the driver refuses access, as in a container that lost its GPUs, or ''."""
    if not maker:
        return ""
    device = dev / "nvidiactl" if maker == "nvidia" else dev / "kfd"  # opening it wakes no GPU
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return f"{device}: {(error.strerror or str(error)).lower()}"
    return ""


def source_towards(address: str) -> str | None:
    """Return the source address of the route to another node; no packet is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_bindable(address: str) -> bool:
    """Return whether a connection can be opened from an address of this node."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return address not in {"", "0.0.0.0", "::"}  # noqa: S104 - compared


def taken_ports(ports: Iterable[int], leaving: Collection[int] = ()) -> dict[int, str]:
    """Return the ports in use, each with the process that listens, if known.

    Ports of the processes `leaving`, by their pids, are left out.
    """
    taken = {}
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                pid = _listener_on(port)
                if pid not in leaving:
                    taken[port] = _process_text(pid)
    return taken


def holder_of(port: int) -> str:
    """Return the process that listens on a port, as far as it is known."""
    return _process_text(_listener_on(port))


def _listener_on(port: int) -> int | None:
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            is_there = connection.laddr and connection.laddr.port == port
            if is_there and connection.pid and connection.status == psutil.CONN_LISTEN:
                return int(connection.pid)
    return None


def _process_text(pid: int | None) -> str:
    with suppress(psutil.Error, OSError):
        if pid is not None:
            return f"{psutil.Process(pid).name()} (pid {pid})"
    return "another process"


def interfaces() -> dict[str, tuple[str, ...]]:
    """Return the IP addresses of every interface, loopback included."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: tuple(
            entry.address.partition("%")[0] for entry in addresses if entry.family in families
        )
        for name, addresses in psutil.net_if_addrs().items()
    }


def disk_of(path: str) -> str:
    """Return a name for the disk of a path that is equal on all nodes that may share it.

    Equal names do not prove a shared disk: such nodes only take turns, which costs time but no
    data. A network file system is named by its type only, since one server has many names.
    """
    mount = mount_of(str(existing_parent(Path(path).parent)))
    boot = text_of(Path("/proc/sys/kernel/random/boot_id")).strip()
    if mount is None or not boot:
        return "?"
    if mount.is_shared:
        return mount.kind
    return f"{boot} {mount.source}"


def free_at(folder: str) -> int | None:
    """Return the free bytes on the disk of a folder, which need not exist; None if unknown."""
    with suppress(OSError):
        return shutil.disk_usage(existing_parent(Path(folder))).free
    return None


_OF_KERNEL = {"proc", "sysfs", "cgroup", "cgroup2"}


def why_no_folder(path: str) -> str:
    """Return why this user cannot write to a folder, which need not exist; '' if it seems so."""
    with suppress(OSError):
        place = existing_parent(Path(path))
        mount = mount_of(str(place))
        if not place.is_dir():
            return f"{place} is a file, not a folder"
        if mount is not None and mount.kind in _OF_KERNEL:
            return f"{mount.folder} is a file system of the kernel ({mount.kind}), which keeps none"
        if not os.access(place, os.W_OK | os.X_OK):
            return f"{place} may not be written to by the user of this agent"
    return ""


def is_missing(path: str) -> bool:
    """Return whether nothing has this absolute path; False if it cannot be known."""
    with suppress(OSError, ValueError):
        return path.startswith("/") and not set(path) & set("*?[,") and not Path(path).exists()
    return False


def is_unreadable(path: str) -> bool:
    """Return whether this user may not read what has this absolute path."""
    if not path.startswith("/"):
        return False
    try:
        _open_briefly(path)
        if Path(path).is_dir():
            _open_briefly(f"{path}/.")  # needs the permission to open what is in it
    except PermissionError:
        return True
    except (OSError, ValueError):  # it does not exist, or is a pattern of several files
        return False
    return False


def _open_briefly(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))


def weights_in(model: str | None) -> int:
    """Return the bytes of a model's weights if it is a local folder, else 0."""
    folder = Path(model or "/dev/null")
    with suppress(OSError):
        for pattern in ("*.safetensors", "*.bin", "*.pt", "*.pth"):  # one format: some have two
            if size := sum(file.stat().st_size for file in folder.glob(pattern)):
                return size
    return 0


def model_config(
    model: str, environ: Mapping[str, str], revision: str | None = None
) -> Mapping[str, object] | None:
    """Return the `config.json` of a model, a local folder or in the hub's cache; None without."""
    for folder in filter(None, (Path(model), cached_model(model, environ, revision))):
        with suppress(OSError, ValueError):  # ValueError: not JSON, or a zero byte in the path
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            return config if isinstance(config, dict) else None
    return None


def cached_model(
    model: str, environ: Mapping[str, str], revision: str | None = None
) -> Path | None:
    """Return the folder of a model's revision in the hub's cache, named by its commit, or None."""
    folder = hub_folder(model, environ)

    # Which commit is the revision?
    commit = revision or "main"
    with suppress(OSError, ValueError):  # ValueError: not ASCII, or a zero byte in the path
        commit = (folder / "refs" / commit).read_text(encoding="ascii").strip()
    snapshot = folder / "snapshots" / commit
    return snapshot if os.path.isdir(snapshot) else None  # noqa: PTH112 - False for a zero byte, too


def hub_folder(model: str, environ: Mapping[str, str]) -> Path:
    """Return the folder that a model has in the hub's cache, whether it exists or not."""
    home = hub_home(environ)
    cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(cache).expanduser() / f"models--{model.replace('/', '--')}"


def hub_home(environ: Mapping[str, str]) -> str:
    """Return the hub's folder, as its own library reads the variables."""
    caches = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME') or '/root'}/.cache"
    return environ.get("HF_HOME") or f"{caches}/huggingface"


def existing_parent(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    candidates = (folder, *folder.parents)
    return next((candidate for candidate in candidates if candidate.exists()), Path("/"))


def mount_of(folder: str) -> Mount | None:
    """Return the mount of a folder, which need not exist; None if unknown."""
    place = Path(os.path.realpath(folder))
    above = {str(place), *map(str, place.parents)}
    with suppress(OSError, ValueError):  # ValueError: there is none
        mounts = reversed(psutil.disk_partitions(all=True))  # a later one at one place is on top
        around = [mount for mount in mounts if mount.mountpoint in above]
        deepest = max(around, key=lambda mount: len(mount.mountpoint))
        return Mount(deepest.mountpoint, deepest.fstype, deepest.device)
    return None


_LONGEST_LINE = 1 << 24
_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_PARQUET_QUESTION = """
import json, sys
from pyarrow import parquet, types
is_list = lambda kind: types.is_list(kind) or types.is_large_list(kind)
print(json.dumps({one.name: is_list(one.type) for one in parquet.read_schema(sys.argv[1])}))
"""


def columns_of(data: str, python: str) -> Mapping[str, bool] | None:
    """Return the columns of a file, or of the first file in a folder; None if not known.

    A column is True if it holds lists, such as the messages of a chat. A framework fails on a
    missing one only once all models are loaded. The job's Python reads parquet, by its pyarrow.
    """
    path = Path(data)

    # The framework reports what it cannot read, and content that does not match its suffix.
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        if path.is_dir():
            path = min(file for file in path.iterdir() if file.suffix in _SUFFIXES)
        if not path.is_file() or path.suffix not in _SUFFIXES:
            return None

        if path.suffix == ".parquet":
            argv = [python, "-c", _PARQUET_QUESTION, str(path)]
            return _answer(argv, f"{python}, which may have pyarrow,", dict[str, bool])
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline(_LONGEST_LINE)
        if path.suffix == ".csv":
            return dict.fromkeys(next(csv.reader([first]), []), False) or None
        fields = json.loads(first).items()
        return {name: isinstance(value, list) for name, value in fields} or None
    return None


RECORD = "ray-python"
STARTED_BY = "started-by"
"""Files in our virtual environment that name a Python: the one with Ray, by the image's build, and
the one that unpacked it, by the one file."""


def find_ray(path: str | None) -> RayPython:
    """Find the Python with Ray: this one, else the recorded, that of `ray`, the one file's."""
    here = convert(ray_facts(FRAMEWORKS), RayPython)
    if here.version is not None:
        return here
    other = _recorded(RECORD) or of_command("ray", path) or _recorded(STARTED_BY)
    if other is None or other == sys.executable:
        return here
    return ask_python(other)


def _recorded(name: str) -> str | None:
    return text_of(Path(sys.prefix, name)).strip() or None


def ask_python(executable: str) -> RayPython:
    """Return the facts of another Python."""
    argv = own_command(executable, "ray-facts", *FRAMEWORKS)
    facts = _answer(argv, f"{executable}, which has Ray,", RayPython)
    return replace(facts or RayPython("", "does not run", None), executable=executable)


def _answer(argv: list[str], what: str, kind: type[T]) -> T | None:
    """Run a program of the agent and return the JSON of its last line; None if it fails."""
    try:
        with limits.starting(what):
            ended = subprocess.run(
                argv, capture_output=True, text=True, timeout=_PYTHON_ANSWERS, check=True
            )
        return decode(ended.stdout.splitlines()[-1], kind)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


_TORCH = Package(TORCH, TORCH, own_file="torch/distributed")


def find_torch(path: str | None, named: str | None) -> TorchPython:
    """Find the Python with torch: that of the job's command, else of `torchrun`, else of Ray."""
    python = named
    if named is None or "/" not in named:
        python = shutil.which(named or "", path=path)
    python = python or of_command("torchrun", path) or _recorded(RECORD) or _recorded(STARTED_BY)
    python = python or shutil.which("python3", path=path) or sys.executable
    torch = find_framework(_TORCH, python, ".")
    if not torch.folder:
        return TorchPython(python, None, (python,))
    return TorchPython(python, torch.version or "unknown")


def find_framework(package: Package, python: str, folder: str) -> Framework:
    """Find a framework as a job of this Python in this folder does."""
    name = package.name
    words = (name, folder, package.module, package.own_file, *package.version_files)
    if python == sys.executable:
        return convert(framework_facts(*words), Framework)
    argv = own_command(python, "framework-facts", *words)
    return _answer(argv, f"{python}, which is to run the job,", Framework) or Framework(name)
