"""The plan in twelve lines, and as JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from agent.base.terminal import Line
from agent.base.text import first_names, listed
from agent.checks import NAMES
from agent.checks.finding import Level, problem_lines
from agent.plan.plan import log_root
from agent.plan.show import (
    commands_of,
    duration,
    environment_of,
    head_of,
    names_in_order,
    nodes_like_this,
    owner_of_ray,
    price_text,
)
from agent.plan.waits import HEAD, JOIN, PREFLIGHT, PREPARE, WORKERS
from agent.settings.jobs import DEFAULT
from agent.topology.claim import GivenRay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.plan.plan import Plan
    from agent.work.job import Job

MOST_LINES = 12
_LONGEST_JOB = 100
"""Characters of a job's command; `-v` shows all."""


def summary(plan: Plan) -> list[Line]:
    """Return the plan in at most twelve lines, more only if more than that refuses the run."""
    names = [finding for finding in plan.findings if finding.check == NAMES]
    others = [finding for finding in plan.findings if finding.check != NAMES]
    top = [*problem_lines(names), *_rows(plan)]
    problems = problem_lines(others)
    refusals = sum(finding.level is Level.FAIL for finding in others)
    room = max(refusals, MOST_LINES - 1 - len(top))
    passed = len(others) - len(problems)
    counts = [f"{passed} check{'' if passed == 1 else 's'} passed"] if others else []
    if len(problems) > room:
        rest = len(problems) - room
        counts.append(f"{rest} more warning{'' if rest == 1 else 's'}")
    more = "-v shows commands, environment, ports and waits"
    return [*top, *problems[:room], Line("", "; ".join([*counts, more]))]


def _rows(plan: Plan) -> Iterator[Line]:
    topology = plan.topology
    yield Line("role:      ", topology.sentence())
    yield Line("platform:  ", topology.platform.name)
    yield Line("head:      ", f"{head_of(plan)}{_own_address(plan)}")
    if topology.is_idle:
        owner = owner_of_ray(plan)
        yield Line(
            "job:       ", f"none here: {owner} starts Ray, the head's agent submits the job"
        )
        return
    yield Line("nodes:     ", _nodes(plan))
    if plan.job is not None or topology.is_head:
        yield Line("job:       ", _job(plan))
    yield Line("waits:     ", _waits(plan))
    logs = f"{log_root(plan.settings)}/<run id>/{topology.node_name}/"
    yield Line("when done: ", f"{plan.on_done}{_price(plan)}; logs in {logs}")


def _price(plan: Plan) -> str:
    """Return the price of a pod that is held."""
    if plan.on_done != "hold":
        return ""
    price = plan.settings.price_per_hour
    return f" (the pod bills {price_text(price)}/h)" if price is not None else " (the pod bills on)"


def _own_address(plan: Plan) -> str:
    own = plan.address.ip
    return f", this node {own}" if own is not None and own != head_of(plan) else ""


def _nodes(plan: Plan) -> str:
    """Return how many nodes of which size, and what says so."""
    topology, settings = plan.topology, plan.settings
    gpus = plan.facts.gpus if settings.num_gpus is None else settings.num_gpus
    models = listed(plan.facts.node_versions.gpu_models)
    size = f" x {gpus} GPU{'' if gpus == 1 else 's'}" if gpus else " without GPUs"
    size += f" ({models})" if gpus and models else ""
    is_known = settings.expected_workers is not None or topology.platform.nodes is not None
    if not topology.is_head and not is_known:
        return f"this node{size}; the head decides how many there are"
    workers = topology.expected_workers
    if not workers:
        return f"1 node{size}: this one alone"
    if settings.expected_workers is not None:
        source = "by EXPECTED_WORKERS"
    else:
        source = f"by {topology.platform.name}" if is_known else "by default"
    of_the_head = "this one and " if topology.is_head else "the head and "
    count = f"{workers} worker{'' if workers == 1 else 's'}"
    like = ", if all are like this one" if gpus else ""
    return f"{workers + 1} nodes{size}{like}: {of_the_head}{count}, {source}"


def _job(plan: Plan) -> str:
    job, starter = plan.job, ""
    if job is None:
        return "none: the cluster stays until it is stopped"
    if plan.torchrun is not None:
        starter = ", by torchrun on every node"
    elif isinstance(plan.launch, GivenRay):
        starter = f", on the Ray of {owner_of_ray(plan)}"
    return f"{_command(job, plan.topology.expected_workers)}{starter}"


def _command(job: Job, workers: int) -> str:
    recipe = job.recipe
    if recipe is None:
        return _shortened(shlex.join(job.argv))
    where = nodes_like_this(workers)
    if recipe.expected_command is None:
        return f"{job.name} does not fit {where}: {recipe.misfit}"
    if job.name == DEFAULT:
        return f"{job.name}, a small GRPO on CPUs (AGENT_JOB names another)"
    model = f" of {recipe.input.model}" if recipe.input.model else ""
    return f"{job.name}{model}, {len(job.argv)} words, sized for {where}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_JOB else f"{text[:_LONGEST_JOB]} ..."


def _waits(plan: Plan) -> str:
    """Return what the job, or this worker, waits for, and what starts after what."""
    services = {spec.name for spec in plan.all_services}
    keys = (HEAD, PREPARE, WORKERS, PREFLIGHT) if plan.topology.is_head else (HEAD, PREPARE, JOIN)
    before = [
        f"{wait.what.partition(',')[0]} ({duration(wait.seconds)})"
        for wait in plan.waits
        if wait.key in keys or (plan.topology.is_head and wait.key in services)
    ]
    who = "the job for" if plan.topology.is_head else "this worker for"
    if plan.topology.is_head and plan.job is None:
        who = "readiness for"
    chains = [f"{name} after {listed(after)}" for name, after in names_in_order(plan)]
    return "; ".join([f"{who} {listed(before)}", *filter(None, [first_names(chains, 3)])])


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON data; secrets are still to be masked."""
    topology, job = plan.topology, plan.job
    gpus = plan.facts.gpus if plan.settings.num_gpus is None else plan.settings.num_gpus
    recipe = None if job is None else job.recipe
    made = None if recipe is None else recipe.expected_command
    return {
        "role": topology.role,
        "evidence": list(topology.evidence),
        "platform": topology.platform.name,
        "node": topology.node_name,
        "head": head_of(plan),
        "address": {"ip": plan.address.ip, "how": plan.address.how},
        "expected_workers": topology.expected_workers if topology.is_head else None,
        "gpus": gpus,
        "job": None
        if job is None
        else {
            "name": job.name,
            "argv": list(job.argv),
            "checkpoints": job.checkpoints,
            "misfit": "" if recipe is None else recipe.misfit,
            "why": {} if made is None else {**made.why},
        },
        "commands": list(commands_of(plan)),
        "environment": environment_of(plan),
        "ports": to_builtins(plan.listeners),
        "waits": [
            {"what": wait.what, "seconds": wait.seconds, "variable": wait.variable}
            for wait in plan.waits
        ],
        "findings": to_builtins(plan.findings),
        "refused": bool(plan.failed()),
        "notes": list(plan.notes),
        "logs": f"{log_root(plan.settings)}/<run id>/{topology.node_name}/",
        "on_done": plan.on_done,
    }
