"""Makes wheel, sdist and the one file from the tree, reproducibly for a commit."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import time
import uuid
import zipfile
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import parse_wheel_filename

from tools.build.licenses import LICENSE_TEXT, apache_license, license_name, notices
from tools.build.lock import REPO, TARGETS, BuildError, Target, Wheel, digest, fetch, run_pip

HERE = Path(__file__).parent
SOURCES = ("agent", "pyproject.toml", "README.md", "LICENSE")
"""The sources of a distribution."""
BACKEND = REPO / ".onefile" / "backend"
BACKEND_PINS = REPO / "requirements" / "build.txt"
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
EXECUTABLE = 0o755


@dataclass(frozen=True)
class Made:
    """The files of a build."""

    onefile: Path
    wheel: Path
    sdist: Path
    bill: Path

    def files(self) -> tuple[Path, ...]:
        """Return all of them."""
        return (self.onefile, self.wheel, self.sdist, self.bill)


def make(place: Path, wheels: list[Wheel], targets: tuple[Target, ...] = TARGETS) -> Made:
    """Build everything into a folder; the one file for some targets."""
    place.mkdir(parents=True, exist_ok=True)
    bundled = [wheel for wheel in wheels if any(one.name in wheel.targets for one in targets)]
    files = fetch(bundled, targets)
    seconds = commit_time()
    wheel, sdist = distributions(place, apache_license(files.values()), seconds)
    onefile = place / onefile_name(targets)
    write_onefile(onefile, wheel, bundled, files, targets)
    bill = place / f"{onefile.name}.cdx.json"
    bill.write_text(bill_of_materials(onefile, wheel, bundled, files, seconds), encoding="utf-8")
    made = Made(onefile, wheel, sdist, bill)
    sums = "".join(f"{digest(file)}  {file.name}\n" for file in made.files())
    (place / "SHA256SUMS").write_text(sums, encoding="utf-8")
    return made


def onefile_name(targets: tuple[Target, ...]) -> str:
    """Return the file's name, which tells its targets unless it has all of them."""
    if targets == TARGETS:
        return "pod-agent"
    return "-".join(["pod-agent", *(target.name for target in targets)])


# --- the tree ----------------------------------------------------------------------------------


def git(*words: str) -> str | None:
    """Run git in the tree; None if this is no checkout."""
    if not (REPO / ".git").exists() or shutil.which("git") is None:
        return None
    argv = ["git", "-C", str(REPO), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def commit_time() -> int:
    """Return the timestamp of the files: SOURCE_DATE_EPOCH, else the commit's."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or git("log", "-1", "--format=%ct") or 315_532_800)


def changed() -> list[str]:
    """Return the sources that differ from the commit."""
    return (git("status", "--porcelain", "--", *SOURCES) or "").splitlines()


def copy_sources(folder: Path) -> None:
    """Copy the files tracked by git, or all without git, with plain modes."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *SOURCES)
    if listed is None:
        roots = [REPO / name for name in SOURCES]
        found = [p for root in roots for p in ([root] if root.is_file() else root.rglob("*"))]
        names = [str(path.relative_to(REPO)) for path in found if "__pycache__" not in path.parts]
    else:
        names = [name for name in listed.split("\0") if name]
    for name in names:
        source, copy = REPO / name, folder / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            copy.chmod(0o755 if source.stat().st_mode & stat.S_IXUSR else 0o644)


def distributions(place: Path, license_text: bytes, seconds: int) -> tuple[Path, Path]:
    """Build wheel and sdist with the pinned backend; both have the license's text, where given."""
    python = _backend()
    work = BACKEND.parent / "work"
    shutil.rmtree(work, ignore_errors=True)
    try:
        copy_sources(work / "source")
        if license_text:
            (work / "source" / LICENSE_TEXT).write_bytes(license_text)
        for kind in ("sdist", "wheel"):
            call = f"import setuptools.build_meta as b, sys; b.build_{kind}(sys.argv[1])"
            done = subprocess.run(
                [python, "-I", "-c", call, str(work)],
                cwd=work / "source",
                env={**os.environ, "SOURCE_DATE_EPOCH": str(seconds), "PYTHONHASHSEED": "0"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise BuildError(f"setuptools failed: {done.stderr.strip().splitlines()[-1]}")
        (wheel,), (sdist,) = work.glob("*.whl"), work.glob("*.tar.gz")
        shutil.copyfile(wheel, place / wheel.name)
        _repack(sdist, place / sdist.name, seconds)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place / wheel.name, place / sdist.name


def _backend() -> Path:
    """Return the Python of the environment with the pinned build backend; made once."""
    made = BACKEND / "made-from"
    wanted = BACKEND_PINS.read_text(encoding="utf-8") + sys.version
    python = BACKEND / "bin" / "python"
    if not made.exists() or made.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(BACKEND, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(BACKEND)], check=True)
        words = ("install", "--no-deps", "--only-binary=:all:", "--require-hashes")
        run_pip(*words, "-r", str(BACKEND_PINS), python=str(python))
        made.write_text(wanted, encoding="utf-8")
    return python


def _repack(source: Path, target: Path, seconds: int) -> None:
    """Rewrite a tar.gz without timestamps and user names."""
    plain = io.BytesIO()
    with tarfile.open(source) as old, tarfile.open(fileobj=plain, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = seconds, 0, 0, "", ""
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with target.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=seconds) as file:
        file.write(plain.getvalue())


# --- the one file ------------------------------------------------------------------------------


def write_onefile(
    target: Path,
    own_wheel: Path,
    wheels: list[Wheel],
    files: dict[str, Path],
    targets: tuple[Target, ...] = TARGETS,
) -> None:
    """Write the shell header and the archive behind it."""
    contents = {
        "agent": own_wheel.name,
        "targets": {
            one.name: sorted(wheel.file for wheel in wheels if one.name in wheel.targets)
            for one in targets
        },
    }
    members = {
        "__main__.py": (HERE / "launcher.py").read_bytes(),
        "contents.json": json.dumps(contents, indent=1, sort_keys=True).encode(),
        "targets": " ".join(contents["targets"]).encode(),
        "glibc": needed_glibc(wheels).encode(),
        "NOTICES.txt": notices([own_wheel, *(files[name] for name in sorted(files))]).encode(),
        f"wheels/{own_wheel.name}": own_wheel.read_bytes(),
        **{f"wheels/{name}": file.read_bytes() for name, file in sorted(files.items())},
    }
    header = (HERE / "header.sh").read_bytes()
    whole = hashlib.sha256(header)
    for name, content in members.items():
        whole.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    version = parse_wheel_filename(own_wheel.name)[1]
    members["digest"] = f"{version}-{whole.hexdigest()[:12]}".encode()
    with target.open("wb") as raw:
        raw.write(header)
        with zipfile.ZipFile(raw, "a", zipfile.ZIP_STORED) as archive:
            for name, content in members.items():
                info = zipfile.ZipInfo(name, ZIP_EPOCH)
                info.external_attr = 0o644 << 16
                archive.writestr(info, content)
    target.chmod(EXECUTABLE)


def needed_glibc(wheels: list[Wheel]) -> str:
    """Return the oldest glibc with which every wheel of the file works."""
    needed = 17
    for wheel in wheels:
        versions = [
            int(tag.platform.split("_")[2])
            for tag in parse_wheel_filename(wheel.file)[3]
            if tag.platform.startswith("manylinux_")
        ]
        older = any("manylinux20" in tag.platform for tag in parse_wheel_filename(wheel.file)[3])
        needed = max(needed, 17 if older or not versions else min(versions))
    return f"2.{needed}"


# --- the bill of materials ---------------------------------------------------------------------


def bill_of_materials(
    onefile: Path, own_wheel: Path, wheels: list[Wheel], files: dict[str, Path], seconds: int
) -> str:
    """Return the software bill of materials, in CycloneDX 1.5's JSON."""
    version = str(parse_wheel_filename(own_wheel.name)[1])
    sha256 = digest(onefile)
    root = {
        **_component("pod-agent", version, "application", [onefile]),
        "bom-ref": "pod-agent",
    }
    projects: dict[tuple[str, str], list[Path]] = {}
    for wheel in wheels:
        projects.setdefault((wheel.name, wheel.version), []).append(files[wheel.file])
    components = [
        _component("pod-agent", version, "library", [own_wheel]),
        *(_component(*key, "library", found) for key, found in sorted(projects.items())),
    ]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, sha256)}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)),
            "component": root,
        },
        "components": components,
        "dependencies": [
            {"ref": "pod-agent", "dependsOn": [str(one["bom-ref"]) for one in components]}
        ],
    }
    return json.dumps(bill, indent=2) + "\n"


def _component(name: str, version: str, kind: str, files: list[Path]) -> dict[str, object]:
    """Describe a project by its wheels: one wheel gives its digest, several are listed as parts."""
    purl = f"pkg:pypi/{name}@{version}"
    described: dict[str, object] = {
        "type": kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if files[0].suffix == ".whl":
        described |= _license(files[0])
    if len(files) == 1:
        return described | {"hashes": [_hash(files[0])]}
    parts = [
        {"type": "file", "bom-ref": file.name, "name": file.name, "hashes": [_hash(file)]}
        for file in files
    ]
    return described | {"components": parts}


def _hash(file: Path) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest(file)}


def _license(wheel: Path) -> dict[str, object]:
    """Return the license that a wheel's metadata names."""
    expression, name = license_name(wheel)
    if expression:
        return {"licenses": [{"expression": expression}]}
    return {"licenses": [{"license": {"name": name}}]} if name else {}
