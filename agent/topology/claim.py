"""A node as the environment variables of its platform describe it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from agent.base.errors import Problem, SettingsError
from agent.base.ports import DEFAULTS, PortBase
from agent.base.text import in_url, is_loopback
from agent.base.value import Value
from agent.settings import values

if TYPE_CHECKING:
    from collections.abc import Mapping


T = TypeVar("T", int, str)


class PlatformInfo(Value):
    """A node as its platform describes it, before the user's settings are applied."""

    name: str
    is_head: bool
    evidence: tuple[str, ...]
    role_variable: str = "RAY_WORKER"
    """The variables to name where the user's settings contradict the platform."""
    role_is_proven: bool = False
    """True if the environment determines the role; False if it is a default."""
    has_ranks: bool = False
    head_host: str | None = None
    must_own_head_host: bool = False
    node_name: str | None = None
    own_names: tuple[str, ...] = ()
    rank: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    cpus: int | None = None
    """CPUs of this node allotted to the job, where jobs share nodes."""
    memory: int | None = None
    """Bytes of memory allotted to the job, where jobs share nodes."""
    run_id: str | None = None
    job_id: str | None = None
    """An id of this job that is unique on its host."""
    interface: str | None = None
    reported_address: str | None = None
    """This node's address as the platform reports it; no interface may have it."""
    ports: PortBase = DEFAULTS
    owns_machine: bool = False
    restarts_containers: bool = False
    """True if the platform restarts a container whose first process has ended."""
    restarts_groups: bool = False
    """True if the platform starts all pods of the run anew when one has ended, with 0 too."""
    single_node: bool = False
    """True if nothing indicates a second node."""
    given_ray: GivenRay | None = None
    """The Ray that the platform starts and stops, if it does."""
    notes: tuple[str, ...] = ()


class RankVariables(Value):
    """A platform that sets a rank, a node count and the head's address: one row of a table."""

    name: str
    rank: str
    nodes: str
    head: str
    gpus: str | None = None
    run_id: tuple[str, ...] = ()
    """The first of these that is set is the run id."""
    detected_by: frozenset[str] = frozenset()
    """The platform is detected if any of these is set."""
    numbered_nodes: bool = False
    """True if nodes are named by rank, such as node0."""
    owns_machine: bool = True
    """True in a container of the agent, where any running Ray is left over from it."""
    restarts_groups: bool = False
    """As in `PlatformInfo`."""


def info_by_rank(
    environ: Mapping[str, str], names: RankVariables, head: str | None = None, main_rank: int = 0
) -> PlatformInfo:
    """Describe a node by its rank; `head` is the head's host, if no single variable holds it."""
    nodes = require(read_number(environ, names.nodes, 1), names.nodes, "the number of nodes")
    rank = require(read_number(environ, names.rank, 0, nodes - 1), names.rank, "this node's rank")
    many, is_head = nodes > 1, rank == main_rank
    head = head if head is not None or not many else read_host(environ, names.head)
    if head is not None and is_loopback(head):
        if many and not is_head:
            given = f"{head} on the node of rank {rank}"
            raise platform_error(
                names.head, given, "an address of the head that other nodes can reach"
            )
        head = None  # the head's own loopback address, useless to other nodes
    if many and not is_head:
        head = require(head, names.head, "the head's address")
    evidence = [f"{names.rank}={rank}", f"{names.nodes}={nodes}"]
    if many and head is not None:
        evidence.append(f"{names.head}={head}")
    return PlatformInfo(
        name=names.name,
        is_head=is_head,
        evidence=tuple(evidence),
        role_variable=f"RAY_WORKER + {names.rank}",
        role_is_proven=True,
        has_ranks=True,
        head_host=head if many else None,
        own_names=(head,) if is_head and many and head is not None else (),
        rank=rank,
        nodes=nodes,
        gpus_per_node=None if names.gpus is None else read_number(environ, names.gpus),
        run_id=next((environ[name] for name in names.run_id if environ.get(name)), None),
        single_node=not many,
        node_name=f"node{rank}" if names.numbered_nodes else None,
        owns_machine=names.owns_machine,
        restarts_groups=names.restarts_groups,
    )


def require(value: T | None, name: str, what: str) -> T:
    """Return a value, or raise SettingsError if the platform did not set it."""
    if value is None:
        raise platform_error(name, "nothing", f"{what}, which is set beside the others")
    return value


def platform_error(variable: str, got: str, expected: str) -> SettingsError:
    """Return the error for an invalid variable of the platform."""
    return SettingsError((Problem(variable, got, expected),))


def read_number(
    environ: Mapping[str, str], name: str, low: int = 0, high: int | None = None
) -> int | None:
    """Read a number from a platform's variable; raises SettingsError for anything else."""
    text = environ.get(name)
    if text is None:
        return None
    if re.fullmatch(r"\d{1,9}", text.strip()):
        value = int(text)
        if value >= low and (high is None or value <= high):
            return value
    most = "" if high is None else f" and at most {high}"
    raise platform_error(name, repr(text), f"a whole number of at least {low}{most}")


def read_host(environ: Mapping[str, str], name: str) -> str | None:
    """Read a host from a platform's variable; None if it is unset or empty."""
    text = environ.get(name, "").strip()
    return parse_host(text, name) if text else None


def parse_host(text: str, name: str) -> str:
    """Validate a host from a variable that may hold several."""
    try:
        return values.host(text)
    except ValueError as error:
        raise platform_error(name, repr(text), str(error)) from None


def read_hosts(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Read a list of hosts, one per line."""
    return tuple(parse_host(line, name) for line in environ.get(name, "").split())


class GivenRay(Value):
    """A Ray that the platform starts and stops: its addresses."""

    owner: str
    """Who starts and stops it."""
    gcs_host: str
    gcs_port: int
    dashboard: str
    """The URL of its dashboard, to which jobs are submitted."""
    session: str | None = None
    """The folder of Ray's sessions; None if its head is another machine."""
    submission_id: str | None = None
    """The submission id that the owner expects; None if the agent may choose."""
    asks_token: bool = False
    """True if it requires a token."""

    @property
    def gcs(self) -> str:
        """Return the address of its GCS."""
        return f"{in_url(self.gcs_host)}:{self.gcs_port}"
