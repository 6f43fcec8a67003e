"""Reading a model ahead: its files in order, and never against other programs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from agent.base.text import own_command
from agent.node.read_figures import HostMemory
from agent.processes import page_cache
from agent.processes.page_cache import FreeMemory, ReadAhead, files_in_order, pressure, read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GB = 1_000_000_000


def room(free: int = 10 * GB, stalled: float = 0.0) -> FreeMemory:
    """Return the room of a machine with so much free memory."""
    return FreeMemory(lambda: HostMemory(2 * GB, 2 * GB + free), lambda: stalled)


def model_in(folder: Path, shards: int = 3, size: int = 1000) -> Path:
    """Write a model of some shards with an index, and a copy of its weights in another format."""
    folder.mkdir()
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)]
    for name in (*names, "pytorch_model.bin", "model.gguf", "consolidated.safetensors"):
        (folder / name).write_bytes(b"w" * size)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.model").write_bytes(b"t")
    weight_map = {f"layer.{n}": name for n, name in enumerate(reversed(names))}
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def test_the_order(tmp_path: Path) -> None:
    """Small files first, then the shards of the index by name: no second copy of the weights."""
    names = [path.name for path in files_in_order(model_in(tmp_path / "m"))]
    assert names == [
        *("config.json", "model.safetensors.index.json", "tokenizer.model"),
        *(f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)),
    ]


@pytest.mark.parametrize("index", ["[]", "[" * 100_000], ids=["list", "nested"])
def test_weights_without_an_index(tmp_path: Path, index: str) -> None:
    """All files of the preferred format, also where the index cannot be read."""
    (tmp_path / "b.safetensors").write_bytes(b"w")
    (tmp_path / "a.safetensors").write_bytes(b"w")
    (tmp_path / "a.bin").write_bytes(b"w")
    (tmp_path / "x.safetensors.index.json").write_text(index)
    names = [path.name for path in files_in_order(tmp_path)]
    assert names == ["x.safetensors.index.json", "a.safetensors", "b.safetensors"]
    assert files_in_order(tmp_path / "a.bin") == [tmp_path / "a.bin"]


def test_all_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of each file, by several threads, in parts that may end anywhere."""
    monkeypatch.setattr(page_cache, "_PART", 1000)
    monkeypatch.setattr(page_cache, "_READ", 300)
    files = files_in_order(model_in(tmp_path / "m", size=12_345))
    reading = ReadAhead(files, room())
    sentence = reading.run()
    whole = sum(path.stat().st_size for path in files)
    assert reading.read == whole
    assert sentence.startswith("0.0 GB in 6 file(s) are in the page cache (")


def test_no_more_than_the_free_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first files, up to nine tenths of it: loaders read these first."""
    monkeypatch.setattr(page_cache, "_PART", 1000)
    files = files_in_order(model_in(tmp_path / "m", size=100_000))
    reading = ReadAhead(files, room(free=100_000))
    assert "which is 90% of the free memory" in reading.run()
    assert 88_000 <= reading.read <= 90_000


@pytest.mark.parametrize(
    ("later", "stalled"),
    [(lambda: HostMemory(96, 100), 0.0), (lambda: HostMemory(0, 100), 50.0)],
    ids=["memory", "pressure"],
)
def test_it_stops_for_other_programs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    later: Callable[[], HostMemory],
    stalled: float,
) -> None:
    """As soon as another program has taken the memory, or waits for some."""
    go = threading.Event()
    monkeypatch.setattr(ReadAhead, "_read_part", lambda *_: go.wait(5))
    answers = [HostMemory(0, 100)]
    narrow = FreeMemory(lambda: answers[-1], lambda: stalled)
    answers.append(later())
    reading = ReadAhead(files_in_order(model_in(tmp_path / "m", size=1)), narrow)
    monkeypatch.setattr(reading, "_parts", iter([None] * 0))
    monkeypatch.setattr(reading, "_parts", (part for part in [page_cache.Part(tmp_path, 0, 1)] * 9))
    assert "other programs need the memory" in reading.run()
    go.set()


def test_memory_that_was_filled_is_no_loss() -> None:
    """The page cache counts as free: only what other programs took is needed."""
    memory = [HostMemory(0, 100)]
    wide = FreeMemory(lambda: memory[-1], lambda: 0.0)
    assert wide.size == 90
    assert not wide.is_needed(90)
    memory.append(HostMemory(4, 100))
    assert not wide.is_needed(90)
    memory.append(HostMemory(6, 100))
    assert wide.is_needed(90)


def test_pressure_is_that_of_the_own_group(tmp_path: Path) -> None:
    """The kernel's figure of this container, else the machine's; 0 where there is none."""
    own = tmp_path / "cgroup"
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/\n")
    own.mkdir()
    assert pressure(proc, own) == 0.0
    (proc / "pressure").mkdir()
    (proc / "pressure/memory").write_text("some avg10=7.50 avg60=1.00 avg300=0.50 total=9\n")
    assert pressure(proc, own) == 7.5
    (own / "memory.pressure").write_text("some avg10=2.00 avg60=1.00 avg300=0.50 total=9\n")
    assert pressure(proc, own) == 2.0


def test_an_error_of_the_disk_is_named(tmp_path: Path) -> None:
    """It ends the reading and no more."""
    files = files_in_order(model_in(tmp_path / "m"))
    reading = ReadAhead(files, room())
    files[3].unlink()
    assert "No such file" in reading.run()


def test_a_model_that_is_not_here(tmp_path: Path) -> None:
    """Neither a folder nor in the cache."""
    sentence, is_read = read_ahead("acme/none", None, {"HF_HOME": str(tmp_path)}, room())
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
