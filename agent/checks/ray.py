"""Checks of Ray, torch, exposed ports and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.text import is_ip, is_public
from agent.base.versions import release_of
from agent.checks.finding import fail, ok, warn
from agent.node.facts import FIRST_DEBUGPY, OLDEST, supports_token_auth
from agent.settings.jobs import TORCHRUN, launcher, runs_by_shares

if TYPE_CHECKING:
    from agent.checks.finding import CheckedNode, Result


def ray_installed(node: CheckedNode) -> Result:
    """Nothing can start without a supported Ray."""
    ray = node.facts.ray
    remedy = (
        "Install `ray[default]>=2.40` into the Python that runs the agent, or put the `ray` "
        "command of the Python that has it on PATH"
    )
    if ray.version is None:
        return fail(f"not installed for {ray.executable} (Python {ray.python})", remedy)
    if release_of(ray.version) < OLDEST:
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
    torch = node.facts.torch
    by_torchrun = launcher(node.settings) == TORCHRUN
    if not by_torchrun and node.settings.preflight is None:
        return None
    if torch is not None and torch.version is not None:
        return ok(f"torch {torch.version} of {torch.executable}")
    if not by_torchrun:
        what = f"nccl needs torch, which is not installed for {node.facts.job_python}"
        return fail(what, "Use an image with torch in that Python, or unset AGENT_PREFLIGHT")
    searched = "any Python here"
    if torch is not None and torch.asked:
        searched = ", ".join(torch.asked)
    remedy = "Put the Python that has torch first on PATH, or name it: -- /path/to/python train.py"
    return fail(f"not installed for {searched}", remedy)


SHORTEST_TOKEN = 16  # characters of a random token that cannot be found by trying


def token(node: CheckedNode) -> Result:
    """Ray executes any code that it is sent; only the token protects it and the agent's port."""
    settings = node.settings
    ray = node.facts.ray.version
    by_shares = runs_by_shares(settings)
    if settings.ray_auth_token is None:
        return _no_token(node, by_shares=by_shares)

    if not by_shares and not supports_token_auth(ray):
        has_none = f"Ray {ray} has no token auth (2.52 is the first)"
        what = f"RAY_AUTH_TOKEN is set, but {has_none}: Ray's own ports stay open"
        if settings.allow_insecure:
            return warn(what, "")
        return fail(what, "Use an image with Ray 2.52 or newer, or insist: AGENT_ALLOW_INSECURE=1")

    # Anyone who records a signature can test tokens against it offline.
    if len(settings.ray_auth_token.reveal()) < SHORTEST_TOKEN:
        return warn(
            f"RAY_AUTH_TOKEN has fewer than {SHORTEST_TOKEN} characters: it can be found by trying",
            "Set a random one on every node, for example from `openssl rand -hex 32`",
        )

    if by_shares:
        return ok("required by the agent's port")
    return ok("required by Ray and by the agent's port")


def _no_token(node: CheckedNode, *, by_shares: bool) -> Result:
    settings = node.settings
    given = node.topology.given_ray
    what = "RAY_AUTH_TOKEN is not set: whoever reaches these ports can run code here"
    if given is not None:
        return warn(what, f"Turn token auth on in {given.owner} (spec.authOptions.mode: token)")

    remedy = "Set the same RAY_AUTH_TOKEN on every node"
    if node.is_alone:
        remedy = "Set RAY_AUTH_TOKEN, since the ports are open on every interface"
    if settings.dashboard_host is None and not by_shares:
        port = settings.dashboard_port or node.topology.platform.ports.dashboard
        reach = f"ssh -L 8265:127.0.0.1:{port} HEAD"
        remedy += f"; the dashboard stays on 127.0.0.1 (reach it with `{reach}`)"
    return warn(what, remedy)


def public_addresses(node: CheckedNode) -> Result:
    """Ray and the job's ranks listen on every interface; Ray's token guards it, torch has none."""
    settings = node.settings
    by_shares = runs_by_shares(node.settings)
    has_auth = node.topology.given_ray is not None or supports_token_auth(node.facts.ray.version)
    is_guarded = settings.ray_auth_token is not None and has_auth and not by_shares
    chosen = filter(None, (settings.node_ip, settings.dashboard_host))
    used = dict.fromkeys((*node.facts.addresses(), *chosen))
    public = [address for address in used if is_ip(address) and is_public(address)]
    if is_guarded or not public:
        return ok("no open port on a public address of this node")
    what = f"{', '.join(public)} is publicly routable, and no token guards the open ports there"
    remedy = "Set RAY_AUTH_TOKEN, with Ray 2.52 or newer"
    if by_shares:
        remedy = "Use nodes on a private network: the job's own ports have no token auth"
    result = warn if settings.allow_insecure else fail
    return result(what, f"{remedy}; or insist: AGENT_ALLOW_INSECURE=1")


def node_address(node: CheckedNode) -> Result:
    """An address of another node, or one that others cannot reach, breaks Ray later."""
    ip = node.settings.node_ip
    facts = node.facts
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
    mode = node.settings.debug_ray
    ray = node.facts.ray
    if mode == "0":
        return ok("off")
    how = "`ray debug`" if mode == "1" else "VS Code's Ray extension"
    what = f"DEBUG_RAY={mode}: a task that stops at a breakpoint waits for {how}"
    remedy = "Unset DEBUG_RAY for unattended runs"
    if mode == "post-mortem" and release_of(ray.debugpy or "") < FIRST_DEBUGPY:
        has = f"has debugpy {ray.debugpy}" if ray.debugpy else "has no debugpy"
        what += f"; but {ray.executable} {has}, without which Ray ignores breakpoints"
        remedy = f"Install it there on every node: `pip install 'debugpy>=1.8.0'`. {remedy}"
    return warn(what, remedy)
