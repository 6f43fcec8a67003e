"""How an agent reaches other nodes and takes its own port, as a parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from agent.node.read import is_bindable, source_towards
from agent.port.sockets import bind
from agent.processes.connecting import port_answers
from agent.processes.resolving import resolve

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from agent.processes.connecting import PortAnswers


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
