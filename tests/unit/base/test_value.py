"""Values are immutable, equal by their fields and hashable."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.base.value import Value


class Port(Value):
    """A value for these tests."""

    number: int
    name: str = ""


class Address(Value):
    """A value with the same fields."""

    number: int
    name: str = ""


def test_values_compare_by_class_and_fields() -> None:
    """Two values are equal if class and fields are, and equal values have equal hashes."""
    port = Port(1, "a")
    assert port == Port(1, "a")
    assert hash(port) == hash(Port(1, "a"))
    assert port != Port(2, "a")
    other: object = Address(1, "a")
    assert port != other
    assert repr(port) == "Port(number=1, name='a')"
    assert replace(port, number=3) == Port(3, "a")


def test_values_are_immutable() -> None:
    """A field of a value can be neither changed nor deleted."""
    port: Any = Port(1)
    with pytest.raises(AttributeError):
        port.number = 4
    with pytest.raises(AttributeError):
        del port.number
