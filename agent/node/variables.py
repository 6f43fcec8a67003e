"""What of the environment checks weigh and nodes compare: names and, where harmless, values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Names of interfaces: NCCL's own grammar, and the others' plain lists."""
LEFTOVERS = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
"""Addresses of another Ray, for which a child of ours would leave this one."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
"""Proxies, in small or capital letters; what they hold may be secret."""
DEBUGGER = "DEBUG_RAY"
_PLAIN = (*INTERFACES, *LEFTOVERS, DEBUGGER, "CUDA_VISIBLE_DEVICES", "WANDB_MODE")
_COLLECTIVES = ("NCCL_", "TORCH_NCCL_", "GLOO_")
"""Nodes that set one of these differently may wait for each other for ever."""
_MOST = 64
_LONGEST_VALUE = 200
_SET = "set"


def weighed(environ: Mapping[str, str]) -> dict[str, str]:
    """Pick what is weighed; of what may hold a password only that it is set."""
    plain = {name: environ[name] for name in _PLAIN if name in environ} | _compared(environ)
    proxies = {name for small in PROXIES for name in (small, small.upper()) if environ.get(name)}
    return {**plain, **dict.fromkeys(sorted(proxies), _SET)}


def is_compared(name: str) -> bool:
    """Say whether it should be the same on all nodes: how they talk to each other."""
    return name.startswith(_COLLECTIVES)


def _compared(environ: Mapping[str, str]) -> dict[str, str]:
    """Pick what steers NCCL and Gloo, no more of it than fits a small message."""
    names = sorted(name for name in environ if is_compared(name) and name not in _PLAIN)
    return {name: environ[name][:_LONGEST_VALUE] for name in names[:_MOST]}
