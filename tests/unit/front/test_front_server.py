"""A front with real connections: engines that are killed, hang or are paused at any moment."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import pytest
from yarl import URL

from agent.front import front_forward, front_server
from agent.front.front_members import Front, Ordered, transition
from agent.front.front_memory import FrontMemory
from agent.job.front_protocol import FrontOrder, FrontStatus, Slot
from support.front_engines import (
    PAUSE,
    RESUME,
    UPDATE,
    StandInEngine,
    running_front,
    shorten_times,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.front_engines import FrontUnderTest

pytestmark = [pytest.mark.processes, pytest.mark.anyio]


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what takes a minute in a run take tenths of a second."""
    shorten_times(monkeypatch)


@pytest.fixture
def anyio_backend() -> str:
    """Run a test in the event loop of asyncio, as a front runs."""
    return "asyncio"


@pytest.fixture
async def front(_short_times: None) -> AsyncIterator[FrontUnderTest]:
    """Run two engines that are updated as SGLang's, and their front."""
    async with running_front() as running:
        yield running


# --- data -----------------------------------------------------------------------------------------


async def test_data_goes_to_the_own_member(front: FrontUnderTest) -> None:
    """Each slot has its member; requests are counted there."""
    replies = [await front.generate(slot) for slot in (0, 1, 1)]
    assert replies == ["e0: start", "e1: start", "e1: start"]
    assert [front.of(slot).requests for slot in (0, 1)] == [1, 2]
    assert front.of(0).errors == 0


async def test_nodes_with_ipv6() -> None:
    """Slots and members have such addresses; one that is back is reached, and gets the weights."""
    async with running_front(host="::1") as front:
        assert await front.update("7") == [200, 200]
        await front.engines[0].kill()
        assert await front.generate(0) == "e1: 7"
        await front.until(lambda: front.of(0).state == "down")
        await front.engines[0].start()
        front.engines[0].generation += 1
        await front.order()
        await front.until(lambda: front.of(0).state == "serving")
        assert await front.generate(0) == "e0: 7"


async def test_data_of_a_member_that_is_down_goes_to_the_one_with_the_fewest_requests() -> None:
    """A busy one gets none of it."""
    async with running_front(3) as front:
        _, busy, _ = front.engines
        busy.waits["/generate"] = asyncio.Event()
        waiting = front.begin(1)
        await front.until(lambda: front.of(1).waiting == 1)
        await front.order_with(front.engines[0], answers=False)
        assert await front.generate(0) == "e2: start"
        busy.waits["/generate"].set()
        assert await waiting == "e1: start"


@pytest.mark.parametrize("status", [400, 404, 500, 503])
async def test_answers_of_the_engine_are_sent_on_unchanged(status: int) -> None:
    """Also its errors; those from 500 on are counted."""
    async with running_front(1) as front:
        front.engines[0].statuses["/generate"] = status
        assert await front.post(0, "/generate") == (status, {"success": False, "by": "e0"})
        assert front.of(0).errors == (status >= 500)


async def test_path_headers_and_body_are_sent_on_unchanged(front: FrontUnderTest) -> None:
    """With its query, and without what a client of ours would add."""
    engine = front.engines[0]
    headers = {"X-Session-ID": "s1", "Authorization": "Bearer t", "Content-Encoding": "br"}
    url = URL(front.url(0, "/v1/a%2Fb?x=%20y"), encoded=True)
    async with front.http.post(url, data=b"\x00body", headers=headers) as reply:
        assert reply.status == 200
    assert engine.raw_paths == ["/v1/a%2Fb?x=%20y"]
    assert engine.bodies == [b"\x00body"]
    own = {"host", "content-length", "user-agent"}
    sent = {name.lower(): text for name, text in reply.request_info.headers.items()}
    assert sent["user-agent"] == engine.headers["user-agent"]
    assert sent.keys() == engine.headers.keys()
    for name in sent.keys() - own:
        assert engine.headers[name] == sent[name]


async def test_a_large_body_and_its_reply_pass(front: FrontUnderTest) -> None:
    """8 MiB, sent in parts with its length."""
    content = io.BytesIO(bytes(8 << 20))
    async with front.http.post(front.url(0, "/generate"), data=content) as reply:
        assert (await reply.json())["size"] == 8 << 20


async def test_a_body_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be kept to be sent again."""
    monkeypatch.setattr(front_server, "_LONGEST_BODY", 1000)
    async with running_front() as front:
        status, reply = await front.post(0, "/generate", "x" * 2000)
        assert status == 413
        assert "at most 1000 bytes" in reply["error"]
        assert front.engines[0].asked == []


async def test_a_reply_is_streamed_as_it_arrives(front: FrontUnderTest) -> None:
    """The first event reaches the client before the engine sends the second."""
    parts = front.engines[0].waits["parts"] = asyncio.Event()
    async with front.http.post(front.url(0, "/stream")) as reply:
        assert reply.headers["Content-Type"] == "text/event-stream"
        assert await reply.content.readany() == b"data: 1\n\n"
        parts.set()
        assert await reply.read() == b"data: 2\n\n"


@pytest.mark.parametrize("how", ["killed", "replaced"])
async def test_a_stream_whose_engine_ends_ends_with_an_error(
    front: FrontUnderTest, how: str
) -> None:
    """It is not sent again, and does not look complete."""
    first = front.engines[0]
    first.waits["parts"] = asyncio.Event()
    async with front.http.post(front.url(0, "/stream")) as reply:
        assert await reply.content.readany() == b"data: 1\n\n"
        if how == "killed":
            await first.kill()
        else:
            first.generation += 1
            await front.order()
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.read()
    assert front.engines[1].asked == []
    assert (front.of(0).errors, front.of(0).waiting) == (1, 0)


@pytest.mark.parametrize("how", ["killed", "refused", "broken"])
async def test_a_request_whose_engine_ends_before_its_reply_is_sent_to_another(
    front: FrontUnderTest, how: str
) -> None:
    """Killed while it computes, gone before, or a connection that breaks: no client sees it."""
    first = front.engines[0]
    if how == "broken":
        first.breaks.add("/generate")
    if how == "refused":
        await first.kill()
    first.waits["/generate"] = asyncio.Event()
    if how == "broken":
        first.waits["/generate"].set()
    asking = front.begin(0)
    if how == "killed":
        await front.until(lambda: first.asked == ["/generate"])
        await first.kill()
    assert await asking == "e1: start"
    assert front.of(0).errors == 1


async def test_a_request_that_crashes_engines_does_not_crash_all() -> None:
    """After a few of them its client gets a 502."""
    async with running_front(6) as front:
        for engine in front.engines:
            engine.breaks.add("/generate")
        status, reply = await front.post(0, "/generate")
        assert status == 502
        assert reply["error"].startswith("4 members did not answer it: ")
        assert sum(len(engine.asked) for engine in front.engines) == 4


@pytest.mark.parametrize("change", ["generation", "address"])
async def test_requests_of_a_replaced_process_go_to_others(
    front: FrontUnderTest, change: str
) -> None:
    """A frozen engine keeps its connections open: the agent's order ends them."""
    first = front.engines[0]
    first.hangs.add("*")
    asking = front.begin(0)
    await front.until(lambda: first.asked == ["/generate"])
    if change == "generation":
        first.generation += 1
        first.answers = False
    else:
        first.port += 1
    await front.order()
    assert (await asking).startswith("e1")


async def test_requests_are_held_while_no_member_serves(front: FrontUnderTest) -> None:
    """And answered once one does, by whichever it is."""
    for engine in front.engines:
        engine.answers = False
    status = await front.order()
    assert status.since > 0
    asking = [front.begin(slot) for slot in (0, 1, 1)]
    await front.until_held(3)
    assert front.log[-1] == "no member serves: requests are held"
    front.engines[1].answers = True
    assert (await front.order()).since == 0
    assert await asyncio.gather(*asking) == 3 * ["e1: start"]
    assert any(line.startswith("held up to 3 requests for 0.") for line in front.log)


async def test_a_held_request_whose_client_leaves_is_dropped(front: FrontUnderTest) -> None:
    """Nobody waits for its reply."""
    for engine in front.engines:
        await front.order_with(engine, answers=False)
    asking = front.begin(0)
    await front.until_held()
    asking.cancel()
    await front.until_held(0)
    await front.order_with(front.engines[0], answers=True)
    assert front.engines[0].asked == []


async def test_a_request_is_held_while_its_only_engine_refuses_connections() -> None:
    """The front finds by itself that it accepts them again, without the agent."""
    async with running_front(1) as front:
        (engine,) = front.engines
        await engine.kill()
        asking = front.begin(0)
        await front.until(lambda: front.states() == ["down"])
        assert "cannot connect" in front.of(0).why
        await engine.start()
        assert await asking == "e0: start"


@pytest.mark.parametrize("is_busy", [True, False])
async def test_an_engine_that_restarts_without_its_agent(
    front: FrontUnderTest, *, is_busy: bool
) -> None:
    """A process that nothing listened for a moment has the weights of its start: it is refitted."""
    first = front.engines[0]
    await front.update("1")
    if is_busy:
        first.hangs.add("/generate")
    asking = front.begin(0)
    await front.until(lambda: "/generate" in first.asked)
    await first.kill()
    if not is_busy:
        assert await asking == "e0: 1"
        asking = front.begin(0)
    assert await asking == "e1: 1"
    await front.until(lambda: front.states() == ["down", "serving"])
    first.waits[UPDATE] = asyncio.Event()
    await first.start()
    await front.until(lambda: front.states() == ["refitting", "serving"])
    assert await front.generate(0) == "e1: 1"
    first.waits[UPDATE].set()
    await front.until(lambda: front.states() == ["serving", "serving"])
    assert await front.generate(0) == "e0: 1"


async def test_a_member_behind_a_broken_link_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither accepts a connection nor refuses one; its requests go to others."""
    monkeypatch.setattr(front_forward, "CONNECT", 0.1)
    with socket.socket() as full, socket.socket() as one, socket.socket() as other:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (one, other):  # from then on it drops what comes
            filler.setblocking(False)  # noqa: FBT003 - the socket module's own signature
            filler.connect_ex(full.getsockname())
        async with running_front() as front:
            front.engines[0].port = full.getsockname()[1]
            await front.order()
            assert await front.generate(0) == "e1: start"
            assert front.states() == ["down", "serving"]


# --- verbs ----------------------------------------------------------------------------------------


async def test_verbs_go_to_exactly_their_member(front: FrontUnderTest) -> None:
    """Its own answer is the reply."""
    for path in (PAUSE, UPDATE, RESUME, "/abort_request", "/flush_cache"):
        body = {"model_path": "/w/1", "weight_version": "1"}
        status, reply = await front.post(1, path, body)
        assert (status, reply["by"]) == (200, "e1")
    assert front.engines[0].asked == []
    assert front.engines[1].asked == [PAUSE, UPDATE, RESUME, "/abort_request", "/flush_cache"]
    assert (await front.order()).version == "1"


async def test_an_engine_that_is_busy_may_refuse_to_flush(front: FrontUnderTest) -> None:
    """SGLang answers 400 while requests run; slime asks again."""
    front.engines[0].statuses["/flush_cache"] = 400
    assert (await front.post(0, "/flush_cache"))[0] == 400
    assert front.states() == ["serving", "serving"]


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        (PAUSE, {"status": "ok"}),
        (RESUME, {"status": "ok"}),
        (UPDATE, {"success": True, "message": "", "num_paused_requests": 0}),
        ("/v1/loads", {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}),
        ("/flush_cache", None),
    ],
)
async def test_the_front_answers_for_a_member_that_is_down(
    front: FrontUnderTest, path: str, reply: object
) -> None:
    """A trainer must not end for it."""
    await front.order_with(front.engines[0], answers=False)
    body = {"model_path": "/w/1", "weight_version": "1"}
    assert await front.post(0, path, body) == (200, reply)
    assert front.engines[0].asked == front.engines[1].asked == []


async def test_an_engine_that_is_killed_at_an_update_does_not_end_the_trainer(
    front: FrontUnderTest,
) -> None:
    """Its next process serves only after the front has sent it what it missed."""
    first = front.engines[0]
    assert await front.update("1") == [200, 200]
    first.waits[UPDATE] = asyncio.Event()
    updating = asyncio.create_task(front.update("2"))
    await front.until(lambda: first.asked.count(UPDATE) == 2)
    await first.kill()
    assert await updating == [200, 200]
    assert front.states()[1] == "serving"
    assert await front.generate(0) == "e1: 2"
    first.answers = False
    first.generation += 1
    await front.order()
    del first.waits[UPDATE]
    await first.start()
    await front.order_with(first, answers=True)
    await front.until(lambda: front.states() == ["serving", "serving"])
    assert await front.generate(0) == "e0: 2"
    assert front.of(0).refits == 1
    assert front.of(0).version == "2"
    assert first.asked[-3:] == [UPDATE, RESUME, "/generate"]


@pytest.mark.parametrize("path", [PAUSE, UPDATE, RESUME])
async def test_a_frozen_engine_does_not_hang_the_trainer(front: FrontUnderTest, path: str) -> None:
    """The front answers for it after a limit; it is wedged once an update or a refit hangs."""
    await front.update("1")
    first = front.engines[0]
    first.hangs.add("*")
    body = {"model_path": "/w/weight_v000002", "weight_version": "2"}
    status, reply = await front.post(0, path, body)
    assert status == 200
    assert "by" not in reply
    assert f"the front answers {path} for it: no answer within" in " ".join(front.log)
    assert front.states()[0] == ("down" if path == UPDATE else "refitting")
    await front.until(lambda: front.of(0).is_wedged)
    assert "no answer within" in front.of(0).why


async def test_a_pause_of_an_engine_that_fails_its_probe_waits_no_longer(
    front: FrontUnderTest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is frozen; an update goes on, since an engine that loads may fail its probe."""
    monkeypatch.setattr(front_server, "FIRST_VERB", 60.0)
    monkeypatch.setattr(front_server, "FIRST_UPDATE", 61.0)
    monkeypatch.setattr(front_server, "UPDATE_LEAST", 61.0)
    first = front.engines[0]
    first.hangs.add("*")
    pausing = asyncio.create_task(front.post(0, PAUSE))
    updating = asyncio.create_task(front.update("1", 0))
    await front.until(lambda: len(first.asked) == 2)
    await front.order_with(first, answers=False)
    assert await pausing == (200, {"status": "ok"})
    assert not updating.done()
    first.generation += 1
    await front.order()
    assert await updating == [200]


async def test_nothing_of_a_node_that_is_cut_off_is_waited_for(
    front: FrontUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a load that it has begun nor one that waits for a refit; then it is refitted."""
    monkeypatch.setattr(front_server, "FIRST_UPDATE", 60.0)
    monkeypatch.setattr(front_server, "UPDATE_LEAST", 60.0)
    assert await front.update("1") == [200, 200]
    first = front.engines[0]
    first.hangs.add("*")
    updating = asyncio.create_task(front.update("2", 0))
    await front.until(lambda: first.asked.count(UPDATE) == 2)
    next_one = asyncio.create_task(front.update("3", 0))
    await front.until(lambda: front.server.status().version == "3")
    await front.order_with(first, answers=False, is_cut_off=True)
    assert await updating == [200]
    assert await next_one == [200]
    assert first.asked.count(UPDATE) == 2

    first.hangs.clear()
    await front.order_with(first, answers=True, is_cut_off=False)
    await front.until(lambda: front.states() == ["serving", "stale"])
    assert front.of(0).version == "3"


@pytest.mark.parametrize("fault", ["probe fails", "update fails"])
async def test_a_request_that_an_engine_has_from_before_an_update_it_missed(
    front: FrontUnderTest, fault: str
) -> None:
    """Another one answers it once the trainer resumes: its own reply is of the older weights."""
    first = front.engines[0]
    await front.update("1")
    first.waits["/generate"] = asyncio.Event()
    waiting = front.begin(0)
    await front.until(lambda: "/generate" in first.asked)
    if fault == "probe fails":
        first.hangs.add("*")
        await front.order_with(first, answers=False)
    else:
        first.statuses[UPDATE] = 500
    for slot in (0, 1):
        await front.post(slot, PAUSE)
    await front.update("2")
    assert not waiting.done()
    for slot in (0, 1):
        await front.post(slot, RESUME)
    assert await asyncio.wait_for(waiting, 5) == "e1: 2"


async def test_a_request_of_a_node_that_is_cut_off_is_sent_to_another(
    front: FrontUnderTest,
) -> None:
    """Its connection stays open, and nobody answers: the trainer waited for a minute."""
    first = front.engines[0]
    first.hangs.add("/generate")
    asking = front.begin(0)
    await front.until(lambda: "/generate" in first.asked)
    await front.order_with(first, answers=False)
    assert not asking.done()
    await front.order_with(first, is_cut_off=True)
    assert (await asyncio.wait_for(asking, 5)).startswith(front.engines[1].name)


async def test_an_update_that_others_have_ended_long_ago_is_waited_for_no_longer(
    front: FrontUnderTest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also the first one, whose limit is not known when it begins."""
    monkeypatch.setattr(front_server, "FIRST_UPDATE", 60.0)
    front.engines[0].hangs.add("*")
    assert await front.update("1") == [200, 200]
    assert front.states() == ["down", "serving"]


async def test_a_verb_to_a_frozen_engine_ends_with_its_process(
    front: FrontUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent replaces it before the limit."""
    await front.update("1")
    first = front.engines[0]
    first.hangs.add("*")
    monkeypatch.setattr(front_server, "UPDATE_LEAST", 60.0)
    updating = asyncio.create_task(front.update("2", 0))
    await front.until(lambda: first.asked.count(UPDATE) == 2)
    first.generation += 1
    await front.order_with(first, answers=False)
    assert await updating == [200]
    assert front.states()[0] == "down"


@pytest.mark.parametrize("status", [400, 500])
async def test_an_update_that_fails_at_one_engine(front: FrontUnderTest, status: int) -> None:
    """It is the engine's own failure, since another has loaded it: it gets it again."""
    first, second = front.engines
    first.statuses[UPDATE] = status
    second.waits[UPDATE] = asyncio.Event()
    updating = asyncio.create_task(front.update("1"))
    await front.until(lambda: f"{status} " in front.of(0).why)
    second.waits[UPDATE].set()
    assert await updating == [200, 200]
    assert await front.generate(0) == "e1: 1"
    del first.statuses[UPDATE]
    await front.until(lambda: front.states() == ["serving", "serving"])
    assert await front.generate(0) == "e0: 1"


async def test_an_update_that_all_engines_refuse(front: FrontUnderTest) -> None:
    """It is the trainer's to know, such as a wrong folder; also of one that the trainer lacks."""
    for engine in front.engines:
        engine.statuses[UPDATE] = 400
    assert await front.update("1") == [400, 400]
    assert await front.update("2", 0) == [400]


async def test_an_update_of_another_form_is_sent_on_and_not_remembered(
    front: FrontUnderTest,
) -> None:
    """It names no folder."""
    front.engines[0].statuses[UPDATE] = 418
    assert (await front.post(0, UPDATE, {"update_info": 1}))[0] == 418
    assert front.states() == ["serving", "serving"]


# --- pauses ---------------------------------------------------------------------------------------


async def test_data_is_held_while_the_group_is_paused(front: FrontUnderTest) -> None:
    """From the first pause on, until the first resume."""
    await front.post(1, PAUSE)
    asking = front.begin(0)
    await front.until_held()
    assert (await front.order()).is_paused
    assert front.engines[0].asked == []
    await front.post(1, RESUME)
    assert await asking == "e0: start"
    assert "no member serves: requests are held" not in front.log


async def test_a_whole_sync_with_a_member_that_comes_back_in_the_middle(
    front: FrontUnderTest,
) -> None:
    """It is paused, updated and resumed as the others are."""
    first, second = front.engines
    first.generation += 1
    await front.order_with(first, answers=False)
    await front.post(0, f"{PAUSE}?mode=keep", {"mode": "abort"})
    await front.post(1, f"{PAUSE}?mode=keep", {"mode": "abort"})
    assert await front.update("1") == [200, 200]
    await front.order_with(first, answers=True)
    await front.until(lambda: front.states() == ["serving", "serving"])
    assert first.asked == [f"{PAUSE}?mode=keep", UPDATE]
    assert first.bodies[0] == b'{"mode": "abort"}'
    assert first.is_paused
    await front.post(0, RESUME)
    await front.post(1, RESUME)
    assert not first.is_paused
    assert await front.generate(0) == "e0: 1"
    assert second.asked == [f"{PAUSE}?mode=keep", UPDATE, RESUME]


async def test_a_member_whose_refit_outlasts_the_pause_is_resumed(front: FrontUnderTest) -> None:
    """The trainer's resume came while it loaded."""
    first = front.engines[0]
    await front.update("1")
    await front.post(0, PAUSE)
    await first.restart()
    first.waits[UPDATE] = asyncio.Event()
    await front.order()
    await front.until(lambda: first.asked[-2:] == [PAUSE, UPDATE])
    assert front.states() == ["refitting", "serving"]
    await front.post(1, RESUME)
    assert await front.generate(0) == "e1: 1"
    first.waits[UPDATE].set()
    await front.until(lambda: front.states() == ["serving", "serving"])
    assert first.asked[-1] == RESUME
    assert not first.is_paused


# --- refits ---------------------------------------------------------------------------------------


async def test_no_reply_has_older_weights_while_engines_restart() -> None:
    """Clients ask all the time; no reply is older than the newest version when it was asked."""
    async with running_front(3) as front:
        newest = 1
        await front.update("1")
        stale: list[str] = []
        is_over = False

        async def ask(slot: int) -> None:
            while not is_over:
                at_least = newest
                reply = await front.generate(slot)
                if reply.endswith("start") or int(reply.split()[-1]) < at_least:
                    stale.append(reply)

        clients = [asyncio.create_task(ask(slot % 3)) for slot in range(6)]
        for number in range(2, 10):
            engine = front.engines[number % 3]
            engine.answers = False
            engine.generation += 1
            await front.order()
            await engine.kill()
            assert await front.update(str(number)) == [200, 200, 200]
            newest = number
            await engine.start()
            await front.order_with(engine, answers=True)
            await front.until(lambda: front.states() == 3 * ["serving"])
        is_over = True
        await asyncio.gather(*clients)
        assert stale == []
        assert sum(front.of(slot).refits for slot in range(3)) == 8


async def test_a_newer_update_during_a_refit(front: FrontUnderTest) -> None:
    """The trainer's waits for the refit, so that the older weights never come last."""
    first = front.engines[0]
    await front.update("1")
    await first.restart()
    gate = first.waits[UPDATE] = asyncio.Event()
    await front.order()
    await front.until(lambda: front.states()[0] == "refitting")
    updating = asyncio.create_task(front.update("2"))
    await front.until(lambda: front.of(1).version == "2")
    assert first.asked.count(UPDATE) == 2
    gate.set()
    assert await updating == [200, 200]
    await front.until(lambda: front.states() == ["serving", "serving"])
    assert first.weights == "2"
    assert await front.generate(0) == "e0: 2"


async def test_a_refit_whose_folder_is_gone_waits_for_the_next_update(
    front: FrontUnderTest,
) -> None:
    """The member stays stale, says why, and gets no requests."""
    first = front.engines[0]
    await front.update("1")
    await first.restart()
    first.statuses[UPDATE] = 400
    await front.order()
    await front.until(lambda: front.of(0).why.startswith("last refit failed: 400"))
    assert front.states() == ["stale", "serving"]
    assert await front.generate(0) == "e1: 1"
    del first.statuses[UPDATE]
    assert await front.update("2") == [200, 200]
    assert await front.generate(0) == "e0: 2"


async def test_a_refit_that_breaks_is_tried_again(front: FrontUnderTest) -> None:
    """The process goes on, so that the agent does not start it again."""
    first = front.engines[0]
    await front.update("1")
    await first.restart()
    first.breaks.add(UPDATE)
    await front.order()
    await front.until(lambda: front.of(0).why.startswith("last refit failed"))
    first.breaks.clear()
    await front.until(lambda: front.states() == ["serving", "serving"])


async def test_a_refit_that_hangs_is_reported(front: FrontUnderTest) -> None:
    """The agent starts the member again; the next process is refitted."""
    first = front.engines[0]
    await front.update("1")
    await first.restart()
    first.hangs.add(UPDATE)
    await front.order()
    await front.until(lambda: front.of(0).is_wedged)
    assert front.states() == ["down", "serving"]
    await first.restart()
    await front.order()
    await front.until(lambda: front.states() == ["serving", "serving"])


async def test_a_refit_is_not_given_up_for_a_probe_that_fails_once(front: FrontUnderTest) -> None:
    """The member is no more wedged than before."""
    first = front.engines[0]
    await front.update("1")
    await front.post(0, PAUSE)
    await first.restart()
    first.waits[PAUSE] = asyncio.Event()
    await front.order()
    await front.until(lambda: first.asked[-1] == PAUSE)
    await front.order_with(first, answers=False)
    await front.until(lambda: "fails its probe" in front.of(0).why)
    first.answers = True
    first.waits[PAUSE].set()
    await front.order()
    await front.until(lambda: front.states() == ["serving", "serving"])
    assert not front.of(0).is_wedged


async def test_a_slot_that_the_trainer_lacks_is_updated_by_the_front(front: FrontUnderTest) -> None:
    """The trainer read its list before."""
    await front.update("1", 0)
    assert front.states() == ["serving", "stale"]
    await front.until(lambda: front.states() == ["serving", "serving"])
    assert front.engines[1].weights == "1"


async def test_a_later_attempt_holds_data_until_its_first_update(front: FrontUnderTest) -> None:
    """Engines outlive attempts, with weights of a step that the trainer has gone back from."""
    await front.update("7")
    front.attempt = 2
    status = await front.order()
    assert [one.state for one in status.members] == ["stale", "stale"]
    assert status.version == ""
    asking = front.begin(0)
    await front.until_held()
    await front.update("1", 1)
    assert await asking == "e1: 1"


# --- wedged ---------------------------------------------------------------------------------------


async def test_an_engine_that_answers_probes_and_no_request_is_wedged(
    front: FrontUnderTest,
) -> None:
    """Its requests go to the others, and it gets none until it was started again."""
    first = front.engines[0]
    first.hangs.add("/generate")
    asking = front.begin(0)
    await front.until(lambda: first.asked == ["/generate"])
    while not asking.done():
        await front.generate(1)
        await asyncio.sleep(0.01)
    assert await asking == "e1: start"
    member = (await front.order()).members[0]
    assert (member.state, member.is_wedged) == ("down", True)
    assert member.why.startswith("has answered no request for")
    await first.restart()
    member = (await front.order()).members[0]
    assert (member.state, member.is_wedged) == ("serving", False)


async def test_an_engine_that_fails_each_request_is_wedged(front: FrontUnderTest) -> None:
    """What it fails another engine answers; a request that all fail is answered by the second."""
    first, second = front.engines
    first.statuses["/generate"] = 500
    while front.of(0).is_wedged is False:
        assert await front.generate(0) == "e1: start"
        await asyncio.sleep(0.01)
    member = (await front.order()).members[0]
    assert (member.state, member.is_wedged) == ("down", True)
    assert member.why.startswith("has answered each request with an error for")
    first.statuses.clear()
    await first.restart()
    assert (await front.order()).members[0].state == "serving"

    second.statuses["/generate"] = first.statuses["/generate"] = 500
    asked = len(first.asked) + len(second.asked)
    assert (await front.post(0, "/generate"))[0] == 500
    assert len(first.asked) + len(second.asked) == asked + 2


# --- discovery ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/server_info", "/model_info", "/v1/models"])
@pytest.mark.parametrize("fault", ["", "down", "killed", "frozen"])
async def test_discovery_is_answered_by_the_own_member_or_another(
    front: FrontUnderTest, path: str, fault: str
) -> None:
    """A job that starts reads all engines' sizes once."""
    first = front.engines[0]
    if fault == "down":
        first.answers = False
        await front.order()
    elif fault == "killed":
        await first.kill()
    elif fault == "frozen":
        first.hangs.add("*")
    async with front.http.get(front.url(0, path)) as reply:
        assert (await reply.json())["by"] == ("e1" if fault else "e0")


async def test_discovery_waits_for_a_member_and_not_for_its_weights() -> None:
    """A later attempt's trainer asks before its first update."""
    async with running_front(1) as front:
        (engine,) = front.engines
        engine.answers = False
        front.attempt = 2
        await front.order()
        asking = asyncio.create_task(front.http.get(front.url(0, "/server_info")))
        await asyncio.sleep(0.05)
        assert not asking.done()
        engine.answers = True
        assert (await front.order()).members[0].state == "stale"
        assert (await asking).status == 200


# --- the agent ------------------------------------------------------------------------------------


async def test_orders_need_the_key(front: FrontUnderTest) -> None:
    """Nobody else on the head changes the members."""
    body = msgspec.json.encode(FrontOrder(9, ()))
    assert (await front.put(body, key="other"))[0] == 401
    assert (await front.put(body, key=""))[0] == 401
    assert (await front.put(body, path="/generate"))[0] == 404
    assert (await front.put(b"{}"))[0] == 400
    assert (await front.put(b'{"attempt": "1", "slots": []}'))[0] == 400
    assert len(front.server.status().members) == 2


async def test_slots_come_and_go(front: FrontUnderTest) -> None:
    """A port stays for the attempt; one that is taken is reported, and tried with each order."""
    taken = StandInEngine("other")
    await taken.start()
    slots = [
        Slot(front.ports[0], "e0", f"127.0.0.1:{front.engines[0].port}", 1, answers=True),
        Slot(taken.port, "e9", "", 0, answers=False),
    ]
    body = msgspec.json.encode(FrontOrder(1, tuple(slots)))
    _, content = await front.put(body)
    assert why_of(content, taken.port).startswith(f"cannot listen on port {taken.port}: ")
    assert front.of(2).state == "down", "no request to its port reaches it"
    assert await front.generate(1) == "e1: start"
    assert await front.generate(0) == "e0: start"
    await taken.kill()
    _, content = await front.put(body)
    assert why_of(content, taken.port) == ""
    assert sum("cannot listen" in line for line in front.log) == 1
    front.ports[1] = taken.port
    assert (await front.generate(1)).endswith(": start")

    # The next attempt lacks the second slot.
    _, content = await front.put(msgspec.json.encode(FrontOrder(2, tuple(slots[:1]))))
    assert len(msgspec.json.decode(content, type=FrontStatus).members) == 1
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", taken.port)


def why_of(content: bytes, port: int) -> str:
    """Return why the member behind a port does not serve, by a front's reply."""
    status = msgspec.json.decode(content, type=FrontStatus)
    return next(member.why for member in status.members if member.port == port)


def is_saved(memory: Path) -> bool:
    """Return whether two members with version 7 are on the disk."""
    return memory.exists() and memory.read_bytes().count(b'"loaded":1,"version":"7"') == 2


async def test_the_next_front_goes_on_with_what_members_have_loaded(tmp_path: Path) -> None:
    """A front that was killed must not let stale members serve."""
    memory = tmp_path / "front.json"
    lines: list[str] = []
    async with running_front(memory=str(memory)) as front:
        await front.update("7")
        await front.until(lambda: is_saved(memory))
        assert memory.stat().st_mode & 0o777 == 0o600
        saved = FrontMemory(str(memory), lines.append).read(0.0)
        front.engines[1].generation += 1
        following = transition(saved, Ordered(front.next_order()), 0.0)
        states = [following.state_of(member) for member in following.members.values()]
        assert states == ["serving", "stale"]
        assert following.newest is not None
        assert b"weight_v000007" in following.newest.call.body
    assert lines == [f"goes on from {memory}, in attempt 1"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"attempt": "x"}'])
def test_a_memory_that_cannot_be_read_is_left(tmp_path: Path, content: bytes) -> None:
    """The front begins anew, and says so."""
    memory = tmp_path / "front.json"
    memory.write_bytes(content)
    lines: list[str] = []
    front = FrontMemory(str(memory), lines.append).read(0.0)
    assert msgspec.structs.replace(front, began=0.0) == Front()
    assert lines[0].startswith(f"cannot read {memory}: ")


async def test_an_update_is_on_the_disk_before_it_is_sent_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next front would send an older one to members that come back."""
    memory = tmp_path / "front.json"
    may_write = threading.Event()
    write = FrontMemory._write  # noqa: SLF001 - a slow disk

    def write_later(self: FrontMemory, content: bytes) -> None:
        assert may_write.wait(10)
        write(self, content)

    async with running_front(memory=str(memory)) as front:
        monkeypatch.setattr(FrontMemory, "_write", write_later)
        updating = asyncio.create_task(front.update("7", 0))
        await front.until(lambda: "the trainer's newest weights are version 7" in front.log)
        await asyncio.sleep(0.05)
        assert front.engines[0].asked == []
        await front.order_with(front.engines[0], answers=False)
        may_write.set()
        assert await updating == [200]
        await front.order_with(front.engines[0], answers=True)
        await front.until(lambda: front.states()[0] == "serving")
        saved = FrontMemory(str(memory), print).read(0.0)
        assert saved.newest is not None
        assert saved.newest.version == "7"


async def test_a_memory_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """It is said once."""
    async with running_front(memory=str(tmp_path / "none" / "front.json")) as front:
        await front.until(lambda: any("cannot write" in line for line in front.log))
        await front.update("1")
        assert await front.generate(0) == "e0: 1"
        assert sum("cannot write" in line for line in front.log) == 1


# --- prime-rl -------------------------------------------------------------------------------------


async def test_prime_rl() -> None:
    """The version is the number of the folder; the query of the pause is sent again."""
    pause = "/pause?mode=keep&clear_cache=false"
    async with running_front(dialect="prime-rl") as front:
        first, second = front.engines
        first.answers = False
        first.generation += 1
        await front.order()
        for slot in (0, 1):
            assert (await front.post(slot, pause))[0] == 200
        for slot in (0, 1):
            body = {"weight_dir": "/run/broadcasts/step_7"}
            assert (await front.post(slot, "/update_weights", body))[0] == 200
        await front.order_with(first, answers=True)
        await front.until(lambda: front.states() == ["serving", "serving"])
        assert first.asked == [pause, "/update_weights"]
        for slot in (0, 1):
            assert (await front.post(slot, "/resume"))[0] == 200
        assert (await front.order()).version == "7"
        assert second.asked == [pause, "/update_weights", "/resume"]

        await first.restart()
        await front.order()
        await front.until(lambda: front.states() == ["serving", "serving"])
        assert first.asked[-2:] == ["/update_weights", "/resume"]
        assert front.of(0).version == "7"


async def test_what_was_there_before_the_run_is_not_removed(tmp_path: Path) -> None:
    """A trainer may begin with a folder of an earlier run, or of a model, beside its own."""
    folders = [tmp_path / f"step_{version}" for version in range(1, 5)]
    memory = str(tmp_path / "front.json")

    async def update(front: FrontUnderTest, folder: Path) -> None:
        body = {"model_path": str(folder), "weight_version": folder.name}
        await front.post(0, UPDATE, body)

    async with running_front(keep=2, memory=memory) as front:
        for folder in folders:
            folder.mkdir()
        hour_ago = time.time() - 3600.0
        os.utime(folders[0], (hour_ago, hour_ago))
        for folder in folders[:3]:
            await update(front, folder)
        await front.until(lambda: any("step_1 stays" in line for line in front.log))

    # A front that goes on from its file still knows which are the run's.
    async with running_front(keep=2, memory=memory) as front:
        await update(front, folders[3])
        await front.until(lambda: not folders[1].exists())
    assert [folder.exists() for folder in folders] == [True, False, True, True]


async def test_older_folders_are_removed(tmp_path: Path) -> None:
    """With --keep 2 the newest two stay; one that cannot be removed costs a line of the log."""
    folders = [tmp_path / f"weight_v{version:06}" for version in range(1, 5)]
    async with running_front(keep=2) as front:
        for folder in folders:
            folder.mkdir()
        folders[1].rmdir()
        folders[1].write_text("no folder")
        for version, folder in enumerate(folders):
            body = {"model_path": str(folder), "weight_version": str(version)}
            for path, given in ((PAUSE, {}), (UPDATE, body), (RESUME, {})):
                await asyncio.gather(*(front.post(slot, path, given) for slot in (0, 1)))
        await front.until(lambda: any("cannot remove" in line for line in front.log))
        await front.until(lambda: not folders[0].exists())
    assert [folder.exists() for folder in folders] == [False, True, True, True]


async def test_the_newest_folder_stays_where_the_trainer_removes_it(tmp_path: Path) -> None:
    """AReaL does once all have loaded it; with all engines down none could serve again."""
    folders = [tmp_path / f"weight_update_v{version}" for version in (1, 2)]
    kept = [tmp_path / ".pod-agent" / folder.name for folder in folders]
    async with running_front(keep=2) as front:
        for engine in front.engines:
            engine.reads_folders = True
        for folder in folders:
            folder.mkdir()
            (folder / "model.safetensors").write_text(folder.name)
            body = {"model_path": str(folder), "abort_all_requests": True}
            asked = (front.post(slot, UPDATE, body) for slot in (0, 1))
            assert [status for status, _ in await asyncio.gather(*asked)] == [200, 200]
            shutil.rmtree(folder)
        for engine in front.engines:
            await engine.restart()
        await front.order()
        await front.until(lambda: front.states() == ["serving", "serving"])
        for engine in front.engines:
            refit = json.loads(engine.bodies[engine.asked.index(UPDATE, -2)])
            assert refit == {"model_path": str(kept[1]), "abort_all_requests": True}
            assert front.of(0).version == "2"
    assert not kept[0].exists()
    assert (kept[1] / "model.safetensors").read_text() == "weight_update_v2"


async def test_the_next_front_has_the_newest_files(tmp_path: Path) -> None:
    """The trainer has removed its folder before."""
    folder = tmp_path / "weight_update_v1"
    memory = str(tmp_path / "front.json")
    async with running_front(memory=memory, keep=2) as front:
        folder.mkdir()
        (folder / "model.safetensors").touch()
        assert (await front.post(0, UPDATE, {"model_path": str(folder)}))[0] == 200
        shutil.rmtree(folder)
        await front.until(lambda: ".pod-agent" in Path(memory).read_text())
    async with running_front(memory=memory, keep=2) as front:
        for engine in front.engines:
            engine.reads_folders = True
        await front.until(lambda: front.states()[-2:] == ["serving", "serving"])


async def test_a_folder_of_which_no_other_one_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update goes on; a member that comes back loads the trainer's folder."""
    folder = tmp_path / "weight_update_v1"
    folder.mkdir()
    (folder / "model.safetensors").touch()

    def refuse(_of: str, _to: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    async with running_front(keep=2) as front:
        first = front.engines[0]
        first.reads_folders = True
        await front.order_with(first, answers=False)
        body = {"model_path": str(folder)}
        for slot in (0, 1):
            assert (await front.post(slot, UPDATE, body))[0] == 200
        await front.order_with(first, answers=True)
        await front.until(lambda: front.states() == ["serving", "serving"])
        (why,) = (line for line in front.log if line.startswith("cannot keep"))
        assert why == f"cannot keep {folder}: [Errno 1] Operation not permitted"
        assert first.weights == folder.name
