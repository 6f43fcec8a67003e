"""The command line: visit the page of made-up runs, and save screenshots."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from tools.page.chromium import BrowserError
from tools.page.visit import picture, visit

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path(__file__).parents[3] / ".page"
SIZES = (3, 256)
EPILOG = """\
Needs a Chromium (apt-get install chromium). Pictures stay in .page: light, dark and a phone's, for
3 and for 256 workers. With --axe FILE, a copy of axe-core's axe.min.js, accessibility is judged by
it, too: nothing serious may be found.

exit codes: 0; 1 if the page has errors, or no browser could be started
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Visit the page at each size."""
    parser = argparse.ArgumentParser(
        prog="scripts/page",
        description="Check the agent's page in a real Chromium.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, action="append", help="workers (3 and 256)")
    parser.add_argument(
        "--url", help="only take a screenshot of a run's page, without a token (docs/page.png)"
    )
    parser.add_argument("--axe", type=Path, help="axe.min.js of axe-core")
    options = parser.parse_args(argv)
    FOLDER.mkdir(exist_ok=True)
    if options.url:
        anyio.run(picture, options.url, FOLDER / "run.png")
        print(f"the screenshot is {FOLDER / 'run.png'}")
        return 0
    axe = None if options.axe is None else options.axe.read_text(encoding="utf-8")
    wrong = False
    for nodes in options.nodes or SIZES:
        try:
            complaints = anyio.run(visit, nodes, FOLDER, axe)
        except BrowserError as error:
            complaints = [str(error)]
        for complaint in complaints:
            print(f"{nodes} nodes: {complaint}", file=sys.stderr)
        wrong = wrong or bool(complaints)
        if not complaints:
            print(f"{nodes} nodes: no errors; screenshots in {FOLDER}")
    return 1 if wrong else 0
