"""The verbs that ask a running agent: `status`, `logs`, `stop` and `doctor --all`."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote

import anyio
import requests
from urllib3.exceptions import HTTPError

from agent.base import times
from agent.base.ports import port_map
from agent.base.text import NO_TERMINAL, Line, all_escaped, duration_text, escaped, in_url
from agent.checks.finding import ORDER, Finding, Level, node_list, passed_lines, toned_line
from agent.control.log_filter import ALL_LINES
from agent.control.past_run import PastRun, find_past_run, past_log, past_status
from agent.control.proof import TRIES, Prover, ReplyProof, Signed
from agent.control.status import (
    lines_by_content,
    one_line,
    toned_lines,
    without_clocks,
)
from agent.record import run_folder
from agent.record.background import run_within
from agent.runtime.waiting import NotYet, TimedOutError, until
from agent.settings import load
from agent.settings.redact import redactor_for
from agent.topology.resolve import port_base

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.base.text import Terminal
    from agent.control.log_filter import LogFilter
    from agent.control.status import Status
    from agent.settings.model import Settings

HEAD = "head"
_JOB, _AGENT = "job", "agent"


# --- requests ------------------------------------------------------------------------------------

MAX_BODY = 16 << 20
"""The status of 5,000 nodes fits."""
_CHUNK = 1 << 20

_UNKNOWN_FORMAT = (KeyError, TypeError, ValueError, AttributeError)
"""Errors of reading a status of another version."""
_OTHER_VERSION = "pod-agent: an agent of another version answers: try --json"
_NOT_AN_AGENT = "whatever listens there is no agent"
_UNPROVEN = "it does not prove that it holds this shell's RAY_AUTH_TOKEN or key"
_REFUSAL = "it asks for the cluster's RAY_AUTH_TOKEN"
_DATA_PREFIX = b"data: "


class HttpAnswer(NamedTuple):
    """An HTTP status and body, or 0 and a sentence why there is none."""

    status: int
    body: bytes = b""
    evidence: str = ""


def ask(
    url: str, secret: str | None = None, limit: float = times.ONE_REQUEST, *, post: bool = False
) -> HttpAnswer:
    """Send one request, signed with a secret; `limit` is its total time in seconds."""
    # A socket's timeout starts again with each byte received; a thread can be abandoned.
    answer = run_within(limit, lambda: _ask("POST" if post else "GET", url, secret, limit))
    return answer or HttpAnswer(0, evidence=f"no answer within {limit:g} s")


def _ask(method: str, url: str, secret: str | None, limit: float) -> HttpAnswer:
    body, verdict = b"", ReplyProof.UNPROVEN
    try:
        for request in _tries(method, url, secret):
            with request.send(limit) as reply:
                body = _read_body(reply)
                verdict = request.check(reply, body)
            if verdict is not ReplyProof.AGAIN:
                break
    except (HTTPError, OSError, ValueError) as error:
        return HttpAnswer(0, evidence=_error_text(error, limit))
    if len(body) > MAX_BODY:
        return HttpAnswer(0, evidence=f"an answer of more than {MAX_BODY} bytes")
    if verdict in {ReplyProof.UNPROVEN, ReplyProof.AGAIN}:
        return HttpAnswer(0, evidence=_UNPROVEN)
    return HttpAnswer(reply.status_code, body)


def _read_body(reply: requests.Response) -> bytes:
    """Read a body, up to a little more than the limit."""
    body = b""
    while len(body) <= MAX_BODY and (chunk := reply.raw.read(_CHUNK, decode_content=False)):
        body += chunk
    return body


class _Request(NamedTuple):
    """One try of a request, signed where the server's session is known."""

    method: str
    url: str
    prover: Prover
    signed: Signed

    @contextmanager
    def send(self, limit: float) -> Iterator[requests.Response]:
        """Send it and yield the reply, of which the body is still to be read."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "pod-agent", **self.signed.headers}
        # the node checks the Host header of browsers; any name may lead there
        headers["Host"] = "localhost"
        if self.method == "POST":
            headers["Content-Type"] = "application/json"
        with requests.Session() as session:
            # no netrc entry may replace our header, no proxy receive the request
            session.trust_env = False
            yield session.request(
                *(self.method, self.url),
                headers=headers,
                timeout=limit,
                allow_redirects=False,
                stream=True,
            )

    def check(self, reply: requests.Response, body: bytes | None) -> ReplyProof:
        """Check the proof of a reply; a streamed one has no body here."""
        return self.prover.check(self.signed, reply.status_code, reply.headers, body)


def _tries(method: str, url: str, secret: str | None) -> Iterator[_Request]:
    """Yield the request as often as it may be sent."""
    prover, path = Prover(secret), requests.Request(method, url).prepare().path_url
    for _ in range(TRIES):
        yield _Request(method, url, prover, prover.sign(method, path))


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


def _local_keys(settings: Settings, log_root: Path) -> list[str]:
    """Return the credentials to try: the token if set, else the control keys in the log folder."""
    token = settings.ray_auth_token
    return [token.reveal()] if token is not None else [*run_folder.keys_in(log_root)]


def _ask_with_key(
    url: str, settings: Settings, log_root: Path, *, post: bool = False
) -> HttpAnswer:
    """Send a request with each local credential until one is accepted."""
    answer = HttpAnswer(0, evidence="no key to the head's port lies here")
    for key in _local_keys(settings, log_root):
        answer = ask(url, key, post=post)
        if answer.status != 401:
            break
    return answer


def _failure_reason(answer: HttpAnswer, what_is_done: str) -> str:
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


def _find_head(environ: Mapping[str, str]) -> FoundHead | None:
    """Return the head and its status; prints why and returns None where none answers."""
    settings = load(environ).settings
    status, evidence, where = _find_head_status(settings, _own_port(environ, settings))
    if status is None:
        print(f"pod-agent: no head's agent answers: {evidence}", file=sys.stderr)
        return None
    return FoundHead(status, where, settings)


def _find_head_or_past(environ: Mapping[str, str], log_root: Path) -> FoundHead | PastRun | None:
    """Return the head and its status, else the newest run folder; prints why there is no head."""
    settings = load(environ).settings
    status, evidence, where = _find_head_status(settings, _own_port(environ, settings))
    if status is not None:
        return FoundHead(status, where, settings)
    print(f"pod-agent: no head's agent answers: {evidence}", file=sys.stderr)
    if evidence.endswith(_REFUSAL):
        return None
    past = find_past_run(log_root)
    here = f"{log_root} (AGENT_LOG_DIR) holds no run" if past is None else f"{past.sentence()}:"
    print(f"pod-agent: {here}", file=sys.stderr)
    return past


def _own_port(environ: Mapping[str, str], settings: Settings) -> int:
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
        return None, f"{where}: {_REFUSAL}"
    if answer.status != 200:
        return None, f"{where}: {answer.evidence or f'it answered {answer.status}'}"
    try:
        data = all_escaped(json.loads(answer.body))
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict) and {"role", "phase", "waits"} <= data.keys():
        return data, ""
    return None, f"{where}: {_NOT_AN_AGENT}"


class _NoStreamError(Exception):
    """The head answers but offers no stream here."""


def _follow_status(head: FoundHead, log_root: Path) -> Iterator[Status | str]:
    """Yield each status received, and for each failed request why there is none."""
    yield head.status
    streams = True
    while True:
        try:
            if streams:
                yield from _stream(head, log_root)
        except _NoStreamError:
            streams = False
        except (OSError, ValueError) as error:
            yield _error_text(error, times.STREAM_SILENT)
        status, why = status_at(head.where, head.settings)
        streams = streams or status is None  # the head may be restarted with another key
        yield why if status is None else status
        time.sleep(times.STATUS_POLL)  # for a person only; nothing waits on it


def _stream(head: FoundHead, log_root: Path) -> Iterator[Status]:
    """Yield the statuses of a stream until it ends."""
    for key in _local_keys(head.settings, log_root):
        for request in _tries("GET", f"http://{head.where}/events", key):
            with request.send(times.STREAM_SILENT) as reply:
                if request.check(reply, None) is ReplyProof.PROVEN and reply.status_code == 200:
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


# --- findings, logs, stop ------------------------------------------------------------------------


def show_findings(
    environ: Mapping[str, str],
    log_root: Path,
    terminal: Terminal = NO_TERMINAL,
    *,
    as_json: bool,
    verbose: bool = False,
) -> int:
    """Print all nodes' findings; return 0, 78 where a check fails, 69 if no head answers."""
    head = _find_head(environ)
    answer = head and _ask_head(head, log_root, "/findings", "findings are shown")
    if answer is None:
        return 69
    try:
        data = all_escaped(json.loads(answer.body))
        lines = _finding_lines(data, verbose=verbose)
        failed = any(row["level"] == Level.FAIL.value for row in _rows(data))
    except (KeyError, TypeError, ValueError):
        print(_OTHER_VERSION, file=sys.stderr)
        return 69
    if as_json:
        print(json.dumps({"ok": not failed, **data}, indent=2))
    else:
        print(terminal.render(lines, str))
    return 78 if failed else 0


def _rows(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*data["between"], *data["findings"]]


def _finding_lines(data: Mapping[str, Any], *, verbose: bool) -> list[Line]:
    """Return the problems with their nodes, nodes without an agent, and what passed."""
    count = len(data["nodes"])
    rows = [
        (
            Finding(row["check"], Level(row["level"]), row["what"], row["remedy"]),
            node_list(row["nodes"], count) if "nodes" in row else "between nodes",
        )
        for row in _rows(data)
    ]
    rows.sort(key=lambda row: ORDER.index(row[0].level))
    return [
        *(toned_line(one, f" [{of}]") for one, of in rows if verbose or one.level is not Level.OK),
        *(
            Line("     ", f"nothing is known about {name}: no agent runs there")
            for name in data["unknown"]
        ),
        *([] if verbose else passed_lines([one for one, _ in rows], verbose=False)),
    ]


def _ask_head(
    head: FoundHead, log_root: Path, path: str, what: str, *, post: bool = False
) -> HttpAnswer | None:
    """Send a request that needs a key; print why it was refused and return None."""
    answer = _ask_with_key(f"http://{head.where}{path}", head.settings, log_root, post=post)
    if answer.status == 200:
        return answer
    print(f"pod-agent: {head.where}: {_failure_reason(answer, what)}", file=sys.stderr)
    return None


def show_logs(
    environ: Mapping[str, str],
    log_root: Path,
    words: list[str],
    chosen: LogFilter = ALL_LINES,
    *,
    follow: bool,
) -> int:
    """Print a log; return 0, or 69 where there is neither a head nor a run with such a log."""
    head = _find_head_or_past(environ, log_root)
    if head is None:
        return 69
    if isinstance(head, PastRun):
        return _print_past_log(environ, head, words, chosen)
    node, name = _node_and_log(words, head.status)
    path = f"/logs/{quote(node, safe='')}/{quote(name, safe='')}"
    answer = _ask_head(head, log_root, path, "logs are shown")
    if answer is None:
        return 69
    part = _print_part(answer, chosen)
    if not follow:
        return 0
    if part["next"] is None:
        what = f"the log of {node} comes as its last lines only, which cannot be followed"
        print(f"pod-agent: {what}", file=sys.stderr)
        return 0
    later = chosen._replace(last=None, since=None)
    return _follow_log(part, head, path, log_root, later)


def _print_past_log(
    environ: Mapping[str, str], run: PastRun, words: list[str], chosen: LogFilter
) -> int:
    text, why = past_log(run, words, chosen)
    if why:
        print(f"pod-agent: {why}", file=sys.stderr)
    print(redactor_for(environ, None).clean(text), end="", flush=True)
    return 69 if why and not text else 0


def _follow_log(
    part: dict[str, Any], head: FoundHead, path: str, log_root: Path, chosen: LogFilter
) -> int:
    """Print new parts until the run is over; a head that is restarted is back within seconds."""
    silent_since: float | None = None
    while True:
        url = f"http://{head.where}{path}?after={part['next']}"
        answer = _ask_with_key(url, head.settings, log_root)
        if answer.status == 200:
            part, silent_since = _print_part(answer, chosen), None
            continue
        if part.get("over") and not answer.status:  # the head is gone and the log complete
            return 0
        now = time.monotonic()
        silent_since = now if silent_since is None else silent_since
        if now >= silent_since + times.AGENT_RESTARTS:
            why = _failure_reason(answer, "logs are shown")
            what = f"the head's agent sent no log and no verdict for {times.AGENT_RESTARTS:g} s"
            print(f"pod-agent: {head.where}: {what}: giving up ({why})", file=sys.stderr)
            return 69
        time.sleep(times.VERB_RETRY_PAUSE)  # for a person only; nothing waits on it


def _print_part(answer: HttpAnswer, chosen: LogFilter) -> dict[str, Any]:
    """Print the selected lines of a part of a log; return it: `next` is where the next starts."""
    part: dict[str, Any] = json.loads(answer.body)
    text, has_times = chosen.apply(part["text"], datetime.now(timezone.utc))
    if not has_times:
        print("pod-agent: no line of this log has a time: all are shown", file=sys.stderr)
    print(text, end="", flush=True)
    return part


def _node_and_log(words: list[str], status: Mapping[str, Any]) -> tuple[str, str]:
    """Return node and log from the arguments: one that is no node's name is a log's."""
    if len(words) == 2:
        return words[0], words[1]
    nodes = {str(node.get("name")) for node in status.get("nodes", [])}
    if not words:
        return HEAD, _JOB
    if words[0] in nodes:
        return words[0], _AGENT
    return (HEAD, _JOB) if words[0] == HEAD else (HEAD, words[0])


def stop(environ: Mapping[str, str], log_root: Path) -> int:
    """End the run as SIGTERM on the head would; return 0 after its end, 69 if no head answers."""
    head = _find_head(environ)
    answer = head and _ask_head(head, log_root, "/stop", "a run is stopped", post=True)
    if head is None or answer is None:
        return 69
    within = float(json.loads(answer.body)["within"]) + times.STOP_VERB_MARGIN
    print(f"pod-agent: run {head.status.get('run_id')} is being stopped", file=sys.stderr)
    return anyio.run(_wait_for_end, head.where, within)


async def _wait_for_end(where: str, limit: float) -> int:
    async def gone() -> bool | NotYet:
        answer = await anyio.to_thread.run_sync(lambda: ask(f"http://{where}/livez", limit=2.0))
        return NotYet("it still answers") if answer.status else True

    try:
        await until(gone, limit)
    except TimedOutError:
        print(f"pod-agent: {where} still answers after {limit:g} s", file=sys.stderr)
        return 69
    return 0


# --- status --------------------------------------------------------------------------------------


def print_status(
    environ: Mapping[str, str], log_root: Path, terminal: Terminal = NO_TERMINAL, *, as_json: bool
) -> int:
    """Print the head's status, else how the newest run ended; 69 if there is neither."""
    found = _find_head_or_past(environ, log_root)
    if found is None:
        return 69
    if isinstance(found, PastRun):
        print(redactor_for(environ, None).clean(past_status(found, as_json=as_json)), flush=True)
        return 0
    try:
        if as_json:
            text = json.dumps(found.status)
        else:
            text = terminal.render(toned_lines(found.status), str)
    except _UNKNOWN_FORMAT:
        print(_OTHER_VERSION, file=sys.stderr)
        return 69
    print(text, flush=True)
    return 0


def check_live(environ: Mapping[str, str]) -> int:
    """Health check of this node's agent: 0 if it answers, else 69."""
    where = f"127.0.0.1:{_own_port(environ, load(environ).settings)}"
    answer = ask(f"http://{where}/livez")
    if answer.status == 200:
        return 0
    why = answer.evidence or f"it answered {answer.status}"
    print(f"pod-agent: no agent runs here: {where}: {why}", file=sys.stderr)
    return 69


class Screen(Protocol):
    """Where the status of a run is shown."""

    def show(self, status: Status) -> None:
        """Show a status."""

    def show_outage(self, why: str) -> None:
        """Show why the head does not answer."""


def watch_status(environ: Mapping[str, str], log_root: Path, *, as_json: bool) -> int:
    """Show the run until its end (0) or until its head is gone (69)."""
    found = _find_head_or_past(environ, log_root)
    if found is None:
        return 69
    if isinstance(found, PastRun):
        print(redactor_for(environ, None).clean(past_status(found, as_json=as_json)), flush=True)
        return 0
    with _open_screen(as_json=as_json) as screen:
        code, message = _show_until_end(screen, found.where, _follow_status(found, log_root))
    if message:
        print(message, file=sys.stderr)
    return code


def _show_until_end(
    screen: Screen,
    where: str,
    statuses: Iterable[Status | str],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[int, str]:
    """Show each status; return the exit code and a message."""
    received, phase = clock(), ""
    for status in statuses:
        if isinstance(status, str):
            silence = clock() - received
            why = f"{where} does not answer: {status}"
            if silence > times.HEAD_GONE:
                gone = f"pod-agent: the head is gone: {why}"
                return 69, f"{gone}; {duration_text(silence)} ago it was {one_line(phase)}"
            screen.show_outage(why)
            continue
        received = clock()
        try:
            screen.show(status)
            phase = str(status["phase"])
            is_over = phase == "leaving" and bool(status.get("verdict"))
        except _UNKNOWN_FORMAT:
            return 69, _OTHER_VERSION
        if is_over:
            return 0, ""
    return 69, ""


@contextmanager
def _open_screen(*, as_json: bool) -> Iterator[Screen]:
    """Open the screen to use: JSON, live on a terminal with rich, or lines."""
    if as_json:
        yield JsonScreen()
        return
    if sys.stdout.isatty():
        try:
            from agent.control.rich_view import LiveScreen  # noqa: PLC0415 - rich, where it is installed
        except ImportError:
            pass
        else:
            live = LiveScreen()
            if live.can_show:
                with live:
                    yield live
                live.show_last()
                return
    yield LineScreen(lines_by_content)


class LineScreen:
    """Prints the lines of a status whose content is new, by a function that returns both."""

    def __init__(self, lines: Callable[[Status], dict[str, str]]) -> None:
        self._lines = lines
        self._before: dict[str, str] = {}
        self._outage = ""

    def show(self, status: Status) -> None:
        """Print what changed."""
        lines = self._lines(status)
        if self._outage:
            print("the head answers again", flush=True)
        new = [line for content, line in lines.items() if content not in self._before]
        self._before, self._outage = lines, ""
        for line in new:
            print(line, flush=True)

    def show_outage(self, why: str) -> None:
        """Print the reason once per outage."""
        if not self._outage:
            print(one_line(why), flush=True)
        self._outage = why


class JsonScreen(LineScreen):
    """Prints each changed status as a line of JSON, and no outage: the last line is the newest."""

    def __init__(self) -> None:
        super().__init__(lambda status: {json.dumps(without_clocks(status)): json.dumps(status)})

    def show_outage(self, why: str) -> None:
        """Print nothing."""
