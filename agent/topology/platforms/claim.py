"""What a platform claims about a node from its environment alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from agent.base.addresses import is_loopback
from agent.base.errors import Problem, SettingsError
from agent.base.ports import DEFAULTS, PortBase
from agent.base.value import dataclass
from agent.settings import values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.topology.given_ray import GivenRay

Value = TypeVar("Value", int, str)


@dataclass(frozen=True)
class Claim:
    """A platform's word on who this node is, before the user's own word is weighed against it."""

    platform: str
    is_head: bool
    evidence: tuple[str, ...]
    role_variable: str = "RAY_WORKER"
    """The variables to name when the user's word contradicts this claim."""
    knows_role: bool = False
    """True where the environment proves the role, rather than leaving it to a default."""
    knows_ranks: bool = False
    head_host: str | None = None
    must_own_head_host: bool = False
    node_name: str | None = None
    own_names: tuple[str, ...] = ()
    rank: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    cpus: int | None = None
    """The CPUs allotted to this job on this node, where a platform shares nodes out."""
    memory: int | None = None
    """The bytes of memory allotted likewise."""
    run_id: str | None = None
    job_id: str | None = None
    """What keeps this job apart from others on the same host."""
    interface: str | None = None
    reported_address: str | None = None
    """The address at which the platform saw this node, if it is one of this node's own."""
    ports: PortBase = DEFAULTS
    owns_machine: bool = False
    restarts: bool = False
    """True where the platform starts a container again whose first process has ended."""
    alone: bool = False
    """True where nothing points to a second node."""
    ray: GivenRay | None = None
    """The Ray that is there already, where the platform starts and stops it."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Names:
    """The variables in which a platform tells ranks: most differ in nothing else."""

    platform: str
    rank: str
    nodes: str
    head: str
    gpus: str | None = None
    run_id: tuple[str, ...] = ()
    """The first of these that is set names the run."""


def ranked(
    environ: Mapping[str, str], names: Names, head: str | None = None, main_rank: int = 0
) -> Claim:
    """Claim a node by its rank; `head` is the head's host where no variable says it plainly."""
    nodes = required(number(environ, names.nodes, 1), names.nodes, "the number of nodes")
    rank = required(number(environ, names.rank, 0, nodes - 1), names.rank, "this node's rank")
    many, is_head = nodes > 1, rank == main_rank
    head = head if head is not None or not many else host(environ, names.head)
    if head is not None and is_loopback(head):
        if many and not is_head:
            given = f"{head} on the node of rank {rank}"
            raise fault(names.head, given, "an address of the head that other nodes can reach")
        head = None  # the head's own word for itself, which is of no use to others
    if many and not is_head:
        head = required(head, names.head, "the head's address")
    evidence = [f"{names.rank}={rank}", f"{names.nodes}={nodes}"]
    if many and head is not None:
        evidence.append(f"{names.head}={head}")
    return Claim(
        platform=names.platform,
        is_head=is_head,
        evidence=tuple(evidence),
        role_variable=f"RAY_WORKER + {names.rank}",
        knows_role=True,
        knows_ranks=True,
        head_host=head if many else None,
        own_names=(head,) if is_head and many and head is not None else (),
        rank=rank,
        nodes=nodes,
        gpus_per_node=None if names.gpus is None else number(environ, names.gpus),
        run_id=next((environ[name] for name in names.run_id if environ.get(name)), None),
        alone=not many,
    )


def required(value: Value | None, name: str, what: str) -> Value:
    """Insist on a variable that the platform sets beside those that were found."""
    if value is None:
        raise fault(name, "nothing", f"{what}, which is set beside the others")
    return value


def fault(variable: str, got: str, expected: str) -> SettingsError:
    """Say what is wrong with a platform's variable, to be raised."""
    return SettingsError((Problem(variable, got, expected),))


def number(
    environ: Mapping[str, str], name: str, low: int = 0, high: int | None = None
) -> int | None:
    """Read a platform's number; a value that is none is the platform's error, told by its name."""
    text = environ.get(name)
    if text is None:
        return None
    if re.fullmatch(r"\d{1,9}", text.strip()):
        value = int(text)
        if value >= low and (high is None or value <= high):
            return value
    most = "" if high is None else f" and at most {high}"
    raise fault(name, repr(text), f"a whole number of at least {low}{most}")


def host(environ: Mapping[str, str], name: str) -> str | None:
    """Read a platform's host name or address; nothing where it is unset or empty."""
    text = environ.get(name, "").strip()
    return as_host(text, name) if text else None


def as_host(text: str, name: str) -> str:
    """Read a host out of a variable that holds more than one."""
    try:
        return values.host(text)
    except ValueError as error:
        raise fault(name, repr(text), str(error)) from None


def lines(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Read a list of hosts, one a line."""
    return tuple(as_host(line, name) for line in environ.get(name, "").split())
