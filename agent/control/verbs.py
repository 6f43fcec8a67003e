"""The verbs that ask a running agent: `status`, `logs`, `stop` and `doctor --all`."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import anyio
import requests
from urllib3.exceptions import HTTPError

from agent.base import times
from agent.base.ports import port_map
from agent.base.text import (
    NO_TERMINAL,
    Line,
    duration_text,
    escaped,
    first_names,
    in_url,
    map_texts,
)
from agent.checks.finding import ORDER, Finding, Level, passed_lines, toned_line
from agent.control.log_filter import ALL_LINES
from agent.control.proof import TRIES, Prover, ReplyProof, Signed
from agent.control.status import lines_by_content, one_line, toned_lines, without_clocks
from agent.plan.plan import AGENT_LOG, JOB_LOG, RAY_LOG
from agent.record import run_folder
from agent.record.background import run_within
from agent.record.files import read_small
from agent.record.run_record import RUN_FILE, RunRecord
from agent.runtime.waiting import NotYet, TimedOutError, until
from agent.settings import load
from agent.settings.redact import redactor_for
from agent.topology.resolve import port_base

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.base.text import Terminal
    from agent.control.log_filter import LogFilter
    from agent.control.rich_view import LiveScreen
    from agent.control.status import Status
    from agent.settings.model import Settings

HEAD = "head"
_JOB, _AGENT = "job", "agent"
_LOGS = {_AGENT: AGENT_LOG, "ray": RAY_LOG, _JOB: JOB_LOG}


def _warn(sentence: str) -> int:
    """Print a sentence to stderr; return 69, with which a verb ends for such a reason."""
    print(f"pod-agent: {sentence}", file=sys.stderr)
    return 69


# --- requests ------------------------------------------------------------------------------------

_MOST_READ = 64 << 20  # Bytes of a log in a run folder that are read, from its end
MAX_BODY = 16 << 20  # The status of 5,000 nodes fits
_CHUNK = 1 << 20

_UNKNOWN_FORMAT = (KeyError, TypeError, ValueError, AttributeError)  # Of another version's
_OTHER_VERSION = "an agent of another version answers: try --json"
_NOT_AN_AGENT = "whatever listens there is no agent"
_UNPROVEN = "it does not prove that it holds this shell's RAY_AUTH_TOKEN or key"
_REFUSAL = "it asks for the cluster's RAY_AUTH_TOKEN"


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
    prover = Prover(secret)
    try:
        for _ in range(TRIES):
            with _sent(method, url, prover, limit) as (reply, signed):
                body = b""
                while len(body) <= MAX_BODY and (chunk := reply.raw.read(_CHUNK)):  # not inflated
                    body += chunk
                verdict = prover.check(signed, reply.status_code, reply.headers, body)
            if verdict is not ReplyProof.AGAIN:
                break
    except (HTTPError, OSError, ValueError) as error:
        return HttpAnswer(0, evidence=_error_text(error, limit))
    if len(body) > MAX_BODY:
        return HttpAnswer(0, evidence=f"an answer of more than {MAX_BODY} bytes")
    if verdict in {ReplyProof.UNPROVEN, ReplyProof.AGAIN}:
        return HttpAnswer(0, evidence=_UNPROVEN)
    return HttpAnswer(reply.status_code, body)


@contextmanager
def _sent(
    method: str, url: str, prover: Prover, limit: float
) -> Iterator[tuple[requests.Response, Signed]]:
    """Send a request, signed where the server's session is known; the body is not read yet."""
    signed = prover.sign(method, requests.Request(method, url).prepare().path_url)
    headers = {"Accept-Encoding": "identity", "User-Agent": "pod-agent", **signed.headers}
    # the node checks the Host header of browsers; any name may lead there
    headers["Host"] = "localhost"
    if method == "POST":
        headers["Content-Type"] = "application/json"
    with requests.Session() as session:
        # no netrc entry may replace our header, no proxy receive the request
        session.trust_env = False
        options: Any = {"timeout": limit, "allow_redirects": False, "stream": True}
        with session.request(method, url, headers=headers, **options) as reply:
            yield reply, signed


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


def _ask_head(head: FoundHead, log_root: Path, path: str, *, post: bool = False) -> HttpAnswer:
    """Send a request with each local credential until one is accepted."""
    answer = HttpAnswer(0, evidence="no key to the head's port lies here")
    for key in _local_keys(head.settings, log_root):
        answer = ask(f"http://{head.where}{path}", key, post=post)
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


def _refused(head: FoundHead, answer: HttpAnswer, what_is_done: str) -> int:
    return _warn(f"{head.where}: {_failure_reason(answer, what_is_done)}")


class FoundHead(NamedTuple):
    """A head's status, its host and port, and this node's settings."""

    status: dict[str, Any]
    where: str
    settings: Settings


class PastRun(NamedTuple):
    """A run folder, and the folders of its nodes, the head's first."""

    path: Path
    run_id: str
    nodes: list[Path]


def _find_head(environ: Mapping[str, str]) -> FoundHead | str:
    """Return the head and its status; prints and returns why none answers."""
    found = _locate_head(environ)
    if isinstance(found, str):
        _warn(f"no head's agent answers: {found}")
    return found


def _locate_head(environ: Mapping[str, str]) -> FoundHead | str:
    """Return the head and its status, or why there is none."""
    settings = load(environ).settings
    port = _own_port(environ, settings)
    where = f"127.0.0.1:{port}"  # first, since an ssh shell lacks the variables that name the head
    local = status_at(where, settings)
    if not isinstance(local, str):
        if local["role"] == HEAD:
            return FoundHead(local, where, settings)
        named = local.get("head")
        if not isinstance(named, dict) or not {"host", "port"} <= named.keys():
            return f"{where}: {_NOT_AN_AGENT}"
        where = f"{in_url(str(named['host']))}:{named['port']}"
    elif settings.head is not None:
        where = f"{in_url(settings.head)}:{port}"
    elif settings.head_pod_id is not None:
        where = f"{settings.head_pod_id}.runpod.internal:{port}"
    else:
        return f"{local}; set AGENT_HEAD or HEAD_POD_ID to ask from elsewhere"
    status = status_at(where, settings)
    if isinstance(status, str):
        return status
    if status["role"] != HEAD:
        return f"{where}: the agent there is a {status['role']}'s, not the head's"
    return FoundHead(status, where, settings)


def _find_head_or_past(environ: Mapping[str, str], log_root: Path) -> FoundHead | PastRun | None:
    """Return the head and its status, else the newest run folder; prints why there is no head."""
    found = _find_head(environ)
    if isinstance(found, FoundHead):
        return found
    if found.endswith(_REFUSAL):
        return None
    path = run_folder.newest_run(log_root)
    if path is None:
        _warn(f"{log_root} (AGENT_LOG_DIR) holds no run")
        return None
    _warn(f"from the newest run folder, {escaped(str(path))}:")
    record = RunRecord.read(path / RUN_FILE)
    run_id, head = path.name, ""
    if isinstance(record, RunRecord):
        run_id, head = record.run_id, record.head
    nodes = sorted(run_folder.node_folders(path), key=lambda node: (node.name != head, node.name))
    return PastRun(path, run_id, nodes)


def _own_port(environ: Mapping[str, str], settings: Settings) -> int:
    """Return the port of this node's agent, which is also the head's."""
    base = port_base(environ, settings)
    return port_map(settings.ray_port, settings.dashboard_port, settings.port, base).agent


def status_at(where: str, settings: Settings) -> dict[str, Any] | str:
    """Return the status of the agent at a host and port, or why there is none."""
    token = settings.ray_auth_token
    answer = ask(f"http://{where}/status", None if token is None else token.reveal())
    if answer.status == 401:
        return f"{where}: {_REFUSAL}"
    if answer.status != 200:
        return f"{where}: {answer.evidence or f'it answered {answer.status}'}"
    with suppress(ValueError, RecursionError):
        data = map_texts(json.loads(answer.body), escaped)
        if isinstance(data, dict) and {"role", "phase", "waits"} <= data.keys():
            return data
    return f"{where}: {_NOT_AN_AGENT}"


def _follow_status(head: FoundHead, log_root: Path) -> Iterator[Status | str]:
    """Yield each status received, and for each failed request why there is none."""
    yield head.status
    streams = True
    while True:
        try:
            streams = streams and (yield from _stream(head, log_root))
        except (OSError, ValueError) as error:
            yield _error_text(error, times.STREAM_SILENT)
        status = status_at(head.where, head.settings)
        streams = streams or isinstance(status, str)  # the head may be restarted with another key
        yield status
        time.sleep(times.STATUS_POLL)  # for a person only; nothing waits on it


def _stream(head: FoundHead, log_root: Path) -> Generator[Status, None, bool]:
    """Yield the statuses of a stream until it ends; return whether the head offers one here."""
    for key in _local_keys(head.settings, log_root):
        prover = Prover(key)
        for _ in range(TRIES):
            url = f"http://{head.where}/events"
            with _sent("GET", url, prover, times.STREAM_SILENT) as (reply, signed):
                verdict = prover.check(signed, reply.status_code, reply.headers, None)
                if verdict is ReplyProof.PROVEN and reply.status_code == 200:
                    yield from _statuses(reply)
                    return True
    return False


def _statuses(reply: requests.Response) -> Iterator[Status]:
    rest = b""
    for chunk in reply.iter_content(None):  # as it arrives
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_BODY:
            raise ValueError(f"a status of more than {MAX_BODY} bytes")
        for line in lines:
            if line.startswith(b"data: "):
                status = map_texts(json.loads(line.removeprefix(b"data: ")), escaped)
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
    if isinstance(head, str):
        return 69
    answer = _ask_head(head, log_root, "/findings")
    if answer.status != 200:
        return _refused(head, answer, "findings are shown")
    try:
        data = map_texts(json.loads(answer.body), escaped)
        rows = [*data["between"], *data["findings"]]
        lines = _finding_lines(data, rows, verbose=verbose)
        failed = any(row["level"] == Level.FAIL.value for row in rows)
    except (KeyError, TypeError, ValueError):
        return _warn(_OTHER_VERSION)
    if as_json:
        print(json.dumps({"ok": not failed, **data}, indent=2))
    else:
        print(terminal.render(lines, str))
    return 78 if failed else 0


def _finding_lines(
    data: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], *, verbose: bool
) -> list[Line]:
    """Return the problems with their nodes, nodes without an agent, and what passed."""
    count = len(data["nodes"])
    found = [
        (
            Finding(row["check"], Level(row["level"]), row["what"], row["remedy"]),
            _where(row, count),
        )
        for row in rows
    ]
    found.sort(key=lambda row: ORDER.index(row[0].level))
    no_agent = "nothing is known about {}: no agent runs there"
    return [
        *(toned_line(one, f" [{of}]") for one, of in found if verbose or one.level is not Level.OK),
        *(Line("     ", no_agent.format(name)) for name in data["unknown"]),
        *([] if verbose else passed_lines(one for one, _ in found)),
    ]


def _where(row: Mapping[str, Any], count: int) -> str:
    nodes = row.get("nodes", ["between nodes"])
    return "all nodes" if len(nodes) == count > 1 else first_names(nodes)


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
        text, why = _past_log(head, words, chosen)
        if why:
            _warn(why)
        print(redactor_for(environ, None).clean(text), end="", flush=True)
        return 69 if why and not text else 0
    workers = {str(node.get("name")) for node in head.status.get("nodes", [])}
    node, name = _node_and_log(words, workers)
    path = f"/logs/{quote(node, safe='')}/{quote(name, safe='')}"
    answer = _ask_head(head, log_root, path)
    if answer.status != 200:
        return _refused(head, answer, "logs are shown")
    part = _print_part(answer, chosen)
    if follow and part["next"] is None:
        _warn(f"the log of {node} comes as its last lines only, which cannot be followed")
    elif follow:
        return _follow_log(part, head, path, log_root, chosen._replace(last=None, since=None))
    return 0


def _node_and_log(words: list[str], workers: Iterable[str], head: str = HEAD) -> tuple[str, str]:
    """Return node and log from the arguments: one that is no node's name is a log's."""
    if len(words) == 2:
        return words[0], words[1]
    if not words or words[0] in {HEAD, head}:
        return HEAD, _JOB
    return (words[0], _AGENT) if words[0] in workers else (HEAD, words[0])


def _follow_log(
    part: dict[str, Any], head: FoundHead, path: str, log_root: Path, chosen: LogFilter
) -> int:
    """Print new parts until the run is over; a head that is restarted is back within seconds."""
    gives_up: float | None = None
    while True:
        answer = _ask_head(head, log_root, f"{path}?after={part['next']}")
        if answer.status == 200:
            part, gives_up = _print_part(answer, chosen), None
            continue
        if part.get("over") and not answer.status:  # the head is gone and the log complete
            return 0
        gives_up = gives_up or time.monotonic() + times.AGENT_RESTARTS
        if time.monotonic() >= gives_up:
            why = _failure_reason(answer, "logs are shown")
            what = f"the head's agent sent no log and no verdict for {times.AGENT_RESTARTS:g} s"
            return _warn(f"{head.where}: {what}: giving up ({why})")
        time.sleep(times.VERB_RETRY_PAUSE)  # for a person only; nothing waits on it


def _print_part(answer: HttpAnswer, chosen: LogFilter) -> dict[str, Any]:
    """Print the selected lines of a part of a log; return it: `next` is where the next starts."""
    part: dict[str, Any] = json.loads(answer.body)
    text, has_times = chosen.apply(part["text"], datetime.now(timezone.utc))
    if not has_times:
        _warn("no line of this log has a time: all are shown")
    print(text, end="", flush=True)
    return part


def stop(environ: Mapping[str, str], log_root: Path) -> int:
    """End the run as SIGTERM on the head would; return 0 after its end, 69 if no head answers."""
    head = _find_head(environ)
    if isinstance(head, str):
        return 69
    answer = _ask_head(head, log_root, "/stop", post=True)
    if answer.status != 200:
        return _refused(head, answer, "a run is stopped")
    within = float(json.loads(answer.body)["within"]) + times.STOP_VERB_MARGIN
    _warn(f"run {head.status.get('run_id')} is being stopped")

    async def gone() -> bool | NotYet:
        answer = await anyio.to_thread.run_sync(
            partial(ask, f"http://{head.where}/livez", limit=2.0)
        )
        return NotYet("it still answers") if answer.status else True

    try:
        anyio.run(until, gone, within)
    except TimedOutError:
        return _warn(f"{head.where} still answers after {within:g} s")
    return 0


# --- the newest run folder -----------------------------------------------------------------------


def _past_status(run: PastRun, *, as_json: bool) -> str:
    """Return how a run ended, by the outcome of its head, else of its first node."""
    node, file = run.nodes[0], run_folder.OUTCOME_FILE
    outcome = run_folder.read_outcome(node)
    if as_json:
        found = None if outcome is None else json.loads(read_small(node / file)) or None
        source = {"run_id": run.run_id, "node": node.name, "folder": str(run.path)}
        return json.dumps({**source, "is_over": outcome is not None, "outcome": found})
    if outcome is None:
        return f"run {run.run_id}: no {file}: the agent was killed, or still runs"
    end = f"{outcome.kind.value}: {outcome.reason} (exit code {outcome.exit_code})"
    more = f"`pod-agent explain {run.path}` shows what took long"
    lines = (f"run {run.run_id} is over: {end}", outcome.remedy, more)
    return "\n".join(escaped(line) for line in lines if line)


def _past_log(run: PastRun, words: list[str], chosen: LogFilter) -> tuple[str, str]:
    """Return the selected lines of a log, and why there are none."""
    folders = {node.name: node for node in run.nodes}
    node, name = _node_and_log(words, folders, run.nodes[0].name)
    folder = run.nodes[0] if node == HEAD else folders.get(node)
    if folder is None:
        return "", f"it has no node {node!r}: {first_names(folders)}"
    files = {path.name: path for path in folder.glob("*.log")}
    file = files.get(_LOGS.get(name, f"{name}.log"))
    if file is None:
        by_file = {file: name for name, file in _LOGS.items()}
        known = [by_file.get(name, name.removesuffix(".log")) for name in sorted(files)]
        return "", f"{folder.name} has no log {name!r}: it has {first_names(known, 8)}"
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - _MOST_READ))
            data = opened.read(_MOST_READ)
            written = datetime.fromtimestamp(os.fstat(opened.fileno()).st_mtime, timezone.utc)
    except OSError as error:
        return "", f"{file}: {error.strerror}"
    if size > _MOST_READ:  # in whole lines
        data = data.partition(b"\n")[2]
    selected, has_times = chosen.apply(data.decode(errors="replace"), written)
    return selected, "" if has_times else f"no line of {file.name} has a time: all are shown"


# --- status --------------------------------------------------------------------------------------


def show_status(
    environ: Mapping[str, str],
    log_root: Path,
    terminal: Terminal = NO_TERMINAL,
    *,
    as_json: bool,
    watch: bool = False,
) -> int:
    """Print the status, with `watch` until the end; 69 where there is neither head nor run."""
    found = _find_head_or_past(environ, log_root)
    if found is None:
        return 69
    if isinstance(found, PastRun):
        print(redactor_for(environ, None).clean(_past_status(found, as_json=as_json)), flush=True)
        return 0
    if watch:
        with _open_screen(as_json=as_json) as screen:
            why = _show_until_end(screen, found.where, _follow_status(found, log_root))
        return _warn(why) if why else 0
    try:
        status = found.status
        text = json.dumps(status) if as_json else terminal.render(toned_lines(status), str)
    except _UNKNOWN_FORMAT:
        return _warn(_OTHER_VERSION)
    print(text, flush=True)
    return 0


def check_live(environ: Mapping[str, str]) -> int:
    """Health check of this node's agent: 0 if it answers, else 69."""
    where = f"127.0.0.1:{_own_port(environ, load(environ).settings)}"
    answer = ask(f"http://{where}/livez")
    if answer.status == 200:
        return 0
    why = answer.evidence or f"it answered {answer.status}"
    return _warn(f"no agent runs here: {where}: {why}")


def _show_until_end(
    screen: LineScreen | LiveScreen,
    where: str,
    statuses: Iterable[Status | str],
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Show each status until the run's end; return why the end is not known, or ''."""
    received, phase = clock(), ""
    for status in statuses:
        if isinstance(status, str):
            silence = clock() - received
            why = f"{where} does not answer: {status}"
            if silence > times.HEAD_GONE:
                ago = f"{duration_text(silence)} ago it was {one_line(phase)}"
                return f"the head is gone: {why}; {ago}"
            screen.show_outage(why)
            continue
        received = clock()
        try:
            screen.show(status)
            phase = str(status["phase"])
            if phase == "leaving" and status.get("verdict"):
                break
        except _UNKNOWN_FORMAT:
            return _OTHER_VERSION
    return ""


@contextmanager
def _open_screen(*, as_json: bool) -> Iterator[LineScreen | LiveScreen]:
    """Open the screen to use: JSON, live on a terminal with rich, or lines."""
    if as_json:
        yield LineScreen(
            lambda status: {json.dumps(without_clocks(status)): json.dumps(status)}, outages=False
        )
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
                return
    yield LineScreen(lines_by_content)


class LineScreen:
    """Prints the lines of a status whose content is new, by a function that returns both."""

    def __init__(self, lines: Callable[[Status], dict[str, str]], *, outages: bool = True) -> None:
        """Without `outages`, as in JSON, the last line is the newest status."""
        self._lines, self._outages = lines, outages
        self._before: dict[str, str] = {}
        self._is_out = False

    def show(self, status: Status) -> None:
        """Print what changed."""
        lines = self._lines(status)
        if self._is_out:
            print("the head answers again", flush=True)
        new = [line for content, line in lines.items() if content not in self._before]
        self._before, self._is_out = lines, False
        for line in new:
            print(line, flush=True)

    def show_outage(self, why: str) -> None:
        """Print the reason once per outage."""
        if self._outages and not self._is_out:
            print(one_line(why), flush=True)
            self._is_out = True
