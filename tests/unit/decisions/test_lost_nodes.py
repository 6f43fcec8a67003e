"""Nodes are asked at the ports that GCS lists, whoever started their Ray."""

from __future__ import annotations

import socket

import anyio

from agent.decisions.head.fleet import Fleet, RayNode
from agent.run.silent_nodes import probe_nodes


def test_a_raylet_that_does_not_answer_is_named() -> None:
    """One of two nodes has a listening raylet; all raylets at one address must answer."""
    with socket.create_server(("127.0.0.1", 0)) as lives, socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # and does not listen
        open_port, closed = lives.getsockname()[1], dead.getsockname()[1]
        for ip in ("localhost", "127.0.0.1"):
            one = RayNode("a", "127.0.0.1", port=open_port)
            other = RayNode("b", ip, port=closed)
            fleet = Fleet().with_ray_nodes((one, other))
            asked = anyio.run(probe_nodes, "run-1", fleet)
            assert list(asked.silent) == [ip]
            assert "refused" in asked.silent[ip]
