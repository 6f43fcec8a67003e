"""Checks of Ray, torch, exposed ports and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.text import is_ip, is_public, needs_shell_quoting
from agent.checks.finding import fail, ok, warn
from agent.node.facts import FIRST_DEBUGPY, OLDEST, supports_token_auth, version
from agent.settings.jobs import TORCHRUN, launcher

if TYPE_CHECKING:
    from agent.checks.finding import CheckedNode, Result
    from agent.settings.values import Secret


def ray_installed(node: CheckedNode) -> Result:
    """Nothing can start without a supported Ray."""
    ray = node.facts.ray
    remedy = (
        "Install `ray[default]>=2.40` into the Python that runs the agent, or put the `ray` "
        "command of the Python that has it on PATH"
    )
    if ray.version is None:
        return fail(f"not installed for {ray.executable} (Python {ray.python})", remedy)
    if version(ray.version) < OLDEST:
        return fail(f"{ray.version} is older than 2.40", remedy)
    if ray.missing:
        missing = ", ".join(ray.missing)
        return fail(f"{ray.version} without its `default` extra ({missing} not installed)", remedy)
    if ray.breaks_command_line():
        command = f"the `ray` command of {ray.version}"
        what = f"{command} cannot start with click {ray.click} on Python {ray.python}"
        return fail(what, "Install another click: `pip install 'click<8.3'`")
    return ok(f"{ray.version} on Python {ray.python}")


def torch_installed(node: CheckedNode) -> Result | None:
    """Torchrun, and the all-reduce before a job of Ray, need a Python with torch."""
    found, by_torchrun = node.facts.torch, launcher(node.settings, None) == TORCHRUN
    if not by_torchrun and node.settings.preflight is None:
        return None
    if found is not None and found.version is not None:
        return ok(f"torch {found.version} of {found.executable}")
    if not by_torchrun:
        what = f"nccl needs torch, which is not installed for {node.facts.ray.executable}"
        return fail(what, "Use an image with torch in Ray's Python, or unset AGENT_PREFLIGHT")
    searched = "" if found is None else ", ".join(found.asked)
    remedy = "Put the Python that has torch first on PATH, or name it: -- /path/to/python train.py"
    return fail(f"not installed for {searched or 'any Python here'}", remedy)


def plain_path(node: CheckedNode) -> Result:
    """Ray starts its client server and workers by an unquoted shell command (2.40 to 2.60)."""
    python = node.facts.ray.executable
    if not needs_shell_quoting(python):
        return ok("needs no quoting in a shell")
    return fail(
        f"{python!r} contains a space or another character that is special in a shell, and Ray "
        "runs it unquoted",
        "Create the environment at a path of letters, digits, dots, dashes and underscores (a "
        "moved one keeps its old paths)",
    )


def ray_token(node: CheckedNode) -> Result:
    """Ray executes any code that it is sent; only the token protects it."""
    settings, given, ray = node.settings, node.topology.given_ray, node.facts.ray.version
    if settings.ray_auth_token is not None:
        if supports_token_auth(ray):
            return _token(settings.ray_auth_token, "required by Ray and by the agent's port")
        has_none = f"Ray {ray} has no token auth (2.52 is the first)"
        what = f"RAY_AUTH_TOKEN is set, but {has_none}: Ray's own ports stay open"
        remedy = (
            "Use an image with Ray 2.52 or newer, or insist (the token then guards only the "
            "agent's port): AGENT_ALLOW_INSECURE=1"
        )
        return warn(what, "") if settings.allow_insecure else fail(what, remedy)
    what = "RAY_AUTH_TOKEN is not set: whoever reaches"
    if given is not None:
        return warn(
            f"{what} {given.owner}'s Ray can run code on it",
            "Turn token auth on there (spec.authOptions.mode: token, Ray 2.52 or newer)",
        )
    what += " these ports can run code here"
    if node.is_alone:
        return ok(f"{what} (one machine, private address)")
    dashboard = settings.dashboard_port or node.topology.platform.ports.dashboard
    remedy = "Set the same RAY_AUTH_TOKEN on every node"
    if settings.dashboard_host is None:
        reach = f"ssh -L 8265:127.0.0.1:{dashboard} HEAD"
        remedy += f"; the dashboard stays on 127.0.0.1 (reach it with `{reach}`)"
    return warn(what, remedy)


SHORTEST_TOKEN = 16  # characters of a random token that cannot be found by trying


def _token(token: Secret, guards: str) -> Result:
    """Anyone who records a signature can test tokens against it offline."""
    if len(token.reveal()) >= SHORTEST_TOKEN:
        return ok(guards)
    return warn(
        f"RAY_AUTH_TOKEN has fewer than {SHORTEST_TOKEN} characters: it can be found by trying",
        "Set a random one on every node, for example from `openssl rand -hex 32`",
    )


def torchrun_token(node: CheckedNode) -> Result:
    """The token guards the agent's port; torch's own ports have no authentication."""
    if node.is_alone:
        return ok("one machine: torchrun connects to itself only")
    token = node.settings.ray_auth_token
    if token is not None:
        return _token(token, "required by the agent's port; torch's ports have no guard")
    what = "RAY_AUTH_TOKEN is not set: whoever reaches the agent's port can report to it"
    return warn(what, "Set the same RAY_AUTH_TOKEN on every node")


def public_addresses(node: CheckedNode) -> Result:
    """Ray and torchrun's store listen on every interface; Ray's token guards it, torch has none."""
    ray, settings, given = node.facts.ray.version, node.settings, node.topology.given_ray
    who = "Ray listens" if given is None else "agent and reward server may listen"
    missing, remedy = "RAY_AUTH_TOKEN is not set", "Set RAY_AUTH_TOKEN"
    if launcher(settings, None) == TORCHRUN:
        who, missing = "torchrun listens", "torch has no token auth"
        remedy = "Use nodes on a private network"
    elif settings.ray_auth_token is not None:
        is_guarded = given is not None or supports_token_auth(ray)
        missing = "" if is_guarded else f"Ray {ray} has no token auth"
        remedy = "Use an image with Ray 2.52 or newer"
    chosen = filter(None, (settings.node_ip, settings.dashboard_host))
    used = dict.fromkeys((*node.facts.addresses(), *chosen))
    public = [address for address in used if is_ip(address) and is_public(address)]
    if not public or not missing:
        return ok("no open port on a public address of this node")
    result = warn if settings.allow_insecure else fail
    return result(
        f"{who} on every interface, {', '.join(public)} is publicly routable, and {missing}",
        f"{remedy}, or insist: AGENT_ALLOW_INSECURE=1",
    )


def node_address(node: CheckedNode) -> Result:
    """An address of another node, or one that others cannot reach, breaks Ray later."""
    ip, facts = node.settings.node_ip, node.facts
    if ip is None:
        return ok("by route to the head")
    if facts.interface_of(ip) is None:
        own = ", ".join(facts.addresses()) or "none"
        what = f"AGENT_NODE_IP={ip} is no address of this node (it has: {own})"
        return fail(what, "Choose one of them, or unset it")
    if ip.startswith("127.") and not node.is_alone:
        what = f"AGENT_NODE_IP={ip} is loopback, which other nodes cannot reach"
        return fail(what, "Choose an address of the network between the nodes")
    return ok(f"AGENT_NODE_IP={ip}")


def debugger(node: CheckedNode) -> Result:
    """A breakpoint in an unattended job waits forever."""
    mode, ray = node.settings.debug_ray, node.facts.ray
    if mode == "0":
        return ok("off")
    how = "`ray debug`" if mode == "1" else "VS Code's Ray extension"
    what = f"DEBUG_RAY={mode}: a task that stops at a breakpoint waits for {how}"
    remedy = "Unset DEBUG_RAY for unattended runs"
    if mode == "post-mortem" and version(ray.debugpy or "") < FIRST_DEBUGPY:
        found = f"has debugpy {ray.debugpy}" if ray.debugpy else "has no debugpy"
        what += f"; but {ray.executable} {found}, without which Ray ignores breakpoints"
        remedy = f"Install it there on every node: `pip install 'debugpy>=1.8.0'`. {remedy}"
    return warn(what, remedy)
