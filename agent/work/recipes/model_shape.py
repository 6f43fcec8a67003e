"""The shape of a language model, from its `config.json` or from the size in its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.base.value import Count, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = "config.json"
"""Where a shape is exact; any other source is an estimate."""
WEIGHT = 2
"""Bytes of a weight in bf16."""
_LOGIT = 6
"""Bytes of a logit: in bf16 and in float32."""


class ModelShape(Value):
    """The facts of a model from which its memory follows."""

    parameters: Count
    layers: Count
    hidden: Count
    wide: Count
    """The width of the feed-forward part that a token passes."""
    cached: Count
    """Values of a token in the KV cache, in all layers."""
    vocabulary: Count
    heads: Count = 0
    """0 if not known."""
    kv_heads: Count = 8
    source: str = CONFIG
    """What these facts were read from."""

    @property
    def billions(self) -> str:
        """Return the parameters for a message: 7.6 B."""
        return f"{self.parameters / 1e9:.3g} B"

    @property
    def weights(self) -> int:
        """Return the bytes of all weights."""
        return WEIGHT * self.parameters

    @property
    def token(self) -> int:
        """Return the bytes of a token in a training step, with gradient checkpointing.

        These are its input of each layer, the values of the layer that is computed again, and its
        logits.
        """
        layer = 12 * self.hidden + 4 * self.wide
        return WEIGHT * (self.layers * self.hidden + layer) + _LOGIT * self.vocabulary

    @property
    def gathered(self) -> int:
        """Return the bytes of the layers that sharded training holds whole: two at a time."""
        embedding = self.vocabulary * self.hidden
        return 2 * WEIGHT * max(embedding, (self.parameters - embedding) // self.layers)

    @staticmethod
    def from_config(config: Mapping[str, object]) -> ModelShape | None:
        """Return the shape that a `config.json` describes; None if it lacks the usual fields."""
        text = config.get("text_config")
        main = {**config, **text} if isinstance(text, dict) else config
        hidden, layers = _number(main, "hidden_size"), _number(main, "num_hidden_layers")
        heads, vocabulary = _number(main, "num_attention_heads"), _number(main, "vocab_size")
        if not (hidden and layers and heads and vocabulary):
            return None
        kv_heads = _number(main, "num_key_value_heads") or heads
        head = _number(main, "head_dim") or hidden // heads
        attention = 2 * hidden * head * (heads + kv_heads)
        dense, active, experts = _feed_forward(main, hidden)
        sparse = 0 if not experts else max(0, layers - _number(main, "first_k_dense_replace"))
        copies = 1 if main.get("tie_word_embeddings") else 2
        parameters = layers * (attention + 2 * hidden) + copies * vocabulary * hidden + hidden
        parameters += sparse * experts + (layers - sparse) * dense
        latent = _number(main, "kv_lora_rank")
        each = latent + _number(main, "qk_rope_head_dim") if latent else 2 * kv_heads * head
        return ModelShape(
            parameters=parameters + _vision(config),
            layers=layers,
            hidden=hidden,
            wide=active,
            cached=layers * each,
            vocabulary=vocabulary,
            heads=heads,
            kv_heads=kv_heads,
        )

    @staticmethod
    def from_name(name: str, source: str = "") -> ModelShape | None:
        """Estimate a shape from the size in a model's name, such as 7B, 30B-A3B or 8x7B."""
        found = _SIZE.search(name)
        if found is None:
            return None
        unit = 1e9 if found["unit"] in "bB" else 1e6
        parameters = int(float(found["size"]) * int(found["times"] or 1) * unit)
        active = int(float(found["active"]) * 1e9) if found["active"] else parameters
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
            source=source or f"the name {name}",
        )


def shape_of(name: str, config: Mapping[str, object] | None) -> ModelShape | None:
    """Return the shape of a model from its `config.json`, else from its name; None if unknown."""
    exact = None if config is None else ModelShape.from_config(config)
    return exact or ModelShape.from_name(name.rstrip("/").rpartition("/")[2])


_SIZE = re.compile(
    r"(?<![\w.])(?:(?P<times>\d{1,3})x)?(?P<size>\d{1,5}(?:\.\d{1,3})?)(?P<unit>[bBmM])"
    r"(?:-[aA](?P<active>\d{1,4}(?:\.\d{1,3})?)[bB])?(?![A-Za-z0-9])"
)
_MOST_PARAMETERS = 10**14
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def _number(config: Mapping[str, object], *names: str) -> int:
    """Return the first of these fields that is a whole number, else 0."""
    values = (config.get(name) for name in names)
    return next((n for n in values if isinstance(n, int) and 0 < n < _MOST_PARAMETERS), 0)


def _feed_forward(config: Mapping[str, object], hidden: int) -> tuple[int, int, int]:
    """Return a dense layer's parameters, the width that a token passes, and those of experts."""
    width = _number(config, "intermediate_size") or 4 * hidden
    experts = _number(config, *_EXPERTS)
    if not experts:
        return 3 * hidden * width, width, 0
    one = _number(config, "moe_intermediate_size") or width
    shared = _number(config, "shared_expert_intermediate_size")
    shared = shared or one * _number(config, "n_shared_experts")
    active = one * (_number(config, "num_experts_per_tok") or 2) + shared
    return 3 * hidden * width, active, 3 * hidden * (one * experts + shared) + hidden * experts


def _vision(config: Mapping[str, object]) -> int:
    """Return the parameters of a vision tower."""
    tower = config.get("vision_config")
    if not isinstance(tower, dict):
        return 0
    hidden, depth = _number(tower, "hidden_size"), _number(tower, "depth", "num_hidden_layers")
    return depth * (4 * hidden + 3 * (_number(tower, "intermediate_size") or 4 * hidden)) * hidden
