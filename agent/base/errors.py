"""The one hierarchy of errors: each says what happened, why, and what to do about it."""

from __future__ import annotations

from agent.base.outcome import BEFORE_ALL, Kind, Outcome
from agent.base.value import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing wrong with what the user asked for, by the variable's name."""

    variable: str
    got: str
    expected: str

    def sentence(self) -> str:
        """Say the problem and its remedy in one line."""
        return f"{self.variable}: got {self.got}; expected {self.expected}"


class AgentError(Exception):
    """Something a user can cause or meet: never shown with a traceback."""

    kind = Kind.BUG
    exit_code = 70

    def __init__(self, what: str, *, why: str = "", remedy: str = "", culprit: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.remedy = remedy
        self.culprit = culprit

    @property
    def reason(self) -> str:
        """Say what happened and why."""
        return f"{self.what}: {self.why}" if self.why else self.what

    def sentence(self) -> str:
        """Say all of it in one line."""
        return f"{self.reason}. {self.remedy}" if self.remedy else self.reason

    def outcome(self) -> Outcome:
        """Return the end of a run that could not begin."""
        code, reason = self.exit_code, self.reason
        return Outcome(self.kind, code, reason, BEFORE_ALL, self.culprit, self.remedy)


class SettingsError(AgentError):
    """The environment asks for something impossible; all problems at once."""

    kind = Kind.REFUSED
    exit_code = 78

    def __init__(self, problems: tuple[Problem, ...], hints: tuple[str, ...] = ()) -> None:
        names = ", ".join(dict.fromkeys(problem.variable for problem in problems))
        many = f"{len(problems)} problems in the settings ({names})"
        super().__init__(
            problems[0].sentence() if len(problems) == 1 else many,
            remedy="Fix and run again; `python -m agent env` shows every variable",
            culprit=problems[0].variable,
        )
        self.problems = problems
        self.hints = hints
        """What else may explain them, such as a variable whose name is nearly ours."""


class PreflightError(AgentError):
    """This machine cannot do what was asked of it."""

    kind = Kind.REFUSED
    exit_code = 78


class UnavailableError(AgentError):
    """Something this run needs never came up in time."""

    kind = Kind.UNAVAILABLE
    exit_code = 69
