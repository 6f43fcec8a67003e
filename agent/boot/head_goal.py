"""What the head is to achieve, as its decisions know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.head import state as h

if TYPE_CHECKING:
    from agent.plan.plan import Plan
    from agent.settings import Settings


def prepare_steps(settings: Settings) -> dict[str, str]:
    """Return the head's prepare steps in their order, by their variables."""
    asked = {"AGENT_PREPARE_EACH": settings.prepare_each, "AGENT_PREPARE": settings.prepare}
    return {name: command for name, command in asked.items() if command is not None}


def goal_of(plan: Plan) -> h.Goal:
    """Take from the plan what the head's decisions need of it."""
    settings, topology = plan.settings, plan.topology
    expected = topology.expected_workers
    partial_run = settings.partial == "proceed" and settings.min_workers is not None
    service, given = plan.service("127.0.0.1"), topology.given_ray
    return h.Goal(
        expected_workers=expected,
        least_workers=(settings.min_workers or 0) if partial_run else expected,
        head_deadline=settings.wait_head,
        workers_deadline=settings.wait_workers,
        reward_deadline=settings.wait_reward,
        prepare_deadline=settings.wait_prepare,
        node_grace=settings.node_grace,
        job_stop_grace=plan.budget.job,
        wants_job=plan.job is not None,
        services=() if service is None else (service.name,),
        steps=tuple(prepare_steps(settings)),
        ray=h.OUR_RAY if given is None else f"{given.owner}'s Ray",
        ray_restarts=h.RAY_RESTARTS if given is None else 0,
    )
