"""Who may call the agent's port: what a request's headers tell of a page in somebody's browser.

Without a token the network is the guard, and a browser inside it does what any page asks: it posts
forms and JSON to addresses that the page guessed (CSRF), and it takes a page's own name for ours
once that name's DNS answers with our address (rebinding). Browsers cannot lie in Host, Origin and
Sec-Fetch-Site; programs can, but those can call without them just as well.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.base.addresses import is_ip

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OPEN_TO_ALL = ("/livez", "/readyz")
"""Probes, which tell nothing: called by whatever name a platform has for this node."""

_OF_A_CLUSTER = (".svc", ".svc.cluster.local")
"""Endings of Kubernetes' names that nobody can own on the internet."""


class Refusal(NamedTuple):
    """The status and the sentence with which a call is turned away."""

    status: int
    why: str


def known_names(names: Iterable[str | None]) -> frozenset[str]:
    """Return the names, as a Host header may have them, by which a node can be called."""
    return frozenset(
        name.rstrip(".").lower() for name in names if name and name.strip(".") and not is_ip(name)
    ) | {"localhost"}


def refusal(
    method: str, path: str, headers: Mapping[str, str], names: frozenset[str], *, guarded: bool
) -> Refusal | None:
    """Say why a call is refused before anything is read of it; a token guards all but posts."""
    if path in OPEN_TO_ALL:
        return None
    if headers.get("Content-Encoding", "").strip().lower() not in {"", "identity"}:
        return Refusal(415, "Content-Encoding: send the body without compression")
    host = headers.get("Host")
    if not guarded and host is not None and not _is_ours(_name_in(host), names):
        known = ", ".join(sorted(names))
        return Refusal(
            421,
            f"this node is not known as {host[:100]!a}: call it by its IP address or as {known}, "
            "or set RAY_AUTH_TOKEN on all nodes, which opens it under any name",
        )
    reads = method in {"GET", "HEAD"}
    if guarded and reads:  # no page can send the token, and its cookie goes to our own pages only
        return None
    if _is_foreign(headers, host) and not (reads and _follows_a_link(headers)):
        return Refusal(403, "a page of another site may not call this node")
    return None


def _name_in(host: str) -> str:
    """Return a Host header's name without its port, and an IPv6 address without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".").lower()


def _is_ours(name: str, names: frozenset[str]) -> bool:
    if is_ip(name) or name in names:
        return True
    in_cluster = name.endswith(_OF_A_CLUSTER)
    return any(
        name.startswith(f"{known}.")
        and (in_cluster or name.removeprefix(f"{known}.") in _own_domains())
        for known in names
    )


@cache
def _own_domains() -> frozenset[str]:
    """Return the domains in which this machine's resolver looks for short names."""
    try:
        lines = Path("/etc/resolv.conf").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    found = (line.split() for line in lines)
    words = (word for row in found if row[:1] in (["search"], ["domain"]) for word in row[1:])
    return frozenset(word.strip(".").lower() for word in words)


def _is_foreign(headers: Mapping[str, str], host: str | None) -> bool:
    site, origin = headers.get("Sec-Fetch-Site", "").lower(), headers.get("Origin")
    if site in {"same-origin", "none"}:  # the browser's own word, which no page can change
        return False
    if origin is not None:
        return host is None or _bare(origin.partition("://")[2]) != _bare(host)
    return site == "cross-site"


def _bare(host: str) -> str:
    """Return a host without the port that goes without saying."""
    name = host.lower()
    return name.removesuffix(":80").removesuffix(":443")


def _follows_a_link(headers: Mapping[str, str]) -> bool:
    """Tell a person who follows a link here: the page that has it sees nothing of the answer."""
    mode, dest = headers.get("Sec-Fetch-Mode", ""), headers.get("Sec-Fetch-Dest", "")
    return (mode, dest) == ("navigate", "document") and "Origin" not in headers
