"""Score answers by verl's reward workers, configured by a recipe's arguments.

main_ppo starts these workers only after those that need a GPU; here they are started alone, on the
run's Ray, by verl's code, and load the reward function that the arguments name.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWERS = ("7", "3", "7", "0")
RIGHT = "7"


def main(overrides: Sequence[str]) -> None:
    """Compose verl's configuration, score some answers, print the scores."""
    hydra = importlib.import_module("hydra")
    torch = importlib.import_module("torch")
    numpy = importlib.import_module("numpy")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("ppo_trainer", overrides=list(overrides))
    importlib.import_module("ray").init()
    loop = importlib.import_module("verl.experimental.reward_loop.reward_loop")
    manager = loop.RewardLoopManager(config=config)
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(
        config.actor_rollout_ref.model.path
    )
    responses = torch.tensor([tokenizer(answer)["input_ids"] for answer in ANSWERS])
    prompts = torch.tensor([tokenizer("3+4=")["input_ids"] for _ in ANSWERS])
    everything = torch.cat([prompts, responses], dim=1)
    batch = importlib.import_module("verl").DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "input_ids": everything,
            "attention_mask": torch.ones_like(everything),
        },
        non_tensors={
            "data_source": objects(numpy, ["sums"] * len(ANSWERS)),
            "reward_model": objects(numpy, [{"ground_truth": RIGHT} for _ in ANSWERS]),
            "extra_info": objects(numpy, [{} for _ in ANSWERS]),
        },
    )
    scores = manager.compute_rm_score(batch).batch["rm_scores"].sum(-1).tolist()
    print(f"verl's reward workers scored {' '.join(map(str, scores))}", flush=True)


def objects(numpy: object, values: list[object]) -> object:
    """Return an array of objects, verl's form for values that are not tensors."""
    array = numpy.empty(len(values), dtype=object)  # type: ignore[attr-defined] # numpy, by name
    array[:] = values
    return array


if __name__ == "__main__":
    main(sys.argv[1:])
