"""Known lines of the job's output, told as they come: each cause once in an attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.decisions.remedies.live import Known


class KnownLines:
    """Looks at the job's output, as one thread reads it; others may ask what it has told of."""

    def __init__(self, clean: Callable[[str], str], tell: Callable[[str, str], None] = say) -> None:
        self._clean = clean
        self._tell = tell
        self._is_over = False
        self._told: tuple[Known, ...] = ()

    def look(self, lines: Sequence[bytes]) -> None:
        """Look at whole lines."""
        from agent.decisions.remedies.live import known_in  # noqa: PLC0415 - once the job runs

        if self._is_over:
            self._is_over, self._told = False, ()
        for known in known_in(lines, [one.key for one in self._told]):
            clean = self._clean  # before the line is cut, and a secret with it
            shown = replace(known, line=clean(known.line), cause=clean(known.cause))
            self._told = (*self._told, shown)
            self._tell(shown.sentence(), "info" if known.is_noise else "warning")

    def over(self) -> None:
        """Hear that the attempt's output has ended: what another says is told again."""
        self._is_over = True

    def warnings(self) -> list[dict[str, str]]:
        """Return what a person should know of, as the status has it."""
        return [
            {
                "check": "job output",
                "what": f"{known.cause} ({known.shown})",
                "remedy": known.what_to_do,
            }
            for known in self._told
            if not known.is_noise
        ]
