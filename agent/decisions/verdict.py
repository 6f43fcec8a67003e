"""The outcome that follows from a job's status in Ray."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.base import ends
from agent.base.outcome import name_of_code, shell_code
from agent.base.value import Value

if TYPE_CHECKING:
    from agent.base.outcome import Outcome

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
_MEMORY_WORDS = re.compile(r"OutOfMemoryError|\bout of memory\b|low on memory", re.IGNORECASE)
"""The messages of Ray's OOM killer, CUDA and the C library."""


class JobReport(Value):
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
    if report.succeeded:
        return ends.JOB_SUCCEEDED.outcome(before=after)
    if report.status == "STOPPED":
        return ends.JOB_STOPPED.outcome(before=after)
    if report.driver_exit_code:
        return _failure_with_code(report, shell_code(report.driver_exit_code), after)
    if report.blames_runtime_env:
        return ends.RUNTIME_ENV_FAILED.outcome(evidence=report.first_message_line)
    if report.ran_out_of_memory:
        evidence = report.memory or report.first_message_line
        return ends.OUT_OF_MEMORY.outcome(evidence=f"{evidence}{after}")
    return ends.FAILED_WITHOUT_CODE.outcome(evidence=report.first_message_line, before=after)


def _failure_with_code(report: JobReport, code: int, after: str) -> Outcome:
    name = name_of_code(code)
    if report.ran_out_of_memory:
        details = f": {report.memory}" if report.memory else ""
        return ends.JOB_OUT_OF_MEMORY.outcome(
            code=code, code_name=name, details=details, before=after
        )
    details = f" ({report.place})" if report.place else ""
    details += f": {report.first_message_line}" if report.place and report.message else ""
    return ends.JOB_FAILED.outcome(code=code, code_name=name, details=details, before=after)
