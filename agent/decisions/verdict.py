"""What Ray says of a job, and which verdict follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from agent.base.outcome import Kind, Outcome, name_of_code, shell_code

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class JobReport:
    """One answer of Ray's about the job."""

    status: str
    message: str = ""
    driver_exit_code: int | None = None
    error_type: str = ""

    @property
    def ended(self) -> bool:
        """Say whether the job is over."""
        return self.status in TERMINAL


def verdict_of(report: JobReport, loss: str = "") -> Outcome:
    """Turn the end of a job into the outcome of the run; `loss` names a node lost before."""
    after = f"; before that, {loss}" if loss else ""
    code = report.driver_exit_code
    if report.status == "SUCCEEDED":
        return _jobs_own(Kind.DONE, 0, f"the job succeeded{after}")
    if report.status == "STOPPED":
        return _jobs_own(Kind.STOPPED, 143, f"the job was stopped from outside{after}")
    if code is not None and code != 0:
        code = shell_code(code)
        return _jobs_own(
            Kind.JOB_FAILED,
            code,
            f"the job failed with exit code {name_of_code(code)}{after}",
            remedy="Its output is in job.log",
        )
    first_line = report.message.strip().splitlines()[0] if report.message.strip() else "no message"
    if "RUNTIME_ENV" in report.error_type.upper() or "runtime_env" in report.message.lower():
        return Outcome(
            Kind.REFUSED,
            78,
            f"the job's runtime_env could not be set up: {first_line}",
            culprit="AGENT_RUNTIME_ENV",
            remedy="Correct AGENT_RUNTIME_ENV or AGENT_WORKING_DIR",
        )
    return Outcome(
        Kind.LOST,
        75,
        f"the job failed without an exit code of its own: {first_line}{after}",
        culprit="job",
    )


def _jobs_own(kind: Kind, code: int, reason: str, remedy: str = "") -> Outcome:
    culprit = "" if kind is Kind.DONE else "job"
    return Outcome(kind, code, reason, culprit=culprit, remedy=remedy, is_jobs_verdict=True)
