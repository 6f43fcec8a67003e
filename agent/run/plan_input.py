"""Read everything that the plan depends on: settings, files, Ray, facts, topology."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.base.errors import Problem, SettingsError
from agent.base.text import first_names, is_ip, mib
from agent.checks import NAMES, run_checks
from agent.checks.job_needs import RECIPE_CHECKS
from agent.frameworks import recipe_of
from agent.frameworks.recipe import JobBasis, shape_of
from agent.job.checkpoints import kept_settings
from agent.job.services import NO_FILE
from agent.job.services_file import parse
from agent.job.torchrun_command import split_python, torchrun_problems
from agent.node import gpus, read
from agent.node.upload import LIMIT, measure
from agent.plan import make
from agent.platforms.resolve import Topology, detect_platform, resolve
from agent.processes import parent
from agent.processes.resolving import lookup_briefly
from agent.record.background import run_within
from agent.record.run_folder import read_checkpoints
from agent.settings import read_settings
from agent.settings.jobs import TORCHRUN, launcher, recipe_info
from agent.settings.redact import secrets_in
from agent.settings.rules import TEMP_DIR, flags_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.checks.finding import Finding
    from agent.frameworks.recipe import ModelShape
    from agent.job.services import ServicesFile
    from agent.node.facts import Facts
    from agent.node.upload import UploadSize
    from agent.plan.plan import Plan
    from agent.settings.load import Loaded
    from agent.settings.model import Settings


def _read_text(variable: str, path: str, expected: str, problems: list[Problem]) -> str | None:
    """Return the text of a variable's file; None if it cannot be read, which is a problem."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        problems.append(Problem(variable, f"{path!r} ({why})", expected))
        return None


def read_services(settings: Settings, problems: list[Problem]) -> ServicesFile:
    """Return the services and steps of the AGENT_SERVICES file; add its errors to `problems`."""
    if settings.services is None:
        return NO_FILE
    wanted = "the path of a TOML file, there on every node"
    text = _read_text("AGENT_SERVICES", settings.services, wanted, problems)
    if text is None:
        return NO_FILE
    found, errors = parse(text, settings.services, settings)
    problems += errors
    return NO_FILE if errors else found


def temp_root(settings: Settings, problems: list[Problem]) -> str:
    """Return the folder for Ray's sessions; add what is wrong with it to `problems`."""
    folder = dict(flags_of(settings.ray_args)).get(TEMP_DIR) or "/tmp"
    is_there = Path(folder).is_dir()
    if not is_there or shlex.quote(folder) != folder:
        expected = "an existing folder, whose path a shell reads without quotes"
        problems.append(Problem("AGENT_RAY_ARGS", f"{TEMP_DIR}={folder}", expected))
    return folder if is_there else "/tmp"


_ENV, _DIR = "AGENT_RUNTIME_ENV", "AGENT_WORKING_DIR"
_REFERENCE = re.compile(r"\$\{?\w+\}?")
"""A value that Ray fills in on each node from that node's environment."""
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LEAVE_OUT = (
    "a folder without them, since all nodes and Ray's dashboard can read an upload: leave them out "
    "by .gitignore or excludes in AGENT_RUNTIME_ENV, or insist by AGENT_ALLOW_INSECURE=1"
)
_SHRINK = (
    "which is Ray's limit: leave the largest out by .gitignore or excludes in AGENT_RUNTIME_ENV, "
    "or start the agent in the code, in the image or on a disk of all nodes"
)
_NODE_ENVIRONMENT = (
    "it in the environment of every node (or in a file that {name}_FILE or the like names), which "
    "actors inherit; Ray's dashboard shows a runtime_env to whoever asks"
)


def read_runtime_env(
    settings: Settings, environ: Mapping[str, str], ray: str, problems: list[Problem]
) -> tuple[dict[str, object], UploadSize | None]:
    """Return the runtime_env with the working dir, and its upload's size; `ray` is Ray's folder."""
    found: dict[str, object] = {}
    if settings.runtime_env is not None:
        found = _parse(settings.runtime_env, problems)
    problems += _faults(found)
    variable = _ENV
    if settings.working_dir is not None:
        if "working_dir" in found:
            both = f"{_DIR} + {_ENV}"
            problems.append(Problem(both, "a working_dir in each", "one of the two"))
        variable, found = _DIR, {**found, "working_dir": settings.working_dir}
    given = found.get("working_dir")
    if given is None or (isinstance(given, str) and _REMOTE.match(given)):
        return found, None
    folder, shown = Path(str(given)), repr(str(given))
    if not folder.is_dir():
        if variable == _DIR or not folder.is_file():  # Ray takes a zip, too
            what = f"{shown}, which is no folder here"
            problems.append(Problem(variable, what, "a folder to upload"))
        return found, None
    patterns = found.get("excludes")
    excludes = [str(one) for one in patterns] if isinstance(patterns, list) else []
    upload = measure(folder.absolute(), excludes, ray, environ)
    if upload is not None and upload.credentials and not settings.allow_insecure:
        names = first_names(upload.credentials)
        what = f"{shown} with credentials in it: {names}"
        problems.append(Problem(variable, what, _LEAVE_OUT))
    elif upload is not None and upload.size > LIMIT:
        parts = ", ".join(f"{name} {mib(size)}" for name, size in upload.largest)
        what = f"{shown}: {mib(upload.size)} in {upload.files} files ({parts})"
        problems.append(Problem(variable, what, f"at most {mib(LIMIT)}, {_SHRINK}"))
    return found, upload


def _parse(given: str, problems: list[Problem]) -> dict[str, object]:
    import yaml  # noqa: PLC0415 - Ray brings it; most runs need none

    text: str | None = given
    if not given.lstrip().startswith("{"):
        text = _read_text(_ENV, given, "JSON, or the path of a YAML or JSON file", problems)
    if text is None:
        return {}
    try:
        is_json = text.lstrip().startswith("{")
        value = json.loads(text) if is_json else yaml.safe_load(text)
        json.dumps(value)  # so it travels to Ray: YAML has dates, sets and loops
        return {str(key): item for key, item in value.items()}
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        what = f"no mapping that JSON can carry ({str(error).splitlines()[0]})"
        problems.append(Problem(_ENV, what, "names with texts, numbers, lists and mappings"))
        return {}


def _faults(found: Mapping[str, object]) -> Iterator[Problem]:
    """Report secrets, and variables that are no text: YAML reads unquoted numbers and booleans.

    A secret is named by its place, never by its value: Ray's dashboard shows a runtime_env.
    """
    for place, name, text in _texts("", "", found):
        if secrets_in(name, text) and not _REFERENCE.fullmatch(text.strip()):
            expected = _NODE_ENVIRONMENT.format(name=name or "its variable")
            yield Problem(_ENV, f"a secret in {place}", expected)
    given = found.get("env_vars", {})
    if not isinstance(given, dict):
        yield Problem(_ENV, "env_vars that are no mapping", "names and quoted values")
    elif wrong := [f"env_vars.{name}" for name in given if not isinstance(given[name], str)]:
        yield Problem(_ENV, f"{first_names(wrong)}, which is no text", "a value in quotes")


def _texts(place: str, name: str, value: object) -> Iterator[tuple[str, str, str]]:
    if isinstance(value, str):
        yield place, name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(f"{place}.{key}".lstrip("."), str(key), inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(f"{place}[{index}]", "", inner)


def add_job_facts(facts: Facts, loaded: Loaded, topology: Topology) -> Facts:
    """Add the facts that the chosen recipe needs: framework, checkpoint disk, model size."""
    settings = loaded.settings
    known = recipe_info(settings, loaded.command)
    package = None if known is None else recipe_of(known).FRAMEWORK.package
    if package is None or topology.is_idle:
        return facts
    inputs = {
        "AGENT_MODEL": settings.model,
        "AGENT_TRAIN_DATA": settings.train_data,
        "AGENT_EVAL_DATA": settings.eval_data,
    }
    folder = make.checkpoint_folder(settings, loaded.command)
    data, python = settings.train_data or "", facts.job_python

    def read_disks() -> Facts:
        return replace(
            facts,
            missing_inputs={
                name: one for name, one in inputs.items() if one and read.is_missing(one)
            },
            unreadable_inputs={
                name: one for name, one in inputs.items() if one and read.is_unreadable(one)
            },
            checkpoints=read.mount_of(folder),
            checkpoints_free=read.free_at(folder),
            model_bytes=read.weights_in(settings.model),
        )

    return replace(
        run_within(times.STALLED_DISK, read_disks) or facts,
        framework=read.find_framework(package, python, settings.working_dir or "."),
        data_columns=run_within(times.STALLED_DISK, lambda: read.columns_of(data, python)),
    )


def read_shape(settings: Settings, environ: Mapping[str, str]) -> ModelShape | None:
    """Return the shape of a model from its `config.json` here, else from its name."""
    model, revision = settings.model, settings.model_revision
    if not model:
        return None
    config = run_within(times.STALLED_DISK, lambda: read.model_config(model, environ, revision))
    return shape_of(model, config)


COMMAND = "--"  # how a problem names the command after it
ROLE_VARIABLES = {"RAY_WORKER", "HEAD_POD_ID", "AGENT_HEAD", "EXPECTED_WORKERS"}


def plan_from_environment(
    environ: Mapping[str, str], command: list[str] | None, *, wants_job: bool = True
) -> Plan:
    """Make the plan, or raise all faults together; `wants_job` is False to examine a machine."""
    loaded, wrong_settings = read_settings(environ, command)
    wrong = {name for one in wrong_settings for name in one.names}
    settings, path = loaded.settings, environ.get("PATH")
    words = None if COMMAND in wrong else loaded.command
    ray, names, problems = read.find_ray(path), dict[str, tuple[str, ...]](), list[Problem]()
    if settings.head is not None and not is_ip(settings.head):  # its address decides the role
        names[settings.head] = lookup_briefly(settings.head, times.START_LOOKUP)
    program, torch, temp = words, None, temp_root(settings, problems)
    if launcher(settings) == TORCHRUN:
        program, torch = None, read.find_torch(path, split_python(words or ())[0])
        problems += torchrun_problems(settings, words, wants_job=wants_job)
    elif settings.preflight is not None:  # the all-reduce before the job is Ray's Python's
        torch = read.find_torch(path, ray.executable)
    facts = read.gather(names, ray, environ, program, is_first_process=parent.is_init, temp=temp)
    facts = replace(facts, torch=torch)
    runtime_env: dict[str, object] = {}
    upload: UploadSize | None = None
    file = read_services(settings, problems)
    topology: Topology | None = None
    try:
        topology = resolve(environ, settings, facts)
    except SettingsError as error:
        problems += error.problems
    if wrong & ROLE_VARIABLES:  # the role is a guess then, and so is what follows from it
        topology = None
        problems = [one for one in problems if not one.names & ROLE_VARIABLES]
    if topology is None or topology.is_head:  # a worker may lack the head's files
        runtime_env, upload = read_runtime_env(settings, environ, ray.folder, problems)
    with suppress(SettingsError):  # the platform may be known where the topology is not
        platform = detect_platform(environ, settings) if topology is None else topology.platform
        problems += make.port_clashes(settings, words, platform.ports, platform.given_ray)
    if topology is not None:
        problems += make.service_problems(settings, words, topology, file)
    # what follows from a wrong value is no problem of its own
    problems = [*wrong_settings, *(one for one in problems if not one.names & wrong)]
    if topology is None or problems:
        raise SettingsError(tuple(problems), loaded.misspelled)
    host = topology.head_host or ""
    is_new = topology.is_head and host not in facts.known_names
    if is_new and facts.is_own_name(host) and len(facts.addresses()) > 1:  # others resolve it too
        facts = replace(facts, known_names={host: lookup_briefly(host, times.START_LOOKUP)})
    facts = replace(
        facts,
        disks={step.once: read.disk_of(step.once) for step in file.steps if step.once is not None},
        ray_temp=read.read_folder(make.private_folder(facts, topology.platform.job_id)),
        model_is_here=Path(settings.model or "/").exists(),
    )
    facts = add_job_facts(facts, loaded, topology)
    basis = JobBasis(read_shape(settings, environ))
    known, folder = recipe_info(settings, words), make.checkpoint_folder(settings, words)
    if known is not None and known.framework:  # what it has to keep to resume from its checkpoints
        held = run_within(times.STALLED_DISK, lambda: read_checkpoints(folder))
        basis = replace(basis, kept={} if held is None else kept_settings(held, known.framework))
    return make.make_plan(loaded, topology, facts, environ, runtime_env, file, upload, basis)


def examine_machine(environ: Mapping[str, str]) -> tuple[Facts, tuple[Finding, ...]]:
    """Run every check, without starting anything; return the facts that were checked, too."""
    plan = plan_from_environment(environ, None, wants_job=False)
    ports = [int(listener.port) for listener in plan.listeners if listener.port.isdigit()]
    driver = gpus.ask_driver(plan.facts.gpu_maker, environ.get("PATH"))
    facts = replace(plan.facts, taken_ports=read.taken_ports(ports), driver=driver)
    others = [finding for finding in plan.findings if finding.check in {NAMES, *RECIPE_CHECKS}]
    return facts, (*others, *run_checks(facts, plan.settings, plan.topology))
