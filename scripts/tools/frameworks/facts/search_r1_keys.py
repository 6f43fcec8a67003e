"""Search-R1's `verl.trainer.main_ppo` at a14dc3a4ffc6fe88c1e95038d9738e21ba3f7a06."""

from __future__ import annotations

from tools.frameworks.facts import words

BOOLEAN = words("""
    data.return_raw_chat data.shuffle_train_dataloader actor_rollout_ref.hybrid_engine
    actor_rollout_ref.model.enable_gradient_checkpointing
    actor_rollout_ref.model.use_remove_padding actor_rollout_ref.actor.use_dynamic_bsz
    actor_rollout_ref.actor.state_masking actor_rollout_ref.actor.use_kl_loss
    actor_rollout_ref.actor.shuffle actor_rollout_ref.actor.fsdp_config.param_offload
    actor_rollout_ref.actor.fsdp_config.grad_offload
    actor_rollout_ref.actor.fsdp_config.optimizer_offload
    actor_rollout_ref.ref.fsdp_config.param_offload actor_rollout_ref.rollout.ignore_eos
    actor_rollout_ref.rollout.enforce_eager actor_rollout_ref.rollout.free_cache_engine
    actor_rollout_ref.rollout.do_sample critic.model.enable_gradient_checkpointing
    critic.model.use_remove_padding critic.model.fsdp_config.param_offload
    critic.model.fsdp_config.grad_offload critic.model.fsdp_config.optimizer_offload
    reward_model.enable reward_model.model.use_remove_padding
    reward_model.model.fsdp_config.param_offload algorithm.no_think_rl do_search
""")
"""Keys with a boolean."""
WHOLE = words("""
    data.max_prompt_length data.max_response_length data.max_start_length data.max_obs_length
    data.train_batch_size data.val_batch_size actor_rollout_ref.actor.ppo_mini_batch_size
    actor_rollout_ref.actor.ppo_micro_batch_size
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu actor_rollout_ref.actor.ppo_epochs
    actor_rollout_ref.actor.ulysses_sequence_parallel_size
    actor_rollout_ref.actor.optim.total_training_steps
    actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params
    actor_rollout_ref.ref.fsdp_config.wrap_policy.min_num_params
    actor_rollout_ref.ref.log_prob_micro_batch_size actor_rollout_ref.rollout.top_k
    actor_rollout_ref.rollout.tensor_model_parallel_size
    actor_rollout_ref.rollout.max_num_batched_tokens actor_rollout_ref.rollout.max_num_seqs
    actor_rollout_ref.rollout.log_prob_micro_batch_size actor_rollout_ref.rollout.n
    actor_rollout_ref.rollout.n_agent critic.optim.total_training_steps
    critic.model.fsdp_config.wrap_policy.min_num_params critic.ppo_micro_batch_size
    critic.ppo_max_token_len_per_gpu critic.ulysses_sequence_parallel_size
    reward_model.model.fsdp_config.min_num_params reward_model.micro_batch_size
    reward_model.ulysses_sequence_parallel_size reward_model.structure_format_score
    reward_model.final_format_score reward_model.retrieval_score retriever.topk
    trainer.total_epochs trainer.nnodes trainer.n_gpus_per_node trainer.save_freq
    trainer.test_freq trainer.critic_warmup max_turns
""")
"""Keys with a whole number."""
DECIMAL = words("""
    actor_rollout_ref.actor.grad_clip actor_rollout_ref.actor.clip_ratio
    actor_rollout_ref.actor.entropy_coeff actor_rollout_ref.actor.kl_loss_coef
    actor_rollout_ref.actor.optim.lr actor_rollout_ref.actor.optim.lr_warmup_steps_ratio
    actor_rollout_ref.rollout.temperature actor_rollout_ref.rollout.top_p
    actor_rollout_ref.rollout.gpu_memory_utilization critic.optim.lr
    critic.optim.lr_warmup_steps_ratio critic.grad_clip critic.cliprange_value algorithm.gamma
    algorithm.lam algorithm.kl_ctrl.kl_coef
""")
"""Keys with a number."""
TEXT = words("""
    data.train_files data.val_files data.prompt_key actor_rollout_ref.model.path
    actor_rollout_ref.actor.strategy actor_rollout_ref.actor.kl_loss_type
    actor_rollout_ref.rollout.name actor_rollout_ref.rollout.dtype
    actor_rollout_ref.rollout.load_format critic.strategy critic.model.path
    reward_model.strategy reward_model.model.path retriever.url algorithm.adv_estimator
    algorithm.kl_penalty algorithm.kl_ctrl.type trainer.project_name trainer.experiment_name
    trainer.logger trainer.default_hdfs_dir trainer.default_local_dir
""")
"""Keys with a text, or a list of texts."""
ANYTHING = words("""
    data.tokenizer data.train_data_num data.val_data_num actor_rollout_ref.model.external_lib
    actor_rollout_ref.model.override_config critic.model.override_config
    reward_model.max_length trainer.total_training_steps
""")
"""Keys without a default: any value is allowed."""
LINKED = words("""
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu
    actor_rollout_ref.ref.ulysses_sequence_parallel_size
    actor_rollout_ref.rollout.prompt_length actor_rollout_ref.rollout.response_length
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu critic.model.tokenizer_path
    critic.model.external_lib critic.ppo_mini_batch_size critic.forward_micro_batch_size
    critic.use_dynamic_bsz critic.forward_max_token_len_per_gpu critic.ppo_epochs
    critic.shuffle reward_model.model.input_tokenizer reward_model.model.external_lib
    reward_model.use_dynamic_bsz reward_model.forward_max_token_len_per_gpu
""")
"""Keys that copy another key, unless they are set."""
DEAD = words("""
    data.return_raw_input_ids actor_rollout_ref.actor.optim.min_lr_ratio
    actor_rollout_ref.actor.optim.warmup_style actor_rollout_ref.actor.fsdp_config.fsdp_size
    actor_rollout_ref.ref.fsdp_config.fsdp_size critic.optim.min_lr_ratio
    critic.optim.warmup_style critic.model.fsdp_config.fsdp_size
    algorithm.state_masking.start_state_marker algorithm.state_masking.end_state_marker
""")
"""Keys that nothing reads."""
