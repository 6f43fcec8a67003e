"""Facts about the Python that runs this: its Ray, its libraries, a recipe's framework.

Other Pythons run this as a program, and so does an image's build before the agent's libraries are
installed: it imports only the standard library.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TORCH = "torch"
CUDA = "CUDA of torch"
NCCL = "NCCL"
LIBRARIES = {
    **{name: name for name in ("torch", "vllm", "sglang")},
    **{name: name for name in ("deepspeed", "transformers", "flash-attn")},
    "nvidia-nccl-cu12": NCCL,
    "nvidia-nccl-cu13": NCCL,
}
"""Display names of libraries by distribution name; those of frameworks are arguments."""
REPORTED_PACKAGES = {
    *("torch", "torchvision", "torchaudio", "vllm", "xformers", "flash-attn", "tensordict"),
    *("transformers", "huggingface-hub", "peft", "numpy", "numba"),
    *("fastapi", "prometheus-fastapi-instrumentator", "triton", "megatron-core"),
}
"""Packages of the pairs in checks/package_pairs.py, those that are built for one torch, and Triton,
whose version belongs to the kind of a node (node_kind.py).
"""
_BUILT_FOR_TORCH = ("vllm", "xformers", "torchvision", "torchaudio", "flash-attn")
_PINNED_TORCH = re.compile(r"^Requires-Dist: torch ?\(?==([\d.]+\d)", re.MULTILINE)
_TORCH_OF_WHEEL = re.compile(r"torch(\d+\.\d+)")
_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_TORCH_FACT = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= '([^'\n]+)'", re.MULTILINE)
_LONGEST_VERSION = 100


def _distributions(path: Iterable[str]) -> Iterator[tuple[str, str, Path]]:
    """Yield name, version and folder of each distribution on a Python's path.

    Listing the folders takes about a millisecond; importlib.metadata takes 40.
    """
    for entry in path:
        folder = entry or "."
        with suppress(OSError):
            for item in os.listdir(folder):  # noqa: PTH208 - twice as fast
                if not item.endswith("-info"):
                    continue
                match = _METADATA.fullmatch(item)
                if match is not None:
                    name = re.sub(r"[-_.]+", "-", match["name"]).lower()
                    yield name, match["version"][:_LONGEST_VERSION], Path(folder)


def installed(path: Iterable[str], frameworks: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of known libraries on a Python's path; the first of a name counts."""
    known = {**LIBRARIES, **{name: name for name in frameworks}}
    versions: dict[str, str] = {}
    for name, version, folder in _distributions(path):
        library = known.get(name)
        if library is None or library in versions:
            continue
        versions[library] = version
        if library == TORCH:
            versions |= _of_torch(folder)
    return versions


def _of_torch(folder: Path) -> dict[str, str]:
    """Read torch's version and the CUDA or ROCm that it was built for."""
    text = text_of(folder / "torch" / "version.py")
    facts = {key: value[:_LONGEST_VERSION] for key, value in _TORCH_FACT.findall(text)}
    built_for = facts.get("cuda", "")
    if not built_for and "hip" in facts:
        built_for = f"ROCm {facts['hip']}"
    versions = {TORCH: facts.get("__version__", ""), CUDA: built_for}
    return {name: value for name, value in versions.items() if value}


def text_of(file: Path) -> str:
    """Return the text of a file; '' if it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text(encoding="utf-8")
    return ""


_DEFAULT_EXTRA = ("aiohttp", "aiohttp_cors", "opencensus")


def ray_facts(frameworks: Iterable[str] = ()) -> dict[str, object]:
    """Return the fields of RayPython for this Python, without importing Ray."""
    versions: dict[str, str] = {}
    folders: dict[str, Path] = {}
    for name, version, at in _distributions(sys.path):
        versions.setdefault(name, version)
        folders.setdefault(name, at)

    # Where is Ray? Its source says its version; its metadata may be missing.
    folder = ""
    ray_version = None
    ray = importlib.util.find_spec("ray")
    if ray is not None and ray.origin is not None:
        folder = str(Path(ray.origin).parent)
        source = text_of(Path(folder, "_version.py"))
        assigned = re.search(r'^version = "([^"]+)"', source, re.MULTILINE)
        ray_version = assigned[1] if assigned else versions.get("ray")

    return {
        "executable": sys.executable,
        "python": platform.python_version(),
        "version": ray_version,
        "missing": tuple(name for name in _DEFAULT_EXTRA if not importlib.util.find_spec(name)),
        "command": _command(),
        "click": versions.get("click"),
        "enum_copies_are_same": hasattr(Enum, "__deepcopy__"),
        "folder": folder,
        "hub": versions.get("huggingface-hub"),
        "debugpy": versions.get("debugpy"),
        "libraries": installed(sys.path, frameworks),
        "packages": {name: versions[name] for name in sorted(REPORTED_PACKAGES & versions.keys())},
        "built_for": _torch_of_builds(versions, folders),
    }


def _torch_of_builds(versions: dict[str, str], folders: dict[str, Path]) -> dict[str, str]:
    """Return the torch that compiled packages were built for, where their metadata names one."""
    built_for = {}
    for name in _BUILT_FOR_TORCH:
        if name not in versions:
            continue
        stem = name.replace("-", "_")
        info = folders[name] / f"{stem}-{versions[name]}.dist-info"
        pinned = _PINNED_TORCH.search(text_of(info / "METADATA"))
        if pinned is None:  # a wheel that was installed by its URL names its torch there
            pinned = _TORCH_OF_WHEEL.search(text_of(info / "direct_url.json"))
        if pinned is not None:
            built_for[name] = pinned[1][:_LONGEST_VERSION]
    return built_for


def print_ray_facts(argv: list[str]) -> int:
    """Print the facts of this Python as JSON; the arguments are the names of frameworks."""
    print(json.dumps(ray_facts(argv)))
    return 0


def print_framework_facts(argv: list[str]) -> int:
    """Print the facts of a framework as JSON."""
    print(json.dumps(framework_facts(*argv)))
    return 0


def of_command(name: str, path: str | None) -> str | None:
    """Return the Python of a command on PATH, by the script's first lines."""
    script = shutil.which(name, path=path)
    if script is None:
        return None
    lines = text_of(Path(script)).splitlines()[:2]
    if not lines or not lines[0].startswith("#!"):
        return None
    interpreter = lines[0][2:].split()

    # `/bin/sh` and an `exec` below it is pip's form for long paths; `env` searches PATH.
    if interpreter[:1] == ["/bin/sh"] and len(lines) > 1 and lines[1].startswith("'''exec'"):
        interpreter = shlex.split(lines[1].removeprefix("'''exec'"))
    if len(interpreter) > 1 and Path(interpreter[0]).name == "env":
        interpreter = [shutil.which(interpreter[1], path=path) or ""]

    if not interpreter or not Path(interpreter[0]).name.startswith("python"):
        return None
    return interpreter[0]


def _command() -> tuple[str, ...]:
    """Return this Python's `ray`: the script beside it, or the module."""
    script = Path(sys.executable).parent / "ray"
    if script.exists():
        return (str(script),)
    return (sys.executable, "-m", "ray.scripts.scripts")


def framework_facts(
    name: str, folder: str, module: str, own_file: str, *version_files: str
) -> dict[str, str]:
    """Return the fields of Framework as found in a folder and on this Python's path.

    The other arguments are those of `Package`.
    """
    path = [folder, *sys.path]
    around = _around(module, path)
    if around is None or not (around / own_file).exists():
        return {"name": name}

    # Metadata beside the package counts first. Metadata elsewhere is from an editable install and
    # may be outdated, so the checkout's version file comes before it.
    metadata = [(at.resolve(), version) for key, version, at in _distributions(path) if key == name]
    beside = [version for at, version in metadata if at == around]
    first_lines = [text_of(around / file).partition("\n")[0] for file in version_files]
    in_files = [line.strip()[:_LONGEST_VERSION] for line in first_lines]
    anywhere = [version for _, version in metadata]
    candidates = (*beside, *in_files, *anywhere)
    return {"name": name, "folder": str(around), "version": next(filter(None, candidates), "")}


def _around(module: str, path: list[str]) -> Path | None:
    """Return the folder that contains a package, including editable installs."""
    spec = importlib.machinery.PathFinder.find_spec(module, path)
    if spec is None or spec.submodule_search_locations is None:
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(module)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(places[0]).resolve().parent if places else None
