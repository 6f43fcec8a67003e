"""The page and the form that asks for the token: static files, filled in from the status.

All text that others said reaches a browser as JSON, and becomes text there, never markup.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

FILES = {
    "/page.js": "text/javascript",
    "/page.css": "text/css",
    "/page.svg": "image/svg+xml",
}
"""What the page consists of besides itself, and its types: nothing of a run is in any of them."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
    "; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    "; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""What a browser may do with a page of ours: load our own files, ask us, post the form, no more."""
_ASSETS = Path(__file__).parent / "assets"


@cache
def file(path: str) -> bytes:
    """Return one of the page's files."""
    return (_ASSETS / path.removeprefix("/")).read_bytes()


def overview(*, streams: bool) -> bytes:
    """Return the page; `streams` where it may read `/events`, else it asks for `/status`."""
    text = file("page.html")
    return text.replace(b'data-news="status"', b'data-news="events"') if streams else text


def login(*, wrong: bool = False) -> bytes:
    """Return the form that asks for the token."""
    note = '<p class="alarm" role="alert">That is not the token of this cluster.</p>'
    return file("login.html").replace(b"<!--note-->", note.encode() if wrong else b"")
