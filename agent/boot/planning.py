"""From the environment to the plan: the pure parts, fed with what little must be looked up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.addresses import is_ip
from agent.base.errors import Problem, SettingsError
from agent.checks import NAMES, Finding, examine
from agent.node.addresses import taken_ports
from agent.node.ray_python import find
from agent.node.read_facts import gather, look_at_folder
from agent.plan.listeners import port_clashes
from agent.plan.make_plan import make_plan, private_folder
from agent.runtime import pid1
from agent.runtime.names import lookup_briefly
from agent.settings import Settings, load
from agent.topology.platforms import claim_of
from agent.topology.resolve import Topology, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.node.facts import Facts
    from agent.plan.plan import Plan
    from agent.settings import Loaded

_LOOKUP_LIMIT = 2.0


def plan_of(environ: Mapping[str, str], command: list[str] | None) -> Plan:
    """Make the plan; raises SettingsError with everything that is wrong."""
    loaded = load(environ, command)
    ray = find(environ.get("PATH"))
    names = _names_to_know(loaded.settings)
    facts = gather(names, ray, environ, loaded.command, is_first_process=pid1.is_over_us())
    problems: list[Problem] = []
    runtime_env: dict[str, object] = {}
    topology: Topology | None = None
    try:
        topology = resolve(environ, loaded.settings, facts)
    except SettingsError as error:
        problems += error.problems
    try:
        if topology is None or topology.is_head:  # a worker may lack the head's files
            runtime_env = read_runtime_env(loaded.settings)
    except SettingsError as error:
        problems += error.problems
    problems += _port_clashes(environ, loaded, topology)
    if topology is None or problems:
        raise SettingsError(tuple(problems), loaded.slips)
    facts = _with_own_name(facts, topology)
    facts = replace(facts, ray_temp=look_at_folder(private_folder(facts, topology.claim.job_id)))
    return make_plan(loaded, topology, facts, environ, runtime_env)


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
    plan = plan_of(environ, None)
    ports = [int(listener.port) for listener in plan.listeners if listener.port.isdigit()]
    facts = replace(plan.facts, taken_ports=taken_ports(ports))
    slips = [finding for finding in plan.findings if finding.check == NAMES]
    return (*examine(facts, plan.settings, plan.topology), *slips)


def read_runtime_env(settings: Settings) -> dict[str, object]:
    """Return what Ray is told as the job's runtime_env, from JSON, a file, and the working dir."""
    found: dict[str, object] = {}
    if settings.runtime_env is not None:
        found = _parse_runtime_env(settings.runtime_env)
    if settings.working_dir is not None:
        if "working_dir" in found:
            both = "AGENT_WORKING_DIR + AGENT_RUNTIME_ENV"
            raise SettingsError((Problem(both, "a working_dir in each", "one of the two"),))
        if not Path(settings.working_dir).is_dir():
            given = f"{settings.working_dir!r}, which is no folder here"
            raise SettingsError((Problem("AGENT_WORKING_DIR", given, "a folder to upload"),))
        found["working_dir"] = settings.working_dir
    return found


def _parse_runtime_env(text: str) -> dict[str, object]:
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not text"
            given = f"{text!r} ({why})"
            wanted = "JSON, or the path of a YAML or JSON file"
            raise SettingsError((Problem("AGENT_RUNTIME_ENV", given, wanted),)) from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = _from_yaml(text)
    if not isinstance(value, dict):
        what = "something that is no mapping"
        raise SettingsError((Problem("AGENT_RUNTIME_ENV", what, "names and values"),))
    return {str(key): item for key, item in value.items()}


def _from_yaml(text: str) -> object:
    import yaml  # noqa: PLC0415 - Ray brings it; most runs need none

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        what = f"text that is neither JSON nor YAML ({str(error).splitlines()[0]})"
        raise SettingsError((Problem("AGENT_RUNTIME_ENV", what, "YAML or JSON"),)) from None


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
