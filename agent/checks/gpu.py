"""Checks of GPUs: driver access, health, and Ray's count of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.text import listed
from agent.base.value import dataclass
from agent.checks.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.topology.resolve import Topology


_VARIABLE = "CUDA_VISIBLE_DEVICES"
_NONE = {"", "-1", "none", "NoDevFiles", "void"}
_RESTART = (
    "Restart the pod or the container (`docker restart`); if it comes back, change the machine"
)


def driver_access(facts: Facts, settings: Settings, _topology: Topology) -> Finding:
    """A container that lost its GPUs says 'Failed to initialize NVML: Unknown Error'."""
    if not facts.gpu_fault:
        return Finding("GPU driver", Level.OK, "accessible" if facts.gpus else "no GPUs here")
    level = Level.OK if settings.num_gpus == 0 else Level.FAIL
    what = f"{facts.gpus} GPUs are present, but their driver refuses access ({facts.gpu_fault})"
    return Finding("GPU driver", level, what, _RESTART if level is Level.FAIL else "")


def chosen_gpus(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """CUDA hides every GPU after the first number that it does not find."""
    asked = facts.variables.get(_VARIABLE)
    if asked is None or facts.gpu_maker != "nvidia":
        return Finding("chosen GPUs", Level.OK, "all of them")
    chosen = [word.strip() for word in asked.split(",")]
    missing = [word for word in chosen if word.isdigit() and int(word) >= facts.gpus]
    if asked.strip() in _NONE:
        what = f"{_VARIABLE}={asked!r} hides all {facts.gpus} GPUs"
    elif missing:
        what = f"{_VARIABLE}={asked} names GPU {', '.join(missing)}, of {facts.gpus} from 0 on"
    else:
        return Finding("chosen GPUs", Level.OK, f"{_VARIABLE}={asked}")
    return Finding("chosen GPUs", Level.WARN, what, f"Unset {_VARIABLE}, or correct it")


def gpu_health(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """The driver may report fewer GPUs than have device files, or memory errors."""
    driver = facts.driver
    if driver is None:
        why = "not queried here; `doctor` queries it" if facts.gpus else "no GPUs here"
        return Finding("GPU health", Level.OK, why)
    broken = [
        f"GPU {gpu.index} has {gpu.errors} memory errors" for gpu in driver.gpus if gpu.errors
    ]
    broken += [f"the kernel's log has {event!r}" for event in driver.events[-2:]]
    if driver.fault:
        what = f"{driver.tool}: {driver.fault}"
        return Finding("GPU health", Level.FAIL if facts.gpus else Level.WARN, what, _RESTART)
    if len(driver.gpus) != facts.gpus:
        what = (
            f"{driver.tool} reports {len(driver.gpus)} of the {facts.gpus} GPUs with device files"
        )
        return Finding("GPU health", Level.WARN, what, _RESTART)
    if broken:
        return Finding("GPU health", Level.WARN, "; ".join(broken), "Change the machine")
    names = ", ".join(dict.fromkeys(_model(gpu.name, gpu.memory) for gpu in driver.gpus))
    return Finding("GPU health", Level.OK, f"{len(driver.gpus)} x {names}")


def _model(name: str, memory: int) -> str:
    return f"{name} ({memory} MiB)" if memory else name


CHECK = "Ray's GPUs"
_MOST_NAMED = 4
_REMEDY = (
    "Run `pod-agent doctor` there, which queries the driver; or set AGENT_NUM_GPUS to the number "
    "of GPUs for Ray on each node (0: none)"
)


@dataclass(frozen=True)
class GpuCount:
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
    more = len(names) - _MOST_NAMED
    where = listed(names if more <= 0 else [*names[:_MOST_NAMED], f"{more} more"])
    level = Level.WARN if ray else Level.FAIL
    return Finding(CHECK, level, f"Ray counts {ray or 'none'} of the {here} on {where}", _REMEDY)
