"""Errors of a running job: logged once, and as a cause once they ended something."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import UNKNOWN
from agent.diagnosis.live_errors import LiveErrors
from support.known_lines import find_known_lines

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
CHAINED = ("During handling of the above exception, another exception occurred:", "")
TRACE = 'Traceback (most recent call last):\n  File "/x/a.py", line 3, in f\n    g()\n'
RAISED = f"{TRACE}{OOM}"
UNCAUGHT = TRACE.replace("in f", "in <module>")
ENDED = "Job 'raysubmit_x' failed"
RANK_ENDED = "E1126 20:12:10.1 2 api.py:869] failed (exitcode: 1) local_rank: 2 (pid: 7) of b"
STEP_ENDED = "srun: error: n0: task 0: Exited with exit code 1"
TASK_ENDED = "ray.exceptions.RayTaskError(OutOfMemoryError): ray::A.f() (pid=1, ip=10.0.0.4)"
LOGGED = "ERROR 11-26 20:12:10 [core.py:1] cannot schedule the batch of request 7"
IN_PASSING = f"{TRACE}openai.APIConnectionError: Connection error."
SEEN, CAUSE = True, False
MEMORY_ENDED = [("GPU memory", SEEN), ("GPU memory", CAUSE)]
UNKNOWN_ENDED = [(UNKNOWN, SEEN), (UNKNOWN, CAUSE)]

REPORTS = {
    "nothing has ended": ([RAISED], [("GPU memory", SEEN)]),
    "torchrun says that a rank ended": ([RAISED, RANK_ENDED, RANK_ENDED], MEMORY_ENDED),
    "Ray's job failed": ([RAISED, ENDED, ENDED], MEMORY_ENDED),
    "a step of Slurm ended": ([RAISED, STEP_ENDED, STEP_ENDED], MEMORY_ENDED),
    "a task of Ray passes it on": ([RAISED, TASK_ENDED, TASK_ENDED], MEMORY_ENDED),
    "a fault of the driver is an end by its form": (
        ["NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."],
        [("Xid", CAUSE)],
    ),
    "the end of a native program is one": (
        ["terminate called after throwing an instance of 'x'\n  what():  CUDA out of memory. Try"],
        [("GPU memory", CAUSE)],
    ),
    "steps followed": (
        [f"{RAISED}\nstep 4/40 mean reward 0.61\nstep 5/40 mean reward 0.62\n{ENDED}"],
        [],
    ),
    "a program may have handled what has no row": (
        [f"{TRACE}ValueError: 42", "x"],
        [(UNKNOWN, SEEN)],
    ),
    "what has no row ended something": ([f"{TRACE}ValueError: 42", ENDED, ENDED], UNKNOWN_ENDED),
    "the first of two that nobody caught": (
        [f"{UNCAUGHT}ValueError: 42", f"{UNCAUGHT}ValueError: 43", ENDED],
        UNKNOWN_ENDED,
    ),
    "a stronger sign is seen anew": (
        [f"{TRACE}ValueError: 42", f"{TRACE}ValueError: 43", f"{UNCAUGHT}ValueError: 44"],
        [(UNKNOWN, SEEN), (UNKNOWN, SEEN)],
    ),
    "programs print a line by itself in passing": ([LOGGED, "x"], []),
    "a line by itself is never what ended something": ([LOGGED, ENDED, ENDED], [(UNKNOWN, SEEN)]),
    "a row of what jobs print in passing": ([IN_PASSING, "x"], []),
    "nobody caught what jobs print in passing": (
        [IN_PASSING.replace("in f", "in <module>")],
        [("model API not reached", SEEN)],
    ),
    "a text of the model is not even seen": ([f"[response] look:\n{RAISED}\n[score] 0"], []),
    "a line of documentation is not even seen": ([f"If you see {OOM}, lower it"], []),
}


@pytest.mark.parametrize(("texts", "reports"), REPORTS.values(), ids=REPORTS)
def test_an_error_is_reported_as_seen_and_once_it_ended_something(
    texts: list[str], reports: list[tuple[str, bool]]
) -> None:
    """Once each."""
    errors = LiveErrors()
    found = [known for text in texts for known in errors.read(text.split("\n"))]
    assert [(known.key, known.is_seen) for known in found] == reports


@pytest.mark.parametrize(
    ("text", "report"),
    [
        (OOM, ("GPU memory", CAUSE)),
        (LOGGED, (UNKNOWN, SEEN)),
        (IN_PASSING, ("model API not reached", SEEN)),
    ],
)
def test_steps_that_stop_end_a_job(text: str, report: tuple[str, bool]) -> None:
    """Without a line that says so."""
    errors = LiveErrors()
    errors.read(text.split("\n"))
    stopped = errors.read([], has_stopped=True)
    assert [(known.key, known.is_seen) for known in stopped] == [report]


def test_the_first_cause_so_far_is_known_without_a_row() -> None:
    """Other nodes compare it with theirs."""
    errors = LiveErrors()
    errors.read(f"{TRACE}ValueError: 42".split("\n"))
    assert errors.first is not None
    assert (errors.first.key, errors.first.line) == (UNKNOWN, "ValueError: 42")


def test_a_part_of_a_traceback_is_not_looked_at() -> None:
    """The rest may show another cause; at the end of the output it counts as it is."""
    header, frame, code, end = RAISED.split("\n")
    errors = LiveErrors()
    chained = [header, frame, code, "KeyError: 'x'", "", *CHAINED, header, frame, code]
    assert errors.read(chained) == []
    assert [known.key for known in errors.read([end])] == ["GPU memory"]
    errors = LiveErrors()
    assert errors.read([*chained[:4], header]) == []
    assert [known.key for known in errors.close()] == [UNKNOWN]
    assert errors.close() == []


def test_context_may_lie_in_an_earlier_piece() -> None:
    """A running job's output comes in pieces; an error's frames may be in the one before."""
    errors = LiveErrors()
    assert errors.read(['  File "/x/rl_dataset.py", line 9, in _build_messages']) == []
    assert errors.read(["    messages = row['problem']"]) == []
    assert [known.key for known in errors.read(["KeyError: 'problem'"])] == ["data column"]
    assert [known.key for known in find_known_lines(["x", "KeyError: 'problem'"])] == [UNKNOWN]


def test_what_the_kernel_printed_before_the_attempt_is_no_cause() -> None:
    """Its lines have their own times."""
    began = 1_764_151_930.0  # 2025-11-26 10:12:10
    old = "[Sun Nov 23 09:00:00 2025] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."
    assert LiveErrors(began).read([old]) == []
    assert LiveErrors(began).read([old.replace("Sun Nov 23", "Wed Nov 26")]) != []
