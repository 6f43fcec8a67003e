"""Mutual proof: both sides prove that they hold the secret, or are refused."""

from __future__ import annotations

import contextlib
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from aiohttp import ClientSession, web
from hypothesis import given
from hypothesis import strategies as st

from agent.decisions.worker import worker_state as w
from agent.port import proof
from agent.port.client import download_sample
from agent.port.node_network import bind
from agent.port.proof import (
    PROOF_HEADER,
    SCHEME,
    SESSION_HEADER,
    Prover,
    ReplyProof,
    Signed,
    Verifier,
)
from agent.port.protocol import REPORT_PATH, Reply, Report
from support.free_ports import free_port
from support.linked_worker import HELLO, Link, head_at
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

POST = ("POST", "/report")
BODY = b'{"id": "agent1"}'


def known(prover: Prover, server: Verifier) -> Prover:
    """Give a client the server's session, as a 401 does."""
    challenge = {SESSION_HEADER: server.session}
    assert prover.check(prover.sign(*POST), 401, challenge, b"") is ReplyProof.AGAIN
    return prover


def header(request: Signed) -> str:
    """Return the header of a signed request."""
    return request.headers["Authorization"]


def test_a_signed_request_and_its_reply() -> None:
    """Both ends accept the other's proof; neither message contains the secret."""
    server = Verifier(SECRET)
    prover = known(Prover(SECRET), server)
    request = prover.sign(*POST, BODY)
    claim = server.accept(header(request), *POST)
    assert claim is not None
    assert claim.digest == proof.digest(BODY)
    reply = {PROOF_HEADER: claim.reply_signature(SECRET.encode(), 200, b"reply")}
    assert prover.check(request, 200, reply, b"reply") is ReplyProof.PROVEN
    assert SECRET not in f"{request} {reply}"


def test_the_first_request_reveals_nothing() -> None:
    """Neither body nor signature is sent before the server has named its session."""
    assert Prover(SECRET).sign(*POST, BODY) == Signed({}, b"")


def test_without_a_secret_nothing_is_signed() -> None:
    """The body is sent at once, and any reply is believed, but a 401."""
    prover = Prover(None)
    request = prover.sign(*POST, BODY)
    assert request == Signed({}, BODY)
    assert prover.check(request, 200, {}, b"reply") is ReplyProof.PROVEN
    refused = prover.check(request, 401, {SESSION_HEADER: "s"}, b"")
    assert refused is ReplyProof.REFUSED


def test_a_replay_is_refused() -> None:
    """The same request a second time, and one that a later one overtook."""
    server = Verifier(SECRET)
    prover = known(Prover(SECRET), server)
    first, second, third = (header(prover.sign(*POST, BODY)) for _ in range(3))
    assert server.accept(first, *POST)
    assert server.accept(first, *POST) is None
    assert server.accept(third, *POST)
    assert server.accept(second, *POST) is None
    other = known(Prover(SECRET), server)
    assert server.accept(header(other.sign(*POST, BODY)), *POST), "each client counts for itself"


def test_a_restarted_server_refuses_what_was_signed_for_the_former() -> None:
    """Its session is another; the client signs anew for it."""
    former, server = Verifier(SECRET), Verifier(SECRET)
    prover = known(Prover(SECRET), former)
    request = prover.sign(*POST, BODY)
    assert server.accept(header(request), *POST) is None
    again = prover.check(request, 401, {SESSION_HEADER: server.session}, b"")
    assert again is ReplyProof.AGAIN
    assert server.accept(header(prover.sign(*POST, BODY)), *POST)


@pytest.mark.parametrize("another", [("GET", "/report"), ("POST", "/stop"), ("POST", "/report?a")])
def test_a_signature_holds_for_one_request(another: tuple[str, str]) -> None:
    """Method, path and query are part of it."""
    server = Verifier(SECRET)
    request = known(Prover(SECRET), server).sign(*POST, BODY)
    assert server.accept(header(request), *another) is None
    assert server.accept(header(request), *POST)


@pytest.mark.parametrize("number", ["01", "\uff11", "1 ", "+1", "1_", "\u00b2"])
def test_a_counter_has_one_spelling(number: str) -> None:
    """Another spelling of the same number is another request."""
    server = Verifier(SECRET)
    good = header(known(Prover(SECRET), server).sign(*POST, BODY))
    session, client, count, *rest = good.split(".")
    assert count == "1"
    assert server.accept(".".join((session, client, number, *rest)), *POST) is None
    assert server.accept(good, *POST)


@given(st.data())
def test_no_part_of_a_request_can_be_changed(data: st.DataObject) -> None:
    """Another character anywhere makes it unsigned; so does any text that is no signature."""
    server = Verifier(SECRET)
    good = header(known(Prover(SECRET), server).sign(*POST, BODY))
    at = data.draw(st.integers(0, len(good) - 1))
    put = data.draw(st.text(max_size=3).filter(lambda text: text != good[at]))
    assert server.accept(good[:at] + put + good[at + 1 :], *POST) is None
    fields = data.draw(st.lists(st.text(max_size=40), max_size=6))
    assert server.accept(f"{SCHEME} {'.'.join(fields)}", *POST) is None
    assert server.accept(good, *POST)


@pytest.mark.parametrize("session", ["", "s1", "é" * 32, "\udcff" * 32, "0" * 31 + ".", "0" * 5000])
def test_what_is_no_session_is_not_signed_for(session: str) -> None:
    """Such a text in a header would end the worker, or let its header say something else."""
    prover = Prover(SECRET)
    refused = prover.check(prover.sign(*POST), 401, {SESSION_HEADER: session}, b"")
    assert refused is ReplyProof.UNPROVEN
    assert prover.sign(*POST) == Signed({}, b"")


def test_another_secret_is_refused() -> None:
    """And a second 401 of the same session is not tried again."""
    server = Verifier(SECRET)
    prover = known(Prover("another"), server)
    request = prover.sign(*POST, BODY)
    assert server.accept(header(request), *POST) is None
    refused = prover.check(request, 401, {SESSION_HEADER: server.session}, b"")
    assert refused is ReplyProof.REFUSED


@pytest.mark.parametrize(
    "change",
    [
        lambda claim: claim.reply_signature(SECRET.encode(), 400, b"reply"),
        lambda claim: claim.reply_signature(SECRET.encode(), 200, b"other"),
        lambda claim: claim.reply_signature(SECRET.encode(), 200, None),
        lambda claim: claim._replace(number=2).reply_signature(SECRET.encode(), 200, b"reply"),
        lambda claim: claim.reply_signature(b"another", 200, b"reply"),
        lambda claim: claim.signature(SECRET.encode(), *POST),
        lambda *_: "",
        lambda *_: "\udcff",
    ],
)
def test_a_reply_to_something_else_is_unproven(change: Callable[..., str]) -> None:
    """Another status, body, request or secret, the request's own signature sent back, or none."""
    server = Verifier(SECRET)
    prover = known(Prover(SECRET), server)
    request = prover.sign(*POST, BODY)
    claim = server.accept(header(request), *POST)
    given = {PROOF_HEADER: change(claim)}
    assert prover.check(request, 200, given, b"reply") is ReplyProof.UNPROVEN


def test_too_many_clients_begin_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, and no counter is forgotten within a session."""
    monkeypatch.setattr(proof, "MOST_CLIENTS", 3)
    server = Verifier(SECRET)
    first = server.session
    requests = [header(known(Prover(SECRET), server).sign(*POST)) for _ in range(4)]
    assert all(server.accept(one, *POST) for one in requests)
    assert server.session != first
    assert not any(server.accept(one, *POST) for one in requests)


def test_a_report_s_proof_costs_little() -> None:
    """Both ends together; 0.1 ms per report is what a head with 1,000 workers can afford."""
    server, body = Verifier(SECRET), b"x" * 4096
    prover, count = known(Prover(SECRET), server), 2_000

    def one() -> None:
        request = prover.sign(*POST, body)
        claim = server.accept(header(request), *POST)
        assert claim is not None
        assert claim.digest == proof.digest(body)
        reply = {PROOF_HEADER: claim.reply_signature(SECRET.encode(), 200, body)}
        assert prover.check(request, 200, reply, body) is ReplyProof.PROVEN

    def spent() -> float:
        began = time.process_time()
        for _ in range(count):
            one()
        return (time.process_time() - began) / count

    assert min(spent() for _ in range(3)) < 0.1e-3


# --- on the wire ---------------------------------------------------------------------------------


def local_port(listener: anyio.abc.Listener[anyio.abc.SocketStream]) -> int:
    """Return where it listens."""
    return int(listener.extra(anyio.abc.SocketAttribute.local_port))  # noqa: S610 - no Django


async def _copy(source: Any, target: Any, seen: list[bytes]) -> None:  # noqa: ANN401 - two streams
    async for part in source:
        seen.append(part)
        await target.send(part)
    await target.aclose()


def test_reports_do_not_contain_the_token() -> None:
    """All bytes of both directions; a copy of them, sent again, is refused."""
    head = free_port()
    requests: list[bytes] = []
    replies: list[bytes] = []

    async def relay(near: anyio.abc.SocketStream) -> None:
        far = await anyio.connect_tcp("127.0.0.1", head)
        async with near, far, anyio.create_task_group() as both:
            both.start_soon(_copy, near, far, requests)
            both.start_soon(_copy, far, near, replies)

    async def again(data: bytes) -> bytes:
        async with await anyio.connect_tcp("127.0.0.1", head) as stream:
            await stream.send(data)
            return await stream.receive()

    async def scenario() -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        worker = Link(local_port(listener), SECRET)
        async with head_at(head, SECRET), listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, relay)
            tasks.start_soon(worker.link.run)
            await worker.last(w.HeadSpoke)
            assert worker.replies
            signed = next(one for one in requests if b"Authorization: Pod-Agent " in one)
            answer = await again(signed)
            assert answer.startswith(b"HTTP/1.1 401 ")
            assert b"token needed" in answer
            tasks.cancel_scope.cancel()

    anyio.run(scenario)
    assert SECRET.encode() not in b"".join(requests + replies)


def test_a_relay_is_not_joined() -> None:
    """Ray, which sends the token, is joined at the address that the head has signed.

    A relay that changes the address breaks the proof.
    """

    async def scenario(address: bytes) -> list[w.WorkerEvent]:
        head = free_port()

        async def relay(near: anyio.abc.SocketStream) -> None:
            far = await anyio.connect_tcp("127.0.0.1", head)
            async with near, far, anyio.create_task_group() as both:
                both.start_soon(_copy, near, far, [])
                async for part in far:
                    await near.send(part.replace(b"10.0.0.1", address))

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        worker = Link(local_port(listener), SECRET)
        async with head_at(head, SECRET), listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, relay)
            tasks.start_soon(worker.link.run)
            is_changed = address != b"10.0.0.1"
            await worker.last(*((w.HeadSilent, "not prove") if is_changed else (w.HeadSpoke,)))
            tasks.cancel_scope.cancel()
        return worker.events

    events = anyio.run(scenario, b"10.0.0.1")
    assert {one.ip for one in events if isinstance(one, w.HeadSpoke)} == {"10.0.0.1"}
    changed = anyio.run(scenario, b"10.6.6.6")
    assert not any(isinstance(one, w.HeadSpoke) for one in changed)


@contextlib.asynccontextmanager
async def impostor(
    reply: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[int]:
    """Answer at the head's name; yield the port."""
    listening = bind("127.0.0.1", 0)
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", reply)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("token", [SECRET, None])
def test_no_redirect_is_followed(token: str | None) -> None:
    """Whoever answers at the head's name cannot make a worker send requests elsewhere."""
    asked: list[str] = []

    async def redirect(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async def scenario() -> None:
        async with impostor(redirect) as port:
            await Link(port, token).run_until(w.HeadSilent)
            assert "307" in str(await download_sample("127.0.0.1", port, token, "run-1", 5.0))

    anyio.run(scenario)
    assert set(asked) == {"/report", "/sample"}


def test_a_head_with_another_token() -> None:
    """Neither follows the other, and the worker says why."""

    async def scenario() -> None:
        port = free_port()
        worker = Link(port, SECRET)
        async with head_at(port, "another"):
            said = "asks for another RAY_AUTH_TOKEN than this node's"
            await worker.run_until(w.HeadSilent, said)
        assert worker.replies == []

    anyio.run(scenario)


S1 = "5" * 32
ENDS = Reply(
    *(9, "run-1", "leaving"), ray_ready=True, head_ip="10.0.0.1", news=1, refusal="go away"
).to_dict()


@pytest.mark.parametrize("session", ["", S1, "no session", "ever another"])
@pytest.mark.parametrize(("status", "answer"), [(200, ENDS), (400, {"error": "no"})])
def test_an_impostor_is_not_followed(session: str, status: int, answer: dict[str, Any]) -> None:
    """What answers at the head's name without the token ends nothing, and is sent no token."""
    asked: list[str] = []
    count = iter(range(1_000))

    async def reply(request: web.Request) -> web.Response:
        asked.append(f"{dict(request.headers)} {await request.text()}")
        if session in {S1, "no session"} and "Authorization" not in request.headers:
            return web.json_response({}, status=401, headers={SESSION_HEADER: session})
        if session == "ever another":
            again = {SESSION_HEADER: f"{next(count):032x}"}
            return web.json_response({}, status=401, headers=again)
        return web.json_response(answer, status=status, headers={PROOF_HEADER: "0" * 64})

    async def scenario() -> None:
        async with impostor(reply) as port:
            worker = Link(port, SECRET)
            said = "does not prove that it holds this node's RAY_AUTH"
            await worker.run_until(w.HeadSilent, said)
        assert {type(one) for one in worker.events} == {w.HeadSilent}
        assert worker.replies == []

    anyio.run(scenario)
    assert asked
    assert not any(SECRET in one for one in asked)


def test_plain_ray_gets_no_token() -> None:
    """Ray would send it there in clear: such a head is joined only if that is insisted on."""

    async def scenario() -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        gcs = local_port(listener)
        port = free_port()
        wary, careless = (
            Link(port, SECRET, gcs=gcs, joins_plain_ray=joins) for joins in (False, True)
        )
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, lambda stream: stream.aclose())
            for worker in (wary, careless):
                tasks.start_soon(worker.link.run)
            await careless.last(w.HeadSpoke)
            await wary.last(w.HeadSilent, "set AGENT_ALLOW_INSECURE=1")
            tasks.cancel_scope.cancel()
        assert {type(one) for one in wary.events} == {w.HeadSilent}

    anyio.run(scenario)


def test_another_body_is_refused() -> None:
    """The signed header alone opens nothing: the body has to be the one that was signed."""

    async def scenario() -> None:
        port = free_port()
        url = f"http://127.0.0.1:{port}{REPORT_PATH}"
        content = json.dumps(Report("a1", "127.0.0.1", "x", hello=HELLO).to_dict()).encode()
        send = partial(_send, url, Prover(SECRET))
        async with head_at(port, SECRET), ClientSession() as session:
            assert (await send(session, content, content))[0] == 401
            assert (await send(session, content, content))[0] == 200
            status, text = await send(session, content, content.replace(b"a1", b"a2"))
            assert status == 401
            assert "not the one that was signed" in text

    anyio.run(scenario)


async def _send(
    url: str, prover: Prover, session: ClientSession, signed: bytes, sent: bytes
) -> tuple[int, str]:
    request = prover.sign("POST", REPORT_PATH, signed)
    headers = {"Content-Type": "application/json", **request.headers}
    async with session.post(url, data=sent, headers=headers) as answer:
        body = await answer.read()
        prover.check(request, answer.status, answer.headers, body)
        return answer.status, body.decode()
