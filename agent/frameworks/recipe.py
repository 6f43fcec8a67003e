"""The interface of a recipe: a function from nodes, model and settings to a command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import field

from agent.base.value import ByName, Bytes, Count, Cpus, Gigabytes, Gpus, Rate, Value
from agent.base.versions import Version, version_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


RUN_ID = "{run_id}"  # The run id before it is known
_VISION = re.compile(r"(?<![A-Za-z])VLM?(?![A-Za-z])")  # In the name of a model with a vision tower
NAMED_BY = "AGENT_RUN_NAME; without it recipe, model and run id"


class NodeSize(Value):
    """The resources of one node; None if not known."""

    gpus: Gpus
    cpus: Cpus | None = None
    memory: Bytes | None = None
    gpu_memory: Gigabytes | None = None  # Of its smallest GPU


CONFIG = "config.json"  # Where a shape is exact; any other source is an estimate
WEIGHT = 2  # Bytes of a weight in bf16
LOGIT = 6  # Bytes of a logit, which is held twice: in bf16 and in float32


class ModelShape(Value):
    """The facts of a model from which its memory follows."""

    parameters: Count
    layers: Count
    hidden: Count
    wide: Count  # The width of the feed-forward part; with experts, of those that a token passes
    cached: Count  # The values of a token in the KV cache of all layers
    vocabulary: Count
    heads: Count = 0  # 0 if not known
    kv_heads: Count = 8
    tied: bool = False  # Whether its embeddings are also its last layer
    experts: Count = 0  # Of a layer, of which each token passes a few; 0 without any
    in_experts: Count = 0  # The parameters of the experts of all layers
    largest: Count = 0  # The values of the largest tensor of its checkpoint; 0 if not known
    fused: Count = 0  # Of a layer's experts in one tensor, as transformers 5 loads them
    has_vision: bool = False  # Whether it has a vision tower
    further: Count = 0  # Its layers that predict further tokens (MTP), which are not in `layers`
    positions: Count = 0  # The tokens of its longest text; 0 if not known
    quantized: str = ""  # How its weights are quantized (fp8, awq, …), or ''
    source: str = CONFIG  # What these facts were read from

    @property
    def billions(self) -> str:
        """Return the parameters for a message: 7.6 B."""
        return f"{self.parameters / 1e9:.3g} B"

    @property
    def active(self) -> int:
        """Return the number of parameters that a token passes: not all experts."""
        layer = self.hidden * (4 * self.hidden + 3 * self.wide)
        return min(self.parameters, self.layers * layer + self.vocabulary * self.hidden)

    @property
    def weights(self) -> int:
        """Return the bytes of all weights."""
        return WEIGHT * self.parameters

    def adapters(self, rank: int) -> int:
        """Return about how many parameters adapters (LoRA) of all linear layers have.

        Each layer gets two matrices: its inputs by the rank, and the rank by its outputs.
        """
        attention = 4 * (self.hidden + self.hidden)
        forward = 3 * (self.hidden + self.wide)
        experts = max(1, round(self.parameters / self.active))
        return rank * self.layers * (attention + experts * forward)

    def token(self, logit: int = LOGIT) -> int:
        """Return the bytes of a token in a training step, with gradient checkpointing.

        These are its input to each layer, its values in the layer that is computed again, and its
        logits, of `logit` bytes each.
        """
        inputs = WEIGHT * self.layers * self.hidden
        return inputs + self.token_forward + (logit - LOGIT) * self.vocabulary

    @property
    def token_forward(self) -> int:
        """Return the bytes of a token in a forward pass: the values of a layer, and its logits."""
        layer = 12 * self.hidden + 4 * self.wide
        return WEIGHT * layer + LOGIT * self.vocabulary

    @property
    def gathered(self) -> int:
        """Return the bytes of the layers that sharded training holds whole: two at a time."""
        embedding = self.vocabulary * self.hidden
        return 2 * WEIGHT * max(embedding, (self.parameters - embedding) // self.layers)

    @staticmethod
    def from_config(config: Mapping[str, object]) -> ModelShape | None:
        """Return the shape that a `config.json` describes; None if it lacks the usual fields."""
        # The sizes of the language model: in a vision model, under `text_config`.
        text = config.get("text_config")
        main = {**config, **text} if isinstance(text, dict) else config
        hidden = _number(main, "hidden_size")
        layers = _number(main, "num_hidden_layers")
        heads = _number(main, "num_attention_heads")
        vocabulary = _number(main, "vocab_size")
        if not (hidden and layers and heads and vocabulary):
            return None

        # Attention, norms and embeddings.
        kv_heads = _number(main, "num_key_value_heads") or heads
        head = _number(main, "head_dim") or hidden // heads
        # transformers leaves the key out where its own default is true, as in Gemma's files
        copies = 1 if main.get("tie_word_embeddings", True) else 2
        attention = 2 * hidden * head * (heads + kv_heads)
        parameters = layers * (attention + 2 * hidden) + copies * vocabulary * hidden + hidden

        # The feed-forward part: of all layers, or experts in those that are sparse.
        width = _number(main, "intermediate_size") or 4 * hidden
        active = width
        sparse = 0
        in_experts = 0
        experts = _number(main, "num_experts", "num_local_experts", "n_routed_experts")
        if experts:
            expert = _number(main, "moe_intermediate_size") or width
            shared = _number(main, "shared_expert_intermediate_size")
            shared = shared or expert * _number(main, "n_shared_experts")
            active = expert * (_number(main, "num_experts_per_tok") or 2) + shared
            sparse = max(0, layers - _number(main, "first_k_dense_replace"))
            in_experts = sparse * 3 * hidden * expert * experts
            parameters += in_experts + sparse * (3 * hidden * shared + hidden * experts)
        parameters += (layers - sparse) * 3 * hidden * width

        # Gemma's small models embed each token anew for every layer, in one tensor.
        of_layers = layers * _number(main, "hidden_size_per_layer_input")
        of_layers *= _number(main, "vocab_size_per_layer_input")
        parameters += of_layers

        # The largest tensor: an embedding, or two of the three matrices of a layer's experts.
        largest = max(vocabulary * hidden, of_layers, hidden * width)
        fused = 2 * in_experts // (3 * sparse) if sparse else 0
        if main.get("model_type") in _FUSED_ON_DISK:
            largest = max(largest, fused)

        # The vision tower.
        tower = config.get("vision_config")
        if isinstance(tower, dict):
            wide = _number(tower, "hidden_size")
            depth = _number(tower, "depth", "num_hidden_layers")
            inner = _number(tower, "intermediate_size") or 4 * wide
            parameters += depth * (4 * wide + 3 * inner) * wide

        # The KV cache: a latent vector in each layer, or keys and values of all heads.
        latent = _number(main, "kv_lora_rank")
        each = latent + _number(main, "qk_rope_head_dim") if latent else 2 * kv_heads * head
        cached = layers * each

        return ModelShape(
            parameters=parameters,
            layers=layers,
            hidden=hidden,
            wide=active,
            cached=cached,
            vocabulary=vocabulary,
            heads=heads,
            kv_heads=kv_heads,
            tied=copies == 1,
            experts=experts,
            in_experts=in_experts,
            largest=largest,
            fused=fused,
            has_vision=isinstance(tower, dict),
            further=_number(main, "num_nextn_predict_layers"),
            positions=_positions(main),
            quantized=_quantized_by(config) or _quantized_by(main),
        )

    @staticmethod
    def from_name(name: str, source: str = "") -> ModelShape | None:
        """Estimate a shape from the size in a model's name, such as 7B, 30B-A3B or 8x7B."""
        size = _SIZE.search(name)
        if size is None:
            return None
        unit = 1e9 if size["unit"] in "bB" else 1e6
        parameters = int(float(size["size"]) * int(size["times"] or 1) * unit)
        active = parameters
        experts = int(size["times"] or 0)
        if size["active"]:
            active = int(float(size["active"]) * 1e9)
            experts = experts or _USUAL_EXPERTS
        if not 0 < active <= parameters <= _MOST_PARAMETERS:
            return None

        hidden = max(64, round((active * 128 / 12) ** (1 / 3) / 64) * 64)
        layers = max(1, hidden // 128)  # a usual model is 128 times as wide as deep
        return ModelShape(
            parameters=parameters,
            layers=layers,
            hidden=hidden,
            wide=4 * hidden,
            cached=layers * 2 * 8 * 128,
            vocabulary=min(152_000, parameters // (2 * hidden)),
            experts=experts,
            in_experts=_part_in_experts(parameters, active, experts),
            source=source or f"the name {name}",
        )


def shape_of(name: str, config: Mapping[str, object] | None) -> ModelShape | None:
    """Return the shape of a model from its `config.json`, else from its name; None if unknown."""
    exact = None if config is None else ModelShape.from_config(config)
    return exact or ModelShape.from_name(name.rstrip("/").rpartition("/")[2])


_STRETCHED = ("yarn", "linear", "dynamic")
"""Kinds of rope_scaling that `max_position_embeddings` does not include."""


def _positions(config: Mapping[str, object]) -> int:
    """Return the tokens of a model's longest text, as vLLM and SGLang compute them."""
    positions = _number(config, "max_position_embeddings")
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, dict):
        return positions
    kind = scaling.get("rope_type") or scaling.get("type")
    factor = scaling.get("factor")
    if kind not in _STRETCHED or not isinstance(factor, int | float) or not positions:
        return positions
    return int((_number(scaling, "original_max_position_embeddings") or positions) * factor)


def check_positions(asked: RecipeInput, tokens: int, remedy: str) -> None:
    """Refuse texts that are longer than the model's: its engines do not start with them."""
    model = asked.basis.model
    if model is not None and 0 < model.positions < tokens:
        what = f"texts of {tokens} tokens: {asked.model} has {model.positions} positions"
        raise MisfitError(f"{what} (config.json): {remedy}, or set rope_scaling in a copy of it")


def critic_warnings(asked: RecipeInput, key: str, critic: str) -> Iterable[str]:
    """Return a warning if the user's critic starts from a model that may be larger than the actor.

    Memory is counted for a critic of the size of AGENT_MODEL.
    """
    model = asked.basis.model
    if not critic or model is None or critic in {asked.model, asked.model_path}:
        return
    own = shape_of(critic, None)
    if own is None or own.parameters > model.parameters:
        size = own.billions if own else "an unknown size"
        counted = f"memory is counted for a critic of {model.billions}"
        yield f"{key}={critic} has {size}: {counted}; `recipe --model-size` sizes for a larger one"


def _quantized_by(config: Mapping[str, object]) -> str:
    """Return the method of a `quantization_config`, or ''."""
    given = config.get("quantization_config")
    if not isinstance(given, dict):
        return ""
    return str(given.get("quant_method") or "an unnamed method")


_QUANTIZED_NAME = re.compile(
    r"(?i)(?<![a-z0-9])(awq|gptq|fp8|mxfp4|nvfp4|bnb|gguf|exl2|int[48]|w\da\d+|[48]bit)(?![a-z])"
)
"""The usual endings of a quantized model's name."""
_QUANTIZED_FAMILIES = (
    (re.compile(r"(?i)deepseek-(?:v3|r1)(?!-distill)"), "fp8"),
    (re.compile(r"(?i)kimi-k2"), "fp8"),
    (re.compile(r"(?i)gpt-oss-\d+b"), "mxfp4"),
)
"""Models that their makers published quantized, under a name that does not say so."""
_WHOLE_NAME = re.compile(r"(?i)(?<![a-z0-9])(bf16|fp16|unquantized|dequantized)(?![a-z0-9])")
_WHOLE_COPIES = {
    "fp8": "make a bf16 copy with fp8_cast_bf16.py of DeepSeek's repository, as slime does",
    "mxfp4": "load it with transformers' Mxfp4Config(dequantize=True) and save it, as verl does",
}
"""What makes weights whole again, by method.

Sources: verl-project/verl, examples/grpo_trainer/run_gpt_oss_20b_fsdp.sh and
run_deepseek_v3_671b_megatron.sh, v0.9.0; THUDM/slime, docs/en/examples/deepseek-r1.md.
"""


def quantized_by_name(name: str) -> str:
    """Return how a model is quantized by its name, or ''."""
    last = name.rstrip("/").rpartition("/")[2]
    if _WHOLE_NAME.search(last):
        return ""
    found = _QUANTIZED_NAME.search(last)
    if found is not None:
        return found[1].lower()
    return next((method for family, method in _QUANTIZED_FAMILIES if family.match(last)), "")


def check_weights(asked: RecipeInput) -> None:
    """Refuse a quantized model: no framework here makes its weights whole, and none trains them."""
    shape = asked.basis.model
    if shape is not None and shape.source == CONFIG:
        method = shape.quantized
        source = CONFIG
    else:
        method = quantized_by_name(asked.model)
        source = "its name"
    if not method:
        return

    usual = "take the model from which it was made, or make a bf16 copy"
    remedy = _WHOLE_COPIES.get(method, usual)
    layers = ""
    if method == "fp8":
        layers = ", and num_nextn_predict_layers=0 if it has that"
    raise MisfitError(
        f"AGENT_MODEL={asked.model} is quantized ({method}, by {source}) and cannot be trained as "
        f"it is: {remedy}; the copy's config.json has no quantization_config{layers}. Then set "
        "AGENT_MODEL to the copy"
    )


_SIZE = re.compile(
    r"(?<![\w.])(?:(?P<times>\d{1,3})x)?(?P<size>\d{1,5}(?:\.\d{1,3})?)(?P<unit>[bBmM])"
    r"(?:-[aA](?P<active>\d{1,4}(?:\.\d{1,3})?)[bB])?(?![A-Za-z0-9])"
)
_MOST_PARAMETERS = 10**14
_FUSED_ON_DISK = {
    *("gpt_oss", "llama4_text", "qwen3_vl_moe_text", "qwen3_5_moe_text", "gemma4_text"),
}
"""Model types whose checkpoints have the experts of a layer as one tensor."""
_USUAL_EXPERTS = 128  # Of a model with experts whose number is not in its name
_DENSE_PART = 0.05  # Of all parameters: about what is outside of the experts


def _part_in_experts(parameters: int, active: int, experts: int) -> int:
    """Estimate how many parameters the experts of a model have, by its name: 30B-A3B or 8x7B."""
    if not experts:
        return 0
    outside = min(active // 2, int(_DENSE_PART * parameters))
    return parameters - outside


def _number(config: Mapping[str, object], *names: str) -> int:
    """Return the first of these fields that is a whole number, else 0."""
    values = (config.get(name) for name in names)
    return next((n for n in values if isinstance(n, int) and 0 < n < _MOST_PARAMETERS), 0)


SLOW_LINK = 1e9
"""Bits per second between nodes below which gathering weights takes longer than computing.

Ethernet of 1 Gbit/s is below it; samples of a few MB cannot tell faster links apart.
"""


class JobBasis(Value):
    """What sizes a recipe besides the nodes, equal on every node of an attempt."""

    model: ModelShape | None = None  # None if its size is not known
    link: Rate | None = None  # Bits per second by the slowest link; None if it does not matter
    kept: ByName[str] = field(default_factory=dict)  # `Command.format` of existing checkpoints
    commit: str = ""  # The commit of the model in the hub's cache, '' if not known
    folder: str = ""  # The folder of that commit, if AGENT_MODEL_REVISION names it


class RecipeInput(Value):
    """The input of a recipe."""

    recipe: str
    nodes: tuple[NodeSize, ...]  # Every node that joined, the head first
    version: Version  # The framework's version, one of the recipe's VERSIONS or an older patch
    model: str  # AGENT_MODEL
    train_data: str
    checkpoints: str  # The absolute folder of its checkpoints
    eval_data: str = ""
    is_nearest: bool = False  # Whether another release is installed, which may have other arguments
    tensor_parallel: int | None = None  # AGENT_TENSOR_PARALLEL
    lora_rank: int | None = None  # AGENT_LORA_RANK
    rollout: str = "vllm"  # AGENT_ROLLOUT
    backend: str = ""  # AGENT_BACKEND, or '' for the framework's own
    basis: JobBasis = JobBasis()  # What sizes it besides the nodes
    revision: str = ""  # AGENT_MODEL_REVISION, or ''
    args: tuple[str, ...] = ()  # The user's own arguments, which replace the recipe's
    scores: bool = False  # Whether a reward server scores; its URL is `{reward_url}`
    reward_model: str = ""  # The reward model to load on the training GPUs, or ''
    needs_labels: bool = False  # Whether that server is the bundled one, which needs labels
    generation: str = ""  # The address of a server that generates on nodes of its own, or ''
    columns: Mapping[str, bool] | None = None  # Of the training data, and whether they hold lists
    infiniband: bool = False  # Whether this node has an InfiniBand device
    platform: str = ""  # The name of the platform, or ''
    wandb: bool = False
    run_name: str = ""  # AGENT_RUN_NAME; '' for the default
    run_id: str = RUN_ID
    python: str = "python3"  # The Python that has the framework

    @property
    def model_path(self) -> str:
        """Return what the framework loads: the model, or the folder of its pinned revision."""
        return self.basis.folder or self.model

    @property
    def gpu_nodes(self) -> tuple[NodeSize, ...]:
        """Return the nodes with GPUs, or all nodes if none has any."""
        return tuple(node for node in self.nodes if node.gpus) or self.nodes

    @property
    def has_vision(self) -> bool:
        """Return whether the model reads images: by its `config.json`, else by its name."""
        shape = self.basis.model
        if shape is not None and shape.has_vision:
            return True
        return _VISION.search(self.model.rstrip("/").rpartition("/")[2]) is not None

    @property
    def named(self) -> str:
        """Return the name of the run in W&B and on the page."""
        model = self.model.rstrip("/").rpartition("/")[2] or self.model
        return self.run_name or "-".join(filter(None, (self.recipe, model, self.run_id)))

    def has_column(self, name: str) -> bool:
        """Return whether the training data have a column, or may have it."""
        return self.columns is None or name in self.columns


class NodeSplit(Value):
    """The nodes of a run that train, and those that generate."""

    trainer: int
    engines: int
    group: str = ""  # The group of those that generate, if they are one
    setting: str = ""  # What sets the nodes, with `{engines}` and, if need be, `{trainer}`
    idle: float | None = None
    """The share of the last steps in which no engine had a request; None if it is not known."""


class Command(Value):
    """The output of a recipe; it may contain `{head_ip}`, `{reward_url}` and `{rank}`."""

    argv: tuple[str, ...]
    env: Mapping[str, str]  # Environment variables of the job; the user's override them
    why: Mapping[str, str]  # The reason of each derived argument, by its flag or key
    notes: tuple[str, ...] = ()  # Notes for the user: the arithmetic, what cannot be resumed
    warnings: tuple[str, ...] = ()  # What may fail, for the user
    format: Mapping[str, str] = field(default_factory=dict)
    """The settings on which the format of its checkpoints depends, by name."""
    split: NodeSplit | None = None  # Where the command divides the nodes, and no group does


def adapter_warning(rate: str, default: str) -> str:
    """Warn of adapters (LoRA) that would train at the rate of full training; `rate` is its key."""
    return (
        f"adapters (LoRA) train at {default}, the rate of full training, and want a higher one: "
        f"verl's scripts for adapters take 3e-6 to 1e-5. Set {rate}"
    )


def count_of(number: int, thing: str) -> str:
    """Return a count with its noun: 1 GPU, 2 GPUs."""
    ending = "" if number == 1 else "es" if thing.endswith(("s", "ch")) else "s"
    return f"{number} {thing}{ending}"


class GpuGroups(Value):
    """Equal groups of GPUs, each within one node."""

    count: int
    gpus: int  # GPUs of each group

    @property
    def total(self) -> int:
        """Return the GPUs of all groups."""
        return self.count * self.gpus


def engines_text(gpus: int, engines: int, tensor_parallel: int) -> str:
    """Return the arithmetic of engines: 16 GPUs = 8 engines × 2."""
    return f"{count_of(gpus, 'GPU')} = {count_of(engines, 'engine')} × {tensor_parallel}"


class MisfitError(ValueError):
    """A recipe does not fit the nodes, or the installed framework; the message says why."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what


def nearest(target: int, step: int) -> int:
    """Return the multiple of a step nearest to a target, at least one step."""
    return max(1, (target + step // 2) // step) * step


def check_multiple(name: str, size: int, step: int) -> None:
    """Refuse a size that is no multiple of a step."""
    if size % step:
        near = f"the nearest that is: {nearest(size, step)}"
        raise MisfitError(f"AGENT_JOB_ARGS: {name} {size} is no multiple of {step}; {near}")


def engines_misfit(size: int, counts: Iterable[int]) -> MisfitError:
    """Return the refusal of engines that do not fit on nodes of so many GPUs."""
    return MisfitError(
        f"engines of {size} GPUs do not fit nodes of {', '.join(map(str, counts))} GPUs: set "
        "AGENT_TENSOR_PARALLEL to a number that divides them"
    )


def check_cpus(nodes: tuple[NodeSize, ...], needs: Iterable[int]) -> None:
    """Refuse nodes with fewer CPUs than they need."""
    short = [
        f"node {index} has {node.cpus} of {need} CPUs"
        for index, (node, need) in enumerate(zip(nodes, needs, strict=True))
        if node.cpus is not None and node.cpus < need
    ]
    if short:
        why = f"Ray would wait forever for CPUs: {'; '.join(short)}"
        raise MisfitError(f"{why}. It only counts them: raise AGENT_NUM_CPUS on such a node")


def check_columns(asked: RecipeInput, wanted: Mapping[str, str]) -> None:
    """Refuse data that lack columns: flags or keys, and the columns that they name."""
    missing = [f"{key} {column}" for key, column in wanted.items() if not asked.has_column(column)]
    if missing:
        what = f"has no column for {' and '.join(missing)}, only {', '.join(asked.columns or ())}"
        raise MisfitError(f"AGENT_TRAIN_DATA {what}: name its columns by these in AGENT_JOB_ARGS")


_RELEASE = re.compile(r"v?(\d{1,6}(?:\.\d{1,6})*)(.*)", re.DOTALL)
_NO_CHANGE = re.compile(r"(?:\.?post\d+)?(?:\+[\w.]+)?")
"""Suffixes that do not change a release: 0.9.1.post1, 0.9.1+cu128."""


def choose(known: Sequence[Version], text: str) -> tuple[Version, str]:
    """Return the nearest known version, and a warning if it is another one.

    It is the newest one that is not newer, since a later release usually has the flags of the one
    before it; a text without a release number is taken for the newest. A patch before the first
    known one of its minor release is returned as it is, since a recipe may distinguish patches.
    """
    numbers = _RELEASE.fullmatch(text.strip())
    if numbers is None:
        return known[-1], _taken_for(text.strip() or "its version", known[-1])

    # A minor release without a patch is its newest patch.
    release = tuple(int(part) for part in numbers[1].split("."))
    rest = numbers[2]
    padded = (*release, 0)[: max(len(release), 3)]
    minor = [version for version in known if version[:2] == padded[:2]]
    if len(release) == 2 and minor and not rest:
        return minor[-1], ""

    # A patch of a known minor release.
    if minor and padded < minor[0]:
        return padded, f"{text} is older than {version_text(minor[0])}, the first that is known"

    # The newest one that is not newer.
    lower = [version for version in known if version <= padded]
    nearest_one = lower[-1] if lower else known[0]
    if nearest_one == padded and _NO_CHANGE.fullmatch(rest):
        return padded, ""
    return nearest_one, _taken_for(text, nearest_one)


def _taken_for(text: str, version: Version) -> str:
    return f"{text} is not known, and is taken for {version_text(version)}"


def equal_gpus(asked: RecipeInput, framework: str) -> int:
    """Return the GPUs of each node that trains, where a framework wants as many on all."""
    counts = sorted({node.gpus for node in asked.gpu_nodes})
    if counts[0] == 0:
        raise MisfitError(f"{framework} trains on GPUs, and no node has one")
    if len(counts) > 1:
        listed = " and ".join(map(str, counts))
        raise MisfitError(f"nodes of {listed} GPUs train: {framework} wants as many on each")
    return counts[0]


def gpu_processes(nodes: tuple[NodeSize, ...]) -> int:
    """Return the number of processes with a GPU each; 0 if no node has GPUs."""
    # processes without one have another backend: the first collective would wait forever
    gpus = [node.gpus for node in nodes]
    if any(gpus) and not all(gpus):
        raise MisfitError(f"torchrun uses all nodes, and node {gpus.index(0)} has no GPU")
    return sum(gpus)
