"""The only place that polls: a condition, a step, a deadline, and the last evidence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import anyio

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import tenacity

T = TypeVar("T")
STEP = 0.05


@dataclass(frozen=True)
class NotYet:
    """A condition that does not hold so far, and why."""

    evidence: str = ""


class TimedOutError(Exception):
    """A condition did not hold in time; carries the last evidence."""

    def __init__(self, evidence: str) -> None:
        super().__init__(evidence)
        self.evidence = evidence


async def until(
    check: Callable[[], Awaitable[T | NotYet]],
    limit: float | None,
    *,
    step: float = STEP,
    longest: float = 1.0,
    on_evidence: Callable[[str], None] | None = None,
) -> T:
    """Ask until the answer is not NotYet; steps grow from `step` to `longest` seconds.

    It is asked for the last time at the deadline. Evidence is told as often as it changes.
    """
    import tenacity  # noqa: PLC0415 - 10 ms that most pods need only while Ray boots

    grows = tenacity.wait_exponential(multiplier=step, exp_base=1.5, max=longest, min=step)
    over = math.inf if limit is None else limit
    told: str | None = None

    def pause(state: tenacity.RetryCallState) -> float:
        return max(0.0, min(grows(state), over - (state.seconds_since_start or 0.0)))

    def tell(state: tenacity.RetryCallState) -> None:
        nonlocal told
        result = state.outcome.result() if state.outcome else None
        if on_evidence is not None and isinstance(result, NotYet) and result.evidence != told:
            told = result.evidence
            on_evidence(told)

    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_result(lambda answer: isinstance(answer, NotYet)),
        wait=pause,
        stop=tenacity.stop_after_delay(over),
        sleep=anyio.sleep,
        after=tell,
    )
    try:
        answer: T | NotYet = await retrying(check)
    except tenacity.RetryError as error:
        last = error.last_attempt.result()
        raise TimedOutError(last.evidence if isinstance(last, NotYet) else "") from None
    assert not isinstance(answer, NotYet)  # noqa: S101 - such answers are retried
    return answer
