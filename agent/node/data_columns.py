"""The columns of a data file, read from its first bytes or its footer.

A recipe names columns, and a framework fails on a missing one only once all models are loaded. The
parquet footer is decoded here, since the agent's Python need not have pyarrow.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_LINE = 1 << 24
_LONGEST_FOOTER = 1 << 26
_MAGIC = b"PAR1"
_COLUMNS, _NAME, _CHILDREN, _CONVERTED = 2, 4, 5, 6
"""Ids of fields in parquet's FileMetaData and SchemaElement."""
_LIST_TYPE = 3
_BROKEN = (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError)
"""Raised for a file whose content does not match its suffix."""
_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


def columns_of(data: str) -> Mapping[str, bool] | None:
    """Return the columns of a file, or of the first file in a folder; None if not known.

    A column is True if it holds lists, such as the messages of a chat.
    """
    path = Path(data)
    try:
        if path.is_dir():
            files = sorted(one for one in path.iterdir() if one.suffix in _SUFFIXES)
            if not files:
                return None
            path = files[0]
        if not path.is_file() or path.suffix not in _SUFFIXES:
            return None
        if path.suffix == ".parquet":
            return _of_parquet(path)
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline(_LONGEST_LINE)
        if path.suffix == ".csv":
            return dict.fromkeys(next(csv.reader([first]), []), False) or None
        row = json.loads(first)
    except _BROKEN:
        return None  # the framework reports it
    return {name: isinstance(one, list) for name, one in row.items()} if _is_row(row) else None


def _is_row(row: object) -> bool:
    return isinstance(row, dict) and bool(row)


def _of_parquet(path: Path) -> Mapping[str, bool] | None:
    with path.open("rb") as file:
        end = file.seek(-8, 2)
        tail = file.read(8)
        size = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or size > min(end, _LONGEST_FOOTER):
            return None
        file.seek(end - size)
        footer = _Thrift(file.read(size)).struct(until=_COLUMNS)
    _, *elements = footer[_COLUMNS]
    found: dict[str, bool] = {}
    inside = 0  # elements left that belong to a column, depth first
    for element in elements:
        if not inside:
            found[element[_NAME].decode()] = element.get(_CONVERTED) == _LIST_TYPE
        inside = max(0, inside - 1) + element.get(_CHILDREN, 0)
    return found


class _Thrift:
    """A reader of Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, until: int = 0) -> dict[int, Any]:
        """Read the fields of a struct, by their ids; with `until`, only to that field."""
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            fields[number] = kind == 1 if kind <= 2 else self._value(kind)
            if number == until:
                break
        return fields

    def _value(self, kind: int) -> Any:  # noqa: ANN401 - as the file has it
        if kind <= 3:
            return self._byte()
        if kind <= 6:
            return self._integer()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._varint())
        if kind <= 10:
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            return [self._value(head & 15) for _ in range(count)]
        if kind == 12:
            return self.struct()
        raise ValueError(f"no field of parquet's schema has the type {kind}")

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def _varint(self) -> int:
        number, shift = 0, 0
        while (byte := self._byte()) & 128:
            number |= (byte & 127) << shift
            shift += 7
        return number | byte << shift

    def _integer(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
