"""An agent's port, served in a thread, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import anyio
from msgspec.structs import replace

from agent.checks.finding import Finding, Level
from agent.job.series import Series
from agent.port.node_network import bind
from agent.port.server import AgentServer, Control
from agent.port.status_model import FindingsStatus, LogPart, NodesFinding
from agent.record import run_keys
from support.statuses import A_HEAD

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    Log = Callable[[str, str, int | None, int | None], Awaitable[LogPart | str]]

SECONDS = 20.0
KEY = "0123456789abcdef" * 2
FINDINGS = FindingsStatus(
    nodes=("pod0", "pod1"),
    unknown=("10.0.0.9",),
    between=(Finding("NCCL_DEBUG", Level.WARN, "a on pod1", "Alike"),),
    findings=(
        NodesFinding("disk", Level.FAIL, "full", "Empty", nodes=("pod1",)),
        NodesFinding("ray", Level.OK, "2.60", "", nodes=("pod0", "pod1")),
    ),
)
STATUS = replace(A_HEAD, run_id="run-1")


LOGS = {("head", "job"): ["step 1\n", "step 2\n"], ("pod1", "agent"): ["joined\n"]}


async def a_log(
    node: str, name: str, after: int | None, _before: int | None = None
) -> LogPart | str:
    """Yield a log's parts one by one; of a worker's log, only the tail."""
    parts = LOGS.get((node, name))
    if parts is None:
        return f"{node} has no log {name!r}"
    if node != "head":
        return LogPart(parts[0], None)
    place = after or 0
    return LogPart("".join(parts[place : place + 1]), place + 1)


def a_series() -> Series:
    """Return the metrics of three steps."""
    series = Series()
    for step in (1, 2, 3):
        series.add(1, step, {"reward": step / 10}, 9)
    return series


class Answer(NamedTuple):
    """Status, headers and body of a response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def data(self) -> Any:  # noqa: ANN401 - whatever JSON has
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The error text of a refusal."""
        return str(self.data["error"])


def ask(  # noqa: PLR0913 - a request's parts
    port: int,
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    body: object = None,
    source: str = "127.0.0.1",
) -> Answer:
    """Send a request from an address; a body that is neither text nor bytes is sent as JSON."""
    sent = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
    connection = http.client.HTTPConnection(
        "127.0.0.1", port, timeout=SECONDS, source_address=(source, 0)
    )
    with contextlib.closing(connection):
        connection.request(method, path, sent, headers or {})
        reply = connection.getresponse()
        return Answer(reply.status, reply.headers, reply.read())


class Lives(Protocol):
    """An object that runs in its own thread."""

    up: threading.Event
    over: threading.Event

    def live(self) -> None:
        """Run until it is stopped."""


_Head = TypeVar("_Head", bound=Lives)


class Head:
    """A head's port, which closes on a stop request."""

    def __init__(self, token: str | None, key: str | None, log: Log, port: int) -> None:
        self.socket = bind("127.0.0.1", port)
        self.port = int(self.socket.getsockname()[1])
        self.stopped = threading.Event()
        self.over = threading.Event()
        self.up = threading.Event()
        control = Control(
            *(self.stopped.set, 5.0, key, lambda: FINDINGS, log),
            with_private=lambda status: replace(status, metrics={"reward": 0.5}),
            series=a_series().part,
        )
        self.site = AgentServer(
            token=token, ready=lambda: True, status=lambda _reader: STATUS, control=control
        )

    def live(self) -> None:
        """Serve until it is stopped, or the test ends."""
        anyio.run(self._live)

    async def _live(self) -> None:
        runner = await self.site.open([self.socket])
        self.up.set()
        while not (self.stopped.is_set() or self.over.is_set()):
            await anyio.to_thread.run_sync(self.stopped.wait, 0.1)
        await runner.cleanup()


def a_head(
    token: str | None = None, key: str | None = KEY, log: Log = a_log, port: int = 0
) -> AbstractContextManager[Head]:
    """Serve a head's port in a thread."""
    return served(Head(token, key, log, port))


@contextlib.contextmanager
def served(head: _Head) -> Iterator[_Head]:
    """Run an object in a thread until the test ends."""
    thread = threading.Thread(target=head.live)
    thread.start()
    try:
        assert head.up.wait(SECONDS)
        yield head
    finally:
        head.over.set()
        thread.join(SECONDS)
        assert not thread.is_alive()


def environ_of(port: int, root: Path) -> dict[str, str]:
    """Return the environment of a verb on the head's node."""
    return {"AGENT_PORT": str(port), "AGENT_LOG_DIR": str(root)}


def leave_key(root: Path, key: str, run_id: str = "run-1") -> None:
    """Write a key where the head of a run does, which is the newest one."""
    folder = root / run_id / "pod0"
    folder.mkdir(parents=True)
    (root / "latest").unlink(missing_ok=True)
    (root / "latest").symlink_to(run_id)
    (folder / run_keys.KEY_FILE).write_text(key)
