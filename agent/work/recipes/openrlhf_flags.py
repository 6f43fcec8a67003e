"""The flags of OpenRLHF's and OpenRLHF-M's programs by release, read from their parsers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.work.recipes.recipe import Version

_FLAGS = """
0.6.1   -       m               *   target_modules
0.6.1   -       m               +   freeze_prefix
0.6.1   -       m               0   actor_init_on_gpu adam_offload apply_chat_template bf16
        colocate_actor_ref colocate_all_models colocate_critic_reward deepspeed_enable_sleep
        disable_ds_ckpt disable_fast_tokenizer drop_maxlen enable_ema enable_prefix_caching
        enforce_eager flash_attn gradient_checkpointing gradient_checkpointing_use_reentrant
        load_checkpoint load_in_4bit normalize_reward overlap_comm packing_samples perf
        ref_reward_offload save_hf_ckpt save_value_network use_kl_loss use_ms vllm_enable_sleep
        vllm_sync_with_ray
0.6.1   -       m               1   advantage_estimator ckpt_path critic_pretrain grad_accum_dtype
        input_key input_template kl_estimator label_key pretrain pretrain_data pretrain_data_probs
        pretrain_split prompt_data prompt_data_probs prompt_split remote_rm_url reward_pretrain
        save_path use_tensorboard use_wandb value_head_prefix vllm_sync_backend wandb_group
        wandb_org wandb_project wandb_run_name
0.6.1   -       m               1f  actor_learning_rate aux_loss_coef critic_learning_rate eps_clip
        gamma init_kl_coef kl_target l2 lambd lora_dropout lr_warmup_ratio max_norm ptx_coef
        temperature top_p value_clip vllm_gpu_memory_utilization
0.6.1   -       m               1i  actor_num_gpus_per_node actor_num_nodes
        critic_num_gpus_per_node critic_num_nodes eval_steps freezing_actor_steps generate_max_len
        local_rank logging_steps lora_alpha lora_rank max_ckpt_mem max_ckpt_num max_epochs max_len
        max_pixels max_samples micro_rollout_batch_size micro_train_batch_size min_pixels
        n_samples_per_prompt num_episodes prompt_max_len ref_num_gpus_per_node ref_num_nodes
        reward_num_gpus_per_node reward_num_nodes ring_attn_size ring_head_stride
        rollout_batch_size save_steps seed train_batch_size vllm_num_engines
        vllm_tensor_parallel_size zero_stage zpg
0.6.1   -       m               2f  adam_betas reward_clip_range
0.8.0   0.8.10  ppo,sft,rm,dpo  0   flash_attn
0.8.0   0.9.2   ppo,sft,rm,dpo  0   bf16
0.8.0   0.9.8   ppo             1i  generate_max_len prompt_max_len
0.8.0   0.10.2  ppo             0   actor_init_on_gpu async_train colocate_actor_ref
        colocate_all_models colocate_critic_reward deepspeed_enable_sleep enable_ema
        enable_prefix_caching enforce_eager no_advantage_std_norm normalize_reward perf
        ref_reward_offload save_value_network use_kl_loss vllm_enable_sleep vllm_sync_with_ray
0.8.0   0.10.2  ppo             1   advantage_estimator agent_func_path critic_pretrain
        kl_estimator label_key prompt_data prompt_data_probs prompt_split remote_rm_url
        reward_pretrain vllm_sync_backend
0.8.0   0.10.2  ppo             1f  actor_learning_rate critic_learning_rate ema_beta
        entropy_loss_coef eps_clip eval_temperature gamma init_kl_coef kl_target lambd ptx_coef
        temperature top_p value_clip vllm_gpu_memory_utilization
0.8.0   0.10.2  ppo             1i  actor_num_gpus_per_node actor_num_nodes
        critic_num_gpus_per_node critic_num_nodes eval_n_samples_per_prompt freezing_actor_steps
        kl_horizon micro_rollout_batch_size n_samples_per_prompt num_episodes ref_num_gpus_per_node
        ref_num_nodes reward_num_gpus_per_node reward_num_nodes rollout_batch_size vllm_num_engines
        vllm_tensor_parallel_size
0.8.0   0.10.2  ppo             2f  reward_clip_range
0.8.0   0.10.2  ppo,sft         1   input_key
0.8.0   0.10.2  ppo,sft,rm,dpo  *   target_modules
0.8.0   0.10.2  ppo,sft,rm,dpo  0   adam_offload apply_chat_template deepcompile disable_ds_ckpt
        disable_fast_tokenizer full_determinism gradient_checkpointing
        gradient_checkpointing_use_reentrant load_checkpoint load_in_4bit overlap_comm
        packing_samples save_hf_ckpt use_ds_universal_ckpt use_ms
0.8.0   0.10.2  ppo,sft,rm,dpo  1   ckpt_path eval_dataset eval_split grad_accum_dtype
        input_template max_ckpt_mem pretrain save_path use_tensorboard use_wandb wandb_group
        wandb_org wandb_project wandb_run_name
0.8.0   0.10.2  ppo,sft,rm,dpo  1f  aux_loss_coef l2 lora_dropout lr_warmup_ratio max_norm
0.8.0   0.10.2  ppo,sft,rm,dpo  1i  ds_tensor_parallel_size eval_steps local_rank logging_steps
        lora_alpha lora_rank max_ckpt_num max_epochs max_len max_samples micro_train_batch_size
        ring_attn_size ring_head_stride save_steps seed train_batch_size zero_stage zpg
0.8.0   0.10.2  ppo,sft,rm,dpo  2f  adam_betas
0.8.0   0.10.2  ppo,sft,dpo     0   use_liger_kernel
0.8.0   0.10.2  ppo,rm          1   value_head_prefix
0.8.0   0.10.2  sft             0   multiturn pretrain_mode
0.8.0   0.10.2  sft             1   lr_scheduler output_key train_split
0.8.0   0.10.2  sft,rm          1   tokenizer_chat_template
0.8.0   0.10.2  sft,rm,dpo      1   dataset dataset_probs dataset_split
0.8.0   0.10.2  sft,rm,dpo      1f  learning_rate
0.8.0   0.10.2  rm              0   compute_fp32_loss margin_loss
0.8.0   0.10.2  rm              1   loss
0.8.0   0.10.2  rm,dpo          1   chosen_key prompt_key rejected_key
0.8.0   0.10.2  dpo             0   ipo ref_offload
0.8.0   0.10.2  dpo             1   ref_pretrain
0.8.0   0.10.2  dpo             1f  beta label_smoothing nll_loss_coef
0.8.1   0.10.2  ppo             0   dynamic_filtering
0.8.1   0.10.2  ppo             1i  vllm_generate_batch_size
0.8.1   0.10.2  ppo             2f  dynamic_filtering_reward_range
0.8.2   0.10.2  ppo             2f  eps_clip_low_high
0.8.5   0.10.2  ppo,rm,dpo      1   lr_scheduler
0.8.6   0.10.2  ppo             0   use_dynamic_batch
0.8.6   0.10.2  ppo             1f  dual_clip
0.8.6   0.10.2  ppo             1i  rollout_max_tokens_per_gpu train_max_tokens_per_gpu
0.8.7   0.10.2  ppo             1f  overlong_buffer_len overlong_penalty_factor
0.8.7   0.10.2  dpo             1f  min_lr_ratio
0.8.8   0.10.2  ppo             1   policy_loss_type
0.8.9   0.9.1   ppo             1f  vllm_is_truncated_threshold
0.8.9   0.10.2  ppo             0   enable_vllm_is_correction
0.8.10  0.10.2  ppo,sft,rm,dpo  1   attn_implementation
0.8.11  0.10.2  dpo             1   tokenizer_chat_template
0.9.1   0.9.3   ppo             0   use_icepop
0.9.1   0.10.2  ppo             1i  async_queue_size
0.9.1   0.10.2  ppo             2f  vllm_is_truncated_threshold
0.9.2   0.10.2  ppo             1f  stop_properly_penalty_coef
0.9.2   0.10.2  ppo,sft,rm,dpo  1   param_dtype
0.9.3   0.10.2  ppo             1   vllm_is_correction_type
0.9.7   0.10.2  ppo             0   partial_rollout
0.9.8   0.10.2  ppo             1i  max_new_tokens
0.9.9   0.10.2  ppo             1   best_metric_key
0.9.10  0.10.2  ppo,sft,rm,dpo  1i  dataloader_num_workers
0.10.0  0.10.2  ppo             0   freeze_visual_encoder
0.10.0  0.10.2  ppo             1   image_key
0.10.0  0.10.2  ppo             1i  max_images_per_prompt
0.10.2  0.11.2  ppo             0   algo.advantage.is_correction_enable
0.10.2  0.11.2  ppo             1   algo.advantage.is_correction_type
0.10.2  0.11.2  ppo             2f  algo.advantage.is_correction_threshold
0.10.2  -       ppo             0   actor.freeze_visual_encoder actor.gradient_checkpointing_enable
        actor.gradient_checkpointing_reentrant actor.muon.nesterov actor.muon.no_nesterov
        algo.advantage.no_std_norm algo.dynamic_filtering_enable algo.kl.use_loss
        critic.muon.nesterov critic.muon.no_nesterov critic.save_value_network ds.enable_sleep
        reward.normalize_enable reward.offload train.async_enable train.colocate_actor_ref
        train.colocate_all train.colocate_critic_reward train.dynamic_batch_enable train.enable_ema
        train.partial_rollout_enable vllm.enable_prefix_caching vllm.enable_sleep
        vllm.enforce_eager vllm.sync_with_ray
0.10.2  -       ppo             1   actor.lr_scheduler actor.model_name_or_path actor.optim
        actor.policy_loss_type algo.advantage.estimator algo.kl.estimator ckpt.best_metric_key
        critic.lr_scheduler critic.model_name_or_path critic.optim data.image_key data.label_key
        data.prompt_dataset data.prompt_probs data.prompt_split reward.model_name_or_path
        reward.remote_url train.agent_func_path vllm.sync_backend
0.10.2  -       ppo             1f  actor.adam.eps actor.adam.lr actor.adam.weight_decay
        actor.aux_loss_coef actor.dual_clip actor.entropy_coef actor.eps_clip actor.lr_warmup_ratio
        actor.max_norm actor.min_lr_ratio actor.muon.lr actor.muon.momentum algo.advantage.gamma
        algo.advantage.lambd algo.kl.init_coef algo.kl.target critic.adam.eps critic.adam.lr
        critic.adam.weight_decay critic.lr_warmup_ratio critic.max_norm critic.min_lr_ratio
        critic.muon.lr critic.muon.momentum critic.value_clip eval.temperature
        reward.overlong_buffer_len reward.overlong_penalty_factor reward.stop_properly_penalty_coef
        rollout.temperature rollout.top_p train.ema_beta vllm.gpu_memory_utilization
0.10.2  -       ppo             1i  actor.muon.ns_steps actor.num_gpus_per_node actor.num_nodes
        algo.kl.horizon critic.freezing_steps critic.muon.ns_steps critic.num_gpus_per_node
        critic.num_nodes data.max_images_per_prompt eval.n_samples_per_prompt ref.num_gpus_per_node
        ref.num_nodes reward.num_gpus_per_node reward.num_nodes rollout.batch_size
        rollout.max_new_tokens rollout.max_tokens_per_gpu rollout.micro_batch_size
        rollout.n_samples_per_prompt rollout.vllm_generate_batch_size train.async_queue_size
        train.max_tokens_per_gpu train.num_episodes vllm.num_engines vllm.tensor_parallel_size
0.10.2  -       ppo             2f  actor.adam.betas actor.eps_clip_low_high
        algo.dynamic_filtering_range critic.adam.betas reward.clip_range
0.10.2  -       ppo,sft         1   data.input_key
0.10.2  -       ppo,sft,rm,dpo  *   ds.lora.target_modules
0.10.2  -       ppo,sft,rm,dpo  0   ckpt.disable_ds ckpt.load_enable ckpt.save_hf
        data.apply_chat_template data.disable_fast_tokenizer ds.adam_offload ds.deepcompile
        ds.load_in_4bit ds.overlap_comm ds.packing_samples ds.use_universal_ckpt
        train.full_determinism_enable use_ms
0.10.2  -       ppo,sft,rm,dpo  1   ckpt.max_mem ckpt.output_dir ckpt.path data.input_template
        ds.attn_implementation ds.experts_implementation ds.grad_accum_dtype ds.param_dtype
        eval.dataset eval.split logger.tensorboard_dir logger.wandb.group logger.wandb.key
        logger.wandb.org logger.wandb.project logger.wandb.run_name
0.10.2  -       ppo,sft,rm,dpo  1f  ds.lora.dropout
0.10.2  -       ppo,sft,rm,dpo  1i  ckpt.max_num ckpt.save_steps data.dataloader_num_workers
        data.max_len data.max_samples ds.lora.alpha ds.lora.rank ds.ring_attn_head_stride
        ds.ring_attn_size ds.tensor_parallel_size ds.zero_stage ds.zpg eval.steps local_rank
        logger.logging_steps train.batch_size train.max_epochs train.micro_batch_size train.seed
0.10.2  -       ppo,sft,dpo     0   ds.use_liger_kernel
0.10.2  -       ppo,rm          1   ds.value_head_prefix
0.10.2  -       ppo,dpo         0   ref.offload
0.10.2  -       sft             0   data.multiturn model.pretrain_mode_enable
0.10.2  -       sft             1   data.output_key
0.10.2  -       sft,rm,dpo      0   model.gradient_checkpointing_enable
        model.gradient_checkpointing_reentrant muon.nesterov muon.no_nesterov
0.10.2  -       sft,rm,dpo      1   data.dataset data.dataset_probs data.dataset_split
        data.tokenizer_chat_template lr_scheduler model.model_name_or_path optim
0.10.2  -       sft,rm,dpo      1f  adam.eps adam.lr adam.weight_decay lr_warmup_ratio max_norm
        min_lr_ratio model.aux_loss_coef muon.lr muon.momentum
0.10.2  -       sft,rm,dpo      1i  muon.ns_steps
0.10.2  -       sft,rm,dpo      2f  adam.betas
0.10.2  -       rm              0   model.compute_fp32_loss_enable model.margin_loss_enable
0.10.2  -       rm              1   model.loss_type
0.10.2  -       rm,dpo          1   data.chosen_key data.prompt_key data.rejected_key
0.10.2  -       dpo             0   model.ipo_enable
0.10.2  -       dpo             1   ref.model_name_or_path
0.10.2  -       dpo             1f  model.beta model.label_smoothing model.nll_loss_coef
0.11.1  -       ppo             0   algo.kl.unbiased_gradient
0.11.2  -       ppo             +f  algo.advantage.is_correction_threshold
0.11.2  -       ppo             1   actor.loss_agg_mode algo.advantage.is_correction_gating
        algo.advantage.is_correction_level algo.advantage.is_correction_mode
"""
"""One row per group of flags: since and before which release, in which programs, and their words.

Programs are train_ppo_ray (ppo; m in OpenRLHF-M), train_sft, train_rm and train_dpo. The number of
words is as argparse has it (0, 1, 2, + or *), followed by i for whole numbers and f for any.
"""


def flags_of(program: str, version: Version) -> dict[str, str]:
    """Return the flags of a program in one release, each with the words that it takes."""
    known: dict[str, str] = {}
    applies, words = False, ""
    for line in _FLAGS.strip().splitlines():
        names = line.split()
        if not line.startswith(" "):
            since, before, programs, words, *names = names
            applies = program in programs.split(",") and _parsed(since) <= version
            applies = applies and (before == "-" or version < _parsed(before))
        if applies:
            known |= dict.fromkeys(names, words)
    return known


def _parsed(release: str) -> Version:
    return tuple(int(part) for part in release.split("."))
