"""Lines for people: folded at the terminal's width, and colored where it shows colors."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Literal

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Tone = Literal["", "title", "good", "busy", "bad", "dim"]
_CODES: Mapping[Tone, str] = {"title": "1", "good": "32", "busy": "33", "bad": "1;31", "dim": "2"}
_LEAST_WIDTH = 40
"""A narrower terminal folds lines by itself."""


class Line(Value):
    """A label and a text beside it; a folded text continues below itself."""

    label: str
    text: str = ""
    tone: Tone = ""
    """The color of the label."""


class Terminal(Value):
    """Where lines are printed."""

    width: int | None = None
    """Its columns; None if it is no terminal, where lines are not folded."""
    has_colors: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str], columns: int) -> Terminal:
        """Return a terminal with so many columns; NO_COLOR turns colors off."""
        has_colors = not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
        return cls(columns, has_colors)

    def render(self, lines: Iterable[Line], clean: Callable[[str], str]) -> str:
        """Return lines as text; `clean` masks secrets, before a fold could split one."""
        return "\n".join(self._line(line, clean) for line in lines)

    def _line(self, line: Line, clean: Callable[[str], str]) -> str:
        label, text = clean(line.label), clean(line.text)
        if self.width is not None and self.width >= _LEAST_WIDTH:
            below = len(label) if len(label) < self.width // 2 else 4
            folded = textwrap.wrap(
                text,
                self.width,
                initial_indent=" " * len(label),
                subsequent_indent=" " * below,
                break_long_words=False,
                break_on_hyphens=False,
            )
            text = "\n".join(folded)[len(label) :]
        return self.paint(label, line.tone) + text

    def paint(self, text: str, tone: Tone) -> str:
        """Return a text in the color of a tone."""
        code = _CODES.get(tone) if self.has_colors else None
        return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


NO_TERMINAL = Terminal()
"""A file or a pipe: lines as they are."""
