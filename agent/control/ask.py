"""HTTP requests of the command line to an agent: the head, its status and its events."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import requests
from urllib3.exceptions import HTTPError

from agent.base import times
from agent.base.ports import port_map
from agent.base.text import all_escaped, escaped, in_url
from agent.node.limits import starting
from agent.record import run_folder
from agent.settings import load
from agent.topology.resolve import port_base

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agent.control.status import Status
    from agent.settings.model import Settings


MAX_BODY = 16 << 20
"""The status of 5,000 nodes fits."""
_CHUNK = 1 << 20

UNKNOWN_FORMAT_ERRORS = (KeyError, TypeError, ValueError, AttributeError)
"""Errors of reading a status of another version."""
OTHER_VERSION = "pod-agent: an agent of another version answers: try --json"
_NOT_AN_AGENT = "whatever listens there is no agent"
_DATA_PREFIX = b"data: "


class HttpAnswer(NamedTuple):
    """An HTTP status and body, or 0 and a sentence why there is none."""

    status: int
    body: bytes = b""
    evidence: str = ""


def ask(
    url: str, token: str | None = None, limit: float = times.ONE_REQUEST, *, post: bool = False
) -> HttpAnswer:
    """Send one request; `limit` is its total time in seconds."""
    found: list[HttpAnswer] = []

    def work() -> None:
        found.append(_ask("POST" if post else "GET", url, token, limit))

    # A socket's timeout starts again with each byte received; a thread can be abandoned.
    thread = threading.Thread(target=work, name=f"ask {url}", daemon=True)
    with starting("a request"):
        thread.start()
    thread.join(limit)
    return found[0] if found else HttpAnswer(0, evidence=f"no answer within {limit:g} s")


def _ask(method: str, url: str, token: str | None, limit: float) -> HttpAnswer:
    body = b""
    try:
        with _request(method, url, token, limit) as reply:
            while len(body) <= MAX_BODY and (chunk := reply.raw.read(_CHUNK, decode_content=False)):
                body += chunk
    except (HTTPError, OSError, ValueError) as error:
        return HttpAnswer(0, evidence=_error_text(error, limit))
    if len(body) > MAX_BODY:
        return HttpAnswer(0, evidence=f"an answer of more than {MAX_BODY} bytes")
    return HttpAnswer(reply.status_code, body)


@contextmanager
def _request(method: str, url: str, token: str | None, limit: float) -> Iterator[requests.Response]:
    """Send a request and yield the reply, of which the body is still to be read."""
    # the node checks the Host header of browsers; any name may lead there
    headers = {"Accept-Encoding": "identity", "User-Agent": "pod-agent", "Host": "localhost"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if method == "POST":
        headers["Content-Type"] = "application/json"
    with requests.Session() as session:
        # no netrc entry may replace our header, no proxy receive the request
        session.trust_env = False
        yield session.request(
            method, url, headers=headers, timeout=limit, allow_redirects=False, stream=True
        )


def _error_text(error: BaseException, limit: float) -> str:
    """Return the innermost error's text; requests wraps it several times."""
    if isinstance(error, requests.Timeout):
        return f"no answer within {limit:g} s"
    cause: BaseException | None = error
    seen: list[BaseException] = []
    while cause is not None and cause not in seen:
        seen.append(cause)
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        inner = (*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__)
        cause = next((one for one in inner if isinstance(one, BaseException)), None)
    return str(error) or type(error).__name__


def local_keys(settings: Settings, log_root: Path) -> list[str]:
    """Return the credentials to try: the token if set, else the control keys in the log folder."""
    token = settings.ray_auth_token
    return [token.reveal()] if token is not None else [*run_folder.keys_in(log_root)]


def ask_with_key(url: str, settings: Settings, log_root: Path, *, post: bool = False) -> HttpAnswer:
    """Send a request with each local credential until one is accepted."""
    answer = HttpAnswer(0, evidence="no key to the head's port lies here")
    for key in local_keys(settings, log_root):
        answer = ask(url, key, post=post)
        if answer.status != 401:
            break
    return answer


def failure_reason(answer: HttpAnswer, what_is_done: str) -> str:
    """Return why a head refused; `what_is_done` is a clause such as `a run is stopped`."""
    if not answer.status or answer.status in {401, 403}:
        what = answer.evidence or "it requires a token or key"
        return (
            f"{what}; without RAY_AUTH_TOKEN {what_is_done} from its head's node alone, by the "
            "user whose agent it is and with the same AGENT_LOG_DIR"
        )
    try:
        return escaped(str(json.loads(answer.body)["error"]))
    except (ValueError, KeyError, TypeError):
        return f"it answered {answer.status}"


class FoundHead(NamedTuple):
    """A head's status, its host and port, and this node's settings."""

    status: dict[str, Any]
    where: str
    settings: Settings


def find_head(environ: Mapping[str, str]) -> FoundHead | None:
    """Return the head and its status; prints why and returns None where none answers."""
    settings = load(environ).settings
    status, evidence, where = _find_head_status(settings, own_port(environ, settings))
    if status is None:
        print(f"pod-agent: no head's agent answers: {evidence}", file=sys.stderr)
        return None
    return FoundHead(status, where, settings)


def own_port(environ: Mapping[str, str], settings: Settings) -> int:
    """Return the port of this node's agent, which is also the head's."""
    base = port_base(environ, settings)
    return port_map(settings.ray_port, settings.dashboard_port, settings.port, base).agent


def _find_head_status(settings: Settings, port: int) -> tuple[dict[str, Any] | None, str, str]:
    """Return the head's status, or None and why; and the host and port asked.

    This node's agent is asked first: an ssh shell lacks the variables that name the head.
    """
    where = f"127.0.0.1:{port}"
    local, evidence = status_at(where, settings)
    if local is not None and local["role"] == "head":
        return local, "", where
    if local is not None:
        named = local.get("head")
        if not isinstance(named, dict) or not {"host", "port"} <= named.keys():
            return None, f"{where}: {_NOT_AN_AGENT}", where
        where = f"{in_url(str(named['host']))}:{named['port']}"
    elif settings.head is not None:
        where = f"{in_url(settings.head)}:{port}"
    elif settings.head_pod_id is not None:
        where = f"{settings.head_pod_id}.runpod.internal:{port}"
    else:
        return None, f"{evidence}; set AGENT_HEAD or HEAD_POD_ID to ask from elsewhere", where
    found, evidence = status_at(where, settings)
    if found is not None and found["role"] != "head":
        return None, f"{where}: the agent there is a {found['role']}'s, not the head's", where
    return found, evidence, where


def status_at(where: str, settings: Settings) -> tuple[dict[str, Any] | None, str]:
    """Return the status of the agent at a host and port, or None and why."""
    token = settings.ray_auth_token
    answer = ask(f"http://{where}/status", None if token is None else token.reveal())
    if answer.status == 401:
        return None, f"{where}: it asks for the cluster's RAY_AUTH_TOKEN"
    if answer.status != 200:
        return None, f"{where}: {answer.evidence or f'it answered {answer.status}'}"
    try:
        data = all_escaped(json.loads(answer.body))
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict) and {"role", "phase", "waits"} <= data.keys():
        return data, ""
    return None, f"{where}: {_NOT_AN_AGENT}"


class NoStatus(NamedTuple):
    """The head did not answer, and why."""

    reason: str


class _NoStreamError(Exception):
    """The head answers but offers no stream here."""


def follow_status(head: FoundHead, log_root: Path) -> Iterator[Status | NoStatus]:
    """Yield each status received, and a NoStatus for each failed request."""
    yield head.status
    streams = True
    while True:
        try:
            if streams:
                yield from _stream(head, log_root)
        except _NoStreamError:
            streams = False
        except (OSError, ValueError) as error:
            yield NoStatus(_error_text(error, times.STREAM_SILENT))
        status, why = status_at(head.where, head.settings)
        if status is None:
            streams = True  # the head may be restarted with another key
            yield NoStatus(why)
        else:
            yield status
        time.sleep(times.STATUS_POLL)  # for a person only; nothing waits on it


def _stream(head: FoundHead, log_root: Path) -> Iterator[Status]:
    """Yield the statuses of a stream until it ends."""
    for key in local_keys(head.settings, log_root):
        with _request("GET", f"http://{head.where}/events", key, times.STREAM_SILENT) as reply:
            if reply.status_code == 200:
                yield from _statuses(reply)
                return
    raise _NoStreamError


def _statuses(reply: requests.Response) -> Iterator[Status]:
    rest = b""
    for chunk in reply.iter_content(None):  # as it arrives
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_BODY:
            raise ValueError(f"a status of more than {MAX_BODY} bytes")
        for line in lines:
            if line.startswith(_DATA_PREFIX):
                status = all_escaped(json.loads(line[len(_DATA_PREFIX) :]))
                if not isinstance(status, dict):
                    raise ValueError("a status is a JSON object")
                yield status
