"""Reads the facts of this machine, and finds the Python with Ray, torch or a framework."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from io import BytesIO
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
import psutil
from msgspec.structs import replace

from agent import __version__
from agent.base import times
from agent.base.text import own_command
from agent.base.value import MOST_ITEMS
from agent.node import limits
from agent.node.facts import (
    Facts,
    Folder,
    Framework,
    Mount,
    NodeVersions,
    RayPython,
    RdmaDevice,
    TorchPython,
    compared_variables,
    contradiction,
)
from agent.node.python_facts import framework_facts, of_command, ray_facts, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")


def gpu_models(maker: str, nvidia: Path, drm: Path) -> tuple[str, ...]:
    """Return the models of this node's GPUs from the driver's files; AMD's with their memory."""
    found: set[str] = set()
    for file in nvidia.glob("*/information") if maker == "nvidia" else ():
        lines = text_of(file).splitlines()
        found |= {line[6:].strip() for line in lines if line.startswith("Model:")}
    for device in drm.glob("renderD*/device") if maker == "amd" else ():
        memory = text_of(device / "mem_info_vram_total").strip()
        if memory.isdigit():
            name = text_of(device / "product_name").strip() or "AMD"
            found.add(f"{name} {round(int(memory) / (1 << 30))} GiB")
    return tuple(sorted(found))


def rdma_devices(folder: Path = Path("/sys/class/infiniband")) -> tuple[RdmaDevice, ...]:
    """Return the InfiniBand and RoCE devices of this machine."""
    found = []
    for device in sorted(folder.glob("*"))[:MOST_ITEMS]:
        ports = sorted(device.glob("ports/*"))
        links = filter(None, (text_of(port / "link_layer").strip() for port in ports))
        is_active = any("ACTIVE" in text_of(port / "state") for port in ports)
        found.append(RdmaDevice(device.name, next(links, ""), is_active))
    return tuple(found)


def program_fault(word: str, path: str | None) -> str:
    """Return why `exec WORD` will fail in the current directory, or ''."""
    if word.startswith("-"):
        return "begins with a dash, so the shell takes it for an option of `exec`"
    if shutil.which(word, path=path) is not None:
        return ""
    if "/" in word and not Path(word).exists():
        return _does_not_exist(word)
    if "/" in word and Path(word).is_dir():
        return "is a folder"
    if "/" in word or shutil.which(word, os.F_OK, path) is not None:
        return "may not be executed: run `chmod +x`, or name its interpreter before it"
    spaced = any(c.isspace() for c in word)
    return "is not on PATH" + (": give its words one by one, or a shell: -- bash -c '…'" * spaced)


def _does_not_exist(path: str) -> str:
    return "does not exist" + ("" if path.startswith("/") else f" in {Path.cwd()}")


def has_login(environ: Mapping[str, str]) -> bool:
    """Return whether a netrc file has a key of W&B; an unreadable file counts as none."""
    home = Path(environ.get("HOME") or "/")
    named = environ.get("NETRC")
    files = [Path(named)] if named else [home / ".netrc", home / "_netrc"]
    try:
        file = next((file for file in files if file.is_file()), None)  # a pipe would block
        entry = None if file is None else netrc(str(file)).hosts.get("api.wandb.ai")
    except (OSError, ValueError, NetrcParseError):
        return False
    return entry is not None and bool(entry[2])


_SYS = Path("/proc/sys/net/ipv4")


def ephemeral_range(sys: Path = _SYS) -> tuple[int, int]:
    """Return the first and last port of outgoing connections; Linux's default without /proc."""
    words = text_of(sys / "ip_local_port_range").split()
    is_valid = len(words) == 2 and all(word.isdigit() for word in words)
    return (int(words[0]), int(words[1])) if is_valid else (32_768, 60_999)


def reserved_ranges(sys: Path = _SYS) -> tuple[tuple[int, int], ...]:
    """Return the port ranges that the kernel does not use for outgoing connections."""
    with suppress(ValueError):
        return limits.ranges(text_of(sys / "ip_local_reserved_ports"))
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
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    maker, gpus = gpus_of(Path("/dev"))
    disk, machine_memory = shutil.disk_usage(temp), int(psutil.virtual_memory().total)
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
        rdma_is_open=any(
            os.access(verbs, os.R_OK | os.W_OK) for verbs in Path("/dev/infiniband").glob("uverbs*")
        ),
        known_names=known_names,
        node_versions=NodeVersions(
            __version__,
            gpu_models(maker, Path("/proc/driver/nvidia/gpus"), Path("/sys/class/drm")),
        ),
    )


_INTERPRETER = re.compile(r"python[\d.]*|bash|sh")


def command_fault(command: Sequence[str] | None, path: str | None) -> str:
    """Return why the job's program or script cannot start, or ''; no placeholder is checked."""
    if not command or "{" in command[0]:
        return ""
    if fault := program_fault(command[0], path):
        return f"{command[0]!r} {fault}"
    script = command[1] if len(command) > 1 else ""
    is_script = _INTERPRETER.fullmatch(Path(command[0]).name) and script.endswith((".py", ".sh"))
    if not is_script or "{" in script or Path(script).exists():
        return ""
    return f"{script!r} {_does_not_exist(script)}"


def read_folder(path: str) -> Folder | None:
    """Return what exists at a path, without following a link; None if nothing does."""
    try:
        found = Path(path).lstat()
    except OSError:
        return None
    strangers: list[str] = []
    with suppress(OSError):  # an unreadable one belongs to another user
        inside = [(entry.name, entry.lstat().st_uid) for entry in Path(path).iterdir()]
        strangers = sorted(name for name, uid in inside if uid != found.st_uid)
    mode = stat.S_IMODE(found.st_mode)
    return Folder(path, stat.S_ISDIR(found.st_mode), found.st_uid, mode, tuple(strangers))


def gpus_of(dev: Path) -> tuple[Literal["", "nvidia", "amd"], list[Path]]:
    """Return the vendor and the device files of this container's GPUs."""
    nvidia = [p for p in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    if nvidia:
        return "nvidia", nvidia
    amd = list((dev / "dri").glob("renderD*")) if (dev / "kfd").exists() else []
    return ("amd" if amd else ""), amd


def gpu_fault(dev: Path, maker: str) -> str:
    """Return why the driver refuses access, as in a container that lost its GPUs, or ''."""
    if not maker:
        return ""
    device = dev / ("nvidiactl" if maker == "nvidia" else "kfd")  # opening it wakes no GPU
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


def taken_ports(ports: Iterable[int]) -> dict[int, str]:
    """Return the ports in use, each with the process that listens, if known."""
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
    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            is_there = one.laddr and one.laddr.port == port
            if is_there and one.pid and one.status == psutil.CONN_LISTEN:
                return f"{psutil.Process(one.pid).name()} (pid {one.pid})"
    return "another process"


def interfaces() -> dict[str, tuple[str, ...]]:
    """Return the IP addresses of every interface, loopback included."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: tuple(a.address.partition("%")[0] for a in found if a.family in families)
        for name, found in psutil.net_if_addrs().items()
    }


_LOCAL = frozenset(
    {
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "aufs"),
        *("tmpfs", "ramfs", "rootfs", "vfat", "squashfs"),
    }
)
"""File systems of one machine; all others may be shared."""


def disk_of(path: str) -> str:
    """Return a name for the disk of a path that is equal on all nodes that may share it.

    Equal names do not prove a shared disk: such nodes only take turns, which costs time but no
    data. A network file system is named by its type only, since one server has many names.
    """
    folder = _existing_parent(Path(path).parent)
    mount = mount_of(str(folder))
    if mount is None or mount.kind not in _LOCAL:
        return "?" if mount is None else mount.kind
    boot = text_of(Path("/proc/sys/kernel/random/boot_id")).strip()
    with suppress(OSError):
        return f"{boot} {folder.stat().st_dev}" if boot else "?"
    return "?"


def free_at(folder: str) -> int | None:
    """Return the free bytes on the disk of a folder, which need not exist; None if unknown."""
    with suppress(OSError):
        return shutil.disk_usage(_existing_parent(Path(folder))).free
    return None


def is_missing(path: str) -> bool:
    """Return whether nothing has this absolute path; False if it cannot be known."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return path.startswith("/") and not set(path) & set("*?[,")
    except (OSError, ValueError):
        pass
    return False


def weights_in(model: str | None) -> int:
    """Return the bytes of a model's weights if it is a local folder, else 0."""
    if not model:
        return 0
    for pattern in ("*.safetensors", "*.bin", "*.pt", "*.pth"):  # one format: some have two
        with suppress(OSError):
            sizes = [file.stat().st_size for file in Path(model).glob(pattern)]
            if sizes:
                return sum(sizes)
    return 0


def model_config(
    model: str, environ: Mapping[str, str], revision: str | None = None
) -> Mapping[str, object] | None:
    """Return the `config.json` of a model, a local folder or in the hub's cache; None without."""
    for folder in filter(None, (Path(model), cached_model(model, environ, revision))):
        with suppress(OSError, ValueError):  # ValueError: not JSON, or a zero byte in the path
            found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else None
    return None


def cached_model(
    model: str, environ: Mapping[str, str], revision: str | None = None
) -> Path | None:
    """Return the folder of a model's revision in the cache of huggingface_hub; None without.

    Its name is the commit. Without a revision it is the newest that was fetched.
    """
    home = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME') or '/root'}/.cache"
    home = environ.get("HF_HOME") or f"{home}/huggingface"
    cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    folder = Path(cache).expanduser() / f"models--{model.replace('/', '--')}"
    commit = revision or "main"
    with suppress(OSError, ValueError):  # ValueError: not ASCII, or a zero byte in the path
        commit = (folder / "refs" / commit).read_text(encoding="ascii").strip()
    with suppress(OSError, ValueError):
        snapshot = folder / "snapshots" / commit
        return snapshot if snapshot.is_dir() else None
    return None


def _existing_parent(folder: Path) -> Path:
    """Return the folder or its nearest existing parent."""
    return next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))


def mount_of(folder: str) -> Mount | None:
    """Return the mount of a folder, which need not exist; None if unknown."""
    place = Path(os.path.realpath(folder))
    above = {str(place), *map(str, place.parents)}
    found: Mount | None = None
    with suppress(OSError):
        for mount in psutil.disk_partitions(all=True):  # a later one at the same place is on top
            where = mount.mountpoint
            if where in above and (found is None or len(where) >= len(found.folder)):
                found = Mount(where, mount.fstype, mount.device)
    return found


_LONGEST_LINE = 1 << 24
_LONGEST_FOOTER = 1 << 26
_COLUMNS, _NAME, _CHILDREN, _CONVERTED = 2, 4, 5, 6
"""Ids of fields in parquet's FileMetaData and SchemaElement."""
_LIST_TYPE = 3
_OTHER_CONTENT = (
    *(ValueError, TypeError, AttributeError, LookupError),
    *(OverflowError, RecursionError),
)
"""Raised for a file whose content does not match its suffix."""
_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


def columns_of(data: str) -> Mapping[str, bool] | None:
    """Return the columns of a file, or of the first file in a folder; None if not known.

    A column is True if it holds lists, such as the messages of a chat. A recipe names columns, and
    a framework fails on a missing one only once all models are loaded.
    """
    path = Path(data)
    with suppress(OSError, *_OTHER_CONTENT):  # the framework reports them
        if path.is_dir():
            path = min(one for one in path.iterdir() if one.suffix in _SUFFIXES)
        if not path.is_file() or path.suffix not in _SUFFIXES:
            return None
        if path.suffix == ".parquet":
            return _parquet_columns(path)
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline(_LONGEST_LINE)
        if path.suffix == ".csv":
            return dict.fromkeys(next(csv.reader([first]), []), False) or None
        return {name: isinstance(one, list) for name, one in json.loads(first).items()} or None
    return None


def _parquet_columns(path: Path) -> Mapping[str, bool] | None:
    """Decode the footer of a file, since the agent's Python need not have pyarrow."""
    with path.open("rb") as file:
        end, tail = file.seek(-8, 2), file.read(8)
        size = int.from_bytes(tail[:4], "little")
        if tail[4:] != b"PAR1" or size > min(end, _LONGEST_FOOTER):
            return None
        file.seek(end - size)
        footer = _thrift_struct(BytesIO(file.read(size)).read, until=_COLUMNS)
    _, *elements = footer[_COLUMNS]
    found: dict[str, bool] = {}
    inside = 0  # elements left that belong to a column, depth first
    for element in elements:
        if not inside:
            found[element[_NAME].decode()] = element.get(_CONVERTED) == _LIST_TYPE
        inside = max(0, inside - 1) + element.get(_CHILDREN, 0)
    return found


def _thrift_struct(read: Callable[[int], bytes], until: int = 0) -> dict[int, Any]:
    """Read a struct of Thrift's compact protocol by its fields' ids; only to `until`, if given."""
    fields: dict[int, Any] = {}
    number = 0
    while (head := read(1)[0]) != 0:
        number = number + (head >> 4) if head >> 4 else _thrift_value(read, 5)
        kind = head & 15
        fields[number] = kind == 1 if kind <= 2 else _thrift_value(read, kind)
        if number == until:
            break
    return fields


def _thrift_value(read: Callable[[int], bytes], kind: int) -> Any:  # noqa: ANN401 - as the file has it
    if kind <= 3:
        return read(1)[0]
    if kind <= 6:
        number = _varint(read)
        return (number >> 1) ^ -(number & 1)
    if kind <= 8:
        return read(8 if kind == 7 else _varint(read))
    if kind <= 10:
        head = read(1)[0]
        count = _varint(read) if head >> 4 == 15 else head >> 4
        return [_thrift_value(read, head & 15) for _ in range(count)]
    if kind == 12:
        return _thrift_struct(read)
    raise ValueError(f"no field of parquet's schema has the type {kind}")


def _varint(read: Callable[[int], bytes]) -> int:
    number, shift = 0, 0
    while (byte := read(1)[0]) & 128:
        number |= (byte & 127) << shift
        shift += 7
    return number | byte << shift


RECORD, STARTED_BY = "ray-python", "started-by"
"""Files in our virtual environment that name a Python: the one with Ray, by the image's build, and
the one that unpacked it, by the one file."""


def find_ray(path: str | None) -> RayPython:
    """Find the Python with Ray.

    It is this one, the recorded one, that of `ray` on PATH, or the one that started the one file.
    """
    here = msgspec.convert(ray_facts(), RayPython)
    if here.version is not None:
        return here
    other = _recorded(RECORD) or of_command("ray", path) or _recorded(STARTED_BY)
    return here if other is None or other == sys.executable else ask_python(other)


def _recorded(name: str) -> str | None:
    """Return the Python that a file in our virtual environment names."""
    return text_of(Path(sys.prefix, name)).strip() or None


def ask_python(executable: str) -> RayPython:
    """Return the facts of another Python."""
    argv = own_command(executable, "ray-facts")
    found = _answer(argv, f"{executable}, which has Ray,", RayPython)
    unknown = RayPython(executable, "does not run", None)
    return unknown if found is None else replace(found, executable=executable)


def _answer(
    argv: list[str], what: str, kind: type[T], environ: Mapping[str, str] | None = None
) -> T | None:
    """Run a program of the agent and return the JSON of its last line; None if it fails."""
    try:
        with limits.starting(what):
            done = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                timeout=times.PYTHON_ANSWERS,
                check=True,
                env=None if environ is None else dict(environ),
            )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=kind)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


_TORCH_QUESTION = """
import importlib.util, json, re
from pathlib import Path
spec = importlib.util.find_spec("torch")
version = None
folder = Path(spec.origin).parent if spec is not None and spec.origin else Path("none")
if (folder / "distributed" / "__init__.py").exists():
    file = folder / "version.py"
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    match = re.search("^__version__ = ['\\"]([^'\\"]+)", text, re.MULTILINE)
    version = match[1] if match else "unknown"
print(json.dumps(version))
"""
"""Prints torch's version without importing torch, which takes seconds."""


def find_torch(environ: Mapping[str, str], named: str | None) -> TorchPython:
    """Find the Python with torch.

    A Python in the job's command is the only candidate. Otherwise the candidates are those of
    `torchrun` and `python` on PATH, the image's Python with Ray, and our own.
    """
    path = environ.get("PATH")
    found = None if named is None else shutil.which(named, path=path)
    candidates = [found]
    if found is None and "/" not in (named or ""):  # `python` may be missing, `python3` not
        candidates = [
            of_command("torchrun", path),
            *(shutil.which(name, path=path) for name in ("python3", "python")),
            *(_recorded(name) for name in (RECORD, STARTED_BY)),
            sys.executable,
        ]
    searched = []
    for executable in dict.fromkeys(filter(None, candidates)):
        argv = [executable, "-c", _TORCH_QUESTION]
        version = _answer(argv, f"{executable}, which may have torch,", str, environ)
        if version is not None:
            return TorchPython(executable, version)
        searched.append(executable)
    return TorchPython(searched[0] if searched else named or sys.executable, None, tuple(searched))


def find_framework(name: str, python: str, folder: str) -> Framework:
    """Find a framework as a job of this Python in this folder does."""
    if python == sys.executable:
        return msgspec.convert(framework_facts(name, folder), Framework)
    argv = own_command(python, "framework-facts", name, folder)
    found = _answer(argv, f"{python}, which is to run the job,", Framework)
    return Framework(name) if found is None else found
