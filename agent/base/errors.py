"""The errors of the agent: each has a message, a cause and a remedy."""

from __future__ import annotations

from agent.base.outcome import STARTING, Kind, Outcome
from agent.base.value import dataclass


@dataclass(frozen=True)
class Problem:
    """An invalid setting, by the variable's name."""

    variable: str
    got: str
    expected: str

    def sentence(self) -> str:
        """Return the problem and its remedy in one line."""
        return f"{self.variable}: got {self.got}; expected {self.expected}"


class AgentError(Exception):
    """An error that a user can cause; it is shown without a traceback."""

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
        """Return what happened and why."""
        return f"{self.what}: {self.why}" if self.why else self.what

    def sentence(self) -> str:
        """Return reason and remedy in one line."""
        return f"{self.reason}. {self.remedy}" if self.remedy else self.reason

    def outcome(self) -> Outcome:
        """Return the outcome of a run that this error prevents from starting."""
        code, reason = self.exit_code, self.reason
        return Outcome(self.kind, code, reason, STARTING, self.culprit, self.remedy)


class SettingsError(AgentError):
    """The settings are invalid; holds all problems at once."""

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
        """Possible causes, such as a misspelled variable."""


class PreflightError(AgentError):
    """This machine does not meet the requirements of the run."""

    kind = Kind.REFUSED
    exit_code = 78


class UnavailableError(AgentError):
    """Something that the run needs was not available in time."""

    kind = Kind.UNAVAILABLE
    exit_code = 69
