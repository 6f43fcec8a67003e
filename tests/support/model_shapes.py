"""The shapes of known models, by the fields of their `config.json`."""

from __future__ import annotations

from agent.frameworks.recipe import ModelShape


def shape(**fields: object) -> ModelShape:
    """Return the shape that these fields describe."""
    known = ModelShape.from_config(fields)
    assert known is not None
    return known


QWEN2_5_7B_CONFIG = {
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152_064,
    "tie_word_embeddings": False,
}
QWEN2_5_7B = shape(**QWEN2_5_7B_CONFIG)
LLAMA_8B_CONFIG = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128_256,
    "tie_word_embeddings": False,
}
QWEN3_8B = shape(
    hidden_size=4096,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=12288,
    vocab_size=151_936,
    tie_word_embeddings=False,
)
QWEN2_5_32B = shape(
    hidden_size=5120,
    num_hidden_layers=64,
    num_attention_heads=40,
    num_key_value_heads=8,
    intermediate_size=27648,
    vocab_size=152_064,
    tie_word_embeddings=False,
)
QWEN3_30B = shape(
    hidden_size=2048,
    num_hidden_layers=48,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    intermediate_size=6144,
    moe_intermediate_size=768,
    num_experts=128,
    num_experts_per_tok=8,
    vocab_size=151_936,
    tie_word_embeddings=False,
)
QWEN3_235B = shape(
    hidden_size=4096,
    num_hidden_layers=94,
    num_attention_heads=64,
    num_key_value_heads=4,
    head_dim=128,
    intermediate_size=12288,
    moe_intermediate_size=1536,
    num_experts=128,
    num_experts_per_tok=8,
    vocab_size=151_936,
    tie_word_embeddings=False,
)
DEEPSEEK_V3 = shape(
    hidden_size=7168,
    num_hidden_layers=61,
    num_attention_heads=128,
    num_key_value_heads=128,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    first_k_dense_replace=3,
    vocab_size=129_280,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    tie_word_embeddings=False,
)
