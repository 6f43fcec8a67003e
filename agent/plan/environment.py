"""What a node's processes find in their environment: set before `ray start`, inherited by all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.node.facts import MIB
from agent.node.variables import PROXIES
from agent.node.visible_devices import devices
from agent.settings.model import TOKEN_MODE
from agent.settings.redact import SHORTEST, secrets_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.settings.values import Secret

_NEVER_PASSED_ON = (
    "RAY_ADDRESS",  # a leftover would send every child to another cluster
    "RAY_API_SERVER_ADDRESS",  # and this one the job: it overrules an explicit address
    "RAY_AUTH_TOKEN_PATH",  # read already; two forms would contradict
    "WANDB_API_KEY_FILE",
    "RAY_AUTH_TOKEN_FILE",
)
_WANDB = "WANDB_API_KEY"
_OF_THE_CLUSTER = ("RAY_AUTH_TOKEN", TOKEN_MODE)
"""The token, and the mode that would make a Ray of the child's own ask for one."""
_FINDS = (
    "PATH",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "HOME",
    "PYTHONHOME",
    "VIRTUAL_ENV",
)
"""By these programs find their own: paths, however they may read, and never to be left out."""
_PROXIES = tuple(word for name in PROXIES for word in (name, name.upper()))


def for_node(
    environ: Mapping[str, str], settings: Settings, facts: Facts, node_ip: str, head_ip: str
) -> dict[str, str]:
    """Return the environment of this node's Ray, and so of every actor on it.

    What the user set always wins over what is chosen here.
    """
    chosen = _training(facts, node_ip, settings) | _proxy_exceptions(environ, node_ip, head_ip)
    unproxied = {k: v for k, v in chosen.items() if k.lower() == "no_proxy"}
    everything = {**chosen, **passed_on(environ, settings), **unproxied}
    return devices(environ, facts.gpu_maker, facts.ray.version).applied_to(everything)


def passed_on(environ: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return what every child gets, before any address is known: the user's own, and secrets."""
    empty_key = ("WANDB_API_KEY",) if settings.wandb_api_key is None else ()
    dropped = {*_NEVER_PASSED_ON, *_other_debugger(settings), *empty_key}
    mine = {k: text for k, text in environ.items() if k not in dropped}
    return {**mine, **_secrets(settings), **auth(settings), **debug(settings)}


def for_head(
    environ: Mapping[str, str], settings: Settings, facts: Facts, node_ip: str, job_grace: float
) -> dict[str, str]:
    """Return the environment of the head's Ray: Ray kills a stopped job after 3 s unless told."""
    found = for_node(environ, settings, facts, node_ip, node_ip)
    found.setdefault("RAY_JOB_STOP_WAIT_TIME_S", f"{max(1, int(job_grace))}")
    return found


def for_torchrun(
    environ: Mapping[str, str], settings: Settings, facts: Facts, node_ip: str, head_ip: str
) -> dict[str, str]:
    """Return the environment of a job that torchrun starts: as with Ray, without what is Ray's.

    The cluster's token guards the agent's port alone then, and is not the job's business.
    """
    found = for_node(environ, settings, facts, node_ip, head_ip)
    of_ray = {name for name in _for_our_ray() if name not in environ}
    kept = {name: text for name, text in found.items() if name not in (*of_ray, *_OF_THE_CLUSTER)}
    return _without(kept, settings.ray_auth_token)


def for_given_ray(
    environ: Mapping[str, str], settings: Settings, node_ip: str, ray_host: str
) -> dict[str, str]:
    """Return the environment of what is started beside a Ray that others started with theirs."""
    found = passed_on(environ, settings) | _proxy_exceptions(environ, node_ip, ray_host)
    if settings.ray_auth_token is None and environ.get(TOKEN_MODE):
        found[TOKEN_MODE] = environ[TOKEN_MODE]  # Kubernetes' own tokens: that Ray knows where
    return found


def for_bridge(full: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return what the bridge gets of a node's environment: nothing secret but Ray's own.

    It talks to Ray alone; RAY_JOB_HEADERS may be what opens the dashboard of a Ray that is given.
    """
    own = {name: full[name] for name in (*_OF_THE_CLUSTER, "RAY_JOB_HEADERS") if name in full}
    others = {name: text for name, text in full.items() if name not in own}
    harmless = {
        name: text for name, text in others.items() if name in _FINDS or not secrets_in(name, text)
    }
    return {**_without(harmless, settings.wandb_api_key, settings.ray_auth_token), **own}


def for_service(full: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return what a service gets: neither W&B's key nor the cluster's token is its business."""
    left = {name: text for name, text in full.items() if name not in (*_OF_THE_CLUSTER, _WANDB)}
    return _without(left, settings.wandb_api_key, settings.ray_auth_token)


def for_prepare(full: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return what a prepare step gets: all of the user's own, and not the cluster's token."""
    left = {name: text for name, text in full.items() if name not in _OF_THE_CLUSTER}
    return _without(left, settings.ray_auth_token)


def _without(environ: Mapping[str, str], *secrets: Secret | None) -> dict[str, str]:
    """Leave out each variable that repeats one of these secrets, whatever its name."""
    texts = [secret.reveal() for secret in secrets if secret is not None]
    long = [text for text in texts if len(text) >= SHORTEST]  # a short one is in many a word
    return {
        name: text
        for name, text in environ.items()
        if name in _FINDS or (text not in texts and not any(secret in text for secret in long))
    }


def chosen_for_display(
    environ: Mapping[str, str], settings: Settings, full: Mapping[str, str]
) -> dict[str, str]:
    """Return what the agent adds, changes or drops, with secrets masked, as a plan shows it."""
    masked = dict.fromkeys(_secrets(settings), "********")
    added = {name: text for name, text in full.items() if environ.get(name) != text}
    dropped = {name: "(dropped)" for name in environ if name not in full}
    return {**added, **dropped, **{name: text for name, text in masked.items() if name in full}}


def _secrets(settings: Settings) -> dict[str, str]:
    found = {
        "WANDB_API_KEY": settings.wandb_api_key,
        "RAY_AUTH_TOKEN": settings.ray_auth_token,
    }
    return {name: s.reveal() for name, s in found.items() if s is not None}


def auth(settings: Settings) -> dict[str, str]:
    """Set Ray's token mode explicitly, both ways: its default differs between versions."""
    return {TOKEN_MODE: "disabled" if settings.ray_auth_token is None else "token"}


def debug(settings: Settings) -> dict[str, str]:
    """Return the variables of the chosen debugger; the two modes exclude each other."""
    if settings.debug_ray == "1":
        return {"RAY_DEBUG": "legacy"}
    if settings.debug_ray == "post-mortem":
        return {"RAY_DEBUG_POST_MORTEM": "1"}
    return {}


def _other_debugger(settings: Settings) -> tuple[str, ...]:
    other = {"1": ("RAY_DEBUG_POST_MORTEM",), "post-mortem": ("RAY_DEBUG",)}
    return other.get(settings.debug_ray, ())


def _for_our_ray() -> dict[str, str]:
    return {
        # Ray's drain waits 30 s for a busy actor; by the time Ray is stopped the job is over.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # Before the job Ray would start an idle worker for each of the head's CPUs; two of them
        # cost a CPU-second, as the job was about to start (Ray 2.60).
        "RAY_prestart_worker_first_driver": "0",
    }


def _training(facts: Facts, node_ip: str, settings: Settings) -> dict[str, str]:
    chosen = {"VLLM_HOST_IP": node_ip, **_for_our_ray()}
    interface = facts.interface_of(node_ip)
    if interface is not None:
        chosen |= {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    if settings.wandb_api_key is None and not facts.wandb_login:
        chosen["WANDB_MODE"] = "offline"  # without a key W&B asks a terminal that is not there
    return chosen


def _proxy_exceptions(environ: Mapping[str, str], node_ip: str, head_ip: str) -> dict[str, str]:
    """Keep a proxy out of the traffic between nodes; gRPC and the dashboard break behind one."""
    if not any(environ.get(name) for name in _PROXIES):
        return {}
    given = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    own = ["localhost", "127.0.0.1", node_ip, head_ip]
    entries = list(dict.fromkeys([*filter(None, given.split(",")), *own]))
    return {"no_proxy": ",".join(entries), "NO_PROXY": ",".join(entries)}


def object_store(facts: Facts, allotted: int | None = None) -> int | None:
    """Return a size that fits /dev/shm, and what is allotted, where Ray's own choice would not.

    Ray takes 30 % of the memory that it sees, which on a shared node is everybody's; larger than
    /dev/shm, it silently puts its objects under /tmp.
    """
    wanted = int(0.3 * (facts.memory if allotted is None else allotted))
    if facts.shm != 0 and facts.shm_free < wanted:
        return max(80 * MIB, int(facts.shm_free * 0.9))
    return None if allotted is None else max(80 * MIB, wanted)
