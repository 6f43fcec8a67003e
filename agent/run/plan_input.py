"""Reads everything that a plan depends on, in stages, and makes the plan.

1. settings: the environment's variables, each read and checked.
2. machine: facts of this node, as far as the settings ask for them; the services file.
3. platform: which node of the run this is. Where that is unknown, there is no plan.
4. job: what is uploaded, and whether ports and services fit together.
5. A stage does not raise: all problems are raised together here. One that only follows from a
   value that an earlier stage found wrong is left out.
6. facts for the job: its framework, its model, its checkpoints.
7. plan: agent/plan/make.py, from all of these, without reading anything more.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.errors import Problem, SettingsError
from agent.base.text import is_ip
from agent.base.value import Value
from agent.checks import NAMES, OWN_NAME, run_checks
from agent.checks.finding import Finding, Level
from agent.checks.job_needs import CHECKPOINTS, PLAN_CHECKS
from agent.frameworks import recipe_of
from agent.frameworks.recipe import JobBasis
from agent.job.addresses import address_problems
from agent.job.checkpoints import (
    kept_settings,
    resumes_from,
    why_not_resumable,
    why_unusable,
)
from agent.job.job import checkpoint_owner
from agent.job.node_command import node_problems
from agent.job.recipe_services import recipe_tables
from agent.job.services import NO_FILE, ServicesFile
from agent.job.torchrun_command import split_python, torchrun_problems
from agent.node import gpus, read
from agent.node.facts import Facts, UploadSize
from agent.node.job_script import script_lines
from agent.node.python_facts import of_command
from agent.plan.listeners import port_clashes
from agent.plan.make import make_plan, private_folder
from agent.plan.plan import log_root
from agent.plan.plan_job import checkpoint_folder
from agent.plan.plan_services import all_services, service_problems, with_places
from agent.platforms.rank_variables import PlatformInfo
from agent.platforms.resolve import Topology, detect_platform, resolve
from agent.processes import parent
from agent.processes.resolving import lookup_briefly
from agent.record.background import run_within
from agent.record.checkpoint_folder import read_checkpoints
from agent.record.files import safe_name
from agent.record.log_dir import why_refused
from agent.record.run_folder import NO_HEAD
from agent.run.make_ready import with_own_address
from agent.run.model_shape import read_shape
from agent.run.plan_files import read_runtime_env, read_services
from agent.run.read_caches import read_caches
from agent.settings import read_settings
from agent.settings.jobs import NODE, TORCHRUN, launcher, recipe_info, runs_by_shares
from agent.settings.load import Loaded
from agent.settings.rules import TEMP_DIR, flags_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.node.facts import RayPython, ScriptLine, TorchPython
    from agent.plan.plan import Plan
    from agent.settings.model import Settings

_START_LOOKUP = 2.0  # DNS at the start; later lookups repeat it.
COMMAND = "--"  # how a problem names the command after it
ROLE_VARIABLES = {"RAY_WORKER", "HEAD_POD_ID", "AGENT_HEAD", "EXPECTED_WORKERS"}


def plan_from_environment(
    environ: Mapping[str, str], command: list[str] | None, *, wants_job: bool = True
) -> Plan:
    """Make the plan, or raise all problems together; `wants_job` is False to examine a machine."""
    given = _read_given(environ, command)
    environ = _with_programs(environ, given)
    machine = _read_machine(environ, given, wants_job=wants_job)
    place = _find_place(environ, given, machine)
    job = _read_job(environ, given, machine, place)

    # What follows from a wrong value is no problem of its own.
    further = (*machine.problems, *place.problems, *job.problems)
    problems = (
        *given.problems,
        *(problem for problem in further if not problem.names & given.wrong),
    )
    topology = place.topology
    if topology is None or problems:
        raise SettingsError(problems, given.loaded.misspelled)

    facts = _add_own_name(machine.facts, topology)
    facts = _add_disks(facts, given.settings, topology, machine.services)
    facts = add_job_facts(facts, given.loaded, topology)
    caches, why_no_caches = read_caches(given.loaded, topology, facts, environ)
    plan = make_plan(
        given.loaded,
        topology,
        facts,
        environ,
        runtime_env=job.runtime_env,
        file=with_places(machine.services, topology, given.settings),
        upload=job.upload,
        basis=_read_basis(environ, given),
        caches=caches,
    )
    if not why_no_caches:
        return plan
    note = f"compile caches stay where each library puts them: {why_no_caches}"
    return replace(plan, why_no_caches=why_no_caches, notes=(*plan.notes, note))


# --- settings ------------------------------------------------------------------------------------


class Given(Value):
    """What the user set, with the default in place of each wrong value."""

    loaded: Loaded
    problems: tuple[Problem, ...]

    @property
    def settings(self) -> Settings:
        """Return the settings alone."""
        return self.loaded.settings

    @property
    def wrong(self) -> set[str]:
        """Return the variables whose values are wrong."""
        return {name for problem in self.problems for name in problem.names}

    @property
    def words(self) -> tuple[str, ...] | None:
        """Return the job's command; None without one, or if it is wrong."""
        return None if COMMAND in self.wrong else self.loaded.command


def _read_given(environ: Mapping[str, str], command: list[str] | None) -> Given:
    loaded, problems = read_settings(environ, command)
    return Given(loaded, problems)


def _with_programs(environ: Mapping[str, str], given: Given) -> Mapping[str, str]:
    """Put the programs of a recipe's framework on PATH, where its image has them elsewhere."""
    known = recipe_info(given.settings, given.words)
    folder = "" if known is None else recipe_of(known).FRAMEWORK.programs
    path = environ.get("PATH", "")
    if not folder or folder in path.split(":") or not Path(folder).is_dir():
        return environ
    return {**environ, "PATH": f"{folder}:{path}"}


# --- machine -------------------------------------------------------------------------------------


class Machine(Value):
    """This node, and the services file on it."""

    facts: Facts
    services: ServicesFile
    problems: tuple[Problem, ...]


def _read_machine(environ: Mapping[str, str], given: Given, *, wants_job: bool) -> Machine:
    settings = given.settings
    problems: list[Problem] = []
    path = environ.get("PATH")
    ray = read.find_ray(path)
    temp = temp_root(settings, problems)

    # The head's address decides the role of this node.
    known_names: dict[str, tuple[str, ...]] = {}
    if settings.head is not None and not is_ip(settings.head):
        known_names[settings.head] = lookup_briefly(settings.head, _START_LOOKUP)

    # Which program must exist here? torchrun starts the command itself, by a Python with torch.
    program = given.words
    if launcher(settings) == TORCHRUN:
        program = None
        problems += torchrun_problems(settings, given.words, wants_job=wants_job)
    elif launcher(settings) == NODE:
        problems += node_problems(settings, given.words, wants_job=wants_job)

    facts = read.gather(
        known_names, ray, environ, program, is_first_process=parent.is_init, temp=temp
    )
    facts = replace(
        facts, torch=_find_torch(path, ray, given), script_lines=_find_script_lines(given)
    )
    brought = recipe_tables(settings, given.words, read_shape(settings, environ))
    services = read_services(settings, brought, problems)
    return Machine(facts, services, tuple(problems))


def _find_script_lines(given: Given) -> tuple[ScriptLine, ...]:
    """Return lines of the job's script that would end the agent or its Ray, or start another."""
    words = given.words or ()
    with_ray = not runs_by_shares(given.settings)
    look = partial(script_lines, words, with_ray=with_ray)
    return run_within(times.STALLED_DISK, look) or ()


def _find_torch(path: str | None, ray: RayPython, given: Given) -> TorchPython | None:
    """Return the torch of the job's Python without Ray, or of Ray's for the all-reduce before it.

    A command of its own Python, such as a shell script, may use another torch than is found here:
    it is asked for only where an all-reduce needs one.
    """
    words = given.words or ()
    if launcher(given.settings) == TORCHRUN:
        return read.find_torch(path, split_python(words)[0])
    if launcher(given.settings) == NODE:
        if recipe_info(given.settings, given.words) is not None:
            return read.find_torch(path, None)
        python = split_python(words)[0] or of_command(words[0] if words else "", path)
        is_asked_for = python is not None or given.settings.preflight is not None
        return read.find_torch(path, python) if is_asked_for else None
    if given.settings.preflight is not None:
        return read.find_torch(path, ray.executable)
    return None


def temp_root(settings: Settings, problems: list[Problem]) -> str:
    """Return the folder for Ray's sessions; add what is wrong with it to `problems`."""
    folder = dict(flags_of(settings.ray_args)).get(TEMP_DIR) or "/tmp"
    is_there = Path(folder).is_dir()
    if not is_there or shlex.quote(folder) != folder:
        expected = "an existing folder, whose path a shell reads without quotes"
        problems.append(Problem("AGENT_RAY_ARGS", f"{TEMP_DIR}={folder}", expected))
    return folder if is_there else "/tmp"


# --- platform ------------------------------------------------------------------------------------


class Place(Value):
    """Which node of the run this is; the platform may be known where the topology is not."""

    topology: Topology | None
    platform: PlatformInfo | None
    problems: tuple[Problem, ...]


def _find_place(environ: Mapping[str, str], given: Given, machine: Machine) -> Place:
    topology: Topology | None = None
    problems: tuple[Problem, ...] = ()
    try:
        topology = resolve(environ, given.settings, machine.facts)
    except SettingsError as error:
        problems = error.problems

    # With a wrong variable of the role, the role is a guess, and so is what follows from it.
    if given.wrong & ROLE_VARIABLES:
        topology = None
        problems = tuple(problem for problem in problems if not problem.names & ROLE_VARIABLES)

    if topology is not None:
        return Place(topology, topology.platform, problems)
    with suppress(SettingsError):
        return Place(None, detect_platform(environ, given.settings), problems)
    return Place(None, None, problems)


# --- job -----------------------------------------------------------------------------------------


class JobInput(Value):
    """What travels to the nodes with the job, and problems of its ports and services."""

    runtime_env: dict[str, object]
    upload: UploadSize | None
    problems: tuple[Problem, ...]


def _read_job(environ: Mapping[str, str], given: Given, machine: Machine, place: Place) -> JobInput:
    settings = given.settings
    topology = place.topology
    platform = place.platform
    problems: list[Problem] = []

    runtime_env: dict[str, object] = {}
    upload: UploadSize | None = None
    if topology is None or topology.is_head:  # a worker may lack the head's files
        ray = machine.facts.ray.folder
        runtime_env, upload = read_runtime_env(settings, environ, ray, problems)

    if platform is not None:
        problems += port_clashes(settings, given.words, platform.ports, platform.given_ray)
    if topology is not None:
        file = with_places(machine.services, topology, settings)
        problems += service_problems(settings, given.words, topology, file)
        services = all_services(settings, given.words, file, topology.platform.ports)
        if settings.services is None or file is not NO_FILE:  # else its own problems come first
            problems += address_problems(settings, given.words, services, file, environ)
    return JobInput(runtime_env, upload, tuple(problems))


# --- facts for the job ---------------------------------------------------------------------------


def _add_own_name(facts: Facts, topology: Topology) -> Facts:
    """Add the addresses of the head's own name, which other nodes resolve, where it has several."""
    host = topology.head_host or ""
    is_new = topology.is_head and host not in facts.known_names
    if is_new and facts.is_own_name(host) and len(facts.addresses()) > 1:
        return replace(facts, known_names={host: lookup_briefly(host, _START_LOOKUP)})
    return facts


def _add_disks(
    facts: Facts,
    settings: Settings,
    topology: Topology,
    services: ServicesFile,
) -> Facts:
    """Add what is on disk already: results of steps, folders of logs and of Ray, the model."""
    results = [step.once for step in services.steps if step.once is not None]
    late = f"its disk does not answer within {times.IDLE_DISK:g} s"
    look = partial(_why_no_logs, log_root(settings), topology)
    logs_fault = run_within(times.IDLE_DISK, look)
    return replace(
        facts,
        disks={path: read.disk_of(path) for path in results},
        logs_fault=late if logs_fault is None else logs_fault,
        ray_temp=read.read_folder(private_folder(facts, topology.platform.job_id)),
        model_is_here=Path(settings.model or "/").exists(),
    )


def _why_no_logs(root: Path, topology: Topology) -> str:
    """Return why a run could not keep its files in AGENT_LOG_DIR; '' if it seems that it can.

    Of a head without a run id of its platform, the folder gets a new name.
    """
    fault = read.why_no_folder(str(root))
    run_id = topology.platform.run_id
    if run_id is None and not topology.is_head:
        run_id = NO_HEAD
    if fault or run_id is None:
        return fault
    mount = read.mount_of(str(root))
    folder = root / safe_name(run_id) / safe_name(topology.node_name)
    return why_refused(root, folder, "" if mount is None else mount.kind)


def add_job_facts(facts: Facts, loaded: Loaded, topology: Topology) -> Facts:
    """Add the facts that the chosen recipe needs: framework, checkpoint disk, model size."""
    settings = loaded.settings
    known = recipe_info(settings, loaded.command)
    package = None if known is None else recipe_of(known).FRAMEWORK.package
    if package is None or topology.is_idle:
        return facts

    variables = {
        "AGENT_MODEL": settings.model,
        "AGENT_TRAIN_DATA": settings.train_data,
        "AGENT_EVAL_DATA": settings.eval_data,
    }
    inputs = {name: path for name, path in variables.items() if path}
    checkpoints = checkpoint_folder(settings, loaded.command)
    python = facts.job_python

    def read_disks() -> Facts:
        return replace(
            facts,
            missing_inputs={name: path for name, path in inputs.items() if read.is_missing(path)},
            unreadable_inputs={
                name: path for name, path in inputs.items() if read.is_unreadable(path)
            },
            checkpoints=read.mount_of(checkpoints),
            checkpoints_free=read.free_at(checkpoints),
            checkpoints_fault=read.why_no_folder(checkpoints),
            model_bytes=read.weights_in(settings.model),
        )

    def read_columns() -> Mapping[str, bool] | None:
        return read.columns_of(settings.train_data or "", python)

    # A disk that does not answer delays the start for a while, and then is not looked at.
    return replace(
        run_within(times.STALLED_DISK, read_disks) or facts,
        framework=read.find_framework(package, python, settings.working_dir or "."),
        data_columns=run_within(times.STALLED_DISK, read_columns),
    )


def _read_basis(environ: Mapping[str, str], given: Given) -> JobBasis:
    """Return what the recipe is sized by: its model, and what its checkpoints are bound to."""
    basis = JobBasis(read_shape(given.settings, environ))
    known = recipe_info(given.settings, given.words)
    if known is None or not known.framework:
        return basis
    folder = checkpoint_folder(given.settings, given.words)
    saved = run_within(times.STALLED_DISK, lambda: read_checkpoints(folder))
    if saved is None:
        return replace(basis, kept={})
    return replace(basis, kept=kept_settings(saved, known.framework))


def with_checkpoints(plan: Plan) -> Plan:
    """Add the checkpoint that a run would resume from, or why it would be refused.

    It is for `plan` alone: a run checks the folder when its nodes have joined.
    """
    job = plan.job
    recipe = None if job is None else job.recipe
    made = None if recipe is None else recipe.expected_command
    if job is None or recipe is None or made is None:
        return plan
    if not job.framework or not plan.topology.is_head or plan.facts.checkpoints_fault:
        return plan
    saved = run_within(times.STALLED_DISK, lambda: read_checkpoints(job.checkpoints))
    if saved is None:
        return plan

    # Are they this job's, and can nodes like this one resume from them?
    own = checkpoint_owner(recipe, recipe.input.nodes, made.format)
    why = why_unusable(saved, own) or why_not_resumable(saved, own)
    if why:
        what = f"{job.checkpoints}: {why}"
        refusal = Finding(CHECKPOINTS, Level.FAIL, what, ends.CHECKPOINTS_REFUSED.remedy)
        return replace(plan, findings=(*plan.findings, refusal))
    return replace(plan, resumes_from=resumes_from(saved, job.framework))


# --- doctor --------------------------------------------------------------------------------------


def examine_machine(environ: Mapping[str, str]) -> tuple[Facts, tuple[Finding, ...]]:
    """Run every check, without starting anything; return the facts that were checked, too."""
    plan = with_own_address(plan_from_environment(environ, None, wants_job=False))
    ports = [int(listener.port) for listener in plan.listeners if listener.port.isdigit()]
    driver = gpus.ask_driver(plan.facts.gpu_maker, environ.get("PATH"))
    facts = replace(plan.facts, taken_ports=read.taken_ports(ports), driver=driver)
    kept = {NAMES, OWN_NAME, *PLAN_CHECKS}
    others = [finding for finding in plan.findings if finding.check in kept]
    return facts, (*others, *run_checks(facts, plan.settings, plan.topology))
