"""A view as rich draws it: imported late, and only where rich is installed."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, cast

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from typing import Literal

    from agent.control.view import Section, View

    Colours = Literal["standard", "256", "truecolor", "windows"] | None

_STYLES = {"title": "bold", "good": "green", "busy": "yellow", "bad": "bold red", "dim": "dim"}


def drawn(view: View) -> Group:
    """Return what rich prints: each row on one line, however narrow the terminal is."""
    return Group(*(part for section in view.sections for part in _parts(section)))


def lines_of(view: View, width: int, like: Console) -> list[str]:
    """Return the lines of a view, with the colours that a terminal has, none wider than `width`."""
    paper = Console(
        file=io.StringIO(),
        width=width,
        height=max(1, view.height),
        force_terminal=like.is_terminal,
        color_system=cast("Colours", like.color_system),
        no_color=like.no_color,
        legacy_windows=False,
    )
    with paper.capture() as shown:
        paper.print(drawn(view), end="")
    return shown.get().splitlines()


def _parts(section: Section) -> list[Text | Table]:
    title = [_text(section.title, "bold")] if section.title else []
    if not section.rows:
        return [*title]
    columns = len(section.rows[0].cells)
    if columns == 1:
        rows = [_text(row.cells[0], _STYLES.get(row.tone, "")) for row in section.rows]
        return [*title, *rows]
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for number in range(columns):
        is_last = number == columns - 1
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if is_last else None)
    for row in section.rows:
        style = _STYLES.get(row.tone, "")
        table.add_row(*(_text(cell, style) for cell in row.cells))
    return [*title, table]


def _text(words: str, style: str) -> Text:
    """Return words as they are: what others say is never rich's markup."""
    return Text(words, style=style, no_wrap=True, overflow="ellipsis", end="\n")
