"""The page as one file with its data inside, which the head writes at the end of a run.

It needs no server and no other file. Its policy allows only the script and the style in it, by
their digests, so that text of the job in it is never executed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from agent.port.page_files import ICONS, SCRIPTS, asset, icon_path

if TYPE_CHECKING:
    from collections.abc import Mapping


REPORT_FILE = "report.html"


def report_page(
    status: Mapping[str, Any], series: Mapping[str, Any], logs: Mapping[str, str]
) -> str:
    """Return the report, by the brief status at the end and the ends of the head's logs."""
    script = "\n".join(asset(path).decode() for path in SCRIPTS)
    style = asset("/page.css").decode()
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}"
        "; img-src data:; base-uri 'none'; form-action 'none'"
        "; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    # `<` would end the block of data; as \u003c it is the same text.
    data = json.dumps({"status": status, "series": series, "logs": logs}, separators=(",", ":"))
    data = data.replace("<", "\\u003c")

    # The links to files are replaced by what the files contain.
    page = asset("/page.html").decode()
    page = re.sub(r'<script src="[^"]*" defer></script>\n', "", page)
    page = page.replace('<link rel="stylesheet" href="/page.css">', f"<style>{style}</style>")
    for state in ICONS:
        page = page.replace(f'"{icon_path(state)}"', f'"{_data_url(icon_path(state))}"')
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}')
    block = f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>'
    return page.replace("</body>", f"{block}\n</body>")


def _digest(text: str) -> str:
    """Return the source of a policy that allows exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data_url(path: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(asset(path)).decode()}"
