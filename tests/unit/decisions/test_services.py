"""Services: which are awaited, their limits and outages, and their probes."""

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
from agent.decisions.head import head_state as h
from agent.decisions.head.service_addresses import service_address
from agent.decisions.shared import HERE, SCORE, Answer, Answered, ItemReport, Outage, Step
from agent.job.services import (
    LivenessCheck,
    LogPattern,
    Placeholders,
    ScoringProbe,
    ServiceSpec,
    Where,
)
from agent.processes.connecting import ConnectionRefused, PerhapsBusy, port_answers
from agent.processes.probing import ReadinessProbe, ServerReply, reply_evidence, until_dead
from agent.processes.process import cpu_of
from support.event_words import cases
from support.heads import (
    HEAD,
    RETRIEVER,
    RETRIEVER_SPEC,
    REWARD,
    REWARD_SPEC,
    WITH_REWARD,
    Trace,
    goal,
    reported,
)
from support.histories import Case, play, play_head
from support.reward_process import reward_server

ALONE = replace(REWARD_SPEC, where=Where("rank", 2), alone=True)
URL = ServiceSpec(
    REWARD, "http://x/y", None, ScoringProbe("http://x/y"), 300.0, "AGENT_WAIT_REWARD"
)
AT = "10.0.0.3"
REFUSED = (ItemReport(RETRIEVER, Step.PENDING, "connection refused"),)
CUT_OFF = (ItemReport(RETRIEVER, Step.LOST, "its node stopped it", 1, was_stopped=True),)
THIRD = (ItemReport(RETRIEVER, Step.READY, generation=3),)
FORMER = (
    Outage(REWARD, HERE, -90, -80),
    Outage("judge", "pod1", -70),
    Outage(REWARD, HERE, -5),
)


def apart(step: Step = Step.READY, *, has_left: bool = False) -> h.WorkerReported:
    """Return a report of a node that is there for the reward server only."""
    items = (ItemReport(ALONE.name, step),)
    report = reported(3, joined=False, items=items, has_left=has_left)
    return h.WorkerReported(replace(report.worker, given_rank=2, service_only=True))


WORDS = {
    "a node apart": replace(goal(1), services=(ALONE,)),
    "somebody else's server": replace(goal(), services=(URL,)),
    "left: outages": [Durable("run", outages=FORMER)],
    "by rank": (
        "2 ready retriever | 3 pod2 joined as 1 -> start retriever on agent2 | "
        "3 pod3 joined as 2 -> start retriever on agent3 | 4 pod3 is refused | "
        "4 pod2 joined as 1: retriever ready"
    ),
    # Every other node got a score from there, and the job runs
    "in its place": (
        "3 nodes 2 | 4 pod2 joined | 5 pod3 apart -> start reward server on agent3 | "
        "6 pod3 serves apart | 6 a score here | 6 pod2 gets a score -> submit run-1 | "
        "7 accepted | 8 job RUNNING"
    ),
    "spare": (
        "4 pod4 joined as 3 -> start retriever on agent4 | 4 pod4 joined as 3: retriever ready"
    ),
    "a score here": Answered(Answer(SCORE, AT)),
    "pod2 gets a score": reported(2, answers=(Answer(SCORE, AT),)),
    "pod2 has its third retriever": reported(2, items=THIRD),
    "pod2 is refused": reported(2, items=REFUSED),
    "pod2 stopped it": reported(2, items=CUT_OFF),
    "pod3 apart": apart(Step.PENDING),
    "pod3 is refused": reported(3, rank=2, items=REFUSED),
    "pod3 leaves": apart(has_left=True),
    "pod3 serves apart": apart(),
}
WAITED_FOR = "a node of its own is no worker, and the job waits for its service"

SERVICES = cases(
    """\
a service on every node is one wait, with the first few nodes [2 workers, retriever]
    3 nodes 2 3 | 4 pod2 joined -> start retriever on agent2
    4 pod3 joined -> start retriever on agent3 | 5 pod2 is refused
    waits waiting for retriever on every node, 3 not ready; retriever: no report yet; retriever on
        pod2: connection refused; retriever on pod3: no report yet (…)
one that is not ready in time ends the run [retriever]
    3 nodes | 300 tick -> end 69: retriever not ready in time: no report yet
one that its node stopped has its whole time anew [1 worker, retriever]
    3 nodes 2 | 4 pod2 joined -> start retriever on agent2 | 5 ready retriever
    60 pod2 stopped it -> start retriever on agent2, generation 2
    waits waiting for retriever on pod2, its node stopped it (5 min left)
a node of its own is no worker, and the job waits for its service [a node apart]
    in its place
a node of its own that never comes [a node apart]
    3 nodes 2 | 4 pod2 joined
    waits waiting for rank 2, which is to run reward server, no report yet (3 min 16 s left)
    200 tick -> end 69: rank 2, which is to run reward server not ready in time…
# Ray does not list it: AGENT_NODE_GRACE counts from its last report
a node of its own that falls silent [a node apart]
    in its place | 65.9 tick | 66 tick -> stop run-1
    67 job STOPPED -> end 75: lost a needed node (pod3, which runs reward server)…
a node of its own that leaves [a node apart]
    in its place | 10 pod3 leaves | 69 tick | 70 tick -> stop run-1
a node of its own that reported at a time that floats round [a node apart]
    in its place | 16.1 pod3 serves apart | 75.1 tick | 76.1 tick -> stop run-1
# As many nodes are ready as the job needs
the service of a lost worker in whose place another is there [2 workers, retriever]
    by rank | spare | 5 nodes 2 3 4 | 6 pod3 silent: no answer | 7 nodes 2 4 -> submit run-1
the service of a lost worker that is missed [2 workers, retriever]
    by rank | 5 nodes 2 3 | 6 pod3 silent: no answer | 7 nodes 2
    waits waiting for retriever on rank 2 (pod3), connection refused (…)
        & waiting for workers, 1 of 2 joined; …
one that its node stopped has not failed [1 worker, retriever]
    3 nodes 2 | 4 pod2 joined -> start retriever on agent2
    60 pod2 stopped it -> start retriever on agent2, generation 2 | not logged restart 1
# Its services go with it; the workers' wait says what is missing
what ran on a worker that left is awaited no more [1 worker, retriever]
    3 nodes 2 | 4 pod2 reports -> start retriever on agent2 | 5 pod2 reports, has left
    waits waiting for retriever (…) & waiting for workers, …
# Its node reports a later start than any that this head wanted
what an earlier head started is taken over, and logged as any other [1 worker, retriever]
    3 nodes 2 | 5 pod2 has its third retriever -> start retriever on agent2, generation 3
    once retriever on pod2 answers | 6 ready retriever -> submit run-1
""",
    WORDS,
)
OUTAGES = cases(
    """\
an outage lasts until it answers again [reward server]
    served
    10 lost reward server: no answer within 60 s, 3 times in a row
        -> start reward server, generation 2
    11 tick | down reward server 10 to
    log reward server is down (no answer within 60 s, 3 times in a row): restart 1
    15 ready reward server, generation 2 | down reward server 10 to 15
    30 lost reward server, generation 2: exit code 1
    down reward server 10 to 15 & reward server 30 to
# It ends with the next answer
an outage outlives the agent [reward server]
    left: outages | 1 ready reward server
    down reward server -90 to -80 & judge -70 to & reward server -5 to 1 | 2 next agent
    down reward server -92 to -82 & judge -72 to & reward server -7 to -1
a service that was never ready has none [reward server]
    1 pending reward server: refused | 5 ready reward server | down nothing
# The agent cannot restart it: the job continues for AGENT_WAIT_REWARD, then ends with 69
somebody else's server is waited for [somebody else's server]
    2 ready reward server | 3 nodes -> submit run-1 | 4 accepted | 5 job RUNNING
    10 lost reward server: connection refused -> start reward server, generation 2
    log reward server no longer answers (connection refused): it is asked for | 100 job RUNNING
    200 job RUNNING | 309 job RUNNING | 310 tick -> stop run-1
somebody else's server answers again [somebody else's server]
    2 ready reward server | 3 nodes -> submit run-1 | 4 accepted | 5 job RUNNING
    10 lost reward server: connection refused -> start reward server, generation 2 | 100 job RUNNING
    200 ready reward server, generation 2 | 200 job RUNNING | 309 job RUNNING | 310 tick
""",
    WORDS,
)


@pytest.mark.parametrize("case", (rows := SERVICES | OUTAGES).values(), ids=rows)
def test_histories(case: Case) -> None:
    """Those of the nodes that the job needs are waited for, each within its limit."""
    play(case)


def test_a_node_of_its_own_is_no_worker() -> None:
    """The job finds its service, and the wait for workers does not name it."""
    trace = play_head(SERVICES[WAITED_FOR])
    assert service_address(trace.state, ALONE.name) == "10.0.0.3"
    assert "1 of 1 joined" in trace.state.fleet.describe_missing(1)
    assert "pod3" not in trace.state.fleet.describe_missing(2)


def test_the_heads_own_rank() -> None:
    """A platform may count the head as another rank than 0."""
    spec = replace(RETRIEVER_SPEC, where=Where("rank", 1))
    trace = Trace(replace(goal(0), services=(spec,), rank=1), [(3, h.RaySeen((HEAD,)))])
    assert trace.state.service_home(RETRIEVER) == HERE


# --- probes under the job: misses, failures, and busy services -----------------------------------

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
