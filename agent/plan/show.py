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
from agent.topology.platforms import RUNPOD_CLUSTER, GivenRay, own_pod
from agent.work.job import is_sized_by_links
from agent.work.services import HEAD_IP, NODE_IP, HttpProbe, LogPattern, Placeholders, TcpProbe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.plan.plan import Plan
    from agent.settings.redact import Redactor
    from agent.work.job import Job
    from agent.work.services import PrepareStep, Readiness, ServiceSpec


def render(plan: Plan, redactor: Redactor) -> str:
    """Render a plan for `pod-agent plan -v`."""
    given, lines = plan.topology.given_ray, []
    names = [finding for finding in plan.findings if finding.check == NAMES]
    others = [finding for finding in plan.findings if finding.check != NAMES]
    whose = "that Ray and the job get"
    if plan.torchrun is not None:
        whose = "that torchrun and the job get"
    elif given is not None:
        whose = f"of what starts here (Ray's and the job's is {given.owner}'s)"
    sections: dict[str, Iterable[str]] = {
        "commands": commands_of(plan),
        f"environment {whose}": (f"{name}={text}" for name, text in environment_of(plan).items()),
        "ports": (f"{p.port:<12} {p.who}: {p.bind}; guard: {p.guard}" for p in plan.listeners),
        "waits, from the start": (
            f"{duration(w.seconds):<8} {w.what} ({w.variable})" for w in plan.waits
        ),
        "checks of this machine": map(finding_line, others),
        "notes": plan.notes,
    }
    for title, section in sections.items():
        body = [f"  {line}" for line in section]
        lines += [f"\n{title}:", *body] if body else []
    return redactor.clean("\n".join([*map(finding_line, names), *_who(plan), *lines]))


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
    if RUNPOD_CLUSTER.head in environ:
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


def head_of(plan: Plan) -> str | None:
    """Return the head's address or name as far as it is known before the run."""
    topology, own, given = plan.topology, plan.address.ip, plan.topology.given_ray
    host = own if topology.is_head and own is not None else topology.head_host or own
    return given.gcs_host if host is None and given is not None else host


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
    topology, launch, ray = plan.topology, plan.launch, plan.own_ray
    place, workers = Placeholders(node_ip=plan.address.ip or NODE_IP), topology.expected_workers
    if topology.given_ray is not None and topology.is_idle:
        owner = topology.given_ray.owner
        yield f"none: {owner} starts Ray here, and the agent at the head submits the job"
        return
    if ray is not None:
        own = f"a stale Ray of the agent is stopped (one with {ray.session})"
        yield f"first:  {'a stale Ray on this pod is stopped' if topology.owns_machine else own}"
    for step in plan.steps:
        each = " (each)" if step.where.kind == "every" else ""
        name = "" if step.name.startswith("AGENT_") else f" {step.name}"
        yield f"prepare{name}{each}: {step.command}"
        if step.once is not None:
            yield f"  once: skipped where {step.once} is found, which is written after success"
        yield from _waits_for(plan, step.after)
    if isinstance(launch, GivenRay):
        where = f"at {launch.gcs} and {launch.dashboard}"
        yield f"ray:    {launch.owner}'s, {where}: neither started nor stopped here"
    for process in plan.processes:
        if process.name == BRIDGE:
            yield from _services(plan, place)
        yield f"{process.label + ':':<8}{shell_line(process.command(place))}"
    if plan.torchrun is not None or not topology.is_head:
        yield from _services(plan, place)
    job = plan.job
    if plan.torchrun is not None and job is not None and job.argv:
        # on this node, if all expected nodes join
        own_rank = topology.platform.rank
        rank = "0" if topology.is_head else "{rank}" if own_rank is None else str(own_rank)
        head_ip = (plan.address.ip if topology.is_head else None) or HEAD_IP
        nodes, attempt = str(workers + 1), "{run id}-{attempt}"
        argv = plan.torchrun.command(job.argv, rank, nodes, attempt, head_ip)
        job = replace(job, argv=tuple(argv))
    if job is not None:
        yield from _job(job, workers)
    elif topology.is_head and plan.torchrun is None:
        yield f"job:    {_NO_JOB}"


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


def _waits_for(plan: Plan, after: tuple[str, ...]) -> Iterator[str]:
    names = plan.names_in_this_run(after)
    if names:
        yield f"  starts after {listed(names)}"


_NO_JOB = "none: the cluster stays until it is stopped"


def _job(job: Job, workers: int) -> Iterator[str]:
    recipe = job.recipe
    made = None if recipe is None else recipe.expected_command
    if recipe is not None and made is None:
        yield f"job:    {job.name} does not fit {nodes_like_this(workers)}: {recipe.misfit}"
    else:
        yield f"job:    {shell_line(job.argv)}"
    if recipe is not None and recipe.known.framework:
        if made is not None:
            is_measured = workers > 0 and is_sized_by_links(job)
            links = " and the measured bandwidth between them" if is_measured else ""
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


def nodes_like_this(workers: int) -> str:
    """Name the nodes for which a recipe is sized before they have joined."""
    return f"{workers + 1} nodes like this one" if workers else "this one node"


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
_LONGEST_JOB = 100  # characters of a job's command; `-v` shows all


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
    topology, own = plan.topology, plan.address.ip
    yield Line("role:      ", topology.sentence())
    yield Line("platform:  ", topology.platform.name)
    here = f", this node {own}" if own is not None and own != head_of(plan) else ""
    yield Line("head:      ", f"{head_of(plan)}{here}")
    if topology.given_ray is not None and topology.is_idle:
        starts = f"none here: {topology.given_ray.owner} starts Ray"
        yield Line("job:       ", f"{starts}, the head's agent submits the job")
        return
    yield Line("nodes:     ", _nodes(plan))
    if plan.job is not None or topology.is_head:
        yield Line("job:       ", _job_line(plan))
    yield Line("waits:     ", _waits(plan))
    price = plan.settings.price_per_hour
    bills = "the pod bills on" if price is None else f"the pod bills {price_text(price)}/h"
    done = f"{plan.on_done} ({bills})" if plan.on_done == "hold" else plan.on_done
    logs = f"{log_root(plan.settings)}/<run id>/{topology.node_name}/"
    yield Line("when done: ", f"{done}; logs in {logs}")


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
    source = f"by {topology.platform.name}" if is_known else "by default"
    if settings.expected_workers is not None:
        source = "by EXPECTED_WORKERS"
    of_the_head = "this one and " if topology.is_head else "the head and "
    count = f"{workers} worker{'' if workers == 1 else 's'}"
    like = ", if all are like this one" if gpus else ""
    return f"{workers + 1} nodes{size}{like}: {of_the_head}{count}, {source}"


def _job_line(plan: Plan) -> str:
    job, workers, starter = plan.job, plan.topology.expected_workers, ""
    if job is None:
        return _NO_JOB
    if plan.torchrun is not None:
        starter = ", by torchrun on every node"
    elif isinstance(plan.launch, GivenRay):
        starter = f", on the Ray of {plan.launch.owner}"
    recipe = job.recipe
    if recipe is None:
        text = shell_line(job.argv)
        text = text if len(text) <= _LONGEST_JOB else f"{text[:_LONGEST_JOB]} ..."
    elif recipe.expected_command is None:
        text = f"{job.name} does not fit {nodes_like_this(workers)}: {recipe.misfit}"
    elif job.name == DEFAULT:
        text = f"{job.name}, a small GRPO on CPUs (AGENT_JOB names another)"
    else:
        model = f" of {recipe.input.model}" if recipe.input.model else ""
        text = f"{job.name}{model}, {len(job.argv)} words, sized for {nodes_like_this(workers)}"
    return f"{text}{starter}"


def _waits(plan: Plan) -> str:
    """Return what the job, or this worker, waits for, and what starts after what."""
    is_head, services = plan.topology.is_head, {spec.name for spec in plan.all_services}
    keys = {HEAD, PREPARE, WORKERS, PREFLIGHT, *services} if is_head else {HEAD, PREPARE, JOIN}
    before = [
        f"{wait.what.partition(',')[0]} ({duration(wait.seconds)})"
        for wait in plan.waits
        if wait.key in keys
    ]
    waiting = "readiness" if plan.job is None else "the job"
    rows: tuple[PrepareStep | ServiceSpec, ...] = (*plan.all_steps, *plan.all_services)
    after = {row.name: plan.names_in_this_run(row.after) for row in rows}
    chains = [f"{name} after {listed(names)}" for name, names in after.items() if names]
    who = f"{waiting if is_head else 'this worker'} for {listed(before)}"
    return "; ".join([who, *filter(None, [first_names(chains, 3)])])


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON data; secrets are still to be masked."""
    topology, job = plan.topology, plan.job
    recipe = None if job is None else job.recipe
    made = None if recipe is None else recipe.expected_command
    waits = [{"what": w.what, "seconds": w.seconds, "variable": w.variable} for w in plan.waits]
    return {
        "role": topology.role,
        "evidence": list(topology.evidence),
        "platform": topology.platform.name,
        "node": topology.node_name,
        "head": head_of(plan),
        "address": {"ip": plan.address.ip, "how": plan.address.how},
        "expected_workers": topology.expected_workers if topology.is_head else None,
        "gpus": plan.facts.gpus if plan.settings.num_gpus is None else plan.settings.num_gpus,
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
        "waits": waits,
        "findings": to_builtins(plan.findings),
        "refused": bool(plan.failed()),
        "notes": list(plan.notes),
        "logs": f"{log_root(plan.settings)}/<run id>/{topology.node_name}/",
        "on_done": plan.on_done,
    }
