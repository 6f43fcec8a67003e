"""`Value`: the base of every class that only holds data.

    class Port(Value):
        number: int
        names: Mapping[str, str] = field(default_factory=dict)  # field of msgspec

A value is immutable, equal by its fields and hashable; `msgspec.structs.replace` returns a changed
copy. msgspec creates such a class in a tenth of the time of a standard dataclass, and a hundred of
them exist before `ray start`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

__all__ = ["Value"]

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_options: object) -> object:
        """Return a decorator without effect: only type checkers need the declaration."""
        return lambda cls: cls


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True):
    """An immutable value; subclasses declare its fields."""
