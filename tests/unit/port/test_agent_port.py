"""The agent's port as a real server: who may call what, and the headers for browsers."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from aiohttp import web
from msgspec.structs import replace

from agent.base.typed import convert
from agent.cli import http_request
from agent.cli.running_head import status_at
from agent.decisions.head.head_state import WorkerReported
from agent.port import access as control_access
from agent.port import page_files
from agent.port.access import COOKIE, MOST_GUESSES, PortAccess, host_names, refusal_of
from agent.port.status_model import WorkerStatus
from support.agent_ports import BEARER, JSON, REPORT, STATUS, Port, served_port
from support.served import SECONDS, ask
from support.worlds import SECRET, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def bare() -> Iterator[Port]:
    """A port without a token."""
    with served_port(None) as port:
        yield port


@pytest.fixture(scope="module")
def guarded() -> Iterator[Port]:
    """A port with a token."""
    with served_port(SECRET) as port:
        yield port


def test_a_worker_reports(bare: Port) -> None:
    """JSON to an address is enough, with any parameters after the content type."""
    assert bare.report(JSON).status == 200
    assert bare.report({"Content-Type": "application/JSON; charset=utf-8"}).status == 200
    event = bare.received[-1]
    assert isinstance(event, WorkerReported)
    assert event.worker.name == "pod1"


@pytest.mark.parametrize("path", ["/status", "/metrics", "/"])
def test_no_page_of_another_site_may_read(bare: Port, guarded: Port, path: str) -> None:
    """Without a token a foreign page is refused; a link from it may be followed."""
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert bare.ask("GET", path, headers).status == 403
        assert guarded.ask("GET", path, {**headers, **BEARER}).status == 200
    own = {"Origin": f"http://{bare.here}", "Sec-Fetch-Site": "same-origin"}
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert bare.ask("GET", path, own).status == 200
    assert bare.ask("GET", path, {**link, "Sec-Fetch-Dest": "document"}).status == 200
    assert bare.ask("GET", path, {**link, "Sec-Fetch-Dest": "iframe"}).status == 403


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
        (socket.gethostname(), True),
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
def test_a_name_that_is_not_ours_is_refused(
    bare: Port,
    guarded: Port,
    host: str,
    known: bool,  # noqa: FBT001 - a table's column
) -> None:
    """A foreign name that resolves to our address is refused; probes are open to all."""
    answer = bare.ask("GET", "/status", {"Host": host})
    assert (answer.status == 421) is not known
    if not known:
        assert "by its IP address" in answer.error
        assert "RAY_AUTH_TOKEN" in answer.error
    assert bare.report({**JSON, "Host": host}).status == (200 if known else 421)
    for path in ("/livez", "/readyz"):
        assert bare.ask("GET", path, {"Host": host, "Origin": "null"}).status == 200
    assert guarded.ask("GET", "/status", {"Host": host, **BEARER}).status == 200
    assert guarded.report({**JSON, **BEARER, "Host": host}).status == 200


def test_without_a_host_it_is_no_browser() -> None:
    """An old client without a Host header is served."""
    assert refusal_of("GET", "/status", {}, host_names([]), guarded=False) is None
    assert host_names(["10.0.0.1", ".", "A."]) == {"localhost", "a"}


def test_the_form_opens_the_page_and_nothing_else(guarded: Port) -> None:
    """The form's cookie opens the page only, under the name with which it was set."""
    own = {"Origin": f"http://{guarded.here}", **FORM}
    assert guarded.ask("GET", "/").status == 401
    assert guarded.ask("POST", "/login", own, "token=wrong").status == 401
    assert guarded.ask("POST", "/login", JSON, {"token": SECRET}).status == 415
    entered = guarded.ask("POST", "/login", own, f"token={SECRET}")
    assert entered.status == 303
    cookie = entered.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert f"Max-Age={12 * 3600}" in cookie
    assert SECRET not in cookie
    name, _, value = cookie.partition(";")[0].partition("=")
    assert name == f"{COOKIE}_{guarded.number}", "browsers send a cookie to every port of a host"
    assert guarded.ask("GET", "/", {"Cookie": f"{name}={value}"}).status == 200
    ends, signature = value.split(".")
    for wrong in (f"{int(ends) + 1}.{signature}", f"{ends}.", signature, "", f"-1.{signature}"):
        assert guarded.ask("GET", "/", {"Cookie": f"{name}={wrong}"}).status == 401
    elsewhere = {"Cookie": f"{COOKIE}_1={value}", "Host": "127.0.0.1:1"}
    assert guarded.ask("GET", "/", elsewhere).status == 401


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


def test_a_cookie_expires(now: list[float]) -> None:
    """It expires after twelve hours, even if the browser keeps it."""
    access = PortAccess(SECRET, None)
    answer = web.Response()
    access.set_cookie(cast("Any", Caller()), answer)
    caller = cast("Any", Caller(answer.cookies[f"{COOKIE}_8266"].value))
    now[0] += 12 * 3600 - 1
    assert access.has_token(caller)
    now[0] += 1
    assert not access.has_token(caller)


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


def test_after_too_many_guesses_the_form_has_a_note() -> None:
    """Also with the right token; programs that send it in a header are served."""
    with served_port(SECRET) as port:
        asked = [port.ask("POST", "/login", FORM, "token=wrong") for _ in range(MOST_GUESSES)]
        assert {one.status for one in asked} == {401}
        refused = port.ask("POST", "/login", FORM, f"token={SECRET}")
        assert refused.status == 429
        assert 0 < int(refused.headers["Retry-After"]) <= 61
        assert port.ask("GET", "/status", BEARER).status == 200


def test_guesses_that_are_sent_at_once_count_too() -> None:
    """The limit holds for those whose form was still on its way when the first was refused."""
    form, many = b"token=wrong", 5 * MOST_GUESSES
    with served_port(SECRET) as port, contextlib.ExitStack() as stack:
        head = f"POST /login HTTP/1.1\r\nHost: {port.here}\r\nContent-Length: {len(form)}\r\n"
        head += f"Content-Type: {FORM['Content-Type']}\r\n\r\n"
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port.number), SECONDS))
            for _ in range(many)
        ]
        for one in opened:
            one.sendall(head.encode() + form[:-1])
        assert port.ask("GET", "/livez").status == 200  # the requests have arrived
        for one in opened:
            one.sendall(form[-1:])
        answers = [one.recv(65_536).split()[1] for one in opened]
    assert answers.count(b"401") == MOST_GUESSES
    assert answers.count(b"429") == many - MOST_GUESSES


def test_few_bearer_tokens_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is logged once and waits; agents, which prove the token, are served."""
    said: list[str] = []
    monkeypatch.setattr(control_access, "say", lambda line, _level: said.append(line))
    with served_port(SECRET) as port:
        for _ in range(MOST_GUESSES):
            assert port.ask("GET", "/status", {"Authorization": "Bearer wrong"}).status == 401
        for headers in (BEARER, {"Authorization": "Bearer wrong"}):
            refused = port.ask("GET", "/status", headers)
            assert refused.status == 429
            assert "Retry-After" in refused.headers
        url = f"http://{port.here}/status"
        assert http_request.ask(url, SECRET).status == 200  # signed
        assert ask(port.number, "GET", "/status", BEARER, source="127.0.0.2").status == 200
    assert len(said) == 1
    assert "127.0.0.1" in said[0]


def test_the_cookie_only_reads(guarded: Port) -> None:
    """It neither reports nor stops; and one of another run opens nothing."""
    entered = guarded.ask("POST", "/login", FORM, f"token={SECRET}")
    cookie = {"Cookie": entered.headers["Set-Cookie"].partition(";")[0]}
    assert guarded.ask("GET", "/status", cookie).status == 200
    for path in ("/report", "/stop"):
        assert guarded.ask("POST", path, {**JSON, **cookie}, REPORT).status == 401
        assert guarded.ask("POST", path, {**JSON, **BEARER}, REPORT).status != 401


def test_a_cookie_is_of_one_run() -> None:
    """Runs may share a token."""
    one = PortAccess(SECRET, None, lambda: "run-1")
    other = PortAccess(SECRET, None, lambda: "run-2")
    answer = web.Response()
    one.set_cookie(cast("Any", Caller()), answer)
    caller = cast("Any", Caller(answer.cookies[f"{COOKIE}_8266"].value))
    assert one.has_token(caller)
    assert not other.has_token(caller)


@pytest.mark.parametrize("path", ["/", "/status", "/metrics", "/livez", "/nowhere", "/login"])
def test_every_answer_is_hardened(bare: Port, guarded: Port, path: str) -> None:
    """No response is cached, framed or sniffed; a page runs no foreign script."""
    for port in (bare, guarded):
        headers = port.ask("GET", path).headers
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["X-Content-Type-Options"] == "nosniff"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy


@pytest.mark.parametrize("path", ["/page.js", "/page.css", "/keep.svg"])
def test_the_page_s_own_files(bare: Port, guarded: Port, path: str) -> None:
    """They are open, since the form needs them, and have their content types."""
    for port in (bare, guarded):
        answer = port.ask("GET", path)
        assert (answer.status, answer.body) == (200, page_files.asset(path))
        assert answer.headers.get_content_type() == page_files.ASSETS[path]
    assert bare.ask("GET", path, {"Origin": "https://evil.example"}).status == 403


def test_the_page_is_served(bare: Port, guarded: Port) -> None:
    """The same one to all who may read the status."""
    for port, headers in ((bare, {}), (guarded, BEARER)):
        assert port.ask("GET", "/", headers).body == page_files.asset("/page.html")


def test_metrics_are_served_as_prometheus_has_them(bare: Port) -> None:
    """With the version of the format, for any name."""
    answer = bare.ask("GET", "/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b'phase="joining Ray"' in answer.body


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/report", 405),
        ("PUT", "/report", 405),
        ("DELETE", "/status", 405),
        ("OPTIONS", "/report", 405),
        ("POST", "/status", 405),
        ("GET", "/report/", 404),
        ("TRACE", "/", 405),
    ],
)
def test_other_methods_and_paths_are_answered_in_json(
    bare: Port, method: str, path: str, status: int
) -> None:
    """A wrong method gets the list of the right ones."""
    answer = bare.ask(method, path)
    assert (answer.status, bool(answer.error)) == (status, True)
    assert bool(answer.headers["Allow"]) is (status == 405)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("x" * 300_000, 413),
        ("{", 400),
        ("[" * 60_000, 400),
        ("[]", 400),
        (b"\xff", 400),
        ({**REPORT, "id": ""}, 400),
    ],
)
def test_a_body_that_is_no_report(bare: Port, body: object, status: int) -> None:
    """Too large, not JSON or not a report: each gets its own error."""
    answer = bare.report(JSON, body)
    assert (answer.status, bool(answer.error)) == (status, True)


def test_a_body_that_does_not_come_holds_nobody(
    bare: Port, guarded: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stalled client gets an error after a limit, and others are served meanwhile."""
    monkeypatch.setattr("agent.serving.bodies.BODY", 0.5)
    for port, path, kind in ((bare, "/report", JSON), (guarded, "/login", FORM)):
        with socket.create_connection(("127.0.0.1", port.number), SECONDS) as stalled:
            head = f"POST {path} HTTP/1.1\r\nHost: {port.here}\r\nContent-Length: 9\r\n"
            stalled.sendall(f"{head}Content-Type: {kind['Content-Type']}\r\n\r\n{{".encode())
            assert port.ask("GET", "/livez").status == 200
            assert b" 408 " in stalled.recv(1000).partition(b"\r\n")[0]


@pytest.mark.parametrize(("path", "announced"), [("/login", 1_000), ("/report", 262_144)])
def test_announced_bodies_are_never_in_the_way_of_a_report(
    bare: Port, guarded: Port, path: str, announced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two strangers have hundreds of requests whose bodies do not come, with or without a token."""
    # A report that waited for them would be a 503.
    monkeypatch.setattr("agent.serving.bodies.BODY", 600.0)
    kind = FORM if path == "/login" else JSON
    for port, headers in ((bare, JSON), (guarded, {**BEARER, **JSON})):
        head = f"POST {path} HTTP/1.1\r\nHost: {port.here}\r\nContent-Length: {announced}\r\n"
        head += f"Content-Type: {kind['Content-Type']}\r\n\r\n"
        with contextlib.ExitStack() as stack:
            for number in range(300):  # more than fit into the memory for bodies
                source = (f"127.0.0.{2 + number % 2}", 0)
                stalled = socket.create_connection(("127.0.0.1", port.number), SECONDS, source)
                stack.enter_context(stalled).sendall(head.encode())
            assert port.report(headers).status == 200


def test_what_is_no_http_is_answered_and_not_logged(
    bare: Port, caplog: pytest.LogCaptureFixture
) -> None:
    """A port scanner or a TLS client leaves no traceback."""
    for text in (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET / HTTP/9.9\r\nA\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", bare.number), SECONDS) as peer:
            peer.sendall(text)
            assert b"400" in peer.recv(1000)
    assert caplog.records == []


def test_control_characters_of_a_worker_are_removed() -> None:
    """Control characters are removed in the status and in the log."""
    with served_port(None) as bare:
        _check_control_characters(bare)


def _check_control_characters(bare: Port) -> None:
    evil = "\x1b[31m\r\npod-agent: done\u2028\u202e\ud800\x00é"
    said = {"id": evil, "phase": evil, "detail": evil, "memory": evil, "hello": {"name": evil}}
    assert bare.report(JSON, {**REPORT, **said}).status == 200
    event = bare.received[-1]
    assert isinstance(event, WorkerReported)
    worker = event.worker
    for text in (worker.name, worker.phase, worker.detail, worker.memory, worker.key):
        assert text.isprintable()
        assert r"\x1b[31m\r\npod-agent: done\u2028\u202e\ud800\x00é" in text


def test_status_asks_under_any_name(bare: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that only the client has for the head (in its hosts file) is accepted."""
    by_name = socket.getaddrinfo

    def here(_host: str, *rest: Any) -> Any:  # noqa: ANN401 - the module's own signature
        return by_name("127.0.0.1", *rest)

    monkeypatch.setattr(socket, "getaddrinfo", here)
    found = status_at(f"my-own-alias:{bare.number}", settings_of({}))
    assert not isinstance(found, str)
    assert convert(found.data, WorkerStatus) == replace(STATUS, head_phase="joining \\ud800 Ray")
