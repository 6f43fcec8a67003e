"""The columns of a data file, which recipes ask for by name."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from agent.node.read import columns_of

if TYPE_CHECKING:
    from pathlib import Path

CHAT = [{"role": "user", "content": "3+4?"}]
PYARROW = """
class Field:
    def __init__(self, name, type):
        self.name, self.type = name, type


def read_schema(path):
    if open(path).read() != "PAR1":
        raise ValueError("no parquet")
    return [Field("data_source", "string"), Field("prompt", "list"), Field("tools", "large_list")]


def is_list(kind):
    return kind == "list"


def is_large_list(kind):
    return kind == "large_list"
"""
"""A stand-in for the parts of pyarrow that are used."""


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.jsonl", json.dumps({"input": "3+4?", "label": "7"}), {"input": False, "label": False}),
        ("a.jsonl", json.dumps({"chosen": CHAT}) + "\n{", {"chosen": True}),
        ("a.csv", '"input, first",label\nx,y\n', {"input, first": False, "label": False}),
        ("a.jsonl", "[1, 2]", None),
        ("a.jsonl", "", None),
        ("a.csv", "", None),
        ("a.json", "{\n  'not json", None),
        ("a.txt", "input", None),
    ],
)
def test_columns(tmp_path: Path, name: str, text: str, found: dict[str, bool] | None) -> None:
    """The first row has them; what cannot be read is left to the framework."""
    (tmp_path / name).write_text(text)
    assert columns_of(str(tmp_path / name), sys.executable) == found
    assert columns_of(str(tmp_path), sys.executable) == found  # a folder of such files


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's Python reads it; without pyarrow there, the columns are not known."""
    (tmp_path / "a.parquet").write_text("PAR1")
    (tmp_path / "b.parquet").write_text("damaged")
    assert columns_of(str(tmp_path / "a.parquet"), sys.executable) is None
    for name in ("__init__", "parquet", "types"):
        (tmp_path / "site/pyarrow").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"site/pyarrow/{name}.py").write_text(PYARROW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    found = columns_of(str(tmp_path / "a.parquet"), sys.executable)
    assert found == {"data_source": False, "prompt": True, "tools": True}
    assert columns_of(str(tmp_path / "b.parquet"), sys.executable) is None
    assert columns_of(str(tmp_path / "a.parquet"), "/nowhere/python") is None


def test_an_id_of_the_hub_is_not_known() -> None:
    """Only a file of this machine is read."""
    assert columns_of("org/data", sys.executable) is None
    assert columns_of("/no/such/file.jsonl", sys.executable) is None
