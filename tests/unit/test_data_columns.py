"""The columns of a data file, which recipes ask for by name."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from agent.node.read import columns_of

if TYPE_CHECKING:
    from pathlib import Path

CHAT = [{"role": "user", "content": "3+4?"}]
FOOTER = base64.b64decode("""
FQQZzDUAGAZzY2hlbWEVCgAVDCUCGAtkYXRhX3NvdXJjZSUATBwAAAA1AhgGcHJvbXB0FQIVBkw8AAAANQQYBGxpc3QV
AgA1AhgHZWxlbWVudBUEABUMJQIYBHJvbGUlAEwcAAAAFQwlAhgHY29udGVudCUATBwAAAA1AhgMcmV3YXJkX21vZGVs
FQQAFQwlAhgFc3R5bGUlAEwcAAAAFQwlAhgMZ3JvdW5kX3RydXRoJQBMHAAAABUKJQIYBWV4dHJhABUCJQIYBG5vbmVs
vAAAABYCGRwZfCYAHBUMGTUABhAZGAtkYXRhX3NvdXJjZRUAFgIWZhZmJjYmCCksFQQVABUCABUAFRAVAgA8FgoZBhkm
AAIAAAAmABwVDBk1AAYQGUgGcHJvbXB0BGxpc3QHZWxlbWVudARyb2xlFQAWAhZwFnAmmgEmbiksFQQVABUCABUAFRAV
AgA8FggZJgIAGVYAAAAAAgAAACYAHBUMGTUABhAZSAZwcm9tcHQEbGlzdAdlbGVtZW50B2NvbnRlbnQVABYCFnAWcCaK
AibeASksFQQVABUCABUAFRAVAgA8FggZJgIAGVYAAAAAAgAAACYAHBUMGTUABhAZKAxyZXdhcmRfbW9kZWwFc3R5bGUV
ABYCFmQWZCb6AibOAiksFQQVABUCABUAFRAVAgA8FggZBhk2AAACAAAAJgAcFQwZNQAGEBkoDHJld2FyZF9tb2RlbAxn
cm91bmRfdHJ1dGgVABYCFl4WXibYAyayAyksFQQVABUCABUAFRAVAgA8FgIZBhk2AAACAAAAJgAcFQoZNQAGEBkYBWV4
dHJhFQAWAhZkFmQmvAQmkAQpLBUEFQAVAgAVABUQFQIAPCkGGSYAAgAAACYAHBUCGTUABhAZGARub25lFQAWAhZQFlAm
kAUm9AQpLBUEFQAVAgAVABUQFQIAPCkGGSYCAAAAABa8BRYCJggWvAUAKCBwYXJxdWV0LWNwcC1hcnJvdyB2ZXJzaW9u
IDI2LjAuMRl8HAAAHAAAHAAAHAAAHAAAHAAAHAAAABYDAABQQVIx
""")
"""The footer of a file that pyarrow 22 wrote, with rows as verl's gsm8k.py makes them."""
VERL = {
    "data_source": False,
    "prompt": True,
    "reward_model": False,
    "extra": False,
    "none": False,
}


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
        ("a.parquet", "PAR1 no footer PAR1", None),
        ("a.parquet", "PAR1", None),
        ("a.txt", "input", None),
    ],
)
def test_columns(tmp_path: Path, name: str, text: str, found: dict[str, bool] | None) -> None:
    """The first row has them; what cannot be read is left to the framework."""
    (tmp_path / name).write_text(text)
    assert columns_of(str(tmp_path / name)) == found
    assert columns_of(str(tmp_path)) == found  # a folder of such files


def test_the_footer_of_parquet(tmp_path: Path) -> None:
    """Top-level columns in their order, however deep the others lie."""
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(64) + FOOTER)
    assert columns_of(str(tmp_path / "a.parquet")) == VERL


@pytest.mark.parametrize("at", range(0, len(FOOTER) - 8, 7))
def test_a_damaged_footer(tmp_path: Path, at: int) -> None:
    """Any byte may be wrong: some columns, or none, and no error."""
    damaged = bytearray(FOOTER)
    damaged[at] ^= 0xFF
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(damaged))
    found = columns_of(str(tmp_path / "a.parquet"))
    assert found is None or isinstance(found, dict)


def test_an_id_of_the_hub_is_not_known() -> None:
    """Only a file of this machine is read."""
    assert columns_of("org/data") is None
    assert columns_of("/no/such/file.jsonl") is None
