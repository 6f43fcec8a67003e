"""The built file: reproducible bytes, and a run beside other versions of its libraries.

Needs a package index configured for pip.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.free_ports import free_port
from tools.build.lock import REPO, TARGETS, digest, pins, read_lock

OLDER = ("aiohttp<{aiohttp}", "psutil==5.9.8", "structlog==23.3.0")
"""Libraries that the image has in older versions than the file."""
FIRST_START = 5.0
SLOWER = 0.05
STARTS = 15


@dataclass(frozen=True)
class Image:
    """A Python with Ray and older libraries, like a framework's image."""

    folder: Path

    @property
    def python(self) -> Path:
        """The image's Python."""
        return self.folder / "bin" / "python"

    def environ(self) -> dict[str, str]:
        """Return the environment of a container with it; Ray's ports are free ones."""
        ports = {name: str(free_port()) for name in ("AGENT_RAY_PORT", "AGENT_DASHBOARD_PORT")}
        path = f"{self.python.parent}:{os.defpath}"
        return {"PATH": path, "HOME": str(self.folder), "AGENT_PORT": str(free_port()), **ports}

    def freeze(self) -> str:
        """Return the installed distributions."""
        return output([str(self.python), "-m", "pip", "freeze", "--all"], self.environ())


def output(argv: list[str], environ: dict[str, str]) -> str:
    """Run a command; return its output."""
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def build(place: Path) -> dict[str, Path]:
    """Build into a folder with ./scripts/build; return the files by name."""
    script = [str(REPO / "scripts/build"), "--to", str(place)]
    printed = output(script, dict(os.environ))
    files = {file.name: file for file in place.iterdir()}
    for name, file in files.items():
        assert name == "SHA256SUMS" or f"{digest(file)}  {name}  " in printed
    return files


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build once for all tests here."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Make an environment with older libraries, and with the Ray of the tests' environment.

    Its own libraries come first on its path. Ray is large, so it is not installed again.
    """
    made = Image(tmp_path_factory.mktemp("image"))
    subprocess.run([sys.executable, "-m", "venv", str(made.folder)], check=True)
    target = next(one for one in TARGETS if one.minor == sys.version_info[1])
    older = [line.format_map(pins(target)) for line in OLDER]
    pip = [str(made.python), "-m", "pip", "install", "--quiet", *older]
    subprocess.run(pip, check=True, timeout=200)
    (packages,) = made.folder.glob("lib/python3*/site-packages")
    (packages / "ray.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    ray = made.python.with_name("ray")
    ray.write_text(
        f"#!{made.python}\nimport sys\n\nimport ray.scripts.scripts as r\n\nsys.exit(r.main())\n",
        encoding="utf-8",
    )
    ray.chmod(0o755)
    return made


def test_the_same_commit_gives_the_same_bytes(built: dict[str, Path], tmp_path: Path) -> None:
    """A second build has the same digests; the bill of materials lists the file's contents."""
    again = build(tmp_path / "again")
    assert {name: digest(file) for name, file in again.items()} == {
        name: digest(file) for name, file in built.items()
    }
    bill = json.loads(again["pod-agent.cdx.json"].read_text(encoding="utf-8"))
    assert bill["metadata"]["component"]["hashes"][0]["content"] == digest(again["pod-agent"])
    names = {component["name"] for component in bill["components"]}
    assert {"aiohttp", "msgspec", "math-verify", "pod-agent"} <= names
    assert "ray" not in names
    files = [f for one in bill["components"] for f in one.get("components", [one])]
    digests = {file["hashes"][0]["content"] for file in files}
    assert digests >= {wheel.sha256 for wheel in read_lock()}


def test_starts(built: dict[str, Path], image: Image, tmp_path: Path) -> None:
    """The first start takes 5 s at most, a later one 50 ms more than an installed agent.

    Both run the same Python with the same libraries, in turns. CPU time is compared, since a busy
    machine changes it least; for the first start it is close to the elapsed time, since one process
    unpacks.
    """
    file, environ = built["pod-agent"], image.environ()
    folder = Path("/tmp") / f"pod-agent-{os.geteuid()}"
    with zipfile.ZipFile(file) as archive:
        shutil.rmtree(folder / archive.read("digest").decode(), ignore_errors=True)
    assert cpu_seconds([str(file), "env"], environ) < FIRST_START
    installed = tmp_path / "installed"
    subprocess.run([sys.executable, "-m", "venv", str(installed)], check=True)
    pip = [str(installed / "bin/python"), "-m", "pip", "install", "--quiet"]
    (wheel,) = (path for name, path in built.items() if name.endswith(".whl"))
    target = next(one for one in TARGETS if one.minor == sys.version_info[1])
    libraries = [f"{name}=={version}" for name, version in pins(target).items() if name in LOADED]
    subprocess.run([*pip, "--no-deps", str(wheel), *libraries], check=True, timeout=600)
    spent: dict[str, list[float]] = {}
    for _ in range(STARTS):
        for program in (str(file), str(installed / "bin/pod-agent")):
            spent.setdefault(program, []).append(cpu_seconds([program, "env"], environ))
    one, other = (statistics.median(times) for times in spent.values())
    assert one - other < SLOWER


LOADED = {
    *("structlog", "tenacity", "psutil", "requests", "aiohttp", "anyio", "msgspec", "pyyaml"),
    *("multidict", "yarl", "aiosignal", "frozenlist", "attrs", "propcache", "aiohappyeyeballs"),
    *("idna", "urllib3", "certifi", "charset-normalizer", "typing-extensions", "exceptiongroup"),
}


def cpu_seconds(argv: list[str], environ: dict[str, str]) -> float:
    """Return the CPU time of a command."""
    with subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_a_run_beside_other_versions(built: dict[str, Path], image: Image, tmp_path: Path) -> None:
    """The rehearsal uses the image's Ray; the image stays unchanged, the agent loads none of it."""
    before = image.freeze()
    assert {"psutil==5.9.8", "structlog==23.3.0"} <= set(before.splitlines())
    environ = {**image.environ(), "AGENT_LOG_DIR": str(tmp_path / "logs"), "AGENT_NUM_CPUS": "4"}
    # PYTHONPATH puts the image's libraries first; the agent must ignore it.
    (packages,) = image.folder.glob("lib/python3*/site-packages")
    environ["PYTHONPATH"] = str(packages)
    done = subprocess.run(
        [str(built["pod-agent"])],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rehearsal passed" in done.stdout
    assert image.freeze() == before


def test_the_documented_line_of_pip(built: dict[str, Path], tmp_path: Path) -> None:
    """An editable package breaks a constraints file; the documented line leaves it out."""
    text = (REPO / "docs/install.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^pip install --constraint .*$", text, re.MULTILINE)
    project = tmp_path / "theirs"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "theirs"\nversion = "1"\n',
        encoding="utf-8",
    )
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    environ = {**os.environ, "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    output(["pip", "install", "--quiet", "psutil==5.9.8", "-e", str(project)], environ)
    assert " @ " in (frozen := output(["pip", "freeze"], environ)) or "-e " in frozen
    assert "'.[maths]'" in line
    (wheel,) = (path for name, path in built.items() if name.endswith(".whl"))
    command = line.replace("'.[maths]'", f"--no-deps --dry-run psutil {wheel}")
    assert "pod-agent" in output(["bash", "-c", command], environ)
