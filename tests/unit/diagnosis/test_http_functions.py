"""A server's answer with an error is named by its host, its status and its path."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Log, diagnose_logs

FRAMES = 'Traceback (most recent call last):\n  File "/w/ask.py", line 3, in ask\n    f()\n'


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "requests.exceptions.HTTPError: 413 Client Error: Too Large for url: http://a.b:80/x?y",
            "a.b:80 answered 413 (Too Large) to /x",
        ),
        (
            "httpx.HTTPStatusError: Client error '404 Not Found' for url 'https://a.b/v1/models'",
            "a.b answered 404 (Not Found) to /v1/models",
        ),
        (
            "aiohttp.client_exceptions.ClientResponseError: 500, message='Broken', url='http://a.b'",
            "a.b answered 500 (Broken)",
        ),
        ("urllib.error.HTTPError: HTTP Error 403: Forbidden", "a server answered 403 (Forbidden)"),
    ],
)
def test_the_answer_of_a_server_is_named(line: str, cause: str) -> None:
    """Each client prints it in another form."""
    assert diagnose_logs([Log("", "job.log", FRAMES + line)]).cause == cause


def test_another_error_counts_before_a_server_s_answer() -> None:
    """A server that answers with an error is rarely the first cause."""
    answer = "urllib.error.HTTPError: HTTP Error 500: Internal Server Error"
    text = f"{FRAMES}{answer}\n{FRAMES}ZeroDivisionError: division by zero"
    assert diagnose_logs([Log("", "job.log", text)]).line.startswith("ZeroDivisionError")


def test_a_server_that_nothing_listens_for_is_named_by_its_address() -> None:
    """What the server is, the error does not say: no inference server is blamed for its port."""
    line = (
        "(RolloutWorker pid=7) requests.exceptions.ConnectionError: HTTPConnectionPool("
        "host='10.8.0.13', port=5000): Max retries exceeded with url: /v1/envs/ (Caused by "
        "NewConnectionError('x: [Errno 111] Connection refused'))"
    )
    answer = diagnose_logs([Log("", "job.log", line)])
    assert answer.cause == "no server listens at 10.8.0.13:5000, which a process asks for /v1/envs/"


def test_a_proxy_may_have_answered_in_place_of_a_server() -> None:
    """A proxy of the environment answers 503 for hosts inside of the cluster."""
    line = "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: http://a:80/x"
    answer = diagnose_logs([Log("", "job.log", FRAMES + line)])
    assert "NO_PROXY" in answer.what_to_do


@pytest.mark.parametrize(
    ("inner", "cause"),
    [
        ("httpx.LocalProtocolError: Illegal header value b'Bearer '", "a header's value"),
        ("httpx.UnsupportedProtocol: Request URL is missing an 'http://' protocol", "begin with"),
        ("httpx.ConnectError: [Errno -2] Name or service not known", "has no address"),
        ("httpx.RemoteProtocolError: Server disconnected without a response.", "closed the"),
        ("httpx.ConnectError: All connection attempts failed", "no server answers"),
        ("httpx.ConnectError: _ssl.c:989: an error", "came about, or it broke"),
    ],
)
def test_a_connection_error_is_named_by_what_it_was_raised_from(inner: str, cause: str) -> None:
    """The message of the client of OpenAI is the same for each reason."""
    text = (
        f"{FRAMES}{inner}\n\nThe above exception was the direct cause of the following exception:"
        f"\n\n{FRAMES}openai.APIConnectionError: Connection error."
    )
    assert cause in diagnose_logs([Log("", "job.log", text)]).cause
