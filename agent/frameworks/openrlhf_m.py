"""OpenRLHF-M, the fork for vision-language models: GRPO over Ray.

It has no releases: the flags are those of commit 2bf6337 (2025-03), whose version is 0.6.1, and of
the fork the-laughing-monkey/OpenRLHF-M at 0fcf275, whose scripts for pods the values are from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.frameworks import openrlhf
from agent.frameworks.arguments import check_keys
from agent.frameworks.framework import Preset
from agent.node.facts import Package

if TYPE_CHECKING:
    from agent.frameworks.recipe import Command, RecipeInput, Version

FRAMEWORK = replace(
    openrlhf.FRAMEWORK,
    package=Package("openrlhf-m", "openrlhf", own_file="openrlhf/models/remote_rm"),
    dialect="openrlhf-m",
)
VERSIONS: tuple[Version, ...] = ((0, 6, 1),)
ABOUT = "GRPO for vision-language models (its pods' fork: the-laughing-monkey/OpenRLHF-M), over Ray"

_DATA = "{data}/mathv60k_message.jsonl"
PRESETS = {
    "openrlhf-m-grpo": Preset(
        about="GRPO with OpenRLHF-M and its own reward server",
        no_image="OpenRLHF-M in /opt/OpenRLHF-M: examples/images/openrlhf-m.Dockerfile makes one",
        code="/opt/OpenRLHF-M",
        model="Qwen/Qwen2.5-VL-3B-Instruct",
        imports="openrlhf",
        train=_DATA,
        prepare=(
            f"test -e {_DATA} || "
            "python3 /opt/OpenRLHF-M/examples/scripts/downloaders/download_mathv60k.py "
            "--root_dir {data}"
        ),
        args=(
            "--max_samples 1000",
            "--prompt_max_len 4096",
            "--generate_max_len 8000",
            "--num_episodes 2",
            "--actor_learning_rate 5e-7",
            "--normalize_reward",
            "--temperature 1.0",
            "--save_hf_ckpt",
        ),
        reward=(
            "python3 -m openrlhf.models.remote_rm.math_verifier --dataset {train} "
            "--input_key message --prompt-template chatml"
        ),
    )
}

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

_SETTINGS = (
    *openrlhf.GRPO,
    openrlhf.NORMALIZED,
    ("vllm.sync_backend", "nccl", ""),
    ("vllm_sync_with_ray", "", ""),
    openrlhf.PREFIX_CACHING,
)
"""Settings that do not depend on the nodes: flag, value ('' for a switch), reason."""


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
    check_keys(arguments, asked, "data.input_key", "data.label_key")
    openrlhf.add_training(arguments, asked, sizing, "actor")
    arguments.add_all(_SETTINGS)
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
