"""The weights of the rehearsal's policy: complete in a folder, or refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.bundled.rehearsal_weights import INDEX, read_weights, write_weights

if TYPE_CHECKING:
    from pathlib import Path

POLICY = {"What is 3+4?": [0.1, -2.5], "What is 0+1?": [1e-9, 3.0], "What is 9+0?": [0.0, 0.0]}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """All logits are the same, and the index names the shards as a model's does."""
    write_weights(tmp_path / "weight_v000001", POLICY)
    assert read_weights(tmp_path / "weight_v000001") == POLICY
    index = json.loads((tmp_path / "weight_v000001" / INDEX).read_text())
    assert set(index["weight_map"]) == set(POLICY)
    files = {path.name for path in (tmp_path / "weight_v000001").iterdir()}
    assert files == {INDEX, *index["weight_map"].values()}


def test_a_shard_is_one_of_safetensors(tmp_path: Path) -> None:
    """Its header has the length, type, shape and place of each tensor."""
    write_weights(tmp_path / "w", {"a": [1.0, 2.0]})
    data = (tmp_path / "w" / "model-00001-of-00002.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert header == {"a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}
    assert len(data) == 8 + size + 16


def test_an_incomplete_folder_is_refused(tmp_path: Path) -> None:
    """Without its index, without a shard, with one that is cut short or lacks a tensor."""
    folder = tmp_path / "w"
    write_weights(folder, POLICY)
    shard = folder / "model-00001-of-00002.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-8])
    with pytest.raises(ValueError, match="ends before its tensor"):
        read_weights(folder)
    shard.unlink()
    with pytest.raises(FileNotFoundError):
        read_weights(folder)
    shard.write_bytes((folder / "model-00002-of-00002.safetensors").read_bytes())
    with pytest.raises(ValueError, match="is in no shard"):
        read_weights(folder)
    (folder / INDEX).unlink()
    with pytest.raises(FileNotFoundError):
        read_weights(folder)
