"""Files of a slow disk that were read ahead are not read from it again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.base.text import own_command
from support.disks import needs_mount
from tools.lab.slow_disk import Speed, mounted

SIZE = 8 << 20


@needs_mount
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="there is no FUSE")
def test_the_loader_reads_nothing_again(tmp_path: Path) -> None:
    """Cold it reads all of a shard from the disk, and after `read-ahead` none of it."""
    source = tmp_path / "source"
    place = tmp_path / "slow"
    place.mkdir()
    source.mkdir()
    for name in ("a.safetensors", "b.safetensors"):
        (source / name).write_bytes(os.urandom(SIZE))
    with mounted(source, place, Speed(0.0, 1e9)) as disk:
        subprocess.run(["cat", place / "a.safetensors"], stdout=subprocess.DEVNULL, check=True)
        assert disk.bytes_read == SIZE
        argv = own_command(sys.executable, "read-ahead", str(place))
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        assert "in 2 file(s) are in the page cache" in done.stdout
        assert disk.bytes_read >= 2 * SIZE
        before = disk.bytes_read
        whole = subprocess.run(["cat", place / "b.safetensors"], capture_output=True, check=True)
        assert whole.stdout == (source / "b.safetensors").read_bytes()
        assert disk.bytes_read == before
    assert not Path("/proc/mounts").read_text().count(str(place))
