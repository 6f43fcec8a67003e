"""Who may call an agent's port, and with what: refused before any other work."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from aiohttp import web

from agent.cli import http_request
from agent.port import access as control_access
from agent.port.access import (
    COOKIE,
    MOST_GUESSES,
    UNGUARDED_PATHS,
    Guesses,
    PortAccess,
    host_names,
    refusal_of,
)
from agent.port.page_files import ASSETS
from support.agent_ports import NAMES
from support.event_stream import (
    BY_KEY,
    BY_TOKEN,
    StreamedHead,
    next_status,
    reading,
    streamed_head,
)
from support.served import SECONDS, Answer, ask
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ROUTES = [
    *(("GET", path) for path in ("/status", "/metrics", "/", "/events", "/findings", "/sample")),
    *(("GET", path) for path in ("/logs/head/job", "/series", *ASSETS)),
    *(("POST", path) for path in ("/login", "/report", "/stop")),
]
"""All except the probes, which reveal nothing."""
OPEN = {*ASSETS, "/login"}
"""The files that a browser needs before its sign-in."""
FOREIGN = {"Origin": "https://evil.example"}
WRONG = {"Authorization": "Bearer wrong"}


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


@pytest.fixture
def _many_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare all wrong tokens: a test sends one after the other to the same port."""
    monkeypatch.setattr(control_access, "MOST_GUESSES", 10_000)


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


# --- other sites and names -----------------------------------------------------------------------


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


def test_who_may_read_from_a_browser(bare: StreamedHead, guarded: StreamedHead) -> None:
    """Our own page, and whoever follows a link to it; with the token, any page that has it."""
    own = {"Origin": f"http://127.0.0.1:{bare.port}", "Sec-Fetch-Site": "same-origin"}
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert asked(bare, "GET", "/status", own) == 200
    assert asked(bare, "GET", "/status", {**link, "Sec-Fetch-Dest": "document"}) == 200
    assert asked(bare, "GET", "/status", {**link, "Sec-Fetch-Dest": "iframe"}) == 403
    assert asked(guarded, "GET", "/status", {**BY_TOKEN, **FOREIGN}) == 200


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


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip"])
def test_a_compressed_body_is_refused(bare: StreamedHead, coding: str) -> None:
    """Whatever library is installed; identity is no compression."""
    for said, status in ((coding, 415), ("identity", 409)):
        assert asked(bare, "POST", "/report", {**JSON, "Content-Encoding": said}) == status


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("10.1.2.3:8266", True),
        ("[2001:db8::1]:8266", True),
        ("[::1]", True),
        ("localhost:9000", True),
        ("LOCALHOST.", True),
        ("head-0.lws.default:8266", True),
        ("head-0.lws.default.svc.cluster.local:8266", True),
        ("head-0.lws.default.svc", True),
        ("POD7.runpod.internal", True),
        ("evil.example:8266", False),
        ("head-0.lws.default.evil.example", False),
        ("evil.svc.cluster.local", False),
        ("localhost.evil.example", False),
        ("10.1.2.3.evil.example", False),
        ("evil", False),
        ("", False),
        (":8266", False),
        ("[evil.example]", False),
        ("127.0.0.1@evil.example", False),
    ],
)
def test_a_name_that_is_not_ours_is_refused(host: str, known: bool) -> None:  # noqa: FBT001 - a table's column
    """A foreign name may resolve to our address; the token, and the probes, are for any name."""
    names, headers = host_names(NAMES), {"Host": host}
    for method, path in (("GET", "/status"), ("POST", "/report")):
        assert (refusal_of(method, path, headers, names, guarded=False) is None) is known
        assert refusal_of(method, path, headers, names, guarded=True) is None
    assert refusal_of("GET", "/livez", {**headers, "Origin": "null"}, names, guarded=False) is None


def test_a_refused_name_has_a_remedy(bare: StreamedHead) -> None:
    """The name of the machine needs none, nor do probes; a client without a name is no browser."""
    assert asked(bare, "GET", "/status", {"Host": socket.gethostname()}) == 200
    refused = ask(bare.port, "GET", "/status", {"Host": "evil"})
    assert "by its IP address" in refused.error
    assert "RAY_AUTH_TOKEN" in refused.error
    assert refusal_of("GET", "/status", {}, host_names([]), guarded=False) is None
    for path in UNGUARDED_PATHS:
        assert asked(bare, "GET", path, {"Host": "evil", "Origin": "null"}) == 200


# --- the token, the key and the page's cookie ----------------------------------------------------


@pytest.mark.usefixtures("_many_guesses")
@pytest.mark.parametrize(("method", "path"), [one for one in ROUTES if one[1] not in OPEN])
def test_the_token_opens_it(guarded: StreamedHead, method: str, path: str) -> None:
    """With a token, nothing is served without it, and the key is not accepted."""
    cookie = {"Cookie": f"{COOKIE}=0"}
    for proof in ({}, BY_KEY, WRONG, cookie):
        assert asked(guarded, method, path, {**proof, **JSON}) == 401
    assert asked(guarded, method, path, {**BY_TOKEN, **JSON}) != 401


@pytest.mark.usefixtures("_many_guesses")
@pytest.mark.parametrize("path", ["/events", "/findings", "/logs/head/job"])
def test_without_a_token_the_key_opens_it(bare: StreamedHead, path: str) -> None:
    """Private parts of the status need the key of the head's own node."""
    for proof in ({}, WRONG):
        assert asked(bare, "GET", path, proof) == 401
    assert asked(bare, "GET", path, BY_KEY) in {200, 404}
    assert asked(bare, "POST", "/stop", JSON) == 401


def entered(head: StreamedHead, token: str = SECRET) -> Answer:
    """Send the page's form."""
    own = {"Origin": f"http://127.0.0.1:{head.port}", **FORM}
    return ask(head.port, "POST", "/login", own, f"token={token}")


def test_the_form_opens_the_page_and_nothing_else(guarded: StreamedHead) -> None:
    """The form's cookie only reads, also the stream, under the name with which it was set."""
    assert entered(guarded, "wrong").status == 401
    assert asked(guarded, "POST", "/login", JSON) == 415
    answer = entered(guarded)
    assert answer.status == 303
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert f"Max-Age={12 * 3600}" in cookie
    assert SECRET not in cookie
    name, _, value = cookie.partition(";")[0].partition("=")
    assert name == f"{COOKIE}_{guarded.port}", "browsers send a cookie to every port of a host"
    own = {"Cookie": f"{name}={value}"}
    assert asked(guarded, "GET", "/", own) == 200
    with reading(guarded, own) as stream:
        assert next_status(stream)["phase"] == "booting"
    for path in ("/report", "/stop"):
        assert asked(guarded, "POST", path, {**JSON, **own}) == 401
    ends, signature = value.split(".")
    for wrong in (f"{int(ends) + 1}.{signature}", f"{ends}.", signature, "", f"-1.{signature}"):
        assert asked(guarded, "GET", "/", {"Cookie": f"{name}={wrong}"}) == 401
    elsewhere = {"Cookie": f"{COOKIE}_1={value}", "Host": "127.0.0.1:1"}
    assert asked(guarded, "GET", "/", elsewhere) == 401


class Caller:
    """The credentials of a request; the test sets the clock."""

    method, raw_path, remote, transport = "GET", "/", "10.0.0.9", None

    def __init__(self, cookie: str = "") -> None:
        self.headers = {"Host": "node:8266"}
        self.cookies = {f"{COOKIE}_8266": cookie}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time that the credentials are checked at."""
    now = [1_000.0]
    clock = SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0])
    monkeypatch.setattr("agent.port.access.time", clock)
    return now


def test_a_cookie_expires_and_is_of_one_run(now: list[float]) -> None:
    """After twelve hours, even if the browser keeps it; runs may share a token."""
    access = PortAccess(SECRET, None, lambda: "run-1")
    answer = web.Response()
    access.set_cookie(cast("Any", Caller()), answer)
    caller = cast("Any", Caller(answer.cookies[f"{COOKIE}_8266"].value))
    assert not PortAccess(SECRET, None, lambda: "run-2").has_token(caller)
    now[0] += 12 * 3600 - 1
    assert access.has_token(caller)
    now[0] += 1
    assert not access.has_token(caller)


# --- wrong tokens --------------------------------------------------------------------------------


def test_the_form_takes_few_guesses(now: list[float]) -> None:
    """The eleventh within a minute is not compared; other addresses are not affected."""
    access, caller, other = PortAccess(SECRET, None), Caller(), Caller()
    other.remote = "10.0.0.8"
    one, two = cast("Any", caller), cast("Any", other)
    for _ in range(MOST_GUESSES):
        assert access.may_guess(one)
        assert not access.login(one, "wrong")
    assert not access.may_guess(one)
    assert access.may_guess(two)
    assert access.login(two, f" {SECRET} ")
    now[0] += 60
    assert access.may_guess(one)
    assert access.login(one, SECRET)


def test_guesses_that_are_sent_at_once_count_too() -> None:
    """Those whose form was still on its way when the first was refused; then there is a note."""
    form, many = b"token=wrong", 5 * MOST_GUESSES
    with streamed_head(SECRET) as head, contextlib.ExitStack() as stack:
        said = f"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(form)}\r\n"
        said += f"Content-Type: {FORM['Content-Type']}\r\n\r\n"
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", head.port), SECONDS))
            for _ in range(many)
        ]
        for one in opened:
            one.sendall(said.encode() + form[:-1])
        assert asked(head, "GET", "/livez", {}) == 200  # the requests have arrived
        for one in opened:
            one.sendall(form[-1:])
        answers = [one.recv(65_536).split()[1] for one in opened]
        refused = entered(head)
        assert refused.status == 429
        assert 0 < int(refused.headers["Retry-After"]) <= 61
        assert asked(head, "GET", "/status", BY_TOKEN) == 200
    assert answers.count(b"401") == MOST_GUESSES
    assert answers.count(b"429") == many - MOST_GUESSES


def test_few_bearer_tokens_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is logged once and waits; agents, which prove the token, are served."""
    said: list[str] = []
    monkeypatch.setattr(control_access, "say", lambda line, _level: said.append(line))
    with streamed_head(SECRET) as head:
        for _ in range(MOST_GUESSES):
            assert asked(head, "GET", "/status", WRONG) == 401
        for headers in (BY_TOKEN, WRONG):
            refused = ask(head.port, "GET", "/status", headers)
            assert refused.status == 429
            assert "Retry-After" in refused.headers
        url = f"http://127.0.0.1:{head.port}/status"
        assert http_request.ask(url, SECRET).status == 200  # signed
        assert ask(head.port, "GET", "/status", BY_TOKEN, source="127.0.0.2").status == 200
    assert len(said) == 1
    assert "127.0.0.1" in said[0]


def test_wrong_tokens_count_by_network(now: list[float]) -> None:
    """An IPv6 host may use any address of its /64; beyond a number, all others count together."""
    guesses = Guesses()
    for number in range(MOST_GUESSES):
        assert guesses.may_guess(f"2001:db8::{number:x}")
        guesses.count(f"2001:db8::{number:x}")
    assert not guesses.may_guess("2001:db8::ffff")
    assert guesses.may_guess("2001:db8:0:1::1")
    for number in range(20_000):
        guesses.count(f"10.{number >> 8}.{number & 255}.1")
    assert len(guesses._wrong) < 5_000  # noqa: SLF001 - memory that no answer shows
    assert guesses.may_guess("10.0.0.1")
    assert not guesses.may_guess("192.0.2.1")
    now[0] += 60.0
    assert guesses.may_guess("192.0.2.1")
