"""Known lines of the job's output, told as they come: each cause once in an attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.decisions.known_line import Known


class KnownLines:
    """Looks at the job's output, as one thread reads it; others may ask what it has told of."""

    def __init__(self, clean: Callable[[str], str], tell: Callable[[str, str], None] = say) -> None:
        self._clean = clean
        self._tell = tell
        self._is_over = False
        self._told: tuple[Known, ...] = ()
        self._heard: frozenset[str] = frozenset()
        """What other nodes have found in their shares of one attempt."""
        self._elsewhere: tuple[tuple[str, Known], ...] = ()
        """What was told of that, each with its node."""
        self._attempt = 0
        """The last attempt of which they found something."""
        self._behind = 0
        """That attempt, when the output here began anew: it is over."""

    def look(self, lines: Sequence[bytes]) -> None:
        """Look at whole lines."""
        from agent.decisions.remedies.live import known_in  # noqa: PLC0415 - once the job runs

        if self._is_over:
            self._is_over, self._told, self._behind = False, (), self._attempt
        heard = self._heard if self._attempt > self._behind else frozenset()
        for known in known_in(lines, heard.union(one.key for one in self._told)):
            shown = self._cleaned(known)
            self._told = (*self._told, shown)
            self._tell(shown.sentence(), "info" if known.is_noise else "warning")

    def hear(self, node: str, attempt: int, found: Sequence[Known]) -> None:
        """Take in, beside that thread, what a node has found in its share of an attempt."""
        from agent.decisions.remedies.live import KEYS  # noqa: PLC0415 - once the job runs

        if found and attempt != self._attempt:
            self._attempt, self._heard, self._elsewhere = attempt, frozenset(), ()
        for known in found:
            if known.key in self._heard or known.key not in KEYS:
                continue
            self._heard |= {known.key}
            if any(one.key == known.key for one in self._told):
                continue
            shown = self._cleaned(known)
            self._elsewhere = (*self._elsewhere, (node, shown))
            self._tell(shown.sentence(node), "warning")

    def told_on(self, node: str, attempt: int) -> str:
        """Return what was told last of a node's share of an attempt; '' where nothing was."""
        if attempt != self._attempt:
            return ""
        said = [known.sentence(where) for where, known in self._elsewhere if where == node]
        return said[-1] if said else ""

    def _cleaned(self, known: Known) -> Known:
        """Take secrets out, before the line is cut, and a secret with it."""
        cleaned = replace(known, line=self._clean(known.line), cause=self._clean(known.cause))
        return replace(cleaned, line=cleaned.shown)

    def over(self) -> None:
        """Hear that the attempt's output has ended: what another says is told again."""
        self._is_over = True

    @property
    def causes(self) -> tuple[Known, ...]:
        """Return what the attempt's output here has told of, but noise."""
        return tuple(known for known in self._told if not known.is_noise)

    def warnings(self) -> list[dict[str, str]]:
        """Return what a person should know of, as the status has it."""
        found = [*(("", known) for known in self.causes), *self._elsewhere]
        return [
            {
                "check": "job output",
                "what": f"{f'{node}: ' if node else ''}{known.cause} ({known.shown})",
                "remedy": known.what_to_do,
            }
            for node, known in found
        ]
