"""Quantized models: refused before a GPU is rented, with what makes their weights whole."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.frameworks.recipe import JobBasis, MisfitError, ModelShape, quantized_by_name
from agent.job.job import command_of
from agent.settings.jobs import RECIPES
from support.asked_recipes import asked

PLAIN = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}


def basis_of(*, further: int = 0, **quantization: object) -> JobBasis:
    """Return the shape of a model whose `config.json` has this `quantization_config`."""
    config: dict[str, object] = {**PLAIN, "num_nextn_predict_layers": further}
    if quantization:
        config |= {"quantization_config": quantization}
    return JobBasis(ModelShape.from_config(config))


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "awq"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq"),
        ("Qwen/Qwen3-8B-FP8", "fp8"),
        ("RedHatAI/Qwen3-32B-quantized.w4a16", "w4a16"),
        ("unsloth/Qwen3-8B-bnb-4bit", "bnb"),
        ("Qwen/Qwen3-8B-GGUF/", "gguf"),
        ("nvidia/Llama-3.3-70B-Instruct-NVFP4", "nvfp4"),
        ("deepseek-ai/DeepSeek-V3", "fp8"),
        ("deepseek-ai/DeepSeek-R1-0528", "fp8"),
        ("openai/gpt-oss-20b", "mxfp4"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", ""),
        ("unsloth/gpt-oss-20b-BF16", ""),
        ("/models/DeepSeek-V3-bf16", ""),
        ("Qwen/Qwen2.5-7B-Instruct", ""),
        ("mistralai/Mixtral-8x7B-v0.1", ""),
        ("inception/Mint4Kids-7B", ""),
    ],
)
def test_the_name_says_it(name: str, method: str) -> None:
    """The usual endings, and families whose makers published them so."""
    assert quantized_by_name(name) == method


@pytest.mark.parametrize(
    ("model", "basis", "said"),
    [
        ("some/model", basis_of(quant_method="awq"), r"\(awq, by config.json\).*from which it was"),
        ("some/model", basis_of(quant_method="fp8"), r"fp8_cast_bf16.py.*num_nextn_predict_layers"),
        ("openai/gpt-oss-20b", JobBasis(), r"\(mxfp4, by its name\).*dequantize=True"),
    ],
)
def test_no_framework_trains_it(model: str, basis: JobBasis, said: str) -> None:
    """Every recipe refuses it with the method, its source and the remedy."""
    for known in RECIPES:
        if known.framework:
            given = replace(asked(f"{known.name} 2x8"), model=model, basis=basis)
            with pytest.raises(MisfitError, match=said):
                command_of(known, given)


def test_a_config_decides_over_the_name() -> None:
    """A copy that is whole keeps its name."""
    known = next(known for known in RECIPES if known.name == "verl-grpo")
    given = replace(asked("verl-grpo 2x8"), model="/models/Qwen3-8B-FP8", basis=basis_of())
    assert command_of(known, given).argv


def test_layers_that_predict_further_tokens() -> None:
    """Megatron in verl loads such a model from 0.7.1 on, which leaves them out."""
    known = next(known for known in RECIPES if known.name == "verl-grpo")
    given = replace(asked("verl-grpo==0.7.0 2x8"), backend="megatron", basis=basis_of(further=1))
    with pytest.raises(MisfitError, match="num_nextn_predict_layers to 0"):
        command_of(known, given)
    assert command_of(known, replace(given, version=(0, 7, 1))).argv
