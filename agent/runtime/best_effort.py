"""Diagnostics and other optional tasks: a failure is logged once and never ends the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agent.base.errors import AgentError
from agent.base.value import Value
from agent.node.limits import process_limit_error
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class Failure(Value):
    """Why an optional task has no result."""

    reason: str


class BestEffort:
    """Runs optional tasks and returns their failures as values.

    In a task group an exception ends all other tasks, those of the job among them. A task that
    starts a process or a thread fails while `pids.max` is reached.
    """

    def __init__(self, log: Callable[[str, str], None] = say) -> None:
        self._log = log
        self._logged: set[str] = set()

    async def __call__(
        self, what: str, do: Callable[..., Awaitable[T]], *arguments: object
    ) -> T | Failure:
        """Return the result, or the reason of the failure."""
        try:
            return await do(*arguments)
        except Exception as error:  # noqa: BLE001 - no error may end a healthy job
            reason = _reason(what, error)
        if what not in self._logged:
            self._logged.add(what)
            self._log(f"{what} failed, the run continues without it: {reason}", "warning")
        return Failure(reason)


def _reason(what: str, failure: BaseException) -> str:
    """Return the reason in one line; task groups wrap what their tasks raise."""
    inner = getattr(failure, "exceptions", ())
    if inner:
        return _reason(what, inner[0])
    if isinstance(failure, AgentError):
        return failure.sentence()
    error = process_limit_error(what, failure)
    if error is not None:
        return f"{error.why}. {error.remedy}"
    if isinstance(failure, OSError):
        return failure.strerror or str(failure)
    return f"{type(failure).__name__}: {failure}"
