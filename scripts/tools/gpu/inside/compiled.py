"""Compile a model by torch.compile and train two steps; print how long each took.

What `AGENT_CACHE_DIR` is to save: a second process with the same caches starts faster.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from typing import Any

import psutil


def main() -> None:
    """Train two steps, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    options = parser.parse_args()
    began = psutil.Process().create_time()
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    config = transformers.Qwen2Config(
        vocab_size=8192,
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        use_cache=False,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model)
    words = torch.randint(0, 8192, (4, 256), device=device)
    ready = time.time()

    def step() -> float:
        with torch.autocast(device, torch.bfloat16):
            loss = compiled(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    losses = [step()]
    first = time.time()
    losses.append(step())
    second = time.time()
    counters = importlib.import_module("torch._dynamo.utils").counters
    caches = {
        name: int(count)
        for group in ("inductor", "aot_autograd")
        for name, count in counters[group].items()
        if "cache" in name
    }
    figures = {
        "start_to_first_step": round(first - began, 2),
        "imports_and_model": round(ready - began, 2),
        "first_step": round(first - ready, 2),
        "second_step": round(second - first, 3),
        "losses": losses,
        "caches": caches,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
