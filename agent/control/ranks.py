"""Ranks where no platform has any: given by the order of the first hello, fixed by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


class Ranks:
    """Gives each node of a run its rank, and keeps it for whoever comes back by that name."""

    def __init__(
        self,
        names: Iterable[str] = (),
        keep: Callable[[tuple[str, ...]], None] = lambda _: None,
        most: int = 20_000,
    ) -> None:
        self._names = [*names]
        """The node of rank 1 is the first; machines that share a name stand there once each."""
        self._keep = keep
        self._most = most

    def of(
        self,
        name: str,
        held: Collection[int | None],
        taken: Callable[[], Collection[int | None]] = tuple,
    ) -> int:
        """Return the rank of a node; `held` are those of living nodes of the same name.

        Where as many names are known as may be, it has the first rank that is not `taken` by a
        node that is known still.
        """
        for rank, known in enumerate(self._names, 1):
            if known == name and rank not in held:
                return rank
        rank = len(self._names) + 1
        if rank > self._most:
            in_use = {*taken()}
            rank = next(one for one in range(1, rank + 1) if one not in in_use)
        self._names[rank - 1 : rank] = [name]
        self._keep(tuple(self._names))
        return rank
