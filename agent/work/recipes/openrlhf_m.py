"""OpenRLHF-M, the fork for models that see: GRPO over Ray, rewards from its own server or another.

It has no releases: these are the flags of its commit 2bf6337 (2025-03), which calls itself 0.6.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.work.recipes import openrlhf_parts as parts
from agent.work.recipes.arguments import Arguments, Program, known_flags
from agent.work.recipes.openrlhf_flags import KINDS
from agent.work.recipes.openrlhf_parts import batches_of, check_cpus
from agent.work.recipes.recipe import Command

if TYPE_CHECKING:
    from agent.work.recipes.arguments import History
    from agent.work.recipes.recipe import RecipeInput, Version

VERSIONS: tuple[Version, ...] = ((0, 6, 1),)
ABOUT = "GRPO for vision-language models with vLLM engines on the training GPUs, over Ray"

_ENV = {
    "NCCL_NET_SOCKET_FAMILY": "IPv4",
    "NCCL_LAUNCH_MODE": "GROUP",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_NSOCKS_PERTHREAD": "1",
}
"""What its guide for pods sets on every node; the agent itself chooses NCCL_SOCKET_IFNAME."""

M_PPO: History = (
    ((0, 6, 1), "*", "target_modules"),
    ((0, 6, 1), "+", "freeze_prefix"),
    (
        (0, 6, 1),
        "0",
        """
        actor_init_on_gpu adam_offload apply_chat_template bf16 colocate_actor_ref
        colocate_all_models colocate_critic_reward deepspeed_enable_sleep disable_ds_ckpt
        disable_fast_tokenizer drop_maxlen enable_ema enable_prefix_caching enforce_eager
        flash_attn gradient_checkpointing gradient_checkpointing_use_reentrant load_checkpoint
        load_in_4bit normalize_reward overlap_comm packing_samples perf ref_reward_offload
        save_hf_ckpt save_value_network use_kl_loss use_ms vllm_enable_sleep vllm_sync_with_ray
        """,
    ),
    (
        (0, 6, 1),
        "1",
        """
        actor_learning_rate actor_num_gpus_per_node actor_num_nodes advantage_estimator
        aux_loss_coef ckpt_path critic_learning_rate critic_num_gpus_per_node critic_num_nodes
        critic_pretrain eps_clip eval_steps freezing_actor_steps gamma generate_max_len
        grad_accum_dtype init_kl_coef input_key input_template kl_estimator kl_target l2 label_key
        lambd local_rank logging_steps lora_alpha lora_dropout lora_rank lr_warmup_ratio
        max_ckpt_mem max_ckpt_num max_epochs max_len max_norm max_pixels max_samples
        micro_rollout_batch_size micro_train_batch_size min_pixels n_samples_per_prompt
        num_episodes pretrain pretrain_data pretrain_data_probs pretrain_split prompt_data
        prompt_data_probs prompt_max_len prompt_split ptx_coef ref_num_gpus_per_node ref_num_nodes
        remote_rm_url reward_num_gpus_per_node reward_num_nodes reward_pretrain ring_attn_size
        ring_head_stride rollout_batch_size save_path save_steps seed temperature top_p
        train_batch_size use_tensorboard use_wandb value_clip value_head_prefix
        vllm_gpu_memory_utilization vllm_num_engines vllm_sync_backend vllm_tensor_parallel_size
        wandb_group wandb_org wandb_project wandb_run_name zero_stage zpg
        """,
    ),
    ((0, 6, 1), "2", "adam_betas reward_clip_range"),
)
"""train_ppo_ray of OpenRLHF-M."""
_KINDS = {**KINDS, **dict.fromkeys(("max_ckpt_mem", "max_pixels", "min_pixels"), int)}
"""Its numbers are OpenRLHF's, and some more."""


def make(asked: RecipeInput) -> Command:
    """Make `train_ppo_ray`'s command, sized for every GPU that joined."""
    flags = known_flags(M_PPO, VERSIONS[-1])
    program = Program("train_ppo_ray of OpenRLHF-M", flags, parts.FLAT, _KINDS)
    arguments = Arguments(program, asked.args)
    check_cpus(asked, spare=True)
    groups, told = parts.place(arguments, asked, critic=False)
    batches = batches_of(arguments, groups.world, 4, prompts_by_rank=True)
    parts.cut(arguments, batches)
    arguments.add("actor.model_name_or_path", asked.model, why="AGENT_MODEL")
    arguments.add("data.prompt_dataset", asked.train_data, why="AGENT_TRAIN_DATA")
    arguments.add("data.input_key", "message", why="where its data keep the prompt")
    parts.add_training(arguments, asked, "actor")
    arguments.add("algo.advantage.estimator", "group_norm", why="GRPO")
    arguments.add("algo.kl.use_loss")
    arguments.add("algo.kl.estimator", "k3")
    arguments.add("algo.kl.init_coef", "1e-3")
    arguments.add("vllm.sync_backend", "nccl")
    arguments.add("vllm_sync_with_ray")
    arguments.add("enable_prefix_caching")
    parts.add_lengths(arguments)
    parts.add_reward(arguments, asked, groups)
    parts.add_checkpoints(arguments, asked, steps=5)
    parts.check_demand(arguments, sum(node.gpus for node in asked.nodes))
    return Command(
        (asked.python, "-m", "openrlhf.cli.train_ppo_ray", *arguments.argv()),
        _ENV,
        arguments.why(),
        (f"{told}; {batches.told()}", *parts.remarks(batches), *_remarks(arguments, asked)),
    )


def _remarks(arguments: Arguments, asked: RecipeInput) -> tuple[str, ...]:
    """Return what is different here from OpenRLHF, where that counts for what was asked."""
    said = [
        "NCCL_IB_DISABLE=1, as its guide for pods has it; NCCL_IB_DISABLE=0 uses InfiniBand",
        "--save_hf_ckpt, which keeps a whole model of every save for good, is left out",
    ]
    if asked.eval_data:
        said.append("OpenRLHF-M evaluates on no data: AGENT_EVAL_DATA is not read")
    if not arguments.given("data.label_key"):
        said.append(
            "no answers are sent along: its own reward server finds them by the prompt; for "
            "another, name their key by --label_key in AGENT_JOB_ARGS"
        )
    return tuple(said)
