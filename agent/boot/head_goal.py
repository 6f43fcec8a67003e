"""What the head is to achieve, as its decisions know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.head import state as h

if TYPE_CHECKING:
    from agent.plan.plan import Plan


def goal_of(plan: Plan, run_id: str, first_attempt: int = 1) -> h.Goal:
    """Take from the plan what the head's decisions need of it."""
    settings, given = plan.settings, plan.topology.given_ray
    expected = plan.topology.expected_workers
    partial_run = settings.partial == "proceed" and settings.min_workers is not None
    return h.Goal(
        limits={wait.key: wait.seconds for wait in plan.waits},
        job_stop_grace=plan.budget.job,
        expected_workers=expected,
        least_workers=(settings.min_workers or 0) if partial_run else expected,
        wants_job=plan.job is not None,
        run_id=run_id,
        first_attempt=first_attempt,
        submission_id=None if given is None else given.submission_id,
        services=plan.all_services,
        steps=plan.steps,
        longest_prepare=settings.wait_prepare,
        retries=settings.job_retries,
        ray=h.OUR_RAY if given is None else f"{given.owner}'s Ray",
        ray_is_given=given is not None,
        ray_restarts=h.RAY_RESTARTS if given is None else 0,
    )
