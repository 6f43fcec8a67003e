"""Ranks where no platform has any: given by the order of the first hello, fixed by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


class Ranks:
    """Gives each node of a run its rank, and keeps it for whoever comes back by that name."""

    def __init__(
        self, names: Iterable[str] = (), keep: Callable[[tuple[str, ...]], None] = lambda _: None
    ) -> None:
        self._names = [*names]
        """The node of rank 1 is the first; machines that share a name stand there once each."""
        self._keep = keep

    def of(self, name: str, held: Collection[int | None]) -> int:
        """Return the rank of a node; `held` are those of living nodes of the same name."""
        for rank, known in enumerate(self._names, 1):
            if known == name and rank not in held:
                return rank
        self._names.append(name)
        self._keep(tuple(self._names))
        return len(self._names)
