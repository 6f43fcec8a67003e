"""Limits of cgroups, read from trees of /proc and /sys as kernels and engines make them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agent.node import limits, read
from agent.node.read import gpu_fault
from agent.processes.oom import MemoryWatch
from support.machine_files import cgroup_tree

if TYPE_CHECKING:
    from pathlib import Path

ALL = len(os.sched_getaffinity(0))
"""As many as this process may use: no fixture can allow it more."""
V2 = "0::{path}\n"
V1 = "5:memory:{path}\n4:cpu,cpuacct:{path}\n3:cpuset:{path}\n1:name=systemd:{path}\n"


QUOTA = "100000 100000"
OF_V1 = {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}
SLURMS = "system.slice/slurmstepd.scope/job_7"
CPUS: dict[str, tuple[str, dict[str, str], int]] = {
    "no limit": (V2.format(path="/"), {"cpu.max": "max 100000"}, ALL),
    "a quota in a container's own root": (V2.format(path="/"), {"cpu.max": QUOTA}, 1),
    "a quota below one core": (V2.format(path="/"), {"cpu.max": "50000 100000"}, 1),
    "a step of Slurm's, deep inside": (
        V2.format(path=f"/{SLURMS}/step_0"),
        {f"{SLURMS}/cpu.max": QUOTA, "cpu.stat": "x"},
        1,
    ),
    "the host's path, seen from inside": (V2.format(path="/docker/abc"), {"cpu.max": QUOTA}, 1),
    "version 1": (V1.format(path="/"), OF_V1, 1),
    "version 1, both names in one": (
        V1.format(path="/docker/abc"),
        {name.replace("cpu/", "cpu,cpuacct/"): text for name, text in OF_V1.items()},
        1,
    ),
    "version 1, no quota": (V1.format(path="/"), {**OF_V1, "cpu/cpu.cfs_quota_us": "-1"}, ALL),
    "nonsense": (V2.format(path="/"), {"cpu.max": "many"}, ALL),
    "none of it": ("", {}, ALL),
}


@pytest.mark.parametrize(("lines", "files", "count"), CPUS.values(), ids=CPUS.keys())
def test_cpus(tmp_path: Path, lines: str, files: dict[str, str], count: int) -> None:
    """The tightest of affinity and quota counts, wherever it is set."""
    assert limits.cpus(*cgroup_tree(tmp_path, lines, files)) == count


V1_LIMIT = "memory/memory.limit_in_bytes"
MEMORY: dict[str, tuple[str, dict[str, str], int]] = {
    "no limit": (V2.format(path="/"), {"memory.max": "max"}, 1000),
    "version 2": (V2.format(path="/"), {"memory.max": "400"}, 400),
    "an outer one is tighter": (
        V2.format(path="/a/b"),
        {"a/b/memory.max": "900", "a/memory.max": "300", "memory.max": "max"},
        300,
    ),
    "version 1": (V1.format(path="/"), {V1_LIMIT: "500"}, 500),
    "version 1, endless": (V1.format(path="/"), {V1_LIMIT: "9223372036854771712"}, 1000),
}


@pytest.mark.parametrize(("lines", "files", "size"), MEMORY.values(), ids=MEMORY.keys())
def test_memory(tmp_path: Path, lines: str, files: dict[str, str], size: int) -> None:
    """The tightest limit counts, and the machine's own where none is set."""
    assert limits.memory(1000, *cgroup_tree(tmp_path, lines, files)) == size


def test_room_for_processes(tmp_path: Path) -> None:
    """The lowest pids.max is reported with its usage; `max` is no limit, and root has none."""
    files = {"a/pids.max": "2048", "a/pids.current": "48", "pids.max": "max", "pids.current": "9"}
    proc, base = cgroup_tree(tmp_path, V2.format(path="/a"), files)
    room = limits.process_room(0, proc, base)
    assert room is not None
    assert (room.left, room.limit) == (2000, "pids.max is 2048, 48 in use")
    (proc / "self/cgroup").write_text(V2.format(path="/"))
    assert limits.process_room(0, proc, base) is None


def test_the_real_machine_is_read() -> None:
    """Limits read on this machine are at most its resources."""
    assert 1 <= limits.cpus() <= ALL
    assert 0 < limits.memory(1 << 50) <= 1 << 50
    first, last = read.ephemeral_range()
    assert 0 < first < last <= 65_535
    assert all(a <= b for a, b in read.reserved_ranges())


@pytest.mark.parametrize(
    ("range_", "kept", "first", "second"),
    [
        ("32768\t60999\n", "\n", (32_768, 60_999), ()),
        ("1024 65535\n", "6379,8265-8272\n", (1024, 65_535), ((6379, 6379), (8265, 8272))),
        ("all\n", "some\n", (32_768, 60_999), ()),
        (None, None, (32_768, 60_999), ()),
    ],
    ids=["usual", "wide", "nonsense", "no /proc/sys"],
)
def test_the_kernels_ports(
    tmp_path: Path,
    range_: str | None,
    kept: str | None,
    first: tuple[int, int],
    second: tuple[tuple[int, int], ...],
) -> None:
    """Range and exceptions are read as the kernel writes them; else its own defaults are taken."""
    for name, text in (("ip_local_port_range", range_), ("ip_local_reserved_ports", kept)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert (read.ephemeral_range(tmp_path), read.reserved_ranges(tmp_path)) == (first, second)


def test_a_driver_that_lets_nobody_in(tmp_path: Path) -> None:
    """Device files without their driver are reported with the kernel's error."""
    (tmp_path / "nvidia0").touch()
    assert gpu_fault(tmp_path, "nvidia") == f"{tmp_path}/nvidiactl: no such file or directory"
    (tmp_path / "nvidiactl").touch()
    assert gpu_fault(tmp_path, "nvidia") == ""
    assert gpu_fault(tmp_path, "") == ""


# --- memory that ran out -------------------------------------------------------------------------

EVENTS = "low 0\nhigh 12\nmax 345\noom 3\noom_kill 2\noom_group_kill 0"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 2"
VMSTAT = "nr_free_pages 1\noom_kill 7"


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        (V2.format(path="/"), {"memory.events": EVENTS}, (2, True)),
        (V2.format(path="/pods/1"), {"pods/1/memory.events": EVENTS}, (2, True)),
        (
            V1.format(path="/docker/abc"),
            {"memory/docker/abc/memory.oom_control": CONTROL},
            (2, True),
        ),
        (V1.format(path="/docker/abc"), {"memory/memory.oom_control": CONTROL}, (2, True)),
        (V2.format(path="/"), {"memory.stat": "anon 1"}, (7, False)),
    ],
    ids=["v2, own root", "v2, deep inside", "v1", "v1, seen from inside", "none: the machine's"],
)
def test_what_the_kernel_ended_is_counted(
    tmp_path: Path, lines: str, files: dict[str, str], expected: tuple[int, bool]
) -> None:
    """By memory.events or memory.oom_control of our own cgroup, else by the machine's vmstat."""
    proc, base = cgroup_tree(tmp_path, lines, files)
    (proc / "vmstat").write_text(VMSTAT)
    assert limits.oom_kills(proc, base) == limits.OomKills(*expected)


def test_no_counter_counts_nothing(tmp_path: Path) -> None:
    """A machine without any of them reports none."""
    assert limits.oom_kills(*cgroup_tree(tmp_path, "", {})).number == 0


def test_an_oom_kill_is_reported_once_and_remembered_for_a_minute() -> None:
    """Kills counted before the start are not ours."""
    number, now = 5, 100.0
    watch = MemoryWatch(lambda: limits.OomKills(number, of_container=True), lambda: now)
    assert (watch.poll(), watch.recent()) == ("", "")
    number = 7
    sentence = "this container ran out of memory: the kernel's OOM killer ended 2 processes of it"
    assert (watch.poll(), watch.poll(), watch.recent()) == (sentence, "", sentence)
    now += 59
    assert watch.recent() == sentence
    now += 2
    assert watch.recent() == ""
    number = 8
    assert watch.recent().endswith("ended a process of it")


def test_an_oom_kill_on_a_shared_machine_is_reported_without_blame() -> None:
    """Without a cgroup's counter, another tenant's process may have been killed."""
    kills = iter((5, 6, 6))
    watch = MemoryWatch(lambda: limits.OomKills(next(kills), of_container=False))
    assert watch.poll().startswith("this machine ran out of memory")
    assert watch.recent() == ""
