"""The constraint table: the bytes of a parameter, by layout and by phase.

A layout is a way to keep models. In each phase a parameter takes bytes of its shard, which the GPUs
divide, and bytes that each GPU has of its own part: of the whole model with ZeRO-2, of its layers
with Megatron. Adam in mixed precision has 16 to 18 bytes in all: weights and gradients, and a
float32 copy with two moments.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from agent.base.value import Value
from agent.frameworks.recipe import WEIGHT


class Split(NamedTuple):
    """A figure of what the GPUs shard, and of what each of them has of its own part."""

    shard: float = 0.0
    own: float = 0.0

    def times(self, other: Split) -> float:
        """Return bytes by parameters, or parameters by bytes."""
        return self.shard * other.shard + self.own * other.own


class Layout(Value):
    """A way to keep models: the bytes of a parameter in each phase."""

    name: str
    busy: Split = Split()  # On the GPUs, of the model that is trained at the moment
    idle: Split = Split()  # Of another trained model meanwhile
    asleep: Split = Split()  # Of each trained model while engines generate
    frozen: Split = Split()  # Of a model that is not trained, always
    scoring: Split = Split()  # Of a reference from the nodes' memory, while it works
    host: Split = Split()  # In the memory of the nodes, of each trained model
    saving: Split = Split()  # In that memory, of the model that is saved, beside these
    untrained: float = 4.0  # Of a shard of which only adapters are trained (LoRA), at most
    on_cpu: float = 0.0  # The part of the optimizer that works on the CPUs
    loads_everywhere: bool = False  # Whether each process of a GPU loads a whole model
    copy: float | None = 0.0
    """Of a copy in each node that keeps the gathering of weights within nodes.

    0: the shards themselves stay within nodes, instead; None: no setting does so.
    """

    @property
    def is_whole(self) -> bool:
        """Return whether each GPU has whole models."""
        return self.frozen.own > 0

    def for_adapters(self) -> Layout:
        """Return the layout where only adapters (LoRA) are trained: the rest is weights."""

        def least(each: Split) -> Split:
            return Split(min(each.shard, self.untrained), min(each.own, WEIGHT))

        phases = ("busy", "idle", "asleep", "host", "saving")
        return replace(self, **{phase: least(getattr(self, phase)) for phase in phases})


# The rows: name, then the bytes in the order above. The first layout of a framework is the fastest,
# the later ones need less of the GPUs.

# FSDP has weights in float32, Adam, and gradients only while a model is trained. To save, verl
# copies the shards of FSDP 1 to the nodes' memory; offloaded weights are on the GPUs then.
VERL_RESIDENT = Layout("FSDP", Split(16), Split(12), Split(12), saving=Split(12))
_BETWEEN = "FSDP with offload between phases"
VERL_OFFLOAD = Layout(_BETWEEN, Split(16), host=Split(12), saving=Split(8))
VERL_CPU = Layout("FSDP2 with all states in CPU memory", host=Split(16), on_cpu=1.0)
VERL = (VERL_RESIDENT, VERL_OFFLOAD, VERL_CPU)

# Search-R1 and TRL have references and reward models in bf16 on the GPUs too.
FSDP_RESIDENT = Layout("FSDP", Split(16), Split(12), Split(12), Split(2), copy=None)
_OPTIMIZERS = "FSDP with optimizers in CPU memory between phases"
SEARCH_R1_OPTIMIZER = Layout(
    _OPTIMIZERS, Split(16), Split(4), Split(4), Split(2), host=Split(8), copy=None
)
SEARCH_R1_OFFLOAD = Layout(_BETWEEN, Split(16), host=Split(16), copy=None)
SEARCH_R1 = (FSDP_RESIDENT, SEARCH_R1_OPTIMIZER, SEARCH_R1_OFFLOAD)
TRL_OFFLOAD = replace(VERL_CPU, copy=None)
TRL = (FSDP_RESIDENT, TRL_OFFLOAD)

# Each GPU has the weights in bf16. TRL gathers whole weights to merge adapters for vLLM, and cannot
# do so where FSDP shards them. ZeRO-2 shards gradients and the optimizer.
_WHOLE = Split(own=2)
ADAPTERS = Layout(
    "a whole model on each GPU, with adapters",
    _WHOLE,
    _WHOLE,
    _WHOLE,
    _WHOLE,
    untrained=0,
    copy=None,
    loads_everywhere=True,
)
ZERO2 = replace(ADAPTERS, name="ZeRO-2", busy=Split(14, own=2))
ZERO2_SLEEP = replace(ZERO2, name="ZeRO-2 that sleeps", host=Split(14))

# ZeRO-3 shards everything, and can have a copy of the weights in each node. Between phases OpenRLHF
# moves all but the bf16 weights to the nodes' memory.
ZERO3 = Layout("ZeRO-3", Split(16), frozen=Split(2), untrained=2, copy=2)
ZERO3_SLEEP = replace(
    ZERO3, name="ZeRO-3 that sleeps", idle=Split(2), asleep=Split(2), host=Split(14)
)
ZERO3_OFFLOAD = replace(
    ZERO3,
    name="ZeRO-3 with the optimizer in CPU memory",
    busy=Split(4),
    idle=Split(4),
    asleep=Split(4),
    host=Split(12),
    on_cpu=1.0,
)
OPENRLHF = (ZERO3_SLEEP, ZERO3_OFFLOAD)
OPENRLHF_TRAIN = (ZERO2, ZERO3, ZERO3_OFFLOAD)

# With Megatron each GPU has the weights of its part in bf16, and gradients in float32. The
# optimizer (float32 weights and Adam) is sharded over the GPUs with the same part. A saved model
# passes through the nodes' memory.
_TRAINED = Split(12, own=6)
RESIDENT = Layout(
    "all on the GPUs",
    _TRAINED,
    _TRAINED,
    _TRAINED,
    scoring=_WHOLE,
    saving=Split(12, own=2),
    untrained=0,
    copy=None,
)
OFFLOAD = Layout(
    "offload between phases",
    _TRAINED,
    scoring=_WHOLE,
    host=Split(12, own=2),
    saving=_WHOLE,
    untrained=0,
    copy=None,
)


def with_cpu_optimizer(part: float) -> Layout:
    """Return the layout that offloads, with a part of the optimizer working on the CPUs.

    Its gradients are there too.
    """
    return replace(
        OFFLOAD,
        name="offload between phases, optimizer in CPU memory",
        busy=Split(12 * (1 - part), own=6),
        host=Split(12 + 4 * part, own=2),
        on_cpu=part,
    )


# slime's engines have other GPUs, so that nothing moves between phases.
SLIME_CPU = replace(
    RESIDENT,
    name="optimizer in CPU memory",
    busy=Split(own=6),
    idle=Split(own=6),
    asleep=Split(own=6),
    host=Split(16),
    saving=Split(own=2),
    on_cpu=1.0,
)
SLIME = (RESIDENT, SLIME_CPU)
CPU_OPTIMIZER = with_cpu_optimizer(1.0)
MEGATRON = (RESIDENT, OFFLOAD, CPU_OPTIMIZER)
MEGATRON_ADAPTERS = (RESIDENT, OFFLOAD)
"""The same where only adapters (LoRA) are trained: their optimizer is small."""

# prime-rl moves Adam's states to the GPUs for each update, when no text is at work. In full offload
# weights and gradients on the GPUs are in bf16.
PRIME_RL_OFFLOAD = Layout(
    "FSDP with Adam's states in CPU memory between updates",
    Split(16),
    host=Split(8),
    copy=None,
)
PRIME_RL_CPU = Layout(
    "FSDP with the optimizer in CPU memory", Split(4), host=Split(16), on_cpu=1.0, copy=None
)
PRIME_RL = (PRIME_RL_OFFLOAD, PRIME_RL_CPU)
