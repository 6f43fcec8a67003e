"""How an agent reaches other nodes and takes its own port, as a parameter."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, NamedTuple, Protocol

from agent.base import times
from agent.base.errors import PreflightError
from agent.base.ports import BACKLOG
from agent.node.read import holder_of, is_bindable, source_towards
from agent.processes.connecting import port_answers
from agent.processes.resolving import resolve, set_keepalive

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.processes.connecting import PortAnswers


def bind(address: str, port: int) -> socket.socket:
    """Take the agent's port on an address; the socket listens, and nothing is accepted yet."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    set_keepalive(listener, times.PEER_DEAD)
    listener.setblocking(False)  # noqa: FBT003 - the socket module's own signature
    try:
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            why = f"{why}, by {holder_of(port)}"
        raise PreflightError(
            f"the agent's port {address}:{port} cannot be taken",
            why=why,
            remedy="End the process that holds it (another agent?), or move AGENT_PORT",
            culprit="AGENT_PORT",
        ) from None
    return listener


class Resolve(Protocol):
    """The form of `resolve`."""

    async def __call__(self, host: str, limit: float = ...) -> tuple[str, ...] | str:
        """Return a host's addresses, or why there are none."""


class Network(NamedTuple):
    """Names, addresses and ports; requests are in run/late_effects.py."""

    resolve: Resolve = resolve
    source_towards: Callable[[str], str | None] = source_towards
    is_bindable: Callable[[str], bool] = is_bindable
    bind: Callable[[str, int], socket.socket] = bind
    port_answers: PortAnswers = port_answers


NETWORK = Network()
"""The network of this machine."""
