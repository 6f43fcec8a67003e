"""The outcome that follows from a job's status in Ray."""

from __future__ import annotations

import re

from agent.base.outcome import Kind, Outcome, name_of_code, shell_code
from agent.base.value import dataclass

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})

_SETUP_FAILURE = "RUNTIME_ENV_SETUP_FAILURE"
_SETUP_WORDS = re.compile(
    r"runtime_env setup failed|failed to set up (the )?runtime", re.IGNORECASE
)
"""The message of Ray before 2.43, which has no error type."""
_AGENT_WORDS = re.compile(
    r"runtime env agent (network error|timed out)|connect to (the )?runtime env agent"
    r"|fate shares with the agent",
    re.IGNORECASE,
)
"""Messages of Ray 2.60 when its own runtime_env process fails, not the runtime_env."""
MEMORY_REMEDY = "Give the pods more memory, or the job less to hold: fewer workers, smaller batches"
_MEMORY_WORDS = re.compile(r"OutOfMemoryError|\bout of memory\b|low on memory", re.IGNORECASE)
"""The messages of Ray's OOM killer, CUDA and the C library."""


@dataclass(frozen=True)
class JobReport:
    """The status of the job, from Ray or from torchrun's shares."""

    status: str
    message: str = ""
    driver_exit_code: int | None = None
    error_type: str = ""
    place: str = ""
    """The process that failed, if known."""
    memory: str = ""
    """What the kernel's OOM killer did just before, or ''."""

    @property
    def ended(self) -> bool:
        """Return whether the job has ended."""
        return self.status in TERMINAL

    @property
    def first_message_line(self) -> str:
        """Return the first line of the message."""
        lines = self.message.strip().splitlines()
        return lines[0] if lines else "no message"

    @property
    def ran_out_of_memory(self) -> bool:
        """Return whether it failed for lack of memory."""
        return not self.succeeded and bool(self.memory or _MEMORY_WORDS.search(self.message))

    @property
    def succeeded(self) -> bool:
        """Return whether it ended with success."""
        return self.status == "SUCCEEDED"

    @property
    def blames_runtime_env(self) -> bool:
        """Return whether the runtime_env itself is the reason that it could not be set up."""
        if _AGENT_WORDS.search(self.message):
            return False
        if self.error_type:
            return _SETUP_FAILURE in self.error_type.upper()
        return bool(_SETUP_WORDS.search(self.message))


def verdict_of(report: JobReport, loss: str = "") -> Outcome:
    """Return the outcome of the run for the end of its job; `loss` names a node lost before."""
    after = f"; before that, {loss}" if loss else ""
    code = report.driver_exit_code
    if report.succeeded:
        return _job_outcome(Kind.DONE, 0, f"the job succeeded{after}")
    if report.status == "STOPPED":
        return _job_outcome(Kind.STOPPED, 143, f"the job was stopped from outside{after}")
    if code is not None and code != 0:
        code = shell_code(code)
        place = f" ({report.place})" if report.place else ""
        message = f": {report.first_message_line}" if report.place and report.message else ""
        how = f"failed with exit code {name_of_code(code)}{place}{message}"
        if report.ran_out_of_memory:
            by_kernel = f": {report.memory}" if report.memory else ""
            how = f"ran out of memory (exit code {name_of_code(code)}){by_kernel}"
        remedy = "Its output is in job.log"
        return _job_outcome(Kind.JOB_FAILED, code, f"the job {how}{after}", remedy=remedy)
    if report.blames_runtime_env:
        return Outcome(
            Kind.REFUSED,
            78,
            f"the job's runtime_env could not be set up: {report.first_message_line}",
            culprit="AGENT_RUNTIME_ENV",
            remedy="Correct AGENT_RUNTIME_ENV or AGENT_WORKING_DIR",
        )
    if report.ran_out_of_memory:
        return out_of_memory(f"{report.memory or report.first_message_line}{after}")
    return Outcome(
        Kind.LOST,
        75,
        f"the job failed without an exit code of its own: {report.first_message_line}{after}",
        culprit="job",
    )


def out_of_memory(why: str) -> Outcome:
    """Return the outcome of a job that ran out of memory: it is not retried."""
    why = f"the job ran out of memory and is not tried again: {why}"
    return _job_outcome(Kind.JOB_FAILED, 75, why, MEMORY_REMEDY)


def _job_outcome(kind: Kind, code: int, reason: str, remedy: str = "") -> Outcome:
    culprit = "" if kind is Kind.DONE else "job"
    return Outcome(kind, code, reason, culprit=culprit, remedy=remedy, is_jobs_verdict=True)
