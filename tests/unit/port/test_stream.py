"""`/events`: who may read it, what it sends when, and what a slow reader costs."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import Kind, Outcome
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import RAY, ItemReport, ItemsReported, Step
from agent.port import server
from support.event_stream import (
    BY_KEY,
    BY_TOKEN,
    WARNINGS,
    next_status,
    reading,
    streamed_head,
)
from support.fake_runs import status_of
from support.heads import OF_NOW, REWARD, Trace, goal, nodes, ready, reported
from support.served import KEY, SECONDS, ask
from support.statuses import A_HEAD, A_WORKER
from support.worlds import SECRET, plan_of

if TYPE_CHECKING:
    from agent.port.status_model import HeadStatus, WorkerStatus


def test_changed_statuses_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first status at once, then each that differs in more than its clocks, or a repeat."""
    monkeypatch.setattr(times, "STATUS_REPEATED", 3.0)
    with streamed_head() as head, reading(head, BY_KEY) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store"
        first = next_status(answer)
        assert (first["phase"], first["warnings"]) == ("booting", to_builtins([*WARNINGS]))
        head.status = replace(head.status, phase=HeadPhase.RUNNING)
        second = next_status(answer)
        assert second["phase"] == "running"
        assert second["seconds"] - first["seconds"] < 2.5
        third = next_status(answer)
        assert third["phase"] == "running"
        assert third["seconds"] - second["seconds"] > 2.5


def test_a_worker_s_port_names_the_head() -> None:
    """It has no stream, and stops nothing."""
    with streamed_head(is_head=False) as head:
        for method, path in (("GET", "/events"), ("POST", "/stop")):
            answer = ask(head.port, method, path, {**BY_KEY, "Content-Type": "application/json"})
            assert (answer.status, "ask the head" in answer.error) == (409, True)


def test_log_text_needs_the_token() -> None:
    """Without a token anyone may read the status: it has no text of logs or findings."""
    for token, headers, expected in ((None, {}, False), (SECRET, BY_TOKEN, True)):
        with streamed_head(token) as head:
            assert ("warnings" in ask(head.port, "GET", "/status", headers).data) is expected


def test_other_hosts_get_no_output_of_programs() -> None:
    """What has ended shows how, and on this node also what it printed last."""
    trace = Trace(goal(1, services=(REWARD,)), [(1, nodes()), (2, ready(REWARD))])
    trace.take(ItemsReported((_ended(REWARD, "exit code 1"),)), 3)
    trace.take(ItemsReported((_ended(RAY, "its raylet is gone"),)), 4)
    trace.take(reported(2, joined=False, items=(_ended(RAY, "exit code 2"),)), 5)
    run = status_of(trace.state, plan_of({"EXPECTED_WORKERS": "1"}))
    with streamed_head() as head:
        head.status_for = run.status
        here = ask(head.port, "GET", "/status").data
        elsewhere = ask(head.port, "GET", "/status", source="127.0.0.9")
    assert _evidence(here) == {
        "exit code 1; last output: my-line",
        "its raylet is gone; last output: my-line",
        "exit code 2; last output: my-line",
    }
    assert _evidence(elsewhere.data) == {"exit code 1", "its raylet is gone", "exit code 2"}
    assert b"my-line" not in elsewhere.body


def _ended(name: str, evidence: str) -> ItemReport:
    return ItemReport(name, Step.LOST, evidence, OF_NOW, output="my-line")


def _evidence(status: dict[str, Any]) -> set[str]:
    """Return the evidence of a status's services, waits, and Ray on the head and the worker."""
    (service,) = status["services"]
    (node,) = status["nodes"]
    waits = {wait["evidence"] for wait in status["waits"] if wait["what"] != "workers"}
    return {service["detail"], status["ray"]["detail"], node["last_error"], *waits}


@pytest.mark.parametrize("is_head", [True, False], ids=["head", "worker"])
def test_other_hosts_get_no_quoted_line_of_a_verdict(*, is_head: bool) -> None:
    """Its reason and remedy may quote the job's output, also on a worker that leaves with it."""
    reason = "the job failed with exit code 1 (rank 3 on pod1): ValueError: my-line"
    shown = "the job failed with exit code 1 (rank 3 on pod1)"
    remedy = "job.log shows why: my-line"
    verdict = Outcome(Kind.JOB_FAILED, 1, reason, remedy=remedy, plain=shown)
    seen = []
    with streamed_head(is_head=is_head) as head:
        role: HeadStatus | WorkerStatus = A_HEAD if is_head else A_WORKER
        head.status_for = lambda _: replace(role, verdict=verdict)
        for source in ("127.0.0.1", "127.0.0.9"):
            ended = ask(head.port, "GET", "/status", source=source).data["verdict"]
            seen.append((ended["reason"], ended["remedy"]))
    assert seen == [(reason, remedy), (shown, "")]


def test_readers_are_limited() -> None:
    """All share one read of the status; one more is refused until another leaves."""
    with streamed_head() as head, contextlib.ExitStack() as readers:
        first = contextlib.ExitStack()
        assert first.enter_context(reading(head, BY_KEY)).status == 200
        for _ in range(server.MAX_READERS - 1):
            assert next_status(readers.enter_context(reading(head, BY_KEY)))["phase"] == "booting"
        assert head.reads < server.MAX_READERS
        with reading(head, BY_KEY) as answer:
            assert answer.status == 503
            assert "/status" in json.loads(answer.read())["error"]
        first.close()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            with reading(head, BY_KEY) as answer:
                if answer.status == 200:
                    return
        raise AssertionError("the place of a reader that left is not free")


def test_a_slow_reader_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that accepts nothing is disconnected; others are served, and the port closes."""
    monkeypatch.setattr(times, "READER_STALLED", 1.0)
    with streamed_head() as head:
        head.status = replace(head.status, run_name="x" * 8_000_000)
        with socket.create_connection(("127.0.0.1", head.port), SECONDS) as lazy:
            asked = ("GET /events HTTP/1.1", "Host: localhost", f"Authorization: Bearer {KEY}")
            lazy.sendall("\r\n".join([*asked, "", ""]).encode())
            assert lazy.recv(10).startswith(b"HTTP/1.1")
            began = time.monotonic()
            assert ask(head.port, "GET", "/livez").status == 200
            assert time.monotonic() - began < 2
            until = time.monotonic() + SECONDS
            while head.site._stream._readers and time.monotonic() < until:  # noqa: SLF001 - its only sign
                head.over.wait(0.05)
            assert not head.site._stream._readers  # noqa: SLF001 - same


def test_a_slow_status_is_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask, making the status takes a small share of the loop's time."""
    now = [0.0]
    made = []

    def make() -> int:
        now[0] += 0.2
        made.append(now[0])
        return len(made)

    kept = server.Kept(make)
    monkeypatch.setattr("agent.port.server.time.monotonic", lambda: now[0])
    for _ in range(600):
        kept.get()
        now[0] += 0.05
    assert len(made) == 3  # in 30 seconds
    assert kept.get() == len(made)
