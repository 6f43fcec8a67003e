"""The verbs that ask a running agent: `status`, `logs`, `stop` and `doctor --all`."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import requests
from urllib3.exceptions import HTTPError

from agent.base import times
from agent.base.errors import UnavailableError
from agent.base.ports import port_map
from agent.base.text import (
    NO_TERMINAL,
    Line,
    duration_text,
    escaped,
    first_names,
    in_url,
    map_texts,
    plain,
)
from agent.checks.finding import ORDER, Finding, Level, passed_lines, toned_line
from agent.plan.plan import log_files, log_root
from agent.platforms.resolve import port_base
from agent.port.proof import TRIES, Prover, ReplyProof, Signed
from agent.port.status import at_rest, lines_by_content, one_line, status_lines
from agent.record import run_folder
from agent.record.background import run_within
from agent.record.files import read_end, read_small
from agent.settings import load
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agent.base.text import Terminal
    from agent.port.log_filter import LogFilter
    from agent.port.status import Status
    from agent.settings.model import Settings

    Show = Callable[[Status, str], None]
    """Shows a status, and why there is no newer one."""

HEAD = "head"


def _warn(sentence: str) -> None:
    print(f"pod-agent: {sentence}", file=sys.stderr)


# --- requests ------------------------------------------------------------------------------------

_MOST_READ = 64 << 20  # Bytes of a log in a run folder that are read, from its end
MAX_BODY = 16 << 20  # The status of 5,000 nodes fits
_CHUNK = 1 << 20
_FAILURES = (HTTPError, OSError, ValueError)  # What a request raises
_HEADERS = {
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "pod-agent",
    "Host": "localhost",  # The node checks it for browsers; any name may lead there
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
            with _sent(method, url, prover, limit) as (reply, signed):
                body = b""
                while len(body) <= MAX_BODY and (chunk := reply.raw.read(_CHUNK)):
                    body += chunk  # as it was sent, not inflated
            verdict = prover.check(signed, reply.status_code, reply.headers, body)
            if verdict is not ReplyProof.AGAIN:
                break
    except _FAILURES as error:
        return HttpAnswer(0, _error_text(error))
    if len(body) > MAX_BODY:
        return HttpAnswer(0, f"an answer of more than {MAX_BODY} bytes")
    if verdict in {ReplyProof.UNPROVEN, ReplyProof.AGAIN}:
        return HttpAnswer(0, "it does not prove that it holds this shell's RAY_AUTH_TOKEN or key")
    return HttpAnswer(reply.status_code, f"it answered {reply.status_code}", body)


@contextmanager
def _sent(
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


def _error_text(error: BaseException) -> str:
    """Return the innermost error's text; requests wraps it several times."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return escaped(text.lower())


class FoundHead(NamedTuple):
    """A head's status, its host and port, and this node's settings."""

    status: dict[str, Any]
    where: str
    settings: Settings

    def secret(self) -> str | None:
        """Return the token, else the key of the newest agent: a restarted one makes another."""
        token = self.settings.ray_auth_token
        return token.reveal() if token else run_folder.newest_key(log_root(self.settings))

    def ask(self, path: str, *, post: bool = False) -> Any:  # noqa: ANN401 - any JSON
        """Return the JSON answer to a request that needs the token or key; raises if refused."""
        answer = ask(f"http://{self.where}{path}", self.secret(), post=post)
        why = answer.failure
        with suppress(ValueError, RecursionError):
            data = json.loads(answer.body)
            if answer.status == 200:
                return data
            if isinstance(data, dict):
                why = escaped(str(data.get("error", why)))
        raise UnavailableError(f"{self.where}: {why}")


@contextmanager
def _in_known_format() -> Iterator[None]:
    """Report data of another version's agent as an error of the user."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnavailableError("an agent of another version answers: try --json") from error


def _find_head(environ: Mapping[str, str]) -> FoundHead | str:
    """Return the head and its status, or why none answers; raises if it asks for the token."""
    settings = load(environ).settings
    port = _own_port(environ, settings)
    where = f"127.0.0.1:{port}"  # first, since an ssh shell lacks the variables that name the head
    local = status_at(where, settings)
    if isinstance(local, dict) and local["role"] == HEAD:
        return FoundHead(local, where, settings)
    named = local.get("head") if isinstance(local, dict) else None
    if isinstance(named, dict):
        where = f"{in_url(str(named.get('host')))}:{named.get('port')}"
    elif settings.head is not None:
        where = f"{in_url(settings.head)}:{port}"
    elif settings.head_pod_id is not None:
        where = f"{settings.head_pod_id}.runpod.internal:{port}"
    else:
        why = local if isinstance(local, str) else f"{where} names no head"
        return f"{why}; set AGENT_HEAD or HEAD_POD_ID to ask from elsewhere"
    status = status_at(where, settings)
    if isinstance(status, str):
        return status
    if status["role"] != HEAD:
        return f"{where}: the agent there is a {status['role']}'s, not the head's"
    return FoundHead(status, where, settings)


def _head(environ: Mapping[str, str]) -> FoundHead:
    """Return the head and its status; raises if none answers."""
    found = _find_head(environ)
    if isinstance(found, str):
        raise UnavailableError(f"no head's agent answers: {found}")
    return found


def _newest_run(environ: Mapping[str, str], no_head: str) -> list[Path]:
    """Return the folders of the newest run's nodes, the head's first; raises if there are none."""
    root = log_root(load(environ).settings)
    why = f"no head's agent answers: {no_head}"
    path = run_folder.newest_run(root)
    if path is None:
        raise UnavailableError(f"{why}; {root} (AGENT_LOG_DIR) holds no run")
    _warn(f"{why}; from the newest run folder, {escaped(str(path))}:")
    return run_folder.node_folders(path)


def _own_port(environ: Mapping[str, str], settings: Settings) -> int:
    """Return the port of this node's agent, which is also the head's."""
    base = port_base(environ, settings)
    return port_map(settings.ray_port, settings.dashboard_port, settings.port, base).agent


def status_at(where: str, settings: Settings) -> dict[str, Any] | str:
    """Return the status of the agent at a host and port, or why there is none."""
    token = settings.ray_auth_token
    answer = ask(f"http://{where}/status", None if token is None else token.reveal())
    if answer.status == 401:
        raise UnavailableError(f"{where}: it asks for the cluster's RAY_AUTH_TOKEN")
    if answer.status != 200:
        return f"{where}: {answer.failure}"
    with suppress(ValueError, RecursionError):
        data = map_texts(json.loads(answer.body), escaped)
        if isinstance(data, dict) and {"role", "phase", "waits"} <= data.keys():
            return data
    return f"{where}: whatever listens there is no agent"


# --- findings, logs, stop ------------------------------------------------------------------------


def show_findings(
    environ: Mapping[str, str],
    terminal: Terminal = NO_TERMINAL,
    *,
    as_json: bool,
    verbose: bool = False,
) -> int:
    """Print all nodes' findings; return 0, or 78 where a check fails."""
    data = map_texts(_head(environ).ask("/findings"), escaped)
    with _in_known_format():
        found = [
            (
                Finding(row["check"], Level(row["level"]), row["what"], row["remedy"]),
                _where(row.get("nodes", ["between nodes"]), len(data["nodes"])),
            )
            for row in (*data["between"], *data["findings"])
        ]
        found.sort(key=lambda row: ORDER.index(row[0].level))
        shown = [(one, of) for one, of in found if verbose or one.level is not Level.OK]
        no_agent = "nothing is known about {}: no agent runs there"
        lines = [
            *(toned_line(one, f" [{of}]") for one, of in shown),
            *(Line("     ", no_agent.format(name)) for name in data["unknown"]),
            *([] if verbose else passed_lines(one for one, _ in found)),
        ]
    failed = any(one.level is Level.FAIL for one, _ in found)
    if as_json:
        print(json.dumps({"ok": not failed, **data}, indent=2))
    else:
        print(terminal.render(lines, str))
    return 78 if failed else 0


def _where(nodes: list[str], count: int) -> str:
    return "all nodes" if len(nodes) == count > 1 else first_names(nodes)


def show_logs(
    environ: Mapping[str, str], words: list[str], chosen: LogFilter, *, follow: bool
) -> None:
    """Print a log; raises where there is neither a head nor a run with such a log."""
    head = _find_head(environ)
    if isinstance(head, str):
        text = _past_log(_newest_run(environ, head), words, chosen)
        _print_log(redactor_for(environ, None).clean(text))
        return
    workers = {str(node.get("name")) for node in head.status.get("nodes", [])}
    node, name = _node_and_log(words, workers)
    path = f"/logs/{quote(node, safe='')}/{quote(name, safe='')}"
    part = _print_part(head, path, chosen)
    if follow and part["next"] is None:
        _warn(f"the log of {node} comes as its last lines only, which cannot be followed")
    elif follow:
        _follow_log(part, head, path, chosen._replace(last=None, since=None))


def _node_and_log(words: list[str], workers: Iterable[str], head: str = HEAD) -> tuple[str, str]:
    """Return node and log from the arguments: one that is no node's name is a log's."""
    if len(words) == 2:
        return words[0], words[1]
    if not words or words[0] in {HEAD, head}:
        return HEAD, "job"
    return (words[0], "agent") if words[0] in workers else (HEAD, words[0])


def _follow_log(part: dict[str, Any], head: FoundHead, path: str, chosen: LogFilter) -> None:
    """Print new parts until the run is over; a head that is restarted is back within seconds."""
    received = time.monotonic()
    while True:
        try:
            part = _print_part(head, f"{path}?after={part['next']}", chosen)
            received = time.monotonic()
            if not part["over"]:  # else there is an answer at once
                continue
        except UnavailableError as error:
            if part["over"]:  # the head is gone and the log complete
                return
            if time.monotonic() - received > times.AGENT_RESTARTS:
                what = f"no log and no verdict for {times.AGENT_RESTARTS:g} s"
                raise UnavailableError(f"{what}: {error}") from None
        time.sleep(times.VERB_RETRY_PAUSE)  # for a person only; nothing waits on it


def _print_part(head: FoundHead, path: str, chosen: LogFilter) -> dict[str, Any]:
    """Print the selected lines of a part of a log; return it: `next` is where the next starts."""
    part: dict[str, Any] = head.ask(path)
    _print_log(chosen.apply(part["text"], datetime.now(timezone.utc)))
    return part


def _print_log(text: str) -> None:
    """Print a part of a log; a terminal gets no sequences that steer it (OSC 52: its clipboard)."""
    print(plain(text) if sys.stdout.isatty() else text, end="", flush=True)


def stop(environ: Mapping[str, str]) -> None:
    """End the run as SIGTERM on the head would, and wait for its end; raises if refused."""
    head = _head(environ)
    within = head.ask("/stop", post=True)["within"] + times.STOP_VERB_MARGIN
    _warn(f"run {head.status.get('run_id')} is being stopped")
    over = time.monotonic() + within
    while ask(f"http://{head.where}/livez", limit=2.0).status:
        if time.monotonic() > over:
            raise UnavailableError(f"{head.where} still answers after {within:g} s")
        time.sleep(times.VERB_RETRY_PAUSE)  # for a person only; nothing waits on it


# --- the newest run folder -----------------------------------------------------------------------


def _past_status(head: Path, *, as_json: bool) -> str:
    """Return how a run ended, by the outcome in the folder of its head, else of a node."""
    run = head.parent
    file = run_folder.OUTCOME_FILE
    outcome = run_folder.read_outcome(head)
    if as_json:
        found = None if outcome is None else json.loads(read_small(head / file))
        source = {"run_id": run.name, "node": head.name, "folder": str(run)}
        return json.dumps({**source, "is_over": outcome is not None, "outcome": found})
    if outcome is None:
        return f"run {run.name}: no {file}: the agent was killed, or still runs"
    end = f"{outcome.kind.value}: {outcome.reason} (exit code {outcome.exit_code})"
    more = f"`pod-agent explain {run}` shows what took long"
    lines = (f"run {run.name} is over: {end}", outcome.remedy, more)
    return "\n".join(escaped(line) for line in lines if line)


def _past_log(nodes: list[Path], words: list[str], chosen: LogFilter) -> str:
    """Return the selected lines of a log; raises if there is no such log."""
    folders = {node.name: node for node in nodes}
    node, name = _node_and_log(words, folders, nodes[0].name)
    folder = nodes[0] if node == HEAD else folders.get(node)
    files = {} if folder is None else {path.name: path for path in folder.glob("*.log")}
    file = next((files[one] for one in log_files(name) if one in files), None)
    data = None if file is None else read_end(file, _MOST_READ)
    if file is None or data is None:
        known = f"nodes are {first_names(folders)}; it has {first_names(sorted(files), 8)}"
        raise UnavailableError(f"node {node!r} has no log {name!r}: {known}")
    written = datetime.fromtimestamp(file.stat().st_mtime, timezone.utc)
    return chosen.apply(data.decode(errors="replace"), written)


# --- status --------------------------------------------------------------------------------------


def show_status(
    environ: Mapping[str, str],
    terminal: Terminal = NO_TERMINAL,
    *,
    as_json: bool,
    watch: bool = False,
) -> None:
    """Print the status, with `watch` until the end; raises where there is neither head nor run."""
    found = _find_head(environ)
    if isinstance(found, str):
        past = _past_status(_newest_run(environ, found)[0], as_json=as_json)
        print(redactor_for(environ, None).clean(past), flush=True)
        return
    if not watch:
        with _in_known_format():
            status = found.status
            text = json.dumps(status) if as_json else terminal.render(status_lines(status), str)
        print(text, flush=True)
        return
    with _screen(as_json=as_json) as show:
        _show_until_end(show, found.where, _follow_status(found))


def _screen(*, as_json: bool) -> AbstractContextManager[Show]:
    """Return the screen to use: JSON, live on a terminal with rich, or changed lines."""
    if as_json:
        by_content = ChangedLines(lambda status: {json.dumps(at_rest(status)): json.dumps(status)})
        return nullcontext(by_content)
    if sys.stdout.isatty():
        with suppress(ImportError):
            from agent.cli.rich_view import LiveScreen  # noqa: PLC0415 - rich, where it is installed

            live = LiveScreen()
            if live.can_show:
                return live
    return nullcontext(ChangedLines(lines_by_content))


def check_live(environ: Mapping[str, str]) -> None:
    """Health check of this node's agent; raises if it does not answer."""
    where = f"127.0.0.1:{_own_port(environ, load(environ).settings)}"
    answer = ask(f"http://{where}/livez")
    if answer.status != 200:
        raise UnavailableError(f"no agent runs here: {where}: {answer.failure}")


def _follow_status(head: FoundHead) -> Iterator[Status | str]:
    """Yield each status received, and for each failed request why there is none."""
    yield head.status
    while True:
        try:
            yield from _stream(head)
        except _FAILURES as error:
            yield _error_text(error)
        yield status_at(head.where, head.settings)  # also where `/events` is not open to us
        time.sleep(times.STATUS_POLL)  # for a person only; nothing waits on it


def _stream(head: FoundHead) -> Iterator[Status]:
    """Yield the statuses of a stream until it ends; none where it is refused."""
    prover = Prover(head.secret())
    for _ in range(TRIES):
        url = f"http://{head.where}/events"
        with _sent("GET", url, prover, times.STREAM_SILENT) as (reply, signed):
            proof = prover.check(signed, reply.status_code, reply.headers, None)
            if proof is ReplyProof.PROVEN and reply.status_code == 200:
                for line in reply.iter_lines(None):  # as it arrives
                    if line.startswith(b"data: "):
                        yield map_texts(json.loads(line.removeprefix(b"data: ")), escaped)


def _show_until_end(
    show: Show,
    where: str,
    statuses: Iterable[Status | str],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show each status until the run's end; raises where the end is not known."""
    received = clock()
    last = dict[str, Any]()
    for status in statuses:
        if isinstance(status, str):
            silence = clock() - received
            why = f"{where} does not answer: {status}"
            if silence > times.HEAD_GONE:
                ago = f"{duration_text(silence)} ago it was {one_line(last.get('phase'))}"
                raise UnavailableError(f"the head is gone: {why}; {ago}")
            show(last, one_line(why))
            continue
        received = clock()
        with _in_known_format():
            last = {**status}
            show(last, "")
            if last["phase"] == "leaving" and last.get("verdict"):
                break


class ChangedLines:
    """Prints the lines of a status whose content is new, by a function that returns both."""

    def __init__(self, lines: Callable[[Status], dict[str, str]]) -> None:
        self._lines = lines
        self._before: dict[str, str] = {}
        self._outage = ""

    def __call__(self, status: Status, outage: str) -> None:
        """Print what changed; an outage once, and its end."""
        if bool(outage) != bool(self._outage):
            _warn(outage or "the head answers again")
        self._outage = outage
        before = self._before
        self._before = self._lines(status)
        for content, line in self._before.items():
            if content not in before:
                print(line, flush=True)
