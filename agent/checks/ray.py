"""Checks of Ray, torch, exposed ports and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.own_command import needs_shell_quoting
from agent.base.text import is_ip, is_public
from agent.checks.finding import Finding, Level
from agent.node.facts import OLDEST, breaks_command_line, has_debugpy, supports_token_auth, version

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.topology.resolve import Topology


def ray_installed(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Nothing can start without a supported Ray."""
    ray = facts.ray
    remedy = (
        "Install `ray[default]>=2.40` into the Python that runs the agent, or put the `ray` "
        "command of the Python that has it on PATH"
    )
    if ray.version is None:
        what = f"not installed for {ray.executable} (Python {ray.python})"
        return Finding("ray", Level.FAIL, what, remedy)
    if version(ray.version) < OLDEST:
        return Finding("ray", Level.FAIL, f"{ray.version} is older than 2.40", remedy)
    if ray.missing:
        missing = ", ".join(ray.missing)
        what = f"{ray.version} without its `default` extra ({missing} not installed)"
        return Finding("ray", Level.FAIL, what, remedy)
    if breaks_command_line(ray.version, ray.click, enum_copies_are_same=ray.enum_copies_are_same):
        what = f"the `ray` command of {ray.version} cannot start with click {ray.click} on "
        what += f"Python {ray.python}"
        return Finding("ray", Level.FAIL, what, "Install another click: `pip install 'click<8.3'`")
    return Finding("ray", Level.OK, f"{ray.version} on Python {ray.python}")


def plain_path(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Ray starts its client server and workers by an unquoted shell command (2.40 to 2.60)."""
    python = facts.ray.executable
    if not needs_shell_quoting(python):
        return Finding("ray's path", Level.OK, "needs no quoting in a shell")
    return Finding(
        "ray's path",
        Level.FAIL,
        f"{python!r} contains a space or another character that is special in a shell, and Ray "
        "runs it unquoted",
        "Move the environment to a path of letters, digits, dots, dashes and underscores, and make "
        "it anew there (a moved one keeps its old paths)",
    )


def ray_token(facts: Facts, settings: Settings, topology: Topology) -> Finding:
    """Ray executes any code that it is sent; only the token protects it."""
    given = topology.given_ray
    if settings.ray_auth_token is None and given is not None:
        return Finding(
            "token",
            Level.WARN,
            f"RAY_AUTH_TOKEN is not set: whoever reaches {given.owner}'s Ray can run code on it",
            "Turn token auth on there (spec.authOptions.mode: token, Ray 2.52 or newer)",
        )
    if settings.ray_auth_token is None:
        alone = topology.expected_workers == 0 and topology.is_head
        dashboard = settings.dashboard_port or topology.platform.ports.dashboard
        return Finding(
            "token",
            Level.OK if alone else Level.WARN,
            "RAY_AUTH_TOKEN is not set: whoever reaches these ports can run code here"
            + ("" if not alone else " (one machine, private address)"),
            ""
            if alone
            else "Set the same RAY_AUTH_TOKEN on every node; the dashboard stays on "
            f"127.0.0.1 (reach it with `ssh -L 8265:127.0.0.1:{dashboard} HEAD`)",
        )
    if not supports_token_auth(facts.ray.version):
        level = Level.WARN if settings.allow_insecure else Level.FAIL
        return Finding(
            "token",
            level,
            f"RAY_AUTH_TOKEN is set, but Ray {facts.ray.version} has no token auth (2.52 is the "
            "first): Ray's own ports stay open",
            ""
            if settings.allow_insecure
            else "Take an image with Ray 2.52 or newer, or insist (the token then guards the "
            "agent's own port): AGENT_ALLOW_INSECURE=1",
        )
    return Finding("token", Level.OK, "Ray and the agent's port ask for it")


def ray_bind(facts: Facts, settings: Settings, topology: Topology) -> Finding:
    """Ray listens on every interface, which must not include the internet without a token."""
    chosen = filter(None, (settings.node_ip, settings.dashboard_host))
    used = dict.fromkeys((*facts.addresses(), *chosen))
    public = [a for a in used if is_ip(a) and is_public(a)]
    has_token = settings.ray_auth_token is not None
    guarded = has_token and (
        topology.given_ray is not None or supports_token_auth(facts.ray.version)
    )
    if not public or guarded:
        return Finding("addresses", Level.OK, "no open port on a public address of this node")
    who = "Ray listens" if topology.given_ray is None else "agent and reward server may listen"
    return Finding(
        "addresses",
        Level.WARN if settings.allow_insecure else Level.FAIL,
        f"{who} on every interface, {', '.join(public)} is publicly routable, and "
        + (
            f"Ray {facts.ray.version} has no token auth"
            if has_token
            else "RAY_AUTH_TOKEN is not set"
        ),
        ("Take an image with Ray 2.52 or newer" if has_token else "Set RAY_AUTH_TOKEN")
        + ", or insist: AGENT_ALLOW_INSECURE=1",
    )


def node_address(facts: Facts, settings: Settings, topology: Topology) -> Finding:
    """An address of another node, or one that others cannot reach, breaks Ray later."""
    ip = settings.node_ip
    if ip is None:
        return Finding("node address", Level.OK, "by route to the head")
    if facts.interface_of(ip) is None:
        own = ", ".join(facts.addresses()) or "none"
        what = f"AGENT_NODE_IP={ip} is no address of this node (it has: {own})"
        return Finding("node address", Level.FAIL, what, "Choose one of them, or unset it")
    alone = topology.is_head and topology.expected_workers == 0
    if ip.startswith("127.") and not alone:
        what = f"AGENT_NODE_IP={ip} is loopback, which other nodes cannot reach"
        return Finding("node address", Level.FAIL, what, "Choose an address of the network between")
    return Finding("node address", Level.OK, f"AGENT_NODE_IP={ip}")


def debugger(facts: Facts, settings: Settings, _topology: Topology) -> Finding:
    """A breakpoint in an unattended job waits forever."""
    if settings.debug_ray == "0":
        return Finding("debugger", Level.OK, "off")
    how = "`ray debug`" if settings.debug_ray == "1" else "VS Code's Ray extension"
    what = f"DEBUG_RAY={settings.debug_ray}: a task that stops at a breakpoint waits for {how}"
    remedy = "Unset DEBUG_RAY for unattended runs"
    if settings.debug_ray == "post-mortem" and not has_debugpy(facts.ray.debugpy):
        found = f"has debugpy {facts.ray.debugpy}" if facts.ray.debugpy else "has no debugpy"
        what += f"; but {facts.ray.executable} {found}, without which Ray ignores breakpoints"
        remedy = f"Install it there on every node: `pip install 'debugpy>=1.8.0'`. {remedy}"
    return Finding("debugger", Level.WARN, what, remedy)


def torch_installed(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """Torchrun needs a Python with torch."""
    found = facts.torch
    if found is not None and found.version is not None:
        return Finding("torch", Level.OK, f"{found.version} of {found.executable}")
    asked = () if found is None else found.asked
    what = f"not installed for {', '.join(asked) or 'any Python here'}"
    remedy = "Put the Python that has torch first on PATH, or name it: -- /path/to/python train.py"
    return Finding("torch", Level.FAIL, what, remedy)


def preflight_torch(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """The all-reduce before the job needs torch in the Python of Ray and the job."""
    found = facts.torch
    if found is not None and found.version is not None:
        return Finding("AGENT_PREFLIGHT", Level.OK, f"torch {found.version} of {found.executable}")
    what = f"nccl needs torch, which is not installed for {facts.ray.executable}"
    remedy = "Use an image with torch in Ray's Python, or unset AGENT_PREFLIGHT"
    return Finding("AGENT_PREFLIGHT", Level.FAIL, what, remedy)


def torchrun_token(_facts: Facts, settings: Settings, topology: Topology) -> Finding:
    """The token guards the agent's port; torch's own ports have no authentication."""
    if topology.is_head and topology.expected_workers == 0:
        return Finding("token", Level.OK, "one machine: torchrun connects to itself only")
    if settings.ray_auth_token is None:
        what = "RAY_AUTH_TOKEN is not set: whoever reaches the agent's port can report to it"
        return Finding("token", Level.WARN, what, "Set the same RAY_AUTH_TOKEN on every node")
    what = "the agent's port asks for it; torch's own ports have no guard"
    return Finding("token", Level.OK, what)


def torchrun_bind(facts: Facts, settings: Settings, _topology: Topology) -> Finding:
    """Torchrun's store listens on every interface, without authentication."""
    chosen = filter(None, (settings.node_ip,))
    used = dict.fromkeys((*facts.addresses(), *chosen))
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
