"""The plan as text: what `plan` prints, line by line, secrets masked."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from agent.checks import Level
from agent.plan import environment
from agent.plan.listeners import NODE_IP
from agent.plan.plan import HEAD_IP, log_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.checks import Finding
    from agent.plan.plan import Plan
    from agent.settings.redact import Redactor

_SIGN = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL"}


def render(plan: Plan, redactor: Redactor) -> str:
    """Render a plan for a person."""
    lines = [
        *_who(plan),
        *_section("commands", _commands(plan)),
        *_section(_whose_environment(plan), _environment(plan)),
        *_section(
            "ports", (f"{p.port:<12} {p.who}: {p.bind}; guard: {p.guard}" for p in plan.listeners)
        ),
        *_section(
            "waits, from the start", (_wait(w.what, w.seconds, w.variable) for w in plan.waits)
        ),
        *_section("checks of this machine", (finding_line(f) for f in plan.findings)),
        *_section("notes", plan.notes),
    ]
    return redactor.clean("\n".join(lines))


def finding_line(finding: Finding) -> str:
    """Render one finding."""
    return f"{_SIGN[finding.level]} {finding.sentence()}"


def duration(seconds: float) -> str:
    """Write seconds as a person would: 90 s, 10 min, 2 h."""
    if seconds >= 3600 and seconds % 3600 == 0:
        return f"{seconds / 3600:g} h"
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    body = list(lines)
    if body:
        yield f"\n{title}:"
        yield from (f"  {line}" for line in body)


def _who(plan: Plan) -> Iterator[str]:
    topology = plan.topology
    host = topology.head_host
    if host is None or (topology.is_head and plan.address.ip is not None):
        host = plan.address.ip
    if host is None and topology.given_ray is not None:
        host = topology.given_ray.gcs_host
    yield f"role:      {topology.sentence()}"
    yield f"platform:  {topology.platform}"
    yield f"node:      {topology.node_name}"
    yield f"head:      {host}"
    yield f"address:   {plan.address.ip or 'found at run'} ({plan.address.how})"
    if topology.is_head:
        yield f"workers:   {topology.expected_workers} expected"
    yield f"logs:      {log_root(plan.settings)}/<run id>/{topology.node_name}/"
    yield f"when done: {plan.on_done}"


def _commands(plan: Plan) -> Iterator[str]:
    node_ip = plan.address.ip or NODE_IP
    if plan.topology.is_idle:
        yield f"none: {_owner(plan)} starts Ray here, and the agent at the head submits the job"
        return
    if plan.ray is not None and plan.topology.owns_machine:
        yield "first:  a stale Ray on this pod is ended"
    elif plan.ray is not None:
        yield f"first:  a stale Ray of our own is ended (one with {plan.ray.temp_dir})"
    if plan.settings.prepare_each:
        yield f"prepare (each): {plan.settings.prepare_each}"
    if plan.settings.prepare and plan.topology.is_head:
        yield f"prepare: {plan.settings.prepare}"
    yield f"ray:    {_ray(plan, node_ip)}"
    if not plan.topology.is_head:
        return
    service = plan.service(node_ip)
    if service is not None:
        how = shlex.join(service.argv) if service.argv else "run by others, probed here"
        yield f"{service.name}: {how}"
        yield f"  ready when POST {service.url} answers a scoring request"
    if plan.job is None:
        yield "job:    none: the cluster stays until it is stopped"
    else:
        yield f"submit: {shlex.join(plan.bridge_command(node_ip))}"
        yield f"job:    {shlex.join(plan.job.argv)}"
        if plan.job.runtime_env:
            yield f"  runtime_env: {', '.join(sorted(plan.job.runtime_env))}"


def _ray(plan: Plan, node_ip: str) -> str:
    if plan.ray is None:
        gcs, dashboard = plan.bridge_addresses(node_ip)
        return f"{_owner(plan)}'s, at {gcs} and {dashboard}: neither started nor stopped here"
    head = plan.topology.is_head
    return shlex.join(plan.ray.head(node_ip) if head else plan.ray.worker(node_ip, HEAD_IP))


def _owner(plan: Plan) -> str:
    given = plan.topology.given_ray
    return "the agent" if given is None else given.owner


def _whose_environment(plan: Plan) -> str:
    if plan.topology.given_ray is None:
        return "environment that Ray and the job get"
    return f"environment of what starts here (Ray's and the job's is {_owner(plan)}'s)"


def _environment(plan: Plan) -> Iterator[str]:
    if plan.topology.is_idle:
        return
    full = plan.environment(plan.address.ip or NODE_IP, HEAD_IP)
    chosen = environment.chosen_for_display(plan.environ, plan.settings, full)
    if plan.address.ip is None and plan.ray is not None:
        chosen |= {
            name: plan.environ.get(name, "{interface of node_ip}")
            for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        }
    yield from (f"{name}={text}" for name, text in sorted(chosen.items()))


def _wait(what: str, seconds: float, variable: str) -> str:
    """Render one wait; `fixed` ones have no variable."""
    return f"{duration(seconds):<8} {what} ({variable})"
