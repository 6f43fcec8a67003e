"""The lines about the end of a run: one for a success, and all that helps after a failure."""

from __future__ import annotations

import signal

from agent.base import ends
from agent.decisions.shared import LogLine
from agent.diagnosis.end_lines import RunEnd, end_lines, totals
from agent.diagnosis.find_cause import diagnose_logs
from agent.diagnosis.searched_log import Log

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
FAILED = ends.JOB_FAILED.outcome(code=1, code_name="1", place="", message="", before="")


def test_a_success_has_one_line() -> None:
    """With the steps, where they are known, and the time of the job."""
    done = ends.JOB_SUCCEEDED.outcome(before="")
    line = LogLine("succeeded · 40 steps", "done", "job", 6.0)
    assert end_lines(RunEnd(done, step=40, job_seconds=6.0)) == [line]
    assert end_lines(RunEnd(done)) == [LogLine("succeeded", "done", "job")]


def test_a_known_cause_comes_with_its_line_and_remedy() -> None:
    """The cause with its place and step, the line, what to do, and what the next run loses."""
    log = f"step 213/400\n(WorkerDict pid=4711, ip=10.0.0.9) {OUT_OF_MEMORY}\n"
    diagnosis = diagnose_logs([Log("pod7", "job.log", log)])
    lines = end_lines(RunEnd(FAILED, diagnosis, step=213, checkpoint=200))
    assert [(line.level, line.subject) for line in lines] == [
        ("error", "job"),
        ("info", "line"),
        ("info", "do"),
        ("info", "resume"),
    ]
    first, shown, do, resume = (line.sentence for line in lines)
    assert first.endswith(" on pod7, step 213")
    assert "out of memory" in first
    assert shown.endswith(" (job.log)")
    assert OUT_OF_MEMORY in shown
    assert do
    assert resume == "the same command continues at step 200; 13 steps lost"


def test_without_a_known_cause_the_outcome_says_it() -> None:
    """The reason and the remedy of the outcome; an error in the log is still shown."""
    assert end_lines(RunEnd(FAILED)) == [
        LogLine("the job failed with exit code 1", "error", "job"),
        LogLine("Its output is in job.log", subject="do"),
    ]
    diagnosis = diagnose_logs([Log("", "job.log", "KeyError: 'never seen before'\n")])
    lines = end_lines(RunEnd(FAILED, diagnosis))
    assert [line.subject for line in lines] == ["job", "line", "do"]
    assert lines[1].sentence == "KeyError: 'never seen before' (job.log)"


def test_an_end_that_is_no_verdict_of_the_job() -> None:
    """A loss is the run's; a stop and a doubtful success are no failures."""
    lost = ends.HEAD_LOST.outcome()
    assert end_lines(RunEnd(lost)) == [LogLine("its head was lost", "error", "run")]
    stopped = ends.stopped(signal.SIGTERM, expected=False)
    assert end_lines(RunEnd(stopped)) == [LogLine("asked to stop by SIGTERM", subject="run")]
    few = ends.JOB_MADE_FEW_STEPS.outcome(steps="after 3 of 40 steps", before="")
    assert end_lines(RunEnd(few)) == [
        LogLine("the job exited with 0 after 3 of 40 steps", "warning", "job")
    ]


def test_the_totals_of_a_run() -> None:
    """Its time, how the reward moved, the cost, and the folder, as far as they are known."""
    rewards = [(1, 0.0912), (2, 0.5), (40, 0.9876)]
    where = "agent-logs/run-1/pod0"
    assert totals(21.0, rewards, None, where) == f"21 s · reward 0.091 → 0.99 · {where}"
    assert totals(13080.0, [], 150.0, where) == f"3 h 38 min · $150.00 · {where}"


def test_the_line_is_shown_with_its_number() -> None:
    """Where the file's lines before the searched text were counted."""
    log = Log("", "job.log", "step 1/2\nKeyError: 'never seen before'\n", first_line=18_203)
    diagnosis = diagnose_logs([log])
    shown = end_lines(RunEnd(FAILED, diagnosis))[1]
    assert shown.sentence == "KeyError: 'never seen before' (job.log:18204)"
    assert 'in job.log:18204: "KeyError' in diagnosis.remedy()
