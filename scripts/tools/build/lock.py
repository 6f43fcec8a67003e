"""The libraries of the one file: which wheels, for which Python and machine.

`requirements/onefile.txt` has a line for each wheel: digest, file name, and its targets. It is
resolved from pyproject.toml and the pins; a build takes the files that it names, and so does the
layer over an image.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

REPO = Path(__file__).resolve().parents[3]
PINS = ("ray.txt", "dev.txt")
LOCK = REPO / "requirements" / "onefile.txt"
CACHE = REPO / ".onefile" / "wheels"
EXTRAS = ("tty", "maths")
"""Extras of the project that the file has."""
NOT_IN_IT = "ray"
"""The image's own: found through the image's Python."""
GLIBC = range(17, 29)
"""Accepted minor versions of glibc 2; RHEL 8 and Ubuntu 20.04 have 28 and newer."""
ALL = "all"


@dataclass(frozen=True, order=True)
class Target:
    """A Python on a machine."""

    minor: int
    machine: str

    @property
    def name(self) -> str:
        """Its name in the lock and in the file."""
        return f"cp3{self.minor}-{self.machine}"

    @property
    def python(self) -> str:
        """The Python's version."""
        return f"3.{self.minor}"

    def environment(self) -> dict[str, str]:
        """Return the environment for requirement markers."""
        here = {key: str(value) for key, value in default_environment().items()}
        return here | {
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "platform_machine": self.machine,
            "platform_system": "Linux",
            "sys_platform": "linux",
            "os_name": "posix",
        }

    def pip_options(self) -> list[str]:
        """Return the options with which pip selects the wheels for it."""
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in reversed(GLIBC)]
        if self.machine == "x86_64":  # older than arm64's first glibc
            platforms += [f"manylinux2010_{self.machine}", f"manylinux1_{self.machine}"]
        options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", self.python]
        for abi in (f"cp3{self.minor}", "abi3", "none"):
            options += ["--abi", abi]
        for platform in [*platforms, f"manylinux2014_{self.machine}"]:
            options += ["--platform", platform]
        return options


TARGETS = tuple(
    Target(minor, machine) for minor in (10, 11, 12, 13) for machine in ("x86_64", "aarch64")
)


@dataclass(frozen=True)
class Wheel:
    """A line of the lock."""

    sha256: str
    file: str
    targets: tuple[str, ...]

    @property
    def name(self) -> str:
        """The project's normalized name."""
        return str(parse_wheel_filename(self.file)[0])

    @property
    def version(self) -> str:
        """The project's version."""
        return str(parse_wheel_filename(self.file)[1])


class BuildError(Exception):
    """The file cannot be built; the message has the reason."""


def read_lock() -> list[Wheel]:
    """Read the lock."""
    found = []
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            sha256, file, *targets = line.split()
            every = tuple(target.name for target in TARGETS)
            found.append(Wheel(sha256, file, every if targets == [ALL] else tuple(targets)))
    return found


def write_lock() -> list[Wheel]:
    """Resolve from pyproject.toml and the pins; return the lock."""
    files: dict[str, list[str]] = {}
    for target in TARGETS:
        for wheel in _resolve(target):
            files.setdefault(wheel.name, []).append(target.name)
    lines = [
        "# Wheels of dist/pod-agent, written by ./scripts/build --lock: digest, file, targets.",
        *(
            f"{digest(CACHE / name)}  {name}  "
            + (ALL if len(targets) == len(TARGETS) else " ".join(targets))
            for name, targets in sorted(files.items())
        ),
    ]
    LOCK.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_lock()


def digest(file: Path) -> str:
    """Return a file's SHA-256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def direct_requirements() -> list[Requirement]:
    """Return the project's own requirements in the file."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [project["optional-dependencies"][extra] for extra in EXTRAS]
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    found = [Requirement(line) for line in lines]
    return [one for one in found if canonicalize_name(one.name) != NOT_IN_IT]


def pins(target: Target) -> dict[str, str]:
    """Return the pinned versions of a target's Python by normalized name."""
    texts = [(REPO / "requirements" / name).read_text(encoding="utf-8") for name in PINS]
    lines = [line for text in texts for line in text.splitlines() if re.match(r"\w", line)]
    pinned = [Requirement(line.removesuffix("\\")) for line in lines]
    return {
        canonicalize_name(one.name): str(one.specifier).removeprefix("==")
        for one in pinned
        if one.marker is None or one.marker.evaluate(target.environment())
    }


def _resolve(target: Target) -> list[Path]:
    """Return the wheels of a target: the project's requirements and their dependencies."""
    pinned, environment = pins(target), target.environment()
    open_ends, found = direct_requirements(), dict[str, Path]()
    while open_ends:
        names = {
            canonicalize_name(one.name)
            for one in open_ends
            if one.marker is None or one.marker.evaluate({**environment, "extra": ""})
        }
        new = sorted(names - set(found))
        if missing := [name for name in new if name not in pinned]:
            raise BuildError(f"{', '.join(missing)}: not pinned for {target.python}; ./scripts/pin")
        got = _download(target, [f"{name}=={pinned[name]}" for name in new]) if new else []
        found |= {str(parse_wheel_filename(wheel.name)[0]): wheel for wheel in got}
        open_ends = [one for wheel in got for one in required(wheel)]
    return list(found.values())


def metadata(wheel: Path) -> dict[str, list[str]]:
    """Return the fields of a wheel's metadata."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (
            one for one in file.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one)
        )
        parsed = Parser().parsestr(file.read(name).decode())
    return {key: parsed.get_all(key, []) for key in parsed}


def required(wheel: Path) -> list[Requirement]:
    """Return what a wheel requires."""
    return [Requirement(line) for line in metadata(wheel).get("Requires-Dist", [])]


def fetch(wheels: list[Wheel], targets: tuple[Target, ...] = TARGETS) -> dict[str, Path]:
    """Return the files of the lock's wheels by name; missing ones are fetched."""
    for target in targets:
        missing = [w for w in wheels if target.name in w.targets and not (CACHE / w.file).exists()]
        if missing:
            _download(target, [f"{w.name}=={w.version} --hash=sha256:{w.sha256}" for w in missing])
    for wheel in wheels:
        file = CACHE / wheel.file
        if not file.exists() or digest(file) != wheel.sha256:
            raise BuildError(
                f"{wheel.file} is not what requirements/onefile.txt names: remove {file}, or"
                " resolve anew with ./scripts/build --lock"
            )
    return {wheel.file: CACHE / wheel.file for wheel in wheels}


def _download(target: Target, lines: list[str]) -> list[Path]:
    """Let pip download wheels for a target; return their files."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as place:
        wanted = Path(place, "wanted.txt")
        wanted.write_text("\n".join(lines), encoding="utf-8")
        run_pip("download", "--no-deps", *target.pip_options(), "--dest", place, "-r", str(wanted))
        found = sorted(Path(place).glob("*.whl"))
        for wheel in found:
            shutil.move(wheel, CACHE / wheel.name)
    return [CACHE / wheel.name for wheel in found]


def run_pip(*words: str, python: str = sys.executable) -> None:
    """Run pip; raise its last error line."""
    argv = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise BuildError(f"pip {words[0]} failed: {(errors or [done.stderr.strip()])[-1]}")
