"""The page in a real browser, where one is installed; scripts/page visits many more runs."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from tools.page.chromium import NAMES, a_tab
from tools.page.visit import (
    Look,
    visit_gone,
    visit_log,
    visit_report,
    visit_situation,
    visit_stop,
    visit_without_token,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tools.page.chromium import Tab

pytestmark = pytest.mark.skipif(not any(map(shutil.which, NAMES)), reason="needs a Chromium")
LOOKS = (Look(390, dark=True), Look(1920, dark=False))


def visited(visit: Callable[[Tab], Awaitable[list[str]]]) -> list[str]:
    """Return the complaints of a visit."""

    async def visit_once() -> list[str]:
        async with a_tab() as tab:
            return await visit(tab)

    return anyio.run(visit_once)


@pytest.mark.parametrize(
    ("situation", "nodes"),
    [
        *(("hang", 3), ("lost", 256)),
        *((situation, 3) for situation in ("early", "stepless", "single", "groups")),
    ],
)
def test_a_run_is_shown(situation: str, nodes: int, tmp_path: Path) -> None:
    """With its judgment and its texts, without complaints of the browser, and within all limits."""
    what = partial(visit_situation, situation=situation, nodes=nodes, windows=LOOKS)
    assert visited(partial(what, folder=tmp_path, axe=None)) == []


@pytest.mark.parametrize("situation", ["failed", "ended"])
def test_a_report_opens_from_its_file(situation: str, tmp_path: Path) -> None:
    """Under its own policy, without a server."""
    what = partial(visit_report, situation=situation, nodes=16, windows=LOOKS)
    assert visited(partial(what, folder=tmp_path, axe=None)) == []


@pytest.mark.slow
@pytest.mark.parametrize("visit", [visit_stop, visit_gone, visit_log, visit_without_token])
def test_what_is_done_on_the_page(visit: Callable[[Tab], Awaitable[list[str]]]) -> None:
    """A stop, logs and a search in one, a head that leaves, and a reader without the token."""
    assert visited(visit) == []
