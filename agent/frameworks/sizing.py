"""Sizes by memory: what a model takes of GPUs and nodes, and which settings make it fit.

`layouts` has the bytes of a parameter, a `Fit` the parameters of one GPU and the sums of both; one
search tries the fits of every recipe, the fastest first. All figures are in bytes, per GPU or per
node. A setting that is chosen has its arithmetic as a sentence; a model that cannot fit is refused
with the smallest nodes that it would fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from math import ceil, gcd
from typing import TYPE_CHECKING

from msgspec import field
from msgspec.structs import replace

from agent.base.value import Value
from agent.frameworks.layouts import Layout, Split
from agent.frameworks.recipe import (
    CONFIG,
    LOGIT,
    SLOW_LINK,
    WEIGHT,
    MisfitError,
    ModelShape,
    NodeSize,
    count_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.frameworks.recipe import RecipeInput


GIB = 1 << 30
_USABLE = 0.97 * GIB
"""Bytes of each GB on a GPU's label: labels count GiB, and CUDA and NCCL take some."""
_TIGHT = 0.85  # The part of a GPU from which a layout is called tight
_LONGEST_TRANSFER = 7200.0  # Seconds between nodes that a step may take
_GATHERED_BYTES = 12
"""Bytes of a parameter that a step of FSDP sends between nodes at least, over a network.

Weights in bf16 for a forward and a backward pass and two scoring passes, and gradients in float32.
"""
_REDUCED_BYTES = 8  # The same where weights stay within nodes: gradients in float32, both ways
_COMFORT = 0.9  # The part of a GPU that an estimate may fill without a warning
_ASSUMED_MEMORY = 80
_ASSUMED_HOST = 128 * GIB  # Memory of a node for each of its GPUs, if it is not known
_HOST_PART = 0.85  # The part of a node's memory that a job may fill
_PROCESS = 2e9  # Memory of a node that a process of a GPU takes: torch and CUDA
_STAGED = 0.2  # The part of a model's weights that each process has in buffers besides
_MOST_OF_PROCESS = 5e9
_ENGINE_PART = 0.25  # The part of a GPU that an engine's weights take before they are divided
_NODE_PART = 0.85  # Of a GPU: engines whose weights take more of it span several nodes
_ENGINE_OVERHEAD = 1.5e9  # An engine's own: activations and CUDA graphs
_SEQUENCES = 16  # Sequences of full length that an engine holds at once, at least, if there is room
_SURE_TOKENS = 8192  # Longer sequences are rare, so that they do not decide whether a model fits
_MOST_TOKENS = 24_576  # Tokens of a micro batch beyond which it does not become faster
_ADAPTER = 16  # Bytes of a parameter of adapters: weight, gradient and Adam in float32
_LEAST_SHARE = 0.4  # Of each GPU for engines, if there is room: below it they hold few sequences
_MOST_SHARE = 0.95
_MOST_OF_ENGINE = 8  # GPUs of an engine on one node
_MOST_NODES = 64
_LEAST_TOKENS = 1024  # Shorter samples are no remedy
_FIELDS = ("layout", "tensor_parallel", "share", "tokens", "sequence")
_KEPT = "as in the checkpoints"
_HOST_SIZES = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Memory of common nodes, in GiB."""
_ENOUGH_HOST = 1 << 60  # More memory of a node than any model takes
_LABELS = (24, 32, 40, 48, 80, 96, 141, 192, 288)  # Memory of common GPUs, in GB


class Host(Value):
    """What a framework keeps in the memory of the nodes beside the states of a layout."""

    processes: int = 1  # Of each GPU
    frozen: Split = Split()  # Bytes of a parameter of all models without an optimizer
    loading: float = 0.0  # Of the whole model, on the node that loads it
    loads_tied: bool = False  # Whether each process of a GPU loads a model with tied embeddings
    gathered: float = 0.0  # Of the whole model, on the first node when it is saved
    keeps_engines: bool = False  # Whether sleeping engines keep their weights there


class Workload(Value):
    """What is trained, and on what."""

    layouts: tuple[Layout, ...]
    tokens: int  # The longest micro batch: prompt and answer of its samples
    nodes: tuple[NodeSize, ...] = ()  # All with GPUs, if there are none
    samples: int = 1  # The samples of a micro batch
    model: ModelShape | None = None
    trained: int = 1  # Models with an optimizer: 2 with a critic
    frozen: float = 0  # References and reward models on the same GPUs, of the model's size
    share: float = 0.0  # The usual part of each GPU for engines; 0 without engines on them
    own_share: float | None = None  # The user's part instead; None if it follows from the memory
    tensor_parallel: int | None = None  # The user's engines; None if they follow from the size
    logit: int = LOGIT  # Bytes of a logit in a training step
    in_nodes: Host = Host()  # What else it keeps in the nodes' memory
    adapters: bool = False  # Whether only adapters are trained (LoRA)
    rank: int = 0  # Of those adapters, to count them too; 0 if it is not known
    link: float | None = None  # Bits per second between nodes, by the slowest link, if known
    within: bool | None = None  # Whether to gather weights within nodes; None: by the network
    unsized: Layout | None = None  # The layout for a model of unknown size; None: the first one
    sequences: tuple[int, ...] = (1,)  # Over how many GPUs a sample may be divided, the least first
    given: tuple[str, ...] = ()  # The user's that are not counted: a misfit is then a warning
    ways: Callable[[Workload, ModelShape], Iterator[Fit]] | None = None
    """What divides its models, the fastest first; None: FSDP or ZeRO over all GPUs."""
    spans: bool = False  # Whether an engine may have GPUs of several nodes

    @property
    def gpus(self) -> int:
        """Return the GPUs of a node, or the size of equal groups within nodes."""
        return gcd(*(node.gpus for node in self.nodes))

    @property
    def memory(self) -> int:
        """Return the GB of the smallest GPU, or what is assumed."""
        return min((n.gpu_memory for n in self.nodes if n.gpu_memory), default=_ASSUMED_MEMORY)

    @property
    def label(self) -> float:
        """Return the bytes of that GPU, of which engines have their share."""
        return self.memory * float(GIB)

    @property
    def host(self) -> float:
        """Return the memory of the smallest node that a job may fill, or what is assumed."""
        assumed = _ASSUMED_HOST * min(node.gpus for node in self.nodes)
        return _HOST_PART * min((n.memory for n in self.nodes if n.memory), default=assumed)

    def with_host(self, memory: int) -> Workload:
        """Return the workload on nodes of so much memory."""
        return replace(self, nodes=tuple(replace(node, memory=memory) for node in self.nodes))

    @property
    def prefers_nodes(self) -> bool:
        """Return whether weights should be gathered within nodes."""
        if self.within is not None:
            return self.within
        return self.link is not None and self.link < SLOW_LINK and len(self.nodes) > 1

    def text(self) -> str:
        """Return the nodes: 2×8×80 GB."""
        counts = sorted({str(node.gpus) for node in self.nodes})
        return f"{len(self.nodes)}×{' or '.join(counts)}×{self.memory} GB"


class Sizing(Value):
    """The settings that follow from memory, each with its arithmetic."""

    layout: Layout
    tensor_parallel: int
    share: float  # The part of each GPU that engines have
    tokens: int = 0  # Tokens of a micro batch on one GPU; 0 if the model's size is not known
    forward: int = 0  # Tokens of a micro batch in a forward pass; 0 if the size is not known
    within_nodes: bool = False  # Whether only gradients cross the network, and no weights
    fit: Fit | None = None  # What it follows from; None if the size is not known
    why: Mapping[str, str] = field(default_factory=dict)  # The reason of each field
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def sizing_of(load: Workload) -> Sizing:
    """Return the settings of the first layout that fits; raises MisfitError if none does."""
    load = replace(load, nodes=tuple(node for node in load.nodes if node.gpus))
    model = load.model
    kept = {"within_nodes": _KEPT}
    by_user = {"tensor_parallel": "AGENT_TENSOR_PARALLEL"} if load.tensor_parallel else {}

    # Nothing is sized for a model of unknown size.
    if model is None or not load.nodes:
        layout = load.unsized if load.unsized in load.layouts else load.layouts[0]
        size = load.tensor_parallel or 1
        unknown = "the model's size is not known"
        note = (
            f"{unknown} (no config.json here, no size in its name), and nothing is sized for it; "
            f"assumed: {layout.name}" + f", engines of {count_of(size, 'GPU')}" * bool(load.share)
        )
        return Sizing(
            layout=layout,
            tensor_parallel=size,
            share=load.share,
            within_nodes=load.within is True,
            why=dict.fromkeys(_FIELDS, unknown) | kept | by_user,
            notes=(note,) if load.nodes else (),
        )

    # Does a layout fit?
    notes = []
    knows_memory = any(node.gpu_memory for node in load.nodes)
    if model.source != CONFIG:
        notes.append(f"sized for {model.billions} parameters, by {model.source}")
    if not knows_memory:
        notes.append(f"sized for GPUs of {_ASSUMED_MEMORY} GB: their memory is not known here")
    fit = _best(load, model)
    if fit is not None:
        _check_transfer(fit)
        return _explained(fit, notes)

    # If none does, the model is refused: unless that follows from an assumption, or what the user
    # set changes the memory in a way that is not counted.
    anywhere = _best(load.with_host(_ENOUGH_HOST), model)
    refusal = _refusal(load, model) if anywhere is None else _host_refusal(anywhere, load)
    if not load.given and knows_memory:
        raise refusal

    because = f"{' and '.join(load.given)} set" if load.given else "their memory is not known here"
    least = _least_fit(load, model)
    return Sizing(
        layout=least.layout,
        tensor_parallel=least.engine,
        share=load.share,
        tokens=load.tokens,
        forward=load.tokens,
        within_nodes=load.within is True,
        fit=least,
        why=dict.fromkeys(_FIELDS, "takes the least memory") | kept | by_user,
        notes=tuple(notes),
        warnings=(f"{refusal}. Not refused: {because}",),
    )


def sizing_for(asked: RecipeInput, given: Sequence[str], load: Workload) -> Sizing:
    """Return the sizing of a recipe.

    `given` are arguments of the user that change the memory, and are not counted here.
    """
    return sizing_of(
        replace(
            load,
            nodes=load.nodes or asked.gpu_nodes,
            model=asked.basis.model,
            link=asked.basis.link,
            tensor_parallel=load.tensor_parallel or asked.tensor_parallel,
            given=tuple(given),
        )
    )


class Fit(Value):
    """A GPU with its part of the models in one layout, and of an engine.

    The properties up to `states_text` say how FSDP and ZeRO divide a model, `MegatronFit` how
    Megatron does; the arithmetic after them is the same for all.
    """

    load: Workload
    model: ModelShape
    layout: Layout
    engine: int = 1  # The GPUs of an engine
    filled: float = 1.0  # The part of the GPU that this estimate may fill
    within: bool = False  # Whether weights are gathered within each node
    sequence: int = 1  # The GPUs over which the tokens of a sample are divided

    @property
    def shards(self) -> int:
        """Return the GPUs over which the models are divided."""
        if self.within and not self.layout.copy:
            return self.load.gpus
        return sum(node.gpus for node in self.load.nodes)

    @property
    def parameters(self) -> Split:
        """Return the parameters of which a GPU has a shard, and its own."""
        return Split(self.model.parameters / self.shards, own=self.model.parameters)

    @property
    def loaded(self) -> float:
        """Return the parameters that the first node has in its memory when it loads a model."""
        is_tied = self.load.in_nodes.loads_tied and self.model.tied
        copies = self.gpus_of_a_node if self.layout.loads_everywhere or is_tied else 1
        return self.model.parameters * copies

    @property
    def gathered(self) -> float:
        """Return the bytes of the layers that are gathered while they are at work."""
        return self.model.gathered

    @property
    def crosses(self) -> bool:
        """Return whether weights are gathered over the network between nodes."""
        return not (self.within or self.layout.is_whole)

    @property
    def adapter_shards(self) -> int:
        """Return over how many GPUs adapters are divided: with whole models, each has them all."""
        return 1 if self.layout.is_whole else self.shards

    @property
    def parts(self) -> int:
        """Return over how many GPUs the tokens of a sample are divided."""
        return self.sequence

    @property
    def token(self) -> float:
        """Return the bytes of a token in a training step."""
        return self.model.token(self.load.logit)

    @property
    def token_forward(self) -> float:
        """Return the same in a forward pass, which keeps no values for a backward pass."""
        return self.model.token_forward

    @property
    def states_text(self) -> str:
        """Return the arithmetic of a training step: 7.6 B × 16 bytes / 24 GPUs = 5.1 GB."""
        load = self.load
        layout = self.layout
        models = [(1, layout.busy), (load.trained - 1, layout.idle), (load.frozen, layout.frozen)]
        shard = sum(count * each.shard for count, each in models)
        own = sum(count * each.own for count, each in models)
        parameters = self.model.parameters
        parts = []
        if shard:
            what = f"{self.model.billions} × {shard:g} bytes"
            parts.append(_shard_text(what, parameters * shard, self.shards))
        if own:
            parts.append(f"{self.model.billions} × {own:g} bytes = {gb(parameters * own)}")
        text = " + ".join(parts) or "all states on the CPUs"
        if not load.rank:
            return text
        count = self.model.adapters(load.rank)
        what = f"{count / 1e9:.2g} B × {_ADAPTER} bytes"
        adapters = _shard_text(what, _ADAPTER * count, self.adapter_shards)
        return f"{text} + adapters of rank {load.rank}: {adapters}"

    # --- on a GPU

    @property
    def room(self) -> float:
        """Return the bytes of a GPU that this estimate may fill."""
        return self.load.memory * _USABLE * self.filled

    @property
    def adapters(self) -> float:
        """Return the bytes of adapters with their gradients and Adam, all in float32."""
        return _ADAPTER * self.model.adapters(self.load.rank) / self.adapter_shards

    @property
    def kept(self) -> float:
        """Return the bytes of what is always there: models that are not trained, and copies."""
        kept = self.load.frozen * self.layout.frozen.times(self.parameters)
        if self.within:
            copies = self.load.trained * (self.layout.copy or 0.0)
            kept += self.model.parameters * copies / self.load.gpus
        return kept

    @property
    def training(self) -> float:
        """Return the bytes of a training step, or of a reference at work, without its tokens."""
        layout = self.layout
        others = (self.load.trained - 1) * layout.idle.times(self.parameters)
        step = self.kept + layout.busy.times(self.parameters) + others
        step += self.adapters + self.gathered
        if not any(self.load.in_nodes.frozen):
            return step
        return max(step, self.generating + layout.scoring.times(self.parameters))

    @property
    def generating(self) -> float:
        """Return the bytes of training that stay while engines generate."""
        asleep = self.layout.asleep
        adapters = self.adapters if any(asleep) else 0.0
        return self.kept + self.load.trained * asleep.times(self.parameters) + adapters

    @property
    def filled_by_one(self) -> float:
        """Return the part of a GPU that a step with one longest micro batch takes."""
        tokens = self.load.tokens / self.parts
        return (self.training + self.token * tokens) / self.load.label

    @property
    def tokens(self) -> int:
        """Return how many tokens of a micro batch fit, in steps of 1,024 where there are more."""
        most = max(ceil(self.load.tokens / self.parts), _MOST_TOKENS)
        return self.parts * min(self._fitting(self.token), most)

    @property
    def forward(self) -> int:
        """Return the same for a forward pass."""
        return self.parts * self._fitting(self.token_forward)

    def _fitting(self, token: float) -> int:
        fitting = int((self.room - self.training) / token)
        if fitting < 1024:
            return fitting
        return fitting // 1024 * 1024

    @property
    def work_text(self) -> str:
        """Return the arithmetic of what a training step takes besides its states."""
        if self.gathered:
            return f"{gb(self.gathered)} for the layers at work"
        return f"{self.token / 1e6:.1f} MB for each token"

    def share(self, cached: int) -> float:
        """Return the engines' part of the GPU, in steps of 0.05; 0 if they do not fit.

        They hold their weights and the KV cache of so many tokens.
        """
        if not self.load.share:
            return 0.0
        cache = WEIGHT * self.model.cached * cached / min(self.engine, self.model.kv_heads)
        need = (self.model.weights / self.engine + cache + _ENGINE_OVERHEAD) / self.load.label
        own = self.load.own_share
        if own is not None:
            all_left = (self.load.memory * _USABLE - self.generating) / self.load.label
            return own if need <= own <= all_left else 0.0
        least = ceil(need * 20) / 20
        if least > min(self.left, _MOST_SHARE):
            return 0.0
        return max(min(self.load.share, self.left), least)

    def cache(self, share: float) -> int:
        """Return the tokens of a KV cache beside the weights, in an engine's part of the GPU."""
        left = share * self.load.label - self.model.weights / self.engine - _ENGINE_OVERHEAD
        token = WEIGHT * self.model.cached / min(self.engine, self.model.kv_heads)
        return max(0, int(left / token))

    @property
    def left(self) -> float:
        """Return the part of the GPU that training leaves while engines generate, in twentieths."""
        return int((self.room - self.generating) / self.load.label * 20) / 20

    @property
    def engine_text(self) -> str:
        """Return the arithmetic of an engine's weights."""
        weights = self.model.weights
        return f"{gb(weights)} of weights / {self.engine} = {gb(weights / self.engine)}"

    # --- between nodes

    @property
    def transfer(self) -> float:
        """Return the seconds that a step's transfers between nodes take; 0 if it is not known."""
        count = len(self.load.nodes)
        if not self.load.link or count < 2:
            return 0.0
        each = _GATHERED_BYTES if self.crosses else _REDUCED_BYTES
        size = self.load.trained * self.model.parameters * each * (count - 1) / count
        if self.load.adapters and not self.crosses:
            size *= self.model.adapters(self.load.rank) / self.model.parameters
        return 8 * size / self.load.link

    # --- in the memory of a node

    @property
    def gpus_of_a_node(self) -> int:
        """Return the GPUs of the largest node."""
        return max(node.gpus for node in self.load.nodes)

    @property
    def phases(self) -> Mapping[str, float]:
        """Return the bytes in the memory of the first node while it loads, trains and saves.

        The first node has most: it loads whole models and gathers those that are saved.
        """
        more = self.load.in_nodes
        layout = self.layout
        gpus = self.gpus_of_a_node

        # In every phase: processes, models without an optimizer, and engines that sleep.
        process = min(_PROCESS + _STAGED * self.model.weights, _MOST_OF_PROCESS)
        always = gpus * (more.processes * process + more.frozen.times(self.parameters))
        if self.load.share and more.keeps_engines:
            always += self.model.weights * gpus / self.engine

        # Trained models; adapters are where their states are.
        trained = gpus * self.load.trained * layout.host.times(self.parameters)
        saved = gpus * layout.saving.times(self.parameters)
        saved += more.gathered * self.model.parameters
        if any(layout.host):
            trained += gpus * self.adapters
        elif any(layout.saving):
            saved += gpus * self.adapters
        return {
            "load": always + more.loading * self.loaded,
            "train": always + trained,
            "save": always + trained + saved,
        }

    @property
    def host(self) -> float:
        """Return the bytes that a node needs at most."""
        return max(self.phases.values())

    @property
    def host_text(self) -> str:
        """Return the arithmetic of a node's memory."""
        return ", ".join(f"{gb(size)} to {phase}" for phase, size in self.phases.items())

    def holds(self, tokens: int, sequences: int, share: float) -> bool:
        """Return whether it holds such sequences, and leaves engines at least this share."""
        if self.host > self.load.host or self.tokens < tokens:
            return False
        cached = sequences * tokens // self.load.samples
        return not self.load.share or self.share(cached) >= share


_DEMANDS = ((_COMFORT, 1 << 40, _SEQUENCES, _LEAST_SHARE), (1.0, _SURE_TOKENS, 1, 0.05))
"""What is to fit, first with room to spare: part of a GPU, tokens, sequences, engines' part."""


def _best(load: Workload, model: ModelShape) -> Fit | None:
    """Return the first layout that fits with room to spare, else the first that fits at all.

    Over a slow network one that keeps weights within nodes comes before all others.
    """
    if load.prefers_nodes:
        inside = _first(load, model, within=True)
        if inside is not None:
            return inside
    return _first(load, model, within=load.within is True)


def _first(load: Workload, model: ModelShape, *, within: bool) -> Fit | None:
    for filled, most, sequences, share in _DEMANDS:
        wanted = load.share if load.own_share is None else load.own_share
        demand = min(load.tokens, most), sequences, min(wanted, share)
        for fit in _fits(load, model, within=within):
            if within and fit.crosses and load.within is None:
                continue
            tried = replace(fit, filled=filled)
            if tried.holds(*demand):
                return tried
    return None


def _fits(load: Workload, model: ModelShape, *, within: bool) -> Iterator[Fit]:
    """Yield the ways to keep the models, the fastest first: the later ones need less of a GPU."""
    engines = engine_sizes(load, model)
    for way in (load.ways or _sharded)(load, model):
        layout = way.layout.for_adapters() if load.adapters else way.layout
        is_within = within and layout.copy is not None
        for engine in engines:
            yield replace(way, layout=layout, within=is_within, engine=engine)


def _sharded(load: Workload, model: ModelShape) -> Iterator[Fit]:
    """Yield the layouts of FSDP or ZeRO with the GPUs of a sample, the fastest first.

    A sample is divided where no layout on the GPUs holds it whole; states go to the CPUs last.
    """
    on_gpus = [layout for layout in load.layouts if any(layout.busy)]
    for sequence in load.sequences:
        for layout in on_gpus:
            yield Fit(load, model, layout, sequence=sequence)
    for layout in load.layouts:
        if layout not in on_gpus:
            for sequence in load.sequences:
                yield Fit(load, model, layout, sequence=sequence)


def engine_sizes(load: Workload, model: ModelShape) -> tuple[int, ...]:
    """Return the sizes of an engine to try, the preferred one first; larger ones take less.

    Engines of the largest models have whole nodes, where they may span several.
    """
    if load.tensor_parallel is not None or not load.share:
        return (load.tensor_parallel or 1,)
    # they divide the attention: by its heads, or by powers of two if those are unknown
    sizes = [
        size
        for size in divisors(load.gpus)
        if (model.heads % size == 0 if model.heads else size & (size - 1) == 0)
    ]
    limit = _ENGINE_PART * load.label
    within = tuple(n for n in sizes if model.weights / n <= limit) or (sizes[-1],)
    if not load.spans or model.weights / within[-1] < _NODE_PART * load.label:
        return within
    spanning = [load.gpus * nodes for nodes in divisors(len(load.nodes))]
    fitting = [size for size in spanning if not model.heads or model.heads % size == 0]
    return tuple(size for size in fitting if size > within[-1]) or within


def least_engine(model: ModelShape | None) -> int:
    """Return the GPUs of an engine that shares them with no training: as few as leave it a cache.

    Its weights take half of a GPU's memory at most; the GPUs of other nodes are not known here.
    """
    size = 1
    most = _ASSUMED_MEMORY * GIB / 2
    while model is not None and model.weights / size > most and size < _MOST_OF_ENGINE:
        size *= 2
    return size


@cache
def divisors(number: int) -> list[int]:
    """Return the numbers that divide a number, the least first."""
    return [size for size in range(1, number + 1) if number % size == 0]


def _check_transfer(fit: Fit) -> None:
    """Refuse steps that would send data over a slow network for hours."""
    if fit.load.ways is not None or fit.load.given or fit.transfer < _LONGEST_TRANSFER:
        return
    rate = (fit.load.link or 0.0) / 1e6
    what = "weights and gradients" if fit.crosses else "gradients"
    raise MisfitError(
        f"{fit.model.billions} on {fit.load.text()}: no: over {rate:,.0f} Mbit/s between nodes a "
        f"step would send {what} for {fit.transfer / 3600:.1f} h: take one node with as many GPUs, "
        "or a cluster with a fast network"
    )


def _slow(fit: Fit) -> Iterator[str]:
    """Say what makes steps slow, and what would help."""
    load = fit.load
    if fit.layout.on_cpu:
        yield "slow: the optimizer works on the CPUs; more or larger GPUs would keep it on them"
    if load.samples == 1 and 0 < fit.tokens < 2 * load.tokens:
        helps = "shorter samples, or more or larger GPUs, make larger ones"
        yield f"slow: a micro batch is one longest sample of {load.tokens} tokens; {helps}"
    if load.link is not None and load.link < SLOW_LINK and fit.transfer:
        rate = f"{load.link / 1e6:,.0f} Mbit/s"
        yield (
            f"slow: a step sends data between nodes for about {fit.transfer:,.0f} s at {rate}; one "
            "node with as many GPUs, or a faster network, would not"
        )


def _explained(fit: Fit, notes: list[str]) -> Sizing:
    """Return a fit with its arithmetic; `notes` are what is assumed."""
    load = fit.load
    model = fit.model
    layout = fit.layout
    is_tight = fit.filled > _COMFORT
    cached = (1 if is_tight else _SEQUENCES) * load.tokens // load.samples
    share = fit.share(cached) or fit.share(1)

    # The arithmetic of each setting.
    states = fit.states_text
    if share:
        states += f" + engine {share:g} × {load.memory} GB"
    asked = "AGENT_TENSOR_PARALLEL; " if load.tensor_parallel else ""
    rate = (load.link or 0) / 1e6
    token = fit.token
    why = {
        "layout": f"{layout.name}: {states}",
        "tensor_parallel": f"{asked}{fit.engine_text} of {load.memory} GB",
        "share": f"{states}; {gb(fit.generating)} of training stay while engines generate",
        "tokens": f"{load.memory} GB - {gb(fit.training)}, at {token / 1e6:.1f} MB a token",
        "sequence": f"divides the tokens of a sample: {load.tokens} of them do not fit on a GPU",
        "within_nodes": _KEPT if load.within else f"the network is slow ({rate:,.0f} Mbit/s)",
    }

    # What may fail?
    warnings = []
    notes.append(f"a node needs {gb(fit.host)} of memory: {fit.host_text}")
    if is_tight or fit.filled_by_one > _TIGHT:
        part = f"a step with one longest sample fills {min(fit.filled_by_one, 1):.0%} of a GPU"
        helps = "more or larger GPUs, or shorter samples, would help"
        warnings.append(f"{model.billions} on {load.text()} is tight: {part}: {states}; {helps}")
    notes += _slow(fit)
    if fit.tokens < load.tokens:
        long = f"a sequence of all {load.tokens} tokens may run out of memory"
        warnings.append(f"{long}: about {fit.tokens} fit")

    return Sizing(
        layout=layout,
        tensor_parallel=fit.engine,
        share=share,
        tokens=max(fit.tokens, load.tokens),
        forward=max(fit.forward, load.tokens),
        within_nodes=fit.within,
        fit=fit,
        why=why,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _refusal(load: Workload, model: ModelShape) -> MisfitError:
    """Say that a model does not fit on the GPUs, and what it would fit."""
    fit = _least_fit(load, model)
    text = f"{model.billions} on {load.text()}: no: {fit.states_text}, {fit.work_text}"
    if load.share:
        text += f", and engines: {fit.engine_text}"
    if load.own_share is not None:
        text += f", in {load.own_share:g} × {load.memory} GB"
    return _misfit(text, _remedies(load, model))


def _least_fit(load: Workload, model: ModelShape) -> Fit:
    """Return the layout that takes the least of a GPU, with the largest engines."""
    fits = list(_fits(load, model, within=False))
    largest = max(fit.engine for fit in fits)
    fits = [fit for fit in fits if fit.engine == largest]
    return min(reversed(fits), key=lambda fit: fit.training)


def _host_refusal(fit: Fit, load: Workload) -> MisfitError:
    """Say that a model fits on the GPUs, and not in the memory of the nodes, and where it would."""
    is_known = any(node.memory for node in load.nodes)
    assumed = (
        "" if is_known else f" ({_ASSUMED_HOST // GIB} for each GPU are assumed: --host-memory)"
    )
    has = load.host / _HOST_PART / GIB
    text = (
        f"{fit.model.billions} on {load.text()}: no: the GPUs suffice, the nodes' memory does not: "
        f"{fit.layout.name} needs {gb(fit.host)} of a node ({fit.host_text}), and a job may fill "
        f"{gb(load.host)} of {has:,.0f} GiB{assumed}"
    )

    # Would nodes with more memory do?
    remedies = [*_remedies(load, fit.model)]
    for size in _HOST_SIZES:
        if size > has and _best(load.with_host(size * GIB), fit.model) is not None:
            remedies.insert(0, f"with {size} GiB of memory on each node")
            break
    return _misfit(text, remedies)


def _misfit(what: str, remedies: Iterable[str]) -> MisfitError:
    return MisfitError(what, ", or ".join(remedies) or f"nor on {_MOST_NODES} such nodes")


def _remedies(load: Workload, model: ModelShape) -> Iterator[str]:
    """Yield what it would fit: other engines, more GPUs or larger ones, or shorter samples."""
    free = replace(load, tensor_parallel=None, own_share=None)
    first = load.nodes[0]
    count = len(load.nodes)

    # Engines other than the user's.
    if free != load and (fit := _best(free, model)) is not None:
        share = _explained(fit, []).share
        yield f"with engines of {count_of(fit.engine, 'GPU')} that have {share:g} of each"
        return

    # More GPUs: in each node, or more nodes.
    more = [(count, gpus) for gpus in (2, 4, 8) if gpus > load.gpus]
    more += [(nodes, max(load.gpus, 8)) for nodes in range(count + 1, _MOST_NODES + 1)]
    for nodes, gpus in more:
        if _best(replace(free, nodes=(replace(first, gpus=gpus),) * nodes), model) is not None:
            yield f"from {nodes}×{gpus} on"
            break

    # Larger GPUs.
    for label in filter(load.memory.__lt__, _LABELS):
        larger = tuple(replace(node, gpu_memory=label) for node in load.nodes)
        if _best(replace(free, nodes=larger), model) is not None:
            yield f"with GPUs of {label} GB"
            break

    # Shorter samples.
    tokens = load.tokens // 2
    while tokens >= _LEAST_TOKENS:
        if _best(replace(free, tokens=tokens), model) is not None:
            yield f"with samples of at most {tokens // load.samples} tokens"
            break
        tokens //= 2


def _shard_text(what: str, size: float, shards: int) -> str:
    """Return the arithmetic of a shard: 7.6 B × 16 bytes / 24 GPUs = 5.1 GB."""
    over = f" / {count_of(shards, 'GPU')}" if shards > 1 else ""
    return f"{what}{over} = {gb(size / shards)}"


def gb(size: float) -> str:
    """Return a size for a message: 5.1 GB."""
    return f"{size / 1e9:.1f} GB" if size < 99.95e9 else f"{size / 1e9:,.0f} GB"
