"""Finds the Python with Ray, torch or the framework, without importing them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.base.own_command import own_command
from agent.base.value import dataclass
from agent.node.facts import Framework, RayPython, TorchPython
from agent.node.limits import starting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


TORCH, CUDA, NCCL = "torch", "CUDA of torch", "NCCL"
_LIBRARIES = {
    **{name: name for name in ("torch", "vllm", "sglang", "verl", "openrlhf", "trl")},
    **{name: name for name in ("deepspeed", "transformers", "flash-attn")},
    "nvidia-nccl-cu12": NCCL,
    "nvidia-nccl-cu13": NCCL,
}
"""Display names of libraries by distribution name."""
_LIBRARY_METADATA = ".dist-info"
_TORCH_FACT = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= '([^'\n]+)'", re.MULTILINE)
_LONGEST_VERSION = 100


def installed(path: Iterable[str]) -> dict[str, str]:
    """Return the versions of known libraries on a Python's path; the first of a name counts.

    Listing the folders and reading torch's version file takes about a millisecond.
    """
    found: dict[str, str] = {}
    for entry in path:
        with suppress(OSError):
            for name in os.listdir(entry or "."):  # noqa: PTH208 - twice as fast
                if not name.endswith(_LIBRARY_METADATA):
                    continue
                library, _, version = name.removesuffix(_LIBRARY_METADATA).partition("-")
                known = _LIBRARIES.get(_normalized(library))
                if known is not None and known not in found:
                    found[known] = version[:_LONGEST_VERSION]
                    if known == TORCH:
                        found |= _of_torch(Path(entry or "."))
    return found


def _normalized(name: str) -> str:
    """Return the normalized name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _of_torch(folder: Path) -> dict[str, str]:
    """Read torch's version and the CUDA or ROCm that it was built for."""
    with suppress(OSError, UnicodeDecodeError):
        text = (folder / "torch" / "version.py").read_text(encoding="utf-8")
        facts = {key: value[:_LONGEST_VERSION] for key, value in _TORCH_FACT.findall(text)}
        built_for = facts.get("cuda") or (f"ROCm {facts['hip']}" if "hip" in facts else "")
        versions = {TORCH: facts.get("__version__", ""), CUDA: built_for}
        return {name: value for name, value in versions.items() if value}
    return {}


RAY_PROGRAM = "ray-facts"
"""The verb that prints the facts of another Python."""
RECORD = "ray-python"
"""A file in our virtual environment with the Python that has Ray; the image's build writes it."""

_ASK_LIMIT = 30.0
_DEFAULT_EXTRA = ("aiohttp", "aiohttp_cors", "opencensus")


def find_ray(path: str | None) -> RayPython:
    """Find the Python with Ray: this one, the recorded one, or that of `ray` on PATH."""
    here = ray_here()
    if here.version is not None:
        return here
    other = recorded_python(Path(sys.prefix) / RECORD) or of_ray_command(path)
    return here if other is None or other == sys.executable else ask_python(other)


def ray_here() -> RayPython:
    """Return the facts of this Python, without importing Ray."""
    missing = tuple(name for name in _DEFAULT_EXTRA if importlib.util.find_spec(name) is None)
    version = platform.python_version()
    copies = hasattr(Enum, "__deepcopy__")
    ray = importlib.util.find_spec("ray")
    folder = str(Path(ray.origin).parent) if ray is not None and ray.origin is not None else ""
    return RayPython(
        sys.executable,
        version,
        _ray_version(folder),
        missing,
        _command(),
        click=_version_by_folder("click"),
        enum_copies_are_same=copies,
        folder=folder,
        hub=_version_by_folder("huggingface_hub"),
        debugpy=_version_by_folder("debugpy"),
        libraries=installed(sys.path),
    )


def print_ray(argv: list[str]) -> int:
    """Print the facts of this Python as JSON; takes no arguments."""
    del argv
    print(json.dumps(asdict(ray_here())))
    return 0


def of_ray_command(path: str | None) -> str | None:
    """Return the Python of the `ray` command on PATH."""
    return of_command("ray", path)


def of_command(name: str, path: str | None) -> str | None:
    """Return the Python of a command on PATH, by the script's first lines."""
    script = shutil.which(name, path=path)
    if script is None:
        return None
    try:
        lines = Path(script).read_text(encoding="utf-8", errors="replace").splitlines()[:2]
    except OSError:
        return None
    return _interpreter(lines, path)


def _interpreter(lines: list[str], path: str | None) -> str | None:
    """Parse `#!/path/python`, `#!/usr/bin/env python`, and pip's form for long paths."""
    first = lines[0][2:].split() if lines and lines[0].startswith("#!") else []
    if first[:1] == ["/bin/sh"] and len(lines) > 1 and lines[1].startswith("'''exec'"):
        first = shlex.split(lines[1].removeprefix("'''exec'"))[:1]
    if first and os.path.basename(first[0]) == "env":  # noqa: PTH119 - a word, not a path
        found = [shutil.which(word, path=path) for word in first[1:2]]
        first = [word for word in found if word is not None]
    is_python = first and os.path.basename(first[0]).startswith("python")  # noqa: PTH119 - same
    return first[0] if is_python else None


def recorded_python(file: Path) -> str | None:
    """Return the Python that the image's build recorded, if it did."""
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def ask_python(executable: str) -> RayPython:
    """Return the facts of another Python."""
    data = _answer(own_command(executable, RAY_PROGRAM), f"{executable}, which has Ray,")
    if not isinstance(data, dict):
        return RayPython(executable, "does not run", None)
    lists = {name: tuple(data[name]) for name in ("missing", "command")}
    return RayPython(**{**data, **lists, "executable": executable})


def _answer(argv: list[str], what: str, environ: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - JSON
    """Run a program of ours and return the JSON of its last line; None if it fails."""
    try:
        with starting(what):
            done = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                timeout=_ASK_LIMIT,
                check=True,
                env=None if environ is None else dict(environ),
            )
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _command() -> tuple[str, ...]:
    """Return this Python's `ray`: beside it, or in its script folder, as on Debian."""
    script = Path(sys.executable).parent / "ray"
    if not script.exists():
        import sysconfig  # noqa: PLC0415 - only where the short way fails

        script = Path(sysconfig.get_path("scripts")) / "ray"
    return (str(script),) if script.exists() else (sys.executable, "-m", "ray.scripts.scripts")


def _ray_version(folder: str) -> str | None:
    """Return Ray's version without importing Ray or package metadata, which takes 40 ms."""
    if not folder:
        return None
    try:
        text = (Path(folder) / "_version.py").read_text(encoding="utf-8")
    except OSError:
        text = ""
    match = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
    return match[1] if match else _from_metadata("ray")


def _version_by_folder(package: str) -> str | None:
    """Return a package's version from the name of its metadata folder, or None."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folders = Path(spec.origin).parents[1].glob(f"{package}-*.dist-info")
    return next((f.name[len(package) + 1 : -len(".dist-info")] for f in folders), None)


def _from_metadata(package: str) -> str | None:
    import importlib.metadata  # noqa: PLC0415 - only where the short way fails

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


_TORCH_QUESTION = """
import importlib.util, json, re
from pathlib import Path
spec = importlib.util.find_spec("torch")
version = None
if spec is not None and importlib.util.find_spec("torch.distributed") is not None:
    file = Path(spec.origin or "").with_name("version.py")
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
    asked = []
    for executable in dict.fromkeys(_torch_candidates(environ.get("PATH"), named)):
        version = _version_in(executable, environ)
        if version is not None:
            return TorchPython(executable, version)
        asked.append(executable)
    return TorchPython(asked[0] if asked else named or sys.executable, None, tuple(asked))


def _torch_candidates(path: str | None, named: str | None) -> Iterator[str]:
    if named is not None:
        found = shutil.which(named, path=path)
        if found is not None:
            yield found
        if found is not None or "/" in named:
            return  # `python` alone may be missing where `python3` is there
    command = of_command("torchrun", path)
    if command is not None:
        yield command
    for name in ("python3", "python"):
        found = shutil.which(name, path=path)
        if found is not None:
            yield found
    recorded = recorded_python(Path(sys.prefix) / RECORD)
    if recorded is not None:
        yield recorded
    yield sys.executable


def _version_in(executable: str, environ: Mapping[str, str]) -> str | None:
    """Return torch's version in a Python; None if it has no torch or does not run."""
    argv = [executable, "-c", _TORCH_QUESTION]
    version = _answer(argv, f"{executable}, which may have torch,", environ)
    return version if isinstance(version, str) else None


FRAMEWORK_PROGRAM = "framework-facts"
"""The verb that prints a framework's facts in another Python."""

_FRAMEWORK_METADATA = re.compile(
    r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info"
)


@dataclass(frozen=True)
class _FrameworkFiles:
    """Files by which a framework is recognized."""

    module: str
    """The package that the job's command runs."""
    version_files: tuple[str, ...] = ()
    """Version files of a checkout, relative to the folder that contains the package."""
    has: str = ""
    """A file that only this fork has: forks share a package name."""


_KNOWN_FRAMEWORKS = {
    "verl": _FrameworkFiles("verl", ("verl/version/version",)),
    "openrlhf": _FrameworkFiles("openrlhf", ("version.txt",)),
    "openrlhf-m": _FrameworkFiles("openrlhf", has="openrlhf/models/remote_rm"),
    "search-r1": _FrameworkFiles("verl", has="search_r1"),
    "trl": _FrameworkFiles("trl", ("trl/VERSION", "VERSION")),
}
"""Frameworks by their name in a recipe's row."""


def find_framework(name: str, python: str, folder: str) -> Framework:
    """Find a framework as a job of this Python in this folder does."""
    if python == sys.executable:
        return framework_here(name, folder)
    argv = own_command(python, FRAMEWORK_PROGRAM, name, folder)
    data = _answer(argv, f"{python}, which is to run the job,")
    return Framework(**data) if isinstance(data, dict) else Framework(name)


def framework_here(name: str, folder: str) -> Framework:
    """Find a framework in a folder and on this Python's path."""
    marks = _KNOWN_FRAMEWORKS[name]
    path = [folder, *sys.path]
    found = _around(marks.module, path)
    if found is None or not (found / marks.has).exists():
        return Framework(name)
    return Framework(name, str(found), _version(name, marks, found, path))


def print_framework(argv: list[str]) -> int:
    """Print a framework's facts as JSON; the arguments are name and folder."""
    name, folder = argv
    print(json.dumps(asdict(framework_here(name, folder))))
    return 0


def _around(module: str, path: list[str]) -> Path | None:
    """Return the folder that contains a package, including editable installs."""
    spec = importlib.machinery.PathFinder.find_spec(module, path)
    if spec is None or spec.submodule_search_locations is None:
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(module)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(places[0]).resolve().parent if places else None


def _version(name: str, marks: _FrameworkFiles, found: Path, path: list[str]) -> str:
    """Return its version, or ''.

    Metadata beside the package counts first. Metadata elsewhere is from an editable install and may
    be outdated, so the checkout's version file comes before it.
    """
    metadata = list(_metadata(name, path))
    beside = next((version for folder, version in metadata if folder == found), "")
    files = filter(None, (_first_line(found / file) for file in marks.version_files))
    return beside or next(files, "") or (metadata[0][1] if metadata else "")


def _metadata(name: str, path: list[str]) -> Iterator[tuple[Path, str]]:
    """Yield folder and version of a distribution's metadata."""
    for entry in path:
        folder = Path(entry or ".")
        with suppress(OSError):
            for item in folder.iterdir():
                match = _FRAMEWORK_METADATA.fullmatch(item.name)
                if match is not None and _normalized(match["name"]) == name:
                    yield folder.resolve(), match["version"]


def _first_line(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError, IndexError):
        return file.read_text(encoding="utf-8").split("\n")[0].strip()[:_LONGEST_VERSION]
    return ""


_SOURCE = "scripts/scripts.py"
_NAME = re.compile(r'"(--[a-z][a-z-]*)"')
_COMMON_FLAGS = {"--log-style": True, "--log-color": True, "--verbose": False, "-v": False}
"""Flags of all commands of Ray (2.40 to 2.60), declared in another file."""


def start_flags(folder: str) -> dict[str, bool] | None:
    """Return the flags of `ray start` with whether each takes a value; None if unknown.

    They are read from click's decorators before `def start` (2.40 to 2.60).
    """
    try:
        text = (Path(folder) / _SOURCE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    before, found, _ = text.partition("\ndef start(")
    _, marked, decorators = before.rpartition("\n@cli.command(")
    if not found or not marked:
        return None
    flags: dict[str, bool] = {}
    for option in decorators.split("@click.option(")[1:]:
        declared = option.partition("help=")[0]  # a help text may name other flags
        flags |= dict.fromkeys(_NAME.findall(declared), "is_flag=True" not in option)
    return {**flags, **_COMMON_FLAGS} if flags else None
