"""What a worker's agent says once: who it is, and all that must agree with the head's."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from agent.base.ranges import ITEMS, MOST_ADDRESSES
from agent.control.protocol import Hello
from agent.plan.plan import versions
from agent.settings.jobs import TORCHRUN
from agent.work.job import jobs_own
from agent.work.services import digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.base.ranges import Addresses
    from agent.control.protocol import Reply
    from agent.node.facts import Facts
    from agent.plan.plan import Plan


def hello_of(plan: Plan, last: Reply | None, attempt: int, clean: Callable[[str], str]) -> Hello:
    """Return a worker's hello.

    `last` is the last reply of a head that may be started anew, and `attempt` the last that it had
    submitted by then.
    """
    ray, python, torch = versions(plan)
    return Hello(
        name=plan.topology.node_name,
        rank=plan.topology.claim.rank,
        ray=ray,
        python=python,
        torch=torch,
        services=digest(plan.all_services, plan.steps),
        job=_job_digest(plan, clean),
        gpus=plan.gpus,
        run_id="" if last is None else last.run_id,
        attempt=attempt,
        fingerprint="" if last is None else last.fingerprint,
        facts=as_told(plan.facts),
        clock=time.time(),
        findings=tuple(
            replace(one, what=clean(one.what), remedy=clean(one.remedy)) for one in plan.findings
        ),
    )


def as_told(facts: Facts) -> Facts:
    """Return a machine's facts with no more of its long lists than a hello may have.

    A machine of Kubernetes has thousands of interfaces and addresses, the first of which are its
    own; a folder for temporary files may have as many names in it.
    """
    folder, most = facts.ray_temp, ITEMS.items
    if folder is not None:
        folder = replace(folder, strangers=folder.strangers[:most])
    return replace(
        facts,
        interfaces=_first(facts.interfaces),
        known_names=_first(facts.known_names),
        reserved_ports=facts.reserved_ports[:most],
        ray_temp=folder,
    )


def _first(found: Addresses) -> Addresses:
    return {name: some[:MOST_ADDRESSES] for name, some in islice(found.items(), ITEMS.items)}


def _job_digest(plan: Plan, clean: Callable[[str], str]) -> str:
    """Return what must be equal on nodes of which each starts its share of the job; else ''."""
    if plan.torchrun is None or plan.job is None:
        return ""
    from agent.record.run_record import fingerprint  # noqa: PLC0415 - a worker with Ray needs none

    argv, recipe = jobs_own(plan.job)
    return fingerprint(argv, TORCHRUN, recipe, clean)
