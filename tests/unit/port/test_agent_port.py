"""The agent's port as a real server: answers, headers, files, and bodies that it refuses."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from agent.base.typed import convert
from agent.cli.running_head import status_at
from agent.decisions.head.head_state import WorkerReported
from agent.job.series import SeriesPart
from agent.port import page_files, server
from agent.port.status_model import WorkerStatus
from support.agent_ports import BEARER, JSON, REPORT, STATUS, Port, served_port
from support.served import SECONDS, a_head, a_series, ask
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
    """JSON to one of its names is enough, with any parameters after the content type."""
    assert bare.report({**JSON, "Host": "head-0.lws.default:8266"}).status == 200
    assert bare.report({"Content-Type": "application/JSON; charset=utf-8"}).status == 200
    event = bare.received[-1]
    assert isinstance(event, WorkerReported)
    assert event.worker.name == "pod1"


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


def test_the_page_is_served(bare: Port, guarded: Port) -> None:
    """The same one to all who may read the status; to others the form."""
    for port, headers in ((bare, {}), (guarded, BEARER)):
        assert port.ask("GET", "/", headers).body == page_files.asset("/page.html")
    assert guarded.ask("GET", "/").body == server.login_page()


def test_metrics_are_served_as_prometheus_has_them(bare: Port) -> None:
    """With the version of the format, for any name."""
    answer = bare.ask("GET", "/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b'phase="joining Ray"' in answer.body


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        *((method, "/report", None, 405) for method in ("GET", "PUT", "OPTIONS")),
        *((method, "/status", None, 405) for method in ("DELETE", "POST")),
        ("TRACE", "/", None, 405),
        ("GET", "/report/", None, 404),
        ("POST", "/report", "x" * 300_000, 413),
        *(("POST", "/report", body, 400) for body in ("{", "[" * 60_000, "[]", b"\xff")),
        ("POST", "/report", {**REPORT, "id": ""}, 400),
        ("POST", "/report", {**REPORT, "values that would take 6 MiB": [1] * 80_000}, 400),
    ],
)
def test_a_refusal_is_json(bare: Port, method: str, path: str, body: object, status: int) -> None:
    """A wrong method gets the list of the right ones; what is no report has its own error."""
    answer = bare.ask(method, path, JSON, body)
    assert (answer.status, bool(answer.error)) == (status, True)
    assert bool(answer.headers["Allow"]) is (status == 405)


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


def test_status_asks_under_any_name(bare: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that only the client has for the head (in its hosts file) is accepted."""
    by_name = socket.getaddrinfo

    def here(_host: str, *rest: Any) -> Any:  # noqa: ANN401 - the module's own signature
        return by_name("127.0.0.1", *rest)

    monkeypatch.setattr(socket, "getaddrinfo", here)
    found = status_at(f"my-own-alias:{bare.number}", settings_of({}))
    assert not isinstance(found, str)
    assert convert(found.data, WorkerStatus) == replace(STATUS, head_phase="joining \\ud800 Ray")


# --- /series -------------------------------------------------------------------------------------


def test_the_series_of_all_steps_or_of_those_after_one() -> None:
    """A reader that has the first steps asks for the others."""
    with a_head(SECRET) as head:
        for since, part in (("", None), ("?since=2", 2), ("?since=3", 3)):
            answer = ask(head.port, "GET", f"/series{since}", BEARER)
            assert convert(answer.data, SeriesPart) == a_series().part(part)
        for wrong in ("x", "9" * 16):
            assert ask(head.port, "GET", f"/series?since={wrong}", BEARER).status == 400


@pytest.mark.parametrize("caller", ["127.0.0.1", "127.0.0.2"])
def test_without_a_token_names_of_metrics_stay_on_the_node(caller: str) -> None:
    """A job may print anything as a name; numbers that the agent names itself are for all."""
    with a_head() as head:
        text = ask(head.port, "GET", "/metrics", source=caller).body.decode()
    assert "pod_agent_phase{" in text
    is_local = caller == "127.0.0.1"
    assert ('pod_agent_job_metric{name="reward"} 0.5' in text) == is_local
