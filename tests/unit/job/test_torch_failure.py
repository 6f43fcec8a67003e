"""The first failed rank, from torchrun's messages: captured from 1.13, 2.1 and 2.13."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.job.torchrun_command import first_failure, seconds_since_closing

NOON = 12 * 3600.0
CLOSING = (
    "W1122 11:59:50.500000 17301 torch/distributed/elastic/multiprocessing/api.py:1028] "
    "Sending process 17305 closing signal SIGTERM"
)
FAILED = (
    "E1122 11:59:58.250000 17301 torch/distributed/elastic/multiprocessing/api.py:1002] "
    "failed (exitcode: {}) local_rank: 1 (pid: 17306) of binary: /opt/conda/bin/python"
)
OLDER = (
    "[2026-11-22 11:59:58,250] torch.distributed.elastic.multiprocessing.api: [ERROR] "
    "failed (exitcode: {}) local_rank: 1 (pid: 29) of binary: /opt/conda/bin/python"
)
OLDEST = (
    "ERROR:torch.distributed.elastic.multiprocessing.api:"
    "failed (exitcode: {}) local_rank: 1 (pid: 29) of binary: /opt/conda/bin/python"
)
TOLD = (
    "W1122 11:59:49.000000 17301 torch/distributed/elastic/agent/server/api.py:1] "
    "Received Signals.SIGTERM death signal, shutting down workers"
)
SUMMARY = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
f.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_05:27:58
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 17305)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 17305
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_05:27:58
  host      : localhost
  rank      : 5 (local_rank: 1)
  exitcode  : {} (pid: 17306)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.parametrize(("printed_code", "code"), [("7", 7), ("-9", 137), ("1", 1), ("-6", 134)])
@pytest.mark.parametrize(
    ("text", "ago"),
    [
        (FAILED, 1.75),
        (OLDER, 1.75),
        (OLDEST, 0.0),
        (f"step 3\n{CLOSING}\nbye\n{FAILED}\n{SUMMARY}", 9.5),
        (f"{TOLD}\n{CLOSING}\n{FAILED}", 1.75),
    ],
)
def test_the_first_failure(text: str, ago: float, printed_code: str, code: int) -> None:
    """Its code as a shell tells it, its local rank, and how long ago torchrun noticed."""
    found = first_failure(text.replace("{}", printed_code), NOON)
    assert found is not None
    assert (found.code, found.local_rank) == (code, 1)
    assert found.ago == pytest.approx(ago)


def test_midnight_and_a_clock_that_was_set_back() -> None:
    """A failure before midnight is a moment ago; one in the future is now."""
    late = FAILED.replace("11:59:58.25", "23:59:59.25").replace("{}", "1")
    found = first_failure(late, 0.5)
    assert found is not None
    assert found.ago == pytest.approx(1.25)
    found = first_failure(FAILED.replace("{}", "1"), NOON - 60)
    assert found is not None
    assert found.ago == 0.0


@pytest.mark.parametrize(
    "text", ["", "step 1\n", TOLD, f"{TOLD}\n{CLOSING}", "failed (exitcode: x)"]
)
def test_no_failure(text: str) -> None:
    """A rank that was stopped has not failed; nor has one without a message."""
    assert first_failure(text, NOON) is None
    assert seconds_since_closing(text, NOON) is None


def test_closing_by_itself() -> None:
    """A torchrun that stops its ranks unasked has seen one fail."""
    assert seconds_since_closing(f"step\n{CLOSING}\n", NOON) == 9.5


@given(st.text(max_size=300))
def test_any_output_can_be_read(text: str) -> None:
    """A job may write anything."""
    first_failure(text + FAILED, NOON)
