"""Reading data as values of our types, one thread at a time.

msgspec describes a type when it is first read, and the process crashes if two threads do that at
once: a run reads records, reports and answers in several. Reading holds the interpreter anyway, so
the lock costs no thread anything.
"""

from __future__ import annotations

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")

_one_reader = threading.RLock()


def convert(data: object, kind: type[T], *, str_keys: bool = False) -> T:
    """Read plain data, such as parsed JSON; raises msgspec.ValidationError."""
    with _one_reader:
        return msgspec.convert(data, kind, str_keys=str_keys)


def decode(text: bytes | str, kind: type[T], *, strict: bool = True) -> T:
    """Read JSON; raises msgspec.DecodeError, of which ValidationError is one."""
    with _one_reader:
        return msgspec.json.decode(text, type=kind, strict=strict)
