"""Requests between agents: a worker's reports to the head, and measurements of links.

`HeadLink.run` repeats: resolve the head's name, send a report, handle the reply. The head holds the
reply for REPLY_HELD at most, until there is news; `report_now` cuts this short. Without a reply,
the port of GCS shows whether plain Ray runs there. Otherwise the head is silent: the next report
follows a growing pause, and goes to another of the head's addresses, or to a new one. The delivered
goodbye is the last report, also of a pod that is held after its run.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import anyio
from msgspec.structs import replace
from yarl import URL

from agent.base import times
from agent.base.text import escaped, in_url
from agent.decisions.worker.worker_state import HeadSilent, HeadSpoke, WorkerEvent
from agent.port.node_network import NETWORK
from agent.port.proof import TRIES, Prover, ReplyProof
from agent.port.protocol import (
    REPORT_PATH,
    SAMPLE_PATH,
    SAMPLE_RUN,
    Hello,
    Reply,
    Report,
    protocol_mismatch,
)
from agent.processes.connecting import reason
from agent.processes.resolving import NoDnsAnswer, set_keepalive
from agent.processes.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.connector import Connection
    from typing_extensions import Self

    from agent.port.node_network import Network

    OpenSession = Callable[[str, aiohttp.ClientTimeout], aiohttp.ClientSession]

_CONNECT_PAUSE = 0.1  # Before the second try to reach the head; it doubles.
_LONGEST_CONNECT_PAUSE = 1.0  # A head that is back is found within this.
_SAMPLE_CONNECT = 3.0  # For the connection of a sample.
_MAX_ANSWER_BYTES = 1 << 20


def _plain_session(**options: Any) -> aiohttp.ClientSession:  # noqa: ANN401 - as aiohttp has it
    """Return a session that inflates no answer: a small one could take any memory."""
    headers = {"Accept-Encoding": "identity"}
    return aiohttp.ClientSession(auto_decompress=False, headers=headers, **options)


def open_session(source: str, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
    """Return a session that sends from an address, or for '' from the route's."""
    local = (source, 0) if source else None
    return _plain_session(connector=KeepaliveConnector(local_addr=local), timeout=timeout)


class _Sessions:
    """HTTP sessions, one for each of this node's addresses from which requests are sent."""

    def __init__(self, open_one: OpenSession) -> None:
        self._open = open_one
        total = times.REPLY_HELD + times.REPORT_MARGIN
        self._timeout = aiohttp.ClientTimeout(total=total, connect=3)
        self._by_source: dict[str, aiohttp.ClientSession] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def get(self, source: str) -> aiohttp.ClientSession:
        """Return the session that sends from an address, or for '' from the route's."""
        if source not in self._by_source:
            session = self._open(source, self._timeout)
            self._by_source[source] = await self._stack.enter_async_context(session)
        return self._by_source[source]


class KeepaliveConnector(aiohttp.TCPConnector):
    """Sets keepalive options: before 3.12, which images have, aiohttp takes no socket factory."""

    async def connect(self, *args: Any, **kwargs: Any) -> Connection:  # noqa: ANN401 - passed on
        """Open a connection, or reuse one."""
        connection = await super().connect(*args, **kwargs)
        if connection.transport is not None:
            set_keepalive(connection.transport.get_extra_info("socket"), times.PEER_DEAD)
        return connection


_FAILURES = (TimeoutError, asyncio.TimeoutError, aiohttp.ClientError, OSError)
"""What a request raises; the first two are one from Python 3.11 on."""


def _failure_text(error: BaseException, where: str) -> str:
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return f"no answer from {where}"
    return f"{reason(getattr(error, 'os_error', None) or error)} by {where}"


class _NoReply(NamedTuple):
    """Why there was no reply."""

    evidence: str
    from_an_agent: bool = False  # An agent answered, though with no reply: this is not plain Ray


class HeadLink:
    """One worker's reports to the head; resolves its name again after each silence."""

    def __init__(  # noqa: PLR0913 - the head's address, and callbacks
        self,
        host: str,
        agent_port: int,
        gcs_port: int,
        token: str | None,
        hello: Callable[[], Hello],
        report: Callable[[str], Report],
        emit: Callable[[WorkerEvent], None],
        on_reply: Callable[[Reply], None],
        *,
        last_ip: str = "",
        joins_plain_ray: bool = True,
        network: Network = NETWORK,
        open_session: OpenSession = open_session,
    ) -> None:
        """Use `last_ip` while DNS gives no answer; join plain Ray only if `joins_plain_ray`."""
        self._host = host
        self._agent_port = agent_port
        self._gcs_port = gcs_port
        self._joins_plain_ray = joins_plain_ray
        self._token = token
        self._prover = Prover(token)
        self._hello = hello
        self._report = report
        self._emit = emit
        self._on_reply = on_reply
        self._network = network
        self._open_session = open_session

        # Where the head is.
        self._ip: str | None = None
        self._address_index = 0
        self._dns_error = ""  # Why the last lookup of the head's name failed; '' if it succeeded
        self._followed_ip = last_ip  # The address of the head followed last

        # What it replied last.
        self._epoch = 0  # The highest epoch received in the run of `_run_id`
        self._run_id = ""
        self._news = -1
        self._is_unknown = False  # True while the head only holds the verdict of another run
        self._silent_since: float | None = None

        # What is sent next.
        self._sends_hello = True
        self._last_report: Report | None = None
        self._sequence = 0
        self._changed = anyio.Event()
        self.goodbye_delivered = False  # True once the head has received this agent's goodbye

    def report_now(self) -> None:
        """Send a report now: the one that the head holds is cut short."""
        self._changed.set()

    async def run(self) -> None:
        """Send reports and handle replies until canceled, or until the goodbye is delivered."""
        async with _Sessions(self._open_session) as sessions, anyio.create_task_group() as tasks:

            async def report() -> bool | NotYet:
                former = self._followed_ip
                epoch = self._epoch
                has_reply = await self._report_once(sessions)
                if self.goodbye_delivered:
                    return True

                # The reply to a goodbye is never held: it is sent again after a pause, too.
                if not has_reply or self._is_unknown or self._is_leaving:
                    return NotYet()
                if former not in ("", self._followed_ip) and self._epoch > epoch:
                    tasks.start_soon(self._report_to_former_head, sessions, former)
                return True

            step = _CONNECT_PAUSE
            longest = _LONGEST_CONNECT_PAUSE
            while not self.goodbye_delivered:
                await until(report, None, step=step, longest=longest, pause=self._pause)

    async def _pause(self, seconds: float) -> None:
        """Wait, but report a change on this node at once."""
        with anyio.move_on_after(seconds):
            await self._changed.wait()

    @property
    def _is_leaving(self) -> bool:
        """Return whether the last report was a goodbye."""
        return self._last_report is not None and self._last_report.bye is not None

    async def _report_to_former_head(self, sessions: _Sessions, ip: str) -> None:
        """Report the later epoch to the head followed before; the hello names the epoch's run."""
        assert self._last_report is not None  # noqa: S101 - a head was followed
        report = replace(self._last_report, epoch=self._epoch, hello=self._hello())
        await self._request(sessions, Prover(self._token), ip, report)

    async def _report_once(self, sessions: _Sessions) -> bool:
        # First: a failed lookup must leave no change that ends each pause.
        self._changed = anyio.Event()
        self._ip = self._ip or await self._resolve_head()
        if self._ip is None:
            self._emit_silence(self._dns_error)
            return False

        # Send the report, until its reply, or until `report_now` cuts the wait short.
        report = self._next_report(self._ip)
        self._last_report = report
        hold = times.REPLY_HELD if self._news >= 0 else 0.0
        failure: _NoReply | None = None
        async with anyio.create_task_group() as group:

            async def watch() -> None:  # canceled by `report_now` itself, a reply could be lost
                await self._changed.wait()
                group.cancel_scope.cancel()

            group.start_soon(watch)
            failure = await self._send(sessions, self._ip, report, hold)
            group.cancel_scope.cancel()
        if failure is None:
            self._silent_since = None
            return True

        # Does GCS answer? A plain `ray start --head` has no agent, and a killed one is replaced.
        port_answers = self._network.port_answers
        if not failure.from_an_agent and not await port_answers(self._ip, self._gcs_port):
            if self._joins_plain_ray:
                self._silent_since = None
                self._emit(HeadSpoke(self._ip, None, ray_ready=True))
                return False
            failure = _NoReply(
                f"Ray runs at {self._ip}, but no agent that proves to hold RAY_AUTH_TOKEN, which "
                f"Ray would send there in clear ({failure.evidence}); run the agent on the head, "
                "use Ray's TLS, or set AGENT_ALLOW_INSECURE=1"
            )

        # Its address may have changed, or another of its addresses works; but the first silence
        # of the head that was followed may be packet loss.
        stays = self._ip == self._followed_ip and self._silent_since is None
        self._emit_silence("; ".join(filter(None, (failure.evidence, self._dns_error))))
        if not stays:
            self._ip = None
            self._address_index += 1
        return False

    async def _resolve_head(self) -> str | None:
        """Return the head's address; the last one where DNS does not answer."""
        addresses = await self._network.resolve(self._host)
        if not isinstance(addresses, str):
            self._dns_error = ""
            return addresses[self._address_index % len(addresses)]
        self._dns_error = addresses
        if isinstance(addresses, NoDnsAnswer):
            return self._followed_ip or None
        return None

    def _next_report(self, ip: str) -> Report:
        """Return a numbered report: the head ignores one that a later one overtook."""
        self._sequence += 1
        own_ip = self._network.source_towards(ip) or ""
        return replace(self._report(own_ip), sequence=self._sequence)

    async def _send(
        self, sessions: _Sessions, ip: str, report: Report, hold: float
    ) -> _NoReply | None:
        """Send a report and handle the reply; return why there was none."""
        hello = self._hello() if self._sends_hello else None
        report = replace(report, news=self._news, hold=hold, hello=hello, epoch=self._epoch)
        answer = await self._request(sessions, self._prover, ip, report)
        if isinstance(answer, _NoReply):
            return answer

        # Is the answer a reply, and of this version?
        status, text = answer
        where = self._address(ip)
        data = None
        with suppress(ValueError, RecursionError):
            data = json.loads(text)
        if status != 200:
            why = data.get("error") if isinstance(data, dict) else None
            evidence = f"{where} answered {status} {escaped(str(why or text)[:200].strip())}"
            return _NoReply(evidence.strip(), from_an_agent=why is not None)
        refusal = protocol_mismatch(data, "the head")
        if refusal:
            self._emit(HeadSpoke(ip, None, ray_ready=False, refusal=refusal))
            return None
        try:
            reply = Reply.from_dict(data)
        except ValueError as error:
            why = f"{where} does not answer like a head's agent ({error})"
            return _NoReply(why, from_an_agent=isinstance(data, dict))

        # Is it from an earlier head of this run? The hello makes a head that lost its disk, and
        # whose clock is behind, raise its epoch.
        if reply.run_id == self._run_id and reply.epoch < self._epoch:
            self._sends_hello = True
            later = "a later one of the same run has replied before"
            return _NoReply(f"the head at {ip} is an earlier one: {later}", from_an_agent=True)
        self._handle_reply(ip, reply)
        if report.bye is not None and not self._sends_hello:
            self.goodbye_delivered = True
        return None

    async def _request(
        self, sessions: _Sessions, prover: Prover, ip: str, report: Report
    ) -> tuple[int, str] | _NoReply:
        """Post a report; return status and text of the answer, if it is proven."""
        # Without a token the head takes the sender's address for this node's.
        source = ""
        if self._token is None and self._network.is_bindable(report.ip):
            source = report.ip
        session = await sessions.get(source)

        where = self._address(ip)
        url = f"http://{where}{REPORT_PATH}"
        content = json.dumps(report.to_dict()).encode()
        try:
            for _ in range(TRIES):
                signed = prover.sign("POST", REPORT_PATH, content)
                headers = {"Content-Type": "application/json", **signed.headers}
                posting = session.post(
                    url, data=signed.body, headers=headers, allow_redirects=False
                )
                async with posting as answer:
                    body = await _start_of(answer.content)
                    verdict = prover.check(signed, answer.status, answer.headers, body)
                if verdict is not ReplyProof.AGAIN:
                    break
        except _FAILURES as error:
            return _NoReply(_failure_text(error, where))

        if verdict is ReplyProof.REFUSED:
            why = f"the head at {ip} asks for another RAY_AUTH_TOKEN than this node's"
            return _NoReply(why, from_an_agent=True)
        if verdict is not ReplyProof.PROVEN:
            why = f"{where} does not prove that it holds this node's RAY_AUTH_TOKEN"
            return _NoReply(why, from_an_agent=True)
        return answer.status, body.decode(errors="replace")

    def _address(self, ip: str) -> str:
        return f"{in_url(ip)}:{self._agent_port}"

    def _handle_reply(self, ip: str, reply: Reply) -> None:
        # Until it is registered, a worker asks again and is not held.
        self._sends_hello = reply.wants_hello or reply.held
        self._news = -1 if reply.wants_hello else reply.news
        self._is_unknown = reply.held

        # Without registration the reply may be another run's.
        if not reply.held and not reply.wants_hello:
            self._on_reply(reply)
            self._epoch = reply.epoch
            self._run_id = reply.run_id
            self._followed_ip = ip

        self._emit(
            HeadSpoke(
                ip=reply.head_ip,
                epoch=reply.epoch,
                ray_ready=reply.ray_ready,
                phase=reply.phase,
                verdict=reply.verdict,
                refusal=reply.refusal,
                run_id="" if reply.wants_hello else reply.run_id,
                held=reply.held,
                rank=reply.rank,
                wanted=None if reply.held else reply.wanted,
            )
        )

    async def send_goodbye(self, limit: float) -> None:
        """Send the head a goodbye; the head may not run yet, or no longer."""
        async with _Sessions(self._open_session) as sessions:

            async def delivered() -> bool | NotYet:
                ip = self._ip or await self._resolve_head()
                if ip is None:
                    return NotYet(self._dns_error)
                report = self._next_report(ip)
                failure = await self._send(sessions, ip, report, 0.0)
                return True if failure is None else NotYet(failure.evidence)

            with anyio.move_on_after(limit):
                self.goodbye_delivered = await until(delivered, None, step=_CONNECT_PAUSE)

    def _emit_silence(self, evidence: str) -> None:
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        self._news = -1
        seconds = round(now - self._silent_since)
        self._emit(HeadSilent(f"{evidence} for {seconds} s" if seconds else evidence))


async def _start_of(content: aiohttp.StreamReader) -> bytes:
    """Return what is read until its end, or until it is longer than any reply."""
    body = b""
    async for part in content.iter_any():
        body += part
        if len(body) > _MAX_ANSWER_BYTES:
            break
    return body


async def download_sample(
    ip: str, port: int, token: str | None, run_id: str, limit: float
) -> tuple[int, float] | str:
    """Download from a node; return bytes and seconds, or a sentence why it failed."""
    timeout = aiohttp.ClientTimeout(total=limit, connect=_SAMPLE_CONNECT)
    at = f"{in_url(ip)}:{port}"
    prover = Prover(token)
    url = URL(f"http://{at}{SAMPLE_PATH}").with_query({SAMPLE_RUN: run_id})

    # A redirect of an unproven server is not followed. Only the start of a stream is proven, and
    # another status ends it anyway.
    try:
        async with _plain_session(timeout=timeout) as session:
            for _ in range(TRIES):
                signed = prover.sign("GET", url.raw_path_qs)
                getting = session.get(url, headers=signed.headers, allow_redirects=False)
                async with getting as answer:
                    verdict = prover.check(signed, answer.status, answer.headers, None)
                    if verdict is ReplyProof.PROVEN and answer.status == 200:
                        return await _measure(answer.content)
                if verdict is not ReplyProof.AGAIN:
                    break
            if answer.status != 200:
                return f"{at} answered {answer.status}"
            return f"{at} does not prove that it holds this node's RAY_AUTH_TOKEN"
    except _FAILURES as error:
        return _failure_text(error, at)


async def _measure(content: aiohttp.StreamReader) -> tuple[int, float]:
    """Measure from the second chunk on: the first one includes the sender's start."""
    size = 0
    began = None
    with anyio.CancelScope() as scope:
        async for chunk in content.iter_any():
            if began is not None:
                size += len(chunk)
                continue
            began = time.monotonic()
            scope.deadline = anyio.current_time() + times.SAMPLE_LENGTH
    return size, time.monotonic() - (began or time.monotonic())
