"""Signals before the head's decisions start: none is lost, none counts twice."""

from __future__ import annotations

import signal

import anyio
import pytest

from agent.boot.head_start import PendingSignals


def test_what_came_early_is_handed_on_once_and_in_order() -> None:
    """A story hears what was asked while its modules were still loading."""
    requests, stops, notices = PendingSignals(), list[int](), list[int]()
    requests.on_stop(signal.SIGTERM)
    requests.on_notice(signal.SIGUSR1)
    requests.forward_to(stops.append, notices.append)
    requests.on_stop(signal.SIGINT)
    requests.on_notice(signal.SIGUSR2)
    assert stops == [signal.SIGTERM, signal.SIGINT]
    assert notices == [signal.SIGUSR1, signal.SIGUSR2]


@pytest.mark.parametrize("early", [True, False], ids=["before the wait", "while it waits"])
def test_a_stop_ends_what_is_guarded(*, early: bool) -> None:
    """The search for this node's own address ends at once, whenever the request comes."""

    async def guarded() -> PendingSignals:
        requests = PendingSignals()
        async with anyio.create_task_group() as tasks:
            if early:
                requests.on_stop(signal.SIGTERM)
            else:
                tasks.start_soon(_stop_soon, requests)
            with anyio.fail_after(5), requests.stop_scope():
                await anyio.sleep_forever()
        return requests

    assert anyio.run(guarded).outcome(expected=False).exit_code == 128 + signal.SIGTERM
    assert anyio.run(guarded).outcome(expected=True).exit_code == 0


async def _stop_soon(requests: PendingSignals) -> None:
    requests.on_stop(signal.SIGTERM)
