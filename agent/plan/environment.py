"""The environment variables of the processes on a node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.job.services import NODE_IP
from agent.node.facts import PROXIES, visible_devices
from agent.settings.model import TOKEN_MODE, secret_texts
from agent.settings.redact import SHORTEST, secrets_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.settings.values import Secret

_NEVER_INHERITED = (
    "RAY_ADDRESS",  # a leftover would connect every child to another cluster
    "RAY_API_SERVER_ADDRESS",  # overrides an explicit address when submitting the job
    "RAY_AUTH_TOKEN_PATH",  # read already; Ray accepts only one form
    *("AGENT_JUDGE_KEY", "AGENT_JUDGE_KEY_FILE"),  # only the reward server asks the judge
    *("AGENT_NOTIFY", "AGENT_NOTIFY_FILE"),  # only the head's agent sends messages
    "WANDB_API_KEY_FILE",
    "RAY_AUTH_TOKEN_FILE",
)
_WANDB = "WANDB_API_KEY"
_WANDB_OFF = {"disabled", "dryrun", "offline"}
_NOT_IN_WANDB_ID = re.compile(r"[^\w.-]")
INHERITED_SECRETS = (_WANDB, "RAY_AUTH_TOKEN", "AGENT_REWARD_TOKEN")
_CLUSTER_AUTH = ("RAY_AUTH_TOKEN", TOKEN_MODE)  # the token, and the mode that makes Ray require it
_SEARCH_PATHS = (
    *("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD"),
)
"""Variables by which programs find files; they are never treated as secrets."""


def for_node(
    environ: Mapping[str, str], settings: Settings, facts: Facts, node_ip: str, head_ip: str
) -> dict[str, str]:
    """Return the environment of this node's Ray and its actors; the user's variables win."""
    chosen = {"VLLM_HOST_IP": node_ip}
    interface = facts.interface_of(node_ip)
    if node_ip == NODE_IP:  # a plan without the address
        interface = "{interface of node_ip}"
    if interface is not None:
        chosen |= {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    if settings.wandb_api_key is None and not facts.wandb_login:
        chosen["WANDB_MODE"] = "offline"  # without a key W&B prompts on a terminal
    everything = {**chosen, **for_children(environ, settings, node_ip, head_ip)}
    return visible_devices(everything, facts.gpu_maker, facts.ray.version)[0]


def one_wandb_run(full: Mapping[str, str], run_id: str, *, has_login: bool) -> dict[str, str]:
    """Return the variables that make all attempts of a run one run of W&B: one curve, not three.

    The user's values win. A sweep names its runs itself.
    """
    is_on = has_login or bool(full.get(_WANDB))
    is_on = is_on and full.get("WANDB_MODE", "") not in _WANDB_OFF
    if not is_on or not run_id or not {"WANDB_RESUME", "WANDB_SWEEP_ID"}.isdisjoint(full):
        return {}
    own = {"WANDB_RUN_ID": _NOT_IN_WANDB_ID.sub("-", run_id), "WANDB_RESUME": "allow"}
    return {name: text for name, text in own.items() if name not in full}


def for_children(environ: Mapping[str, str], settings: Settings, *nodes: str) -> dict[str, str]:
    """Return what every child inherits, with no proxy to these nodes."""
    # Ray's token mode is always set: its default differs between versions
    by_token = "disabled" if settings.ray_auth_token is None else "token"
    chosen = {TOKEN_MODE: environ.get(TOKEN_MODE, "").strip() or by_token}
    dropped = {*_NEVER_INHERITED}
    if settings.debug_ray in _DEBUGGERS:
        dropped |= {name for name, _ in _DEBUGGERS.values()}
        chosen |= [_DEBUGGERS[settings.debug_ray]]
    if settings.wandb_api_key is None:
        dropped.add(_WANDB)  # an empty key
    inherited = {k: text for k, text in environ.items() if k not in dropped}
    unproxied = without_proxy_to(environ, ("localhost", "127.0.0.1", *nodes))
    return {**inherited, **secret_texts(settings, INHERITED_SECRETS), **chosen, **unproxied}


def for_bridge(full: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return the bridge's environment: without secrets, except those for Ray.

    RAY_JOB_HEADERS may hold the credentials of the dashboard of a platform's Ray.
    """
    own = {name: full[name] for name in (*_CLUSTER_AUTH, "RAY_JOB_HEADERS") if name in full}
    secret = {n for n, text in full.items() if n not in _SEARCH_PATHS and secrets_in(n, text)}
    texts = (settings.wandb_api_key, settings.ray_auth_token, settings.reward_token)
    return {**_without(secret, full, *texts), **own}


def without_cluster_auth(
    full: Mapping[str, str], settings: Settings, *, keeps_wandb: bool = False
) -> dict[str, str]:
    """Return the environment of a service; a prepare step and a job of torchrun keep W&B's key."""
    if keeps_wandb:
        return _without(_CLUSTER_AUTH, full, settings.ray_auth_token)
    return _without((*_CLUSTER_AUTH, _WANDB), full, settings.wandb_api_key, settings.ray_auth_token)


def _without(
    names: Collection[str], environ: Mapping[str, str], *secrets: Secret | None
) -> dict[str, str]:
    """Drop the variables of these names, and every one that contains one of these secrets."""
    texts = [secret.reveal() for secret in secrets if secret is not None]
    long = [text for text in texts if len(text) >= SHORTEST]  # a short one is part of many words
    return {
        name: text
        for name, text in environ.items()
        if name in _SEARCH_PATHS
        or not (name in names or text in texts or any(secret in text for secret in long))
    }


OWN_RAY = {
    # Ray waits 30 s for busy actors; the job has ended before Ray is stopped.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # Ray starts an idle worker for each of the head's CPUs before the job; two of them cost a
    # CPU-second just as the job starts (Ray 2.60).
    "RAY_prestart_worker_first_driver": "0",
}
_DEBUGGERS = {"1": ("RAY_DEBUG", "legacy"), "post-mortem": ("RAY_DEBUG_POST_MORTEM", "1")}
"""The variable of each debugger, by DEBUG_RAY; Ray accepts only one of them."""


def without_proxy_to(environ: Mapping[str, str], nodes: Iterable[str]) -> dict[str, str]:
    """Return no_proxy with these nodes added: a proxy breaks gRPC, the dashboard and rewards."""
    if not any(environ.get(name) for name in PROXIES):
        return {}
    given = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    entries = ",".join(dict.fromkeys([*filter(None, given.split(",")), *nodes]))
    return {"no_proxy": entries, "NO_PROXY": entries}
