"""The weights of the rehearsal's policy in a folder, in the files that SGLang and vLLM load.

A policy is a table of logits by prompt. Each row is a tensor of that name, in two shards of
safetensors; the index is written last, so that a folder with an index is complete.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Policy = dict[str, list[float]]
"""The logits of the answers by prompt."""

INDEX = "model.safetensors.index.json"
_SHARDS = 2
_NUMBER = 8  # bytes of a logit, and of the length before a shard's header


def write_weights(folder: Path, policy: Policy) -> None:
    """Write the shards and then the index into a new folder."""
    folder.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for number in range(_SHARDS):
        name = f"model-{number + 1:05d}-of-{_SHARDS:05d}.safetensors"
        rows = {prompt: policy[prompt] for prompt in sorted(policy)[number::_SHARDS]}
        _write(folder / name, _packed(rows))
        weight_map |= dict.fromkeys(rows, name)
    size = _NUMBER * sum(map(len, policy.values()))
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    _write(folder / INDEX, json.dumps(index, indent=1).encode())


def read_weights(folder: Path) -> Policy:
    """Return the policy in a folder; raise OSError or ValueError if it is not complete."""
    weight_map: dict[str, str] = json.loads((folder / INDEX).read_bytes())["weight_map"]
    policy: Policy = {}
    for name in sorted(set(weight_map.values())):
        policy |= _unpacked((folder / name).read_bytes())
    missing = sorted(weight_map.keys() - policy.keys())
    if missing:
        raise ValueError(f"{folder}: its index names {missing[0]!r}, which is in no shard")
    return policy


def _packed(rows: Mapping[str, list[float]]) -> bytes:
    """Return rows in the format of safetensors: a length, a header in JSON, and the numbers."""
    header: dict[str, object] = {}
    numbers = b""
    for name, row in rows.items():
        begin = len(numbers)
        numbers += struct.pack(f"<{len(row)}d", *row)
        offsets = [begin, len(numbers)]
        header[name] = {"dtype": "F64", "shape": [len(row)], "data_offsets": offsets}
    described = json.dumps(header).encode()
    return struct.pack("<Q", len(described)) + described + numbers


def _unpacked(data: bytes) -> Policy:
    """Return the rows of a shard; raise ValueError if it is cut short."""
    size = int.from_bytes(data[:_NUMBER], "little")
    header = json.loads(data[_NUMBER : _NUMBER + size])
    numbers = data[_NUMBER + size :]
    rows: Policy = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        if end > len(numbers):
            raise ValueError(f"a shard ends before its tensor {name!r}")
        rows[name] = [*struct.unpack(f"<{(end - begin) // _NUMBER}d", numbers[begin:end])]
    return rows


def _write(file: Path, data: bytes) -> None:
    """Write a file that has its name only once it is complete."""
    partial = file.with_name(f".{file.name}")
    partial.write_bytes(data)
    partial.replace(file)
