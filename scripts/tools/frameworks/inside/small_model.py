"""Make a small model to train: a Qwen2, its tokenizer, and sums as data."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

DIGITS = "0123456789"
SPECIAL = {"unknown": {"unk_token": " "}, "ends": {"pad_token": "<pad>", "eos_token": "<eos>"}}
ANSWER = "7"
"""A single token that is right for every prompt: quick to learn, and easy to check."""
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
LAYERS = 2


def make(folder: Path, layers: int = LAYERS) -> None:
    """Write model/, train.jsonl, and verl's train.parquet; nothing is downloaded."""
    transformers = importlib.import_module("transformers")
    tokenizers = importlib.import_module("tokenizers")
    words = [*DIGITS, *"+= ", "<pad>", "<eos>"]
    numbers = {word: number for number, word in enumerate(words)}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, **SPECIAL["unknown"]))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    raw.decoder = tokenizers.decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **SPECIAL["ends"])
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder / "model")
    config = transformers.Qwen2Config(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        pad_token_id=numbers["<pad>"],
        eos_token_id=numbers["<eos>"],
    )
    importlib.import_module("torch").manual_seed(0)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder / "model")
    rows = [{"input": f"{a}+{b}=", "label": ANSWER} for a in DIGITS for b in DIGITS]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(text, encoding="utf-8")
    chats = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": row["input"]}],
            "reward_model": {"style": "rule", "ground_truth": row["label"]},
        }
        for row in rows
    ]
    table = importlib.import_module("pyarrow").Table.from_pylist(chats)
    importlib.import_module("pyarrow.parquet").write_table(table, folder / "train.parquet")


if __name__ == "__main__":
    make(Path(sys.argv[1]), *map(int, sys.argv[2:]))
