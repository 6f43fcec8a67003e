"""What Ray says of a job, and which verdict follows from it."""

from __future__ import annotations

import re

from agent.base.outcome import Kind, Outcome, name_of_code, shell_code
from agent.base.value import dataclass

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})

_SETUP_FAILURE = "RUNTIME_ENV_SETUP_FAILURE"
_SETUP_WORDS = re.compile(
    r"runtime_env setup failed|failed to set up (the )?runtime", re.IGNORECASE
)
"""How Rays say it that give no error type (before 2.43)."""
_AGENT_WORDS = re.compile(
    r"runtime env agent (network error|timed out)|connect to (the )?runtime env agent"
    r"|fate shares with the agent",
    re.IGNORECASE,
)
"""How Ray says that not the runtime_env is at fault, but its own process that sets it up (2.60)."""
MORE_MEMORY = "Give the pods more memory, or the job less to hold: fewer workers, smaller batches"
_MEMORY_WORDS = re.compile(r"OutOfMemoryError|\bout of memory\b|low on memory", re.IGNORECASE)
"""How Ray's OOM killer, CUDA and the C library say it."""


@dataclass(frozen=True)
class JobReport:
    """One answer of Ray's about the job."""

    status: str
    message: str = ""
    driver_exit_code: int | None = None
    error_type: str = ""
    place: str = ""
    """Which of the job's processes it was, where that is known."""
    memory: str = ""
    """What the kernel did a moment before for want of memory, or ''."""

    @property
    def ended(self) -> bool:
        """Say whether the job is over."""
        return self.status in TERMINAL

    @property
    def first_line(self) -> str:
        """Return the beginning of Ray's message."""
        lines = self.message.strip().splitlines()
        return lines[0] if lines else "no message"

    @property
    def ran_out_of_memory(self) -> bool:
        """Say whether its last words tell of memory that did not suffice."""
        return not self.succeeded and bool(self.memory or _MEMORY_WORDS.search(self.message))

    @property
    def succeeded(self) -> bool:
        """Say whether it is over and went well."""
        return self.status == "SUCCEEDED"

    @property
    def blames_runtime_env(self) -> bool:
        """Say whether the runtime_env could not be set up, by a fault of its own."""
        if _AGENT_WORDS.search(self.message):
            return False
        if self.error_type:
            return _SETUP_FAILURE in self.error_type.upper()
        return bool(_SETUP_WORDS.search(self.message))


def verdict_of(report: JobReport, loss: str = "") -> Outcome:
    """Turn the end of a job into the outcome of the run; `loss` names a node lost before."""
    after = f"; before that, {loss}" if loss else ""
    code = report.driver_exit_code
    if report.succeeded:
        return _jobs_own(Kind.DONE, 0, f"the job succeeded{after}")
    if report.status == "STOPPED":
        return _jobs_own(Kind.STOPPED, 143, f"the job was stopped from outside{after}")
    if code is not None and code != 0:
        code = shell_code(code)
        place = f" ({report.place})" if report.place else ""
        words = f": {report.first_line}" if report.place and report.message else ""
        how = f"failed with exit code {name_of_code(code)}{place}{words}"
        if report.ran_out_of_memory:
            by_kernel = f": {report.memory}" if report.memory else ""
            how = f"ran out of memory (exit code {name_of_code(code)}){by_kernel}"
        remedy = "Its output is in job.log"
        return _jobs_own(Kind.JOB_FAILED, code, f"the job {how}{after}", remedy=remedy)
    if report.blames_runtime_env:
        return Outcome(
            Kind.REFUSED,
            78,
            f"the job's runtime_env could not be set up: {report.first_line}",
            culprit="AGENT_RUNTIME_ENV",
            remedy="Correct AGENT_RUNTIME_ENV or AGENT_WORKING_DIR",
        )
    if report.ran_out_of_memory:
        return out_of_memory(f"{report.memory or report.first_line}{after}")
    return Outcome(
        Kind.LOST,
        75,
        f"the job failed without an exit code of its own: {report.first_line}{after}",
        culprit="job",
    )


def out_of_memory(why: str) -> Outcome:
    """Return the end of a run whose job ran out of memory: it would do so again."""
    why = f"the job ran out of memory and is not tried again: {why}"
    return _jobs_own(Kind.JOB_FAILED, 75, why, MORE_MEMORY)


def _jobs_own(kind: Kind, code: int, reason: str, remedy: str = "") -> Outcome:
    culprit = "" if kind is Kind.DONE else "job"
    return Outcome(kind, code, reason, culprit=culprit, remedy=remedy, is_jobs_verdict=True)
