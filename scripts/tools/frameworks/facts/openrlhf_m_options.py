"""OpenRLHF-M's `openrlhf.cli.train_ppo_ray` at 2bf6337181d36079fcd2151c741ec1c17a6383d0."""

from __future__ import annotations

from tools.frameworks.facts import words

WHOLE = words("""
    ref_num_nodes ref_num_gpus_per_node reward_num_nodes reward_num_gpus_per_node
    actor_num_nodes actor_num_gpus_per_node critic_num_nodes critic_num_gpus_per_node
    vllm_num_engines vllm_tensor_parallel_size eval_steps save_steps logging_steps
    max_ckpt_num max_ckpt_mem local_rank zero_stage zpg lora_rank lora_alpha num_episodes
    rollout_batch_size micro_rollout_batch_size max_epochs prompt_max_len generate_max_len
    max_len max_samples micro_train_batch_size train_batch_size seed freezing_actor_steps
    n_samples_per_prompt max_pixels min_pixels ring_attn_size ring_head_stride
""")
"""Options that take a whole number."""
DECIMAL = words("""
    vllm_gpu_memory_utilization lora_dropout max_norm l2 ptx_coef eps_clip value_clip lambd
    gamma top_p temperature actor_learning_rate critic_learning_rate lr_warmup_ratio kl_target
    init_kl_coef aux_loss_coef
""")
"""Options that take a number."""
TEXT = words("""
    vllm_sync_backend ckpt_path grad_accum_dtype save_path pretrain reward_pretrain
    remote_rm_url critic_pretrain value_head_prefix prompt_data prompt_data_probs prompt_split
    pretrain_data pretrain_data_probs pretrain_split input_key label_key input_template
    use_wandb wandb_org wandb_group wandb_project wandb_run_name use_tensorboard
""")
"""Options that take a text."""
SWITCHES = words("""
    colocate_actor_ref colocate_critic_reward colocate_all_models vllm_sync_with_ray
    enable_prefix_caching enforce_eager vllm_enable_sleep save_hf_ckpt disable_ds_ckpt
    load_checkpoint gradient_checkpointing bf16 enable_ema adam_offload actor_init_on_gpu
    flash_attn overlap_comm gradient_checkpointing_use_reentrant disable_fast_tokenizer
    deepspeed_enable_sleep packing_samples load_in_4bit normalize_reward save_value_network
    drop_maxlen use_kl_loss ref_reward_offload apply_chat_template perf use_ms
""")
"""Flags without a value."""
CHOICES = {
    "kl_estimator": ("k1", "k2", "k3"),
    "advantage_estimator": ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm"),
}
LISTS: dict[str, tuple[type[float | str], int | str]] = {
    "target_modules": (str, "*"),
    "adam_betas": (float, 2),
    "reward_clip_range": (float, 2),
    "freeze_prefix": (str, "+"),
}
"""Options with several values: their type and number."""
DEFAULTS: dict[str, int | float | str] = {
    "ref_num_nodes": 1,
    "ref_num_gpus_per_node": 8,
    "actor_num_nodes": 1,
    "actor_num_gpus_per_node": 8,
    "critic_num_nodes": 1,
    "critic_num_gpus_per_node": 8,
    "reward_num_nodes": 1,
    "reward_num_gpus_per_node": 8,
    "vllm_tensor_parallel_size": 1,
    "zero_stage": 2,
    "rollout_batch_size": 1024,
    "micro_rollout_batch_size": 8,
    "train_batch_size": 128,
    "micro_train_batch_size": 4,
    "n_samples_per_prompt": 1,
    "init_kl_coef": 0.01,
    "kl_estimator": "k1",
    "advantage_estimator": "gae",
}
"""Defaults that its rules use; any other option is None or off."""
