"""IP addresses and host names as text."""

from __future__ import annotations

import ipaddress


def is_ip(text: str) -> bool:
    """Say whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Say whether an address is routable on the internet."""
    return ipaddress.ip_address(address).is_global


def is_loopback(host: str) -> bool:
    """Say whether a host is only this machine's word for itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def in_url(host: str) -> str:
    """Write a host as a URL, or `host:port`, has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def reached_at(listens_on: str) -> str:
    """Return where, on the same machine, one reaches what listens on this host."""
    everywhere = {"0.0.0.0", "::", "localhost"}  # noqa: S104 - compared
    return "127.0.0.1" if listens_on in everywhere else listens_on
