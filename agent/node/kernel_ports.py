"""Which ports the kernel gives to outgoing connections, and which of them it leaves out."""

from __future__ import annotations

from pathlib import Path

from agent.node.cgroups import ranges

_SYS = Path("/proc/sys/net/ipv4")
_USUAL = (32_768, 60_999)


def ephemeral(sys: Path = _SYS) -> tuple[int, int]:
    """Return the first and the last port of outgoing connections; Linux's own without /proc."""
    try:
        first, last = (sys / "ip_local_port_range").read_text().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return _USUAL


def reserved(sys: Path = _SYS) -> tuple[tuple[int, int], ...]:
    """Return the ranges that are left out: none where nobody named any."""
    try:
        return ranges((sys / "ip_local_reserved_ports").read_text())
    except (OSError, ValueError):
        return ()
