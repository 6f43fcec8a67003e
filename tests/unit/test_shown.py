"""The head's live view: where it is shown, where there are lines alone, and what it costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unit.terminal import on_a_terminal

REPO = Path(__file__).parents[2]
SHOWS = """
import os, sys
from functools import partial
import anyio
from agent.boot.live_view import show_live
from browsing.runs import status

class Watched:
    status = staticmethod(lambda: {**status(3), "job_tail": []})
    private_details = staticmethod(lambda: {"job_tail": ["a line of the job"]})

async def main():
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(show_live, Watched(), sys.argv[1])
        await anyio.to_thread.run_sync(sys.stdin.readline)
        tasks.cancel_scope.cancel()

os.write(1, b"begun\\n")
anyio.run(main)
os.write(1, b"over\\n")
"""


def environ(**more: str) -> dict[str, str]:
    """Return an environment in which our modules are found."""
    own = {**os.environ, "TERM": "xterm-256color"}
    return {**own, "PYTHONPATH": f"{REPO}:{REPO / 'scripts'}", **more}


def test_it_stays_until_the_end() -> None:
    """The view at the foot, without the job's lines, which pass by above; then nothing of it."""
    with on_a_terminal([sys.executable, "-c", SHOWS, "auto"], environ()) as terminal:
        nodes = "nodes: 3 workers: 3 joined"
        terminal.wait_for("the view", lambda: nodes in terminal.lines())
        assert terminal.lines()[0] == "begun"
        assert "a line of the job" not in terminal.lines()
        terminal.press_enter()
        assert terminal.to_the_end() == 0
        assert [line for line in terminal.lines() if line] == ["begun", "over"]


@pytest.mark.parametrize(
    ("style", "more"),
    [
        ("json", {}),
        ("console", {}),
        ("auto", {"TERM": "dumb"}),
        ("auto", {"PYTHONPATH": "a place without rich"}),
    ],
)
def test_where_there_are_lines_alone(style: str, more: dict[str, str], tmp_path: Path) -> None:
    """Machines, terminals that cannot, and Pythons without rich: not a sign more, nor a word."""
    if "PYTHONPATH" in more:
        (tmp_path / "rich.py").write_text("raise ImportError('no rich here')")
        more = {"PYTHONPATH": f"{tmp_path}:{environ()['PYTHONPATH']}"}
    with on_a_terminal([sys.executable, "-c", SHOWS, style], environ(**more)) as terminal:
        terminal.wait_for("the begin", lambda: "begun" in terminal.lines())
        terminal.press_enter()
        assert terminal.to_the_end() == 0
        assert [line for line in terminal.lines() if line] == ["begun", "over"]
        assert b"\x1b" not in terminal.raw


def test_rich_is_loaded_late() -> None:
    """A head and a worker need none of it before Ray's start, nor without a terminal at all."""
    look = "import agent.boot.head, agent.boot.worker, agent.boot.live_view, sys\n"
    look += "print('rich' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", look], env=environ(), capture_output=True, text=True, check=True
    )
    assert told.stdout == "False\n"
