"""Keys of verl's configuration by version: wrong ones are refused before a submission.

Read from the packages of 0.6.1, 0.7.0, 0.7.1, 0.8.0 and 0.9.1. Hydra refuses a key that the
configuration lacks, and a later verl may ignore it. Deeper keys, and sections without a row, are
not checked.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from agent.work.recipes.recipe import version_text

if TYPE_CHECKING:
    from agent.work.recipes.arguments import Override
    from agent.work.recipes.recipe import Version

_FIRST: Version = (0,)
_OPEN: Version = (1,)

_KEYS: dict[tuple[str, Version, Version], str] = {
    ("", _FIRST, _OPEN): """
        actor_rollout_ref algorithm critic custom_reward_function data global_profiler hydra
        ray_kwargs reward_model trainer transfer_queue
    """,
    ("", (0, 7), (0, 7, 1)): "reward_manager",
    ("", (0, 7, 1), _OPEN): "model_engine reward sandbox_fusion",
    ("", (0, 8), _OPEN): "distillation",
    ("", (0, 9), _OPEN): "skip",
    ("trainer", _FIRST, _OPEN): """
        balance_batch critic_warmup default_hdfs_dir default_local_dir del_local_ckpt_after_load
        device esi_redundant_time experiment_name log_val_generations logger
        max_actor_ckpt_to_keep max_critic_ckpt_to_keep n_gpus_per_node nnodes project_name
        ray_wait_register_center_timeout resume_from_path resume_mode rollout_data_dir save_freq
        test_freq total_epochs total_training_steps val_before_train val_only validation_data_dir
    """,
    ("trainer", _FIRST, (0, 8)): "use_legacy_worker_impl",
    ("trainer", (0, 9), _OPEN): "checkpoint_callback_class use_v1 v1",
    ("data", _FIRST, _OPEN): """
        apply_chat_template_kwargs custom_cls dataloader_num_workers filter_overlong_prompts
        filter_overlong_prompts_workers image_key image_patch_size max_prompt_length
        max_response_length prompt_key return_full_prompt return_multi_modal_inputs
        return_raw_chat return_raw_input_ids reward_fn_key seed shuffle tokenizer tool_config_path
        train_batch_size train_files train_max_samples truncation trust_remote_code use_shm
        val_batch_size val_files val_max_samples validation_shuffle video_key
    """,
    ("data", _FIRST, (0, 8)): "datagen sampler",
    ("data", (0, 8), _OPEN): "audio_key function_tool_path mm_processor_kwargs",
    ("data", (0, 9), _OPEN): "gen_batch_size",
    ("algorithm", _FIRST, _OPEN): """
        adv_estimator gamma kl_ctrl kl_penalty lam norm_adv_by_std_in_grpo pf_ppo
        rollout_correction use_kl_in_reward use_pf_ppo
    """,
    ("algorithm", (0, 9), _OPEN): "filter_groups",
    ("critic", _FIRST, _OPEN): """
        checkpoint cliprange_value enable forward_max_token_len_per_gpu forward_micro_batch_size
        forward_micro_batch_size_per_gpu grad_clip loss_agg_mode model optim ppo_epochs
        ppo_max_token_len_per_gpu ppo_micro_batch_size ppo_micro_batch_size_per_gpu
        ppo_mini_batch_size profiler rollout_n shuffle strategy ulysses_sequence_parallel_size
        use_dynamic_bsz
    """,
    ("critic", (0, 7), _OPEN): "data_loader_seed",
    ("critic", (0, 8), _OPEN): "fsdp",
    ("critic", (0, 9), _OPEN): "loss_scale_factor",
    ("actor_rollout_ref", _FIRST, _OPEN): "actor hybrid_engine model nccl_timeout ref rollout",
    ("actor_rollout_ref.actor", _FIRST, _OPEN): """
        checkpoint clip_ratio clip_ratio_c clip_ratio_high clip_ratio_low entropy_checkpointing
        entropy_coeff entropy_from_logits_with_chunking freeze_vision_tower fsdp_config grad_clip
        kl_loss_coef kl_loss_type loss_agg_mode optim policy_loss ppo_epochs
        ppo_max_token_len_per_gpu ppo_micro_batch_size ppo_micro_batch_size_per_gpu
        ppo_mini_batch_size profiler shuffle strategy ulysses_sequence_parallel_size
        use_dynamic_bsz use_fused_kernels use_kl_loss use_remove_padding use_torch_compile
    """,
    ("actor_rollout_ref.actor", (0, 7), _OPEN): """
        calculate_entropy data_loader_seed loss_scale_factor rollout_n tau_neg tau_pos
    """,
    ("actor_rollout_ref.actor", (0, 7), (0, 9)): "router_replay",
    ("actor_rollout_ref.actor", (0, 7, 1), _OPEN): """
        calculate_sum_pi_squared qat use_prefix_grouper
    """,
    ("actor_rollout_ref.actor", (0, 7, 1), (0, 8)): "sum_pi_squared_checkpointing",
    ("actor_rollout_ref.actor", (0, 9), _OPEN): "entropy_from_logits_chunk_size pad_to_length",
    ("actor_rollout_ref.rollout", _FIRST, _OPEN): """
        agent calculate_log_probs cudagraph_capture_sizes data_parallel_size disable_log_stats
        do_sample dtype enable_chunked_prefill enable_prefix_caching enforce_eager engine_kwargs
        expert_parallel_size free_cache_engine gpu_memory_utilization ignore_eos layered_summon
        load_format log_prob_max_token_len_per_gpu log_prob_micro_batch_size
        log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz max_model_len
        max_num_batched_tokens max_num_seqs mode multi_stage_wake_up multi_turn n name
        over_sample_rate pipeline_model_parallel_size profiler prometheus prompt_length
        response_length skip_tokenizer_init temperature tensor_model_parallel_size top_k top_p
        trace val_kwargs
    """,
    ("actor_rollout_ref.rollout", _FIRST, (0, 8)): "skip_dump_dir skip_rollout",
    ("actor_rollout_ref.rollout", _FIRST, (0, 7, 1)): "update_weights_bucket_megabytes",
    ("actor_rollout_ref.rollout", (0, 7), _OPEN): """
        enable_rollout_routing_replay logprobs_mode quantization quantization_config_file
    """,
    ("actor_rollout_ref.rollout", (0, 7, 1), _OPEN): """
        checkpoint_engine mtp n_gpus_per_node nnodes qat scheduling_policy
    """,
    ("actor_rollout_ref.rollout", (0, 8), _OPEN): "disaggregation",
    ("actor_rollout_ref.rollout", (0, 8), (0, 9)): "skip",
    ("actor_rollout_ref.rollout", (0, 9), _OPEN): """
        full_determinism moe_load_balance_metrics_interval router_config_path seed
    """,
    ("actor_rollout_ref.ref", _FIRST, _OPEN): """
        entropy_checkpointing entropy_from_logits_with_chunking fsdp_config
        log_prob_max_token_len_per_gpu log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu
        log_prob_use_dynamic_bsz profiler strategy ulysses_sequence_parallel_size
        use_torch_compile
    """,
    ("actor_rollout_ref.ref", _FIRST, (0, 7)): "model",
    ("actor_rollout_ref.ref", (0, 7), _OPEN): "rollout_n",
    ("actor_rollout_ref.ref", (0, 7), (0, 9)): "router_replay",
    ("actor_rollout_ref.ref", (0, 9), _OPEN): "entropy_from_logits_chunk_size pad_to_length",
    ("actor_rollout_ref.model", _FIRST, _OPEN): """
        custom_chat_template enable_activation_offload enable_gradient_checkpointing
        exclude_modules external_lib fused_kernel_options hf_config_path lora_adapter_path
        lora_alpha lora_rank override_config path target_modules tokenizer_path trust_remote_code
        use_fused_kernels use_liger use_remove_padding use_shm
    """,
    ("actor_rollout_ref.model", (0, 7), _OPEN): "tiled_mlp",
    ("actor_rollout_ref.model", (0, 7, 1), _OPEN): "mtp",
    ("actor_rollout_ref.model", (0, 8), _OPEN): "lora",
}
"""Section ('' is the root), since and before which version: the names in it."""

_SECTIONS = {section for section, *_ in _KEYS}
_MOVED: tuple[tuple[Version, str, str], ...] = (
    ((0, 7, 1), "custom_reward_function", "reward.custom_reward_function"),
    ((0, 7, 1), "reward_manager", "reward.reward_manager"),
    ((0, 8), "critic.model.fsdp_config", "critic.fsdp"),
    ((0, 9), "reward_model.model.path", "reward.reward_model.model_path"),
    ((0, 9), "reward_model.num_workers", "reward.num_workers"),
    ((0, 9), "reward_model.reward_manager", "reward.reward_manager.name"),
    ((0, 9), "reward_model", "reward.reward_model"),
    ((0, 9), "sandbox_fusion", "reward.sandbox_fusion"),
)
"""Moved keys, and the first version that refuses or ignores the old one."""
_ESTIMATORS = {
    *("gae", "gdpo", "gpg", "grpo", "grpo_passk", "grpo_vectorized", "opo"),
    *("optimal_token_baseline", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax"),
    *("rloo", "rloo_vectorized", "tir_optimal_token_baseline"),
}
"""Those of 0.9.1; earlier versions have some of them. verl checks only after the first rollout."""
_OTHER_TREE = "model_engine"
"""Selects another engine, whose keys are not in these tables."""


def complaint(override: Override, version: Version) -> str:
    """Return why a key is wrong in this version, with a suggestion; '' for a valid key."""
    for since, old, new in _MOVED:
        if version >= since and f"{override.key}.".startswith(f"{old}."):
            moved = new + override.key.removeprefix(old)
            return f"{override.key}: verl {version_text(version)} calls it {moved}"
    if override.prefix in {"+", "++"}:
        return ""
    if override.key == "algorithm.adv_estimator" and override.value not in _ESTIMATORS:
        hint = _suggestion(override.value, _ESTIMATORS)
        return f"{override.key}: verl has no {override.value}{hint}; ++{override.key}=… insists"
    section, name = _section_of(override.key)
    names = _names(section, version)
    if not name or name in names:
        return ""
    where = f"in {section}" if section else "at its root"
    return (
        f"{override.key}: verl {version_text(version)} has no {name} {where}"
        f"{_suggestion(name, names, section)}; ++{override.key}=… insists"
    )


def chooses_another_tree(override: Override) -> bool:
    """Return whether an argument selects a configuration that these tables do not cover."""
    return override.key == _OTHER_TREE or "@" in override.key or "/" in override.key


def _suggestion(word: str, known: set[str], section: str = "") -> str:
    near = get_close_matches(word, known, 1)
    return f" ({'.'.join(filter(None, (section, near[0])))}?)" if near else ""


def _section_of(key: str) -> tuple[str, str]:
    """Return the deepest section of a key that has rows, and the name within it."""
    parts = key.split(".")
    for depth in range(len(parts), -1, -1):
        section = ".".join(parts[:depth])
        if section in _SECTIONS:
            return section, parts[depth] if depth < len(parts) else ""
    raise AssertionError("the root is a section of every key")


def _names(section: str, version: Version) -> set[str]:
    return {
        name
        for (of, since, before), names in _KEYS.items()
        if of == section and since <= version < before
        for name in names.split()
    }
