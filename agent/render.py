"""The plan as text: what `plan` prints, line by line, secrets masked."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from agent import environment
from agent.checks import Level
from agent.own_command import own_command
from agent.plan import HEAD_IP, NODE_IP, log_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.checks import Finding
    from agent.plan import Plan
    from agent.redact import Redactor

_SIGN = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL"}


def render(plan: Plan, redactor: Redactor) -> str:
    """Render a plan for a person."""
    lines = [
        *_who(plan),
        *_section("commands", _commands(plan)),
        *_section("environment that Ray and the job get", _environment(plan)),
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
    if plan.topology.owns_machine:
        yield "first:  a stale Ray on this pod is ended"
    else:
        yield f"first:  a stale Ray of our own is ended (one with {plan.ray.temp_dir})"
    if plan.settings.prepare_each:
        yield f"prepare (each): {plan.settings.prepare_each}"
    if not plan.topology.is_head:
        yield f"ray:    {shlex.join(plan.ray.worker(node_ip, HEAD_IP))}"
        return
    if plan.settings.prepare:
        yield f"prepare: {plan.settings.prepare}"
    yield f"ray:    {shlex.join(plan.ray.head(node_ip))}"
    service = plan.service(node_ip)
    if service is not None:
        how = shlex.join(service.argv) if service.argv else "run by others, probed here"
        yield f"{service.name}: {how}"
        yield f"  ready when POST {service.url} answers a scoring request"
    if plan.job is None:
        yield "job:    none: the cluster stays until it is stopped"
    else:
        yield f"submit: {shlex.join(own_command('ray-bridge', *plan.bridge_addresses(node_ip)))}"
        yield f"job:    {shlex.join(plan.job.argv)}"
        if plan.job.runtime_env:
            yield f"  runtime_env: {', '.join(sorted(plan.job.runtime_env))}"


def _environment(plan: Plan) -> Iterator[str]:
    chosen = environment.chosen_for_display(plan.environ, plan.settings, _full(plan))
    if plan.address.ip is None:
        chosen |= {
            name: plan.environ.get(name, "{interface of node_ip}")
            for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        }
    yield from (f"{name}={text}" for name, text in sorted(chosen.items()))


def _full(plan: Plan) -> dict[str, str]:
    node_ip = plan.address.ip or NODE_IP
    if plan.topology.is_head:
        return environment.for_head(
            plan.environ, plan.settings, plan.facts, node_ip, plan.budget.job
        )
    return environment.for_node(plan.environ, plan.settings, plan.facts, node_ip, HEAD_IP)


def _wait(what: str, seconds: float, variable: str) -> str:
    """Render one wait; `fixed` ones have no variable."""
    return f"{duration(seconds):<8} {what} ({variable})"
