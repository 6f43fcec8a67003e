"""From the environment to the plan: the pure parts, fed with what little must be looked up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.addresses import is_ip
from agent.base.errors import Problem, SettingsError
from agent.boot import job_facts
from agent.boot.asked_of_ray import temp_root, unknown_flags
from agent.boot.services_input import disks_of, read_services
from agent.checks import NAMES, Finding, examine
from agent.node.addresses import taken_ports
from agent.node.ray_python import find
from agent.node.read_facts import gather, look_at_folder
from agent.plan.listeners import port_clashes
from agent.plan.make_plan import make_plan, private_folder
from agent.plan.services import service_problems
from agent.runtime import parent
from agent.runtime.names import lookup_briefly
from agent.settings import Settings, load
from agent.settings.jobs import TORCHRUN, launcher
from agent.topology.platforms import claim_of
from agent.topology.resolve import Topology, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.node.facts import Facts, TorchPython
    from agent.node.upload import Upload
    from agent.plan.plan import Plan
    from agent.settings import Loaded

_LOOKUP_LIMIT = 2.0


def plan_of(
    environ: Mapping[str, str], command: list[str] | None, *, wants_job: bool = True
) -> Plan:
    """Make the plan; raises SettingsError with everything that is wrong.

    `wants_job` where a job is to be run, and not only the machine looked at.
    """
    loaded = _loaded(environ, command)
    ray = find(environ.get("PATH"))
    names = _names_to_know(loaded.settings)
    program, torch = _of_torchrun(environ, loaded, ray.executable)
    temp, problems = temp_root(loaded.settings)
    problems += unknown_flags(loaded.settings, ray)
    problems += _torchruns_problems(loaded, wants_job=wants_job)
    is_first = parent.is_init()
    facts = gather(names, ray, environ, program, is_first_process=is_first, temp=temp)
    facts = replace(facts, torch=torch)
    runtime_env: dict[str, object] = {}
    upload: Upload | None = None
    file = read_services(loaded.settings, problems)
    topology: Topology | None = None
    try:
        topology = resolve(environ, loaded.settings, facts)
    except SettingsError as error:
        problems += error.problems
    try:
        if topology is None or topology.is_head:  # a worker may lack the head's files
            runtime_env, upload = _runtime_env(loaded.settings, environ, ray.folder)
    except SettingsError as error:
        problems += error.problems
    problems += _port_clashes(environ, loaded, topology)
    if topology is not None:
        problems += service_problems(loaded.settings, loaded.command, topology, facts, file)
    if topology is None or problems:
        raise SettingsError(tuple(problems), loaded.slips)
    facts = replace(
        _with_own_name(facts, topology),
        disks=disks_of(file),
        ray_temp=look_at_folder(private_folder(facts, topology.claim.job_id)),
        model_is_here=Path(loaded.settings.model or "/").exists(),
    )
    facts = job_facts.with_job(facts, loaded, topology)
    plan = make_plan(loaded, topology, facts, environ, runtime_env, file, upload)
    return replace(plan, findings=(*plan.findings, *job_facts.about_checkpoints(plan)))


def _torchruns_problems(loaded: Loaded, *, wants_job: bool) -> tuple[Problem, ...]:
    if launcher(loaded.settings, None) != TORCHRUN:
        return ()
    from agent.plan.torchrun import problems  # noqa: PLC0415 - most runs need none of it

    return problems(loaded.settings, loaded.command, wants_job=wants_job)


def _runtime_env(
    settings: Settings, environ: Mapping[str, str], ray: str
) -> tuple[dict[str, object], Upload | None]:
    if settings.runtime_env is None and settings.working_dir is None:
        return {}, None
    from agent.boot.runtime_env import read_runtime_env  # noqa: PLC0415 - most runs need none of it

    return read_runtime_env(settings, environ, ray)


def _loaded(environ: Mapping[str, str], command: list[str] | None) -> Loaded:
    """Load the settings; where they are wrong, tell what is wrong with the services' file, too."""
    try:
        return load(environ, command)
    except SettingsError as error:
        problems, path = [*error.problems], environ.get("AGENT_SERVICES", "").strip()
        if path:
            read_services(Settings(services=path), problems)
        raise SettingsError(tuple(problems), error.hints) from None


def _of_torchrun(
    environ: Mapping[str, str], loaded: Loaded, ray: str
) -> tuple[tuple[str, ...] | None, TorchPython | None]:
    """Return the job's command as far as it names a program to be found, and torch's Python."""
    command = loaded.command
    by_torchrun = launcher(loaded.settings, None) == TORCHRUN
    if not by_torchrun and loaded.settings.preflight is None:
        return command, None
    from agent.node.torch_python import find as find_torch  # noqa: PLC0415 - most runs need none
    from agent.work.torchrun import fault_of, leading_python, runs_a_program  # noqa: PLC0415 - same

    if not by_torchrun:  # the all-reduce before the job is Ray's Python's
        return command, find_torch(environ, ray)
    words = command or ()
    is_program = bool(words) and fault_of(words) is None and runs_a_program(words)
    return command if is_program else None, find_torch(environ, leading_python(words))


def _port_clashes(
    environ: Mapping[str, str], loaded: Loaded, topology: Topology | None
) -> tuple[Problem, ...]:
    """Judge the ports where the platform is known, also where its word is contradicted."""
    settings, command = loaded.settings, loaded.command
    if topology is not None:
        return port_clashes(settings, command, topology.claim.ports, topology.given_ray)
    try:
        claim = claim_of(environ, settings)
    except SettingsError:
        return ()
    return port_clashes(settings, command, claim.ports, claim.ray)


def examine_machine(environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """Run every check, the ports' included, without starting anything."""
    from agent.checks.recipe_checks import OF_A_RECIPE  # noqa: PLC0415 - a run needs none of it

    plan = plan_of(environ, None, wants_job=False)
    ports = [int(listener.port) for listener in plan.listeners if listener.port.isdigit()]
    from agent.node import read_driver  # noqa: PLC0415 - it takes seconds: no run does so

    driver = read_driver.ask(plan.facts.gpu_maker, environ.get("PATH"))
    facts = replace(plan.facts, taken_ports=taken_ports(ports), driver=driver)
    others = [finding for finding in plan.findings if finding.check in {NAMES, *OF_A_RECIPE}]
    return (*examine(facts, plan.settings, plan.topology), *others)


def _with_own_name(facts: Facts, topology: Topology) -> Facts:
    """Look up what the others find under the head's name, where that is this node's host name."""
    host = topology.head_host
    if not topology.is_head or host is None or host in facts.known_names:
        return facts
    if not facts.is_own_name(host) or len(facts.addresses()) < 2:
        return facts
    return replace(facts, known_names={host: lookup_briefly(host, _LOOKUP_LIMIT)})


def _names_to_know(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Look AGENT_HEAD up where it is a name: whose it is decides the role."""
    if settings.head is None or is_ip(settings.head):
        return {}
    return {settings.head: lookup_briefly(settings.head, _LOOKUP_LIMIT)}
