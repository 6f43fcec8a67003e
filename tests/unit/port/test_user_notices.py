"""Which moments of a run are worth a message, each once, and with which sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base import ends
from agent.decisions.head.head_state import HeadPhase
from agent.port.status_model import AdviceStatus, StallStatus
from agent.port.user_notices import (
    LONGEST_CONTENT,
    Notice,
    Noticed,
    first_noticed,
    notice_of_end,
    notices_of,
)
from support.statuses import a_group, a_member, altered
from tools.page.situations import made_run

if TYPE_CHECKING:
    from agent.port.status_model import HeadStatus

OK = made_run("ok", 3).status  # attempt 2 runs
FIRST = altered(replace(OK, attempts=()), "job", attempt=1)
BEFORE = replace(FIRST, phase=HeadPhase.BOOTING)
HANG = made_run("hang", 3).status


def sent(*statuses: HeadStatus, first: HeadStatus = BEFORE) -> list[Notice]:
    """Return what is sent for statuses that follow each other."""
    noticed = first_noticed(first)
    notices: list[Notice] = []
    for status in statuses:
        noticed, some = notices_of(noticed, status)
        notices += some
    return notices


def test_a_start_and_a_loss() -> None:
    """The first attempt runs, a node is missing, the attempt is lost, the next one runs."""
    missing = replace(FIRST, loss_seconds_left=50.0)
    (before, _open) = OK.attempts
    booting = replace(OK, phase=HeadPhase.BOOTING, attempts=(before,))
    notices = sent(FIRST, FIRST, missing, missing, booting, booting, OK, OK)
    assert [notice.moment for notice in notices] == ["start", "loss", "loss", "start"]
    assert notices[0].sentence == "verl-grpo, attempt 1 of 3 runs on 3 nodes."
    assert notices[1].sentence == "A needed node is missing."
    assert "ends in 50 s unless all are back" in notices[1].reason
    assert notices[2].sentence == f"attempt 1 of 3 was lost: {before.reason}."
    assert [notice.sign for notice in notices] == ["●", "▲", "▲", "●"]


def test_a_stall_and_advice_to_end() -> None:
    """Once an attempt; the advice again only after the run was fine."""
    broken = made_run("collapse", 3).status
    notices = sent(OK, HANG, HANG, OK, HANG, broken, broken, OK, broken)[2:]
    assert [notice.moment for notice in notices] == ["stall", "advice", "advice"]
    assert notices[0].sentence == "No step for 14 min 20 s since step 212."
    assert notices[1].sentence.startswith("The mean reward fell from 0.")
    assert {notice.sign for notice in notices} == {"■"}


def test_nothing_of_a_group_serves() -> None:
    """One message, once that has lasted a minute, and another one after an end of it."""
    short = "no engine serves since 14:02 UTC: all 2 on pod4: exit code 1"
    since = OK.seconds - 59.0
    starved = replace(OK, groups=(a_group(a_member(0, "dead"), short=short, nothing_since=since),))
    later = replace(starved, seconds=OK.seconds + 1.0)
    notices = sent(OK, starved, later, later, OK, later)[2:]
    assert [notice.moment for notice in notices] == ["loss", "loss"]
    assert notices[0].sentence == "No engine serves since 14:02 UTC: all 2 on pod4: exit code 1."


def test_a_lost_reward() -> None:
    """A server that fails costs steps: it is sent once, and again only after it was mended."""
    what = "the mean reward fell from 0.5 to 0 in one step, at step 40: the server failed"
    advice = AdviceStatus(what, "Mend what failed", "look", "reward", is_reward_lost=True)
    lost = replace(OK, advice=(advice,))
    falls = replace(OK, advice=(replace(advice, is_reward_lost=False),))
    notices = sent(OK, lost, lost, falls, lost)[2:]
    assert [notice.moment for notice in notices] == ["advice", "advice"]
    assert notices[0].sentence == f"T{what[1:]}."
    assert (notices[0].sign, notices[0].reason) == ("▲", "Mend what failed")


def test_money_that_is_nearly_used_and_a_limit_without_a_price() -> None:
    """Each once."""
    none = replace(OK, max_cost=100.0, cost=None)
    most = replace(OK, max_cost=100.0, cost=85.0)
    notices = sent(OK, none, none, replace(most, cost=50.0), most, most)[2:]
    assert [notice.moment for notice in notices] == ["cost", "cost"]
    assert notices[0].sentence == "AGENT_MAX_COST has no effect yet: no price is known."
    assert notices[1].sentence == "$85.00 of AGENT_MAX_COST=$100 are used."
    assert {notice.sign for notice in notices} == {"▲"}


def test_a_stall_that_ends_the_attempt_is_to_be_looked_at() -> None:
    """The sign is that of the judgment."""
    stall = StallStatus("no step for 14 min", "retry", "", (), "agent")
    assert [notice.sign for notice in sent(OK, replace(OK, stall=stall))[2:]] == ["▲"]


@pytest.mark.parametrize("phase", [HeadPhase.RESUMING, HeadPhase.RUNNING])
def test_an_agent_that_goes_on_repeats_nothing(phase: HeadPhase) -> None:
    """After a killed agent, the start and earlier losses are no news."""
    first = replace(OK, phase=phase)
    assert first_noticed(first) == Noticed(started=2, ended=1)
    assert sent(OK, first=first) == []


def test_a_run_that_ends_or_has_no_job_sends_nothing_here() -> None:
    """Its end is sent by itself."""
    assert sent(made_run("failed", 3).status, made_run("cluster", 3).status) == []


@pytest.mark.parametrize(
    ("outcome", "sign"),
    [
        (ends.JOB_SUCCEEDED.outcome(before=""), "●"),
        (ends.stopped(15, expected=False), "●"),
        (ends.MAX_HOURS.outcome(hours=2.0), "■"),
    ],
)
def test_the_end_has_its_sign(outcome: ends.Outcome, sign: str) -> None:
    """A person is needed for what neither succeeded nor was stopped by one."""
    notice = notice_of_end(outcome, 7200.0, None)
    assert notice.sign == sign
    assert notice.sentence.endswith(f"after 2 h (exit code {outcome.exit_code}).")


def test_a_long_text_fits_and_calls_nobody() -> None:
    """Discord accepts 2,000 characters; a quoted line must not call a whole channel."""
    notice = Notice("end", "■", f"@everyone <!channel> {'x' * 3000}", "@here @torch.jit")
    message = notice.to_json("run-1", "first sums", "ssh -L 1:localhost:1 a · http://localhost:1")
    assert len(message["content"]) == LONGEST_CONTENT
    assert message["content"].endswith("…")
    assert len(message["text"]) > 3000
    assert "@everyone" not in message["text"]
    assert "<!channel" not in message["text"]
    assert message["reason"] == "@\u200bhere @torch.jit"
    assert message["url"] == "http://localhost:1"
