"""The front: one port for each member of a service, so that trainers reach it at all times.

1. The agent sends which member stands behind which port, and whether it answers (`PUT /front`).
   Without the agent the front goes on with what it has.
2. Data goes to the port's own member, else to the one with the fewest requests. A request whose
   member ends before its reply is sent to another, as is one whose member has missed an update when
   the trainer resumes; where none serves, it is held. What one fails (5xx), another one gets once.
3. Verbs of the trainer (weight_dialects.py) go to exactly their member. For one that is down, hangs
   or breaks the connection the front answers with 200, and the member is stale: it serves again
   only after the front has sent it the newest update. So it does for one that refuses an update
   which others have loaded.
4. A member that answers no request, or each with an error, while others answer is reported as
   wedged: the agent restarts it.

front_members.py decides who serves, front_traffic.py who is wedged; here is what acts.
"""

from __future__ import annotations

import hmac
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec
from aiohttp import web
from msgspec.structs import replace

from agent.base.text import escaped
from agent.base.typed import decode
from agent.front import front_folders
from agent.front.front_forward import BrokenError, Forwarder, MemberReply, UnreachableError
from agent.front.front_members import (
    START,
    Call,
    Event,
    FolderKept,
    FolderRemoved,
    Member,
    Ordered,
    Reached,
    RefitBegan,
    RefitEnded,
    Result,
    Update,
    VerbCame,
    VerbEnded,
    Wedged,
    due,
    is_loadable,
    is_numbered,
    lost,
    outdated,
    sentences,
    silent,
    superseded,
    transition,
)
from agent.front.front_traffic import Traffic
from agent.job.front_protocol import (
    CONTROL_PATH,
    LIVE_PATH,
    FrontOrder,
    FrontStatus,
    Slot,
    SlotStatus,
)
from agent.job.weight_dialects import Dialect, EngineVerb, update_of, with_folder
from agent.record.background import result_in_thread
from agent.serving.bodies import Bodies
from agent.serving.connections import PortRunner, PortSite, suspend_deadline
from agent.serving.program import listening_on
from agent.serving.replies import error_reply, reply_to_error

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence

    from agent.front.front_memory import FrontMemory
    from agent.serving.bodies import Body

FIRST_VERB = 20.0
"""Seconds for a pause, a resume or another verb: engines handle them between two steps of their
loop, of which a long prefill takes seconds.
"""
VERB_LEAST = 3.0
VERB_TIMES = 5
"""After others: so many times the longest so far. Who is late is refitted, which costs little."""
FIRST_UPDATE = 720.0  # For an update while none has ended yet: prime-rl allows as much.
UPDATE_LEAST = 120.0
"""For an update after others have ended: one engine may read the folder from a disk, others from
memory. Most frozen engines are replaced before, since they do not answer the agent's probe.
"""
UPDATE_TIMES = 5  # An update on a busy disk may take so many times the longest one so far.
DISCOVERY = 25.0  # SGLang's /health_generate takes up to 20 s.
LOOK = 0.5  # Between two looks for wedged members, members that are back, and refits that are due
TRY_AGAIN = 1.0  # Until a request that broke at each member is sent to one of them again
MOST_BROKEN = 4
"""Members at which a request may break before its client gets a 502: a request that crashes engines
must not crash all of them.
"""
_LONGEST_BODY = 64 << 20
_MOST_MEMORY = 1 << 30  # Of all bodies, which are kept until the reply begins
_LAST_REQUESTS = 1.0  # Twice this is waited for at the end, within the 3 s of a stop.
_KEEP_WITHIN = 30.0  # Seconds to link the files of an update; a trainer waits for it
_SHOWN = 200  # characters of an engine's answer to an update
_REPEATED_HEADERS = ("Content-Type", "Authorization")
_JSON = (("Content-Type", "application/json"),)
_Process = tuple[int, tuple[int, str]]
"""A port, and the process behind it."""


class FrontServer:
    """All slots of one service; `say` writes a sentence to the log.

    It removes the folders of older updates than the newest `keep`, and has the newest one stay
    where the trainer removes it; 0: neither.
    """

    def __init__(  # noqa: PLR0913 - all that a front is made of
        self,
        dialect: Dialect,
        hosts: Sequence[str],
        key: str,
        memory: FrontMemory,
        say: Callable[[str], None],
        keep: int = 0,
    ) -> None:
        self._verbs = {verb.path: verb for verb in dialect.verbs}
        self._resume = Call(dialect.resume[0], dialect.resume[1].encode(), _JSON)
        self._hosts = hosts
        self._key = key.encode()
        self._memory = memory
        self._say = say
        self._keep = keep
        self._bodies = Bodies(_LONGEST_BODY, _MOST_MEMORY)
        self._traffic = Traffic()
        self._front = memory.read(time.monotonic())
        self._serving: dict[int, Member] = {}
        self._changed = anyio.Event()
        """Set when requests that are held can be sent."""
        self._taken = anyio.Event()
        """Set at each change."""
        self._none_serves_since = time.time()
        self._held = 0
        self._held_since: float | None = None
        self._most_held = 0
        self._sites: dict[int, list[PortSite]] = {}
        self._unbound: dict[int, str] = {}
        self._ordering = anyio.Lock()
        self._loads: dict[_Process, anyio.Lock] = {}
        self._keeping = anyio.Lock()
        self._kept = START
        """The number of the last update whose folder was to be kept."""
        self._calls: dict[int, dict[anyio.CancelScope, float]] = {}
        """The verbs that each member has not answered; when one that loads began, else 0."""
        self._longest_update = 0.0
        self._longest_verb = 0.0
        self._control_port = 0

    async def serve(
        self, control: Sequence[socket.socket], stop: anyio.Event, ready: Callable[[], None]
    ) -> None:
        """Accept orders on these sockets, and serve the slots until `stop`."""
        app = web.Application(middlewares=[suspend_deadline])
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = PortRunner(
            app, self._say, shutdown_timeout=_LAST_REQUESTS, handler_cancellation=True
        )
        await self._runner.setup()
        async with Forwarder() as self._forwarder, anyio.create_task_group() as self._tasks:
            try:
                self._control_port = await self._open(control)
                self._tasks.start_soon(self._look)
                self._tasks.start_soon(self._memory.write_all)
                ready()
                await stop.wait()
            finally:
                await self._runner.cleanup()
                self._tasks.cancel_scope.cancel()

    @property
    def control_port(self) -> int:
        """The port on which the agent's orders arrive."""
        return self._control_port

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, by its port and its path."""
        if request.transport is None:
            return web.Response()  # its client is gone
        port = int(request.transport.get_extra_info("sockname")[1])
        verb = self._verbs.get(request.path)
        try:
            async with self._bodies.read(request) as body:
                if port == self._control_port:
                    return await self._control(request, body)
                if verb is None:
                    return await self._data(request, port, body)
                if verb.kind == "discovery":
                    return await self._discovery(request, port, body)
                return await self._verb(request, port, verb, body)
        except web.HTTPException as refusal:
            return reply_to_error(refusal)

    # --- The agent --------------------------------------------------------------------------------

    async def _control(self, request: web.Request, body: Body) -> web.Response:
        """Take an order of the agent, and reply with the state of all members."""
        if (request.method, request.path) == ("GET", LIVE_PATH):
            return web.Response(text="ok")
        if (request.method, request.path) != ("PUT", CONTROL_PATH):
            return error_reply(404, f"expected PUT {CONTROL_PATH}")
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode(errors="replace"), self._key):
            return error_reply(401, "Authorization: expected `Bearer` and the key of this front")
        try:
            order = decode(bytes(body.data), FrontOrder)
        except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
            return error_reply(400, f"body: {problem}")
        async with self._ordering:
            self._apply(Ordered(order))
            await self._open_slots()
        return web.Response(
            body=msgspec.json.encode(self.status()), content_type="application/json"
        )

    def status(self) -> FrontStatus:
        """Return the state of all members."""
        newest = self._front.newest
        return FrontStatus(
            members=tuple(self._slot_status(port, one) for port, one in self._members()),
            version="" if newest is None else newest.version,
            held=self._held,
            since=self._none_serves_since,
            is_paused=self._front.pause is not None,
        )

    def _members(self) -> list[tuple[int, Member]]:
        return [*self._front.members.items()]

    def _slot_status(self, port: int, member: Member) -> SlotStatus:
        traffic = self._traffic.of(port)
        return SlotStatus(
            port=port,
            generation=member.slot.generation,
            state="down" if port in self._unbound else self._front.state_of(member),
            version=member.version,
            requests=traffic.requests,
            errors=traffic.errors,
            waiting=len(traffic.flights),
            refits=member.refits,
            why=self._unbound.get(port, member.why),
            is_wedged=member.is_wedged,
        )

    async def _open_slots(self) -> None:
        """Listen on the ports of all slots, and no more on others."""
        wanted = {port: member.slot for port, member in self._front.members.items()}
        for port in [*self._sites.keys() - wanted.keys() - {self._control_port}]:
            for site in self._sites.pop(port):
                await site.stop()
        self._unbound = {port: why for port, why in self._unbound.items() if port in wanted}
        for port in wanted.keys() - self._sites.keys():
            await self._open_slot(wanted[port])

    async def _open_slot(self, slot: Slot) -> None:
        """Listen on a slot's port, or note why not: the next order tries it again."""
        try:
            listeners = listening_on(self._hosts, slot.port)
        except OSError as problem:
            why = f"cannot listen on port {slot.port}: {problem.strerror or problem}"
            if slot.port not in self._unbound:
                self._say(f"{slot.name}: {why}")
            self._unbound[slot.port] = why
            return
        self._unbound.pop(slot.port, None)
        await self._open([*listeners.values()])

    async def _open(self, listeners: Sequence[socket.socket]) -> int:
        """Serve on the sockets of one port; return it."""
        port = int(listeners[0].getsockname()[1])
        self._sites[port] = [PortSite(self._runner, listener) for listener in listeners]
        for site in self._sites[port]:
            await site.start()
        return port

    # --- Events -----------------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        """Take an event, and send the updates that are due then."""
        self._take(event)
        self._start_refits()
        self._remove_folders()

    def _take(self, event: Event) -> None:
        """Make an event part of the state, and log and save what it changes."""
        now = time.monotonic()
        before = self._front
        after = transition(before, event, now)
        if after == before:
            return
        self._front = after
        self._taken.set()
        self._taken = anyio.Event()
        for sentence in sentences(before, after):
            self._say(sentence)
        self._traffic.pause(is_paused=after.pause is not None, now=now)
        for port in lost(before, after):
            self._cancel(port)
            self._loads.pop((port, before.members[port].process), None)
        for port in outdated(before, after):
            self._traffic.cancel(port)
        for port, is_cut_off in silent(before, after):
            # A frozen engine: the trainer's verbs wait no longer. One that loads or generates may
            # fail its probe, too, but its node goes on to report.
            if is_cut_off:
                self._cancel(port)
            else:
                self._end_calls(port, loads_too=False)
        self._memory.save(after)

        # Who may get data now?
        serving = after.serving()
        if serving:
            self._none_serves_since = 0.0
        elif not self._none_serves_since:
            self._none_serves_since = time.time()
        can_be_sent = after.pause is None and (serving != self._serving or before.pause is not None)
        self._serving = serving
        self._note_held()
        if can_be_sent:
            self._changed.set()
            self._changed = anyio.Event()

    def _start_refits(self) -> None:
        """Begin to send the newest update to the members that have missed it."""
        now = time.monotonic()
        newest = self._front.newest
        while newest is not None:
            member = next(due(self._front, now), None)
            if member is None:
                return
            self._take(RefitBegan(member.slot.port))
            self._tasks.start_soon(self._refit, member, newest)

    def _remove_folders(self) -> None:
        """Begin to remove the folders of updates that no member needs any more."""
        for folder in [*superseded(self._front, self._keep)]:
            self._take(FolderRemoved(folder))
            self._tasks.start_soon(self._remove_folder, folder)

    async def _remove_folder(self, folder: str) -> None:
        try:
            is_old = await result_in_thread(
                partial(front_folders.remove, folder, self._front.began)
            )
            if is_old:
                self._say(f"{folder} stays: it was there before the run")
        except FileNotFoundError:
            return  # the trainer has removed it
        except OSError as problem:
            self._say(f"cannot remove {folder}: {problem.strerror or problem}")

    async def _keep_folder(self, update: Update) -> None:
        """Have the files of an update stay: its folder may go once all members are answered for."""
        async with self._keeping:
            if not self._keep or update.number <= self._kept or not is_numbered(update.folder):
                return
            self._kept = update.number
            try:
                kept = await result_in_thread(
                    partial(front_folders.keep, update.folder), _KEEP_WITHIN
                )
            except OSError as problem:
                self._say(f"cannot keep {update.folder}: {problem.strerror or problem}")
            else:
                self._apply(FolderKept(update.number, kept))

    def _cancel(self, port: int) -> None:
        """Cancel what was sent to a member: it gets no more requests."""
        self._traffic.cancel(port)
        self._end_calls(port)

    def _end_calls(self, port: int, *, loads_too: bool = True) -> None:
        """Have the front answer the verbs that a member has not answered."""
        for scope, load_began in [*self._calls.get(port, {}).items()]:
            if loads_too or not load_began:
                scope.cancel()

    async def _look(self) -> None:
        """Look at intervals for wedged members, for members that are back, and for refits."""
        while True:
            await anyio.sleep(LOOK)
            now = time.monotonic()
            for port, why in [*self._traffic.wedged(now)]:
                member = self._front.members.get(port)
                if member is not None and not member.is_wedged:
                    self._apply(Wedged(port, member.process, why))
            async with anyio.create_task_group() as tries:
                for _, member in self._members():
                    if member.is_unreachable and member.slot.address:
                        tries.start_soon(self._try_to_reach, member)
            self._start_refits()

    async def _try_to_reach(self, member: Member) -> None:
        """Look whether a member accepts a connection that refused or broke one."""
        with anyio.move_on_after(LOOK):
            try:
                await self._forwarder.reach(member.slot.address)
            except UnreachableError as problem:
                self._note_unreachable(member, problem)
                return
            current = self._front.members.get(member.slot.port)
            if current is not None and current.is_unreachable:
                self._apply(Reached(member.slot.port, member.process, is_reached=True))

    def _note_unreachable(self, member: Member, problem: UnreachableError) -> None:
        """Note that a member accepts no connections, and whether its process has ended."""
        self._apply(
            Reached(
                *(member.slot.port, member.process),
                is_reached=False,
                why=str(problem),
                has_ended=problem.has_ended,
            )
        )

    # --- Data -------------------------------------------------------------------------------------

    async def _data(self, request: web.Request, port: int, body: Body) -> web.StreamResponse:
        """Have a request answered by a member that serves; hold it while there is none."""
        broken: set[_Process] = set()
        number_broken = 0
        has_failed = False
        while True:
            member = self._choose(port, broken) or await self._wait_for_member(port, broken)
            reply = await self._send(request, body, member)
            broken.add((member.slot.port, member.process))
            if isinstance(reply, web.StreamResponse):
                # Which of both is at fault, request or member? Another member's answer tells.
                is_failure = isinstance(reply, web.Response) and reply.status >= 500
                if has_failed or not is_failure or self._choose(port, broken) is None:
                    return reply
                has_failed = True
                continue
            number_broken += isinstance(reply, BrokenError)
            if number_broken >= MOST_BROKEN:
                return error_reply(502, f"{number_broken} members did not answer it: {reply}")

    def _choose(self, port: int, broken: set[_Process]) -> Member | None:
        """Return a member that serves, the port's own first."""
        if self._front.pause is not None:
            return None
        own = self._serving.get(port)
        if own is not None and (not broken or (port, own.process) not in broken):
            return own
        others = [at for at, one in self._serving.items() if (at, one.process) not in broken]
        return self._serving[self._traffic.least_busy(others)] if others else None

    async def _wait_for_member(self, port: int, broken: set[_Process]) -> Member:
        """Hold a request until a member serves."""
        self._held += 1
        self._note_held()
        try:
            while True:
                with anyio.move_on_after(TRY_AGAIN if broken else None) as pause:
                    await self._changed.wait()
                if pause.cancelled_caught:
                    broken.clear()
                member = self._choose(port, broken)
                if member is not None:
                    return member
        finally:
            self._held -= 1
            self._note_held()

    def _note_held(self) -> None:
        """Log when requests begin to be held for a member, and when that ends."""
        is_held = self._held > 0 and self._front.pause is None and not self._serving
        self._most_held = max(self._most_held, self._held)
        if is_held and self._held_since is None:
            self._held_since = time.monotonic()
            self._most_held = self._held
            self._say("no member serves: requests are held")
        elif not is_held and self._held_since is not None:
            seconds = time.monotonic() - self._held_since
            self._held_since = None
            self._say(f"held up to {self._most_held} requests for {seconds:.1f} s")

    async def _send(
        self, request: web.Request, body: Body, member: Member
    ) -> web.StreamResponse | Exception:
        """Send a request to a member; return its reply, or why there is none."""
        port = member.slot.port
        traffic = self._traffic
        with anyio.CancelScope() as scope:
            flight = traffic.begin(port, time.monotonic(), scope.cancel)
            reply: web.StreamResponse | Exception = BrokenError(
                "it was replaced, is wedged, is cut off, or missed an update"
            )

            def note_byte() -> None:
                traffic.note_byte(flight, time.monotonic())

            try:
                reply = await self._forwarder.pass_on(
                    request, body.data, member.slot.address, note_byte
                )
            except UnreachableError as problem:
                reply = problem
                self._note_unreachable(member, problem)
            except BrokenError as problem:
                reply = problem
                self._tasks.start_soon(self._try_to_reach, member)
            finally:
                is_answered = isinstance(reply, web.StreamResponse)
                is_error = isinstance(reply, Exception) or reply.status >= 500
                traffic.end(flight, time.monotonic(), is_answered=is_answered, is_error=is_error)
        if isinstance(reply, Exception) and flight.has_byte:
            # The client sees the end of its connection, not a reply that looks complete.
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        return reply

    # --- The trainer's verbs ----------------------------------------------------------------------

    async def _discovery(self, request: web.Request, port: int, body: Body) -> web.Response:
        """Have a question answered by the port's own member, else by another one that is up."""
        while True:
            up = [one for _, one in self._members() if one.is_up]
            up.sort(key=lambda member: member.slot.port != port)
            for member in up:
                answer = await self._call(
                    *(member, DISCOVERY, request.method, request.raw_path),
                    *(body.data, request.headers.items()),
                )
                if isinstance(answer, MemberReply):
                    return _as_reply(answer)
            await anyio.sleep(TRY_AGAIN)

    async def _verb(
        self, request: web.Request, port: int, verb: EngineVerb, body: Body
    ) -> web.Response:
        """Send a verb to its member, or answer for it."""
        content = bytes(body.data)
        folder, version = update_of(verb, content) if verb.kind == "update" else ("", "")
        counts = verb.kind in {"pause", "resume"} or bool(folder)
        if counts:
            headers = tuple(
                (name, request.headers[name])
                for name in _REPEATED_HEADERS
                if name in request.headers
            )
            call = Call(request.raw_path, content, headers)
            self._apply(VerbCame(port, verb.kind, call, folder, version))
        newest = self._front.newest if folder else None
        member = self._front.members.get(port)
        if member is None or not member.takes_verbs:
            if newest is not None:
                await self._keep_folder(newest)
            return _minimal(verb)

        ended = VerbEnded(
            port,
            member.process,
            verb.kind,
            "lost",
            number=START if newest is None else newest.number,
            version=version,
            why=f"{verb.path}: the trainer disconnected",
        )
        try:
            if newest is not None:
                await self._memory.written()  # a next front must not refit with older weights
                await self._keep_folder(newest)
            answer = await self._send_verb(request, verb, member, content)
            result, why = _result_of(answer)
            ended = replace(ended, result=result, why=f"{verb.path}: {why}")
        finally:
            if counts or ended.result == "late":
                self._apply(ended)
        is_own_failure = counts and result == "lost"
        if folder and result == "refused":
            is_own_failure = await self._is_loaded(ended.number)
        if not isinstance(answer, MemberReply) or is_own_failure:
            self._say(f"{member.slot.name}: the front answers {verb.path} for it: {why}")
            return _minimal(verb)
        return _as_reply(answer)

    async def _is_loaded(self, number: int) -> bool:
        """Wait until it is known whether any member loads an update, and return it."""
        while True:
            is_loaded = is_loadable(self._front, number, time.monotonic())
            if is_loaded is not None:
                return is_loaded
            with anyio.move_on_after(LOOK):
                await self._taken.wait()

    async def _send_verb(
        self, request: web.Request, verb: EngineVerb, member: Member, content: bytes
    ) -> MemberReply | Exception:
        """Send a verb to a process; an update waits for a refit that is under way."""
        call = (request.method, request.raw_path, content, request.headers.items())
        if verb.kind != "update":
            limit = self._update_limit() if verb.takes_long else self._verb_limit()
            sent_at = time.monotonic()
            answer = await self._call(member, limit, *call)
            if isinstance(answer, MemberReply) and not verb.takes_long:
                self._longest_verb = max(self._longest_verb, time.monotonic() - sent_at)
            return answer
        limit = self._update_limit()
        began = time.monotonic()
        answer = _late(limit)
        with anyio.move_on_after(limit):
            async with self._load_of(member):
                answer = await self._call(member, limit, *call)
        self._note_update(answer, time.monotonic() - began)
        return answer

    async def _call(  # noqa: PLR0913 - a request's parts
        self,
        member: Member,
        limit: float,
        method: str,
        path: str,
        content: bytes | bytearray,
        headers: Iterable[tuple[str, str]],
    ) -> MemberReply | Exception:
        """Send a request to a process; return its answer, or why there is none."""
        port = member.slot.port
        current = self._front.members.get(port)
        if current is None or current.process != member.process:
            return BrokenError("its process was replaced")
        if current.slot.is_cut_off:
            return BrokenError("its node is silent")
        scopes = self._calls.setdefault(port, {})
        began = anyio.current_time()
        with anyio.move_on_after(limit) as scope:
            scopes[scope] = began if limit >= UPDATE_LEAST else 0.0
            try:
                return await self._forwarder.call(
                    member.slot.address, method, path, content, headers
                )
            except UnreachableError as problem:
                self._note_unreachable(member, problem)
                return problem
            except BrokenError as problem:
                self._tasks.start_soon(self._try_to_reach, member)
                return problem
            finally:
                del scopes[scope]
        if anyio.current_time() < scope.deadline:
            return BrokenError("its process was replaced, fails its probe, or its node is silent")
        return _late(scope.deadline - began)

    # --- Refits -----------------------------------------------------------------------------------

    async def _refit(self, member: Member, update: Update) -> None:
        """Send an update to a process that has missed it."""
        limit = self._update_limit()
        began = time.monotonic()
        answer: MemberReply | Exception = _late(limit)
        with anyio.move_on_after(limit):
            async with self._load_of(member):
                answer = await self._load(member, update, limit)
        self._note_update(answer, time.monotonic() - began)
        result, why = _result_of(answer)
        self._apply(RefitEnded(member.slot.port, member.process, update, result, why))

    async def _load(self, member: Member, update: Update, limit: float) -> MemberReply | Exception:
        """Send pause, update and resume, as the trainer has or has not paused the members."""
        if self._front.pause is not None:
            paused = await self._repeat(member, self._front.pause, FIRST_VERB)
            if isinstance(paused, Exception):
                return paused
        loaded = await self._repeat(member, await self._refit_call(update), limit)
        if _result_of(loaded)[0] == "done" and self._front.pause is None:
            # It may have missed a resume, also while it loaded.
            resumed = await self._repeat(member, self._resume, FIRST_VERB)
            if isinstance(resumed, Exception):
                return resumed
        return loaded

    async def _refit_call(self, update: Update) -> Call:
        """Return the request of an update, with the front's own folder if it has one."""
        await self._keep_folder(update)
        newest = self._front.newest
        if newest is None or newest.number != update.number or not newest.kept:
            return update.call
        verb = self._verbs[update.call.path.partition("?")[0]]
        return replace(update.call, body=with_folder(verb, update.call.body, newest.kept))

    async def _repeat(self, member: Member, call: Call, limit: float) -> MemberReply | Exception:
        return await self._call(member, limit, "POST", call.path, call.body, call.headers)

    def _load_of(self, member: Member) -> anyio.Lock:
        """Return the lock of a process's loads: one with older weights must not end last."""
        return self._loads.setdefault((member.slot.port, member.process), anyio.Lock())

    def _verb_limit(self) -> float:
        """Return how long a pause and the like may take, by those before."""
        if not self._longest_verb:
            return FIRST_VERB
        return min(FIRST_VERB, max(VERB_LEAST, VERB_TIMES * self._longest_verb))

    def _update_limit(self) -> float:
        """Return how long an update may take, by those before."""
        if not self._longest_update:
            return FIRST_UPDATE
        return max(UPDATE_LEAST, UPDATE_TIMES * self._longest_update)

    def _note_update(self, answer: MemberReply | Exception, seconds: float) -> None:
        """Note how long an update took: it limits those that have not ended, too."""
        if _result_of(answer)[0] != "done":
            return
        self._longest_update = max(self._longest_update, seconds)
        for scopes in self._calls.values():
            for scope, load_began in scopes.items():
                if load_began:
                    scope.deadline = load_began + self._update_limit()


def _late(limit: float) -> TimeoutError:
    return TimeoutError(f"no answer within {limit:.0f} s")


def _result_of(answer: MemberReply | Exception) -> tuple[Result, str]:
    """Return how a verb ended, and what the member answered if it failed."""
    if isinstance(answer, TimeoutError):
        return "late", str(answer)
    if isinstance(answer, Exception):
        return "lost", str(answer)
    text = answer.body[:_SHOWN].decode(errors="replace")
    why = f"{answer.status} {escaped(text)}"
    if answer.status >= 500:
        return "lost", why
    if answer.status >= 300 or _says_failure(answer.body):
        return "refused", why
    return "done", ""


def _says_failure(content: bytes) -> bool:
    """Return whether a reply is JSON whose `success` is false."""
    try:
        return decode(content, dict[str, object]).get("success") is False
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False  # a text or nothing: its status says enough


def _minimal(verb: EngineVerb) -> web.Response:
    return web.Response(text=verb.reply, content_type="application/json")


def _as_reply(answer: MemberReply) -> web.Response:
    headers = {"Content-Type": answer.content_type}
    return web.Response(status=answer.status, body=answer.body, headers=headers)
