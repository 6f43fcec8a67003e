"""Run one rollout of OpenRLHF's `train_ppo_ray` without its training, which needs GPUs.

Its program runs unchanged up to the trainer: parser, checks, placement group, engines, actors. The
trainer is replaced, since it uses a GPU first. The replacement loads the prompts and generates one
batch by OpenRLHF's own functions: its engines' actors send prompts to a stand-in for vLLM, and
request a reward for each answer from the server.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections import Counter
from typing import Any, NoReturn

TRAINER = "openrlhf.trainer.ppo_trainer"
SAMPLES = "openrlhf.trainer.ppo_utils.samples_generator"


class OneRollout:
    """Replaces the program's trainer."""

    @staticmethod
    def remote(pretrain: str, strategy: Any, *models: Any, **generate: Any) -> NoReturn:  # noqa: ANN401 - OpenRLHF's own
        """Generate one batch, print its rewards, and end the program."""
        trainer, samples = importlib.import_module(TRAINER), importlib.import_module(SAMPLES)
        fast = not strategy.args.data.disable_fast_tokenizer
        tokenizer = trainer.get_tokenizer(pretrain, None, "left", strategy, use_fast=fast)
        prompts, evaluation, steps = trainer.prepare_datasets(strategy, tokenizer)
        generator = samples.SamplesGenerator(strategy, prompts, evaluation, tokenizer, models[-1])
        batch, *_ = generator.generate_samples(**generate)
        rewards = Counter(float(sample.rewards.flatten()[0]) for sample in batch)
        listed = ", ".join(f"{count} x {reward:g}" for reward, count in sorted(rewards.items()))
        print(f"OpenRLHF loaded {len(prompts)} prompts for {steps} steps", flush=True)
        print(f"OpenRLHF's engines were given these rewards: {listed}", flush=True)
        sys.exit(0)


def main() -> None:
    """Run the program."""
    vars(importlib.import_module(TRAINER))["PPOTrainer"] = OneRollout
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")


if __name__ == "__main__":
    main()
