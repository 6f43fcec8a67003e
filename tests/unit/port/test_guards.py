"""Every path of a head's port: requests that are refused before any other work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.port import access as control_access
from agent.port.access import COOKIE, MOST_GUESSES, UNGUARDED_PATHS, Guesses
from agent.port.page_files import ASSETS
from support.event_stream import BY_KEY, BY_TOKEN, StreamedHead, reading, streamed_head
from support.served import ask
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

JSON = {"Content-Type": "application/json"}
ROUTES = [
    *(("GET", path) for path in ("/status", "/metrics", "/", "/events", "/findings", "/sample")),
    *(("GET", path) for path in ("/logs/head/job", "/series", *ASSETS)),
    *(("POST", path) for path in ("/login", "/report", "/stop")),
]
"""All except the probes, which reveal nothing."""
OPEN = {*ASSETS, "/login"}
"""The files that a browser needs before its sign-in."""
FOREIGN = {"Origin": "https://evil.example"}


@pytest.fixture(autouse=True)
def _many_wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare all of them: these tests send one after the other to the same port."""
    monkeypatch.setattr(control_access, "MOST_GUESSES", 10_000)


@pytest.fixture(scope="module")
def bare() -> Iterator[StreamedHead]:
    """A head's port without a token."""
    with streamed_head() as head:
        yield head


@pytest.fixture(scope="module")
def guarded() -> Iterator[StreamedHead]:
    """A head's port with one."""
    with streamed_head(SECRET) as head:
        yield head


def asked(head: StreamedHead, method: str, path: str, headers: dict[str, str]) -> int:
    """Request a path; return the status."""
    if path == "/events":
        with reading(head, headers) as answer:
            return answer.status
    return ask(head.port, method, path, headers, {} if method == "POST" else None).status


def test_no_path_is_forgotten(bare: StreamedHead) -> None:
    """A new path is included here automatically."""
    known = {(method, path.replace("/head/job", "/{node}/{name}")) for method, path in ROUTES}
    routes = {(route.method, route.path) for route in bare.site.routes()}
    assert routes - known == {("GET", path) for path in UNGUARDED_PATHS}
    assert known <= routes


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_page_of_another_site(
    bare: StreamedHead, guarded: StreamedHead, method: str, path: str
) -> None:
    """A foreign page is refused for every path; so is a foreign name for this node."""
    proof = {**BY_KEY, **JSON}
    assert asked(bare, method, path, {**proof, **FOREIGN}) == 403
    assert asked(bare, method, path, {**proof, "Sec-Fetch-Site": "cross-site"}) == 403
    assert asked(bare, method, path, {**proof, "Host": "evil.example"}) == 421
    if method == "POST":
        assert asked(guarded, method, path, {**BY_TOKEN, **JSON, **FOREIGN}) == 403


@pytest.mark.parametrize(
    "origin", ["null", "", "http://127.0.0.1:8888", "http://127.0.0.1", "https://evil.example"]
)
def test_no_page_of_another_origin_may_post(
    bare: StreamedHead, guarded: StreamedHead, origin: str
) -> None:
    """Only our own pages may post, also not one of another port of this node."""
    for path in ("/report", "/stop", "/login"):
        assert asked(bare, "POST", path, {**BY_KEY, **JSON, "Origin": origin}) == 403
        assert asked(guarded, "POST", path, {**BY_TOKEN, **JSON, "Origin": origin}) == 403


@pytest.mark.parametrize("path", ["/report", "/stop"])
@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "text/plain",
        "text/plain; a=application/json",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
    ],
)
def test_posts_are_json(
    bare: StreamedHead, guarded: StreamedHead, path: str, kind: str | None
) -> None:
    """Content types that a page can post without a preflight change nothing; a form may sign in."""
    typed = {} if kind is None else {"Content-Type": kind}
    refused = ask(bare.port, "POST", path, {**BY_KEY, **typed}, {})
    assert refused.status == 415
    assert "application/json" in refused.error
    assert asked(guarded, "POST", path, {**BY_TOKEN, **typed}) == 415


@pytest.mark.parametrize(("method", "path"), [one for one in ROUTES if one[1] not in OPEN])
def test_the_token_opens_it(guarded: StreamedHead, method: str, path: str) -> None:
    """With a token, nothing is served without it, and the key is not accepted."""
    cookie = {"Cookie": f"{COOKIE}=0"}
    for proof in ({}, BY_KEY, {"Authorization": "Bearer wrong"}, cookie):
        assert asked(guarded, method, path, {**proof, **JSON}) == 401
    if method == "GET":
        assert asked(guarded, method, path, BY_TOKEN) != 401


@pytest.mark.parametrize("path", ["/events", "/findings", "/logs/head/job"])
def test_without_a_token_the_key_opens_it(bare: StreamedHead, path: str) -> None:
    """Private parts of the status need the key of the head's own node."""
    for proof in ({}, {"Authorization": "Bearer wrong"}):
        assert asked(bare, "GET", path, proof) == 401
    assert asked(bare, "GET", path, BY_KEY) in {200, 404}
    assert asked(bare, "POST", "/stop", JSON) == 401


# --- wrong tokens --------------------------------------------------------------------------------


def test_wrong_tokens_count_by_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """An IPv6 host may use any address of its /64."""
    monkeypatch.setattr(control_access, "MOST_GUESSES", MOST_GUESSES)
    guesses = Guesses()
    for number in range(MOST_GUESSES):
        assert guesses.may_guess(f"2001:db8::{number:x}")
        guesses.count(f"2001:db8::{number:x}")
    assert not guesses.may_guess("2001:db8::ffff")
    assert guesses.may_guess("2001:db8:0:1::1")


def test_wrong_tokens_of_many_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of addresses, further ones count together, until the minute is over."""
    monkeypatch.setattr(control_access, "MOST_GUESSES", MOST_GUESSES)
    guesses = Guesses()
    for number in range(20_000):
        guesses.count(f"10.{number >> 8}.{number & 255}.1")
    assert len(guesses._wrong) < 5_000  # noqa: SLF001 - memory that no answer shows
    assert guesses.may_guess("10.0.0.1")
    assert not guesses.may_guess("192.0.2.1")
    guesses._window_ends = 0.0  # noqa: SLF001 - as after a minute
    assert guesses.may_guess("192.0.2.1")
