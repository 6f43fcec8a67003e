"""Hold a pod after the run's end, or stop it by RunPod's API.

A pod whose agent exits is started again by some platforms, and bills on. So after a verdict the
agent stays, and does what AGENT_ON_DONE says, until it is asked to stop or the pod is stopped:
- hold: it logs at intervals what the pod costs, and the command that ends it;
- terminate-pod on an Instant Cluster: the head deletes the cluster, once the workers have left;
- stop-pod of a pod that was started again after its run: it stays up for a while first;
- stop-pod, terminate-pod: it waits until the workers' pods have stopped, then asks RunPod to stop
  this one, again and again; runpod/pod_stop.py decides when.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.plan.show import DELETE_CLUSTER, held_sentence, how_to_end
from agent.processes import signals
from agent.processes.connecting import port_answers
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.background import all_idle
from agent.record.log import say
from agent.runpod.pod_api import PodApi
from agent.runpod.pod_stop import RUNPOD_OVER, PodAnswer, PodStop, after_answer
from agent.settings.rules import POD_ACTIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent.base.ends import Outcome
    from agent.settings.model import Settings

# The head's pod is stopped last, after waiting so long for the workers'.
_WORKERS_STOP_FIRST = 30.0


class Held:
    """A pod whose run is over, until it is stopped."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        on_done: str,
        *,
        is_head: bool = False,
        stays: float = 0.0,
    ) -> None:
        self._is_head = is_head
        self._stays = stays
        self._action = POD_ACTIONS.get(on_done, "")
        self._api = PodApi(settings, environ)
        self._command = how_to_end(settings.runpod_api, environ)
        self._price = settings.price_per_hour

    async def hold(
        self,
        outcome: Outcome,
        stopped: Callable[[], Awaitable[object]],
        others: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Stop the pod, or hold it, until `stopped` returns.

        The agents at `others` are waited for before the pod is stopped: their pods stop first.
        """
        say(outcome.sentence())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._remind)
            if not self._action:
                what = "holding the pod, which would be started again"
                say(f"{what}: stop it when you have what you need")
            elif self._api.can_be_asked:
                tasks.start_soon(self._stop, others)
            await stopped()
            tasks.cancel_scope.cancel()

    async def _remind(self) -> None:
        """Log the price of the pod now and at intervals."""
        began = anyio.current_time()
        if self._action:  # it is stopped at once, unless that fails
            await anyio.sleep(times.HOLD_REMINDER)
        elif self._price is None and self._api.can_be_asked:
            await self._ask()
        while True:
            say(held_sentence(anyio.current_time() - began, self._price, self._command))
            await anyio.sleep(times.HOLD_REMINDER)

    async def _stop(self, others: Sequence[tuple[str, int]]) -> None:
        """Ask RunPod to stop or terminate the pod, for as long as the pod runs."""

        async def is_log_written() -> bool | NotYet:
            return True if all_idle() else NotYet()

        if self._stays:
            minutes = round(self._stays / 60)
            say(
                f"this pod was started again after its run: it is stopped in {minutes} min. Until"
                " then copy what you need: runpodctl send FOLDER"
            )
            await anyio.sleep(self._stays)
        say(f"AGENT_ON_DONE={self._action}-pod: asking RunPod to end this pod")
        await _wait_for_others(others)
        stop = PodStop(self._action, is_head=self._is_head)
        while True:
            await anyio.sleep(stop.pause)

            # The request ends this container: the log must be complete.
            if stop.acts:
                with suppress(TimedOutError):
                    await until(is_log_written, times.FLUSH)

            # What does the answer mean for the next request?
            had_obstacle = bool(stop.obstacle)
            if stop.acts and stop.cluster:
                answer = await self._api.delete_cluster(stop.cluster)
            else:
                answer = await self._ask(self._action if stop.acts else "")
            stop, line = after_answer(stop, answer)
            if line is not None:
                say(line.sentence, line.level)
            if stop.obstacle and not had_obstacle:
                say(held_sentence(0.0, self._price, self._command), "warning")

    async def _ask(self, action: str = "") -> PodAnswer:
        """Send a request; its answer may have the pod's price and cluster."""
        answer = await self._api.ask(action)
        pod = answer.pod
        if pod is not None and pod.cluster is not None:
            self._command = DELETE_CLUSTER
        if self._price is None and pod is not None and pod.status not in RUNPOD_OVER:
            self._price = pod.cost or None
        return answer


async def hold_until_signal(held: Held, outcome: Outcome) -> None:
    """Hold the pod, or stop it, where no event loop of a run handles signals."""
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        # Before the pod is reported as held: a signal may follow at once.
        await tasks.start(signals.watch_signals, lambda _: stop.set(), lambda _: None)
        await held.hold(outcome, stop.wait)
        tasks.cancel_scope.cancel()


async def _wait_for_others(others: Sequence[tuple[str, int]]) -> None:
    """Wait until the agents of these nodes no longer answer."""

    async def is_gone(ip: str, port: int) -> bool | NotYet:
        return bool(await port_answers(ip, port)) or NotYet()

    with anyio.move_on_after(_WORKERS_STOP_FIRST) as scope:
        for ip, port in others:
            await until(partial(is_gone, ip, port), None, step=0.5)
    if scope.cancelled_caught:
        say("not all agents of the workers have stopped: this pod is ended now", "warning")
