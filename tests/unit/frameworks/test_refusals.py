"""What each recipe refuses, by the words that name the reason or what would fit.

Without these the framework would end minutes later, or Ray would wait forever for GPUs or CPUs.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.frameworks.recipe import ModelShape, NodeSize
from support.asked_recipes import (
    ACTOR,
    FSDP,
    MEGATRON,
    MINI,
    MODEL,
    REF,
    ROLLOUT,
    TENSOR,
    refusal,
)
from support.model_shapes import (
    DEEPSEEK_V3,
    QWEN2_5_7B,
    QWEN2_5_32B,
    QWEN3_8B,
    QWEN3_30B,
    QWEN3_235B,
)

Row = tuple[str, str] | tuple[str, str, dict[str, Any]]
TP_1, TP_2, TP_4, TP_6, TP_8, TP_16 = ({"tensor_parallel": size} for size in (1, 2, 4, 6, 8, 16))
NO_SCORES = {"scores": False}
NO_ENGINES = {"tensor_parallel": None}
MICRO = f"{ACTOR}.ppo_micro_batch_size"
LOG_PROB = f"{ROLLOUT}.log_prob_micro_batch_size"
DIVIDED = "ulysses_sequence_parallel_size"
ULYSSES = f"{ACTOR}.{DIVIDED}"
OPTIM = f"{ACTOR}.optim"
SEPARATE = "trainer.v1.trainer_mode=separate_async"
FULLY_ASYNC = "async_training.staleness_threshold=0.5"
STORES = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
IN_32B = {"shape": QWEN2_5_32B}

OPENRLHF: list[Row] = [
    ("openrlhf-grpo 0,0", "no node has one"),
    ("openrlhf-grpo 6,6", "4 GPUs do not fit nodes of 6, 6 GPUs: set AGENT_TENSOR_PARALLEL", TP_4),
    ("openrlhf-grpo 8,4", "engines of 8 GPUs do not fit nodes of 8, 4 GPUs", TP_8),
    ("openrlhf-grpo 3x4", "engines of 8 GPUs do not fit nodes of 4, 4, 4 GPUs", TP_8),
    ("openrlhf-grpo 1x8/6", "node 0 has 6 of 8 CPUs"),
    ("openrlhf-grpo==0.8.11 1x8/8", "calls of the reward server take one more CPU"),
    ("openrlhf-grpo 1x8", "no source of rewards", NO_SCORES),
    ("openrlhf-grpo 1x8 --train.batch_size 100", "nearest that is: 104"),
    ("openrlhf-grpo==0.9.10 1x8 --rollout_batch_size 100", "no multiple of 16"),
    ("openrlhf-grpo 1x8 --train_batch_size 128", "did you mean --train.batch_size?"),
    ("openrlhf-grpo==0.9.10 1x8 --bf16", "train_ppo_ray of OpenRLHF 0.9.10 has no flag"),
    ("openrlhf-grpo 1x8 --ref.num_nodes 2", "give both the same number"),
    (
        "openrlhf-grpo 1x8 --vllm.num_engines 4",
        "the actor has 8, the engines 4: leave out --vllm.num_engines",
    ),
    ("openrlhf-grpo 1x8 --actor.num_nodes 2", "16 GPUs are needed (actor 16) and 8"),
    (
        "openrlhf-grpo 1x8 --no-train.colocate_all",
        "24 GPUs are needed (actor 8, ref 8, engines 8) and 8 joined",
    ),
    (
        "openrlhf-grpo==0.9.10 1x8 --async_train --vllm_enable_sleep",
        "its engines never sleep: leave out --vllm_enable_sleep",
    ),
    (
        "openrlhf-grpo==0.9.10 1x8 --async_train --vllm_num_engines 8",
        "the engines take 8 of 8 GPUs, and none trains",
    ),
    ("openrlhf-grpo 1x1 --train.async_enable", "the engines take 1 of 1 GPUs"),
    ("openrlhf-grpo 1x8 --ds.ring_attn_size 3", "8 GPUs cannot form ranks"),
    ("openrlhf-grpo 1x8 --train.seed two", "ARGS: --train.seed takes a whole number, not 'two'"),
    ("openrlhf-grpo 1x8 --train.seed=1.5", "ARGS: --train.seed takes a whole number, not '1.5'"),
    ("openrlhf-grpo 1x8 --actor.adam.lr fast", "--actor.adam.lr takes a number, not 'fast'"),
    ("openrlhf-grpo==0.9.10 1x8 --seed two", "--seed takes a whole number, not 'two'"),
    ("openrlhf-grpo 1x8 --actor.adam.betas 0.9 x", "--actor.adam.betas takes a number"),
    (
        "openrlhf-ppo 2x8",
        "wants a reward server",
        {**NO_SCORES, "reward_model": "org/rm", "eval_data": "/data/eval.jsonl"},
    ),
    (
        "openrlhf-grpo 1x8x24",
        "7.62 B × 24.4 bytes / 8 GPUs = 23.2 GB",
        {**NO_SCORES, **TP_4, "shape": QWEN2_5_7B, "reward_model": "org/RM-70B"},
    ),
    (
        "openrlhf-grpo 1x8",
        "--data.input_key input and --data.label_key label, only question, answer",
        {"columns": {"question": False, "answer": False}, "needs_labels": True},
    ),
    ("openrlhf-sft 0,0", "no node has one"),
    ("openrlhf-sft 0,8", "torchrun uses all nodes, and node 0 has no GPU"),
    ("openrlhf-rm 1x8 --train.batch_size 100", "that is: 104"),
    ("openrlhf-dpo==0.9.10 1x8 --loss x", "train_dpo of OpenRLHF 0.9.10"),
    (
        "openrlhf-dpo 1x8",
        "--data.chosen_key chosen and --data.rejected_key rejected, only prompt, answer",
        {"columns": {"prompt": False, "answer": False}},
    ),
]
SERVER = "--vllm-server http://{address:vllm}:8000"
THREES = "--per-device-train-batch-size 3 --gradient-accumulation-steps 5"
IN_4096 = {"shape": replace(QWEN3_8B, positions=4096)}
TRL: list[Row] = [
    ("trl-grpo 0,8", "node 0 has no GPU"),
    ("trl-grpo 1x8", "no source of rewards", NO_SCORES),
    ("trl-grpo 1x8 --num-generations 1", "--num-generations must be at least 2"),
    ("trl-grpo 1x8 --num-generations 0", "must be at least 1"),
    ("trl-grpo 1x1 --num_generations 4", "did you mean --num-generations?"),
    (f"trl-grpo 1x1 {THREES}", "is no multiple of 8"),
    ("trl-grpo 1x0 --per-device-train-batch-size 4", "is no multiple of 8"),
    ("trl-grpo 4,6", "do not fit nodes of 4, 6 GPUs", TP_4),
    ("trl-grpo 1x0", "engines of vLLM need GPUs (AGENT_TENSOR_PARALLEL)", TP_2),
    ("trl-grpo==1.15.0 2x0", "TRL 1.15.0 trains on GPUs only"),
    ("trl-grpo==1.15.0 1x8 --cpu", "TRL 1.15.0 trains on GPUs only"),
    (
        "trl-grpo 1x8",
        "--prompt-key input and --label-key label, only question",
        {"columns": {"question": False}, "needs_labels": True},
    ),
    ("trl-grpo 1x8 --max-completion-length 4096", "has 4096 positions", IN_4096),
    ("trl-grpo 1x8 --vllm-prompt-tokens 3073", "has 4096 positions", IN_4096),
    (f"trl-grpo 1x8 {SERVER}", "AGENT_TENSOR_PARALLEL beside --vllm-server", TP_2),
    (f"trl-grpo 1x8 {SERVER} --vllm-tensor-parallel-size 2", "of the server's comm", NO_ENGINES),
    (f"trl-grpo 1x8 {SERVER} --vllm-gpu-memory-utilization 0.5", "JOB_ARGS beside", NO_ENGINES),
    (f"trl-grpo 1x0 {SERVER}", "by NCCL, from GPUs", NO_ENGINES),
    (f"trl-grpo 1x8 {SERVER} --cpu", "by NCCL, from GPUs", NO_ENGINES),
    # a model is not divided with adapters: more GPUs do not help, and larger ones do
    (
        "trl-grpo 1x8x80",
        "72.7 B × 2 bytes = 145 GB + adapters of rank 32",
        {"lora_rank": 32, "shape": replace(QWEN2_5_32B, parameters=72_700_000_000)},
    ),
]
POSITIONS = {"shape": replace(QWEN2_5_7B, positions=32_768)}
SLIME_AND_PRIME_RL: list[Row] = [
    ("slime-grpo 2x8x80", "no source of rewards", NO_SCORES),
    ("slime-grpo 2x8x80 --colocate", "have nodes of their own"),
    ("slime-grpo 2x8x80 --global-batch-size 100", "is no multiple of"),
    ("slime-grpo 2x8x80 --tensor-model-parallel-size 3", "no division of 16 GPUs"),
    ("slime-grpo 2x8x80 --tensor-model-parallel-size 3", "no multiple of 3", {"shape": None}),
    ("slime-grpo 8,4", "4 and 8"),
    ("slime-grpo 0,0", "no node has one"),
    (
        "slime-grpo 2x8x80",
        "--model-args scripts/models/FILE.sh in AGENT_JOB_ARGS",
        {"model": "/v/our-model-7B"},
    ),
    ("slime-grpo 2x8x80 --model-args", "lacks its file", {"model": "/v/our-model-7B"}),
    ("slime-grpo 1x1x80", "B on 1×1×80 GB: no", {**IN_32B, "model": "/v/Qwen2.5-32B"}),
    ("slime-grpo 1x1x80", "train: [groups.rollout] nodes sets the others", IN_32B),
    ("prime-rl 2x8x80", "AGENT_MODEL_REVISION", {"revision": "abc"}),
    ("prime-rl 2x8x80 --inference.vllm.max-model-len 9", "[services.engine] command"),
    ("prime-rl 2x8x80 --deployment.num_infer_nodes 9", "[groups.rollout] nodes"),
    ("prime-rl 2x8x80 --orchestrator.batch-size 100", "is no multiple of 16"),
    ("prime-rl 2x8x80 --seq-len 100000", "lower --seq-len", POSITIONS),
    ("prime-rl 8,4", "4 and 8"),
    ("prime-rl 0,0", "no node has one"),
    ("prime-rl 0,8", "node 0 has no GPU"),
    ("prime-rl 1x1x80", "train: [groups.rollout] nodes sets the others", IN_32B),
]
SEARCH_R1: list[Row] = [
    ("trainer.resume_mode=auto", "no such key; +trainer.resume_mode would add one"),
    ("trainer.balance_batch=True", "no such key; +trainer.balance_batch would add one"),
    ("custom_reward_function.path=/x", "no such key"),
    ("data.train_batch_size=100", "no multiple of 16"),
    (f"{MINI}=100", "no multiple of 16"),
    (f"{MICRO}=8", "no multiple of 16"),
    (f"{MICRO}=96", "no multiple of"),
    ("critic.ppo_micro_batch_size=8", "no multiple of 16"),
    (f"{LOG_PROB}=40", "no multiple of 16"),
    ("data.train_batch_size=320", "no multiple of"),
    ("trainer.nnodes=3", "would wait forever"),
    ("retriever.url=http://h/?a=b", "without quotes"),
]
SEARCH_R1 = [(f"search-r1-ppo 2x8 {args}", said) for args, said, *_ in SEARCH_R1]
SEARCH_R1.append(("search-r1-ppo 2x8/8", "Ray would wait"))
SEARCH_R1.append(("search-r1-ppo 2x8/8", "8 of 9 CPUs"))
VERL_SHAPES: list[Row] = [
    ("verl-grpo 0/8,0/8", "no node has one"),
    ("verl-grpo 1x8", "engines of 16 GPUs do not fit nodes of 8 GPUs", TP_16),
    ("verl-grpo 1x6", "engines of 4 GPUs do not fit nodes of 6 GPUs", TP_4),
    ("verl-grpo 2x6", "engines of 4 GPUs do not fit nodes of 6, 6 GPUs", TP_4),
    ("verl-grpo 8,4", "engines of 16 GPUs do not fit nodes of 8, 4 GPUs", TP_16),
    ("verl-grpo 4,2", "engines of 6 GPUs do not fit nodes of 4, 2 GPUs", TP_6),
    ("verl-grpo==0.5.0 8,8,4", "places one group on a node", TP_2),
    ("verl-ppo==0.5.0 8,6", "places one group on a node", TP_2),
    ("verl-grpo==0.5.0 8,8,4", "8, 8, 4 GPUs are groups of 4: install 0.6.1"),
    # the exact number of CPUs is accepted in test_values
    ("verl-grpo==0.6.1 2x8/8", "node 0 has 8 of 9 CPUs", TP_2),
    ("verl-grpo==0.6.1 2x8/12", "node 0 has 12 of 13 CPUs", {**TP_2, "scores": True}),
    ("verl-grpo==0.7.0 2x8/28", "node 0 has 28 of 29 CPUs", TP_2),
    ("verl-grpo==0.7.0 2x4/13", "node 0 has 13 of 14 CPUs", TP_8),
    ("verl-grpo==0.7.1 2x8/24", "node 0 has 24 of 25 CPUs", TP_2),
    ("verl-grpo==0.8.0 2x8/24", "node 0 has 24 of 25 CPUs", {**TP_2, "scores": True}),
    ("verl-grpo==0.8.0 1x1/3", "AGENT_NUM_CPUS"),
    ("verl-grpo 2x8/25", "node 0 has 25 of 29 CPUs"),
    ("verl-grpo 0/0,8", "node 0 has 0 of 4 CPUs"),
    ("verl-grpo 0/1,8", "node 0 has 1 of 5 CPUs"),
    (f"verl-grpo 2x8/28 {STORES}=8", "node 0 has 28 of 29 CPUs"),
]
VERL_KEYS: list[Row] = [
    ("verl-grpo 2x8 data.train_batch_size=1001", "is no multiple of 16"),
    (f"verl-grpo 2x8 data.train_batch_size=96 {MINI}=64", "no multiple of 64"),
    ("verl-grpo 2x8 data.train_batch_size=many", "expected a whole number"),
    ("verl-grpo 2x8 trainer.nnodes=3", "would wait forever"),
    ("verl-grpo 2x8 trainer.n_gpus_per_node=16", "would wait forever"),
    (f"verl-grpo 2x8 {TENSOR}=3", "engines of 3 GPUs do not fit nodes of 8, 8 GPUs"),
    ("verl-grpo 2x8 critic.model.fsdp_config.param_offload=True", "critic.fsdp.param_offload"),
    (
        "verl-grpo==0.7.1 2x8 custom_reward_function.path=/x.py",
        "reward.custom_reward_function.path",
    ),
    ("verl-grpo==0.7.0 2x8 reward.num_workers=4", "has no reward"),
    ("verl-grpo 2x8 reward_manager.name=x", "calls it reward.reward_manager.name"),
    ("verl-grpo 2x8 reward_model.reward_manager=dapo", "calls it reward.reward_manager.name"),
    ("verl-grpo 2x8 trainr.nnodes=2", "has no trainr (trainer?)"),
    ("verl-grpo 2x8 trainer.nnode=2", "has no nnode (nnodes?)"),
    ("verl-grpo 2x8 algorithm.adv_estimator=grop", "has no grop (grpo?)"),
    ("verl-grpo==0.8.0 2x8 trainer.use_v1=True", "has no use_v1"),
    (f"verl-grpo==0.6.1 2x8 {ROLLOUT}.seed=1", "has no seed"),
    (f"verl-grpo 2x8 {OPTIM}.lrr=1e-6", f"{OPTIM}.lrr: verl 0.9.1 has no lrr (lr?)"),
    ("verl-grpo==0.7.1 2x8 critic.optim.lrr=1e-6", "has no lrr (lr?)"),
    ("verl-grpo 2x8 critic.model.lora.rnk=8", "has no rnk (rank?)"),
    (f"verl-grpo 2x8 {ROLLOUT}.val_kwargs.topp=1", "has no topp (top_p?)"),
    (f"verl-grpo==0.8.0 2x8 {ROLLOUT}.checkpoint_engine.backnd=nccl", "no backnd (backend?)"),
    (f"verl-grpo==0.8.0 2x8 {ACTOR}.router_replay.mod=R2", "has no mod (mode?)"),
    ("verl-grpo 2x8 reward.reward_model.enabled=True", "has no enabled (enable?)"),
    ("verl-grpo 2x8 data.custom_cls.pat=/x.py", "has no pat (path?)"),
    (f"verl-grpo 2x8 {ROLLOUT}.engine_kwargs.vllm.mine=1", f"++{ROLLOUT}.engine_"),
    (f"verl-grpo 2x8 +{OPTIM}.lr=1", f"write {OPTIM}.lr=… or ++{OPTIM}.lr=…"),
    (f"verl-grpo==0.8.0 2x8 {ROLLOUT}.multi_turn.interaction_config_path=x", "has no inter"),
    ("verl-grpo 2x8 --nnodes=2", "no argument for hydra"),
    ("verl-grpo 2x8 +trainer.test_freq=5", "+trainer.test_freq: verl 0.9.1 has this key"),
    ("verl-grpo 2x8 +trainer.nnodes=2", "write trainer.nnodes=… or ++trainer.nnodes=…"),
    ("verl-grpo 2x8 trainer.nnode=1 data.batch_size=1", "nnode: verl 0.9.1 has no nnode (nnodes?)"),
    ("verl-grpo 2x8 trainer.nnode=1 data.batch_size=1", "data.batch_size: verl"),  # all at once
    (f"verl-grpo==0.6.1 2x8 {ROLLOUT}.mode=sync", "only in async", {"scores": True}),
    ("verl-grpo==0.5.0 2x8", "await", {"scores": True}),
    ("verl-grpo==0.5.0 2x8", "install 0.6.1", {"scores": True}),
    (
        "verl-grpo 2x8",
        "no column for data.prompt_key prompt, only question",
        {"columns": {"question": False, "answer": False}},
    ),
]
VERL_SAMPLES: list[Row] = [
    (f"verl-grpo==0.7.1 2x8 {ULYSSES}=3", "=3: it does not divide 16 GPUs", IN_32B),
    (
        f"verl-grpo==0.7.0 2x8 {ULYSSES}=16",
        "whole heads of attention, and the model has 40",
        IN_32B,
    ),
    (f"verl-grpo 2x8 {ULYSSES}=2 {MODEL}.use_remove_padding=False", "padding=True only", IN_32B),
    (
        "verl-grpo==0.6.1 1x8x80 data.max_response_length=8192",
        "texts of 9216 tokens: org/a-model has 4096 positions",
        {"model": "org/a-model", "shape": replace(QWEN2_5_7B, positions=4096)},
    ),
    (
        f"verl-grpo 1x4x80 {ACTOR}.ppo_max_token_len_per_gpu=2048",
        "the longest takes 3072 of a GPU",
        {"shape": QWEN2_5_7B},
    ),
    (
        f"verl-grpo 1x4x80 {ROLLOUT}.log_prob_max_token_len_per_gpu=3071",
        "the longest takes 3072 of a GPU",
        {"shape": QWEN2_5_7B},
    ),
    (
        f"verl-grpo 1x4x80 {REF}.log_prob_max_token_len_per_gpu=1500 {FSDP}.{DIVIDED}=2",
        "the longest takes 1536 of a GPU",
        {"shape": QWEN2_5_7B},
    ),
    (
        f"verl-grpo==0.7.1 2x8 {ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=2048",
        "= 2,079 MiB",
        {"shape": QWEN2_5_7B},
    ),
]
VERL_SEPARATE: list[Row] = [
    (f"verl-grpo==0.9.0 2x8 {SEPARATE}", "install 0.9.1"),
    (f"verl-grpo==0.8.0 2x8 {SEPARATE}", "install 0.9.1 or later"),
    (f"verl-grpo 1x1 {SEPARATE}", "one node of 1 GPU joined"),
    (f"verl-grpo 8,4 {SEPARATE}", "divides equal nodes, and these have 8, 4 GPUs"),
    (f"verl-grpo 2x8 {SEPARATE} {ROLLOUT}.nnodes=2", "engines on 2 nodes of 8 GPUs"),
    (f"verl-grpo 2x8 {ROLLOUT}.nnodes=1", f"unless {SEPARATE} is set"),
    (
        f"verl-grpo 2x8 {SEPARATE} actor_rollout_ref.hybrid_engine=True",
        "the recipe has no engines on the training GPUs",
    ),
    (
        f"verl-grpo 2x8 {SEPARATE} trainer.v1.separate_async.parameter_sync_step=3",
        "verl ends where it is not data.train_batch_size",
    ),
    (f"verl-grpo 2x8 {SEPARATE}", "AGENT_LORA_RANK", {"lora_rank": 64}),
    (f"verl-grpo 2x8 {SEPARATE}", "AGENT_REWARD_MODEL", {"reward_model": "RM-7B"}),
    (f"verl-grpo 2x8 {SEPARATE}", "with Megatron", {"backend": "megatron"}),
    (f"verl-grpo 2x8 {SEPARATE} {TENSOR}=3", "3"),
    (
        f"verl-grpo 3x6 {SEPARATE} {ROLLOUT}.nnodes=2 {TENSOR}=4",
        "engines of 4 GPUs do not fit nodes of 6, 6 GPUs",
    ),
    (
        f"verl-grpo 4x4 {SEPARATE} {ROLLOUT}.nnodes=3 {TENSOR}=6",
        "engines of 6 GPUs do not fit nodes of 4, 4, 4 GPUs",
    ),
    (
        f"verl-grpo 4x8 {SEPARATE} trainer.nnodes=5",
        "trainer.nnodes=5: 4 nodes of 8 GPUs joined, and some of them have to generate",
    ),
    (
        f"verl-grpo 2x8 {SEPARATE} {ROLLOUT}.checkpoint_engine.backend=naive",
        "checkpoint_engine.backend=naive: verl ends with",
    ),
    (f"verl-grpo 2x8/12 {SEPARATE}", "Ray would wait forever for CPUs"),
    (f"verl-grpo 1x8/20 {SEPARATE}", "20 of 29 CPUs"),  # 12 that train, 8 of engines, 8 stores
    (f"verl-grpo 2x1x48 {SEPARATE}", "an engine of 1 GPU of 48 GB lacks room", IN_32B),
]
VERL_FULLY_ASYNC: list[Row] = [
    (f"verl-grpo==0.7.1 2x8 {FULLY_ASYNC}", "install 0.8 or later"),
    (f"verl-grpo 2x8 {FULLY_ASYNC} {SEPARATE}", "are two trainers"),
    ("verl-grpo 2x8 async_training.stalenes_threshold=1", "(staleness_threshold?)"),
    ("verl-grpo==0.8.0 2x8 async_training.concurrent_samples_per_replica=8", "has no concurrent"),
    (f"verl-grpo 2x8 {FULLY_ASYNC} data.train_batch_size=512", "ppo_mini_batch_size × async"),
    (
        f"verl-grpo 2x8 {FULLY_ASYNC} trainer.total_training_steps=9",
        "verl reads rollout.total_rollout_steps (prompts) instead",
    ),
    (f"verl-grpo 2x8 {FULLY_ASYNC} {ROLLOUT}.nnodes=1", "verl reads rollout.nnodes instead"),
    (
        "verl-grpo 2x8 async_training.use_trainer_do_validate=True",
        "the recipe has no engines on the training GPUs",
    ),
    (f"verl-grpo 2x8 {FULLY_ASYNC} rollout.nnodes=2", "engines on 2 nodes of 8 GPUs"),
    (f"verl-ppo 2x8 {FULLY_ASYNC}", f"take verl-grpo, or {SEPARATE}"),
    (f"verl-grpo 2x8 {FULLY_ASYNC}", "with Megatron", {"backend": "megatron"}),
    # 24 CPUs for 8 GPUs that train, 16 for 8 engines, and 23 for processes that may be on either
    (f"verl-grpo 8/47,8/38 {FULLY_ASYNC}", "38 of 39 CPUs"),
    (f"verl-grpo 1x8/42 {FULLY_ASYNC}", "42 of 43 CPUs"),
    (f"verl-grpo 8/46,8/39 {FULLY_ASYNC}", "46 of 47 CPUs"),
    (f"verl-grpo 0/22,8/46,8/39 {FULLY_ASYNC}", "46 of 47 CPUs"),
]
ADAPTERS_WITH_SGLANG = {"lora_rank": 513, "rollout": "sglang"}
VERL_ADAPTERS: list[Row] = [
    (
        "verl-grpo==0.5.0 2x8",
        "AGENT_LORA_RANK=48: vLLM with verl 0.5.0 allows only 8, 16, 32, 64, 128, 256, 320, 512",
        {"lora_rank": 48},
    ),
    ("verl-grpo==0.6.1 2x8", "allows at most 512", {"lora_rank": 513}),
    ("verl-grpo 2x8", "allows at most 512", {"lora_rank": 1024}),
    *(
        (f"verl-grpo=={version} 2x8", "use AGENT_ROLLOUT=vllm, or verl", ADAPTERS_WITH_SGLANG)
        for version in ("0.5.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0")
    ),
    # they would end the job at its first weight sync
    (
        f"verl-grpo 1x1 {ACTOR}.strategy=fsdp {ROLLOUT}.layered_summon=True",
        "ends at the first weight sync",
        {"lora_rank": 32},
    ),
]
ON_MEGATRON = {"backend": "megatron", "shape": QWEN3_8B}
TP = f"{MEGATRON}.tensor_model_parallel_size"
VERL_MEGATRON: list[Row] = [
    (f"verl-grpo 1x8x80 {FSDP}.param_offload=True", "has no fsdp_config"),
    (f"verl-grpo 1x8x80 {MEGATRON}.grad_offload=True", "has no grad_offload"),
    (f"verl-grpo==0.8.0 1x8x80 {MEGATRON}.pad_to_length=True", "has no pad_to_length"),
    ("verl-grpo 1x8x80 critic.megatron.tensor_parallel=2", "has no tensor_parallel"),
    (f"verl-grpo 1x8x80 {OPTIM}.min_lr_ratio=1", "has no min_lr_ratio"),
    (f"verl-grpo 1x8x80 {MEGATRON}.override_transformer_config.moe=1", "has no moe"),
    ("verl-grpo 1x8x80 critic.megatron.override_transformer_config.moe=1", "has no moe"),
    (f"verl-grpo 1x8x80 {REF}.megatron.tensor=2", "has no tensor"),
    (f"verl-grpo==0.6.1 1x8x80 {MEGATRON}.vanilla_mbridge=True", "has no vanilla_mbridge"),
    ("verl-grpo==0.7.1 1x8x80 critic.model.use_remove_padding=True", "no use_remove_padding"),
    (f"verl-grpo 1x8x80 {TP}=3", "no division of 8 GPUs"),
    (f"verl-grpo 1x8x80 {TP}=two", "expected a whole number"),
    (f"verl-grpo 1x8x80 {MINI}=255 {ROLLOUT}.n=1", "is no multiple of 4"),
    # up to 0.6 a step is divided over all GPUs, and not only over the copies of a model
    (
        f"verl-grpo==0.6.1 1x8x80 {ROLLOUT}.n=1 data.train_batch_size=1028 {MINI}=4",
        "is no multiple of 8",
    ),
    ("verl-grpo 1x8x80 --config-name", "lacks its value"),
    ("verl-grpo 1x8x80 --multirun", "no argument for hydra"),
    ("verl-grpo==0.5.0 1x8x80", "install 0.6.1 or later"),
    ("verl-ppo 1x8x80", "a script for it with verl-grpo only", {"lora_rank": 64}),
    ("verl-grpo==0.7.0 1x8x80", "install 0.7.1 or later", {"lora_rank": 64}),
    ("verl-grpo==0.6.1 1x8x80", "install verl 0.7 or later", {"reward_model": "/reward"}),
]
VERL_MEGATRON += [
    # nobody ran it on less; sizes of one's own are an experiment of one's own
    ("verl-grpo 4x8x80", "from 32 GPUs of 96 GB on", {"shape": QWEN3_235B}),
    ("verl-grpo 1x4x80", "from 8 GPUs of 80 GB on", {"shape": QWEN3_30B}),
    ("verl-grpo 8x8x80", "from 96 GPUs of 80 GB on", {"shape": DEEPSEEK_V3}),
    (  # where only stages would make it fit: what to fetch
        "verl-grpo 16x8x80",
        "hf download Qwen/Qwen2.5-7B config.json",
        {"shape": ModelShape.from_name("Llama-3.1-405B")},
    ),
]
VERL_MEGATRON = [(row[0], row[1], ON_MEGATRON | dict(*row[2:])) for row in VERL_MEGATRON]
ROWS = [
    *(*OPENRLHF, *TRL, *SLIME_AND_PRIME_RL, *SEARCH_R1, *VERL_SHAPES, *VERL_KEYS, *VERL_SAMPLES),
    *(*VERL_SEPARATE, *VERL_FULLY_ASYNC, *VERL_ADAPTERS, *VERL_MEGATRON),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[1]}")
def test_refusals(row: Row) -> None:
    """The refusal has the reason, or sizes that fit if there are any."""
    line, said, *fields = row
    assert said in refusal(line, **dict(*fields))


def test_a_refusal_names_megatron_and_adapters_where_they_fit() -> None:
    """235B with FSDP is refused with what Megatron would take, unless that would not fit either."""
    fields = {"shape": QWEN3_235B, "tensor_parallel": None}
    nodes = (NodeSize(8, 128, 1 << 40, 80),)
    said = refusal("verl-grpo 8x8x80", nodes=nodes * 8, **fields)
    assert "235 B on 8×8×80 GB: no" in said
    assert "or with AGENT_BACKEND=megatron: offload between phases, optimizer in CPU" in said
    assert "AGENT_BACKEND" not in refusal("verl-grpo 1x8x80", nodes=nodes, **fields)
    assert "AGENT_BACKEND" not in refusal(f"verl-grpo 2x8 {ULYSSES}=3", **IN_32B)
