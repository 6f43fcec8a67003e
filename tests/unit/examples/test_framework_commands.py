"""The commands on the pages about frameworks can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from agent.checks.job_needs import placeholder_slips
from agent.job.job import NUMBERS, PLACEHOLDERS, fill
from agent.job.node_command import NODE_PLACEHOLDERS
from agent.job.services import Placeholders

DOCS = Path(__file__).parents[3] / "docs"
PLACE = Placeholders("10.0.0.1", "10.0.0.1", "0", "/logs", {"generation": "10.0.0.2"})
RUN = ["pod-agent", "run", "--"]


def commands() -> list[list[str]]:
    """Return the words after `pod-agent run --` in each block of the pages."""
    found = []
    for page in ("frameworks.md", "programs-beside-the-job.md", "node-launcher.md"):
        text = (DOCS / page).read_text()
        for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            if " ".join(RUN) not in block:
                continue
            words = shlex.split(block.replace("\\\n", " "))
            found.append(words[words.index("--") + 1 :])
    return found


COMMANDS = commands()
NAMES = [" ".join(words[:3]) for words in COMMANDS]


@pytest.mark.parametrize("words", COMMANDS, ids=NAMES)
def test_each_command_is_filled_in(words: list[str]) -> None:
    """No placeholder is misspelled, and none is left on two nodes of eight GPUs."""
    known = (*PLACEHOLDERS, *NODE_PLACEHOLDERS)
    assert placeholder_slips([("a page", word, known) for word in words]) == ()
    of_launcher = {"rank": "0", "nodes": "2", "master_port": "6379"}
    filled = fill(tuple(words), [8, 8], PLACE, "http://10.0.0.1:5000/x", 1, "/c", of_launcher)
    names = "|".join({*known, *NUMBERS})
    assert not re.search(rf"(?<!\$)\{{({names})[^}}]*\}}", " ".join(filled))


def test_every_framework_has_a_command() -> None:
    """The pages name a command for each framework of the table."""
    text = (DOCS / "frameworks.md").read_text()
    rows = re.findall(r"^\| ([\w., -]+) \| (?:Ray|node launcher) \|", text, re.MULTILINE)
    titles = " ".join(re.findall(r"^## (.*)$", text, re.MULTILINE))
    assert len(rows) >= 12
    for row in rows:
        for name in row.removesuffix(", asynchronous").removesuffix(", one step off").split(", "):
            assert name in titles
