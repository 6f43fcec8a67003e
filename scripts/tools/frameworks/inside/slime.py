"""slime's own parser, with Megatron's: both read the recipe's flags and check their values.

What is not here is a stand-in: SGLang's classes, the engines' replies, the GPUs. Megatron's parser
ignores what it does not know; here that is refused.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from agent.bundled.ask_framework import RefusedError, refusing
from tools.frameworks.faults import Case, Fault
from tools.frameworks.inside import stub_modules
from tools.frameworks.inside.exchange import answer
from tools.frameworks.placement import Cluster, WaitsForEverError

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAVY = {
    *("sglang", "sglang_router", "ray", "wandb", "mbridge", "transformer_engine", "apex", "triton"),
    *("tensorstore", "zarr", "nvidia_resiliency_ext", "multistorageclient", "flash_attn", "six"),
    *("tensorboard", "modelopt", "pylatexenc", "httpx", "aiohttp", "sentencepiece", "tiktoken"),
    *("nltk", "flask", "flask_restful"),
}
"""Modules that both import at the top; torch and transformers are real."""
MODEL = "Qwen/Qwen2.5-7B-Instruct"
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "intermediate_size": 18944,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
}
"""The model's own file: slime compares it with the flags of scripts/models."""
ENGINE = {"tp_size": 1, "pp_size": 1, "num_gpus": 1, "disaggregation_mode": "null"}
"""What an engine replies to /server_info."""
OF_SGLANG = {"sglang_pp_size": 1, "sglang_dp_size": 1, "sglang_ep_size": 1, "sglang_moe_dp_size": 1}


def judge(checkouts: Path, cases: Sequence[Case]) -> dict[str, list[Fault]]:
    """Check all cases with slime and Megatron, which are folders in `checkouts`."""
    stub_modules.install(HEAVY)
    sys.path[:0] = [str(checkouts / "slime"), str(checkouts / "megatron")]
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    torch = importlib.import_module("torch")
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)
    logging.disable(logging.CRITICAL)

    # The folder of the model, as the nodes have it.
    model = Path.cwd() / MODEL
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return {case.name: judge_one(checkouts / "slime", case) for case in cases}


def judge_one(slime: Path, case: Case) -> list[Fault]:
    """Run slime's parse_args on one command, and place what it asks Ray for."""
    _shell, file, _python, script, *flags = case.argv
    faults = [] if (slime / script).is_file() else [Fault("refused", f"slime has no {script}")]
    words = [*flags, *model_args(slime / file)]
    given = [word for word in words if word.startswith("--")]
    faults += [Fault("twice", flag) for flag in dict.fromkeys(given) if given.count(flag) > 1]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            args, unknown = parsed(words)
    except RefusedError as error:
        return [*faults, Fault("refused", str(error))]
    except (AssertionError, ValueError, FileNotFoundError) as error:
        what = str(error) or "an assertion without a message"
        return [*faults, Fault("refused", f"{type(error).__name__}: {what}")]
    faults += [Fault("refused", f"no parser has {flag}") for flag in unknown]
    faults += batch_faults(args)
    return faults + placed(case, args)


def model_args(file: Path) -> list[str]:
    """Return what a file of scripts/models says of a model, as the command's shell reads it."""
    script = 'source "$0" && printf "%s\\0" "${MODEL_ARGS[@]}"'
    done = subprocess.run(
        ["bash", "-c", script, str(file)], capture_output=True, text=True, check=True
    )
    return done.stdout.split("\0")[:-1]


def parsed(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Return slime's own arguments, all checked by it and by Megatron, and unknown flags."""
    external = importlib.import_module("slime.backends.sglang_utils.external")
    arguments = importlib.import_module("slime.utils.arguments")
    parse = argparse.ArgumentParser.parse_known_args
    rests: list[list[str]] = []

    def parse_known_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - argparse's
        self.allow_abbrev = False
        namespace, rest = parse(self, *args, **kwargs)
        rests.append(rest)
        return namespace, rest

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_known_args", parse_known_args),
        mock.patch.object(
            arguments, "sglang_parse_args", return_value=SimpleNamespace(**OF_SGLANG)
        ),
        mock.patch.object(external, "get_server_info", return_value=ENGINE),
        mock.patch.object(sys, "argv", ["train.py", *words]),
        refusing(),
    ):
        args = arguments.parse_args()
    return args, [word for word in rests[-1] if word.startswith("--")]


def batch_faults(args: Any) -> list[Fault]:  # noqa: ANN401 - a namespace of slime's
    """Check that the copies of the model share the answers of an update evenly."""
    one = args.tensor_model_parallel_size * args.pipeline_model_parallel_size
    copies = args.world_size // (one * args.context_parallel_size)
    if args.global_batch_size % copies:
        what = f"a batch of {args.global_batch_size} for {copies} copies"
        return [Fault("refused", what)]
    answers = args.rollout_batch_size * args.n_samples_per_prompt
    if answers % args.global_batch_size:
        return [Fault("ignored", f"{answers} answers are no multiple of the batch")]
    return []


def placed(case: Case, args: Any) -> list[Fault]:  # noqa: ANN401 - a namespace of slime's
    """Place the trainer's GPUs, as slime's `_create_placement_group` asks Ray for them."""
    gpus = args.actor_num_nodes * args.actor_num_gpus_per_node
    try:
        for roomy in (True, False):
            cluster = Cluster(case.nodes, roomy=roomy)
            cluster.group([{"GPU": 1, "CPU": 1} for _ in range(gpus)], "PACK")
    except WaitsForEverError as error:
        return [Fault("waits", str(error))]
    return []


if __name__ == "__main__":
    answer(judge)
