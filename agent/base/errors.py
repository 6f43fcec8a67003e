"""The errors of the agent: each has a message, a cause and a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agent.base import ends
from agent.base.value import Value

if TYPE_CHECKING:
    from agent.base.ends import Outcome


def innermost(error: BaseException) -> BaseException:
    """Return the first exception of a group, at any depth: task groups wrap what they raise."""
    while inner := getattr(error, "exceptions", ()):
        error = inner[0]
    return error


class Problem(Value):
    """An invalid setting, by the variable's name."""

    variable: str
    got: str
    expected: str

    @property
    def names(self) -> frozenset[str]:
        """Return the variables that it is about."""
        return frozenset(self.variable.split(" + "))

    def sentence(self) -> str:
        """Return the problem and its remedy in one line."""
        return f"{self.variable}: got {self.got}; expected {self.expected}"


class AgentError(Exception):
    """An error that a user can cause; it is shown without a traceback."""

    end: ClassVar[Outcome]  # its row; a verb that fails with this error has its exit code

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

    def lines(self) -> tuple[str, ...]:
        """Return what a verb prints that fails with this error."""
        return (f"pod-agent: {self.sentence()}",)

    def outcome(self) -> Outcome:
        """Return the outcome of a run that this error prevents from starting."""
        return self.end.outcome(reason=self.reason, culprit=self.culprit, remedy=self.remedy)


class SettingsError(AgentError):
    """The settings are invalid; holds all problems at once."""

    end = ends.REFUSED

    def __init__(self, problems: tuple[Problem, ...], hints: tuple[str, ...] = ()) -> None:
        what = problems[0].sentence()
        if len(problems) > 1:
            names = ", ".join(dict.fromkeys(problem.variable for problem in problems))
            what = f"{len(problems)} problems in the settings ({names})"
        super().__init__(
            what,
            remedy="Fix and run again; `pod-agent env` shows every variable",
            culprit=problems[0].variable,
        )
        self.problems = problems
        self.hints = hints  # possible causes, such as a misspelled variable

    def lines(self) -> tuple[str, ...]:
        """Return the same; each wrong setting has a line."""
        return (
            "pod-agent: the settings are wrong, nothing was started:",
            *(f"  {problem.sentence()}" for problem in self.problems),
            *(f"  {hint}" for hint in self.hints),
            f"refused: {len(self.problems)} problem(s) (exit code 78). {self.remedy}",
        )


class PreflightError(AgentError):
    """This machine does not meet the requirements of the run."""

    end = ends.REFUSED


class UnavailableError(AgentError):
    """Something that the run needs was not available in time."""

    end = ends.UNAVAILABLE
