"""Frozen dataclasses of ours behave as those of the standard library."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from agent.base import value

if TYPE_CHECKING:
    from collections.abc import Callable


def made_by(dataclass: Callable[..., Any]) -> tuple[type, type]:
    """Return two classes of equal fields, as one decorator makes them."""

    @dataclass(frozen=True)
    class One:
        """One of two."""

        number: int
        text: str = ""
        hidden: int = dataclasses.field(default=0, repr=False, compare=False)

    @dataclass(frozen=True)
    class Other:
        """The other."""

        number: int
        text: str = ""

    return One, Other


@pytest.mark.parametrize("dataclass", [dataclasses.dataclass, value.dataclass])
def test_it_is_a_frozen_dataclass(dataclass: Callable[..., Any]) -> None:
    """Equal by fields and class, hashed alike, shown by its fields, never changed."""
    one, other = made_by(dataclass)
    first = one(1, "a", hidden=5)
    assert first == one(1, "a", hidden=6)
    assert hash(first) == hash(one(1, "a"))
    assert first != one(2, "a")
    assert first != other(1, "a")
    assert repr(first).endswith("One(number=1, text='a')")
    assert dataclasses.replace(first, number=3) == one(3, "a")
    assert dataclasses.is_dataclass(one)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.number = 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        del first.text
    assert vars(first) == {"number": 1, "text": "a", "hidden": 5}
    assert vars(one)["__match_args__"] == ("number", "text", "hidden")


def test_what_a_class_says_itself_stands() -> None:
    """A method of the class's own is not replaced."""

    @value.dataclass(frozen=True)
    class Quiet:
        """Shows nothing."""

        word: str

        def __repr__(self) -> str:
            return "Quiet()"

    assert repr(Quiet("secret")) == "Quiet()"
    assert Quiet("a") == Quiet("a")
