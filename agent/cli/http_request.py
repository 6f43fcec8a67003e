"""One HTTP request to an agent: signed, limited in time and size, proven."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import requests
from urllib3.exceptions import HTTPError

from agent.base import times
from agent.base.text import escaped
from agent.port.proof import TRIES, Prover, ReplyProof, Signed
from agent.record.background import run_within

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BODY = 16 << 20  # the status of 5,000 nodes fits
FAILURES = (HTTPError, OSError, ValueError)
"""What a request raises."""
_CHUNK = 1 << 20
_HEADERS = {
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "pod-agent",
    "Host": "localhost",  # the node checks it for browsers; any name may lead there
}


class HttpAnswer(NamedTuple):
    """An HTTP status and body, or 0 without an answer, and why it is not the wanted one."""

    status: int
    failure: str
    body: bytes = b""


def ask(
    url: str, secret: str | None = None, limit: float = times.ONE_REQUEST, *, post: bool = False
) -> HttpAnswer:
    """Send one request, signed with a secret; `limit` is its total time in seconds."""
    # A socket's timeout starts again with each byte received; a thread can be abandoned.
    answer = run_within(limit, lambda: _ask("POST" if post else "GET", url, secret, limit))
    return answer or HttpAnswer(0, f"no answer within {limit:g} s")


def _ask(method: str, url: str, secret: str | None, limit: float) -> HttpAnswer:
    prover = Prover(secret)
    try:
        for _ in range(TRIES):
            with sent(method, url, prover, limit) as (reply, signed):
                body = b""
                while len(body) <= MAX_BODY and (chunk := reply.raw.read(_CHUNK)):
                    body += chunk  # as it was sent, not inflated
            verdict = prover.check(signed, reply.status_code, reply.headers, body)
            if verdict is not ReplyProof.AGAIN:
                break
    except FAILURES as error:
        return HttpAnswer(0, error_text(error))

    if len(body) > MAX_BODY:
        return HttpAnswer(0, f"an answer of more than {MAX_BODY} bytes")
    if verdict in {ReplyProof.UNPROVEN, ReplyProof.AGAIN}:
        return HttpAnswer(0, "it does not prove that it holds this shell's RAY_AUTH_TOKEN or key")
    return HttpAnswer(reply.status_code, f"it answered {reply.status_code}", body)


@contextmanager
def sent(
    method: str, url: str, prover: Prover, limit: float
) -> Iterator[tuple[requests.Response, Signed]]:
    """Send a request, signed where the server's session is known; the body is not read yet."""
    signed = prover.sign(method, requests.Request(method, url).prepare().path_url)
    options: Any = {"timeout": limit, "allow_redirects": False, "stream": True}
    with requests.Session() as session:
        # no netrc entry may replace our header, no proxy receive the request
        session.trust_env = False
        headers = {**_HEADERS, **signed.headers}
        with session.request(method, url, headers=headers, **options) as reply:
            yield reply, signed


def error_text(error: BaseException) -> str:
    """Return the innermost error's text; requests wraps it several times."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return escaped(text.lower())
