"""Wait for a condition, receive events, and run optional tasks."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from agent.base.errors import AgentError, innermost
from agent.base.value import Value
from agent.node.limits import process_limit_error
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import tenacity

_WAIT_POLL = 0.05  # The one polling loop, for what sends no event.


T = TypeVar("T")
E = TypeVar("E")


class NotYet(Value):
    """The condition does not hold yet, and why."""

    evidence: str = ""


class TimedOutError(Exception):
    """The condition did not hold in time; its text is the last evidence."""


async def until(  # noqa: PLR0913 - how often, for how long, and what is said meanwhile
    check: Callable[[], Awaitable[T | NotYet]],
    limit: float | None,
    *,
    step: float = _WAIT_POLL,
    longest: float = 1.0,
    on_evidence: Callable[[str], None] | None = None,
    pause: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> T:
    """Call `check` until it does not return NotYet; pauses grow from `step` to `longest` seconds.

    The last call is at the deadline. `on_evidence` is called with each change of the evidence.
    `pause` waits for so many seconds, or less where something happens.
    """

    async def answer_of(former: T | NotYet) -> T | NotYet:
        answer = await check()
        if isinstance(answer, NotYet) and answer != former and on_evidence is not None:
            on_evidence(str(answer.evidence))  # no message can have a subclass of str
        return answer

    # Does it hold at once?
    began = time.monotonic()
    answer = await answer_of(NotYet())
    if not isinstance(answer, NotYet):
        return answer

    # Until it does, or the time is over.
    import tenacity  # noqa: PLC0415 - 10 ms that most pods need only while Ray boots

    most = math.inf if limit is None else limit - (time.monotonic() - began)
    grows = tenacity.wait_exponential(multiplier=step, exp_base=1.5, max=longest, min=step)

    def next_pause(state: tenacity.RetryCallState) -> float:
        seconds_left = most - (state.seconds_since_start or 0.0)
        return max(0.0, min(grows(state), seconds_left))

    # AsyncRetrying inspects all of these functions at each call, at three times the cost: so this
    # is the plain one, which only notes the pauses.
    pauses: list[float] = []
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda answer: isinstance(answer, NotYet)),
        wait=next_pause,
        stop=tenacity.stop_after_delay(most),
        sleep=pauses.append,
        retry_error_callback=lambda _state: None,
    )
    for attempt in retrying:
        if pauses:  # the first answer is known
            await pause(pauses.pop())
            answer = await answer_of(answer)
        attempt.retry_state.set_result(answer)

    if isinstance(answer, NotYet):
        raise TimedOutError(answer.evidence)
    return answer


class Inbox(Generic[E]):
    """A queue of events; `clean` removes secrets from each."""

    def __init__(self, clean: Callable[[E], E]) -> None:
        self._clean = clean
        self.events: deque[E] = deque()
        self._some = anyio.Event()

    def put(self, event: E) -> None:
        """Add an event; never blocks."""
        self.events.append(self._clean(event))
        self._some.set()

    async def take(self, limit: float | None) -> E | None:
        """Return the next event; None after `limit` seconds without one."""
        with anyio.move_on_after(limit):
            while not self.events:
                self._some = anyio.Event()
                await self._some.wait()
        return self.events.popleft() if self.events else None


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
            # Was it a limit of processes or threads? That error names the limit.
            failure = innermost(error)
            failure = process_limit_error(what, failure) or failure
            reason = f"{type(failure).__name__}: {failure}"
            if isinstance(failure, AgentError):
                reason = failure.sentence()

        # Each task's failure is logged once.
        if what not in self._logged:
            self._logged.add(what)
            self._log(f"{what} failed, the run continues without it: {reason}", "warning")
        return Failure(reason)

    async def every(self, pause: float, what: str, do: Callable[[], Awaitable[object]]) -> None:
        """Run an optional task at intervals until canceled."""

        async def turn() -> NotYet:
            await self(what, do)
            return NotYet()

        await until(turn, None, step=pause, longest=pause)
