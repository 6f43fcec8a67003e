"""The flags of OpenRLHF's programs by release, read from their parsers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.work.recipes.arguments import History


_WHOLE = """
    actor.muon.ns_steps actor.num_gpus_per_node actor.num_nodes actor_num_gpus_per_node
    actor_num_nodes algo.kl.horizon async_queue_size ckpt.max_num ckpt.save_steps
    critic.freezing_steps critic.muon.ns_steps critic.num_gpus_per_node critic.num_nodes
    critic_num_gpus_per_node critic_num_nodes data.dataloader_num_workers
    data.max_images_per_prompt data.max_len data.max_samples dataloader_num_workers ds.lora.alpha
    ds.lora.rank ds.ring_attn_head_stride ds.ring_attn_size ds.tensor_parallel_size ds.zero_stage
    ds.zpg ds_tensor_parallel_size eval.n_samples_per_prompt eval.steps eval_n_samples_per_prompt
    eval_steps freezing_actor_steps generate_max_len kl_horizon local_rank logger.logging_steps
    logging_steps lora_alpha lora_rank max_ckpt_num max_epochs max_images_per_prompt max_len
    max_new_tokens max_samples micro_rollout_batch_size micro_train_batch_size muon.ns_steps
    n_samples_per_prompt num_episodes prompt_max_len ref.num_gpus_per_node ref.num_nodes
    ref_num_gpus_per_node ref_num_nodes reward.num_gpus_per_node reward.num_nodes
    reward_num_gpus_per_node reward_num_nodes ring_attn_size ring_head_stride rollout.batch_size
    rollout.max_new_tokens rollout.max_tokens_per_gpu rollout.micro_batch_size
    rollout.n_samples_per_prompt rollout.vllm_generate_batch_size rollout_batch_size
    rollout_max_tokens_per_gpu save_steps seed train.async_queue_size train.batch_size
    train.max_epochs train.max_tokens_per_gpu train.micro_batch_size train.num_episodes train.seed
    train_batch_size train_max_tokens_per_gpu vllm.num_engines vllm.tensor_parallel_size
    vllm_generate_batch_size vllm_num_engines vllm_tensor_parallel_size zero_stage zpg
"""
_DECIMAL = """
    actor.adam.betas actor.adam.eps actor.adam.lr actor.adam.weight_decay actor.aux_loss_coef
    actor.dual_clip actor.entropy_coef actor.eps_clip actor.eps_clip_low_high actor.lr_warmup_ratio
    actor.max_norm actor.min_lr_ratio actor.muon.lr actor.muon.momentum actor_learning_rate
    adam.betas adam.eps adam.lr adam.weight_decay adam_betas algo.advantage.gamma
    algo.advantage.is_correction_threshold algo.advantage.lambd algo.dynamic_filtering_range
    algo.kl.init_coef algo.kl.target aux_loss_coef beta critic.adam.betas critic.adam.eps
    critic.adam.lr critic.adam.weight_decay critic.lr_warmup_ratio critic.max_norm
    critic.min_lr_ratio critic.muon.lr critic.muon.momentum critic.value_clip critic_learning_rate
    ds.lora.dropout dual_clip dynamic_filtering_reward_range ema_beta entropy_loss_coef eps_clip
    eps_clip_low_high eval.temperature eval_temperature gamma init_kl_coef kl_target l2
    label_smoothing lambd learning_rate lora_dropout lr_warmup_ratio max_norm min_lr_ratio
    model.aux_loss_coef model.beta model.label_smoothing model.nll_loss_coef muon.lr muon.momentum
    nll_loss_coef overlong_buffer_len overlong_penalty_factor ptx_coef reward.clip_range
    reward.overlong_buffer_len reward.overlong_penalty_factor reward.stop_properly_penalty_coef
    reward_clip_range rollout.temperature rollout.top_p stop_properly_penalty_coef temperature
    top_p train.ema_beta value_clip vllm.gpu_memory_utilization vllm_gpu_memory_utilization
    vllm_is_truncated_threshold
"""
KINDS: Mapping[str, type[float]] = {
    **dict.fromkeys(_WHOLE.split(), int),
    **dict.fromkeys(_DECIMAL.split(), float),
}
"""A flag, and the type to which its parser turns each of its words."""


PPO: History = (
    ((0, 8, 0), "*", "target_modules"),
    (
        (0, 8, 0),
        "0",
        """
        actor_init_on_gpu adam_offload apply_chat_template async_train bf16 colocate_actor_ref
        colocate_all_models colocate_critic_reward deepcompile deepspeed_enable_sleep
        disable_ds_ckpt disable_fast_tokenizer enable_ema enable_prefix_caching enforce_eager
        flash_attn full_determinism gradient_checkpointing gradient_checkpointing_use_reentrant
        load_checkpoint load_in_4bit no_advantage_std_norm normalize_reward overlap_comm
        packing_samples perf ref_reward_offload save_hf_ckpt save_value_network
        use_ds_universal_ckpt use_kl_loss use_liger_kernel use_ms vllm_enable_sleep
        vllm_sync_with_ray
        """,
    ),
    (
        (0, 8, 0),
        "1",
        """
        actor_learning_rate actor_num_gpus_per_node actor_num_nodes advantage_estimator
        agent_func_path aux_loss_coef ckpt_path critic_learning_rate critic_num_gpus_per_node
        critic_num_nodes critic_pretrain ds_tensor_parallel_size ema_beta entropy_loss_coef
        eps_clip eval_dataset eval_n_samples_per_prompt eval_split eval_steps eval_temperature
        freezing_actor_steps gamma generate_max_len grad_accum_dtype init_kl_coef input_key
        input_template kl_estimator kl_horizon kl_target l2 label_key lambd local_rank
        logging_steps lora_alpha lora_dropout lora_rank lr_warmup_ratio max_ckpt_mem max_ckpt_num
        max_epochs max_len max_norm max_samples micro_rollout_batch_size micro_train_batch_size
        n_samples_per_prompt num_episodes pretrain prompt_data prompt_data_probs prompt_max_len
        prompt_split ptx_coef ref_num_gpus_per_node ref_num_nodes remote_rm_url
        reward_num_gpus_per_node reward_num_nodes reward_pretrain ring_attn_size ring_head_stride
        rollout_batch_size save_path save_steps seed temperature top_p train_batch_size
        use_tensorboard use_wandb value_clip value_head_prefix vllm_gpu_memory_utilization
        vllm_num_engines vllm_sync_backend vllm_tensor_parallel_size wandb_group wandb_org
        wandb_project wandb_run_name zero_stage zpg
        """,
    ),
    ((0, 8, 0), "2", "adam_betas reward_clip_range"),
    ((0, 8, 1), "0", "dynamic_filtering"),
    ((0, 8, 1), "1", "vllm_generate_batch_size"),
    ((0, 8, 1), "2", "dynamic_filtering_reward_range"),
    ((0, 8, 2), "2", "eps_clip_low_high"),
    ((0, 8, 5), "1", "lr_scheduler"),
    ((0, 8, 6), "0", "use_dynamic_batch"),
    ((0, 8, 6), "1", "dual_clip rollout_max_tokens_per_gpu train_max_tokens_per_gpu"),
    ((0, 8, 7), "1", "overlong_buffer_len overlong_penalty_factor"),
    ((0, 8, 8), "1", "policy_loss_type"),
    ((0, 8, 9), "0", "enable_vllm_is_correction"),
    ((0, 8, 9), "1", "vllm_is_truncated_threshold"),
    ((0, 8, 10), "-", "flash_attn"),
    ((0, 8, 10), "1", "attn_implementation"),
    ((0, 9, 1), "0", "use_icepop"),
    ((0, 9, 1), "1", "async_queue_size"),
    ((0, 9, 1), "2", "vllm_is_truncated_threshold"),
    ((0, 9, 2), "-", "bf16"),
    ((0, 9, 2), "1", "param_dtype stop_properly_penalty_coef"),
    ((0, 9, 3), "-", "use_icepop"),
    ((0, 9, 3), "1", "vllm_is_correction_type"),
    ((0, 9, 7), "0", "partial_rollout"),
    ((0, 9, 8), "-", "generate_max_len prompt_max_len"),
    ((0, 9, 8), "1", "max_new_tokens"),
    ((0, 9, 9), "1", "best_metric_key"),
    ((0, 9, 10), "1", "dataloader_num_workers"),
    ((0, 10, 0), "0", "freeze_visual_encoder"),
    ((0, 10, 0), "1", "image_key max_images_per_prompt"),
)
"""train_ppo_ray up to 0.10.1."""

PPO_DOTTED: History = (
    ((0, 10, 2), "*", "ds.lora.target_modules"),
    (
        (0, 10, 2),
        "0",
        """
        actor.freeze_visual_encoder actor.gradient_checkpointing_enable
        actor.gradient_checkpointing_reentrant actor.muon.nesterov actor.muon.no_nesterov
        algo.advantage.is_correction_enable algo.advantage.no_std_norm
        algo.dynamic_filtering_enable algo.kl.use_loss ckpt.disable_ds ckpt.load_enable
        ckpt.save_hf critic.muon.nesterov critic.muon.no_nesterov critic.save_value_network
        data.apply_chat_template data.disable_fast_tokenizer ds.adam_offload ds.deepcompile
        ds.enable_sleep ds.load_in_4bit ds.overlap_comm ds.packing_samples ds.use_liger_kernel
        ds.use_universal_ckpt ref.offload reward.normalize_enable reward.offload
        train.async_enable train.colocate_actor_ref train.colocate_all
        train.colocate_critic_reward train.dynamic_batch_enable train.enable_ema
        train.full_determinism_enable train.partial_rollout_enable use_ms
        vllm.enable_prefix_caching vllm.enable_sleep vllm.enforce_eager vllm.sync_with_ray
        """,
    ),
    (
        (0, 10, 2),
        "1",
        """
        actor.adam.eps actor.adam.lr actor.adam.weight_decay actor.aux_loss_coef actor.dual_clip
        actor.entropy_coef actor.eps_clip actor.lr_scheduler actor.lr_warmup_ratio actor.max_norm
        actor.min_lr_ratio actor.model_name_or_path actor.muon.lr actor.muon.momentum
        actor.muon.ns_steps actor.num_gpus_per_node actor.num_nodes actor.optim
        actor.policy_loss_type algo.advantage.estimator algo.advantage.gamma
        algo.advantage.is_correction_type algo.advantage.lambd algo.kl.estimator algo.kl.horizon
        algo.kl.init_coef algo.kl.target ckpt.best_metric_key ckpt.max_mem ckpt.max_num
        ckpt.output_dir ckpt.path ckpt.save_steps critic.adam.eps critic.adam.lr
        critic.adam.weight_decay critic.freezing_steps critic.lr_scheduler critic.lr_warmup_ratio
        critic.max_norm critic.min_lr_ratio critic.model_name_or_path critic.muon.lr
        critic.muon.momentum critic.muon.ns_steps critic.num_gpus_per_node critic.num_nodes
        critic.optim critic.value_clip data.dataloader_num_workers data.image_key data.input_key
        data.input_template data.label_key data.max_images_per_prompt data.max_len
        data.max_samples data.prompt_dataset data.prompt_probs data.prompt_split
        ds.attn_implementation ds.experts_implementation ds.grad_accum_dtype ds.lora.alpha
        ds.lora.dropout ds.lora.rank ds.param_dtype ds.ring_attn_head_stride ds.ring_attn_size
        ds.tensor_parallel_size ds.value_head_prefix ds.zero_stage ds.zpg eval.dataset
        eval.n_samples_per_prompt eval.split eval.steps eval.temperature local_rank
        logger.logging_steps logger.tensorboard_dir logger.wandb.group logger.wandb.key
        logger.wandb.org logger.wandb.project logger.wandb.run_name ref.num_gpus_per_node
        ref.num_nodes reward.model_name_or_path reward.num_gpus_per_node reward.num_nodes
        reward.overlong_buffer_len reward.overlong_penalty_factor reward.remote_url
        reward.stop_properly_penalty_coef rollout.batch_size rollout.max_new_tokens
        rollout.max_tokens_per_gpu rollout.micro_batch_size rollout.n_samples_per_prompt
        rollout.temperature rollout.top_p rollout.vllm_generate_batch_size train.agent_func_path
        train.async_queue_size train.batch_size train.ema_beta train.max_epochs
        train.max_tokens_per_gpu train.micro_batch_size train.num_episodes train.seed
        vllm.gpu_memory_utilization vllm.num_engines vllm.sync_backend vllm.tensor_parallel_size
        """,
    ),
    (
        (0, 10, 2),
        "2",
        """
        actor.adam.betas actor.eps_clip_low_high algo.advantage.is_correction_threshold
        algo.dynamic_filtering_range critic.adam.betas reward.clip_range
        """,
    ),
    ((0, 11, 1), "0", "algo.kl.unbiased_gradient"),
    ((0, 11, 2), "-", "algo.advantage.is_correction_enable algo.advantage.is_correction_type"),
    ((0, 11, 2), "+", "algo.advantage.is_correction_threshold"),
    (
        (0, 11, 2),
        "1",
        """
        actor.loss_agg_mode algo.advantage.is_correction_gating algo.advantage.is_correction_level
        algo.advantage.is_correction_mode
        """,
    ),
)
"""train_ppo_ray from 0.10.2 on."""

SFT: History = (
    ((0, 8, 0), "*", "target_modules"),
    (
        (0, 8, 0),
        "0",
        """
        adam_offload apply_chat_template bf16 deepcompile disable_ds_ckpt disable_fast_tokenizer
        flash_attn full_determinism gradient_checkpointing gradient_checkpointing_use_reentrant
        load_checkpoint load_in_4bit multiturn overlap_comm packing_samples pretrain_mode
        save_hf_ckpt use_ds_universal_ckpt use_liger_kernel use_ms
        """,
    ),
    (
        (0, 8, 0),
        "1",
        """
        aux_loss_coef ckpt_path dataset dataset_probs dataset_split ds_tensor_parallel_size
        eval_dataset eval_split eval_steps grad_accum_dtype input_key input_template l2
        learning_rate local_rank logging_steps lora_alpha lora_dropout lora_rank lr_scheduler
        lr_warmup_ratio max_ckpt_mem max_ckpt_num max_epochs max_len max_norm max_samples
        micro_train_batch_size output_key pretrain ring_attn_size ring_head_stride save_path
        save_steps seed tokenizer_chat_template train_batch_size train_split use_tensorboard
        use_wandb wandb_group wandb_org wandb_project wandb_run_name zero_stage zpg
        """,
    ),
    ((0, 8, 0), "2", "adam_betas"),
    ((0, 8, 10), "-", "flash_attn"),
    ((0, 8, 10), "1", "attn_implementation"),
    ((0, 9, 2), "-", "bf16"),
    ((0, 9, 2), "1", "param_dtype"),
    ((0, 9, 10), "1", "dataloader_num_workers"),
)
"""train_sft up to 0.10.1."""

SFT_DOTTED: History = (
    ((0, 10, 2), "*", "ds.lora.target_modules"),
    (
        (0, 10, 2),
        "0",
        """
        ckpt.disable_ds ckpt.load_enable ckpt.save_hf data.apply_chat_template
        data.disable_fast_tokenizer data.multiturn ds.adam_offload ds.deepcompile ds.load_in_4bit
        ds.overlap_comm ds.packing_samples ds.use_liger_kernel ds.use_universal_ckpt
        model.gradient_checkpointing_enable model.gradient_checkpointing_reentrant
        model.pretrain_mode_enable muon.nesterov muon.no_nesterov train.full_determinism_enable
        use_ms
        """,
    ),
    (
        (0, 10, 2),
        "1",
        """
        adam.eps adam.lr adam.weight_decay ckpt.max_mem ckpt.max_num ckpt.output_dir ckpt.path
        ckpt.save_steps data.dataloader_num_workers data.dataset data.dataset_probs
        data.dataset_split data.input_key data.input_template data.max_len data.max_samples
        data.output_key data.tokenizer_chat_template ds.attn_implementation
        ds.experts_implementation ds.grad_accum_dtype ds.lora.alpha ds.lora.dropout ds.lora.rank
        ds.param_dtype ds.ring_attn_head_stride ds.ring_attn_size ds.tensor_parallel_size
        ds.zero_stage ds.zpg eval.dataset eval.split eval.steps local_rank logger.logging_steps
        logger.tensorboard_dir logger.wandb.group logger.wandb.key logger.wandb.org
        logger.wandb.project logger.wandb.run_name lr_scheduler lr_warmup_ratio max_norm
        min_lr_ratio model.aux_loss_coef model.model_name_or_path muon.lr muon.momentum
        muon.ns_steps optim train.batch_size train.max_epochs train.micro_batch_size train.seed
        """,
    ),
    ((0, 10, 2), "2", "adam.betas"),
)
"""train_sft from 0.10.2 on."""

RM: History = (
    ((0, 8, 0), "*", "target_modules"),
    (
        (0, 8, 0),
        "0",
        """
        adam_offload apply_chat_template bf16 compute_fp32_loss deepcompile disable_ds_ckpt
        disable_fast_tokenizer flash_attn full_determinism gradient_checkpointing
        gradient_checkpointing_use_reentrant load_checkpoint load_in_4bit margin_loss overlap_comm
        packing_samples save_hf_ckpt use_ds_universal_ckpt use_ms
        """,
    ),
    (
        (0, 8, 0),
        "1",
        """
        aux_loss_coef chosen_key ckpt_path dataset dataset_probs dataset_split
        ds_tensor_parallel_size eval_dataset eval_split eval_steps grad_accum_dtype input_template
        l2 learning_rate local_rank logging_steps lora_alpha lora_dropout lora_rank loss
        lr_warmup_ratio max_ckpt_mem max_ckpt_num max_epochs max_len max_norm max_samples
        micro_train_batch_size pretrain prompt_key rejected_key ring_attn_size ring_head_stride
        save_path save_steps seed tokenizer_chat_template train_batch_size use_tensorboard
        use_wandb value_head_prefix wandb_group wandb_org wandb_project wandb_run_name zero_stage
        zpg
        """,
    ),
    ((0, 8, 0), "2", "adam_betas"),
    ((0, 8, 5), "1", "lr_scheduler"),
    ((0, 8, 10), "-", "flash_attn"),
    ((0, 8, 10), "1", "attn_implementation"),
    ((0, 9, 2), "-", "bf16"),
    ((0, 9, 2), "1", "param_dtype"),
    ((0, 9, 10), "1", "dataloader_num_workers"),
)
"""train_rm up to 0.10.1."""

RM_DOTTED: History = (
    ((0, 10, 2), "*", "ds.lora.target_modules"),
    (
        (0, 10, 2),
        "0",
        """
        ckpt.disable_ds ckpt.load_enable ckpt.save_hf data.apply_chat_template
        data.disable_fast_tokenizer ds.adam_offload ds.deepcompile ds.load_in_4bit ds.overlap_comm
        ds.packing_samples ds.use_universal_ckpt model.compute_fp32_loss_enable
        model.gradient_checkpointing_enable model.gradient_checkpointing_reentrant
        model.margin_loss_enable muon.nesterov muon.no_nesterov train.full_determinism_enable
        use_ms
        """,
    ),
    (
        (0, 10, 2),
        "1",
        """
        adam.eps adam.lr adam.weight_decay ckpt.max_mem ckpt.max_num ckpt.output_dir ckpt.path
        ckpt.save_steps data.chosen_key data.dataloader_num_workers data.dataset
        data.dataset_probs data.dataset_split data.input_template data.max_len data.max_samples
        data.prompt_key data.rejected_key data.tokenizer_chat_template ds.attn_implementation
        ds.experts_implementation ds.grad_accum_dtype ds.lora.alpha ds.lora.dropout ds.lora.rank
        ds.param_dtype ds.ring_attn_head_stride ds.ring_attn_size ds.tensor_parallel_size
        ds.value_head_prefix ds.zero_stage ds.zpg eval.dataset eval.split eval.steps local_rank
        logger.logging_steps logger.tensorboard_dir logger.wandb.group logger.wandb.key
        logger.wandb.org logger.wandb.project logger.wandb.run_name lr_scheduler lr_warmup_ratio
        max_norm min_lr_ratio model.aux_loss_coef model.loss_type model.model_name_or_path muon.lr
        muon.momentum muon.ns_steps optim train.batch_size train.max_epochs train.micro_batch_size
        train.seed
        """,
    ),
    ((0, 10, 2), "2", "adam.betas"),
)
"""train_rm from 0.10.2 on."""

DPO: History = (
    ((0, 8, 0), "*", "target_modules"),
    (
        (0, 8, 0),
        "0",
        """
        adam_offload apply_chat_template bf16 deepcompile disable_ds_ckpt disable_fast_tokenizer
        flash_attn full_determinism gradient_checkpointing gradient_checkpointing_use_reentrant
        ipo load_checkpoint load_in_4bit overlap_comm packing_samples ref_offload save_hf_ckpt
        use_ds_universal_ckpt use_liger_kernel use_ms
        """,
    ),
    (
        (0, 8, 0),
        "1",
        """
        aux_loss_coef beta chosen_key ckpt_path dataset dataset_probs dataset_split
        ds_tensor_parallel_size eval_dataset eval_split eval_steps grad_accum_dtype input_template
        l2 label_smoothing learning_rate local_rank logging_steps lora_alpha lora_dropout
        lora_rank lr_warmup_ratio max_ckpt_mem max_ckpt_num max_epochs max_len max_norm
        max_samples micro_train_batch_size nll_loss_coef pretrain prompt_key ref_pretrain
        rejected_key ring_attn_size ring_head_stride save_path save_steps seed train_batch_size
        use_tensorboard use_wandb wandb_group wandb_org wandb_project wandb_run_name zero_stage
        zpg
        """,
    ),
    ((0, 8, 0), "2", "adam_betas"),
    ((0, 8, 5), "1", "lr_scheduler"),
    ((0, 8, 7), "1", "min_lr_ratio"),
    ((0, 8, 10), "-", "flash_attn"),
    ((0, 8, 10), "1", "attn_implementation"),
    ((0, 8, 11), "1", "tokenizer_chat_template"),
    ((0, 9, 2), "-", "bf16"),
    ((0, 9, 2), "1", "param_dtype"),
    ((0, 9, 10), "1", "dataloader_num_workers"),
)
"""train_dpo up to 0.10.1."""

DPO_DOTTED: History = (
    ((0, 10, 2), "*", "ds.lora.target_modules"),
    (
        (0, 10, 2),
        "0",
        """
        ckpt.disable_ds ckpt.load_enable ckpt.save_hf data.apply_chat_template
        data.disable_fast_tokenizer ds.adam_offload ds.deepcompile ds.load_in_4bit ds.overlap_comm
        ds.packing_samples ds.use_liger_kernel ds.use_universal_ckpt
        model.gradient_checkpointing_enable model.gradient_checkpointing_reentrant
        model.ipo_enable muon.nesterov muon.no_nesterov ref.offload train.full_determinism_enable
        use_ms
        """,
    ),
    (
        (0, 10, 2),
        "1",
        """
        adam.eps adam.lr adam.weight_decay ckpt.max_mem ckpt.max_num ckpt.output_dir ckpt.path
        ckpt.save_steps data.chosen_key data.dataloader_num_workers data.dataset
        data.dataset_probs data.dataset_split data.input_template data.max_len data.max_samples
        data.prompt_key data.rejected_key data.tokenizer_chat_template ds.attn_implementation
        ds.experts_implementation ds.grad_accum_dtype ds.lora.alpha ds.lora.dropout ds.lora.rank
        ds.param_dtype ds.ring_attn_head_stride ds.ring_attn_size ds.tensor_parallel_size
        ds.zero_stage ds.zpg eval.dataset eval.split eval.steps local_rank logger.logging_steps
        logger.tensorboard_dir logger.wandb.group logger.wandb.key logger.wandb.org
        logger.wandb.project logger.wandb.run_name lr_scheduler lr_warmup_ratio max_norm
        min_lr_ratio model.aux_loss_coef model.beta model.label_smoothing model.model_name_or_path
        model.nll_loss_coef muon.lr muon.momentum muon.ns_steps optim ref.model_name_or_path
        train.batch_size train.max_epochs train.micro_batch_size train.seed
        """,
    ),
    ((0, 10, 2), "2", "adam.betas"),
)
"""train_dpo from 0.10.2 on."""
