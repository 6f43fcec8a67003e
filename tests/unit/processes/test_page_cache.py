"""Reading a model's weights ahead: what is read, and that the loader reads nothing again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.base.text import own_command
from agent.node.read_figures import HostMemory
from agent.processes import page_cache
from agent.processes.page_cache import read_ahead
from support.disks import needs_mount
from tools.lab.slow_disk import Speed, mounted

MB = 1_000_000
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def write(folder: Path, *names: str, size: int) -> None:
    """Write files of this size."""
    for name in names:
        with (folder / name).open("wb") as file:
            file.truncate(size)


@pytest.mark.parametrize(
    ("names", "read"),
    [
        ((*SHARDS, "consolidated.safetensors", "pytorch_model.bin", "model.gguf"), 2),
        (("consolidated.safetensors", "pytorch_model.bin"), 1),
        (("pytorch_model.bin", "config.json"), 1),
        (("config.json",), 0),
    ],
    ids=["shards", "other names", "pickles", "no weights"],
)
def test_weights_of_one_format_are_read(tmp_path: Path, names: tuple[str, ...], read: int) -> None:
    """Not a second copy of them, nor what other libraries load."""
    write(tmp_path, *names, size=70 * MB)
    sentence, is_read = read_ahead(str(tmp_path), None, {})
    assert is_read
    assert sentence.startswith(f"{read * 0.07:.1f} GB in {read} file(s) are in the page cache (")


def test_no_more_than_a_share_of_the_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is left on the disk."""
    write(tmp_path, *SHARDS, size=400 * MB)
    monkeypatch.setattr(page_cache, "read_host_memory", lambda: HostMemory(0, 500 * MB))
    sentence, _ = read_ahead(str(tmp_path), None, {})
    assert sentence.startswith("0.4 GB of 0.8 GB in 2 file(s) are in the page cache (")
    assert sentence.endswith("which is 90% of the free memory")


def test_an_error_of_the_disk_is_named(tmp_path: Path) -> None:
    """It ends the reading and no more."""
    (tmp_path / "model.safetensors").mkdir()
    sentence, is_read = read_ahead(str(tmp_path), None, {})
    assert sentence.startswith("not read ahead: ")
    assert not is_read


def test_a_model_that_is_not_here(tmp_path: Path) -> None:
    """Neither a folder nor in the cache."""
    sentence, is_read = read_ahead("acme/none", None, {"HF_HOME": str(tmp_path)})
    assert (sentence, is_read) == ("not read ahead: it is not on this machine", False)


def test_a_model_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    """The commit of its revision, through the links of the snapshot."""
    folder = tmp_path / "hub/models--acme--m"
    (folder / "snapshots/c0ffee").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("c0ffee")
    (folder / "blob").write_bytes(b"w" * 100)
    (folder / "snapshots/c0ffee/model.safetensors").symlink_to("../../blob")
    env = {"HF_HOME": str(tmp_path), "PATH": "/bin"}
    argv = own_command(sys.executable, "read-ahead", "acme/m")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("0.0 GB in 1 file(s) are in the page cache (")


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
