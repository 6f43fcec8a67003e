"""Checks of GPUs: does the driver let us in, does it know them all, are they sound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks.finding import Finding, Level

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.resolve import Topology

_CHOICE = "CUDA_VISIBLE_DEVICES"
_NONE = {"", "-1", "none", "NoDevFiles", "void"}
_AGAIN = "Restart the pod or the container (`docker restart`); if it comes back, change the machine"


def driver_lets_in(facts: Facts, settings: Settings, _topology: Topology) -> Finding:
    """A container that lost its GPUs says 'Failed to initialize NVML: Unknown Error'."""
    if not facts.gpu_fault:
        return Finding("GPU driver", Level.OK, "lets us in" if facts.gpus else "no GPUs here")
    level = Level.OK if settings.num_gpus == 0 else Level.FAIL
    what = f"{facts.gpus} GPUs are here, and their driver lets nobody in ({facts.gpu_fault})"
    return Finding("GPU driver", level, what, _AGAIN if level is Level.FAIL else "")


def chosen_gpus(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """CUDA hides all GPUs from the first one on that it does not find."""
    asked = facts.variables.get(_CHOICE)
    if asked is None or facts.gpu_maker != "nvidia":
        return Finding("chosen GPUs", Level.OK, "all of them")
    chosen = [word.strip() for word in asked.split(",")]
    missing = [word for word in chosen if word.isdigit() and int(word) >= facts.gpus]
    if asked.strip() in _NONE:
        what = f"{_CHOICE}={asked!r} hides all {facts.gpus} GPUs"
    elif missing:
        what = f"{_CHOICE}={asked} names GPU {', '.join(missing)}, of {facts.gpus} from 0 on"
    else:
        return Finding("chosen GPUs", Level.OK, f"{_CHOICE}={asked}")
    return Finding("chosen GPUs", Level.WARN, what, f"Unset {_CHOICE}, or correct it")


def driver_knows_them(facts: Facts, _settings: Settings, _topology: Topology) -> Finding:
    """What the driver itself says: how many there are, and what broke."""
    driver = facts.driver
    if driver is None:
        told = "not asked here; `doctor` does" if facts.gpus else "no GPUs here"
        return Finding("GPU health", Level.OK, told)
    broken = [
        f"GPU {gpu.index} has {gpu.errors} memory errors" for gpu in driver.gpus if gpu.errors
    ]
    broken += [f"the kernel's log has {event!r}" for event in driver.events[-2:]]
    if driver.fault:
        what = f"{driver.tool}: {driver.fault}"
        return Finding("GPU health", Level.FAIL if facts.gpus else Level.WARN, what, _AGAIN)
    if len(driver.gpus) != facts.gpus:
        what = (
            f"{driver.tool} knows {len(driver.gpus)}, of {facts.gpus} whose device files are here"
        )
        return Finding("GPU health", Level.WARN, what, _AGAIN)
    if broken:
        return Finding("GPU health", Level.WARN, "; ".join(broken), "Change the machine")
    names = ", ".join(dict.fromkeys(_told(gpu.name, gpu.memory) for gpu in driver.gpus))
    return Finding("GPU health", Level.OK, f"{len(driver.gpus)} x {names}")


def _told(name: str, memory: int) -> str:
    return f"{name} ({memory} MiB)" if memory else name
