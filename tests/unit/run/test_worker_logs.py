"""The workers' logs in the head's bundle, and whose logs it requests in time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import anyio
import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.decisions.durable import Stop
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import Worker
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import Item, QuestionKind
from agent.port.protocol import Bye, Hello, Reply, Report
from agent.port.reports import Expected, Reports
from agent.record.run_folder import RunFolder
from agent.run.failure_bundle import parts_of_workers, request_logs
from agent.settings.redact import redactor_for
from support.heads import NOTHING_DURABLE, goal, reported
from support.node_runs import made_run
from support.statuses import A_HEAD, NOTHING_FOUND
from support.worlds import MACHINE, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.decisions.shared import Question
    from agent.port.status_model import FindingsStatus, HeadStatus, Reader
    from agent.run.head_server import RunStatus

LOST = Outcome(Kind.LOST, 75, "lost a needed node")


class Shown:
    """What a head shows, in few words."""

    def status(self, _reader: Reader) -> HeadStatus:
        """Return the status."""
        return A_HEAD

    def with_private(self, status: HeadStatus) -> HeadStatus:
        """Add nothing."""
        return status

    def findings(self) -> FindingsStatus:
        """Return what checks found."""
        return NOTHING_FOUND


class Story:
    """A head's reports, its state, and its events."""

    def __init__(self, root: Path) -> None:
        plan = plan_of({"AGENT_LOG_DIR": str(root), "EXPECTED_WORKERS": "2"}, command=["true"])
        redactor = redactor_for({}, plan.settings, plan.texts_with_secrets)
        self.run = made_run(plan, redactor, RunFolder(root, "run-1", "node-a"), 0.0, "run-1")
        reply = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)
        expected = Expected(None, "", "", "")
        self.reports = Reports(reply, expected, lambda _event: None, lambda: 0.0)
        self.state = head.first_state(goal(2), NOTHING_DURABLE)

    def say(self, n: int, **paths: object) -> tuple[Question, ...]:
        """Let a worker's agent report; return what it is asked."""
        report = Report(f"agent{n}", f"10.0.0.{n}", "following the head", hello=Hello(f"pod{n}", n))
        wanted = anyio.run(self.reports.handle, replace(report, **paths)).wanted
        return () if wanted is None else wanted.questions

    def note(self, event: h.WorkerReported) -> None:
        """Let a worker's report be decided upon."""
        self.state = replace(self.state, fleet=self.state.fleet.with_report(event.worker))

    def decided(self, before: HeadPhase = HeadPhase.RUNNING) -> None:
        """Let the state follow on one with this phase."""
        request_logs(self.run, before, self.state, self.reports)

    def parts(self) -> dict[str, str]:
        """Return what a bundle would have of it."""
        parts = parts_of_workers(self.run, cast("RunStatus", Shown()), self.state, self.reports)
        return {
            part.name: part.source() if callable(part.source) else str(part.source)
            for part in parts
        }


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Story]:
    """Return a head with reports from two workers."""
    made = Story(tmp_path)
    for n in (2, 3):
        assert made.say(n) == ()
    yield made
    made.run.close()


def names(questions: tuple[Question, ...]) -> list[str]:
    """Return the logs that are asked for."""
    assert {question.kind for question in questions} <= {QuestionKind.LOG}
    return [question.name for question in questions]


@pytest.mark.parametrize(
    ("verdict", "asked"),
    [(LOST, ["agent", "ray"]), (Outcome(Kind.STOPPED, 143, "asked to stop"), []), (None, [])],
)
def test_who_is_there_when_the_job_is_stopped(
    verdict: Outcome | None, asked: list[str], trace: Story
) -> None:
    """A job that is stopped for a failure has all asked, who may be killed before a goodbye."""
    trace.note(reported(2))
    trace.note(reported(3, has_left=True))
    stop = None if verdict is None else Stop(verdict, 0.0)
    trace.state = replace(trace.state, phase=HeadPhase.STOPPING).with_durable(stop=stop)
    trace.decided()
    trace.decided(before=HeadPhase.STOPPING)
    assert names(trace.say(2, hello=None)) == asked
    assert trace.say(3, hello=None) == ()


def test_services_that_have_ended(trace: Story) -> None:
    """Their logs are asked for, too, also those of members that were given up."""
    trace.note(reported(2))
    by_key = {
        ("agent2", "engine.0"): Item().lost("exit code 1"),
        ("agent2", "engine.1"): Item().ready(),
        ("agent3", "engine.0"): Item().lost("exit code 1"),
    }
    given_up = frozenset({("agent2", "engine.2")})
    trace.state = replace(trace.state, phase=HeadPhase.STOPPING)
    trace.state = trace.state.with_durable(stop=Stop(LOST, 0.0))
    trace.state = trace.state.with_services(by_key=by_key, abandoned=given_up)
    trace.decided()
    assert names(trace.say(2, hello=None)) == ["agent", "ray", "engine.0", "engine.2"]


def test_logs_of_a_goodbye_and_last_words_of_the_silent(trace: Story) -> None:
    """Who left has sent all; who was killed has the last report, first of all."""
    trace.say(3, bye=Bye("done"), logs={"agent": "one\ntwo\n", "raylet.out": "end\n"})
    trace.note(reported(3))
    trace.note(reported(2, detail="all is well", reported_at=-12.0))
    silent = trace.state.fleet.mark_silent("agent2", "connection refused", 0.0, is_lost=True)
    trace.state = replace(trace.state, fleet=replace(silent, facts={"agent2": MACHINE}))
    parts = trace.parts()
    assert [*parts][:4] == [
        "status.json",
        "findings.json",
        "pod2/last-report.json",
        "pod2/facts.json",
    ]
    report = json.loads(parts["pod2/last-report.json"])
    assert (report["silent"], report["detail"]) == ("connection refused", "all is well")
    assert json.loads(parts["pod2/facts.json"])["interfaces"] == {}
    assert parts["pod3/agent.log"] == "one\ntwo\n"
    assert parts["pod3/raylet.out"] == "end\n"
    report = json.loads(parts["pod3/last-report.json"])
    assert (report["state"], report["goodbye"]) == ("left", "done")


def test_nodes_of_one_name_have_separate_logs(trace: Story) -> None:
    """Also from the head itself."""
    for key in ("a", "b"):
        worker = Worker(key, "node-a", "10.0.0.9", phase="joining Ray")
        trace.note(h.WorkerReported(worker))
    paths = [name for name in trace.parts() if name.endswith("last-report.json")]
    assert paths == ["node-a-2/last-report.json", "node-a-3/last-report.json"]
