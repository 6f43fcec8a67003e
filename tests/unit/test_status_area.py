"""The pane at a terminal's foot: it stays, and what others write scrolls above it, whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyte
import pytest

from agent.runtime.status_area import MIN_TERMINAL_ROWS, Region, max_rows, release, render
from unit.terminal import on_a_terminal

REPO = Path(__file__).parents[2]
ROWS, COLUMNS = 20, 30
WRITER = """
import os, sys
from agent.runtime.status_area import StatusArea
counts = iter(range(1, 10_000))
pane = StatusArea(lambda columns, rows: [f"pane {next(counts)}", "-" * (columns - 1), "last"])
os.write(1, b"before\\n")
pane.start()
sys.stdin.readline()
for number in range(60):
    os.write(1, b"line %d\\n" % number)
os.write(1, b"half")
sys.stdin.readline()
os.write(1, b" and half\\n")
pane.close()
os.write(1, b"after\\n")
"""


ENDS_AT_ONCE = """
import os, sys
from agent.runtime.signals import exit_now
from agent.runtime.status_area import StatusArea
StatusArea(lambda columns, rows: ["one", "two"]).start()
sys.stdin.readline()
exit_now(130)
"""

IS_KILLED = """
import os
from agent.runtime.parent import become_parent
code = become_parent(of_a_run=True)
if code is None:
    os.write(1, b"\\x1b[1;30r")
    os.kill(os.getpid(), 9)
raise SystemExit(code)
"""


class Screen:
    """An emulated terminal."""

    def __init__(self, rows: int = ROWS, columns: int = COLUMNS) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=1000)
        self._stream = pyte.Stream(self._screen)
        self.feed = self._stream.feed

    def rows(self) -> list[str]:
        """Return its rows, those without a word left out."""
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def write(self, *lines: str) -> None:
        """Write lines as a program does."""
        for line in lines:
            self.feed(f"{line}\r\n")


@pytest.mark.parametrize("before", [0, 3, 15, 19, 40])
def test_lines_scroll_above_it(before: int) -> None:
    """Wherever the cursor stands as it begins, no line is lost, and none comes into it."""
    screen, area = Screen(), Region(ROWS, COLUMNS, 4)
    screen.write(*(f"old {number}" for number in range(before)))
    screen.feed("ha")
    screen.feed(render(None, area, ["one", "two", "three", "four"]))
    screen.feed("lf\r\n")
    screen.write(*(f"new {number}" for number in range(5)))
    screen.feed(render(area, area, ["1", "2"]))
    rows = screen.rows()
    assert rows[-2:] == ["1", "2"]
    assert rows[-8:-2] == ["half", *(f"new {number}" for number in range(5))]
    assert rows[:-8] == [f"old {number}" for number in range(before)][-(len(rows) - 8) or before :]
    screen.feed(release(area, ROWS))
    screen.write(*(f"late {number}" for number in range(ROWS)))
    assert screen.rows() == [f"late {number}" for number in range(1, ROWS)]


def test_it_grows_and_shrinks() -> None:
    """With another number of rows it is made anew, and nothing of the former is left."""
    screen = Screen()
    screen.write(*(f"old {number}" for number in range(40)))
    small, large = Region(ROWS, COLUMNS, 2), Region(ROWS, COLUMNS, 6)
    screen.feed(render(None, small, ["s1", "s2"]))
    screen.feed(render(small, large, [f"l{number}" for number in range(6)]))
    assert screen.rows()[-8:] == ["old 38", "old 39", *(f"l{number}" for number in range(6))]
    screen.feed(render(large, small, ["s1", "s2"]))
    screen.write("new")
    assert screen.rows()[-4:] == ["old 39", "new", "s1", "s2"]


def test_a_low_terminal_has_none() -> None:
    """Nor does one that is high give more than a third."""
    assert max_rows(MIN_TERMINAL_ROWS - 1) == 0
    assert max_rows(48) == 16


def test_on_a_real_terminal() -> None:
    """Lines and half lines are whole, the pane stays, and the terminal is given back."""
    argv = [sys.executable, "-c", WRITER]
    with on_a_terminal(argv, {**os.environ, "PYTHONPATH": str(REPO), "TERM": "xterm"}) as terminal:
        terminal.wait_for("the pane", lambda: terminal.lines()[-1] == "last")
        assert terminal.lines()[0] == "before"
        terminal.press_enter()
        terminal.wait_for("half a line", lambda: "half" in terminal.lines())
        at = terminal.lines().index("half")
        assert terminal.lines()[at - 1] == "line 59"
        assert terminal.lines()[-1] == "last"
        former = terminal.lines()[-3]
        terminal.wait_for("another drawing", lambda: terminal.lines()[-3] != former)
        assert terminal.lines()[at] == "half"
        terminal.resize(30, 80)
        terminal.wait_for("a smaller one", lambda: terminal.lines()[-2] == "-" * 79)
        terminal.press_enter()
        assert terminal.to_the_end() == 0
        written = [line for line in [*terminal.history(), *terminal.lines()] if line]
        assert [line for line in written if line.startswith("line")][-20:] == [
            f"line {number}" for number in range(40, 60)
        ]
        assert written[-2].endswith("and half")  # a smaller terminal may have broken the line
        assert written[-1] == "after"
        assert "last" not in written


def test_an_end_at_once_gives_it_back() -> None:
    """A second Ctrl-C ends everything; the terminal is whole afterwards."""
    env = {**os.environ, "PYTHONPATH": str(REPO), "TERM": "xterm"}
    with on_a_terminal([sys.executable, "-c", ENDS_AT_ONCE], env) as terminal:
        terminal.wait_for("the pane", lambda: terminal.lines()[-1] == "two")
        terminal.press_enter()
        assert terminal.to_the_end() == 130
        assert not any(terminal.lines())
        assert terminal.raw.rindex(b"\x1b[r") > terminal.raw.rindex(b"\x1b[1;38r")


def test_an_agent_that_is_killed_leaves_the_terminal_whole() -> None:
    """Its parent takes back the rows that it kept, each time, whether it starts another or not."""
    env = {**os.environ, "PYTHONPATH": str(REPO), "TERM": "xterm"}
    with on_a_terminal([sys.executable, "-c", IS_KILLED], env) as terminal:
        assert terminal.to_the_end() == 70
        assert terminal.raw.count(b"\x1b[1;30r") == terminal.raw.count(b"\x1b[r") == 4
        assert terminal.raw.rindex(b"\x1b[r") > terminal.raw.rindex(b"\x1b[1;30r")
