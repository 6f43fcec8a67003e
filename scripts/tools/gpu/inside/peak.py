"""Train two steps by the bundled trainer; print the peak of the memory.

The model is made on the spot. The trainer runs unchanged, apart from its checkpoints: nothing is
saved. Its figures are the last line.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

ROWS = 64
RSS = 1024  # ru_maxrss is in KiB


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--folder", "--trainer", "--config", "--reward-url"):
        parser.add_argument(name, required=True)
    parser.add_argument("--answers", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args()


def make(folder: Path, config: dict[str, Any], torch: Any) -> int:  # noqa: ANN401 - the module
    """Write a model of random weights in bf16, its tokenizer and data; return its parameters."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    small = importlib.import_module("tools.frameworks.inside.small_model")
    transformers = importlib.import_module("transformers")
    folder.mkdir(parents=True)
    small.make(folder)
    for weights in (folder / "model").glob("*.safetensors"):
        weights.unlink()  # the small model's own
    numbers = {"bos_token_id": None, "pad_token_id": 13, "eos_token_id": 14}
    qwen = transformers.Qwen2Config(**config, **numbers)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.Qwen2ForCausalLM(qwen)
    torch.set_default_dtype(torch.float32)
    count: int = sum(one.numel() for one in model.parameters())
    model.save_pretrained(folder / "model")
    del model
    if device == "cuda":
        torch.cuda.empty_cache()
    rows = [{"input": f"{number}+1=", "label": "7"} for number in range(ROWS)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(text, encoding="utf-8")
    return count


def main() -> None:
    """Train, and print the figures."""
    began = time.monotonic()
    options = parsed()
    torch = importlib.import_module("torch")
    trl = importlib.import_module("trl")
    folder, has_gpu = Path(options.folder), torch.cuda.is_available()
    seconds = {"imports": time.monotonic() - began}
    figures: dict[str, Any] = {}
    try:
        figures["parameters"] = make(folder, json.loads(options.config), torch)
        seconds["model"] = time.monotonic() - began
        if has_gpu:
            torch.cuda.reset_peak_memory_stats()
        train(options, folder, trl, torch, figures, seconds, began)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if has_gpu:
        free, total = torch.cuda.mem_get_info()
        figures["allocated"] = torch.cuda.max_memory_allocated()
        figures["reserved"] = torch.cuda.max_memory_reserved()
        figures["free_and_total"] = [free, total]
    else:
        figures["used"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS
    seconds["end"] = time.monotonic() - began
    figures["seconds"] = {name: round(value, 1) for name, value in seconds.items()}
    print(json.dumps(figures), flush=True)


def train(  # noqa: PLR0913 - what the hooks write to
    options: argparse.Namespace,
    folder: Path,
    trl: Any,  # noqa: ANN401 - the module
    torch: Any,  # noqa: ANN401 - the module
    figures: dict[str, Any],
    seconds: dict[str, float],
    began: float,
) -> None:
    """Run the bundled trainer for two steps."""
    spec = importlib.util.spec_from_file_location("trl_grpo", options.trainer)
    if spec is None or spec.loader is None:
        raise SystemExit(f"no trainer {options.trainer}")
    trainer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trainer)
    whole_train = trl.GRPOTrainer.train

    def noted_train(self: Any, *words: Any, **named: Any) -> Any:  # noqa: ANN401 - TRL's own
        seconds["loaded"] = time.monotonic() - began
        used = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        figures["after_loading"] = used
        done = whole_train(self, *words, **named)
        seconds["trained"] = time.monotonic() - began
        return done

    trl.GRPOTrainer.train = noted_train
    trl.GRPOTrainer.save_model = lambda *_, **__: None
    argv = ["--model", str(folder / "model"), "--data", str(folder / "train.jsonl")]
    argv += ["--reward-url", options.reward_url, "--checkpoints", str(folder / "checkpoints")]
    argv += ["--max-steps", "2", "--per-device-train-batch-size", str(options.answers)]
    argv += ["--num-generations", "8", "--max-completion-length", str(options.length)]
    argv += ["--cpu"] if options.cpu else []
    argv += ["--config", "save_strategy=no"]
    code = trainer.main(argv)
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    main()
