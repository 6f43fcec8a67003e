"""The command line: visit the page of made-up runs in a browser, and save pictures."""

from __future__ import annotations

import argparse
import shutil
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from agent.port.page_files import asset
from tools.page.chromium import BrowserError, a_tab
from tools.page.rules import color_complaints
from tools.page.situations import FURTHER, SITUATIONS
from tools.page.visit import (
    HEIGHTS,
    Look,
    visit_gone,
    visit_log,
    visit_report,
    visit_situation,
    visit_stop,
    visit_without_token,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tools.page.chromium import Tab

    Visit = Callable[[Tab], Awaitable[list[str]]]

FOLDER = Path(__file__).parents[3] / ".page"
DOCS = Path(__file__).parents[3] / "docs"
SIZES = (1, 3, 16, 64, 256)
PICTURES = {"page.png": "ok-3-light-1280.png", "page-hang.png": "hang-16-light-1280.png"}
"""Pictures of the documentation, and which of the visits they are from."""
EPILOG = """\
Needs a Chromium (apt-get install chromium). Pictures stay in .page. Each page is checked for its
judgment, complaints of the browser, blank pictures, the number of elements, its width, the size
and contrast of texts, and names of all controls. With --axe FILE, a copy of axe-core's axe.min.js,
it is judged by that, too: nothing serious may be found. --docs copies the pictures of docs/.

exit codes: 0; 1 if a page has errors, or no browser could be started
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Visit the page of each situation at each size."""
    parser = argparse.ArgumentParser(
        prog="scripts/page",
        description="Check the agent's page in a real Chromium.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--situation", action="append", choices=(*SITUATIONS, *FURTHER))
    parser.add_argument("--nodes", type=int, action="append", help="nodes (1, 3, 16, 64, 256)")
    parser.add_argument("--width", type=int, action="append", choices=[*HEIGHTS])
    parser.add_argument("--axe", type=Path, help="axe.min.js of axe-core")
    parser.add_argument("--docs", action="store_true", help="renew the pictures in docs/")
    options = parser.parse_args(argv)
    FOLDER.mkdir(exist_ok=True)
    axe = None if options.axe is None else options.axe.read_text(encoding="utf-8")
    windows = [Look(width, dark) for width in options.width or HEIGHTS for dark in (False, True)]

    visits: list[tuple[str, Visit]] = []
    for situation, nodes in product(options.situation or SITUATIONS, options.nodes or SIZES):
        name = f"{situation} on {nodes}"
        visits.append((name, _of(situation, nodes, windows, axe)))
    if not options.situation and not options.nodes:
        visits += [(f"{situation} on 3", _of(situation, 3, windows, axe)) for situation in FURTHER]
        visits += [("without a token", visit_without_token), ("stop", visit_stop)]
        visits += [("a head that is gone", visit_gone), ("the log", visit_log)]
        for situation in ("failed", "ended"):
            visit = partial(visit_report, situation=situation, nodes=64, windows=windows)
            visits.append((f"report, {situation}", partial(visit, folder=FOLDER, axe=axe)))

    complaints = color_complaints(asset("/page.css").decode())
    try:
        complaints += anyio.run(_visit_all, visits)
    except BrowserError as error:
        complaints.append(str(error))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    rules = "own rules" if axe is None else "own rules and axe-core"
    print(f"{len(visits)} runs in {len(windows)} windows by {rules}: {len(complaints)} complaints")
    if options.docs:
        for name, source in PICTURES.items():
            shutil.copy(FOLDER / source, DOCS / name)
    return 1 if complaints else 0


def _of(situation: str, nodes: int, windows: Sequence[Look], axe: str | None) -> Visit:
    visit = partial(visit_situation, situation=situation, nodes=nodes, windows=windows)
    return partial(visit, folder=FOLDER, axe=axe)


async def _visit_all(visits: Sequence[tuple[str, Visit]]) -> list[str]:
    complaints: list[str] = []
    async with a_tab() as tab:
        for name, visit in visits:
            try:
                found = await visit(tab)
            except BrowserError as error:
                found = [f"{name}: {error}"]
            complaints += found
            print(f"{name}: {len(found)} complaints", flush=True)
    return complaints
