"""Probes of services under the job: misses, failures, busy services, and outages."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from msgspec.structs import replace

from agent.decisions.durable import Durable
from agent.decisions.shared import HERE, Outage
from agent.job.services import LivenessCheck, LogPattern, Placeholders, ScoringProbe, ServiceSpec
from agent.processes.connecting import ConnectionRefused, PerhapsBusy, port_answers
from agent.processes.probing import ReadinessProbe, ServerReply, reply_evidence, until_dead
from agent.processes.process import cpu_of
from support.heads import (
    REWARD,
    RUNNING,
    SERVED,
    TICK,
    WITH_REWARD,
    Started,
    Trace,
    goal,
    job,
    lost,
    pending,
    ready,
)
from support.reward_process import reward_server

LATE = PerhapsBusy("no answer within 60 s")
FULL = PerhapsBusy("it answered 503: busy")
WRONG = "it answered 502: upstream: connection refused"
CLOSED = ConnectionRefused("connection refused")


@pytest.mark.parametrize(
    ("beats", "dead"),
    [
        ([(WRONG, False), (WRONG, False)], ""),
        ([(WRONG, False), (WRONG, True), (WRONG, False)], f"{WRONG}, 3 times in a row"),
        ([(WRONG, False), (WRONG, False), ("", False), (WRONG, False)], ""),
        ([(LATE, False)] * 3, f"{LATE}, 3 times in a row"),
        ([(LATE, True)] * 9, ""),
        ([(FULL, True)] * 9, ""),
        ([(FULL, False)] * 3, f"{FULL}, 3 times in a row"),
        ([("no answer is right", True)] * 3, "no answer is right, 3 times in a row"),
        ([(CLOSED, True)], CLOSED),
        ([(LATE, False), (LATE, True), (LATE, False), (LATE, False)], f"{LATE}, 3 times in a row"),
    ],
)
def test_a_pulse(beats: list[tuple[str, bool]], dead: str) -> None:
    """Refused is dead at once; slow while it uses CPU is busy; wrong several times is dead."""
    last = ConnectionRefused("the last beat")
    left, used = [*beats, (last, False)], 0.0

    async def ask(_limit: float) -> str:
        nonlocal used
        evidence, worked = left.pop(0)
        used += 60.0 if worked else 0.0
        return evidence

    alive = LivenessCheck(every=0.001, within=60.0, misses=3)
    found = anyio.run(until_dead, ask, alive, lambda: used)
    assert found == (dead or last)
    assert type(found) is str  # it goes into messages and records
    assert len(left) == (1 if dead else 0)


def test_a_stopped_server_is_dead() -> None:
    """SIGSTOP: it accepts connections, answers none, and uses no CPU."""
    alive = LivenessCheck(every=0.1, within=0.3, misses=2)
    with reward_server() as server:
        probe = ReadinessProbe(ScoringProbe(server.url), Placeholders(), Path(os.devnull))

        async def trace() -> str:
            assert await probe.ask(5.0) == ""
            os.kill(server.process.pid, signal.SIGSTOP)
            with anyio.fail_after(10):
                return await until_dead(probe.ask, alive, lambda: cpu_of(server.process.pid))

        assert anyio.run(trace) == "no answer within 0.3 s, 2 times in a row"
        os.kill(server.process.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (502, "connection refused", str),
        (500, "no answer within 10 s", str),
        (503, "connection refused", PerhapsBusy),
        (429, "", PerhapsBusy),
    ],
)
def test_the_code_of_a_reply_counts(status: int, body: str, kind: type[str]) -> None:
    """Whatever its body says: that of a proxy quotes what another server did."""
    evidence = ServerReply(status, body.encode(), {}).refusal
    assert type(evidence) is kind


def test_a_closed_port_is_refused() -> None:
    """By HTTP and by TCP."""
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    url = f"http://127.0.0.1:{port}/"
    assert type(anyio.run(reply_evidence, url, None, "")) is ConnectionRefused
    assert type(anyio.run(port_answers, "127.0.0.1", port)) is ConnectionRefused


def test_cpu_of_a_tree() -> None:
    """All descendants of a shell count, and no process that has exited."""
    spin = "import time\nwhile time.process_time() < 0.2: pass\nprint('spun', flush=True); input()"
    command = ["/bin/sh", "-c", f'{sys.executable} -c "{spin}"; true']
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"spun\n"
        assert cpu_of(shell.pid) >= 0.15
        shell.communicate(b"\n")
    assert cpu_of(shell.pid) == 0


def test_what_only_logs_is_not_asked_again() -> None:
    """A line in the log was written once; other conditions are probed again."""
    spec = ServiceSpec("logger", "x", ("x",), LogPattern("ready"), 9.0, "within")
    assert spec.asked_again is None
    assert WITH_REWARD.services[0].asked_again == LivenessCheck()


def test_outages_are_recorded() -> None:
    """From the time when a service is no longer ready until it answers again."""
    dead = lost(REWARD, "no answer within 60 s, 3 times in a row")
    trace = Trace(WITH_REWARD, [*SERVED, (10, dead), (11, TICK)])
    assert [*trace.state.durable.outages] == [Outage(REWARD, HERE, 10)]
    assert "reward server is down (no answer within 60 s, 3 times in a row): restart 1" in trace.log
    trace.take(ready(REWARD, generation=2), 15)
    assert [*trace.state.durable.outages] == [Outage(REWARD, HERE, 10, 15)]
    trace.take(lost(REWARD, "exit code 1", 2), 30)
    assert [*trace.state.durable.outages][1:] == [Outage(REWARD, HERE, 30)]


def test_outages_outlive_the_agent() -> None:
    """Each change is saved for the next agent, where an open one ends with the next answer."""
    dead = lost(REWARD, "exit code 1")
    trace = Trace(WITH_REWARD, [*SERVED, (10, dead), (11, TICK)])
    assert [one.outages for one in trace.persisted if one.outages] == [(Outage(REWARD, HERE, 10),)]
    former = (
        Outage(REWARD, HERE, -90, -80),
        Outage("judge", "pod1", -70),
        Outage(REWARD, HERE, -5),
    )
    again = Trace(WITH_REWARD, [(1, ready(REWARD))], Durable("run", outages=former))
    assert again.state.durable.outages == (*former[:2], Outage(REWARD, HERE, -5, 1))
    assert again.persisted == [again.state.durable]


def test_the_first_start_is_no_outage() -> None:
    """A service that was never ready has no outage."""
    trace = Trace(WITH_REWARD, [(1, pending(REWARD, "refused")), (5, ready(REWARD))])
    assert trace.state.durable.outages == ()


URL = ServiceSpec(
    REWARD, "http://x/y", None, ScoringProbe("http://x/y"), 300.0, "AGENT_WAIT_REWARD"
)


def test_somebody_elses_server_is_waited_for() -> None:
    """The agent cannot restart it: the job continues for AGENT_WAIT_REWARD, then ends with 69."""
    of = replace(goal(), services=(URL,))
    answers_at = (2.0, ready(REWARD))
    for answers in (True, False):
        trace = Trace(of, [answers_at, *RUNNING, (10, lost(REWARD, "connection refused"))])
        assert "reward server no longer answers (connection refused): it is asked for" in trace.log
        assert trace.effects[-1] == Started(REWARD, generation=2)
        trace.take(job("RUNNING"), 100)
        if answers:
            trace.take(ready(REWARD, generation=2), 200)
        trace.take(job("RUNNING"), 200)
        trace.take(job("RUNNING"), 309)
        assert trace.state.outcome is None
        trace.take(TICK, 310)
        assert (trace.state.outcome is None) == answers


@pytest.mark.parametrize("follows", [True, False])
def test_a_redirect_of_a_stranger(*, follows: bool) -> None:
    """A probe of an agent sends no request to where that points."""
    asked: list[str] = []

    async def reply(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if request.path == "/livez":
            raise web.HTTPFound("/secret")
        return web.Response(text="secret")

    async def scenario() -> str:
        app = web.Application()
        app.router.add_get("/{path}", reply)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/livez"
        try:
            return await reply_evidence(url, None, "", 5.0, follows_redirects=follows)
        finally:
            await runner.cleanup()

    assert anyio.run(scenario) == ""
    assert asked == (["/livez", "/secret"] if follows else ["/livez"])
