"""Environment variables that checks read and nodes compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.node.facts import FIRST_WITH_HIP, version

if TYPE_CHECKING:
    from collections.abc import Mapping


INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Names of interfaces: in NCCL's syntax, and plain lists for the others."""
STALE_ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
"""Addresses of another Ray, to which child processes would connect."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
"""Proxies, in lower or upper case; their values may hold passwords."""
DEBUGGER = "DEBUG_RAY"
_PLAIN = (*INTERFACES, *STALE_ADDRESSES, DEBUGGER, "CUDA_VISIBLE_DEVICES", "WANDB_MODE")
_COLLECTIVES = ("NCCL_", "TORCH_NCCL_", "GLOO_")
"""Nodes with different values may wait for each other forever."""
_MOST = 64
_LONGEST_VALUE = 200
_SET = "set"


def compared_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that checks read; proxies, which may hold passwords, only as `set`."""
    plain = {name: environ[name] for name in _PLAIN if name in environ} | _collective_variables(
        environ
    )
    proxies = {name for small in PROXIES for name in (small, small.upper()) if environ.get(name)}
    return {**plain, **dict.fromkeys(sorted(proxies), _SET)}


def is_compared(name: str) -> bool:
    """Return whether a variable should be equal on all nodes, as it affects communication."""
    return name.startswith(_COLLECTIVES)


def _collective_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables of NCCL and Gloo, cut to fit a small message."""
    names = sorted(name for name in environ if is_compared(name) and name not in _PLAIN)
    return {name: environ[name][:_LONGEST_VALUE] for name in names[:_MOST]}


ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


class VisibleDevices(Value):
    """How the user's selection of GPUs is passed on."""

    chosen: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    note: str = ""
    """What is changed and why, or ''."""

    def applied_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with the selection in the form that Ray and frameworks accept."""
        left = {name: text for name, text in environ.items() if name not in self.dropped}
        return {**left, **dict(self.chosen)}


def visible_devices(environ: Mapping[str, str], maker: str, ray: str | None) -> VisibleDevices:
    """Merge the selection of AMD GPUs into the variable that Ray sets for its actors."""
    rocr, hip, cuda = (environ.get(name) for name in (ROCR, HIP, CUDA))
    if maker == "nvidia" and rocr is not None:
        why = "it means nothing to NVIDIA GPUs, and verl refuses it beside CUDA_VISIBLE_DEVICES"
        return VisibleDevices(dropped=(ROCR,), note=f"{ROCR} is not passed on: {why}")
    chosen = _combined(rocr, cuda if hip is None else hip)
    if not _assigns_by_hip(maker, ray) or chosen is None:
        return VisibleDevices()
    others = {ROCR: rocr, CUDA: cuda if hip in {None, cuda} else None}
    dropped = tuple(name for name, text in others.items() if text is not None)
    if not dropped:
        return VisibleDevices()
    why = "Ray gives AMD GPUs to its actors by it alone, and refuses or contradicts the others"
    note = f"{HIP}={chosen} stands for {' and '.join(dropped)}, not passed on: {why}"
    return VisibleDevices(((HIP, chosen),), dropped, note)


def contradiction(environ: Mapping[str, str], maker: str, ray: str | None) -> str:
    """Return which selections of GPUs contradict each other, or ''."""
    rocr, hip, cuda = (environ.get(name) for name in (ROCR, HIP, CUDA))
    if not _assigns_by_hip(maker, ray):
        return ""
    if hip is not None and cuda is not None and hip != cuda:
        return f"{HIP}={hip} and {CUDA}={cuda} differ"
    name, within = (CUDA, cuda) if hip is None else (HIP, hip)
    if rocr is not None and _combined(rocr, within) is None:
        return f"{name}={within} counts in {ROCR}={rocr}, which has no such place"
    return ""


def _assigns_by_hip(maker: str, ray: str | None) -> bool:
    return maker == "amd" and ray is not None and version(ray) >= FIRST_WITH_HIP


def _combined(rocr: str | None, within: str | None) -> str | None:
    """Combine two selections into one list, or return None; equal ones count as one."""
    if rocr is None or within is None or rocr == within:
        return within if rocr is None else rocr
    first, second = ([x.strip() for x in text.split(",")] for text in (rocr, within))
    if not all(x.isdigit() and int(x) < len(first) for x in second):
        return None
    return ",".join(first[int(x)] for x in second)
