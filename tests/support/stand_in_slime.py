"""A stand-in for slime: its folder, and the SGLang of its image.

`train.py` reads the recipe's arguments as strictly as slime and Megatron, asks Ray for slime's
placement, and trains as the asynchronous rehearsal does: with slime's requests to its engines, in
slime's order and without patience. `python3 -m sglang.launch_server` is the rehearsal's engine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SWITCHES = {
    *("update-weight-disk-keep-files", "apply-chat-template", "rollout-shuffle", "balance-data"),
    *("use-dynamic-batch-size", "use-kl-loss", "optimizer-cpu-offload", "sequence-parallel"),
    *("overlap-cpu-optimizer-d2h-h2d", "use-precision-aware-optimizer", "use-wandb"),
    *("accumulate-allreduce-grads-in-fp32", "attention-softmax-in-fp32"),
    *("disable-wandb-random-suffix", "swiglu"),
}
TEXTS = {
    *("update-weight-mode", "update-weight-transport", "update-weight-disk-dir", "hf-checkpoint"),
    *("ref-load", "load", "save", "prompt-data", "input-key", "label-key", "rm-type", "rm-url"),
    *("advantage-estimator", "kl-loss-type", "optimizer", "lr-decay-style", "wandb-project"),
    *("recompute-granularity", "recompute-method", "attention-backend", "wandb-group"),
}
NUMBERS = {
    *("actor-num-nodes", "actor-num-gpus-per-node", "num-gpus-per-node", "save-interval"),
    *("rollout-num-gpus-per-engine", "eval-interval", "eval-max-response-len", "num-rollout"),
    *("rollout-batch-size", "n-samples-per-prompt", "global-batch-size", "max-tokens-per-gpu"),
    *("rollout-max-response-len", "tensor-model-parallel-size", "pipeline-model-parallel-size"),
    *("context-parallel-size", "expert-model-parallel-size", "expert-tensor-parallel-size"),
    *("recompute-num-layers", "num-layers"),
}
DECIMALS = {
    *("eval-top-p", "rollout-temperature", "kl-loss-coef", "entropy-coef", "eps-clip"),
    *("eps-clip-high", "lr", "weight-decay", "adam-beta1", "adam-beta2", "attention-dropout"),
    "hidden-dropout",
}
"""The flags of slime 0.3.1 and of Megatron that the recipe may set."""

_TRAIN = """import sys

sys.path[:0] = {path!r}
from support.stand_in_slime import main

main(sys.argv[1:], "{steps}")
"""
_ENGINE = """import os
import sys

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
os.execv({python!r}, [
    {python!r}, "-m", "agent", "rehearsal-engine", "--host", options["--host"],
    "--port", options["--port"], "--load-seconds", "0.5", "--seconds-per-request", "0.02",
    "--log", f"{log}/engine-{{options['--port']}}-{{os.getpid()}}.jsonl",
])
"""


def install(place: Path, tests: str, repo: str, shared: str, steps: int) -> None:
    """Write slime's folder, and the packages of its image."""
    path = [tests, repo]
    (place / "scripts/models").mkdir(parents=True)
    (place / "scripts/models/qwen3-4B.sh").write_text(
        "MODEL_ARGS=(\n   --swiglu\n   --num-layers 36\n)\n"
    )
    for name in ("train.py", "train_async.py"):
        (place / name).write_text(_TRAIN.format(path=path, steps=steps))
    packages = place / "packages"
    for name in ("slime", "sglang", "slime-0.3.1.dist-info"):
        (packages / name).mkdir(parents=True)
    for name in ("slime", "sglang"):
        (packages / name / "__init__.py").touch()
    engine = _ENGINE.format(python=sys.executable, log=shared)
    (packages / "sglang/launch_server.py").write_text(engine)


def options_of(words: list[str]) -> argparse.Namespace:
    """Read the arguments; one that is not known ends the program."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for kind, names in ((int, NUMBERS), (str, TEXTS), (float, DECIMALS)):
        for name in names:
            parser.add_argument(f"--{name}", type=kind)
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--rollout-external-engine-addrs", nargs="+", required=True)
    parser.add_argument("--eval-prompt-data", nargs="+")
    options = parser.parse_args(words)
    world = options.actor_num_nodes * options.actor_num_gpus_per_node
    one = options.tensor_model_parallel_size * options.pipeline_model_parallel_size
    copies = world // (one * options.context_parallel_size)
    if options.global_batch_size % copies:
        parser.error(f"a batch of {options.global_batch_size} for {copies} copies of the model")
    if options.num_layers is None:
        parser.error("Megatron is told nothing about the model")
    if any(":" not in one or "," in one for one in options.rollout_external_engine_addrs):
        parser.error(f"no addresses: {options.rollout_external_engine_addrs}")
    return options


def main(words: list[str], steps: str) -> None:
    """Place the ranks, train, and save a checkpoint as Megatron does."""
    from agent.bundled import rehearsal_async  # noqa: PLC0415 - the path is set before
    from support.stand_in_frameworks import Work, place_ranks  # noqa: PLC0415 - same

    options = options_of(words)
    groups = options.actor_num_nodes
    gpus = options.actor_num_gpus_per_node
    work = Work(1, groups * gpus, 1, "PACK", options.hf_checkpoint, options.save, "")
    where = place_ranks(work)
    print(f"slime: {groups} x {gpus} GPUs, model {options.hf_checkpoint}", flush=True)
    print(f"on {' '.join(sorted(where))}", flush=True)
    tracker = Path(options.load) / "latest_checkpointed_iteration.txt"
    print(f"from {tracker.read_text() if tracker.is_file() else options.ref_load}", flush=True)
    keep = ["--keep"] if options.update_weight_disk_keep_files else []
    code = rehearsal_async.main(
        [
            *("--engines", *options.rollout_external_engine_addrs),
            *("--weights-dir", options.update_weight_disk_dir, *keep),
            *("--samples", f"{options.save}/samples.jsonl"),
            *("--reward-url", options.rm_url, "--steps", steps, "--seconds-per-step", "0.5"),
        ]
    )
    if code == 0:
        (Path(options.save) / "iter_0000020").mkdir(parents=True, exist_ok=True)
        (Path(options.save) / tracker.name).write_text("20")
    sys.exit(code)
