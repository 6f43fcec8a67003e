"""The images, built once: Debian, Debian with a framework's libraries, the agent over each."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from image.builder import DEBIANS_PYTHON, OLD_TENACITY, PINS, Store
from support.scenario import need_lab
from tools.layer.install import pinned_libraries

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Return a store with two bases: `debian`, and `framework` with Ray and an old tenacity.

    The framework's image protects its pins and libraries by PIP_CONSTRAINT and PYTHONPATH, as some
    real ones do.
    """
    need_lab()
    absent = [tool for tool in ("buildah", "debootstrap") if shutil.which(tool) is None]
    if absent:
        reason = f"the image's tests need {' and '.join(absent)} (Debian packages of that name)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    folder: Path = tmp_path_factory.mktemp("images")
    made = Store(folder)
    pins = (PINS / "ray.txt").read_text().split()
    ray = next(pin for pin in pins if pin.startswith("ray==")).removeprefix("ray==")
    libraries = folder / "libraries.txt"
    libraries.write_text("\n".join(pinned_libraries(DEBIANS_PYTHON)))
    made.download(
        "--require-hashes",
        *(f"--requirement={file}" for file in (PINS / "ray.txt", PINS / "build.txt", libraries)),
    )
    made.download(f"tenacity=={OLD_TENACITY}")
    made.bootstrap("debian")
    install = "RUN pip install --quiet --break-system-packages"
    done = made.over(
        "framework",
        "debian",
        f"{install} 'ray[default]=={ray}' tenacity=={OLD_TENACITY}",
        f"RUN echo tenacity=={OLD_TENACITY} >/etc/pip-constraint.txt",
        "RUN mkdir -p /workspace/lib && echo '1 / 0' >/workspace/lib/anyio.py",
        "ENV PIP_CONSTRAINT=/etc/pip-constraint.txt PYTHONPATH=/workspace/lib",
        "WORKDIR /workspace",
    )
    assert done.returncode == 0, done.stderr
    yield made
    made.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def over_framework(store: Store) -> subprocess.CompletedProcess[str]:
    """Build `agent`, the image over the framework's."""
    return store.build("agent", BASE="localhost/framework")
