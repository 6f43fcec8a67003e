"""`explain` summarizes any run folder in ten lines."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
from msgspec.json import encode
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.base.errors import UnavailableError
from agent.base.text import iso_time
from agent.cli.command_line import main
from agent.decisions.durable import Durable
from agent.decisions.head.fleet import Worker
from agent.decisions.head.head_state import WorkerReported
from agent.decisions.receipt import Meter, Receipt, RunActivity
from agent.decisions.shared import JOB, ItemReport, ItemsReported, JobItem, Shortage, Step
from agent.decisions.stall import Stalled
from agent.record import events as e
from agent.record.node_record import NODE_FILE, Moment, own_record, process_of
from agent.record.outcome_file import RunFacts, outcome_text, write_outcome
from agent.record.run_folder import RunFolder
from agent.record.run_record import Measured, RunRecord, SavedMeter
from agent.record.series_file import SERIES_FILE, SavedLine
from agent.record.summary import explain
from agent.settings.redact import Redactor
from support.heads import RAY_UP, lost, ready
from support.node_runs import made_run
from support.run_records import record_of, submitted
from support.worlds import plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLED = (
    ItemReport("retriever", Step.LOST, "killed by SIGKILL"),
    ItemReport("data", Step.LOST, "its node stopped it", was_stopped=True),
)
START = "2026-11-22T06:48:25.000Z"
HEAD: tuple[tuple[float, object], ...] = (
    (0.3, e.Waited("Ray on this node", 600, "")),
    (0.3, e.Waited("workers", 600, "0 of 2 joined; 2 never reported")),
    (4.0, e.WaitsOver(("Ray on this node",))),
    (6.0, WorkerReported(Worker("k1", "pod1", items=(RAY_UP,)))),
    (9.0, e.Waited("workers", 600, "1 of 2 joined; pod2 last reported: joining Ray")),
    (13.0, WorkerReported(Worker("k2", "pod2", items=(RAY_UP,)))),
    (13.5, e.WaitsOver(("workers",))),
    (13.5, e.PhaseEntered("submitting")),
    (14.0, e.PhaseEntered("running")),
    (20.0, lost("reward server", "exit code 1", 1)),
    (22.0, ready("reward server", 2)),
    (30.0, WorkerReported(Worker("k2", "pod2", items=(RAY_UP, *KILLED)))),
    (200.0, e.GoodbyeReceived("pod2", "asked to stop by SIGTERM", "the end of its log")),
    (200.5, ItemsReported((JobItem(JOB, Step.LOST, "failed"),))),
    (201.0, e.PhaseEntered("leaving")),
    (202.0, e.Ended(202.0)),
)
FAILURES = (
    "reward server failed 1 x (exit code 1); retriever on pod2 failed 1 x (killed by SIGKILL)"
)
FAILED = Outcome(
    *(Kind.JOB_FAILED, 7, "the job failed with exit code 7", "leaving", "job"),
    remedy="job.log shows why: a GPU ran out of memory",
)


def write(
    folder: Path, *history: tuple[float, object], role: e.Role = "head", start: str = START
) -> None:
    """Write a node's events, as an agent does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / e.EVENTS_FILE
    times = iter([0.0, *(at for at, _ in history)])
    began = e.Began(role, "run-1", start, "1.0")
    recorder = e.EventRecorder(lambda: nullcontext(path), str, began, lambda: next(times))
    for _, event in history:
        recorder.add(event)
    recorder.finish()


def run_of(root: Path) -> Path:
    """Write a whole run: its head, a worker on the same disk, its record."""
    run = root / "run-1"
    write(run / "pod0", *HEAD)
    write_outcome(run / "pod0", outcome_text(FAILED))
    write(run / "pod1", (1.0, e.PhaseEntered("joining Ray")), (3.0, e.Ended(3.0)), role="worker")
    write_outcome(run / "pod1", outcome_text(Outcome(Kind.LOST, 75, "its head was lost")))
    durable = submitted(Durable("run-1", "f", 1, head="pod0"), start="2026-11-22T06:48:39.000Z")
    durable = durable.with_end(Outcome(Kind.JOB_FAILED, 7, ""), "2026-11-22T06:51:39.000Z")
    record_of(durable).write(run / "run.json")
    return run


def test_a_whole_run(tmp_path: Path) -> None:
    """Phases, waits, nodes, services, the job and the end, by the head's own records."""
    assert explain(run_of(tmp_path)) == [
        "run run-1, recorded by the head pod0: began 2026-11-22T06:48:25.000Z, lasted 3 min 22 s",
        "phases: booting 13.5 s, submitting 0.5 s, running 3 min 7 s, leaving 1.0 s",
        "job: attempt 1: 3 min, exit code 7",
        f"services and steps: {FAILURES}",
        "waited for workers 13.2 s; last: 1 of 2 joined; pod2 last reported: joining Ray",
        "waited for Ray on this node 3.7 s",
        "joined: pod2 after 13.0 s and pod1 after 6.0 s",
        "left: pod2 (asked to stop by SIGTERM)",
        "end: job-failed, exit code 7: the job failed with exit code 7",
        "remedy: job.log shows why: a GPU ran out of memory",
    ]


def test_groups(tmp_path: Path) -> None:
    """Which group was short, when and how long, and how often each member was started again."""
    run = tmp_path / "run-1"

    def engine(node: int, number: int, generation: int, step: Step = Step.READY) -> WorkerReported:
        evidence = "exit code 1 (CUDA out of memory)" if step is Step.LOST else ""
        items = (ItemReport(f"engine.{number}", step, evidence, generation),)
        return WorkerReported(Worker(f"k{node}", f"pod{node}", items=items))

    write(
        run / "pod0",
        (14.0, e.PhaseEntered("running")),
        (60.0, engine(1, 0, 1, Step.LOST)),
        (62.0, engine(1, 0, 2)),
        (70.0, engine(1, 0, 3)),
        (71.0, engine(2, 1, 2)),
        (72.0, engine(2, 0, 1)),
        (400.0, e.PhaseEntered("leaving")),
        (402.0, e.Ended(402.0)),
    )
    write_outcome(run / "pod0", outcome_text(FAILED))
    why = "0 of 4 serve, 2 needed; all 4 on pod1 and pod2: exit code 1 (CUDA out of memory)"
    first = Shortage("rollout", "engine", 60.0, 240.0, nothing_seconds=90.0, why=why)
    durable = Durable("run-1", "f", 1, head="pod0", shortages=(first,))
    (run / "run.json").parent.mkdir(exist_ok=True)
    RunRecord(Moment(START), durable, Measured()).write(run / "run.json")
    lines = explain(run)
    assert (
        "groups: rollout had too few members of engine once, 3 min, 90 s of it without any "
        f"(from 06:49 UTC: {why})"
    ) in lines
    assert (
        "members started again: engine 3 x: engine.0 on pod1 2 x and engine.1 on pod2 1 x "
        "(last: exit code 1 (CUDA out of memory))"
    ) in lines
    assert not any(line.startswith("services and steps") for line in lines)

    # Several shortages: all of them together, and the longest; one that lasts until the end.
    second = Shortage("rollout", "engine", 300.0, nothing_since=330.0, why="0 of 4 serve")
    durable = replace(durable, shortages=(first, second))
    RunRecord(Moment(START), durable, Measured()).write(run / "run.json")
    (line,) = [line for line in explain(run) if line.startswith("groups: ")]
    both = "2 x, 4 min 42 s, 2 min 42 s of it without any"
    assert line.startswith(f"groups: rollout had too few members of engine {both}")
    assert "(the longest from 06:49 UTC for 3 min: 0 of 4 serve, 2 needed" in line


def test_the_jobs_steps(tmp_path: Path) -> None:
    """How far it came, how long a step took, and how the reward moved."""
    run = run_of(tmp_path)
    path = run / "pod0" / SERIES_FILE
    for scale, shown in ((0.01, "0.08 (+0.04"), (200.0, "1600 (+800")):
        rewards = [{"critic/rewards/mean": scale * step} for step in range(1, 9)]
        lines = [
            SavedLine(step, "step", 61.0 * step, 2, step, 40, metrics)
            for step, metrics in enumerate(rewards, 1)
        ]
        path.write_bytes(b"\n".join(map(encode, lines)))
        took = "step 8 of 40, 61 s a step"
        assert explain(run)[2] == f"steps: {took}, mean reward {shown} over the last 20 steps)"
    path.write_text("broken")
    assert not any(line.startswith("steps") for line in explain(run))


def test_a_workers_folder_by_itself(tmp_path: Path) -> None:
    """On its own disk a worker's folder is summarized alone, without a run.json."""
    run = run_of(tmp_path)
    (run / "run.json").unlink()
    assert explain(run / "pod1") == [
        "run run-1, recorded by the worker pod1: began 2026-11-22T06:48:25.000Z, lasted 3.0 s",
        "phases: finding the head 1.0 s, joining Ray 2.0 s",
        "end: lost, exit code 75: its head was lost",
    ]


def test_an_unfinished_wait(tmp_path: Path) -> None:
    """A wait that nothing ended was in vain; while the run goes on, it is one so far."""
    history = (
        (2.0, e.Waited("workers", 600, "0 of 1 joined; 1 never reported")),
        (600.0, e.Ended(600.0)),
    )
    write(tmp_path / "pod0", *history)
    line = "waited for workers 9 min 58 s{}; last: 0 of 1 joined; 1 never reported"
    assert line.format(" so far") in explain(tmp_path)
    write_outcome(
        tmp_path / "pod0", outcome_text(Outcome(Kind.UNAVAILABLE, 69, "workers not ready in time"))
    )
    assert line.format(", in vain") in explain(tmp_path)


def test_a_wait_that_the_end_of_the_run_ended(tmp_path: Path) -> None:
    """It was not in vain: nothing ran out. Its time is on the clock of its own agent."""
    write(tmp_path / "pod0", (600.0, e.PhaseEntered("running")))
    history = (
        (300.0, e.PhaseEntered("stopping")),
        (300.0, e.Waited("the job to stop", 400.0, "")),
        (304.0, e.Ended(304.0)),
    )
    write(tmp_path / "pod0", *history, start="2026-11-22T06:58:25.000Z")
    stopped = Outcome(Kind.STOPPED, 143, "asked to stop by SIGTERM")
    write_outcome(tmp_path / "pod0", outcome_text(stopped))
    assert "waited for the job to stop 4.0 s" in explain(tmp_path)


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that stands for an agent."""
    with subprocess.Popen(["sleep", "600"]) as running:
        yield running
        running.kill()


def test_a_run_that_goes_on(tmp_path: Path, program: subprocess.Popen[bytes]) -> None:
    """It lasts until now, and its job's time follows from the steps since the last record.

    Once its agent was killed, it lasts until the last step. Elsewhere neither is known.
    """
    began = time.time() - 60
    start = iso_time(began)
    write(
        tmp_path / "run/pod0",
        (1.0, e.PhaseEntered("running")),
        (5.0, e.ProcessStarted("torchrun", 9)),
        start=start,
    )
    meter = Meter(Receipt(boot=1.0), at=1.0, seen_at=1.0, now=RunActivity("job", 1))
    saved = SavedMeter(Moment(start), meter)
    measured = Measured(receipt=saved)
    record_of(Durable("run", head="pod0"), measured).write(tmp_path / "run/run.json")
    lines = [SavedLine(n, "step", began + 10 * n, 1, n, 400, {}) for n in range(1, 5)]
    (tmp_path / "run/pod0" / SERIES_FILE).write_bytes(b"\n".join(map(encode, lines)))
    agent = process_of("agent", program.pid)
    assert agent is not None
    record = replace(own_record("pod0", "run"), agent=agent)
    record.write(tmp_path / "run/pod0" / NODE_FILE)

    title, phases, _, spent, end = explain(tmp_path)
    assert float(title.rpartition("lasted ")[2].removesuffix(" s")) >= 59
    assert float(phases.rpartition("running ")[2].removesuffix(" s")) >= 58
    assert spent.startswith("time: boot 1 s, first step 9 s, training 5")
    assert end == "no end yet: the agent runs"

    program.kill()
    program.wait()
    title, phases, _, spent, end = explain(tmp_path)
    assert title.endswith(", lasted 40.0 s")
    assert phases == "phases: booting 1.0 s, running 39.0 s"
    assert spent == "time: boot 1 s, first step 9 s, training 30 s"
    assert end == "no outcome.json: the agent was killed, or could not write it"

    elsewhere = replace(record, place=replace(record.place, boot_id="another"))
    elsewhere.write(tmp_path / "run/pod0" / NODE_FILE)
    assert explain(tmp_path)[-1] == "no outcome.json: the agent still runs, or was killed"


def test_an_agent_that_was_started_again(tmp_path: Path) -> None:
    """Agents are counted by their start time; a rotated file begins no new agent."""
    write(tmp_path / "pod0", (5.0, e.PhaseEntered("running")))
    write(tmp_path / "pod0", (7.0, e.PhaseEntered("running")))
    write(tmp_path / "pod0", (3.0, e.PhaseEntered("running")), start="2026-11-22T06:49:25.000Z")
    first = explain(tmp_path)[0]
    assert first.endswith("lasted 63 s; its agent was started 2 times")


def test_it_is_never_more_than_ten_printable_lines(tmp_path: Path) -> None:
    """Any recorded text is one line; the end is always among the lines."""
    run = run_of(tmp_path)
    write(
        run / "pod0",
        *((300.0 + n, e.Waited(f"thing {n}\x1b[31m\nx", 900, "a\tb")) for n in range(9)),
    )
    lines = explain(run)
    assert len(lines) == 10
    assert all(line.isprintable() for line in lines)
    assert lines[-2].startswith("end: job-failed")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"kind": 3}', "\x00"])
def test_a_broken_outcome_is_skipped(tmp_path: Path, text: str) -> None:
    """The rest of the summary does not depend on outcome.json."""
    write(tmp_path / "pod0", (1.0, e.Ended(1.0)))
    (tmp_path / "pod0/outcome.json").write_text(text)
    assert explain(tmp_path)[0].startswith("run run-1, recorded by the head")


def test_the_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`explain` takes the latest run, or a folder; without a run it ends with 69."""
    monkeypatch.setenv("AGENT_LOG_DIR", str(tmp_path))
    with pytest.raises(UnavailableError):
        explain(tmp_path / "latest")
    assert main(["explain"]) == 69
    assert "holds no run" in capsys.readouterr().err
    run = run_of(tmp_path)
    (tmp_path / "latest").symlink_to(run.name, target_is_directory=True)
    assert main(["explain"]) == 0
    last = capsys.readouterr().out
    assert main(["explain", str(run)]) == 0
    assert capsys.readouterr().out == last
    assert len(last.splitlines()) == 10
    assert json.loads((run / "run.json").read_text())["durable"]["head"] == "pod0"


def test_the_first_phase_is_an_event(tmp_path: Path) -> None:
    """An agent that starts in a later phase records it: it was never finding a head."""
    plan = plan_of({"AGENT_LOG_DIR": str(tmp_path)}, command=["true"])
    run = made_run(plan, Redactor(()), RunFolder(tmp_path, "run-1", "node-a"), 0.0, "run-1")
    for phase in ("following", "following", "leaving"):
        run.set_phase(phase)
    run.close()
    found = [one.data for one in e.read_events(run.folder.path) if one.kind == "PhaseEntered"]
    assert found == [{"phase": "following"}, {"phase": "leaving"}]


def test_what_the_figures_and_the_clock_showed(tmp_path: Path) -> None:
    """A slow node is named with its figure; the receipt comes from outcome.json, else run.json."""
    slow = "slow node pod170: GPU utilization 14 %, median of all nodes 91 %, for 5 min"
    noticed = (30.0, e.NodeNoticed("pod170", slow))
    write(tmp_path / "run/pod0", *HEAD, noticed, (40.0, e.NodeNoticed("pod170", slow)))
    meter = Meter(Receipt(boot=13.5), at=13.5, seen_at=14.0, now=RunActivity("job", 1))
    saved = SavedMeter(Moment(START), meter, price=20.0)
    measured = Measured(receipt=saved)
    record_of(Durable("run", head="pod0"), measured).write(tmp_path / "run/run.json")
    lines = explain(tmp_path)
    assert f"nodes: {slow}" in lines
    assert "time: boot 14 s ($0.07), job 26 s ($0.15, no steps known)" in lines

    text = outcome_text(
        FAILED, RunFacts(receipt=Receipt(boot=13.5, training=180.0).to_status(20.0))
    )
    write_outcome(tmp_path / "run/pod0", text)
    lines = explain(tmp_path)
    assert lines[0].endswith(", cost $1.07")
    assert "time: boot 14 s ($0.07), training 3 min ($1.00)" in lines


def test_who_waited_is_said_after_the_run(tmp_path: Path) -> None:
    """The last attempt's advice on the division of the nodes, which its log had once."""
    moves = ("5 nodes of rollout", "6 nodes of rollout")
    advised = [(30.0 + n, e.SplitAdvised(what, f"{what}!")) for n, what in enumerate(moves)]
    write(tmp_path / "run/pod0", *HEAD, *advised)
    assert "nodes: 6 nodes of rollout. 6 nodes of rollout!" in explain(tmp_path)


def test_a_stall_is_shown_before_the_waits(tmp_path: Path) -> None:
    """The last one with its suspects; what matters most is never cut off."""
    run = run_of(tmp_path)
    where = "rank 17 on pod2 is in compute_score"
    history: tuple[tuple[float, object], ...] = (
        (60.0, Stalled(1, "no step for 9 min", "nothing is known")),
        (130.0, Stalled(2, "no step for 12 min since step 41", where)),
        (131.0, Stalled(2, "no step for 13 min since step 41", where, "retry")),
        (140.0, e.NodeNoticed("pod1", "slow node pod1: GPU utilization 14 %")),
        *((150.0 + n, e.Waited(f"thing {n}", 900, "")) for n in range(3)),
    )
    write(run / "pod0", *history)
    (run / "pod0/stacks-2.log").write_text("stacks")
    step = SavedLine(2, "step", 61.0, 2, 41, 90, {"critic/rewards/mean": 0.5}, ("actor/loss",))
    (run / "pod0" / SERIES_FILE).write_bytes(encode(step))
    lines = explain(run)
    assert lines[2].startswith("steps: step 41 of 90")
    assert lines[3] == (
        f"stalled: no step for 13 min since step 41: {where} "
        "(attempt 2; stacks-2.log; before it attempt 1)"
    )
    assert lines[4].startswith("training: actor/loss is nan or infinite at step 41. The weights")
    assert [line.split(":")[0] for line in lines[5:]] == [
        *("job", "nodes", "services and steps", "end", "remedy")
    ]
    assert len(lines) == 10
