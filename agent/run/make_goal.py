"""The goal of the head, made from the plan and the record of the run."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from agent.base import times
from agent.decisions.head.head_goal import OUR_RAY, HeadGoal
from agent.frameworks.recipe import NodeSize
from agent.job.addresses import ranked_and_named
from agent.job.framework_question import question_of
from agent.job.groups import nodes_in_ray
from agent.job.job import is_sized, is_sized_by_links
from agent.job.services import listed_members
from agent.plan import waits as wait_keys
from agent.plan.node_price import NodePrice
from agent.plan.page_address import page_address
from agent.plan.show import job_title
from agent.settings.jobs import notice_signal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.base.ends import Outcome
    from agent.job.services import PrepareStep, ServiceSpec
    from agent.plan.plan import Plan
    from agent.run.run_store import RunStore


def named_lists(plan: Plan) -> frozenset[str]:
    """Return the services whose members' addresses a service, a step or the job names."""
    rows: tuple[ServiceSpec | PrepareStep, ...] = (*plan.all_services, *plan.all_steps)
    named = [name for row in rows for name in row.listed_members]
    job = () if plan.job is None else plan.job.argv
    texts = (*job, *plan.settings.job_args, *plan.environ.values())
    return frozenset((*named, *(name for text in texts for name in listed_members(text))))


def make_goal(
    plan: Plan,
    store: RunStore,
    now: float,
    done: Iterable[str] = (),
    refusal: Outcome | None = None,
) -> HeadGoal:
    """Return what the head's decisions need of the plan; `done` are the finished prepare steps.

    `refusal` is why this node's checks forbid the run.
    """
    settings = plan.settings
    given = plan.topology.given_ray
    expected = plan.topology.expected_workers
    limits = {wait.key: wait.seconds for wait in plan.waits}
    is_sized_to_nodes = plan.share_launcher is not None or (
        plan.job is not None and is_sized(plan.job)
    )

    # May the run proceed with fewer workers of the trainer?
    min_workers = expected
    if settings.partial == "proceed" and settings.min_workers is not None:
        min_workers = settings.min_workers + nodes_in_ray(plan.groups)

    # Whose Ray is it? On a given one an earlier head may have submitted the job, and no notice is
    # passed on.
    ray = OUR_RAY
    gcs_port = plan.ports.gcs
    submission_id = None
    asks_for_jobs = False
    if given is not None:
        ray = f"{given.owner}'s Ray"
        gcs_port = given.gcs_port
        submission_id = given.submission_id
        durable = store.durable
        may_have_jobs = submission_id == durable.run_id or store.has_lost_record
        has_attempts = bool(durable.ended) or durable.open_attempt is not None
        asks_for_jobs = plan.job is not None and may_have_jobs and not has_attempts

    # Is there a job, and does one begin its ranks on the nodes without Ray?
    notice = 0
    if plan.job is not None and given is None:
        notice = notice_signal(settings)
    shares_by = ""
    if plan.share_launcher is not None:
        shares_by = plan.share_launcher.launcher

    # How long may a boot take that repeats its steps without an end?
    longest = max([settings.wait_prepare, *(step.within for step in plan.steps)])
    preparing = longest + limits.get(wait_keys.BEFORE, 0.0)
    own = {spec.name for spec in plan.all_services} | {wait_keys.HEAD, wait_keys.WORKERS}
    waits = sum(wait.seconds for wait in plan.waits if wait.key in own)
    before = settings.node_grace + times.EARLIER_ATTEMPT_ENDS + times.LONGEST_RETRY_PAUSE
    probes = times.NODE_PROBE + times.ALL_REDUCE + times.ALL_REDUCE_SPARE
    boot_limit = waits + preparing + before + probes + times.GCS_REPORTS_LOSS

    question = question_of(plan.job, plan.facts)
    framework = ""
    if question is not None:
        framework = question.framework
    price = None
    if settings.price_per_hour is not None:
        price = NodePrice(settings.price_per_hour)

    return HeadGoal(
        limits=limits,
        job_stop_grace=plan.budget.job,
        expected_workers=expected,
        min_workers=min_workers,
        has_job=plan.job is not None,
        refusal=refusal,
        is_sized_to_nodes=is_sized_to_nodes,
        is_sized_by_links=store.measured.basis is None and is_sized_by_links(plan.job),
        former_head=store.former_head,
        asks_for_jobs=asks_for_jobs,
        has_former_ray=store.has_former_ray and plan.own_ray is not None,
        submission_id=submission_id,
        services=plan.all_services,
        groups=plan.groups,
        addressed=ranked_and_named(plan.all_services, (*plan.all_services, *plan.all_steps)),
        listed=named_lists(plan),
        steps=plan.steps,
        max_prepare_seconds=preparing,
        has_record=store.has_record,
        finished_steps=frozenset(done),
        retries=settings.job_retries,
        ray=ray,
        ray_is_given=given is not None,
        rank=plan.topology.platform.rank or 0,
        shares_by=shares_by,
        node=plan.topology.node_name,
        size=NodeSize(plan.gpus, plan.facts.cpus, plan.facts.memory, plan.facts.gpu_memory),
        facts=plan.facts,
        preflight=settings.preflight is not None,
        gcs_port=gcs_port,
        job=job_title(plan),
        watch=page_address(plan),
        boot_limit=boot_limit,
        began_at=time.time() - now,
        max_hours=settings.max_hours or math.inf,
        used_hours=store.used_hours,
        price=price,
        max_cost=settings.max_cost or math.inf,
        paid=store.paid,
        paid_hours=store.paid_hours,
        notice_signal=notice,
        framework=framework,
        brings_libraries=plan.job is not None and bool(plan.job.runtime_env),
    )
