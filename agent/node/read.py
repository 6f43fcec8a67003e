"""Reads the facts of this machine."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import stat
import time
from contextlib import suppress
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import psutil

from agent import __version__
from agent.node import limits
from agent.node.addresses import interfaces, source_towards
from agent.node.facts import Facts, Folder, NodeVersions
from agent.node.limits import ranges
from agent.node.variables import compared_variables, contradiction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.node.facts import RayPython


_LONGEST_NAME = 200
_IMAGES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "NVIDIA_BUILD_ID")
"""Variables with the container's image, which few runtimes set."""
_MODEL = "Model:"


def node_versions(environ: Mapping[str, str], gpu_maker: str) -> NodeVersions:
    """Return the versions that the nodes of a run compare."""
    return NodeVersions(
        agent=__version__,
        image=next((environ[name] for name in _IMAGES if environ.get(name)), "")[:_LONGEST_NAME],
        gpu_models=gpu_models(gpu_maker, Path("/proc/driver/nvidia/gpus"), Path("/sys/class/drm")),
    )


def gpu_models(maker: str, nvidia: Path, drm: Path) -> tuple[str, ...]:
    """Return the models of this node's GPUs from the driver's files."""
    if maker == "nvidia":
        return tuple(sorted(set(_nvidia(nvidia))))
    return tuple(sorted(set(_amd(drm)))) if maker == "amd" else ()


def _nvidia(folder: Path) -> Iterator[str]:
    for file in folder.glob("*/information"):
        with suppress(OSError, UnicodeDecodeError):
            lines = file.read_text(encoding="utf-8").splitlines()
            yield from (x.removeprefix(_MODEL).strip() for x in lines if x.startswith(_MODEL))


def _amd(folder: Path) -> Iterator[str]:
    """Yield the product, if known, and memory of each AMD GPU."""
    for device in folder.glob("renderD*/device"):
        with suppress(OSError, ValueError):
            gib = round(int((device / "mem_info_vram_total").read_text()) / (1 << 30))
            name = ""
            with suppress(OSError):
                name = (device / "product_name").read_text(encoding="utf-8").strip()
            yield f"{name or 'AMD'} {gib} GiB"


_SHELLS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The default PATH of a shell."""


def program_fault(word: str, path: str | None) -> str:
    """Return why `exec WORD` will fail in the current directory, or ''.

    What cannot be read, such as a folder of another user on PATH, is no fault.
    """
    try:
        return _fault_of(word, _SHELLS_PATH if path is None else path)
    except (OSError, ValueError):
        return ""


def _fault_of(word: str, path: str) -> str:
    if word.startswith("-"):
        return "begins with a dash, so the shell takes it for an option of `exec`"
    file = Path(word) if "/" in word else _on_path(word, path)
    if file is None:
        return f"is not on PATH{_hint(word)}"
    if not _exists(file):
        return "does not exist" + ("" if file.is_absolute() else f" in {Path.cwd()}")
    if file.is_dir():
        return f"is a folder ({file})"
    if not os.access(file, os.X_OK):
        return f"may not be executed ({file}): run `chmod +x`, or name its interpreter before it"
    return _fault_of_script(file, path)


def _on_path(word: str, path: str) -> Path | None:
    """Find a program as a shell does: the first executable, else the first file."""
    there = [Path(folder or ".", word) for folder in path.split(os.pathsep) if word]
    files = [file for file in there if os.path.isfile(file)]  # noqa: PTH113 - never raises
    return next((f for f in files if os.access(f, os.X_OK)), files[0] if files else None)


def _hint(word: str) -> str:
    if any(c.isspace() for c in word):
        return ": give its words one by one, or a shell: -- bash -c '…'"
    if "=" in word:
        return ": variables go before pod-agent, or after `env`: -- env NAME=…"
    if os.path.isfile(word):  # noqa: PTH113 - same
        return f": the file here is run as ./{word}, or by its interpreter"
    return ""


def _fault_of_script(file: Path, path: str) -> str:
    """Return why the interpreter in a script's first line cannot start, or ''."""
    try:
        with file.open("rb") as opened:
            line = opened.read(256).partition(b"\n")[0]
    except OSError:  # executable, but not readable
        return ""
    words = line[2:].decode(errors="surrogateescape").strip(" \t").split(maxsplit=1)
    if not line.startswith(b"#!") or not words:
        return ""
    interpreter, argument = words[0], words[1].strip() if len(words) > 1 else ""
    if line.endswith(b"\r"):
        return f"is a script for {interpreter}, and its first line ends as on Windows"
    if not _exists(Path(interpreter)):
        return f"is a script for {interpreter}, which does not exist"
    program = re.fullmatch(r"(?:-S\s+)?([\w.][\w.+-]*)(?:\s.*)?", argument)  # `env` alone, or -S
    if Path(interpreter).name == "env" and program and _on_path(program[1], path) is None:
        return f"is a script for {program[1]}, which is not on PATH"
    return ""


def _exists(file: Path) -> bool:
    """Return whether a file exists; raises PermissionError if it cannot be read."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


_HOST = "api.wandb.ai"
_LARGEST = 1 << 20
_BASE_URL = re.compile(r"^\s*base_url\s*[=:]\s*(\S+)", re.MULTILINE)


def has_login(environ: Mapping[str, str]) -> bool:
    """Return whether W&B has credentials here; an unreadable file counts as none."""
    token = environ.get("WANDB_IDENTITY_TOKEN_FILE")
    if token and _read_text(Path(token)).strip():
        return True
    home = Path(environ.get("HOME") or "/")
    named = environ.get("NETRC")
    files = [_expanded(named, home)] if named else [home / ".netrc", home / "_netrc"]
    try:
        file = next((file for file in files if file.is_file()), None)  # a pipe would block
        entry = None if file is None else netrc(str(file)).hosts.get(_host(environ, home))
    except (OSError, ValueError, NetrcParseError):
        return False
    return entry is not None and bool(entry[2])


def _host(environ: Mapping[str, str], home: Path) -> str:
    """Return the server: from the environment, `wandb login --host`, or W&B's default."""
    folder = environ.get("WANDB_CONFIG_DIR")
    config = _expanded(folder, home) if folder else home / ".config" / "wandb"
    saved = _BASE_URL.search(_read_text(config / "settings"))
    url = environ.get("WANDB_BASE_URL") or (saved[1] if saved else "")
    try:
        return urlsplit(url if "://" in url else f"//{url}").hostname or _HOST
    except ValueError:
        return _HOST


def _expanded(path: str, home: Path) -> Path:
    return home / path[2:] if path.startswith("~/") else Path(path)


def _read_text(file: Path) -> str:
    try:
        if not file.is_file():  # reading a pipe would block
            return ""
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_LARGEST)
    except (OSError, ValueError):
        return ""


_SYS = Path("/proc/sys/net/ipv4")
_USUAL = (32_768, 60_999)


def ephemeral_range(sys: Path = _SYS) -> tuple[int, int]:
    """Return the first and last port of outgoing connections; Linux's default without /proc."""
    try:
        first, last = (sys / "ip_local_port_range").read_text().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return _USUAL


def reserved_ranges(sys: Path = _SYS) -> tuple[tuple[int, int], ...]:
    """Return the port ranges that the kernel does not use for outgoing connections."""
    try:
        return ranges((sys / "ip_local_reserved_ports").read_text())
    except (OSError, ValueError):
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
        temp_inodes=_free_inodes(temp),
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
        program_fault=_program_fault(command, environ.get("PATH")),
        wandb_login=has_login(environ),
        known_names=known_names,
        outfit=node_versions(environ, maker),
    )


def _free_inodes(folder: str) -> int | None:
    """Return the free inodes of a disk; None if it allocates them on demand."""
    found = os.statvfs(folder)
    return found.f_favail if found.f_files else None


def _program_fault(command: Sequence[str] | None, path: str | None) -> str:
    """Return why the job's program cannot start, or ''; one with a placeholder is not checked."""
    if not command or "{" in command[0]:
        return ""
    fault = program_fault(command[0], path)
    return f"{command[0]!r} {fault}" if fault else ""


def read_folder(path: str) -> Folder | None:
    """Return what exists at a path, without following a link; None if nothing does."""
    entry_path = Path(path)
    try:
        found = entry_path.lstat()
    except OSError:
        return None
    inside: list[tuple[str, int]] = []
    with suppress(OSError):  # an unreadable one belongs to another user
        inside = [(entry.name, entry.lstat().st_uid) for entry in entry_path.iterdir()]
    strangers = tuple(sorted(name for name, uid in inside if uid != found.st_uid))
    mode = stat.S_IMODE(found.st_mode)
    return Folder(path, stat.S_ISDIR(found.st_mode), found.st_uid, mode, strangers)


def gpus_of(dev: Path) -> tuple[Literal["", "nvidia", "amd"], list[Path]]:
    """Return the vendor and the device files of this container's GPUs."""
    nvidia = [p for p in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    if nvidia:
        return "nvidia", nvidia
    amd = list((dev / "dri").glob("renderD*")) if (dev / "kfd").exists() else []
    return ("amd" if amd else ""), amd


_CONTROL = {"nvidia": "nvidiactl", "amd": "kfd"}
"""The device file of the driver; opening it does not wake a GPU."""


def gpu_fault(dev: Path, maker: str) -> str:
    """Return why the driver refuses access, as in a container that lost its GPUs, or ''."""
    name = _CONTROL.get(maker)
    if name is None:
        return ""
    try:
        os.close(os.open(dev / name, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return f"{dev / name}: {(error.strerror or str(error)).lower()}"
    return ""
