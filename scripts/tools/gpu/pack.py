"""The folder that travels: our wheel, and the wheels that the machine with the GPU lacks."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.build.lock import BuildError, Target, pins, run_pip
from tools.build.make import commit_time, distributions

MOST_BYTES = 40_000_000
OURS = ("structlog", "tenacity", "msgspec")
"""Libraries of the agent, at their pinned versions; aiohttp and the like are there."""
TRAINING = ("trl==1.16.*", "datasets", "dill<0.4.2", "multiprocess<0.70.20", "xxhash")
"""TRL and what it lacks there, at versions that it accepts."""
DIAGNOSIS = ("py-spy",)


def main(folder: Path, python: str) -> int:
    """Make the folder anew, and say what is in it."""
    minor = int(python.removeprefix("3."))
    try:
        wheels = fill(folder, Target(minor, "x86_64"))
    except (BuildError, subprocess.SubprocessError) as error:
        print(f"scripts/gpu: {error}", file=sys.stderr)
        return 1
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 1e6:6.2f} MB  {wheel.name}")
    size = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{size / 1e6:6.2f} MB  in {folder}, for Python {python} on x86-64")
    if size > MOST_BYTES:
        print(f"scripts/gpu: that is more than {MOST_BYTES / 1e6:g} MB", file=sys.stderr)
        return 1
    return 0


def fill(folder: Path, target: Target) -> list[Path]:
    """Replace the wheels in a folder; return them."""
    pinned = pins(target)
    wanted = [f"{name}=={pinned[name]}" for name in OURS]
    with tempfile.TemporaryDirectory() as place:
        new = Path(place, "new")
        options = target.pip_options()
        run_pip("download", "--no-deps", *options, "--dest", str(new), *wanted)
        run_pip("download", "--no-deps", *options, "--dest", str(new), *TRAINING, *DIAGNOSIS)
        built = Path(place, "built")
        built.mkdir()
        wheel, _ = distributions(built, b"", commit_time())
        shutil.copyfile(wheel, new / wheel.name)
        for old in folder.glob("*.whl"):
            old.unlink()
        shutil.copytree(new, folder, dirs_exist_ok=True)
    return sorted(folder.glob("*.whl"))
