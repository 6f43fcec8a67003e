"""Shows the plan: in twelve lines, in full, and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from agent import __version__
from agent.base.text import Line, duration_text, listed, mib, shell_line
from agent.checks import NAMES
from agent.checks.finding import Level, problem_lines, toned_line
from agent.frameworks.recipe import MisfitError
from agent.job.job import fill_expected, fill_words
from agent.job.services import HEAD_IP, NODE_IP, Placeholders
from agent.job.share import SharePlace
from agent.plan import environment
from agent.plan.plan import log_root
from agent.plan.waits import HEAD, JOIN, JOINS_RAY, PREFLIGHT, PREPARE, WORKERS
from agent.platforms.rank_variables import RUNPOD_CLUSTER, GivenRay, own_pod
from agent.settings.jobs import DEFAULT
from agent.settings.model import secret_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.checks.finding import Finding
    from agent.job.compile_caches import CompileCaches
    from agent.job.job import Job
    from agent.job.services import PrepareStep, ServiceSpec
    from agent.plan.plan import Plan
    from agent.settings.redact import Redactor

MOST_LINES = 12
DELETE_CLUSTER = "delete the cluster in RunPod's console"
_LONGEST_JOB = 100  # characters of a job's command; `-v` shows all
_LONGEST_COMMAND = 8_000  # the same on the page
_LONGEST_TITLE = 40  # the same in a line of the log


# --- in twelve lines -----------------------------------------------------------------------------


def summary(plan: Plan) -> list[Line]:
    """Return the plan in at most twelve lines, more only if more than that refuses the run.

    What refuses the run comes first, warnings last.
    """
    names, checks = _findings(plan)
    failed = [finding for finding in checks if finding.level is Level.FAIL]
    warnings = problem_lines(finding for finding in checks if finding.level is not Level.FAIL)
    top = [*problem_lines(names), *refusal_lines(failed), *_rows(plan)]

    # How many warnings fit below?
    room = max(0, MOST_LINES - 1 - len(top))
    last = f"{len(checks) - len(failed) - len(warnings)} check(s) passed"
    if len(warnings) > room:
        last += f"; {len(warnings) - room} more warning(s)"
    last += "; -v shows commands, environment, ports and waits"
    return [*top, *warnings[:room], Line("", last)]


def refusal_lines(failed: Sequence[Finding]) -> list[Line]:
    """Return that the run would be refused, and why; nothing if it would start."""
    if not failed:
        return []
    reasons = f"{len(failed)} check(s) fail"
    return [
        Line("refused:   ", f"`run` would be refused (78): {reasons}", "bad"),
        *problem_lines(failed),
    ]


def _findings(plan: Plan) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the findings about misspelled names, which may explain all others, and the others."""
    names = tuple(finding for finding in plan.findings if finding.check == NAMES)
    return names, plan.findings[len(names) :]


def _rows(plan: Plan) -> Iterator[Line]:
    """Yield the lines about the node and its run, each with its label."""
    topology = plan.topology
    address = plan.address
    yield Line("role:      ", topology.sentence())
    yield Line("platform:  ", topology.platform.name)
    yield Line("head:      ", f"{head_of(plan)}")
    yield Line("address:   ", f"{address.ip or 'found at run'} ({address.how})")

    # A node without work has no more to say.
    if topology.given_ray is not None and topology.is_idle:
        owner = topology.given_ray.owner
        yield Line("job:       ", f"none here: the head's agent submits it to {owner}'s Ray")
        return

    yield Line("nodes:     ", _nodes_text(plan))
    if plan.job is not None or topology.is_head:
        yield Line("job:       ", _job_text(plan))
    yield Line("waits:     ", _waits_text(plan))
    if plan.caches is not None:
        yield Line("caches:    ", _caches_text(plan.caches))

    # What happens to the pod at the end?
    done = plan.on_done
    if topology.deletes_cluster(plan.settings):
        done += ": the head deletes the whole cluster"
    yield Line("when done: ", f"{done}; logs in {_log_folder(plan)}")
    if plan.on_done == "hold":
        command = how_to_end(plan.settings.runpod_api, plan.environ)
        yield Line("held:      ", held_sentence(0.0, plan.settings.price_per_hour, command))


def head_of(plan: Plan) -> str | None:
    """Return the head's address or name as far as it is known before the run."""
    topology = plan.topology
    own_address = plan.address.ip
    if topology.is_head and own_address is not None:
        return own_address
    host = topology.head_host or own_address
    if host is None and topology.given_ray is not None:
        return topology.given_ray.gcs_host
    return host


def _caches_text(caches: CompileCaches) -> str:
    """Return which archive seeds this node's compile caches."""
    if caches.archive_fault:
        fault = f"{caches.volume} cannot be read: {caches.archive_fault}"
        return f"{fault}; kept in {caches.folder}"
    if caches.archive_bytes is None:
        cold = f"none yet in {caches.volume} ({caches.archives[0]}): a fresh node starts cold"
        return f"{cold}; kept in {caches.folder}"
    archive = f"{caches.volume}/{caches.archive_found} ({mib(caches.archive_bytes)})"
    return f"seeded from {archive}, kept in {caches.folder}"


def _nodes_text(plan: Plan) -> str:
    """Return how many nodes of which size the run has, and what says so."""
    topology = plan.topology
    settings = plan.settings

    gpus = plan.gpus
    models = listed(plan.facts.node_versions.gpu_models)
    size = " without GPUs"
    if gpus:
        size = f" x {gpus} GPU(s)"
        if models:
            size += f" ({models})"

    source = "default"
    if settings.expected_workers is not None:
        source = "EXPECTED_WORKERS"
    elif topology.platform.nodes is not None:
        source = topology.platform.name
    elif not topology.is_head:
        own = "".join(f"; {text}" for text in _own_gpus(plan))
        return f"this one{size}{own}; the head decides how many there are"

    alike = ", each like this one" if topology.expected_workers else ""
    if plan.gpu_split.services:
        kinds = Counter(plan.expected_gpus).items()
        size = f": {listed(f'{count} x {gpus}' for gpus, count in kinds)} GPU(s) for the job"
        alike = "".join(f"; {text}" for text in _own_gpus(plan))
    groups = "".join(f"; {group.sentence()}" for group in plan.groups)
    return f"{plan.nodes}{size}{alike}, by {source}{groups}"


def _own_gpus(plan: Plan) -> Iterator[str]:
    """Yield the GPUs of each service on this node that has some of its own."""
    for name, devices in plan.gpu_split.of_services().items():
        yield f"{_gpus_text(devices)} here for {name}"


def _gpus_text(devices: Sequence[str]) -> str:
    """Return the GPUs of a service by their names: `GPU 6, 7`."""
    return f"GPU {', '.join(devices)}" if devices else "no GPU"


def _job_text(plan: Plan) -> str:
    job = plan.job
    if job is None:
        return "none: the cluster stays until it is stopped"

    # A command of the user, cut where it is long.
    recipe = job.recipe
    if recipe is None:
        return _cut(shell_line(_sized(plan, job)), _LONGEST_JOB)

    # A recipe, by what it was sized for.
    nodes = f"{plan.trainer_nodes} node(s) like this one"
    if recipe.expected_command is None:
        return f"{job.name} does not fit {nodes}: {recipe.misfit}"
    if job.name == DEFAULT:
        return f"{job.name}, a small GRPO on CPUs (AGENT_JOB names another)"
    model = f" of {recipe.input.model}" if recipe.input.model else ""
    resumes = f"; resumes from {plan.resumes_from}" if plan.resumes_from else ""
    return f"{job.name}{model}, {len(job.argv)} words, sized for {nodes}{resumes}"


def job_title(plan: Plan) -> str:
    """Return the name of the job in messages: a recipe's, or the start of a command."""
    if plan.job is None:
        return ""
    if plan.job.recipe is None:
        return _cut(shell_line(plan.job.argv), _LONGEST_TITLE)
    return plan.job.name


def what_runs(plan: Plan, command: str) -> dict[str, Any]:
    """Return model, data, command and versions of the job, '' for what is not known.

    `command` is the one that was submitted; '' before that: then it is the planned one.
    """
    settings = plan.settings
    job = plan.job
    facts = plan.facts
    model = settings.model or ""
    data = settings.train_data or ""
    if job is not None and job.recipe is not None:
        model = job.recipe.input.model
        data = job.recipe.input.train_data
    if job is not None and not command:
        command = shell_line(_sized(plan, job))

    # The Python of the job and its libraries; without Ray only torch is known.
    versions = {"Ray": facts.ray.version, "Python": facts.ray.python, **facts.ray.libraries}
    if facts.torch is not None:
        versions = {"torch": facts.torch.version}
    if facts.framework is not None:
        versions[facts.framework.name] = facts.framework.version
    known = {name: version for name, version in versions.items() if version}
    return {
        "model": model,
        "data": data,
        "command": _cut(command, _LONGEST_COMMAND),
        "versions": {"pod-agent": __version__, **known},
    }


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]} ..."


def _waits_text(plan: Plan) -> str:
    """Return what the job waits for, or a worker; then which steps and services wait for others."""
    who = "this worker"
    keys = {HEAD, PREPARE, JOIN} if plan.joins_cluster else {HEAD, PREPARE}
    if plan.topology.is_head:
        who = "readiness" if plan.job is None else "the job"
        keys = {HEAD, PREPARE, WORKERS, PREFLIGHT, *(spec.name for spec in plan.all_services)}
    before = [
        f"{JOINS_RAY if wait.key == JOIN else wait.what} ({duration_text(wait.seconds)})"
        for wait in plan.waits
        if wait.key in keys
    ]
    first = f"{who} for {listed(before)}" if before else "nothing"

    rows: tuple[PrepareStep | ServiceSpec, ...] = (*plan.all_steps, *plan.all_services)
    known = {row.name for row in rows}
    after = {row.name: [name for name in row.after if name in known] for row in rows}
    chains = [f"{name} after {listed(names)}" for name, names in after.items() if names]
    return "; ".join([first, *chains])


def _log_folder(plan: Plan) -> str:
    return f"{log_root(plan.settings)}/<run id>/{plan.topology.node_name}/"


# --- the end of a pod that is held ---------------------------------------------------------------


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
    bill = "the pod bills by the hour"
    spent = ""
    if price is not None:
        bill = f"the pod bills ${price:.2f}/h"
        spent = f", ${price * seconds / 3600:.2f} since the end"
    if seconds < 60:
        return f"{bill}; to end it: {command}"
    minutes = round(seconds / 60)
    return f"held for {minutes} min: {bill}{spent}; to end it: {command}"


# --- in full -------------------------------------------------------------------------------------


def render(plan: Plan, redactor: Redactor) -> str:
    """Render a plan for `pod-agent plan -v`."""
    names, checks = _findings(plan)
    refusals = refusal_lines(plan.failed())[:1]
    lines = [f"{row.label}{row.text}" for row in (*map(toned_line, names), *refusals, *_rows(plan))]
    for title, section in _sections(plan, checks):
        body = [f"  {line}" for line in section]
        if body:
            lines += [f"\n{title}:", *body]
    return redactor.clean("\n".join(lines))


def _sections(plan: Plan, checks: tuple[Finding, ...]) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield each section's title and lines; one without lines is not shown."""
    yield "commands", commands_of(plan)
    yield (
        "environment of what starts here",
        (f"{name}={text}" for name, text in environment_of(plan).items()),
    )
    yield (
        "ports",
        (
            f"{listener.port:<12} {listener.who}: {listener.bind}; guard: {listener.guard}"
            for listener in plan.listeners
        ),
    )
    yield (
        "waits",
        (f"{duration_text(wait.seconds):<10} {wait.what} ({wait.variable})" for wait in plan.waits),
    )
    yield (
        "checks of this machine",
        (f"{row.label}{row.text}" for row in map(toned_line, checks)),
    )
    if plan.caches is not None:
        yield "kind of this node, for its compile caches", (plan.caches.kind.sentence(),)
    yield "notes", plan.notes


def commands_of(plan: Plan) -> Iterator[str]:
    """Yield every command of this node, and why the job's has its arguments."""
    topology = plan.topology
    launch = plan.launch
    ray = plan.own_ray
    here = Placeholders(node_ip=plan.address.ip or NODE_IP)

    # What is stopped, prepared and used first.
    if ray is not None:
        which = "on this pod" if topology.owns_machine else f"with {ray.session}"
        yield f"first:  a stale Ray {which} is stopped"
    for step in plan.steps:
        yield f"prepare {step.name}: {step.command}"
    if isinstance(launch, GivenRay):
        where = f"at {launch.gcs} and {launch.dashboard}"
        yield f"ray:    {launch.owner}'s, {where}: neither started nor stopped here"

    # The processes of the agent, the services and the job.
    for process in plan.processes:
        yield f"{process.label + ':':<8}{shell_line(process.command(here))}"
    services = plan.all_services if topology.is_head else plan.possible_services
    for spec in services:
        # One on another node has placeholders for that node's addresses.
        place = Placeholders()
        own = None
        if spec in plan.services:
            place = here
            own = plan.gpu_split.of_services().get(spec.name)
        yield _service_line(spec, place, own)
    if plan.job is not None:
        yield from _job_lines(plan, plan.job)


def _service_line(spec: ServiceSpec, place: Placeholders, own: Sequence[str] | None) -> str:
    """Return a service's name, nodes, GPUs (`own` if they are known) and command."""
    title = spec.name
    if spec.where.kind != "head":
        title += f" on {spec.where.sentence()}"
    if spec.alone:
        title += ", which joins no Ray"
    if spec.gpus and own is None:
        title += f", with {spec.gpus} GPU(s) of its own"
    elif spec.gpus and own is not None:
        title += f", {_gpus_text(own)}"
    if spec.router:
        title += f", behind the router {place.fill(spec.router)}"
    command = shell_line(spec.command(place)) if spec.argv else "external, only probed"
    return f"{title}: {command}"


def _job_lines(plan: Plan, job: Job) -> Iterator[str]:
    """Yield the job's command, the reasons for its arguments, and what travels with it."""
    argv = _job_argv(plan, job)
    if argv:
        yield f"job:    {shell_line(argv)}"

    made = None if job.recipe is None else job.recipe.expected_command
    if made is not None:
        for key, reason in made.why.items():
            yield f"  {key}: {reason}"
        for text in made.warnings:
            yield f"  warning: {text}"
        for note in made.notes:
            yield f"  {note}"

    if job.framework:
        resumes = f"; resumes from {plan.resumes_from}" if plan.resumes_from else ""
        yield f"  checkpoints: {job.checkpoints}{resumes}"
    if job.runtime_env:
        yield f"  runtime_env: {', '.join(sorted(job.runtime_env))}"
    if job.upload is not None:
        yield f"  uploaded: {mib(job.upload.size)} in {job.upload.files} file(s) of its working_dir"


def _job_argv(plan: Plan, job: Job) -> list[str]:
    """Return the job's argv; without Ray that of this node, if all expected nodes join."""
    argv = _sized(plan, job)
    if plan.share_launcher is None or not argv:
        return argv
    place = _share_place(plan)
    argv = fill_words(argv, plan.share_launcher.placeholders(place))
    return plan.share_launcher.command(argv, place)


def _sized(plan: Plan, job: Job) -> list[str]:
    """Return the job's argv with its sizes, if all expected nodes join and are like this one."""
    try:
        return fill_expected(job.argv, plan.trainer_nodes, plan.gpus, plan.groups)
    except MisfitError:  # a finding says why
        return list(job.argv)


def _share_place(plan: Plan) -> SharePlace:
    """Return where this node runs its share if all expected nodes join."""
    topology = plan.topology
    rank = "{rank}" if topology.own_rank is None else str(topology.own_rank)
    nodes = str(topology.expected_workers + 1)
    own_address = plan.address.ip if topology.is_head else None
    return SharePlace(rank, nodes, own_address or HEAD_IP, "{run id}-{attempt}")


def environment_of(plan: Plan) -> dict[str, str]:
    """Return the variables that the agent sets or changes for what it starts here."""
    if plan.topology.is_idle:
        return {}
    environ = plan.environ
    full = plan.environment(plan.address.ip or NODE_IP, HEAD_IP)
    if plan.share_launcher is not None and plan.job is not None:
        full = plan.share_launcher.environment(full, _share_place(plan))
    secrets = secret_texts(plan.settings, environment.INHERITED_SECRETS)
    shown = {name: text for name, text in full.items() if environ.get(name) != text}
    shown |= {name: "(dropped)" for name in environ if name not in full}
    shown |= dict.fromkeys(secrets.keys() & full.keys(), "********")
    return dict(sorted(shown.items()))


# --- as JSON -------------------------------------------------------------------------------------


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON data; secrets are still to be masked."""
    topology = plan.topology
    return {
        "role": topology.role,
        "evidence": list(topology.evidence),
        "platform": topology.platform.name,
        "node": topology.node_name,
        "head": head_of(plan),
        "address": {"ip": plan.address.ip, "how": plan.address.how},
        "expected_workers": topology.expected_workers if topology.is_head else None,
        "gpus": plan.gpus,
        "job": None if plan.job is None else _job_json(plan, plan.job),
        "commands": list(commands_of(plan)),
        "environment": environment_of(plan),
        "ports": to_builtins(plan.listeners),
        "waits": to_builtins(plan.waits),
        "findings": to_builtins(plan.findings),
        "refused": bool(plan.failed()),
        "notes": list(plan.notes),
        "caches": _caches_json(plan),
        "logs": _log_folder(plan),
        "on_done": plan.on_done,
    }


def _caches_json(plan: Plan) -> dict[str, Any] | None:
    caches = plan.caches
    if caches is None:
        return None
    return {
        "volume": caches.volume,
        "folder": caches.folder,
        "archive": caches.archive_found or caches.archives[0],
        "archive_bytes": caches.archive_bytes,
        "archive_fault": caches.archive_fault,
        "kind": to_builtins(caches.kind),
        "variables": caches.variables(plan.environ),
    }


def _job_json(plan: Plan, job: Job) -> dict[str, Any]:
    recipe = job.recipe
    made = None if recipe is None else recipe.expected_command
    return {
        "name": job.name,
        "argv": _sized(plan, job),
        "checkpoints": job.checkpoints,
        "resumes_from": plan.resumes_from,
        "misfit": "" if recipe is None else recipe.misfit,
        "why": {} if made is None else {**made.why},
    }
