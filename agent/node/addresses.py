"""Reads this machine's addresses and ports in use."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable


def source_towards(address: str) -> str | None:
    """Return the source address of the route to another node; no packet is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def taken_ports(ports: Iterable[int]) -> dict[int, str]:
    """Return the ports in use, each with the process that listens, if known."""
    found = {}
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                found[port] = _listener_on(port)
    return found


def _listener_on(port: int) -> str:
    try:
        listeners = [c for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port]
        pid = next(c.pid for c in listeners if c.pid and c.status == psutil.CONN_LISTEN)
        return f"{psutil.Process(pid).name()} (pid {pid})"
    except (psutil.Error, StopIteration, OSError):
        return "another process"


def interfaces() -> dict[str, tuple[str, ...]]:
    """Return the IP addresses of every interface, loopback included."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: tuple(a.address.partition("%")[0] for a in found if a.family in families)
        for name, found in psutil.net_if_addrs().items()
    }
