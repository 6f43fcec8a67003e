"""What OpenRLHF's flags take: read off its parsers, where a flag is of one type in all releases.

A flag's name says its type: none has two among the programs, and of all only the memory for
checkpoints changed its own between releases. What stands in neither list is text, or a switch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
