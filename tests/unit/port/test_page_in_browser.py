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


def visited(*visits: Callable[[Tab], Awaitable[list[str]]]) -> list[str]:
    """Return the complaints of visits in one tab, as scripts/page makes them."""

    async def visit_each() -> list[str]:
        async with a_tab() as tab:
            return [complaint for visit in visits for complaint in await visit(tab)]

    return anyio.run(visit_each)


@pytest.mark.parametrize(
    "runs",
    [
        {"hang": 3, "lost": 256, "single": 3, "groups": 3},
        pytest.param({"early": 3, "stepless": 3}, marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_runs_are_shown(runs: dict[str, int], tmp_path: Path) -> None:
    """With judgment and texts, without complaints of the browser, and within all limits."""
    visit = partial(visit_situation, windows=LOOKS, folder=tmp_path, axe=None)
    assert visited(*(partial(visit, situation=run, nodes=n) for run, n in runs.items())) == []


@pytest.mark.parametrize("end", ["failed", pytest.param("ended", marks=pytest.mark.slow)])
def test_reports_open_from_their_files(end: str, tmp_path: Path) -> None:
    """Under their own policy, without a server."""
    visit = partial(visit_report, nodes=16, windows=LOOKS, folder=tmp_path, axe=None)
    assert visited(partial(visit, situation=end)) == []


@pytest.mark.slow
@pytest.mark.parametrize("visit", [visit_stop, visit_gone, visit_log, visit_without_token])
def test_what_is_done_on_the_page(visit: Callable[[Tab], Awaitable[list[str]]]) -> None:
    """A stop, logs and a search in one, a head that leaves, and a reader without the token."""
    assert visited(visit) == []
