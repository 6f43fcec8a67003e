"""`{address:NAME}`: the address of the node on which a service runs.

That of a service on the head or on every node is known on each node. That of a service on one rank
is known to the head once the node of that rank has reported, and travels with what the head wants:
what names it starts then. It need not be ready, so services may name each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.errors import Problem
from agent.base.text import nearly_equal
from agent.job.services import REWARD, addressed, listed_members
from agent.settings.jobs import services_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.job.services import Placeholders, PrepareStep, ServicesFile, ServiceSpec
    from agent.settings.model import Settings

_REWARD_TABLE = "reward"  # how placeholders and tables name the reward server


def name_in_placeholder(spec: ServiceSpec) -> str:
    """Return the name of a service in `{address:NAME}`."""
    return _REWARD_TABLE if spec.name == REWARD else spec.name


def with_addresses(
    place: Placeholders, services: Iterable[ServiceSpec], by_rank: Mapping[str, str]
) -> Placeholders:
    """Add the known addresses; `by_rank` has those of services on a rank, '' for the head's."""
    known = {}
    for spec in services:
        name = name_in_placeholder(spec)
        if spec.where.kind == "head":
            known[name] = place.head_ip
        elif spec.where.kind == "every":
            known[name] = place.node_ip
        elif name in by_rank:
            known[name] = by_rank[name] or place.head_ip
    return replace(place, addresses=known)


def ranked_and_named(
    services: Iterable[ServiceSpec], rows: Iterable[ServiceSpec | PrepareStep]
) -> frozenset[str]:
    """Return the services on a rank whose address one of these rows names."""
    named = {name for row in rows for name in row.addressed}
    on_rank = (spec for spec in services if spec.where.kind == "rank")
    return frozenset(named.intersection(map(name_in_placeholder, on_rank)))


def unknown_addresses(
    texts: Iterable[str], services: Iterable[ServiceSpec], place: Placeholders
) -> list[str]:
    """Return the services that these texts name and whose address is not known."""
    texts = [*texts]
    of_nodes = {name for text in texts for name in addressed(text)}
    of_members = {name for text in texts for name in listed_members(text)}
    unknown = []
    for name in map(name_in_placeholder, services):
        has_no_node = name in of_nodes and name not in place.addresses
        if has_no_node or (name in of_members and name not in place.members):
            unknown.append(name)
    return unknown


def address_problems(
    settings: Settings,
    command: tuple[str, ...] | None,
    services: tuple[ServiceSpec, ...],
    file: ServicesFile,
    environ: Mapping[str, str],
) -> Iterator[Problem]:
    """Yield a problem for each `{address:NAME}` of which no service runs on one node."""
    known = {name_in_placeholder(spec): spec for spec in services if spec.argv is not None}
    foreign = {name for name in environ if not name.startswith("AGENT_")}
    for where, text in _texts(settings, command, services, file, environ):
        for name in dict.fromkeys(listed_members(text)):
            spec = known.get(name)
            if spec is None or spec.where.kind != "group":
                groups = [one for one, spec in known.items() if spec.where.kind == "group"]
                expected = f"a service in a group: {', '.join(groups) or 'the run has none'}"
                yield Problem(where, f"{{addresses:{name}}}", expected)
            elif spec.port is None:
                expected = "its port in ready.http or ready.tcp"
                yield Problem(where, f"{{addresses:{name}}}, of a service without a port", expected)
        for name in dict.fromkeys(addressed(text)):
            spec = known.get(name)
            got = f"{{address:{name}}}"
            is_near = any(nearly_equal(name, other) for other in known)
            if spec is None and where in foreign and not is_near:
                continue  # such as a format with a width
            if spec is None:
                names = ", ".join(known) or "none: this run starts no service"
                yield Problem(where, f"{got}, an unknown service", f"the name of one: {names}")
            elif spec.where.kind in {"workers", "group"}:
                expected = "one on the head, on a rank, or on every node (there the node's own)"
                runs = f"runs on {spec.where.sentence()}"
                yield Problem(where, f"{got}, which {runs}", expected)


def _texts(
    settings: Settings,
    command: tuple[str, ...] | None,
    services: tuple[ServiceSpec, ...],
    file: ServicesFile,
    environ: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield each text in which addresses are filled in, with the variable or key that has it."""
    yield "--", " ".join(command or ())
    yield "AGENT_JOB_ARGS", " ".join(settings.job_args)
    yield "AGENT_PREPARE", settings.prepare or ""
    yield "AGENT_PREPARE_EACH", settings.prepare_each or ""
    for name, text in environ.items():
        if not name.startswith("AGENT_"):
            yield name, text

    table = services_source(settings)
    for spec in services:
        is_variable = spec.name == REWARD and file.reward is None
        where = f"{table} [services.{name_in_placeholder(spec)}]"
        yield "AGENT_REWARD" if is_variable else f"{where} command", spec.asked
        for _, text in spec.env:
            yield f"{where} env", text
    for step in file.steps:
        yield f"{table} [prepare.{step.name}] command", step.command
