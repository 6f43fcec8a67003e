"""Images built with buildah in a private store, over a Debian made by debootstrap.

No registry and no container engine: wheels are downloaded outside and mounted into the build, where
pip may use no index.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEBIAN, DEBIANS_PYTHON = "bookworm", "3.11"
IN_DEBIAN = "python3,python3-pip,ca-certificates"
PINS = ROOT / "requirements"
BUILD_TIMEOUT = 600.0
OLD_TENACITY = "8.1.0"
"""Older than the agent requires: a framework pinned it."""


class Store:
    """Images and working containers in a folder; close() removes all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wheels = folder / "wheels"
        self._pip = folder / "pip.conf"
        self._pip.write_text("[global]\nno-index = true\nfind-links = /wheels\n")

    def download(self, *wanted: str) -> None:
        """Download pinned wheels for Debian's Python, with their dependencies."""
        target = ["--python-version", DEBIANS_PYTHON, "--only-binary", ":all:"]
        words = ["--quiet", "--dest", str(self._wheels), *target, *wanted]
        _run([sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *words])

    def bootstrap(self, name: str) -> None:
        """Make an image of Debian with its Python and pip, externally managed as in Debian."""
        root = self._folder / name
        _run(["debootstrap", "--variant=minbase", f"--include={IN_DEBIAN}", DEBIAN, str(root)])
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", "--quiet", container, str(root), "/")
        self.buildah("commit", "--quiet", "--format", "docker", container, f"localhost/{name}")
        self.buildah("rm", container)

    def build(
        self, name: str, context: Path = ROOT, **arguments: str
    ) -> subprocess.CompletedProcess[str]:
        """Build an image from a folder's Dockerfile, with build arguments."""
        volumes = (f"{self._wheels}:/wheels:ro", f"{self._pip}:/etc/pip.conf:ro")
        words = ["build", "--isolation", "chroot", "--format", "docker", "--pull-never"]
        words += [word for volume in volumes for word in ("--volume", volume)]
        words += [w for key, text in arguments.items() for w in ("--build-arg", f"{key}={text}")]
        return self._do([*words, "--tag", f"localhost/{name}", str(context)])

    def over(self, name: str, base: str, *lines: str) -> subprocess.CompletedProcess[str]:
        """Build an image from a few Dockerfile lines over another image."""
        context = self._folder / f"{name}-context"
        context.mkdir()
        (context / "Dockerfile").write_text("\n".join([f"FROM localhost/{base}", *lines, ""]))
        return self.build(name, context)

    def config(self, name: str) -> dict[str, Any]:
        """Return an image's configuration."""
        inspected = json.loads(self.buildah("inspect", "--type", "image", f"localhost/{name}"))
        config = inspected["Docker"]["config"]
        assert isinstance(config, dict)
        return config

    def mount(self, name: str) -> Path:
        """Return an image's root file system."""
        container = self.buildah("from", "--pull-never", f"localhost/{name}").strip()
        return Path(self.buildah("mount", container).strip())

    def close(self) -> None:
        """Unmount and remove every working container; the folder can then be removed."""
        self.buildah("umount", "--all")
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")

    def buildah(self, *words: str) -> str:
        """Run buildah; return its output, or raise on failure."""
        done = self._do(list(words))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _do(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        where = [f"--root={self._folder / 'store'}", f"--runroot={self._folder / 'run'}"]
        return subprocess.run(
            ["buildah", *where, *words],
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT,
            check=False,
        )


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
