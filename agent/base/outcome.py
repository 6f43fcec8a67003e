"""How a run ended: one value, from which exit code, outcome.json and the last line follow."""

from __future__ import annotations

import dataclasses
import signal
from enum import Enum
from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.ranges import ExitCode


BEFORE_ALL = "starting"
"""The phase of a run that could not begin."""
HIGHEST_CODE = 255
"""An exit code above it loses its higher bits: 1792 is 0, success."""


class Kind(str, Enum):
    """The seven ways for a run to end."""

    DONE = "done"
    JOB_FAILED = "job-failed"
    STOPPED = "stopped"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    LOST = "lost"
    BUG = "bug"


@dataclass(frozen=True)
class Outcome:
    """The end of a run, as the user reads it and as the other nodes hear it."""

    kind: Kind
    exit_code: ExitCode
    reason: str
    phase: str = ""
    culprit: str = ""
    remedy: str = ""
    is_jobs_verdict: bool = False
    """True where the job itself ended."""
    attempts_are_used_up: bool = False
    """True where the attempts at the job were lost, and no other may follow."""
    is_superseded: bool = False
    """True where a later head of the same run goes on with it: this end is no other node's."""

    @property
    def is_worth_a_hold(self) -> bool:
        """Say whether a pod is held for it, which would be started again and could do no more."""
        return self.is_jobs_verdict or self.attempts_are_used_up

    @property
    def is_failure(self) -> bool:
        """Say whether it ended otherwise than well or as it was asked to."""
        return self.exit_code != 0 and self.kind is not Kind.STOPPED

    @property
    def is_worth_a_bundle(self) -> bool:
        """Say whether there are logs to look at: of a run that could not begin there are none."""
        return self.is_failure and self.phase != BEFORE_ALL

    def sentence(self) -> str:
        """Say the end in one line, the last that this node prints."""
        text = f"{self.kind.value}: {self.reason} (exit code {self.exit_code})"
        return f"{text}. {self.remedy}" if self.remedy else text

    def to_dict(self) -> dict[str, object]:
        """Return what travels to the workers and into outcome.json."""
        return {**dataclasses.asdict(self), "kind": self.kind.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Outcome:
        """Read what `to_dict` wrote; raises ValueError or KeyError where it is not that."""
        code = data["exit_code"]
        if type(code) is not int or not 0 <= code <= HIGHEST_CODE:
            raise ValueError(f"exit_code: expected a whole number from 0 to {HIGHEST_CODE}")
        return cls(
            kind=Kind(str(data["kind"])),
            exit_code=code,
            reason=str(data["reason"]),
            phase=str(data.get("phase", "")),
            culprit=str(data.get("culprit", "")),
            remedy=str(data.get("remedy", "")),
            is_jobs_verdict=data.get("is_jobs_verdict") is True,
            attempts_are_used_up=data.get("attempts_are_used_up") is True,
            is_superseded=data.get("is_superseded") is True,
        )


def shell_code(returncode: int) -> int:
    """Return a process's end as a shell tells it: 128+n for signal n.

    A code that no process can exit with, as others may report one, is the highest.
    """
    return min(128 - returncode if returncode < 0 else returncode, HIGHEST_CODE)


def name_of_code(code: int) -> str:
    """Name an exit code: '7', or '137 (SIGKILL)'."""
    if code > 128:
        try:
            return f"{code} ({signal.Signals(code - 128).name})"
        except ValueError:
            return str(code)
    return str(code)


def stopped(signum: int, *, expected: bool) -> Outcome:
    """Return the end that a signal asked for; `expected` where staying was the whole task.

    It is named as what it was; its code tells Ctrl-C from all others, which end as SIGTERM does.
    """
    name = name_of_signal(signum)
    code = 128 + (signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)
    return Outcome(Kind.STOPPED, 0 if expected else code, f"asked to stop by {name}", culprit=name)


def name_of_signal(signum: int) -> str:
    """Name a signal: 'SIGHUP', or 'signal 37' for most of those that have no fixed use."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
