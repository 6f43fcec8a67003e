"""OpenRLHF over Ray: GRPO and PPO with all models on the same GPUs, rewards from a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.work.recipes import openrlhf_parts as parts
from agent.work.recipes.arguments import Arguments, Program, known_flags
from agent.work.recipes.openrlhf_flags import KINDS, PPO, PPO_DOTTED
from agent.work.recipes.openrlhf_parts import batches_of, check_cpus
from agent.work.recipes.recipe import Command

if TYPE_CHECKING:
    from agent.work.recipes.recipe import RecipeInput, Version

VERSIONS = parts.VERSIONS
ABOUT = "GRPO or PPO with vLLM engines on the training GPUs, over Ray"

_REWARD_TASKS_UNTIL: Version = (0, 9, 1)
"""Before it each call of the reward server is a Ray task, which takes a CPU."""


def make(asked: RecipeInput) -> Command:
    """Make `train_ppo_ray`'s command, sized for every GPU that joined."""
    grpo = asked.recipe == "openrlhf-grpo"
    dotted = asked.version >= parts.DOTTED
    program = Program(
        f"train_ppo_ray of OpenRLHF {'.'.join(map(str, asked.version))}",
        known_flags(PPO_DOTTED if dotted else PPO, asked.version),
        {} if dotted else parts.FLAT,
        KINDS,
    )
    arguments = Arguments(program, asked.args)
    check_cpus(asked, spare=asked.version < _REWARD_TASKS_UNTIL)
    groups, told = parts.place(arguments, asked, critic=not grpo)
    batches = batches_of(arguments, groups.world, 8 if grpo else 1)
    parts.cut(arguments, batches)
    arguments.add("actor.model_name_or_path", asked.model, why="AGENT_MODEL")
    _data(arguments, asked)
    parts.add_training(arguments, asked, "actor")
    if grpo:
        arguments.add("algo.advantage.estimator", "group_norm", why="GRPO")
        arguments.add("algo.kl.use_loss", why="GRPO")
        arguments.add("algo.kl.estimator", "k3", why="the one that is meant for a loss")
    else:
        arguments.add("algo.advantage.estimator", "gae", why="PPO")
    parts.add_lengths(arguments)
    parts.add_reward(arguments, asked, groups)
    parts.add_checkpoints(arguments, asked, steps=20)
    parts.check_demand(arguments, sum(node.gpus for node in asked.nodes))
    return Command(
        (asked.python, "-m", "openrlhf.cli.train_ppo_ray", *arguments.argv()),
        {},
        arguments.why(),
        (f"{told}; {batches.told()}", *parts.remarks(batches)),
    )


def _data(arguments: Arguments, asked: RecipeInput) -> None:
    arguments.add("data.prompt_dataset", asked.train_data, why="AGENT_TRAIN_DATA")
    arguments.add("data.input_key", "input", why="where the prompt stands in each row")
    arguments.add("data.label_key", "label", why="where the right answer stands in each row")
    if asked.eval_data:
        arguments.add("eval.dataset", asked.eval_data, why="AGENT_EVAL_DATA")
        arguments.add("eval.steps", 20, why="its own default never evaluates")
