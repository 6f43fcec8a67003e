"""What `doctor` found on this machine, in a few words each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agent.base.text import listed
from agent.node.facts import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.node.facts import Facts

_GIB = 1 << 30


def found_on(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield what a machine has: GPUs, driver, RDMA, Ray, framework, libraries, memory, disk."""
    yield "GPUs", _gpus(facts)
    if facts.driver is not None and facts.driver.version:
        yield "driver", facts.driver.version
    if facts.rdma:
        yield "RDMA", listed(device.sentence() for device in facts.rdma)
    ray = facts.ray.version
    yield "Ray", f"{ray} on Python {facts.ray.python}" if ray else "none"
    framework = facts.framework
    if framework is not None and framework.folder:
        yield framework.name, framework.version or framework.folder
    libraries = ", ".join(f"{name} {version}" for name, version in facts.ray.libraries.items())
    if libraries:
        yield "libraries", libraries
    yield "CPUs", str(facts.cpus)
    yield "memory", f"{facts.memory / _GIB:.0f} GiB"
    yield facts.temp, f"{facts.temp_free / _GIB:.0f} GiB free"


def _gpus(facts: Facts) -> str:
    driver = facts.driver
    if driver is None or not driver.gpus:
        models = ", ".join(facts.node_versions.gpu_models)
        return f"{facts.gpus} x {models}" if facts.gpus and models else str(facts.gpus or "none")
    kinds = Counter(
        f"{gpu.name} {gpu.memory * MIB / _GIB:.0f} GiB" if gpu.memory else gpu.name
        for gpu in driver.gpus
    )
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
