"""Nodes are asked at the ports that GCS lists, whoever started their Ray."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import anyio

from agent.decisions.head.fleet import Fleet, RayNode
from agent.run.silent_nodes import probe_nodes

if TYPE_CHECKING:
    from agent.decisions.head import head_state as h


def test_a_raylet_that_does_not_answer_is_named() -> None:
    """One of two nodes has a listening raylet; all raylets at one address must answer."""
    with socket.create_server(("127.0.0.1", 0)) as lives, socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # and does not listen
        open_port, closed = lives.getsockname()[1], dead.getsockname()[1]
        for ip in ("localhost", "127.0.0.1"):
            events: list[h.NodesAsked] = []
            one = RayNode("a", "127.0.0.1", port=open_port)
            other = RayNode("b", ip, port=closed)
            fleet = Fleet().with_ray_nodes((one, other))
            anyio.run(probe_nodes, "run-1", fleet, events.append)
            (asked,) = events
            assert list(asked.silent) == [ip]
            assert "refused" in asked.silent[ip]
