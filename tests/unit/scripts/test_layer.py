"""The layer over a framework's image: no library there changes, or the build fails."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent import __version__
from tools.layer import install, moved

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "tools" / "layer" / "moved.py"
DOCKERFILE = (ROOT / "Dockerfile").read_text()


class Image:
    """A Python environment that plays an image's."""

    def __init__(self, place: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        self.python = place / "bin" / "python"
        self.packages = next(place.glob("lib/python3*/site-packages"))
        self.note = place / "base.json"

    def plant(self, name: str, version: str, **files: str) -> None:
        """Install a distribution with the files that pip would write."""
        info = self.packages / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for file, text in files.items():
            (self.packages / file).write_text(text)
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))

    def look(self, verb: str) -> subprocess.CompletedProcess[str]:
        """Run note or check, as the image's build does."""
        words = [str(self.python), str(SCRIPT), verb, str(self.note)]
        return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """Return an image with a framework's torch, CUDA, Ray and an older pydantic."""
    made = Image(tmp_path / "image")
    made.plant("torch", "2.4.0+cu121", libtorch="torch's code")
    made.plant("nvidia_cuda_runtime_cu12", "12.1.105", libcudart="CUDA's code")
    made.plant("ray", "2.40.0", raylet="Ray's code")
    made.plant("pydantic", "2.5.3", pydantic_core="")
    assert made.look("note").returncode == 0
    return made


def test_nothing_moved(image: Image) -> None:
    """New distributions are listed; the existing ones are unchanged."""
    image.plant("aiohttp_cors", "0.8.1")
    done = image.look("check")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("nothing moved: ")
    assert "4 distribution(s), 3 file(s)" in done.stdout
    assert "new: aiohttp-cors 0.8.1" in done.stdout


def test_what_moved_is_named(image: Image) -> None:
    """Another version, other content of the same version, or a missing file fails the check."""
    (image.packages / "pydantic-2.5.3.dist-info").rename(image.packages / "gone")
    image.plant("pydantic", "2.14.3")
    (image.packages / "libcudart").write_text("another CUDA's code")
    (image.packages / "raylet").unlink()
    done = image.look("check")
    assert done.returncode == 1
    assert "distribution pydantic was 2.5.3, is 2.14.3" in done.stderr
    assert f"file {image.packages}/libcudart has other content" in done.stderr
    assert f"file {image.packages}/raylet is gone" in done.stderr


def test_a_version_before_it_on_the_path_moved(image: Image, tmp_path: Path) -> None:
    """A second version earlier on the path is a change, although the first is still there."""
    before = json.loads(image.note.read_text())
    other = Image(tmp_path / "other")
    other.plant("ray", "2.60.0", raylet="another Ray's code")
    (image.packages / "first.pth").write_text(f"import sys; sys.path.insert(0, '{other.packages}')")
    done = image.look("check")
    assert done.returncode == 1
    assert "distribution ray was 2.40.0, is 2.60.0" in done.stderr
    assert before["distribution"]["ray"] == "2.40.0"


def test_system_packages(tmp_path: Path) -> None:
    """CUDA may be the system's: its packages are compared too, without removed ones."""
    status = tmp_path / "status"
    status.write_text(
        "Package: libcudnn8\nStatus: install ok installed\nArchitecture: amd64\nVersion: 8.9\n\n"
        "Package: old\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n"
    )
    assert moved._dpkg(status) == {"libcudnn8:amd64": "8.9"}  # noqa: SLF001 - the file's format
    assert moved._dpkg(tmp_path / "none") == {}  # noqa: SLF001 - same


def test_the_dockerfile_agrees_with_the_rest() -> None:
    """Version and Ray agree with the package and the pinned lists; no index, no shell form."""
    assert f"ARG VERSION={__version__}\n" in DOCKERFILE
    ray = next(w for w in DOCKERFILE.split() if w.startswith("RAY=")).removeprefix("RAY=")
    pins = (ROOT / "requirements" / "ray.txt").read_text().split()
    assert f"ray=={ray}" in pins
    assert 'ENTRYPOINT ["pod-agent"]' in DOCKERFILE
    assert "://" not in DOCKERFILE


@pytest.mark.parametrize("name", ["ray.txt", "dev.txt", "build.txt"])
def test_every_pin_has_digests(name: str) -> None:
    """Each line names one version and at least one digest: pip refuses any other file."""
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", "")
    pins = [line for line in text.splitlines() if not line.startswith("#")]
    assert pins
    for pin in pins:
        assert re.match(r"[\w.-]+==[\w.]+ ", pin), pin
        assert re.search(r" --hash=sha256:[0-9a-f]{64}\b", pin), pin


@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_the_agents_libraries_are_pinned(version: str) -> None:
    """Every requirement in pyproject.toml except Ray has a digest, as the one file has it."""
    pinned = install.pinned_libraries(version)
    names = {line.partition("==")[0] for line in pinned}
    assert {"aiohttp", "anyio", "msgspec", "psutil", "structlog", "tenacity"} <= names
    assert ("tomli" in names) == (version == "3.10")
    assert all("--hash=sha256:" in line for line in pinned)


def test_a_python_without_pinned_libraries_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is installed without digests: the build ends, and names what there is."""
    with pytest.raises(SystemExit) as ended:
        install.pinned_libraries("3.14")
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "cp314-" in said
    assert "cp313-x86_64" in said


DIGEST = "sha256:" + "0f" * 32


@pytest.mark.parametrize(
    ("answer", "code", "base"),
    [(DIGEST, 0, f"python:3.11-slim@{DIGEST}"), ("latest", 69, "python:3.11-slim")],
    ids=["a digest", "no digest"],
)
@pytest.mark.parametrize("tool", ["skopeo", "docker"])
def test_the_base_is_pinned(tmp_path: Path, tool: str, answer: str, code: int, base: str) -> None:
    """`scripts/pin --base` writes the registry's digest; running it twice changes nothing."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for needed in ("bash", "dirname", "sed"):
        (programs / needed).symlink_to(shutil.which(needed) or "")
    asked = programs / tool
    asked.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\necho {answer}\n')
    asked.chmod(0o755)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/pin", tmp_path / "scripts")
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    for _ in range(2):
        done = subprocess.run(
            [tmp_path / "scripts/pin", "--base"],
            env={"PATH": str(programs)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
    assert f"ARG BASE={base}\n" in (tmp_path / "Dockerfile").read_text()
    assert all("python:3.11-slim" in line for line in (tmp_path / "asked").read_text().splitlines())
    assert "@" not in (tmp_path / "asked").read_text()
