"""The divisions that verl publishes for large models: where Megatron's sizes start.

verl tuned and ran them. The search of `megatron_memory` knows memory only, and would trade a tenth
of a GPU for experts on other nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.frameworks.layouts import OFFLOAD, with_cpu_optimizer
from agent.frameworks.megatron_memory import (
    MegatronFit,
    Parallelism,
    stages_of,
)
from agent.frameworks.recipe import CONFIG, MisfitError, count_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.frameworks.recipe import ModelShape
    from agent.frameworks.sizing import Fit, Workload

_PARTS = (0.0, 0.5, 1.0)  # Of the optimizer, in CPU memory
_LIKE = 0.04  # A model's parameters differ from a published one's by this part at most


class Published(Value):
    """How verl divides a model over so many GPUs, or more up to the next row of that model."""

    model: str
    billions: float
    gpus: int
    memory: int  # GB of each of them
    tensor: int
    pipeline: int
    expert: int
    context: int = 1
    last: int = 0  # The layers of the last stage; 0: as Megatron's search divides them
    layers: int = 0  # Of the model; 0 where its `config.json` must say it
    on_cpu: float = 0.0  # The part of the optimizer that stays and works in CPU memory
    images: bool = False

    def parallel(self, world: int) -> Parallelism | None:
        """Return the division of so many GPUs, or None if they are no whole copies of it."""
        experts_apart = world // self.pipeline
        if world % (self.tensor * self.pipeline * self.context) or experts_apart % self.expert:
            return None
        return Parallelism(
            world=world,
            tensor=self.tensor,
            pipeline=self.pipeline,
            context=self.context,
            expert=self.expert,
            last=self.last,
        )

    def ways(self, load: Workload, model: ModelShape) -> Iterator[Fit]:
        """Yield this division with its part of the optimizer on the CPUs, then with more of it."""
        parallel = self.parallel(sum(node.gpus for node in load.nodes))
        if parallel is None:
            return
        for part in _PARTS:
            # On smaller GPUs less of the optimizer stays there than verl publishes, if any does.
            is_less = load.memory < self.memory and part == self.on_cpu < _PARTS[-1]
            if part < self.on_cpu or is_less:
                continue
            layout = with_cpu_optimizer(part) if part else OFFLOAD
            yield MegatronFit(load, model, layout, parallel=parallel)

    @property
    def text(self) -> str:
        """Return it for a message: TP 4 × PP 8 × EP 4."""
        context = f" × CP {self.context}" if self.context > 1 else ""
        return f"TP {self.tensor} × PP {self.pipeline}{context} × EP {self.expert}"


_DEEPSEEK = "DeepSeek-V3"
_235B = "Qwen3-235B-A22B"
_30B = "Qwen3-30B-A3B"
PUBLISHED = (
    # verl-project/verl, docs/perf/dpsk.md, v0.9.0
    Published(_30B, 30.5, 8, 80, tensor=1, pipeline=1, expert=8, on_cpu=1.0),
    Published(_235B, 235, 32, 96, tensor=4, pipeline=8, expert=4, on_cpu=1.0, layers=94),
    Published(_235B, 235, 64, 96, tensor=4, pipeline=8, expert=4, on_cpu=0.5, layers=94),
    Published(_235B, 235, 128, 96, tensor=4, pipeline=8, expert=4, layers=94),
    Published(
        _DEEPSEEK, 671, 96, 80, tensor=8, pipeline=12, expert=8, last=6, on_cpu=1.0, layers=61
    ),
    Published(
        _DEEPSEEK, 671, 128, 96, tensor=8, pipeline=16, expert=8, last=1, on_cpu=0.5, layers=61
    ),
    Published(_DEEPSEEK, 671, 256, 96, tensor=8, pipeline=16, expert=8, last=1, layers=61),
    Published(_DEEPSEEK, 671, 512, 96, tensor=1, pipeline=16, expert=32, last=1, layers=61),
    # verl-project/verl, examples/grpo_trainer/run_qwen3_vl_30b_a3b_megatron.sh, v0.9.0
    Published(
        "Qwen3-VL-30B-A3B",
        31.1,
        8,
        80,
        tensor=2,
        pipeline=1,
        context=2,
        expert=8,
        on_cpu=1.0,
        images=True,
    ),
    # verl-project/verl, examples/grpo_trainer/run_qwen3_vl_235b_a22b_megatron.sh, v0.9.0
    Published(
        "Qwen3-VL-235B-A22B",
        235,
        64,
        80,
        tensor=4,
        pipeline=8,
        context=2,
        expert=8,
        on_cpu=1.0,
        images=True,
    ),
    # verl-project/verl, examples/grpo_trainer/run_qwen3_5_35b_megatron.sh, v0.9.0
    Published(
        "Qwen3.5-35B-A3B", 34.7, 8, 80, tensor=2, pipeline=1, expert=8, on_cpu=1.0, images=True
    ),
    # verl-project/verl, examples/grpo_trainer/run_qwen3_5_122b_a10b_megatron.sh, v0.9.0
    Published(
        "Qwen3.5-122B-A10B", 122, 32, 96, tensor=2, pipeline=2, expert=8, on_cpu=1.0, images=True
    ),
)
"""By model, the fewest GPUs first."""
SOURCE = "docs/perf/dpsk.md and examples/grpo_trainer of verl 0.9"
TIMEOUTS = ((200e9, 7200), (100e9, 3600))
"""Seconds after which NCCL gives up, for models of so many parameters or more.

Source: verl-project/verl, examples/grpo_trainer/run_qwen3_235b_a22b_megatron.sh and
run_deepseek_v4_flash_megatron.sh, v0.9.0.
"""


def published_for(model: ModelShape, *, images: bool) -> list[Published]:
    """Return the rows of a model, the most GPUs first."""
    if not model.experts:
        return []
    billions = model.parameters / 1e9
    rows = [
        row
        for row in PUBLISHED
        if row.images == images and abs(billions / row.billions - 1) <= _LIKE
    ]
    return sorted(rows, key=lambda row: -row.gpus)


def start_for(
    rows: list[Published], load: Workload, model: ModelShape
) -> tuple[Published | None, str]:
    """Return the row from which to divide a model, or None and the reason to depart from all.

    Refuses GPUs with less memory in all than the least that verl publishes.
    """
    # Is there as much memory as the least that was ever run?
    least = min(rows, key=lambda row: row.gpus * row.memory)
    if all(node.gpu_memory for node in load.nodes):
        total = sum(node.gpus for node in load.nodes) * load.memory
        if total < least.gpus * least.memory:
            what = f"{least.model} on {load.text()}: no: verl publishes it from {least.gpus} GPUs "
            raise MisfitError(
                f"{what}of {least.memory} GB on ({SOURCE}): join more nodes, or try sizes of your "
                "own in AGENT_JOB_ARGS"
            )

    # Which row divides the GPUs that there are?
    world = sum(node.gpus for node in load.nodes)
    for row in rows:
        is_whole = row.gpus <= world and row.parallel(world) is not None
        is_known = model.source == CONFIG or row.layers or row.pipeline == 1
        if is_whole and is_known and stages_of(model.layers, row.pipeline, row.last) is not None:
            return row, ""
    layers = f"{model.layers} layers, by {model.source}, "
    return None, f"{layers}on {count_of(world, 'GPU')} are no whole copies of {least.text}"
