"""Errors of a running job: logged once, and as a cause once they ended something."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import UNKNOWN
from agent.diagnosis.live_errors import LiveErrors
from support.known_lines import find_known_lines

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
CHAINED = ("During handling of the above exception, another exception occurred:", "")
TRACE = 'Traceback (most recent call last):\n  File "/x/a.py", line 3, in f\n    g()\n'


def reported(*texts: str) -> list[tuple[str, bool]]:
    """Return the keys of what is reported of a job that prints these texts, and if as seen."""
    errors = LiveErrors()
    return [(k.key, k.is_seen) for text in texts for k in errors.read(text.split("\n"))]


@pytest.mark.parametrize(
    "end",
    [
        "E1126 20:12:10.1 2 api.py:869] failed (exitcode: 1) local_rank: 2 (pid: 7) of b",
        "Job 'raysubmit_x' failed",
        "srun: error: n0: task 0: Exited with exit code 1",
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::A.f() (pid=1, ip=10.0.0.4)",
    ],
)
def test_an_end_makes_a_cause(end: str) -> None:
    """Whatever shows it, and once."""
    assert reported(f"{TRACE}{OOM}") == [("GPU memory", True)]
    assert reported(f"{TRACE}{OOM}", end, end) == [("GPU memory", True), ("GPU memory", False)]


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
        "terminate called after throwing an instance of 'x'\n  what():  CUDA out of memory. Tried",
    ],
)
def test_some_errors_are_ends_by_their_form(text: str) -> None:
    """The driver's faults, and the end of a native program."""
    assert [is_seen for _, is_seen in reported(text)] == [False]


def test_what_steps_follow_is_no_cause() -> None:
    """Also where it was the last error before an end; without steps it becomes one."""
    step = "step 4/40 mean reward 0.61\nstep 5/40 mean reward 0.62"
    ended = "Job 'raysubmit_x' failed"
    assert reported(f"{TRACE}{OOM}\n{step}\n{ended}") == []
    errors = LiveErrors()
    errors.read([OOM])
    assert [known.is_seen for known in errors.read(["x"], has_stopped=True)] == [False]


def test_the_first_cause_so_far_is_known_without_a_row() -> None:
    """Other nodes compare it with theirs."""
    errors = LiveErrors()
    errors.read(f"{TRACE}ValueError: 42".split("\n"))
    assert errors.first is not None
    assert (errors.first.key, errors.first.line) == (UNKNOWN, "ValueError: 42")


def test_an_exception_without_a_row_is_seen_until_it_ended_something() -> None:
    """Once each; one that a program may have handled is seen, and stronger signs are seen anew."""
    uncaught = TRACE.replace("in f", "in <module>")
    ended = "Job 'raysubmit_x' failed"
    assert reported(f"{TRACE}ValueError: 42", "x") == [(UNKNOWN, True)]
    assert reported(f"{TRACE}ValueError: 42", ended, ended) == [(UNKNOWN, True), (UNKNOWN, False)]
    texts = [f"{uncaught}ValueError: 42", f"{uncaught}ValueError: 43", ended]
    assert reported(*texts) == [(UNKNOWN, True), (UNKNOWN, False)]
    texts = [f"{TRACE}ValueError: 42", f"{TRACE}ValueError: 43", f"{uncaught}ValueError: 44"]
    assert reported(*texts) == [(UNKNOWN, True), (UNKNOWN, True)]


def test_a_line_by_itself_is_seen_once_something_ended_or_stopped() -> None:
    """Programs print such lines in passing; it is never named as what ended something."""
    line = "ERROR 11-26 20:12:10 [core.py:1] cannot schedule the batch of request 7"
    ended = "Job 'raysubmit_x' failed"
    assert reported(line, "x") == []
    assert reported(line, ended, ended) == [(UNKNOWN, True)]
    errors = LiveErrors()
    errors.read([line])
    assert [known.is_seen for known in errors.read([], has_stopped=True)] == [True]


def test_a_part_of_a_traceback_is_not_looked_at() -> None:
    """The rest may show another cause; at the end of the output it counts as it is."""
    header, frame, code, end = f"{TRACE}{OOM}".split("\n")
    errors = LiveErrors()
    chained = [header, frame, code, "KeyError: 'x'", "", *CHAINED, header, frame, code]
    assert errors.read(chained) == []
    assert [known.key for known in errors.read([end])] == ["GPU memory"]
    errors = LiveErrors()
    assert errors.read([*chained[:4], header]) == []
    assert [known.key for known in errors.close()] == [UNKNOWN]
    assert errors.close() == []


def test_a_row_of_what_jobs_print_in_passing_is_reported_at_an_end() -> None:
    """Not before, unless nobody has caught it."""
    refused = "openai.APIConnectionError: Connection error."
    assert reported(f"{TRACE}{refused}", "x") == []
    key = "model API not reached"
    errors = LiveErrors()
    errors.read(f"{TRACE}{refused}".split("\n"))
    stopped = errors.read([], has_stopped=True)
    assert [(known.key, known.is_seen) for known in stopped] == [(key, True)]
    assert reported(f"{TRACE.replace('in f', 'in <module>')}{refused}") == [(key, True)]


def test_what_the_kernel_printed_before_the_attempt_is_no_cause() -> None:
    """Its lines have their own times."""
    began = 1_764_151_930.0  # 2025-11-26 10:12:10
    old = "[Sun Nov 23 09:00:00 2025] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."
    assert LiveErrors(began).read([old]) == []
    assert LiveErrors(began).read([old.replace("Sun Nov 23", "Wed Nov 26")]) != []


def test_a_text_of_the_model_is_not_even_seen() -> None:
    """Nor a line of documentation."""
    assert find_known_lines(["[response] look:", *TRACE.split("\n"), OOM, "[score] 0"]) == []
    assert find_known_lines([f"If you see {OOM}, lower it"]) == []
