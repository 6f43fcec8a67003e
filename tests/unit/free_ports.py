"""Ports of this machine that are free, for tests that listen."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
