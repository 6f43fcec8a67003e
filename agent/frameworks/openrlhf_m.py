"""OpenRLHF-M, the fork for vision-language models: GRPO over Ray, by openrlhf_m.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.frameworks import openrlhf
from agent.frameworks.arguments import check_named_columns
from agent.frameworks.table import read_table

if TYPE_CHECKING:
    from agent.frameworks.recipe import Command, RecipeInput

OPENRLHF_M = read_table("openrlhf_m")
FRAMEWORK = OPENRLHF_M.framework
VERSIONS = OPENRLHF_M.versions
ABOUT = OPENRLHF_M.about
PRESETS = OPENRLHF_M.presets

_ON_PODS = {
    "NCCL_SOCKET_FAMILY": "AF_INET",
    "NCCL_LAUNCH_MODE": "GROUP",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_NSOCKS_PERTHREAD": "1",
}
"""The settings of its guide for RunPod's pods, which would slow down faster networks.

The guide names the family NCCL_NET_SOCKET_FAMILY, which NCCL does not read. The agent sets
NCCL_SOCKET_IFNAME.
"""
_PODS = "runpod"


def make(asked: RecipeInput) -> Command:
    """Make `train_ppo_ray`'s command, sized for all GPUs that joined."""
    asked = replace(asked, version=VERSIONS[-1])
    arguments = openrlhf.arguments_of("train_ppo_ray of OpenRLHF-M", "m", asked)
    openrlhf.check_nodes(asked, reward_tasks=True)

    # What fits the nodes: layout and engines by memory, then their places, then batches.
    openrlhf.add_lengths(arguments, 4096, 8000)
    sizing = openrlhf.size_engines(arguments, asked, critic=False)
    groups, placement = openrlhf.place(arguments, asked, sizing, critic=False)
    batches = openrlhf.add_batches(arguments, groups.total, 4, is_fork=True)

    # Model, data and how it is trained.
    arguments.add("actor.model_name_or_path", asked.model_path, why="AGENT_MODEL")
    arguments.add("data.prompt_dataset", asked.train_data, why="AGENT_TRAIN_DATA")
    arguments.add("data.input_key", "message", why="column of the prompt in its data")
    check_named_columns(arguments, asked, "data.input_key", "data.label_key")
    openrlhf.add_training(arguments, asked, sizing, "actor")
    arguments.add_all(OPENRLHF_M.rows(asked.version, {}))
    openrlhf.add_reward(arguments, asked, groups)
    step = openrlhf.rollout_step(arguments, sizing, critic=False)
    openrlhf.add_checkpoints(arguments, asked, 5, step)
    openrlhf.check_demand(arguments, asked)

    # What should the user know about this command?
    notes = ["--save_hf_ckpt is left out: it keeps a whole model of every save"]
    if asked.eval_data:
        notes.append("OpenRLHF-M has no evaluation data: AGENT_EVAL_DATA is not read")
    if not arguments.given("data.label_key"):
        notes.append("rewards are requested without labels, unless --label_key names their column")

    sizes = (f"{placement}; {batches[0]}", *batches[1:])
    made = openrlhf.command("train_ppo_ray", arguments, asked, sizing, sizes)
    env = _ON_PODS if asked.platform == _PODS else {}
    if not asked.infiniband:
        env = env | {"NCCL_IB_DISABLE": "1"}
    return replace(made, env=env, notes=(*made.notes, *notes))
