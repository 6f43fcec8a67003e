"""The head's port for its workers: opened for them, and closed when they have heard the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.errors import PreflightError
from agent.base.outcome import Kind
from agent.control.sockets import bind
from agent.plan.listeners import may_listen_on
from agent.plan.plan import versions
from agent.record.log import say
from agent.work.services import digest

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from agent.base.outcome import Outcome
    from agent.boot.run_keeper import RunKeeper
    from agent.control.protocol import Reply
    from agent.control.reports import Expected, Reports
    from agent.decisions.head.state import HeadState
    from agent.plan.plan import Plan


def open_port(plan: Plan, ip: str, refusal: Outcome | None) -> list[socket.socket]:
    """Take the agent's port on the head's own address: workers may call from now on.

    An unfit head takes it for them to hear so, unless that is what is refused.
    """
    if ip == "127.0.0.1":  # that one is taken already
        return []
    if refusal is not None and not may_listen_on(ip, plan.settings):
        return []
    try:
        return bind([ip], plan.ports.agent)
    except PreflightError:
        if refusal is None:
            raise
        return []  # the refusal at hand says more


async def first_reply(keeper: RunKeeper, attempt: int, gcs_port: int) -> Reply:
    """Return the reply that workers get before anything was decided, once its epoch is on disk."""
    from agent.control.protocol import Reply  # noqa: PLC0415 - while Ray boots
    from agent.decisions.head.state import Phase  # noqa: PLC0415 - same

    await keeper.settled()
    return Reply(
        *(keeper.epoch, keeper.run_id),
        phase=Phase.BOOTING.value,
        ray_ready=False,
        gcs_port=gcs_port,
        news=0,
        attempt=attempt,
        fingerprint=keeper.proof(attempt - 1),
    )


def expected_of(plan: Plan, keeper: RunKeeper) -> Expected:
    """Return what workers must agree with this head about; its command, where they start it."""
    from agent.control.reports import Expected  # noqa: PLC0415 - while Ray boots

    job = "" if plan.torchrun is None else keeper.record.fingerprint
    return Expected(*versions(plan), digest(plan.all_services, plan.steps), job)


def as_the_heads(plan: Plan, refusal: Outcome) -> Outcome:
    """Say whose checks refuse, where others will read it."""
    if not plan.topology.expected_workers or refusal.kind is not Kind.REFUSED:
        return refusal
    return replace(refusal, reason=f"on the head {plan.topology.node_name}: {refusal.reason}")


def may_still_call(plan: Plan, listens: Sequence[socket.socket], state: HeadState) -> int:
    """Return how many workers that were never heard of may be about to call."""
    given = plan.topology.given_ray is not None  # its workers run no agent
    return 0 if given or not listens else state.fleet.never_heard(state.required)


async def farewell(reports: Reports, limit: float, may_call: int) -> None:
    """Let the workers hear the end, and say who has not."""
    silent, unheard = await reports.farewell(limit, may_call)
    for name in silent:
        say(f"{name} has not said goodbye; it leaves when it sees that the head is gone")
    if unheard:
        say(f"{unheard} never called; one that still comes looks for a head for AGENT_WAIT_HEAD")
