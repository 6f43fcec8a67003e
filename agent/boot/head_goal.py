"""What the head is to achieve, as its decisions know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.head import state as h
from agent.plan import waits as planned
from agent.work.job import is_sized
from agent.work.recipes.recipe import NodeSize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.boot.run_keeper import RunKeeper
    from agent.plan.plan import Plan


def goal_of(plan: Plan, keeper: RunKeeper, now: float, done: Iterable[str] = ()) -> h.Goal:
    """Take from the plan what the head's decisions need of it.

    `done` are the prepare steps that a killed agent of this node has finished.
    """
    settings, given = plan.settings, plan.topology.given_ray
    expected = plan.topology.expected_workers
    partial_run = settings.partial == "proceed" and settings.min_workers is not None
    limits = {wait.key: wait.seconds for wait in plan.waits}
    longest = max([settings.wait_prepare, *(step.within for step in plan.steps)])
    return h.Goal(
        limits=limits,
        job_stop_grace=plan.budget.job,
        expected_workers=expected,
        least_workers=(settings.min_workers or 0) if partial_run else expected,
        wants_job=plan.job is not None,
        is_sized=plan.torchrun is not None or (plan.job is not None and is_sized(plan.job)),
        run_id=keeper.run_id,
        first_attempt=keeper.next_attempt,
        tried=keeper.record.tried,
        former_nodes=keeper.former_nodes if given is None else (),
        underway=None if plan.job is None else keeper.underway(now, expected),
        submission_id=None if given is None else given.submission_id,
        services=plan.all_services,
        steps=plan.steps,
        disks=plan.facts.disks,
        longest_prepare=longest + limits.get(planned.BEFORE, 0.0),
        done=frozenset(done),
        retries=settings.job_retries,
        ray=h.OUR_RAY if given is None else f"{given.owner}'s Ray",
        ray_is_given=given is not None,
        ray_restarts=h.RAY_RESTARTS if given is None else 0,
        rank=plan.topology.claim.rank or 0,
        by_torchrun=plan.torchrun is not None,
        node=plan.topology.node_name,
        size=NodeSize(plan.gpus, plan.facts.cpus, plan.facts.memory),
        facts=plan.facts,
        preflight=settings.preflight is not None,
        platform=plan.topology.claim.platform,
        brings_libraries=plan.job is not None and bool(plan.job.runtime_env),
    )
