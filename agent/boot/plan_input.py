"""Read everything that the plan depends on: settings, files, Ray, facts, topology."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.errors import Problem, SettingsError
from agent.base.text import first_names, is_ip, mib
from agent.checks import NAMES, run_checks
from agent.checks.finding import Finding, Level
from agent.checks.recipe import CHECKPOINTS, RECIPE_CHECKS
from agent.node import gpus
from agent.node.read import (
    columns_of,
    disk_of,
    find_framework,
    find_ray,
    find_torch,
    free_at,
    gather,
    is_missing,
    model_config,
    mount_of,
    read_folder,
    taken_ports,
    weights_in,
)
from agent.node.upload import LIMIT, measure
from agent.plan.make import (
    checkpoint_folder,
    make_plan,
    port_clashes,
    private_folder,
    service_problems,
)
from agent.record.background import run_within
from agent.record.run_folder import read_checkpoints
from agent.runtime import parent
from agent.runtime.network import lookup_briefly
from agent.settings import load
from agent.settings.jobs import TORCHRUN, launcher, recipe_info
from agent.settings.model import Settings
from agent.settings.redact import secrets_in
from agent.settings.rules import TEMP_DIR, flags_of
from agent.topology.resolve import Topology, detect_platform, resolve
from agent.work.checkpoints import kept_settings, why_not_resumable, why_unusable
from agent.work.job import checkpoint_owner
from agent.work.recipes.recipe import JobBasis, shape_of
from agent.work.services import NO_FILE
from agent.work.services_file import parse
from agent.work.torchrun import command_fault, split_python, torchrun_arguments, torchrun_problems

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.node.facts import Facts, TorchPython
    from agent.node.upload import UploadSize
    from agent.plan.plan import Plan
    from agent.settings.load import Loaded
    from agent.work.checkpoints import FolderContents
    from agent.work.recipes.recipe import ModelShape
    from agent.work.services import ServicesFile


def read_services(settings: Settings, problems: list[Problem]) -> ServicesFile:
    """Return the services and steps of the AGENT_SERVICES file; add its errors to `problems`."""
    if settings.services is None:
        return NO_FILE
    try:
        text = Path(settings.services).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        wanted = "the path of a TOML file, there on every node"
        problems.append(Problem("AGENT_SERVICES", f"{settings.services!r} ({why})", wanted))
        return NO_FILE
    found, errors = parse(text, settings.services, settings)
    problems += errors
    return NO_FILE if errors else found


_DEFAULT_TEMP = "/tmp"


def temp_root(settings: Settings) -> tuple[str, list[Problem]]:
    """Return the folder for Ray's sessions, and what is wrong with it."""
    asked = dict(flags_of(settings.ray_args)).get(TEMP_DIR)
    if asked is None:
        return _DEFAULT_TEMP, []
    given = f"{TEMP_DIR}={asked}"
    if not Path(asked).is_dir():
        expected = "a folder that is there: mount its disk, or make it"
        got = f"{given}, which is no folder here"
        return _DEFAULT_TEMP, [Problem("AGENT_RAY_ARGS", got, expected)]
    if shlex.quote(asked) != asked:
        expected = "a path of letters, digits, dots, dashes and underscores (a shell reads it)"
        return asked, [Problem("AGENT_RAY_ARGS", given, expected)]
    return asked, []


_ENV, _DIR = "AGENT_RUNTIME_ENV", "AGENT_WORKING_DIR"
_REFERENCE = re.compile(r"\$\{?\w+\}?")
"""A value that Ray fills in on each node from that node's environment."""
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LEAVE_OUT = (
    "a folder without them: all nodes, and whoever reaches Ray's dashboard, can read an "
    "upload. Leave them out by .gitignore or by excludes in AGENT_RUNTIME_ENV, or insist by "
    "AGENT_ALLOW_INSECURE=1"
)
_SHRINK = (
    "which is what Ray takes of a folder: leave the largest out by .gitignore or by excludes in "
    "AGENT_RUNTIME_ENV, or have the code in the image or on a disk of all nodes, and start the "
    "agent in it"
)
_NODE_ENVIRONMENT = (
    "it in the environment of every node (or in a file that {name}_FILE or the like names): actors "
    "inherit that; Ray's dashboard shows a runtime_env to whoever asks"
)


def read_runtime_env(
    settings: Settings, environ: Mapping[str, str], ray: str
) -> tuple[dict[str, object], UploadSize | None]:
    """Return the runtime_env with the working dir, and its upload's size; `ray` is Ray's folder."""
    parsed = {} if settings.runtime_env is None else _parse(settings.runtime_env)
    problems = [parsed] if isinstance(parsed, Problem) else [*_faults(parsed)]
    found = {} if isinstance(parsed, Problem) else parsed
    variable = _ENV
    if settings.working_dir is not None:
        if "working_dir" in found:
            both = f"{_DIR} + {_ENV}"
            problems.append(Problem(both, "a working_dir in each", "one of the two"))
        variable, found = _DIR, {**found, "working_dir": settings.working_dir}
    upload = _working_dir(variable, found, environ, ray, insists=settings.allow_insecure)
    if isinstance(upload, Problem):
        raise SettingsError((*problems, upload))
    if problems:
        raise SettingsError(tuple(problems))
    return found, upload


def _parse(text: str) -> dict[str, object] | Problem:
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            given = f"{text!r} ({getattr(error, 'strerror', None) or 'not text'})"
            return Problem(_ENV, given, "JSON, or the path of a YAML or JSON file")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        import yaml  # noqa: PLC0415 - Ray brings it; most runs need none

        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError) as error:
            what = f"text that is neither JSON nor YAML ({str(error).splitlines()[0]})"
            return Problem(_ENV, what, "YAML or JSON")
    if not isinstance(value, dict):
        return Problem(_ENV, "something that is no mapping", "names and values")
    try:
        json.dumps(value)  # so it travels to Ray
    except (TypeError, ValueError, RecursionError) as error:  # YAML has dates, sets and loops
        what = f"a value that JSON cannot carry ({error})"
        return Problem(_ENV, what, "texts, numbers, lists and mappings")
    return {str(key): item for key, item in value.items()}


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
        return
    for name, value in given.items():
        if not isinstance(value, str):
            quoted = f'{name}: "{json.dumps(value)}"' if value is not None else f'{name}: ""'
            yield Problem(_ENV, f"env_vars.{name}, which is no text", f"it quoted: {quoted}")


def _texts(place: str, name: str, value: object) -> Iterator[tuple[str, str, str]]:
    """Yield every text with its path and key."""
    if isinstance(value, str):
        yield place, name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(f"{place}.{key}".lstrip("."), str(key), inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(f"{place}[{index}]", "", inner)


def _working_dir(
    variable: str,
    found: Mapping[str, object],
    environ: Mapping[str, str],
    ray: str,
    *,
    insists: bool,
) -> UploadSize | Problem | None:
    """Return the size of the upload, or a problem: no such folder, credentials in it, too large."""
    given = found.get("working_dir")
    if given is None or (isinstance(given, str) and _REMOTE.match(given)):
        return None
    folder, shown = Path(str(given)), repr(str(given))
    if not folder.is_dir():
        if variable == _ENV and folder.is_file():  # Ray takes a zip, too
            return None
        return Problem(variable, f"{shown}, which is no folder here", "a folder to upload")
    patterns = found.get("excludes")
    excludes = [str(one) for one in patterns] if isinstance(patterns, list) else []
    upload = measure(folder.absolute(), excludes, ray, environ)
    if upload is not None and upload.credentials and not insists:
        names = first_names(upload.credentials)
        return Problem(variable, f"{shown} with credentials in it: {names}", _LEAVE_OUT)
    if upload is not None and upload.size > LIMIT:
        parts = ", ".join(f"{name} {mib(size)}" for name, size in upload.largest)
        least = "" if upload.complete else "at least "
        what = f"{shown}: {least}{mib(upload.size)} in {upload.files} files ({parts})"
        return Problem(variable, what, f"at most {mib(LIMIT)}, {_SHRINK}")
    return upload


def add_job_facts(facts: Facts, loaded: Loaded, topology: Topology) -> Facts:
    """Add the facts that the chosen recipe needs: framework, checkpoint disk, model size."""
    settings = loaded.settings
    known = recipe_info(settings, loaded.command)
    if known is None or not known.framework or topology.is_idle:
        return facts
    starts_in = settings.working_dir or "."
    inputs = {
        "AGENT_MODEL": settings.model,
        "AGENT_TRAIN_DATA": settings.train_data,
        "AGENT_EVAL_DATA": settings.eval_data,
    }
    missing = run_within(
        times.STALLED_DISK,
        lambda: {name: one for name, one in inputs.items() if one and is_missing(one)},
    )
    facts = replace(
        facts,
        framework=find_framework(known.framework, facts.job_python, starts_in),
        data_columns=run_within(times.STALLED_DISK, lambda: columns_of(settings.train_data or "")),
        missing_inputs=missing or {},
    )
    folder = checkpoint_folder(settings, loaded.command)
    mount = run_within(times.STALLED_DISK, lambda: (mount_of(folder),))
    if mount is None:
        return facts
    facts = replace(facts, checkpoints=mount[0])
    sizes = run_within(times.STALLED_DISK, lambda: (free_at(folder), weights_in(settings.model)))
    if sizes is not None:
        facts = replace(facts, checkpoints_free=sizes[0], model_bytes=sizes[1])
    return facts


def read_shape(settings: Settings, environ: Mapping[str, str]) -> ModelShape | None:
    """Return the shape of a model from its `config.json` here, else from its name."""
    model, revision = settings.model, settings.model_revision
    if not model:
        return None
    config = run_within(times.STALLED_DISK, lambda: model_config(model, environ, revision))
    return shape_of(model, config)


def check_checkpoints(plan: Plan, held: FolderContents | None) -> tuple[Finding, ...]:
    """Return a finding if the job cannot use its checkpoint folder, which has these contents."""
    job = plan.job
    if held is None or job is None or job.recipe is None or not job.framework:
        return ()
    recipe, expected = job.recipe, job.recipe.expected_command
    settings = recipe.input.basis.kept if expected is None else expected.format
    ours = checkpoint_owner(recipe, recipe.input.nodes, settings)
    why, level = why_unusable(held, ours), Level.FAIL
    if not why:  # the nodes that join decide
        why, level = why_not_resumable(held, ours), Level.WARN
    remedy = ends.CHECKPOINTS_REFUSED.remedy
    return (Finding(CHECKPOINTS, level, f"{job.checkpoints}: {why}", remedy),) if why else ()


def plan_from_environment(
    environ: Mapping[str, str], command: list[str] | None, *, wants_job: bool = True
) -> Plan:
    """Make the plan, or raise all faults together; `wants_job` is False to examine a machine."""
    loaded = _load_settings(environ, command)
    settings, words = loaded.settings, loaded.command
    ray, names = find_ray(environ.get("PATH")), dict[str, tuple[str, ...]]()
    if settings.head is not None and not is_ip(settings.head):  # its address decides the role
        names[settings.head] = lookup_briefly(settings.head, times.START_LOOKUP)
    program, torch = _find_torchrun_programs(environ, loaded, ray.executable)
    temp, problems = temp_root(settings)
    if launcher(settings, None) == TORCHRUN:
        problems += torchrun_problems(settings, words, wants_job=wants_job)
    facts = gather(names, ray, environ, program, is_first_process=parent.is_init, temp=temp)
    facts = replace(facts, torch=torch)
    runtime_env: dict[str, object] = {}
    upload: UploadSize | None = None
    file = read_services(settings, problems)
    topology: Topology | None = None
    try:
        topology = resolve(environ, settings, facts)
    except SettingsError as error:
        problems += error.problems
    try:
        if topology is None or topology.is_head:  # a worker may lack the head's files
            runtime_env, upload = read_runtime_env(settings, environ, ray.folder)
    except SettingsError as error:
        problems += error.problems
    with suppress(SettingsError):  # the platform may be known where the topology is not
        platform = detect_platform(environ, settings) if topology is None else topology.platform
        problems += port_clashes(settings, words, platform.ports, platform.given_ray)
    if topology is not None:
        problems += service_problems(settings, words, topology, file)
    if topology is None or problems:
        raise SettingsError(tuple(problems), loaded.misspelled)
    host = topology.head_host or ""
    is_new = topology.is_head and host not in facts.known_names
    if is_new and facts.is_own_name(host) and len(facts.addresses()) > 1:  # others resolve it too
        facts = replace(facts, known_names={host: lookup_briefly(host, times.START_LOOKUP)})
    facts = replace(
        facts,
        disks={step.once: disk_of(step.once) for step in file.steps if step.once is not None},
        ray_temp=read_folder(private_folder(facts, topology.platform.job_id)),
        model_is_here=Path(settings.model or "/").exists(),
    )
    facts = add_job_facts(facts, loaded, topology)
    known, held, kept = recipe_info(settings, words), None, None
    if known is not None and known.framework:  # what it has to keep to resume from its checkpoints
        folder = checkpoint_folder(settings, words)
        held = run_within(times.STALLED_DISK, lambda: read_checkpoints(folder))
        kept = None if held is None else kept_settings(held, known.framework)
    basis = JobBasis(read_shape(settings, environ), kept=kept or {})
    plan = make_plan(loaded, topology, facts, environ, runtime_env, file, upload, basis)
    return replace(plan, findings=(*plan.findings, *check_checkpoints(plan, held)))


def _load_settings(environ: Mapping[str, str], command: list[str] | None) -> Loaded:
    """Load the settings; report errors of the services file together with theirs."""
    try:
        return load(environ, command)
    except SettingsError as error:
        problems, path = [*error.problems], environ.get("AGENT_SERVICES", "").strip()
        if path:
            read_services(Settings(services=path), problems)
        raise SettingsError(tuple(problems), error.hints) from None


def _find_torchrun_programs(
    environ: Mapping[str, str], loaded: Loaded, ray: str
) -> tuple[tuple[str, ...] | None, TorchPython | None]:
    """Return the job's command if it names a program to find, and torch's Python."""
    command = loaded.command
    by_torchrun = launcher(loaded.settings, None) == TORCHRUN
    if not by_torchrun:  # the all-reduce before the job is Ray's Python's
        return command, None if loaded.settings.preflight is None else find_torch(environ, ray)
    arguments = command or ()
    is_program = bool(arguments) and command_fault(arguments) is None
    is_program = is_program and torchrun_arguments(arguments)[0] == "--no_python"
    return command if is_program else None, find_torch(environ, split_python(arguments)[0])


def examine_machine(environ: Mapping[str, str]) -> tuple[Facts, tuple[Finding, ...]]:
    """Run every check, without starting anything; return the facts that were checked, too."""
    plan = plan_from_environment(environ, None, wants_job=False)
    ports = [int(listener.port) for listener in plan.listeners if listener.port.isdigit()]
    driver = gpus.ask_driver(plan.facts.gpu_maker, environ.get("PATH"))
    facts = replace(plan.facts, taken_ports=taken_ports(ports), driver=driver)
    others = [finding for finding in plan.findings if finding.check in {NAMES, *RECIPE_CHECKS}]
    return facts, (*others, *run_checks(facts, plan.settings, plan.topology))
