"""Free ports of this machine, for tests that listen."""

from __future__ import annotations

import itertools
import os
import random
import socket

from agent.base.ports import Ports, port_conflicts, single_ports

_FIRST, _LAST = 21_000, 32_000
"""Above Ray's worker ports, and below those that the kernel gives to connections of other tests."""
_PORTS = itertools.cycle(random.Random(os.getpid()).sample(range(_FIRST, _LAST), _LAST - _FIRST))  # noqa: S311 - each process has its own order


def free_port() -> int:
    """Return a port on which nobody listens now, another one at each call."""
    for port in _PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError("itertools.cycle does not end")


def conflicts_in(ports: Ports, reward: int | None) -> list[str]:
    """Return the conflicts between the ports of a node and that of a reward server."""
    rewards = {} if reward is None else {"reward server": reward}
    workers = (ports.first_worker, ports.last_worker)
    return [*port_conflicts({**single_ports(ports), **rewards}, workers)]
