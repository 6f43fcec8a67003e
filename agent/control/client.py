"""The worker's end: finds the head, reports to it, and hears its news as they come."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import anyio

from agent.base.addresses import in_url
from agent.base.words import escaped
from agent.control.fields import UnreadableError
from agent.control.protocol import LONGEST_HOLD, REPORT_PATH, Hello, Reply, Report, skew
from agent.decisions.worker.state import HeadSilent, HeadSpoke, Ordered, WorkerEvent
from agent.node.addresses import source_towards
from agent.runtime.names import Unanswered, resolve
from agent.runtime.probes import port_answers, reason
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp

_STEP = 0.1
_LONGEST_STEP = 1.0
_LONGEST_ANSWER = 1 << 20
_MARGIN = 5.0
"""So much longer than it is held may a report take: one that takes longer is lost."""
_BARE_AFTER = 2
"""So many looks at an open GCS without an agent beside it make a head without an agent."""


class _Unheard(NamedTuple):
    """Why there was no reply."""

    evidence: str
    from_an_agent: bool = False
    """True where an agent answered, though not as hoped: Ray is then no bare one."""


class HeadLink:
    """One worker's line to the head: resolves it anew whenever it falls silent."""

    def __init__(  # noqa: PLR0913 - where the head is, and what to say to it
        self,
        host: str,
        agent_port: int,
        gcs_port: int,
        token: str | None,
        hello: Callable[[], Hello],
        report: Callable[[str], Report],
        tell: Callable[[WorkerEvent], None],
        on_reply: Callable[[Reply], None],
        *,
        was_at: str = "",
    ) -> None:
        """Look for the head by its name; where DNS is silent, `was_at` is where it was before."""
        self._host = host
        self._agent_port = agent_port
        self._gcs_port = gcs_port
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._hello = hello
        self._says_hello = True
        self._report = report
        self._tell = tell
        self._on_reply = on_reply
        self._ip: str | None = None
        self._turn = 0
        self._unresolved = ""
        """Why the head's name had no address when it was asked for last; '' where it had."""
        self._epoch = 0
        """The highest that was heard, of the run of this id, from the head at this address."""
        self._run_id = ""
        self._followed = was_at
        """The address of the head that was followed last."""
        self._said: Report | None = None
        self._sequence = 0
        self._news = -1
        self._changed = anyio.Event()
        self._silent_since: float | None = None
        self._looks_bare = 0
        self._is_stranger = False
        """True while the head holds the verdict of a run that is none of this agent's."""
        self.was_told = False
        """True once the head has heard this agent's goodbye."""

    def report_now(self) -> None:
        """Say what changed here, without waiting for the held report to come back."""
        self._changed.set()

    async def run(self) -> None:
        """Report and listen until cancelled."""
        import aiohttp  # noqa: PLC0415 - late, as on the head

        from agent.control.kept import KeptConnector  # noqa: PLC0415 - same

        timeout = aiohttp.ClientTimeout(total=LONGEST_HOLD + _MARGIN, connect=3)
        session = aiohttp.ClientSession(
            timeout=timeout, headers=self._headers, connector=KeptConnector()
        )
        async with (
            session,
            anyio.create_task_group() as tasks,
        ):
            await self._follow(session, tasks)

    async def _follow(self, session: aiohttp.ClientSession, tasks: anyio.abc.TaskGroup) -> None:
        step = _STEP
        while True:
            former, epoch = self._followed, self._epoch
            if await self._once(session) and not self._is_stranger:
                step = _STEP
                if former not in ("", self._followed) and self._epoch > epoch:
                    tasks.start_soon(self._tell_former, session, former)
                continue
            with anyio.move_on_after(step):  # a change here is worth an earlier try
                await self._changed.wait()
            step = min(step * 1.5, _LONGEST_STEP)

    async def _tell_former(self, session: aiohttp.ClientSession, ip: str) -> None:
        """Report the later head to the one that was followed before, if that one is still there.

        The hello names the run to which the epoch belongs.
        """
        import aiohttp  # noqa: PLC0415 - late, as on the head

        assert self._said is not None  # noqa: S101 - one was followed, by reports
        body = replace(self._said, epoch=self._epoch, hello=self._hello()).to_dict()
        with suppress(aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError):
            async with session.post(f"http://{self._at(ip)}{REPORT_PATH}", json=body):
                pass

    async def _once(self, session: aiohttp.ClientSession) -> bool:
        self._ip = self._ip or await self._where()
        if self._ip is None:
            self._silence(self._unresolved)
            return False
        unheard = await self._exchange(session, self._ip)
        if unheard is None:
            self._silent_since, self._looks_bare = None, 0
            return True
        if not unheard.from_an_agent and await self._is_bare(self._ip):
            self._silent_since = None
            self._tell(HeadSpoke(self._ip, None, ray_ready=True))
            return False
        stays = self._ip == self._followed and self._silent_since is None  # a bad line, perhaps
        self._silence("; ".join(filter(None, (unheard.evidence, self._unresolved))))
        if not stays:  # its address may have changed, or another of its addresses is the one
            self._ip = None
            self._turn += 1
        return False

    async def _where(self) -> str | None:
        """Return where to call; where DNS does not answer, that is where the head was."""
        found = await resolve(self._host)
        self._unresolved = found if isinstance(found, str) else ""
        if not isinstance(found, str):
            return found[self._turn % len(found)]
        return self._followed or None if isinstance(found, Unanswered) else None

    async def _exchange(self, session: aiohttp.ClientSession, ip: str) -> _Unheard | None:
        """Send one report and take the reply; a change here cuts the wait for news short."""
        self._changed = anyio.Event()
        self._said = report = self._next_report(ip)
        hold = LONGEST_HOLD if self._news >= 0 else 0.0
        unheard: _Unheard | None = None  # also where it was cut short
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await self._changed.wait()
                group.cancel_scope.cancel()

            group.start_soon(watch)
            unheard = await self._send(session, ip, report, hold)
            group.cancel_scope.cancel()
        return unheard

    def _next_report(self, ip: str) -> Report:
        """Return a report with its number: the head drops one that arrives after its successor."""
        self._sequence += 1
        return replace(self._report(source_towards(ip) or ""), sequence=self._sequence)

    async def _send(
        self, session: aiohttp.ClientSession, ip: str, report: Report, hold: float
    ) -> _Unheard | None:
        """Post a report and pass the reply on; return why there was none, if there was none."""
        import aiohttp  # noqa: PLC0415 - late, as on the head

        try:
            return await self._post(session, ip, report, hold)
        except aiohttp.ClientConnectorError as error:
            return _Unheard(f"{reason(error.os_error)} by {self._at(ip)}")
        except (TimeoutError, asyncio.TimeoutError):  # two things until Python 3.11
            return _Unheard(f"no answer from {self._at(ip)}")
        except (aiohttp.ClientError, OSError) as error:
            return _Unheard(f"{reason(error)} ({self._at(ip)})")

    async def _post(
        self, session: aiohttp.ClientSession, ip: str, report: Report, hold: float
    ) -> _Unheard | None:
        hello = self._hello() if self._says_hello else None
        told = replace(report, news=self._news, hold=hold, hello=hello, epoch=self._epoch)
        body = told.to_dict()
        url = f"http://{self._at(ip)}{REPORT_PATH}"
        async with session.post(url, json=body) as answer:
            if answer.status == 401:
                why = f"the head at {ip} asks for another RAY_AUTH_TOKEN than this node's"
                return _Unheard(why, from_an_agent=True)
            text = await _text_of(answer)
            if answer.status != 200:
                return self._not_taken(ip, answer.status, text)
            reply = _reply_in(text)
        if isinstance(reply, _Unheard):
            return reply._replace(evidence=f"{self._at(ip)} {reply.evidence}")
        if isinstance(reply, str):
            self._tell(HeadSpoke(ip, None, ray_ready=False, refusal=reply))
            return None
        if reply.run_id == self._run_id and reply.epoch < self._epoch:
            # By the hello a head whose disk was lost, and whose clock is behind, raises its epoch.
            self._says_hello = True
            later = "a later one of the same run was heard before"
            return _Unheard(f"the head at {ip} is an earlier one: {later}", from_an_agent=True)
        self._take(ip, reply)
        return None

    def _not_taken(self, ip: str, status: int, text: str) -> _Unheard | None:
        """Tell an agent that says what is wrong from anything else that answers there."""
        why = _error_in(text)
        if status == 400 and why is not None:
            theirs = f"the head at {ip} cannot read what this worker sends ({why})"
            same = "run the same version of pod-agent on all nodes"
            self._tell(HeadSpoke(ip, None, ray_ready=False, refusal=f"{theirs}: {same}"))
            return None
        said = escaped(text.strip()[:200]) if why is None else why
        evidence = f"{self._at(ip)} answered {status} {said}".strip()
        return _Unheard(evidence, from_an_agent=why is not None)

    def _at(self, ip: str) -> str:
        return f"{in_url(ip)}:{self._agent_port}"

    def _take(self, ip: str, reply: Reply) -> None:
        """Pass on what the head said."""
        self._says_hello = reply.wants_hello or reply.held
        # a stranger's question is asked again until it is welcome, and not answered in a hurry
        self._news = -1 if reply.wants_hello else reply.news
        self._is_stranger = reply.held
        if not reply.held and not reply.wants_hello:  # its run may be this node's all the same
            self._on_reply(reply)
            self._epoch, self._run_id, self._followed = reply.epoch, reply.run_id, ip
        self._tell(
            HeadSpoke(
                *(ip, reply.epoch, reply.ray_ready, reply.phase, reply.verdict, reply.refusal),
                run_id="" if reply.wants_hello else reply.run_id,
                attempt=reply.attempt,
                held=reply.held,
                rank=reply.rank,
            )
        )
        for order in () if reply.held else reply.orders:
            self._tell(Ordered(order))

    async def _is_bare(self, ip: str) -> bool:
        """Say whether GCS answers where no agent does: a plain `ray start --head`."""
        if await port_answers(ip, self._gcs_port):
            self._looks_bare = 0
            return False
        self._looks_bare += 1
        return self._looks_bare >= _BARE_AFTER

    async def goodbye(self, limit: float) -> None:
        """Tell the head that this node leaves; it may not be up yet, or be gone."""
        import aiohttp  # noqa: PLC0415 - late, as on the head

        async with aiohttp.ClientSession(headers=self._headers) as session:

            async def told() -> bool | NotYet:
                ip = self._ip or await self._where()
                if ip is None:
                    return NotYet(self._unresolved)
                report = self._next_report(ip)
                unheard = await self._send(session, ip, report, 0.0)
                return True if unheard is None else NotYet(unheard.evidence)

            with anyio.move_on_after(limit):
                self.was_told = await until(told, None, step=_STEP)

    def _silence(self, evidence: str) -> None:
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        self._news = -1
        seconds = round(now - self._silent_since)
        self._tell(HeadSilent(f"{evidence} for {seconds} s" if seconds else evidence))


async def _text_of(answer: aiohttp.ClientResponse) -> str:
    """Read an answer, of whatever answers there: no more than a head's agent would ever say."""
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > _LONGEST_ANSWER:
            break
    return b"".join(parts)[:_LONGEST_ANSWER].decode(errors="replace")


def _reply_in(text: str) -> Reply | str | _Unheard:
    """Return the reply in an answer; why it is refused, or why there is none."""
    try:
        data = json.loads(text)
        return skew(data, "the head") or Reply.from_dict(data)
    except UnreadableError as error:
        is_agents = isinstance(data, dict)
        return _Unheard(f"does not speak as a head's agent ({error})", from_an_agent=is_agents)
    except (ValueError, RecursionError):
        return _Unheard("does not speak as a head's agent")


def _error_in(text: str) -> str | None:
    """Return the complaint of an agent's answer; None where no agent speaks so."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    error = data.get("error") if isinstance(data, dict) else None
    return escaped(error[:200]) if isinstance(error, str) else None
