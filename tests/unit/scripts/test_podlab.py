"""The pod lab without root: names that it refuses, labs that it removes, its command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tools.lab import cli, lab, leftovers, network, rights
from tools.lab.errors import LabError

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = network.Shape()
PORTS = [network.Port(i, f"pod{i}", f"podlab-1-1-pod-pod{i}", SHAPE) for i in range(3)]


def test_default_route_is_by_the_decoy() -> None:
    """The pod's only default route uses eth0, and the void's links are in no bridge."""
    lines = network.pod_batch(PORTS[0], PORTS)
    assert [line for line in lines if "default" in line] == [
        "route add default via 172.31.250.1 dev eth0"
    ]
    assert not any("master" in line or "bridge" in line for line in network.void_batch(PORTS))


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


def test_identity_is_the_same_but_for_the_pod() -> None:
    """--runpod gives every pod one environment, RUNPOD_POD_ID apart; --env wins over it."""
    names = ["a", "b", "c"]
    first, second = (cli.environment(n, names, [("X", "1")], runpod=True) for n in "ab")
    assert first == {
        "RUNPOD_POD_ID": "a",
        "HEAD_POD_ID": "a",
        "EXPECTED_WORKERS": "2",
        "X": "1",
    }
    assert {**first, "RUNPOD_POD_ID": "b"} == second
    given = [("EXPECTED_WORKERS", "9")]
    assert cli.environment("a", names, given, runpod=True)["EXPECTED_WORKERS"] == "9"
    assert cli.environment("a", names, [], runpod=False) == {}


def test_cannot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no lab can be made, the command says why in a sentence and ends with 77."""
    monkeypatch.setattr(cli, "missing", lambda: "the pod lab needs root")
    assert cli.main(["clean"]) == 77
    assert capsys.readouterr().err == "lab: the pod lab needs root\n"


def test_missing_names_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not root and no tools are distinguished, the latter with the packages' names."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "needs root" in str(rights.missing.__wrapped__())
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda _tool: None)
    assert "iproute2 dnsmasq-base" in str(rights.missing.__wrapped__())
