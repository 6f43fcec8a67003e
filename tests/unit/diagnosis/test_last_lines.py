"""Plain words near the end of a log, where no line is marked as an error."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.searched_log import Log


def found(text: str, *, of_ray: bool = False) -> Diagnosis:
    """Return the diagnosis of one log."""
    return diagnose_logs([Log("", "job.log", text, of_ray=of_ray)])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("loading\nHost key verification failed.", "Host key verification failed."),
        (
            "Host key verification failed.\nsrun: error: n0: task 0: Exited with exit code 255",
            "Host key verification failed.",
        ),
        (
            "There are not enough places left for the 16\nplaces: 8",
            "There are not enough places left for the 16",
        ),
        ("加载模型\n找不到模型文件 /models/a", "找不到模型文件 /models/a"),
        (
            "git@x: Permission denied (publicly).\nfatal: Could not read from remote repository.",
            "git@x: Permission denied (publicly).",
        ),
        (
            "the job was killed at its time limit\nno cache found",
            "the job was killed at its time limit",
        ),
        (
            "INFO 11-26 20:12:10 [x.py:1] the quota of the queue is used up, leaving",
            "the quota of the queue is used up, leaving",
        ),
    ],
)
def test_plain_words_near_the_end_are_quoted(text: str, line: str) -> None:
    """The first of the last ones that complain; the sentence does not call it an error."""
    answer = found(text)
    assert answer.line == line
    assert answer.row is None
    assert answer.remedy().startswith("Look at the line that may say why, in job.log")


@pytest.mark.parametrize(
    "text",
    [
        "loading\nall is well",
        "the cache is missing\nstep:1 - loss:0.1",  # a step followed
        "0 errors\n100%|####| 3/3 [00:01<00:00, 2.9it/s]",
        "x.py:1: UserWarning: the cache is missing",
        "WARNING 11-26 20:12:10 [x.py:1] the socket was closed. Did the server crash or shut down?",
        "If the port is not available, try another one",
        "<think>\nthe file is missing\n</think>",
        "the cache is missing\n" + "loading\n" * 30,
        "WARNING 11-26 20:12:10 [x.py:1] the cache is missing",
        "Cache file not found, falling back to the network",
        "n1:7:8 [0] NCCL INFO comm 0x26 rank 5 nranks 16 cudaDev 5 busId e1 - Abort COMPLETE",
        "Repo card metadata block was not found. Setting CardData to empty.",
    ],
)
def test_other_words_are_not(text: str) -> None:
    """What steps followed, stands in a text of the model, is advice, or lies far back."""
    assert found(text).line == ""


def test_an_error_counts_before_plain_words() -> None:
    """They are for ends that no error shows, and for the job's own output."""
    assert found("ValueError: x is y\nthe file is missing").line == "ValueError: x is y"
    assert found("the file is missing", of_ray=True).line == ""
