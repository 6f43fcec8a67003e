"""Signals before the head's decisions start: none is lost, none counts twice."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from agent.base import ends
from agent.decisions.shared import StopAsked
from agent.run import head as head_module
from agent.run import main, make_ready
from agent.run.effects import REAL
from support.fake_runs import run_of
from support.worlds import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskStatus

    from agent.base.ends import Outcome
    from agent.decisions.head.head_state import HeadEvent
    from agent.plan.plan import Plan
    from agent.processes.waiting import Inbox


class Signals:
    """Stands for the process's signals."""

    async def watch(
        self,
        stop: Callable[[int], None],
        notify: Callable[[int], None],
        record_kill: Callable[[], object] = print,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep the handlers."""
        del record_kill
        self.stop, self.notify = stop, notify
        task_status.started()
        await anyio.sleep_forever()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Signals:
    """Return a sender of signals to a head, whose end is left out."""

    async def end_role(_run: object, outcome: Outcome, **_: object) -> Outcome:
        return outcome

    monkeypatch.setattr(main, "end_role", end_role)
    return Signals()


def run_head(plan: Plan, sent: Signals) -> Outcome:
    """Run a head of which only the start of its decisions counts."""
    store: Any = None
    run = run_of(plan)
    run.effects = REAL._replace(processes=REAL.processes._replace(watch_signals=sent.watch))
    return anyio.run(main._run_head, run, store)  # noqa: SLF001 - the boundary


def test_early_signals_are_passed_on_once_and_in_order(
    sent: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head gets signals that were sent while its modules were imported."""
    notices: list[int] = []
    stops: list[HeadEvent | None] = []

    class Head:
        def __init__(self, *arguments: Any) -> None:  # noqa: ANN401 - of HeadAgent
            self._inbox: Inbox[HeadEvent] = arguments[-1]
            self.on_notice = notices.append

        async def run(self) -> Outcome:
            sent.notify(signal.SIGUSR2)
            sent.stop(signal.SIGINT)
            stops.extend([await self._inbox.take(0), await self._inbox.take(0)])
            return ends.BUG.outcome(error="over")

    async def start(*_: object) -> object:
        sent.stop(signal.SIGTERM)
        sent.notify(signal.SIGUSR1)
        return object()

    monkeypatch.setattr(head_module, "HeadAgent", Head)
    monkeypatch.setattr(make_ready, "start_head", start)
    run_head(plan_of({}, command=["train"]), sent)
    assert stops == [StopAsked(signal.SIGTERM), StopAsked(signal.SIGINT)]
    assert notices == [signal.SIGUSR1, signal.SIGUSR2]


@pytest.mark.parametrize("early", [True, False], ids=["before the wait", "while it waits"])
@pytest.mark.parametrize(
    ("environ", "code"), [({}, 128 + signal.SIGTERM), ({"AGENT_JOB": "none"}, 0)]
)
def test_a_stop_ends_the_wait_for_the_own_address(
    sent: Signals,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    code: int,
    *,
    early: bool,
) -> None:
    """The search for this node's own address ends at once, whenever the request comes."""

    async def start(_run: object, _store: object, stop_scope: anyio.CancelScope) -> None:
        async with anyio.create_task_group() as tasks:
            if early:
                sent.stop(signal.SIGTERM)
            else:
                tasks.start_soon(_stop_soon, sent)
            with anyio.fail_after(5), stop_scope:
                await anyio.sleep_forever()

    monkeypatch.setattr(make_ready, "start_head", start)
    plan = plan_of(environ, command=None if environ else ["train"])
    assert run_head(plan, sent).exit_code == code


async def _stop_soon(sent: Signals) -> None:
    sent.stop(signal.SIGTERM)
