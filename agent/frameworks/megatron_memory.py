"""Megatron: how a model is divided over GPUs, and what each of them keeps.

A layer's matrices are divided by tensor parallel, the layers by pipeline parallel, a long text by
context parallel, and the experts of a layer by expert parallel; what remains of the GPUs trains on
other data. `layouts` has what each GPU keeps of its part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import field

from agent.base.value import Value
from agent.frameworks.layouts import RESIDENT, Split
from agent.frameworks.recipe import LOGIT, WEIGHT, MisfitError, count_of
from agent.frameworks.sizing import Fit, Workload, divisors, gb

if TYPE_CHECKING:
    from agent.frameworks.recipe import ModelShape

_SURE_TOKENS = 8192  # Up to so many a text is not divided, unless the user wants that
_UNEVEN = 2  # Times the mean of tokens that an expert may get

TENSOR = "tensor_model_parallel_size"
PIPELINE = "pipeline_model_parallel_size"
CONTEXT = "context_parallel_size"
EXPERT = "expert_model_parallel_size"
EXPERT_TENSOR = "expert_tensor_parallel_size"


class Parallelism(Value):
    """How many GPUs divide what; the rest of them, `data`, train on other data."""

    world: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    last: int = 0  # The layers of the last stage; 0 if they follow from the others

    @property
    def data(self) -> int:
        """Return how many copies of the model without its experts there are."""
        return self.world // (self.tensor * self.pipeline * self.context)

    @property
    def expert_data(self) -> int:
        """Return how many copies of the experts there are."""
        return self.world // (self.expert_tensor * self.expert * self.pipeline)

    @property
    def one_model(self) -> int:
        """Return the GPUs of one copy."""
        return self.tensor * self.pipeline * self.context

    @property
    def one_expert(self) -> int:
        """Return the GPUs over which a layer's experts are divided."""
        return self.expert * self.expert_tensor

    def sizes(self) -> dict[str, int]:
        """Return Megatron's settings with their values."""
        return {
            TENSOR: self.tensor,
            PIPELINE: self.pipeline,
            CONTEXT: self.context,
            EXPERT: self.expert,
            EXPERT_TENSOR: self.expert_tensor,
        }

    def text(self, model: ModelShape | None = None) -> str:
        """Return the arithmetic: 32 GPUs = TP 2 × PP 4 × DP 4."""
        context = f"CP {self.context} × " if self.context > 1 else ""
        text = f"TP {self.tensor} × PP {self.pipeline} × {context}DP {self.data}"
        if model is not None and model.experts:
            tensor = f"ETP {self.expert_tensor} × " if self.expert_tensor > 1 else ""
            text += f" = {tensor}EP {self.expert} × PP {self.pipeline} × {self.expert_data}"
        return f"{count_of(self.world, 'GPU')} = {text}"


class Stages(Value):
    """The layers of the first, of a middle, and of the last stage of a pipeline."""

    first: int
    middle: int
    last: int

    @property
    def even(self) -> bool:
        """Return whether all stages have the same number."""
        return self.first == self.middle == self.last

    @property
    def most(self) -> int:
        """Return the layers of the largest stage."""
        return max(self.first, self.middle, self.last)


def stages_of(layers: int, pipeline: int, last: int = 0) -> Stages | None:
    """Divide layers over the stages of a pipeline; None if a stage would have none.

    Megatron wants as many in all stages, except for the first and the last one. `last` fixes the
    layers of the last one.
    """
    if last and pipeline > 1:
        each = (layers - last) // (pipeline - 1)
        is_whole = each > 0 and each * (pipeline - 1) + last == layers
        return Stages(each, each, last) if is_whole else None
    if layers % pipeline == 0:
        each = layers // pipeline
        return Stages(each, each, each) if each else None
    middle = -(-layers // pipeline)
    rest = layers - (pipeline - 2) * middle
    if rest < 2:
        return None
    return Stages(rest - rest // 2, middle, rest // 2)


class MegatronFit(Fit, kw_only=True):
    """A GPU with its part of the models, divided as Megatron does, and of an engine."""

    parallel: Parallelism

    @property
    def stages(self) -> Stages:
        """Return the layers of the stages."""
        stages = stages_of(self.model.layers, self.parallel.pipeline, self.parallel.last)
        return stages or Stages(self.model.layers, self.model.layers, self.model.layers)

    @property
    def parameters(self) -> Split:
        """Return the parameters whose optimizer a GPU has, and those on it, where they are most."""
        model = self.model
        parallel = self.parallel
        stage = self.stages.most / model.layers

        # The first stage has the embedding of the input, the last one that of the output.
        embedding = model.vocabulary * model.hidden
        copies = 1 if model.tied else 2
        rest = max(0, model.parameters - model.in_experts - copies * embedding)
        here = copies if parallel.pipeline == 1 else 1
        outside = (rest * stage + here * embedding) / parallel.tensor

        # Experts are divided in their own way.
        experts = model.in_experts * stage / parallel.one_expert
        shard = outside / (parallel.data * parallel.context) + experts / parallel.expert_data
        return Split(shard, own=outside + experts)

    @property
    def loaded(self) -> float:
        """Return the parameters that a node has in its memory when it loads a model."""
        return self.gpus_of_a_node * self.parameters.own

    @property
    def gathered(self) -> float:
        """Return 0: no weights are gathered."""
        return 0.0

    @property
    def crosses(self) -> bool:
        """Return False: between nodes are gradients, and values between layers."""
        return False

    @property
    def adapter_shards(self) -> int:
        """Return over how many GPUs adapters are divided at least: as their layers are."""
        return self.parallel.tensor * self.parallel.pipeline

    @property
    def parts(self) -> int:
        """Return over how many GPUs the tokens of a sample are divided."""
        return self.parallel.context

    @property
    def token(self) -> float:
        """Return the bytes of a token in a training step, with full recomputation.

        A stage keeps the inputs of its layers for each micro batch under way: the first stage for
        as many as there are stages. The last one has the logits besides.
        """
        inputs = WEIGHT * self.model.hidden * self.stages.most
        first = inputs * self.parallel.pipeline + self._layer
        last = inputs + self._layer + LOGIT * self.model.vocabulary
        return max(first, last) / self.parallel.tensor

    @property
    def token_forward(self) -> float:
        """Return the same in a forward pass, which keeps no inputs."""
        return (self._layer + LOGIT * self.model.vocabulary) / self.parallel.tensor

    @property
    def _layer(self) -> float:
        """Return the bytes of a token in the layer that is at work."""
        uneven = _UNEVEN if self.model.experts else 1
        return WEIGHT * (12 * self.model.hidden + 4 * uneven * self.model.wide)

    @property
    def states_text(self) -> str:
        """Return the arithmetic of a training step: the part of a GPU, and its optimizer."""
        busy = self.layout.busy
        optimizer = self.parameters.shard
        here = f"{self.parameters.own / 1e9:.3g} B of {self.model.billions} on a GPU"
        text = f"{self.parallel.text(self.model)}; {here} × {busy.own} bytes"
        if self.load.adapters:
            text += f" + adapters of rank {self.load.rank} {gb(self.adapters)}"
        elif busy.shard:
            off_gpu = self.layout.on_cpu
            part = f" × {1 - off_gpu:g}" if off_gpu else ""
            each = busy.shard / (1 - off_gpu)
            text += f" + optimizer {optimizer / 1e9:.3g} B × {each:g} bytes{part}"
        text += f" = {gb(busy.times(self.parameters) + self.adapters)}"
        if self.load.trained > 1 and self.layout.idle.own:
            text += f" for each of {self.load.trained} models"
        return text


class Fixed(Value):
    """The sizes that the user's arguments, or the checkpoints, fix."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    one_stage: bool = False  # Whether a pipeline would divide layers whose number is not known

    def allows(self, parallel: Parallelism) -> bool:
        """Return whether a division has these sizes."""
        divided = parallel.sizes()
        if self.one_stage and parallel.pipeline > 1 and PIPELINE not in self.sizes:
            return False
        return all(divided[name] == size for name, size in self.sizes.items())

    def ways(self, load: Workload, model: ModelShape) -> Iterator[Fit]:
        """Yield the ways to divide a model, the fastest first: see `Workload.ways`.

        A model that stays on the GPUs is divided within a node only; a larger one is offloaded
        instead, since more parts wait for each other more often.
        """
        parallels = self.parallelisms(load, model)
        for layout in load.layouts:
            for parallel in parallels:
                is_large = max(parallel.one_model, parallel.one_expert) > load.gpus
                if layout.name == RESIDENT.name and is_large and not self.sizes:
                    continue
                yield MegatronFit(load, model, layout, parallel=parallel)

    def parallelisms(self, load: Workload, model: ModelShape) -> list[Parallelism]:
        """Return the ways to divide a model over the GPUs, the fewest parts first."""
        world = sum(node.gpus for node in load.nodes)
        is_long = load.tokens > _SURE_TOKENS or CONTEXT in self.sizes
        allowed = [
            parallel
            for parallel in _parallelisms(world, load.gpus, model, self.sizes)
            if self.allows(parallel) and (is_long or parallel.context == 1)
        ]
        if not allowed:
            wanted = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
            what = f"{wanted or 'Megatron'}: no division of {count_of(world, 'GPU')} has that"
            raise MisfitError(f"{what} with {_facts(model)}")
        return sorted(allowed, key=lambda parallel: _order(parallel, load.gpus))


def _order(parallel: Parallelism, gpus: int) -> tuple[float, ...]:
    """Return the place of a division: few parts, and no experts on other nodes.

    Each token visits its experts: on as many nodes as they are divided over.
    """
    nodes = max(1.0, parallel.one_expert / gpus)
    return (
        parallel.one_model * nodes,
        nodes,
        parallel.context,
        parallel.pipeline,
        -parallel.expert,
    )


def _parallelisms(
    world: int, gpus: int, model: ModelShape, sizes: Mapping[str, int]
) -> Iterator[Parallelism]:
    """Yield what Megatron accepts: whole heads, layers and experts on each GPU.

    Tensor parallel stays within a node, since it exchanges data in each layer.
    """
    heads = model.heads or gpus
    for tensor in divisors(gpus):
        if heads % tensor or model.kv_heads % tensor:
            continue

        # The layers over stages, a long text over the GPUs of a node at most.
        for pipeline in divisors(world // tensor):
            if stages_of(model.layers, pipeline) is None:
                continue
            for context in divisors(world // (tensor * pipeline)):
                if context > gpus:
                    break

                # The experts divide the same GPUs in their own way.
                for expert in _expert_sizes(world // pipeline, gpus, model, sizes):
                    rest = world // (pipeline * expert)
                    for expert_tensor in _expert_tensors(rest, sizes):
                        yield Parallelism(
                            world=world,
                            tensor=tensor,
                            pipeline=pipeline,
                            context=context,
                            expert=expert,
                            expert_tensor=expert_tensor,
                        )


def _expert_sizes(world: int, gpus: int, model: ModelShape, sizes: Mapping[str, int]) -> list[int]:
    """Return by how many GPUs the experts of a layer may be divided.

    Within a node as many as possible, since it costs little there; else more.
    """
    fitting = [size for size in divisors(world) if (model.experts or 1) % size == 0]
    if EXPERT in sizes:
        return [size for size in fitting if size == sizes[EXPERT]]
    inside = max(size for size in fitting if size <= gpus)
    return [size for size in fitting if size >= inside]


def _expert_tensors(world: int, sizes: Mapping[str, int]) -> list[int]:
    """Return by how many GPUs an expert is divided: it is small, so by none but the user's."""
    size = sizes.get(EXPERT_TENSOR, 1)
    return [size] if world % size == 0 else []


def _facts(model: ModelShape) -> str:
    """Return the numbers of a model that limit how it is divided."""
    heads = f"{model.heads or 'unknown'} heads ({model.kv_heads} of keys and values)"
    experts = f", {model.experts} experts" if model.experts else ""
    return f"{heads}, {model.layers} layers{experts}"
