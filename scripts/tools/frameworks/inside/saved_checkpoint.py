"""verl's own manager of checkpoints, run by gloo with a small model on CPUs.

After one update a checkpoint is saved; after another one it is loaded, and that update is repeated:
it must give the same weights, so that weights, optimizer and all else were saved.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tools.frameworks.inside.collected_adapters import adapted, sharded, utils_of

CONTENTS = ["model", "optimizer", "extra"]


def manager_of(package: Path) -> Any:  # noqa: ANN401 - verl's class
    """Load verl's class of the manager; folders are local, and nothing is logged."""
    name = "verl.utils.checkpoint"
    uses: dict[str, dict[str, object]] = {
        "verl.utils.fs": {
            "copy_to_local": lambda path, **_: path,
            "is_non_local": lambda _: False,
            "local_mkdir_safe": make_folder,
        },
        "verl.utils.logger": {"log_with_rank": lambda *_, **__: None},
        "verl.utils.transformers_compat": {
            "drop_tied_target_keys": None,
            "get_auto_model_for_vision2seq": None,
        },
        "verl.trainer": {},
        "verl.trainer.config": {"CheckpointConfig": dict},
        name: {"__path__": [str(package / name.replace(".", "/"))]},
    }
    for module, contents in uses.items():
        sys.modules[module] = ModuleType(module)
        sys.modules[module].__dict__.update(contents)
    device = sys.modules["verl.utils.device"].__dict__
    device.update(is_cuda_available=False, is_device_available=lambda: False)
    return importlib.import_module(f"{name}.fsdp_checkpoint_manager").FSDPCheckpointManager


def make_folder(path: str) -> str:
    """Make a folder as verl's `local_mkdir_safe` does."""
    Path(path).mkdir(parents=True, exist_ok=True)
    return path


def save_and_load(asked: dict[str, Any]) -> str:
    """Save and load a checkpoint; return '' or what is wrong."""
    package = Path(asked["package"])
    utils = utils_of(package)
    sys.modules["verl.utils.fsdp_utils"] = utils
    manager_class = manager_of(package)
    model = adapted(asked["rank"]).unload().requires_grad_(requires_grad=True)
    module = sharded(utils, model, asked["strategy"])
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    contents = {"save_contents": CONTENTS, "load_contents": CONTENTS}
    manager = manager_class(module, optimizer, checkpoint_config=contents)

    update(module, optimizer)
    manager.save_checkpoint(asked["folder"], global_step=1)
    saved = weights_of(module)
    update(module, optimizer)
    further = weights_of(module)
    if are_equal(saved, further):
        return "an update changes nothing"
    manager.load_checkpoint(asked["folder"])
    if not are_equal(saved, weights_of(module)):
        return "other weights are loaded"
    update(module, optimizer)
    return "" if are_equal(further, weights_of(module)) else "the optimizer is not loaded"


def update(module: Any, optimizer: torch.optim.Optimizer) -> None:  # noqa: ANN401 - torch's
    """Train on one made-up text."""
    text = torch.arange(8)[None]
    module(input_ids=text, labels=text).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def weights_of(module: Any) -> list[Any]:  # noqa: ANN401 - torch's
    """Return copies of this process's shards."""
    weights = [getattr(each, "to_local", each.detach)() for each in module.parameters()]
    return [weight.detach().clone() for weight in weights]


def are_equal(some: list[Any], others: list[Any]) -> bool:
    """Return whether all weights are the same."""
    return all(map(torch.equal, some, others))


def main() -> None:
    """Save and load as the first argument asks; the first process prints the end."""
    torch.distributed.init_process_group("gloo")
    end = save_and_load({**json.loads(sys.argv[1]), "folder": os.environ["HOME"] + "/saved"})
    if torch.distributed.get_rank() == 0:
        print(json.dumps(end))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
