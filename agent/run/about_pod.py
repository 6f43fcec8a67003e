"""Asks RunPod about the price and the cluster of the head's pod; the run never waits for it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.decisions.head.head_state import PriceKnown
from agent.decisions.shared import Answered
from agent.plan.node_price import BY_RUNPOD, NodePrice
from agent.plan.show import DELETE_CLUSTER
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.log import say
from agent.runpod.pod_api import PodApi

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.run.node_run import NodeRun
    from agent.runpod.pod_stop import PodAnswer


PRICE_ASKED = 600.0  # RunPod is asked for the pod's price beside the run, for no longer.


async def ask_about_pod(run: NodeRun, send: Callable[[Answered], None], *, has_price: bool) -> None:
    """Ask RunPod about the price of the head's pod, and about the cluster that it may belong to."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(check_cluster, run)
        if not has_price:
            tasks.start_soon(send_pod_price, run, send)


async def send_pod_price(run: NodeRun, send: Callable[[Answered], None]) -> None:
    """Ask for the price of the head's pod, where the user gave a key, and send it as an event.

    A limit of money needs it: it is then asked for until it is known, and its want is an error.
    """
    settings = run.plan.settings
    api = PodApi(settings, run.container.environ)
    if not api.can_be_asked:
        return
    has_limit = settings.max_cost is not None
    if has_limit:
        say(f"AGENT_MAX_COST={settings.max_cost:g} counts once RunPod gives a price", "warning")

    async def ask() -> NodePrice | NotYet:
        price = await ask_for_price(api)
        if price is None and has_limit:
            what = "AGENT_MAX_COST has no effect without a price, the run goes on"
            say(f"{what}: set AGENT_PRICE_PER_HOUR; asking RunPod again", "error")
        return price or NotYet()

    pause = times.HOLD_REMINDER
    with suppress(TimedOutError):
        price = await until(ask, None if has_limit else 0.0, step=pause, longest=pause)
        say(f"a node costs ${price.per_hour:.2f} an hour: {price.source}")
        send(Answered(PriceKnown(price)))


async def ask_for_price(api: PodApi) -> NodePrice | None:
    """Return this pod's price, asked for repeatedly; None if RunPod gives none."""
    refusal = ""

    async def ask() -> NodePrice | NotYet | None:
        nonlocal refusal
        answer = await api.ask()
        if answer.pod is not None and answer.pod.cost > 0:
            return NodePrice(answer.pod.cost, BY_RUNPOD)
        about = answer.detail or (f"code {answer.code}" if answer.pod is None else "no cost yet")
        if answer.is_final:
            refusal = about
            return None
        return NotYet(about)

    try:
        price = await until(
            ask,
            PRICE_ASKED,
            step=times.POD_RETRY_PAUSE,
            longest=times.LONGEST_POD_RETRY_PAUSE,
        )
    except TimedOutError as late:
        price = None
        refusal = str(late)
    if price is None:
        say(f"RunPod gives no price of this pod, AGENT_PRICE_PER_HOUR sets one: {refusal}")
    return price


async def check_cluster(run: NodeRun) -> None:
    """Log if the cluster will stay after the end, though AGENT_ON_DONE asks to delete it.

    That a key may see the cluster does not show that it may delete it: only a refusal is sure.
    """
    plan = run.plan
    api = PodApi(plan.settings, run.container.environ)
    if not plan.topology.deletes_cluster(plan.settings) or not api.can_be_asked:
        return

    async def ask() -> str | NotYet:
        answer = await api.ask()
        if answer.pod is None:
            return _refusal(answer)
        if answer.pod.cluster is None:
            return "RunPod names no cluster of this pod"
        return _refusal(await api.ask_about_cluster(answer.pod.cluster.id))

    try:
        why = await until(
            ask,
            PRICE_ASKED,
            step=times.POD_RETRY_PAUSE,
            longest=times.LONGEST_POD_RETRY_PAUSE,
        )
    except TimedOutError as late:
        why = str(late)
    if why:
        what = f"AGENT_ON_DONE=terminate-pod cannot delete this cluster: {why}"
        say(f"{what}. After the end its pods are held, and bill: {DELETE_CLUSTER}", "error")


def _refusal(answer: PodAnswer) -> str | NotYet:
    """Return '' for a success, why RunPod refuses, or NotYet if it may not refuse again."""
    about = f"RunPod answered {answer.code}"
    if answer.detail:
        about += f" ({answer.detail})"
    if answer.code == 200:
        return ""
    return about if answer.is_final else NotYet(about)
