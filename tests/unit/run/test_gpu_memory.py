"""The GPUs of a node between attempts: what holds their memory is named and waited for."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.node.figures import GpuFigures
from agent.run import gpu_memory
from agent.run.gpu_memory import GpuMemory, held_gpus, visible_gpus, what_to_end
from agent.run.node_figures import Source
from support.worlds import MACHINE, plan_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


pytestmark = pytest.mark.anyio
FREE = GpuFigures(0, memory_used=500, memory_total=80_000)
IN_USE = "GPU 0 has 70.0 of 78 GiB in use"
HOLDER = "python3, pid 4711"
HELD = replace(FREE, memory_used=71_680)


@pytest.mark.parametrize(
    ("gpu", "at_start", "visible", "is_held"),
    [
        (FREE, {}, None, False),
        (HELD, {}, None, True),
        (HELD, {0: 71_500}, None, False),  # as at the start
        (HELD, {0: 60_000}, None, True),
        (HELD, {}, frozenset({1}), False),  # of somebody else
        (HELD, {}, frozenset({0}), True),
        (replace(HELD, memory_used=None), {}, None, False),
        (replace(HELD, memory_total=None), {}, None, False),
    ],
)
def test_which_gpus_are_held(
    gpu: GpuFigures, at_start: dict[int, int], visible: frozenset[int] | None, *, is_held: bool
) -> None:
    """One that held as much at the start, or is not ours, is none."""
    assert bool(held_gpus([gpu], at_start, visible)) == is_held


def test_visible_gpus() -> None:
    """Those named by an id cannot be compared: none is looked at."""
    assert visible_gpus({}) is None
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2, 3"}) == frozenset({2, 3})
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-8a2"}) == frozenset()


class Node:
    """The GPU memory of a node, one reading after the other; the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *gpus: GpuFigures, **environ: str) -> None:
        self.said: list[str] = []
        self.readings = 0
        readings = itertools.chain(gpus, itertools.repeat(gpus[-1]))

        def read() -> tuple[tuple[GpuFigures, ...], str]:
            self.readings += 1
            return (next(readings),), ""

        def holders() -> Mapping[int, Sequence[str]]:
            return {0: [HOLDER]}

        monkeypatch.setattr(
            gpu_memory, "say", lambda sentence, level="": self.said.append(f"{level} {sentence}")
        )
        plan = plan_of({"RAY_WORKER": "0", **environ}, replace(MACHINE, gpus=1), command=["train"])
        self.memory = GpuMemory(plan, Source(read), Source(holders))


async def test_memory_of_a_dead_process_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named once, with who holds it."""
    node = Node(monkeypatch, FREE, HELD, HELD, FREE)
    await node.memory.look_at_start()
    assert node.said == []
    await node.memory.await_free()
    assert node.said == [f"warning waiting for GPU memory: {IN_USE} ({HOLDER})"]
    assert node.readings == 4


async def test_a_foreign_process_does_not_hold_the_run_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait has a deadline, and what was there at the start is not waited for."""
    node = Node(monkeypatch, FREE, HELD)
    await node.memory.look_at_start()
    await node.memory.await_free(0.2)
    assert node.said[-1] == (
        f"warning GPU memory is still in use after 0.2 s: {IN_USE} ({HOLDER}). "
        "Starting the attempt anyway; it may run out of memory"
    )
    there = Node(monkeypatch, HELD)
    await there.memory.look_at_start()
    await there.memory.await_free(0.2)
    remedy = "end that process, or the job may run out of memory"
    assert there.said == [f"warning {IN_USE} before the job ({HOLDER}): {remedy}"]


def test_what_would_free_it() -> None:
    """Only a process that is known can be ended."""
    assert what_to_end([HELD], {}) == "free that memory"
    assert what_to_end([HELD], {0: ["a, pid 1", "b, pid 2"]}) == "end these processes"


@pytest.mark.parametrize("reward", ["builtin", "serve --gpu"])
async def test_a_service_may_hold_memory(monkeypatch: pytest.MonkeyPatch, reward: str) -> None:
    """Nothing is waited for where a service of the user's may use a GPU."""
    node = Node(monkeypatch, HELD, AGENT_REWARD=reward)
    await node.memory.await_free(0.2)
    assert bool(node.said) == (reward == "builtin")


async def test_a_node_without_gpus_waits_for_nothing() -> None:
    """Nothing is read there."""
    plan = plan_of({"RAY_WORKER": "0"}, command=["train"])
    memory = GpuMemory(plan, None, Source(lambda: pytest.fail("no GPU")))
    await memory.look_at_start()
    await memory.await_free()
