"""One question to an agent over HTTP: no proxy, no redirect, a bounded answer in bounded time."""

from __future__ import annotations

import threading

from agent.base.value import dataclass
from agent.node.process_limits import starting

LIMIT = 5.0
LARGEST = 16 << 20
"""Bytes of an answer: the status of 5,000 nodes fits."""
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Answer:
    """What came back: a status and its body, or 0 and a sentence why nothing did."""

    status: int
    body: bytes = b""
    evidence: str = ""


def ask(
    url: str,
    token: str | None = None,
    limit: float = LIMIT,
    *,
    largest: int = LARGEST,
    post: bool = False,
) -> Answer:
    """Ask once, for at most `limit` seconds in all, however slowly the answer drips."""
    found: list[Answer] = []

    def work() -> None:
        found.append(_ask(url, token, limit, largest, "POST" if post else "GET"))

    # Timeouts of sockets count anew with each byte that comes; a thread can simply be left.
    thread = threading.Thread(target=work, name=f"ask {url}", daemon=True)
    with starting("a request"):
        thread.start()
    thread.join(limit)
    return found[0] if found else Answer(0, evidence=f"no answer within {limit:g} s")


def _ask(url: str, token: str | None, limit: float, largest: int, method: str) -> Answer:
    import requests  # noqa: PLC0415 - it costs 0.1 s, which only one-shot questions pay
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - what reading a body raises

    # whatever name led there, the node need not know it: only browsers are held to their Host
    headers = {"Accept-Encoding": "identity", "User-Agent": "pod-agent", "Host": "localhost"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if method == "POST":
        headers["Content-Type"] = "application/json"
    try:
        with requests.Session() as session:
            # a netrc entry would replace our header, a proxy take the call
            session.trust_env = False
            reply = session.request(
                method, url, headers=headers, timeout=limit, allow_redirects=False, stream=True
            )
            body = b""
            while len(body) <= largest and (chunk := reply.raw.read(_CHUNK, decode_content=False)):
                body += chunk
    except (requests.RequestException, HTTPError, OSError, ValueError) as error:
        return Answer(0, evidence=_why(error, limit))
    if len(body) > largest:
        return Answer(0, evidence=f"an answer of more than {largest} bytes")
    return Answer(reply.status_code, body)


def _why(error: BaseException, limit: float) -> str:
    """Name the cause as a person would, which requests wraps several times."""
    import requests  # noqa: PLC0415 - imported by then

    if isinstance(error, requests.Timeout):
        return f"no answer within {limit:g} s"
    cause: BaseException | None = error
    seen: list[BaseException] = []
    while cause is not None and cause not in seen:
        seen.append(cause)
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        inner = [a for a in (*cause.args, getattr(cause, "reason", None)) if _is_error(a)]
        cause = next(iter(inner), None) or cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _is_error(value: object) -> bool:
    return isinstance(value, BaseException)
