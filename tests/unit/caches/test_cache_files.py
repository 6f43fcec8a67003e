"""Which files are archived, which archives are removed, and when to write."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from psutil import _psutil_linux

from agent.base import times
from agent.caches import cache_files
from agent.caches.cache_files import (
    HEAD_BYTES,
    CacheFile,
    CacheLook,
    OldArchive,
    choose_files,
    has_news,
    is_archived,
    is_due,
    is_safe,
    is_whole,
    look_of,
    outdated,
    settled,
)

DAY = 24 * 3600.0


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("triton/ab/kernel.cubin", True),
        ("vllm/torch_compile_cache/ab/rank_0_0/x.py", True),
        ("flashinfer/.cache/flashinfer/90a/cached_ops/x.so", True),
        ("torch_extensions/py311/ext/ext.so", True),
        ("torch_extensions/py311/ext/lock", False),  # the loader would wait for it forever
        ("inductor/locks/abc.lock", False),
        ("triton/tmp.pid_12_ab/kernel.ptx", False),
        ("deep_gemm/tmp/12/kernel.cubin", False),
        ("vllm/gpu_p2p_access_cache_for_0,1.json", False),
        ("vllm/assets/image.png", False),
        ("hf_modules/transformers_modules/x.py", False),
        ("other/x.py", False),
    ],
)
def test_which_files_are_archived(path: str, *, expected: bool) -> None:
    """What is wrong or of no use on another node is left out."""
    assert is_archived(path) == expected


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../x", "triton/../../x", "triton", "triton//x", "triton/./x", ""),
        *("triton/x\n", "triton/\0x", "triton\\..\\x/y", "triton/.pod-agent/kind"),
        "triton/" + "x" * cache_files.LONGEST_PATH,
    ],
)
def test_unsafe_paths(path: str) -> None:
    """No path of an archive leaves the caches."""
    assert not is_safe(path)


def test_the_newest_files_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all fit, the oldest are left out; one that is too large is, too."""
    monkeypatch.setattr(cache_files, "MOST_BYTES", 100)
    monkeypatch.setattr(cache_files, "LARGEST_FILE", 60)
    files = [CacheFile("triton/a/old", 60, 1), CacheFile("triton/a/new", 50, 3)]
    files += [CacheFile("triton/a/large", 61, 9), CacheFile("triton/a/small", 40, 2)]
    chosen = choose_files(files)
    assert [file.path for file in chosen] == ["triton/a/new", "triton/a/small"]
    assert look_of(chosen) == CacheLook(2, 90, 3e-9)


def test_news() -> None:
    """A file is new if its path or its size is."""
    files = [CacheFile("triton/a/x", 5, 1)]
    assert has_news(files, set())
    assert has_news(files, {("triton/a/x", 4)})
    assert not has_news(files, {("triton/a/x", 5), ("triton/b/y", 1)})


def test_settled_files() -> None:
    """Of a folder whose writers were killed: what was whole then, and what the archive has."""
    earlier = CacheFile("triton/a/earlier", 1, 50)
    of_others = CacheFile("triton/a/of-others", 1, 150)
    just_now = CacheFile("triton/a/just-now", 1, 150)
    files = (just_now, of_others, earlier)
    assert settled(files, {("triton/a/of-others", 1)}, before_ns=100) == (of_others, earlier)


KERNEL = struct.pack("<4sBB26xQQ6xHHHH", b"\x7fELF", 2, 1, 100, 0, 56, 1, 0, 0).ljust(156, b"\0")
"""The form of a GPU's kernel: its segments' table is at the end."""
LIBRARY = Path(_psutil_linux.__file__).read_bytes()
"""A real library, as a linker writes them."""


@pytest.mark.parametrize(
    ("path", "data", "whole"),
    [
        ("inductor/ab/x.so", LIBRARY, True),
        ("inductor/ab/x.so", LIBRARY[:-1], False),
        ("inductor/ab/x.so", LIBRARY[: len(LIBRARY) // 2], False),
        ("inductor/ab/x.so", LIBRARY[:40], False),
        ("inductor/ab/x.so", b"", False),
        # A linker writes the head of the file last.
        ("inductor/ab/x.so", bytes(64) + LIBRARY[64:], False),
        ("torch_extensions/x/y.o", LIBRARY[:-1], False),
        ("triton/ab/x.cubin", KERNEL, True),
        ("triton/ab/x.cubin", KERNEL[:-1], False),
        # Of another width or byte order, and files of other formats: nothing is known.
        ("triton/ab/x.cubin", b"\x7fELF\x01\x01\x01" + bytes(60), True),
        ("triton/ab/x.json", b"", True),
    ],
)
def test_whole_files(path: str, data: bytes, *, whole: bool) -> None:
    """A library, an object or a kernel that is cut is left out."""
    assert is_whole(path, data[:HEAD_BYTES], len(data)) is whole


def test_outdated_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that seeded no node for long is removed, and the oldest of too many bytes."""
    monkeypatch.setattr(cache_files, "MOST_OF_VOLUME", 100)
    now = 100 * DAY
    archives = [
        OldArchive("own", 60, now - 99 * DAY),
        OldArchive("unused", 1, now - 31 * DAY),
        OldArchive("second", 60, now - 2 * DAY),
        OldArchive("newest", 60, now),
    ]
    assert set(outdated(archives, "own", now)) == {"unused", "second"}


@pytest.mark.parametrize(
    ("look", "next_save", "expected"),
    [
        (CacheLook(3, 9, 100.0), 0.0, True),
        (CacheLook(3, 9, 101.0), 0.0, False),  # it may still compile
        (CacheLook(2, 8, 100.0), 0.0, False),  # as at the last write
        (CacheLook(0, 0, 0.0), 0.0, False),
        (CacheLook(0, 0, 100.0, 100.0), 0.0, True),  # Python's own files, of which there is no look
        (CacheLook(0, 0, 101.0, 101.0), 0.0, False),
        (CacheLook(3, 9, 100.0), 100.0 + times.CACHES_QUIET + 1, False),
    ],
)
def test_when_to_write(look: CacheLook, next_save: float, *, expected: bool) -> None:
    """Once something is new, no file has come for a while, and the last write is long ago."""
    now = 100.0 + times.CACHES_QUIET
    assert is_due(look, CacheLook(2, 8, 50.0), now, next_save) == expected
