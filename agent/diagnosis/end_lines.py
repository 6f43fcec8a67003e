"""The lines of the log about the end of a run: how it ended, what shows why, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.base.ends import Kind, Outcome
from agent.base.text import duration_text, number_text
from agent.decisions.shared import LogLine, place, shortened

if TYPE_CHECKING:
    from agent.diagnosis.find_cause import Diagnosis


class RunEnd(NamedTuple):
    """The end of a run, and what is known of its job."""

    outcome: Outcome  # without what a diagnosis adds to its remedy
    diagnosis: Diagnosis | None = None
    step: int | None = None  # the last one of the job
    job_seconds: float | None = None  # since the last submission
    checkpoint: int | None = None  # the step from which the same command continues


def end_lines(end: RunEnd) -> list[LogLine]:
    """Return the lines: one for a success, up to four for a failure."""
    outcome = end.outcome
    step = "" if end.step is None else f" · {end.step} steps"
    if outcome.is_warning:
        return [LogLine(outcome.reason, "warning", "job")]
    if outcome.kind is Kind.DONE and outcome.is_jobs_verdict:
        return [LogLine(f"succeeded{step}", "done", "job", end.job_seconds)]
    if not outcome.is_failure:
        return [LogLine(outcome.reason, subject="run")]

    # What is the cause, as far as a log shows it?
    diagnosis = end.diagnosis
    what = outcome.reason
    remedy = outcome.remedy
    shown: list[LogLine] = []
    if diagnosis is not None and diagnosis.line:
        shown = [LogLine(f"{shortened(diagnosis.line)} ({diagnosis.source})", subject="line")]
    if diagnosis is not None and diagnosis.row is not None:
        what = f"{diagnosis.cause}{place(diagnosis.node, diagnosis.rank)}"
        remedy = diagnosis.what_to_do
        if end.step is not None:
            what += f", step {end.step}"

    # What is to be done about it, and what is lost?
    subject = "job" if outcome.kind is Kind.JOB_FAILED else "run"
    lines = [LogLine(what, "error", subject), *shown]
    if remedy:
        lines.append(LogLine(remedy, subject="do"))
    if end.checkpoint is not None:
        lost = "" if end.step is None else f"; {max(0, end.step - end.checkpoint)} steps lost"
        again = f"the same command continues at step {end.checkpoint}{lost}"
        lines.append(LogLine(again, subject="resume"))
    return lines


def totals(seconds: float, rewards: list[tuple[int, float]], cost: float | None, where: str) -> str:
    """Return what a run took, how its reward moved, what it cost, and where its records are."""
    parts = [duration_text(seconds)]
    if rewards:
        first, last = (number_text(rewards[at][1], 2) for at in (0, -1))
        parts.append(f"reward {first} → {last}")
    if cost is not None:
        parts.append(f"${cost:.2f}")
    return " · ".join([*parts, where])
