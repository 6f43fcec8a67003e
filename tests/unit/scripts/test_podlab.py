"""The pod lab's pure parts: addresses, commands, files and packets, without root."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tools.lab import dns, lab, launch, leftovers, mounts, network
from tools.lab.container import parse_environ, parse_status
from tools.lab.errors import LabError
from tools.lab.waiting import until

SHAPE = network.Shape()
PORTS = [network.Port(i, f"pod{i}", f"podlab-1-1-pod-pod{i}", SHAPE) for i in range(3)]
NUMBER = 4711


def test_addresses_count_from_ten() -> None:
    """Pod i is 10.77.0.(10+i), its decoy 172.31.250.(10+i), and DNS answers at 10.77.0.1."""
    assert [port.ip for port in PORTS] == ["10.77.0.10", "10.77.0.11", "10.77.0.12"]
    assert PORTS[2].decoy_ip == "172.31.250.12"
    assert SHAPE.gateway == "10.77.0.1"


def test_default_route_is_by_the_decoy() -> None:
    """The pod's only default route uses eth0, and the void's links are in no bridge."""
    lines = network.pod_batch(PORTS[0], PORTS)
    assert [line for line in lines if "default" in line] == [
        "route add default via 172.31.250.1 dev eth0"
    ]
    assert not any("master" in line or "bridge" in line for line in network.void_batch(PORTS))


def test_every_pod_is_a_port_of_the_bridge() -> None:
    """The hub makes one link into each pod, under the interface's configured name."""
    shape = network.Shape(interface="ens1")
    lines = network.hub_batch([network.Port(0, "a", "ns-a", shape)])
    assert "link add port0 type veth peer name ens1 address 02:77:00:00:00:0a netns ns-a" in lines
    assert "link set port0 master lab up" in lines


@pytest.mark.parametrize(
    ("pods", "names", "expected"),
    [
        (2, None, ["pod0", "pod1"]),
        (9, ["abc123", "x-pod-y"], ["abc123", "x-pod-y"]),
    ],
)
def test_names(pods: int, names: list[str] | None, expected: list[str]) -> None:
    """Names are podN, or the given ones, which then also set the number."""
    assert lab.checked_names(pods, names) == expected


@pytest.mark.parametrize(
    ("pods", "names", "word"),
    [
        (0, None, "1 to"),
        (1000, None, "1 to"),
        (1, ["Pod_A"], "host name"),
        (1, ["-a"], "host name"),
        (1, ["a.b"], "host name"),
        (2, ["a", "a"], "differ"),
    ],
)
def test_wrong_names(pods: int, names: list[str] | None, word: str) -> None:
    """Invalid host names are refused before anything is made."""
    with pytest.raises(LabError, match=word):
        lab.checked_names(pods, names)


@pytest.mark.parametrize("interface", ["eth0", "lo", "sixteen-letters-"])
def test_wrong_interfaces(interface: str) -> None:
    """Interfaces must differ from each other and fit the kernel's 15 characters."""
    with pytest.raises(LabError, match="interfaces"):
        lab.Lab(1, interface=interface)


def test_unknown_unpublished_name() -> None:
    """A typo in unpublished is an error."""
    with pytest.raises(LabError, match="podX"):
        lab.Lab(1, unpublished=["podX"])


def test_hosts_of_dns() -> None:
    """A name without a dot is known in both forms, a full one as it is."""
    table = {"pod1": "10.77.0.11", "other.example": "10.77.0.9"}
    assert dns.hosts_text(table, "runpod.internal") == (
        "10.77.0.9 other.example\n10.77.0.11 pod1.runpod.internal pod1\n"
    )


def reply(code: int, *records: bytes) -> bytes:
    """Write a DNS reply to a question for a.b."""
    head = struct.pack("!6H", NUMBER, 0x8180 | code, 1, len(records), 0, 0)
    return head + dns.question(NUMBER, "a.b")[12:] + b"".join(records)


A_RECORD = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\x0a\x4d\0\x0a"
CNAME_RECORD = b"\xc0\x0c\0\5\0\1\0\0\0\0\0\3\1c\0"


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (reply(0, A_RECORD), "10.77.0.10"),
        (reply(0, CNAME_RECORD, A_RECORD), "10.77.0.10"),
        (reply(0, CNAME_RECORD), ""),
        (reply(0), ""),
        (reply(dns.NXDOMAIN), ""),
        (dns.question(NUMBER, "a.b"), None),
        (dns.question(NUMBER + 1, "a.b"), None),
    ],
)
def test_dns_answers(packet: bytes, expected: str | None) -> None:
    """An address, "no such name", and a reply to another query are distinguished."""
    assert dns.answer(packet, NUMBER) == expected


def test_dns_question() -> None:
    """A question is one A query with recursion desired."""
    assert dns.question(1, "ab.c") == b"\0\1\1\0\0\1\0\0\0\0\0\0\2ab\1c\0\0\1\0\1"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/tmp/repo", "/r/tmp/repo"),
        ("/dev/shm/a/b", "/r/shm/a/b"),
        ("/run/resolv.conf", "/r/run/resolv.conf"),
        ("/tmp", None),
        ("/tmpfs", None),
        ("/etc/hosts", None),
    ],
)
def test_staged(path: str, expected: str | None) -> None:
    """Only paths inside a private folder are prepared there."""
    found = mounts.staged(Path(path), Path("/r"))
    assert (str(found) if found else None) == expected


def test_mounts_are_moved_last_and_tmp_after_all() -> None:
    """Sources are in /tmp, so /tmp is mounted last but for /proc; outer paths before inner."""
    needed = [Path("/opt/x"), Path("/tmp/repo"), Path("/tmp/repo/.venv")]
    plan = mounts.mount_plan(Path("/tmp/l/0"), Path("/etc/netns/n"), "1g", needed)
    moves = [step["target"] for step in plan if step["kind"] == "move"]
    assert moves == ["/sys", "/run", "/dev/shm", "/tmp"]
    assert [step["target"] for step in plan][-2:] == ["/tmp", "/proc"]
    placed = [step["source"] for step in plan if step["kind"] == "place"]
    assert "/tmp/repo" in placed
    assert not {"/opt/x", "/tmp/repo/.venv"} & set(placed)
    assert "size=1g" in next(step["options"] for step in plan if "shm" in step["target"])


def test_an_images_mounts_lie_in_its_own_file_system() -> None:
    """The image is mounted below, read-only; all other mounts are inside and move with it."""
    root = Path("/tmp/l/0")
    volumes = {"/workspace": Path("/var/tmp/shared")}
    plan = mounts.image_mount_plan(Path("/images/x"), root, Path("/etc/netns/n"), "1g", volumes)
    top = mounts.image_root(root)
    at = next(i for i, step in enumerate(plan) if step["kind"] == "overlay")
    assert plan[at]["options"].startswith("lowerdir=/images/x,upperdir=/tmp/l/0/image/")
    assert Path(plan[at]["target"]) == top
    assert all(Path(step["target"]).is_relative_to(top) for step in plan[at:])
    placed = {step["target"]: step["source"] for step in plan if step["kind"] == "place"}
    assert placed[f"{top}/workspace"] == "/var/tmp/shared"


def test_needed_paths_hold_the_repository() -> None:
    """Pods see the checkout at any place, and a test's shared folders."""
    root = Path(__file__).parents[3]
    assert {root, Path("/usr")} <= set(mounts.needed_paths([Path("/usr"), Path("/nowhere")]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("podlab-12-3-hub", ("podlab-12-3", 12)),
        ("podlab-12-3-pod-a-b", ("podlab-12-3", 12)),
        ("podlab-12-3", ("podlab-12-3", 12)),
        ("podlab-x-3", None),
        ("podlab-12", None),
        ("other", None),
    ],
)
def test_creator_of(name: str, expected: tuple[str, int] | None) -> None:
    """Only names of our own pattern count as a lab's."""
    assert leftovers.creator_of(name) == expected


def test_is_dead_goes_by_start_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running creator's lab is kept; a reused PID does not count."""
    monkeypatch.setattr(leftovers, "STATE_DIR", tmp_path)
    me = os.getpid()
    assert not leftovers.is_dead("podlab-1-1", me)
    owner = tmp_path / "podlab-1-1" / lab.OWNER
    owner.parent.mkdir()
    owner.write_text(lab.start_time(me))
    assert not leftovers.is_dead("podlab-1-1", me)
    owner.write_text("1")
    assert leftovers.is_dead("podlab-1-1", me)
    assert leftovers.is_dead("podlab-1-2", 2**22 + 1)


def test_folder_with_a_mount_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount inside the folder leads to other files, which must not be deleted."""
    monkeypatch.setattr(lab, "mount_points", lambda: [f"{tmp_path}/pods/0/tmp/repo"])
    with pytest.raises(LabError, match="not removed"):
        lab.remove_folder(tmp_path)
    assert tmp_path.exists()
    monkeypatch.setattr(lab, "mount_points", lambda: ["/", "/proc"])
    lab.remove_folder(tmp_path)
    assert not tmp_path.exists()


def test_proc_texts() -> None:
    """Status and environ of a process are read as the kernel writes them."""
    status = parse_status("Name:\tray::IDLE\nState:\tZ (zombie)\nNSpid:\t900\t7\n")
    assert status == {"Name": "ray::IDLE", "State": "Z (zombie)", "NSpid": "900\t7"}
    assert parse_environ(b"A=1\0B=x=y\0junk\0") == {"A": "1", "B": "x=y"}


def test_until() -> None:
    """A condition's value is returned; a timeout names the condition."""
    assert until(lambda: 7, 0, "seven") == 7
    with pytest.raises(TimeoutError, match="rain: not within"):
        until(lambda: None, 0.05, "rain")


def test_file_target_is_made(tmp_path: Path) -> None:
    """Where a mount is to be placed, a file or directory like its source is made."""
    source = tmp_path / "file"
    source.touch()
    launch._make_room(str(source), str(tmp_path / "a/b"))  # noqa: SLF001 - pure enough to test
    launch._make_room(str(tmp_path), str(tmp_path / "c/d"))  # noqa: SLF001 - same
    assert (tmp_path / "a/b").is_file()
    assert (tmp_path / "c/d").is_dir()
