"""verl's own collection of adapters for the engines, run by gloo with a small model on CPUs.

Wrapping, summoning and names are verl's; devices are CPUs. What is collected is compared with the
adapters as they were before they were sharded.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import peft
import torch
import transformers
from torch.distributed import fsdp

UTILS = "verl/utils/fsdp_utils.py"
LAYERS = 2


def utils_of(package: Path) -> ModuleType:
    """Load verl's module with the collection alone; its device is the CPU."""
    nothing = SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None)
    uses: dict[str, dict[str, object]] = {
        "verl.utils.device": {
            "get_device_id": lambda: "cpu",
            "get_device_name": lambda: "cpu",
            "get_torch_device": lambda: nothing,
        },
        "verl.utils.model": {"check_exclude_modules": None, "check_target_modules": None},
    }
    for name in ("verl", "verl.utils", *uses):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(uses.get(name, {}))
    spec = importlib.util.spec_from_file_location("fsdp_utils", package / UTILS)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - the file is there
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def adapted(rank: int) -> Any:  # noqa: ANN401 - peft's
    """Return a small Qwen2 with adapters of all linear layers, none of them zero."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    model = transformers.Qwen2ForCausalLM(config)
    lora = peft.LoraConfig(r=rank, target_modules="all-linear", init_lora_weights=False)
    return peft.get_peft_model(model, lora)


def sharded(utils: ModuleType, model: Any, strategy: str) -> Any:  # noqa: ANN401 - torch's
    """Return the model as verl's worker shards it: by FSDP 1 or 2."""
    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    if strategy == "fsdp2":
        layers = {"wrap_policy": {"transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"]}}
        utils.apply_fsdp2(model, {"mesh": mesh, "reshard_after_forward": True}, layers)
        return model
    policy = utils.get_fsdp_wrap_policy(module=model, config=None, is_lora=True)
    return fsdp.FullyShardedDataParallel(
        model, auto_wrap_policy=policy, device_mesh=mesh, device_id=torch.device("cpu")
    )


def collect(asked: dict[str, Any]) -> str:
    """Collect the adapters of one model; return '' or what is wrong."""
    utils = utils_of(Path(asked["package"]))
    model = adapted(asked["rank"])
    weights = peft.get_peft_model_state_dict(model)
    expected = {short(name): value.clone() for name, value in weights.items()}
    module = sharded(utils, model, asked["strategy"])
    try:
        collected = utils.collect_lora_params(
            module, layered_summon=asked["layered"], base_sync_done=True
        )
    except NotImplementedError as error:
        return str(error)
    found = {short(name): value for name, value in collected.items()}
    if missing := expected.keys() ^ found.keys():
        return f"{len(missing)} of {len(expected)} names differ: {min(missing)}"
    wrong = [name for name in expected if not torch.equal(expected[name], found[name])]
    return f"other values: {wrong[0]}" if wrong else ""


def short(name: str) -> str:
    """Return a parameter's name without what wraps the model."""
    return name.replace("_fsdp_wrapped_module.", "").rpartition("base_model.model.")[2]


def main() -> None:
    """Collect as the first argument asks; the first process prints the end."""
    torch.distributed.init_process_group("gloo")
    end = collect(json.loads(sys.argv[1]))
    if torch.distributed.get_rank() == 0:
        print(json.dumps(end))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
