"""Shows the plan: in twelve lines, in full, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from agent.base.text import Line, duration_text, listed, mib, shell_line
from agent.checks import NAMES
from agent.checks.finding import Level, problem_lines, toned_line
from agent.job.services import HEAD_IP, NODE_IP, Placeholders
from agent.plan import environment
from agent.plan.plan import log_root
from agent.plan.waits import HEAD, JOIN, PREFLIGHT, PREPARE, WORKERS
from agent.platforms.rank_variables import RUNPOD_CLUSTER, GivenRay, own_pod
from agent.settings.jobs import DEFAULT
from agent.settings.model import secret_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.job.job import Job
    from agent.job.services import PrepareStep, ServiceSpec
    from agent.plan.plan import Plan
    from agent.settings.redact import Redactor


def render(plan: Plan, redactor: Redactor) -> str:
    """Render a plan for `pod-agent plan -v`."""
    names = [finding for finding in plan.findings if finding.check == NAMES]  # the first of all
    others = plan.findings[len(names) :]
    lines = [f"{row.label}{row.text}" for row in (*map(toned_line, names), *_rows(plan))]
    sections: dict[str, Iterable[str]] = {
        "commands": commands_of(plan),
        "environment of what starts here": (
            f"{name}={text}" for name, text in environment_of(plan).items()
        ),
        "ports": (f"{p.port:<12} {p.who}: {p.bind}; guard: {p.guard}" for p in plan.listeners),
        "waits": (f"{duration_text(w.seconds):<10} {w.what} ({w.variable})" for w in plan.waits),
        "checks of this machine": (f"{row.label}{row.text}" for row in map(toned_line, others)),
        "notes": plan.notes,
    }
    for title, section in sections.items():
        body = [f"  {line}" for line in section]
        lines += [f"\n{title}:", *body] if body else []
    return redactor.clean("\n".join(lines))


DELETE_CLUSTER = "delete the cluster in RunPod's console"


def how_to_end(api: str, environ: Mapping[str, str]) -> str:
    """Return what ends a held pod: a command where the pod's own API may."""
    pod = own_pod(environ)
    if pod is None:
        return "send SIGTERM to the agent"
    if RUNPOD_CLUSTER.head in environ:
        return DELETE_CLUSTER
    return (
        f"curl -X POST {api}/v2/pods/{pod}/action -H 'Content-Type: application/json' "
        '-H "Authorization: Bearer $RUNPOD_API_KEY" -d \'{"action": "stop"}\''
    )


def held_sentence(seconds: float, price: float | None, command: str) -> str:
    """Return the line about a held pod, at the start and every ten minutes."""
    each = "the pod bills by the hour" if price is None else f"the pod bills ${price:.2f}/h"
    spent = f", ${price * seconds / 3600:.2f} since the end" if price is not None else ""
    held = f"held for {round(seconds / 60)} min: " if seconds >= 60 else ""
    return f"{held}{each}{spent if held else ''}; to end it: {command}"


def head_of(plan: Plan) -> str | None:
    """Return the head's address or name as far as it is known before the run."""
    topology = plan.topology
    own = plan.address.ip
    given = plan.topology.given_ray
    host = own if topology.is_head and own is not None else topology.head_host or own
    return given.gcs_host if host is None and given is not None else host


def commands_of(plan: Plan) -> Iterator[str]:
    """Yield every command of this node, and why the job's has its arguments."""
    topology = plan.topology
    launch = plan.launch
    ray = plan.own_ray
    place = Placeholders(node_ip=plan.address.ip or NODE_IP)
    if ray is not None:
        which = "on this pod" if topology.owns_machine else f"with {ray.session}"
        yield f"first:  a stale Ray {which} is stopped"
    for step in plan.steps:
        yield f"prepare {step.name}: {step.command}"
    if isinstance(launch, GivenRay):
        where = f"at {launch.gcs} and {launch.dashboard}"
        yield f"ray:    {launch.owner}'s, {where}: neither started nor stopped here"
    for process in plan.processes:
        yield f"{process.label + ':':<8}{shell_line(process.command(place))}"
    for spec in plan.all_services if topology.is_head else plan.possible_services:
        here = place if spec in plan.services else Placeholders()
        command = shell_line(spec.command(here)) if spec.argv else "external, only probed"
        where = "" if spec.where.kind == "head" else f" on {spec.where.sentence()}"
        yield f"{spec.name}{where}{', which joins no Ray' if spec.alone else ''}: {command}"
    if plan.job is not None:
        yield from _job(plan, plan.job)


def _job(plan: Plan, job: Job) -> Iterator[str]:
    argv = list(job.argv)
    topology = plan.topology
    recipe = job.recipe
    if plan.torchrun is not None and argv:  # on this node, if all expected nodes join
        rank = "{rank}" if topology.own_rank is None else str(topology.own_rank)
        head_ip = (plan.address.ip if topology.is_head else None) or HEAD_IP
        nodes = str(topology.expected_workers + 1)
        argv = plan.torchrun.command(argv, rank, nodes, "{run id}-{attempt}", head_ip)
    if argv:
        yield f"job:    {shell_line(argv)}"
    if recipe is not None and recipe.expected_command is not None:
        made = recipe.expected_command
        yield from (f"  {key}: {reason}" for key, reason in made.why.items())
        yield from (f"  warning: {text}" for text in made.warnings)
        yield from (f"  {note}" for note in made.notes)
    if job.framework:
        yield f"  checkpoints: {job.checkpoints}"
    if job.runtime_env:
        yield f"  runtime_env: {', '.join(sorted(job.runtime_env))}"
    if job.upload is not None:
        yield f"  uploaded: {mib(job.upload.size)} in {job.upload.files} file(s) of its working_dir"


def environment_of(plan: Plan) -> dict[str, str]:
    """Return the variables that the agent sets or changes for what it starts here."""
    if plan.topology.is_idle:
        return {}
    full = plan.environment(plan.address.ip or NODE_IP, HEAD_IP)
    environ = plan.environ
    secrets = secret_texts(plan.settings, environment.INHERITED_SECRETS)
    chosen = {name: text for name, text in full.items() if environ.get(name) != text}
    chosen |= {name: "(dropped)" for name in environ if name not in full}
    chosen |= dict.fromkeys(secrets.keys() & full.keys(), "********")
    return dict(sorted(chosen.items()))


MOST_LINES = 12
_LONGEST_JOB = 100  # characters of a job's command; `-v` shows all


def summary(plan: Plan) -> list[Line]:
    """Return the plan in at most twelve lines, more only if more than that refuses the run."""
    names = [finding for finding in plan.findings if finding.check == NAMES]  # the first of all
    others = plan.findings[len(names) :]
    top = [*problem_lines(names), *_rows(plan)]
    problems = problem_lines(others)
    refusals = sum(finding.level is Level.FAIL for finding in others)
    room = max(refusals, MOST_LINES - 1 - len(top))
    passed = len(others) - len(problems)
    rest = f"; {len(problems) - room} more warning(s)" if len(problems) > room else ""
    more = f"{passed} check(s) passed{rest}; -v shows commands, environment, ports and waits"
    return [*top, *problems[:room], Line("", more)]


def _rows(plan: Plan) -> Iterator[Line]:
    topology = plan.topology
    address = plan.address
    yield Line("role:      ", topology.sentence())
    yield Line("platform:  ", topology.platform.name)
    yield Line("head:      ", f"{head_of(plan)}")
    yield Line("address:   ", f"{address.ip or 'found at run'} ({address.how})")
    if topology.given_ray is not None and topology.is_idle:
        owner = topology.given_ray.owner
        yield Line("job:       ", f"none here: the head's agent submits it to {owner}'s Ray")
        return
    yield Line("nodes:     ", _nodes(plan))
    if plan.job is not None or topology.is_head:
        yield Line("job:       ", _job_line(plan))
    yield Line("waits:     ", _waits(plan))
    logs = f"{log_root(plan.settings)}/<run id>/{topology.node_name}/"
    is_refused = topology.refuses_pod_actions(plan.settings)
    done = f"{plan.on_done}, which RunPod refuses here" if is_refused else plan.on_done
    yield Line("when done: ", f"{done}; logs in {logs}")
    if plan.on_done == "hold" or is_refused:
        end = how_to_end(plan.settings.runpod_api, plan.environ)
        yield Line("held:      ", held_sentence(0.0, plan.settings.price_per_hour, end))


def _nodes(plan: Plan) -> str:
    topology = plan.topology
    settings = plan.settings
    gpus = plan.facts.gpus if settings.num_gpus is None else settings.num_gpus
    models = listed(plan.facts.node_versions.gpu_models)
    size = f" x {gpus} GPU(s)" if gpus else " without GPUs"
    size += f" ({models})" if gpus and models else ""
    source = "default"
    if settings.expected_workers is not None:
        source = "EXPECTED_WORKERS"
    elif topology.platform.nodes is not None:
        source = topology.platform.name
    elif not topology.is_head:
        return f"this one{size}; the head decides how many there are"
    each = ", each like this one" if topology.expected_workers else ""
    return f"{topology.expected_workers + 1}{size}{each}, by {source}"


def _job_line(plan: Plan) -> str:
    job = plan.job
    workers = plan.topology.expected_workers
    if job is None:
        return "none: the cluster stays until it is stopped"
    recipe = job.recipe
    nodes = f"{workers + 1} node(s) like this one"
    if recipe is None:
        text = shell_line(job.argv)
        return text if len(text) <= _LONGEST_JOB else f"{text[:_LONGEST_JOB]} ..."
    if recipe.expected_command is None:
        return f"{job.name} does not fit {nodes}: {recipe.misfit}"
    if job.name == DEFAULT:
        return f"{job.name}, a small GRPO on CPUs (AGENT_JOB names another)"
    model = f" of {recipe.input.model}" if recipe.input.model else ""
    return f"{job.name}{model}, {len(job.argv)} words, sized for {nodes}"


def _waits(plan: Plan) -> str:
    is_head = plan.topology.is_head
    services = {spec.name for spec in plan.all_services}
    keys = {HEAD, PREPARE, WORKERS, PREFLIGHT, *services} if is_head else {HEAD, PREPARE, JOIN}
    before = [
        f"{wait.what.partition(',')[0]} ({duration_text(wait.seconds)})"
        for wait in plan.waits
        if wait.key in keys
    ]
    waiting = "readiness" if plan.job is None else "the job"
    rows: tuple[PrepareStep | ServiceSpec, ...] = (*plan.all_steps, *plan.all_services)
    known = {row.name for row in rows}
    after = {row.name: [name for name in row.after if name in known] for row in rows}
    chains = [f"{name} after {listed(names)}" for name, names in after.items() if names]
    who = f"{waiting if is_head else 'this worker'} for {listed(before)}"
    return "; ".join([who if before else "nothing", *chains])


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON data; secrets are still to be masked."""
    topology = plan.topology
    job = plan.job
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
        "waits": to_builtins(plan.waits),
        "findings": to_builtins(plan.findings),
        "refused": bool(plan.failed()),
        "notes": list(plan.notes),
        "logs": f"{log_root(plan.settings)}/<run id>/{topology.node_name}/",
        "on_done": plan.on_done,
    }
