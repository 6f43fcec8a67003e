"""Two runs at once on a slow network volume: fifty times, and no file differs."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.disks import needs_mount
from tools.lab.slow_disk import served
from tools.lab.slow_volume import SlowVolume

ROUNDS = 50
DELAY = 0.01  # seconds of a request, at most
TESTS = Path(__file__).parents[2]

pytestmark = [pytest.mark.serial, pytest.mark.slow]


@needs_mount
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="there is no FUSE")
def test_two_runs_at_once_on_a_slow_volume(tmp_path: Path) -> None:
    """Two pods mount it. On each, a run writes archives while fresh nodes are seeded from them."""
    source = tmp_path / "source"
    source.mkdir()
    volume = SlowVolume(source, DELAY)
    with ExitStack() as stack:
        places = []
        for pod in ("a", "b"):
            place = tmp_path / f"volume-{pod}"
            place.mkdir()
            stack.enter_context(served(volume, place))
            places.append(place)
        first = started("write", "first", tmp_path, places[0], 1)
        assert "written to" in first.communicate(timeout=60)[0]

        programs = {
            (role, pod): started(role, f"{role}-{pod}", tmp_path, place, ROUNDS)
            for pod, place in zip("ab", places, strict=True)
            for role in ("write", "read")
        }
        lines = {
            who: program.communicate(timeout=200)[0].splitlines()
            for who, program in programs.items()
        }
    assert [program.returncode for program in programs.values()] == [0] * 4

    wrote = [*lines["write", "a"], *lines["write", "b"]]
    assert [line for line in wrote if "written to" not in line] == []
    was_seeded = [*lines["read", "a"], *lines["read", "b"]]
    assert [line for line in was_seeded if not line.startswith("seeded, 0 wrong: ")] == []
    assert (len(wrote), len(was_seeded)) == (2 * ROUNDS, 2 * ROUNDS)
    assert [
        file.name for file in (source / "caches").iterdir() if file.name.endswith(".part")
    ] == []


def started(role: str, name: str, folder: Path, volume: Path, rounds: int) -> subprocess.Popen[str]:
    """Start a node that writes or is seeded so many times."""
    argv = [sys.executable, "-m", "support.cache_rounds", role, name, str(folder)]
    return subprocess.Popen(
        [*argv, f"{volume}/caches", str(rounds)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
