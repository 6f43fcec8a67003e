"""Checks of what torchrun needs, in the place of those of Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.addresses import is_ip, is_public
from agent.checks.finding import Finding, Level

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.resolve import Topology


def torch_installed(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Without torch in some Python there is no torchrun."""
    found = facts.torch
    if found is not None and found.version is not None:
        return Finding("torch", Level.OK, f"{found.version} of {found.executable}")
    asked = () if found is None else found.asked
    what = f"not installed for {', '.join(asked) or 'any Python here'}"
    remedy = "Put the Python that has torch first on PATH, or name it: -- /path/to/python train.py"
    return Finding("torch", Level.FAIL, what, remedy)


def for_preflight(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """The all-reduce before the job is torch's, in the Python that Ray and the job have."""
    found = facts.torch
    if found is not None and found.version is not None:
        return Finding("AGENT_PREFLIGHT", Level.OK, f"torch {found.version} of {found.executable}")
    what = f"nccl needs torch, which is not installed for {facts.ray.executable}"
    remedy = "Use an image with torch in Ray's Python, or unset AGENT_PREFLIGHT"
    return Finding("AGENT_PREFLIGHT", Level.FAIL, what, remedy)


def token(_facts: Facts, settings: Settings, topology: Topology) -> Finding:
    """The token guards the agent's port; torch's own ports know none."""
    if topology.is_head and topology.expected_workers == 0:
        return Finding("token", Level.OK, "one machine: torchrun meets itself only")
    if settings.ray_auth_token is None:
        what = "RAY_AUTH_TOKEN is not set: whoever reaches the agent's port can report to it"
        return Finding("token", Level.WARN, what, "Set the same RAY_AUTH_TOKEN on every node")
    what = "the agent's port asks for it; torch's own ports have no guard"
    return Finding("token", Level.OK, what)


def private_bind(facts: Facts, settings: Settings, _topology: Topology) -> Finding:
    """The store of torchrun takes connections on every interface, and asks nobody who he is."""
    asked = filter(None, (settings.node_ip,))
    used = dict.fromkeys((*facts.addresses(), *asked))
    public = [a for a in used if is_ip(a) and is_public(a)]
    if not public:
        return Finding("addresses", Level.OK, "no open port on a public address of this node")
    return Finding(
        "addresses",
        Level.WARN if settings.allow_insecure else Level.FAIL,
        f"torchrun listens on every interface, {', '.join(public)} is publicly routable, and "
        "torch has no token auth",
        "Use nodes on a private network, or insist: AGENT_ALLOW_INSECURE=1",
    )
