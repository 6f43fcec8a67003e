"""Shows the plan: in twelve lines, in full, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace

from agent.base.text import Line, first_names, listed, mib, shell_line
from agent.checks import NAMES
from agent.checks.finding import Level, finding_line, problem_lines
from agent.plan import environment
from agent.plan.plan import BRIDGE, log_root
from agent.plan.waits import HEAD, JOIN, PREFLIGHT, PREPARE, WORKERS
from agent.settings.jobs import DEFAULT
from agent.topology.platforms import CLUSTER_NAMES, GivenRay, own_pod
from agent.work.job import is_sized_by_links
from agent.work.services import HEAD_IP, NODE_IP, HttpProbe, LogPattern, Placeholders, TcpProbe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.plan.plan import Plan
    from agent.settings.redact import Redactor
    from agent.work.job import Job, RecipeJob
    from agent.work.services import PrepareStep, Readiness, ServiceSpec
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
        owns_machine = plan.topology.owns_machine
        own = f"a stale Ray of the agent is stopped (one with {plan.own_ray.session})"
        yield f"first:  {'a stale Ray on this pod is stopped' if owns_machine else own}"
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
        yield f"{process.label + ':':<8}{shell_line(process.command(place))}"
    if plan.torchrun is not None:
        yield from _services(plan, place)
        yield from _by_torchrun(plan, plan.torchrun)
    elif not plan.topology.is_head:
        yield from _services(plan, place)
    else:
        yield from _job(plan.job, plan.topology.expected_workers)


def _services(plan: Plan, place: Placeholders) -> Iterator[str]:
    for spec in plan.all_services:
        where = f"{spec.where.sentence()}{', which joins no Ray' if spec.alone else ''}"
        if spec not in plan.possible_services:
            if plan.topology.is_head:
                yield f"{spec.name}: on {where}"
            continue
        own = shell_line(spec.command(place)) if spec.argv else "external, only probed"
        if spec not in plan.services:
            own = f"{own} (if the head makes this node {where})"
        elif spec.where.kind != "head":
            own = f"{own} (on {where})"
        yield f"{spec.name}: {own}"
        again = f"; restarted up to {spec.restarts} times" if spec.argv else ""
        yield f"  {_ready_when(spec.ready, place)}{again}"
        yield from _waits_for(plan, spec.after)


def _ready_when(ready: Readiness, place: Placeholders) -> str:
    if isinstance(ready, TcpProbe):
        return f"ready when port {ready.port} takes connections"
    if isinstance(ready, LogPattern):
        return f"ready when its output matches {ready.pattern!r}"
    url = place.fill(ready.url)
    if not isinstance(ready, HttpProbe):
        return f"ready when POST {url} answers a scoring request"
    method = "GET" if ready.body is None else "POST"
    what = f" with {ready.expect!r} in it" if ready.expect else ""
    return f"ready when {method} {url} answers 2xx{what}"


def names_in_order(plan: Plan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each step or service that starts after others, with their names."""
    rows: tuple[PrepareStep | ServiceSpec, ...] = (*plan.all_steps, *plan.all_services)
    for row in rows:
        names = plan.names_in_this_run(row.after)
        if names:
            yield row.name, names


def _waits_for(plan: Plan, after: tuple[str, ...]) -> Iterator[str]:
    names = plan.names_in_this_run(after)
    if names:
        yield f"  starts after {listed(names)}"


def _by_torchrun(plan: Plan, torchrun: Torchrun) -> Iterator[str]:
    """Show torchrun's command on this node, if all expected nodes join."""
    job, topology = plan.job, plan.topology
    if job is not None and job.argv:
        nodes, own_rank = str(topology.expected_workers + 1), topology.platform.rank
        rank = "0" if topology.is_head else "{rank}" if own_rank is None else str(own_rank)
        head_ip = (plan.address.ip if topology.is_head else None) or HEAD_IP
        argv = torchrun.command(job.argv, rank, nodes, "{run id}-{attempt}", head_ip)
        job = replace(job, argv=tuple(argv))
    if job is not None:
        yield from _job(job, topology.expected_workers)


def _job(job: Job | None, workers: int) -> Iterator[str]:
    if job is None:
        yield "job:    none: the cluster stays until it is stopped"
        return
    recipe = job.recipe
    made = None if recipe is None else recipe.expected_command
    if recipe is not None and made is None:
        yield f"job:    {_misfit(job.name, recipe, workers)}"
    else:
        yield f"job:    {shell_line(job.argv)}"
    if recipe is not None and recipe.known.framework:
        if made is not None:
            measured = workers > 0 and is_sized_by_links(job)
            links = " and the measured bandwidth between them" * measured
            again = f"sized again for the nodes that join{links}"
            yield f"  sized for {nodes_like_this(workers)}; {again}"
            yield from (f"  {key}: {reason}" for key, reason in made.why.items())
            yield from (f"  warning: {text}" for text in made.warnings)
            yield from (f"  {note}" for note in made.notes)
        yield f"  checkpoints: {job.checkpoints}"
    if job.runtime_env:
        yield f"  runtime_env: {', '.join(sorted(job.runtime_env))}"
    if job.upload is not None:
        yield f"  uploaded: {mib(job.upload.size)} in {job.upload.files} file(s) of its working_dir"


def _misfit(name: str, recipe: RecipeJob, workers: int) -> str:
    return f"{name} does not fit {nodes_like_this(workers)}: {recipe.misfit}"


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
    own = plan.address.ip
    here = f", this node {own}" if own is not None and own != head_of(plan) else ""
    yield Line("head:      ", f"{head_of(plan)}{here}")
    if topology.is_idle:
        owner = owner_of_ray(plan)
        yield Line(
            "job:       ", f"none here: {owner} starts Ray, the head's agent submits the job"
        )
        return
    yield Line("nodes:     ", _nodes(plan))
    if plan.job is not None or topology.is_head:
        yield Line("job:       ", _job_line(plan))
    yield Line("waits:     ", _waits(plan))
    logs = f"{log_root(plan.settings)}/<run id>/{topology.node_name}/"
    yield Line("when done: ", f"{plan.on_done}{_price(plan)}; logs in {logs}")


def _price(plan: Plan) -> str:
    if plan.on_done != "hold":
        return ""
    price = plan.settings.price_per_hour
    return f" (the pod bills {price_text(price)}/h)" if price is not None else " (the pod bills on)"


def _nodes(plan: Plan) -> str:
    """Return how many nodes of which size, and by which setting or platform."""
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


def _job_line(plan: Plan) -> str:
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
        text = shell_line(job.argv)
        return text if len(text) <= _LONGEST_JOB else f"{text[:_LONGEST_JOB]} ..."
    if recipe.expected_command is None:
        return _misfit(job.name, recipe, workers)
    if job.name == DEFAULT:
        return f"{job.name}, a small GRPO on CPUs (AGENT_JOB names another)"
    model = f" of {recipe.input.model}" if recipe.input.model else ""
    return f"{job.name}{model}, {len(job.argv)} words, sized for {nodes_like_this(workers)}"


def _waits(plan: Plan) -> str:
    """Return what the job, or this worker, waits for, and what starts after what."""
    services = {spec.name for spec in plan.all_services}
    keys = (HEAD, PREPARE, WORKERS, PREFLIGHT) if plan.topology.is_head else (HEAD, PREPARE, JOIN)
    before = [
        f"{wait.what.partition(',')[0]} ({duration(wait.seconds)})"
        for wait in plan.waits
        if wait.key in keys or (plan.topology.is_head and wait.key in services)
    ]
    waiting = "readiness" if plan.job is None else "the job"
    who = f"{waiting if plan.topology.is_head else 'this worker'} for"
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
            {"what": one.what, "seconds": one.seconds, "variable": one.variable}
            for one in plan.waits
        ],
        "findings": to_builtins(plan.findings),
        "refused": bool(plan.failed()),
        "notes": list(plan.notes),
        "logs": f"{log_root(plan.settings)}/<run id>/{topology.node_name}/",
        "on_done": plan.on_done,
    }
