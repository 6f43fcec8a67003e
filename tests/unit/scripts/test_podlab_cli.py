"""The pod lab by hand: its command line, the pods' identities, and what it prints."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from tools.lab import cli, rights
from tools.lab.stream import Follower, prefix

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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


def test_follower_hands_on_whole_lines(tmp_path: Path) -> None:
    """A line appears when it is complete, the last one also without its end."""
    path, sink = tmp_path / "log", io.StringIO()
    path.touch()
    follower = Follower(path, prefix("pod0", 5, 0, color=False), sink)
    with path.open("a") as log:
        log.write("one\ntw")
        log.flush()
        follower.step()
        assert sink.getvalue() == "pod0  | one\n"
        log.write("o\nthree")
    follower.close()
    assert sink.getvalue() == "pod0  | one\npod0  | two\npod0  | three\n"
