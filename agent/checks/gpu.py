"""Checks of GPUs: number, driver access, selection, health, and Ray's count of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.text import first_names
from agent.base.value import Value
from agent.checks.finding import Finding, Level, fail, ok, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.checks.finding import CheckedNode, Result


_VARIABLE = "CUDA_VISIBLE_DEVICES"
_NONE = {"", "-1", "none", "NoDevFiles", "void"}
_RESTART = (
    "Restart the pod or the container (`docker restart`); if it comes back, change the machine"
)


def gpus(node: CheckedNode) -> Result:
    """A container that lost its GPUs looks healthy, but the job waits for them forever."""
    count, promised = node.facts.gpus, node.topology.platform.gpus_per_node
    if node.settings.num_gpus is not None or not promised or count >= promised:
        return ok(f"{count} found")
    return warn(
        f"{count} found, {promised} promised by {node.topology.platform.name}",
        "Restart the pod; set AGENT_NUM_GPUS if this is the intended number",
    )


def driver_access(node: CheckedNode) -> Result:
    """A container that lost its GPUs reports 'Failed to initialize NVML: Unknown Error'."""
    count, fault = node.facts.gpus, node.facts.gpu_fault
    if not fault:
        return ok("accessible" if count else "no GPUs here")
    what = f"{count} GPUs are present, but their driver refuses access ({fault})"
    return ok(what) if node.settings.num_gpus == 0 else fail(what, _RESTART)


def visible_devices(node: CheckedNode) -> Result:
    """Ray, verl and vLLM exit on two different selections of AMD GPUs."""
    if not node.facts.gpu_contradiction:
        return ok("one selection, or all of them")
    return fail(
        node.facts.gpu_contradiction,
        "Select AMD GPUs by HIP_VISIBLE_DEVICES alone: unset ROCR_VISIBLE_DEVICES and "
        "CUDA_VISIBLE_DEVICES",
    )


def chosen_gpus(node: CheckedNode) -> Result:
    """CUDA hides every GPU after the first number that it does not find."""
    facts, value = node.facts, node.facts.variables.get(_VARIABLE)
    if value is None or facts.gpu_maker != "nvidia":
        return ok("all of them")
    numbers = [word.strip() for word in value.split(",")]
    missing = [word for word in numbers if word.isdigit() and int(word) >= facts.gpus]
    if value.strip() in _NONE:
        what = f"{_VARIABLE}={value!r} hides all {facts.gpus} GPUs"
    elif missing:
        what = f"{_VARIABLE}={value} names GPU {', '.join(missing)}, of {facts.gpus} from 0 on"
    else:
        return ok(f"{_VARIABLE}={value}")
    return warn(what, f"Unset {_VARIABLE}, or correct it")


def gpu_health(node: CheckedNode) -> Result:
    """The driver may report fewer GPUs than have device files, or memory errors."""
    driver, count = node.facts.driver, node.facts.gpus
    if driver is None:
        return ok("not queried here; `doctor` queries it" if count else "no GPUs here")
    if driver.fault:
        level = fail if count else warn
        return level(f"{driver.tool}: {driver.fault}", _RESTART)
    found = driver.gpus
    if len(found) != count:
        what = f"{driver.tool} reports {len(found)} of the {count} GPUs with device files"
        return warn(what, _RESTART)
    broken = [f"GPU {gpu.index} has {gpu.errors} memory errors" for gpu in found if gpu.errors]
    if broken:
        return warn("; ".join(broken), "Change the machine")
    models = (f"{gpu.name} ({gpu.memory} MiB)" if gpu.memory else gpu.name for gpu in found)
    return ok(f"{len(found)} x {', '.join(dict.fromkeys(models))}")


CHECK = "Ray's GPUs"
_REMEDY = (
    "Run `pod-agent doctor` there, which queries the driver; or set AGENT_NUM_GPUS to the number "
    "of GPUs for Ray on each node (0: none)"
)


class GpuCount(Value):
    """The GPUs of a node."""

    node: str
    present: int
    """Those with device files that its environment does not hide, or AGENT_NUM_GPUS."""
    ray: int
    """Those that Ray counts."""


def gpus_missing_in_ray(nodes: Sequence[GpuCount]) -> tuple[Finding, ...]:
    """Find nodes where Ray counts fewer GPUs than are present; none at all is a failure."""
    groups: dict[tuple[int, int], list[str]] = {}
    for one in nodes:
        if one.ray < one.present:
            groups.setdefault((one.ray, one.present), []).append(one.node)
    return tuple(_finding(ray, here, names) for (ray, here), names in sorted(groups.items()))


def _finding(ray: int, here: int, names: list[str]) -> Finding:
    what = f"Ray counts {ray or 'none'} of the {here} on {first_names(names)}"
    return Finding(CHECK, Level.WARN if ray else Level.FAIL, what, _REMEDY)
