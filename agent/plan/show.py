"""Renders the plan as text, with secrets masked."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.text import listed, mib
from agent.checks import NAMES
from agent.checks.finding import finding_line
from agent.plan import environment
from agent.plan.plan import BRIDGE, log_root
from agent.topology.claim import GivenRay
from agent.topology.runpod import CLUSTER_NAMES, own_pod
from agent.work.job import is_sized_by_links
from agent.work.where import HEAD_IP, NODE_IP, Placeholders

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.plan.plan import Plan
    from agent.settings.redact import Redactor
    from agent.work.job import Job
    from agent.work.torchrun import Torchrun


def render(plan: Plan, redactor: Redactor) -> str:
    """Render a plan for `pod-agent plan -v`."""
    names = [finding for finding in plan.findings if finding.check == NAMES]
    others = [finding for finding in plan.findings if finding.check != NAMES]
    variables = (f"{name}={text}" for name, text in environment_of(plan).items())
    lines = [
        *map(finding_line, names),
        *_who(plan),
        *_section("commands", commands_of(plan)),
        *_section(_whose_environment(plan), variables),
        *_section(
            "ports", (f"{p.port:<12} {p.who}: {p.bind}; guard: {p.guard}" for p in plan.listeners)
        ),
        *_section(
            "waits, from the start",
            (f"{duration(w.seconds):<8} {w.what} ({w.variable})" for w in plan.waits),
        ),
        *_section("checks of this machine", map(finding_line, others)),
        *_section("notes", plan.notes),
    ]
    return redactor.clean("\n".join(lines))


def duration(seconds: float) -> str:
    """Format seconds: 90 s, 10 min, 2 h."""
    if seconds >= 3600 and seconds % 3600 == 0:
        return f"{seconds / 3600:g} h"
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s"


def price_text(price: float, seconds: float = 3600.0) -> str:
    """Return the cost of some seconds: $0.44."""
    return f"${price * seconds / 3600:.2f}"


def how_to_end(api: str, environ: Mapping[str, str]) -> str:
    """Return what ends a held pod: a command where the pod's own API may."""
    pod = own_pod(environ)
    if pod is None:
        return "send SIGTERM to the agent"
    if CLUSTER_NAMES.head in environ:
        return "delete the cluster in RunPod's console"
    return (
        f"curl -X POST {api}/v2/pods/{pod}/action -H 'Content-Type: application/json' "
        '-H "Authorization: Bearer $RUNPOD_API_KEY" -d \'{"action": "stop"}\''
    )


def held_sentence(seconds: float, price: float | None, command: str) -> str:
    """Return the line about a held pod, at the start and every ten minutes."""
    each = "the pod bills by the hour" if price is None else f"the pod bills {price_text(price)}/h"
    spent = f", {price_text(price, seconds)} since the end" if price is not None else ""
    held = f"held for {round(seconds / 60)} min: " if seconds >= 60 else ""
    return f"{held}{each}{spent if held else ''}; to end it: {command}"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    body = list(lines)
    if body:
        yield f"\n{title}:"
        yield from (f"  {line}" for line in body)


def head_of(plan: Plan) -> str | None:
    """Return the head's address or name as far as it is known before the run."""
    topology = plan.topology
    host = topology.head_host
    if host is None or (topology.is_head and plan.address.ip is not None):
        host = plan.address.ip
    if host is None and topology.given_ray is not None:
        host = topology.given_ray.gcs_host
    return host


def _who(plan: Plan) -> Iterator[str]:
    topology = plan.topology
    yield f"role:      {topology.sentence()}"
    yield f"platform:  {topology.platform.name}"
    yield f"node:      {topology.node_name}"
    yield f"head:      {head_of(plan)}"
    yield f"address:   {plan.address.ip or 'found at run'} ({plan.address.how})"
    if topology.is_head:
        yield f"workers:   {topology.expected_workers} expected"
    yield f"logs:      {log_root(plan.settings)}/<run id>/{topology.node_name}/"
    yield f"when done: {plan.on_done}"
    if plan.on_done == "hold":
        end = how_to_end(plan.settings.runpod_api, plan.environ)
        yield f"           {held_sentence(0.0, plan.settings.price_per_hour, end)}"
    elif plan.on_done != "exit":
        yield f"           by {plan.settings.runpod_api}; the pod is held while that fails"


def commands_of(plan: Plan) -> Iterator[str]:
    """Yield every command of this node, what it waits for, and why it has its arguments."""
    place = Placeholders(node_ip=plan.address.ip or NODE_IP)
    if plan.topology.is_idle:
        owner = owner_of_ray(plan)
        yield f"none: {owner} starts Ray here, and the agent at the head submits the job"
        return
    if plan.own_ray is not None:
        own = f"a stale Ray of the agent is stopped (one with {plan.own_ray.session})"
        yield "first:  " + (
            "a stale Ray on this pod is stopped" if plan.topology.owns_machine else own
        )
    for step in plan.steps:
        each = " (each)" if step.where.kind == "every" else ""
        name = "" if step.name.startswith("AGENT_") else f" {step.name}"
        yield f"prepare{name}{each}: {step.command}"
        if step.once is not None:
            yield f"  once: skipped where {step.once} is found, which is written after success"
        yield from _waits_for(plan, step.after)
    if isinstance(plan.launch, GivenRay):
        where = f"at {plan.launch.gcs} and {plan.launch.dashboard}"
        yield f"ray:    {owner_of_ray(plan)}'s, {where}: neither started nor stopped here"
    for process in plan.processes:
        if process.name == BRIDGE:
            yield from _services(plan, place)
        yield f"{process.label + ':':<8}{shlex.join(process.command(place))}"
    if plan.torchrun is not None:
        yield from _services(plan, place)
        yield from _by_torchrun(plan, plan.torchrun)
    elif not plan.topology.is_head:
        yield from _services(plan, place)
    else:
        yield from _job(plan.job, plan.topology.expected_workers)


def _services(plan: Plan, place: Placeholders) -> Iterator[str]:
    """Show the services that this node runs or may run, and on the head all others."""
    for spec in plan.all_services:
        where = f"{spec.where.sentence()}{', which joins no Ray' if spec.alone else ''}"
        if spec not in plan.possible_services:
            if plan.topology.is_head:
                yield f"{spec.name}: on {where}"
            continue
        own = shlex.join(spec.command(place)) if spec.argv else "external, only probed"
        if spec not in plan.services:
            own = f"{own} (if the head makes this node {where})"
        elif spec.where.kind != "head":
            own = f"{own} (on {where})"
        yield f"{spec.name}: {own}"
        again = f"; restarted up to {spec.restarts} times" if spec.argv else ""
        yield f"  {spec.ready.sentence(place)}{again}"
        yield from _waits_for(plan, spec.after)


def names_in_order(plan: Plan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each step or service that starts after others, with their names."""
    chains = [
        *((step.name, step.after) for step in plan.all_steps),
        *((spec.name, spec.after) for spec in plan.all_services),
    ]
    for name, after in chains:
        names = plan.names_in_this_run(after)
        if names:
            yield name, names


def _waits_for(plan: Plan, after: tuple[str, ...]) -> Iterator[str]:
    """Show the steps and services that something waits for."""
    names = plan.names_in_this_run(after)
    if names:
        yield f"  starts after {listed(names)}"


def _by_torchrun(plan: Plan, torchrun: Torchrun) -> Iterator[str]:
    """Show torchrun's command on this node, if all expected nodes join."""
    if plan.job is None:
        return
    topology = plan.topology
    nodes, own_rank = str(topology.expected_workers + 1), topology.platform.rank
    rank = "0" if topology.is_head else "{rank}" if own_rank is None else str(own_rank)
    head_ip = (plan.address.ip if plan.topology.is_head else None) or HEAD_IP
    if not plan.job.argv:
        yield from _job(plan.job, topology.expected_workers)
        return
    argv = torchrun.command(plan.job.argv, rank, nodes, "{run id}-{attempt}", head_ip)
    yield from _job(replace(plan.job, argv=tuple(argv)), topology.expected_workers)


def _job(job: Job | None, workers: int) -> Iterator[str]:
    if job is None:
        yield "job:    none: the cluster stays until it is stopped"
        return
    recipe = job.recipe
    if recipe is not None and recipe.expected_command is None:
        where = nodes_like_this(workers)
        yield f"job:    {job.name} does not fit {where}: {recipe.misfit}"
    else:
        yield f"job:    {shlex.join(job.argv)}"
    if recipe is not None and recipe.expected_command is not None and recipe.known.framework:
        measured = workers > 0 and is_sized_by_links(job)
        links = " and the measured bandwidth between them" * measured
        again = f"sized again for the nodes that join{links}"
        yield f"  sized for {nodes_like_this(workers)}; {again}"
        yield from (f"  {key}: {reason}" for key, reason in recipe.expected_command.why.items())
        yield from (f"  warning: {text}" for text in recipe.expected_command.warnings)
        yield from (f"  {note}" for note in recipe.expected_command.notes)
    if recipe is not None and recipe.known.framework:
        yield f"  checkpoints: {job.checkpoints}"
    if job.runtime_env:
        yield f"  runtime_env: {', '.join(sorted(job.runtime_env))}"
    if job.upload is not None:
        yield f"  uploaded: {mib(job.upload.size)} in {job.upload.files} file(s) of its working_dir"


def nodes_like_this(workers: int) -> str:
    """Name the nodes for which a recipe is sized before they have joined."""
    return f"{workers + 1} nodes like this one" if workers else "this one node"


def owner_of_ray(plan: Plan) -> str:
    """Return who starts Ray: the agent, or the platform."""
    given = plan.topology.given_ray
    return "the agent" if given is None else given.owner


def _whose_environment(plan: Plan) -> str:
    if plan.torchrun is not None:
        return "environment that torchrun and the job get"
    if plan.topology.given_ray is None:
        return "environment that Ray and the job get"
    return f"environment of what starts here (Ray's and the job's is {owner_of_ray(plan)}'s)"


def environment_of(plan: Plan) -> dict[str, str]:
    """Return the variables that the agent sets or changes for what it starts here."""
    if plan.topology.is_idle:
        return {}
    full = plan.environment(plan.address.ip or NODE_IP, HEAD_IP)
    chosen = environment.chosen_for_display(plan.environ, plan.settings, full)
    if plan.address.ip is None and not isinstance(plan.launch, GivenRay):
        chosen |= {
            name: plan.environ.get(name, "{interface of node_ip}")
            for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        }
    return dict(sorted(chosen.items()))


def _wait(what: str, seconds: float, variable: str) -> str:
    """Render one wait; `fixed` ones have no variable."""
    return f"{duration(seconds):<8} {what} ({variable})"
