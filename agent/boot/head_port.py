"""The agent's port on the head: opened, the first reply to workers, their goodbyes."""

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
    """Open the agent's port on the head's own address, where workers can report early.

    A head that refuses to run opens it too, so that its workers get the refusal, unless the port
    itself is refused.
    """
    if ip == "127.0.0.1":  # already open
        return []
    if refusal is not None and not may_listen_on(ip, plan.settings):
        return []
    try:
        return bind([ip], plan.ports.agent)
    except PreflightError:
        if refusal is None:
            raise
        return []  # the refusal explains more


async def first_reply(keeper: RunKeeper, attempt: int, gcs_port: int) -> Reply:
    """Return the reply to workers before the first decision, once its epoch is on disk."""
    from agent.control.protocol import Reply  # noqa: PLC0415 - while Ray boots
    from agent.decisions.head.state import HeadPhase  # noqa: PLC0415 - same

    await keeper.flush()
    return Reply(
        *(keeper.epoch, keeper.run_id),
        phase=HeadPhase.BOOTING.value,
        ray_ready=False,
        gcs_port=gcs_port,
        news=0,
        attempt=attempt,
        fingerprint=keeper.proof(attempt - 1),
    )


def make_expected(plan: Plan, keeper: RunKeeper) -> Expected:
    """Return what workers must agree on: versions, services, and torchrun's command."""
    from agent.control.reports import Expected  # noqa: PLC0415 - while Ray boots

    job = "" if plan.torchrun is None else keeper.record.fingerprint
    return Expected(*versions(plan), digest(plan.all_services, plan.steps), job)


def name_head_in_refusal(plan: Plan, refusal: Outcome) -> Outcome:
    """Add the head's name to its refusal where workers read it."""
    if not plan.topology.expected_workers or refusal.kind is not Kind.REFUSED:
        return refusal
    return replace(refusal, reason=f"on the head {plan.topology.node_name}: {refusal.reason}")


def count_possible_callers(plan: Plan, sockets: Sequence[socket.socket], state: HeadState) -> int:
    """Return how many workers that never reported may still do so."""
    given = plan.topology.given_ray is not None  # its workers run no agent
    return 0 if given or not sockets else state.fleet.never_reported_count(state.required)


async def wait_for_goodbyes(reports: Reports, limit: float, may_call: int) -> None:
    """Wait until the workers have the verdict; log those that did not confirm it."""
    silent, unreported = await reports.wait_for_goodbyes(limit, may_call)
    for name in silent:
        say(f"{name} has not said goodbye; it leaves when it sees that the head is gone")
    if unreported:
        say(f"{unreported} never called; a later worker waits AGENT_WAIT_HEAD for a head")
