"""How a run ended: exit code, reason and remedy in one value."""

from __future__ import annotations

import signal
from enum import Enum

from msgspec import convert, to_builtins

from agent.base.value import ExitCode, Value

STARTING = "starting"
"""The phase of a run that failed before its first phase."""
HIGHEST_CODE = 255
"""The largest exit code: the kernel keeps 8 bits, so 1792 would become 0."""


class Kind(str, Enum):
    """The kinds of outcomes."""

    DONE = "done"
    JOB_FAILED = "job-failed"
    STOPPED = "stopped"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    LOST = "lost"
    BUG = "bug"


class Outcome(Value):
    """The outcome of a run, as the user reads it and as the head sends it to the workers."""

    kind: Kind
    exit_code: ExitCode
    reason: str
    phase: str = ""
    culprit: str = ""
    remedy: str = ""
    is_jobs_verdict: bool = False
    """True if the job itself ended."""
    attempts_are_used_up: bool = False
    """True if no attempt may follow: every allowed one was lost, or AGENT_MAX_HOURS is over."""
    is_superseded: bool = False
    """True if a later head continues the run: then this outcome is of this node alone."""

    @property
    def holds_pod(self) -> bool:
        """Return whether AGENT_ON_DONE=hold holds the pod: a restart could not do more."""
        return self.is_jobs_verdict or self.attempts_are_used_up

    @property
    def is_failure(self) -> bool:
        """Return whether the run neither succeeded nor was stopped."""
        return self.exit_code != 0 and self.kind is not Kind.STOPPED

    @property
    def needs_bundle(self) -> bool:
        """Return whether a diagnostics bundle is useful: a run that never started has no logs."""
        return self.is_failure and self.phase != STARTING

    def sentence(self) -> str:
        """Return the outcome in one line, the last that this node prints."""
        text = f"{self.kind.value}: {self.reason} (exit code {self.exit_code})"
        return f"{text}. {self.remedy}" if self.remedy else text

    def to_dict(self) -> dict[str, object]:
        """Return the form that is sent to the workers and written to outcome.json."""
        return to_builtins(self)  # type: ignore[no-any-return]  # msgspec returns a dict for a struct

    @classmethod
    def from_dict(cls, data: object) -> Outcome:
        """Read what `to_dict` returned; raises ValueError for other data."""
        return convert(data, cls)


def shell_code(returncode: int) -> int:
    """Return the exit code as a shell reports it: 128+n for signal n, at most 255."""
    return min(128 - returncode if returncode < 0 else returncode, HIGHEST_CODE)


def name_of_code(code: int) -> str:
    """Name an exit code: '7', or '137 (SIGKILL)'."""
    if code > 128:
        try:
            return f"{code} ({signal.Signals(code - 128).name})"
        except ValueError:
            return str(code)
    return str(code)


def name_of_signal(signum: int) -> str:
    """Name a signal: 'SIGHUP', or 'signal 37' for real-time signals."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
