"""What each recipe's command sets: by nodes, releases, arguments and models."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from agent.base.versions import version_text
from agent.frameworks.layouts import PRIME_RL_CPU
from agent.frameworks.recipe import JobBasis, ModelShape, NodeSize, shape_of
from agent.frameworks.verl import REWARD_FUNCTION
from support.asked_recipes import (
    ACTOR,
    FSDP,
    MEGATRON,
    MINI,
    MODEL,
    REF,
    RELEASES,
    ROLLOUT,
    SHARE,
    TENSOR,
    differing,
    made,
    said_by,
    settings_of,
)
from support.model_shapes import (
    LLAMA_8B_CONFIG,
    QWEN2_5_7B,
    QWEN2_5_7B_CONFIG,
    QWEN2_5_32B,
    QWEN3_8B,
    QWEN3_30B,
    QWEN3_235B,
    shape,
)


class Row(NamedTuple):
    """What is asked, what the command sets, what it says, and what it does not say."""

    line: str
    sets: str
    says: str
    not_said: str
    fields: dict[str, Any]


def row(line: str, sets: str = "", says: str = "", *, not_said: str = "", **fields: Any) -> Row:  # noqa: ANN401 - fields of RecipeInput
    """Return a row of a table."""
    return Row(line, sets, says, not_said, fields)


def columns(*names: str, **lists: bool) -> dict[str, bool]:
    """Return columns of text, and those that may hold lists."""
    return {**dict.fromkeys(names, False), **lists}


OPENRLHF = [
    # 0.9.1 and later ask the reward server without Ray tasks; a head may have CPUs to spare
    row("openrlhf-grpo 1x8/8"),
    row("openrlhf-grpo==0.8.11 0/8,8/8"),
    row("openrlhf-grpo 1x8 --train.batch_size 64", "rollout.batch_size=64"),
    row("openrlhf-grpo 1x8 --ds.ring_attn_size 2 --train.batch_size 4", "rollout.batch_size=4"),
    row("openrlhf-grpo 2x8 --actor.num_nodes 1", "ref.num_nodes=1 vllm.num_engines=8"),
    row(
        "openrlhf-grpo 1x8 --reward.model_name_or_path R",
        "reward.num_nodes=1 reward.num_gpus_per_node=8",
        scores=False,
    ),
    row(
        "openrlhf-grpo 1x16 --no-train.colocate_all --train.colocate_actor_ref"
        " --actor.num_gpus_per_node=8 --vllm.num_engines=8"
        " --no-vllm.enable_sleep --no-ds.enable_sleep",
        "ref.num_gpus_per_node=8",
    ),
    row("openrlhf-grpo 1x8", "logger.wandb.key=by-WANDB_API_KEY", wandb=True),
    row("openrlhf-grpo==0.8.11 1x8", "use_wandb=by-WANDB_API_KEY", wandb=True),
    row(
        "openrlhf-grpo 1x8",
        "logger.wandb.run_name=openrlhf-grpo-Qwen2.5-7B-run-7",
        wandb=True,
        run_id="run-7",
    ),
    row("openrlhf-grpo 1x8", "logger.wandb.run_name=mine", wandb=True, run_name="mine"),
    row(
        "openrlhf-grpo==0.9.1 2x8",
        "pretrain=Qwen/Qwen2.5-7B prompt_data=/data/train.jsonl remote_rm_url={reward_url}"
        " ckpt_path=/v/run save_path=/v/run/model load_checkpoint=on bf16=on"
        " prompt_max_len=1024 !flash_attn !use_wandb",
        "--vllm_num_engines: 16 GPUs = 8 engines × 2",
        tensor_parallel=2,
    ),
    row("openrlhf-grpo==0.9.1 2x8", says="--input_key: column of the prompt"),
    # exponents, grouped digits and placeholders are numbers, too
    row("openrlhf-grpo 1x8 --actor.adam.lr 5e-7", "actor.adam.lr=5e-7"),
    row("openrlhf-grpo 1x8 --data.max_samples 1_000", "data.max_samples=1_000"),
    row("openrlhf-grpo 1x8 --train.seed {attempt}", "train.seed={attempt}"),
    # micro batches would not be used beside batches by tokens; OpenRLHF packs no images
    row("openrlhf-grpo 1x8", "train.max_tokens_per_gpu=16384"),
    row("openrlhf-grpo 1x8 --data.max_len 32768", "train.max_tokens_per_gpu=32768"),
    row(
        "openrlhf-grpo 1x8 --train.micro_batch_size 4",
        "!train.dynamic_batch_enable ds.packing_samples=on",
    ),
    row("openrlhf-grpo 1x8 --data.max_images_per_prompt 2", "!ds.packing_samples"),
    # OpenRLHF ends with KeyError where the column of labels is missing
    row("openrlhf-grpo 1x8", "data.label_key=label", needs_labels=True),
    row("openrlhf-grpo 1x8", "data.label_key=label"),
    row("openrlhf-grpo 1x8", "data.label_key=label", columns=columns("label", input=True)),
    row("openrlhf-grpo 1x8", "!data.label_key", columns=columns(input=True)),
    row(
        "openrlhf-grpo 1x8 --data.input_key question --data.label_key=answer",
        columns=columns("question", "answer"),
        needs_labels=True,
    ),
    row(
        "openrlhf-ppo 2x8",
        "reward.model_name_or_path=org/rm reward.num_nodes=2 !reward.remote_url !data.label_key",
        scores=False,
        reward_model="org/rm",
    ),
    row(
        "openrlhf-grpo 1x8x24",
        says="× 8 bytes / 8 GPUs",
        shape=QWEN2_5_7B,
        scores=False,
        tensor_parallel=4,
        reward_model="org/RM-7.6B",
    ),
    row("openrlhf-dpo 1x8", says="--no-data.apply_chat_template"),
    row("openrlhf-dpo 1x8 --no-data.apply_chat_template", "!data.apply_chat_template"),
    # rows of messages need a template, plain text does not; conversations have no answer column
    row("openrlhf-sft 1x8", "data.apply_chat_template=on data.output_key=output"),
    row(
        "openrlhf-sft 1x8",
        "!data.apply_chat_template data.output_key=output",
        columns=columns("input", "output"),
    ),
    row(
        "openrlhf-sft 1x8",
        "data.apply_chat_template=on data.output_key=output",
        columns=columns(input=True, output=True),
    ),
    row("openrlhf-sft 1x8", "data.apply_chat_template=on", columns=columns(input=True)),
    row("openrlhf-sft 1x8", "!data.output_key", columns=columns(input=True)),
    row("openrlhf-dpo 1x8", "!data.apply_chat_template", columns=columns("chosen", "rejected")),
    row(
        "openrlhf-rm 1x8",
        "data.apply_chat_template=on !data.output_key",
        columns=columns(chosen=True, rejected=True),
    ),
    # the fork has no evaluation data, and sends labels only if their column is named
    row("openrlhf-m-grpo 1x8", says="AGENT_EVAL_DATA is not read", eval_data="/data/eval.jsonl"),
    row("openrlhf-m-grpo 1x8", says="--label_key", eval_data="/data/eval.jsonl"),
    row("openrlhf-m-grpo 1x8 --label_key answer", not_said="labels"),
]
VL = "Qwen/Qwen2.5-VL-7B-Instruct"
OF_IMAGES = "data.image_key data.max_images_per_prompt actor.freeze_visual_encoder"
NO_IMAGES = "!" + OF_IMAGES.replace(" ", " !")
OPENRLHF += [
    # from 0.10 on GRPO trains on images, without packing, as its script for them
    row("openrlhf-grpo 1x8", "data.image_key=images !ds.packing_samples", model=VL),
    row("openrlhf-grpo 1x8", "data.max_images_per_prompt=1", model=VL),
    row("openrlhf-grpo 1x8", "actor.freeze_visual_encoder=on", model=VL),
    row(
        "openrlhf-grpo==0.10.4 1x8",
        "data.image_key=images !ds.packing_samples",
        model=VL,
        columns=columns("input", "label", "images"),
    ),
    row(
        "openrlhf-grpo 1x8",
        f"{NO_IMAGES} ds.packing_samples=on",
        model=VL,
        columns=columns("input", "label"),
    ),
    row("openrlhf-grpo==0.9.10 1x8", f"{NO_IMAGES} !ds.packing_samples", model=VL),
    row("openrlhf-grpo 1x8", f"{NO_IMAGES} ds.packing_samples=on"),
]
SERVER = "--vllm-server http://{address:vllm}:8000"
GROUP = "{addresses:generation|url}"
LONG = "trl-grpo 1x8x80 --max-completion-length"
OWN_GPUS: dict[str, Any] = {"tensor_parallel": None}
IN_4096: dict[str, Any] = {"shape": replace(QWEN3_8B, positions=4096)}
TRL = [
    row("trl-grpo==1.14.2 2x0"),
    row("trl-grpo==1.14.2 1x8 --cpu"),
    row("trl-grpo==1.15.0 1x8"),
    # a process takes as many answers as fit, long ones in parts of a group
    row(
        f"{LONG} 1024",
        "per-device-train-batch-size=8 gradient-accumulation-steps=2",
        shape=QWEN3_8B,
    ),
    row(
        f"{LONG} 8192",
        "per-device-train-batch-size=4 gradient-accumulation-steps=4",
        shape=QWEN3_8B,
    ),
    row(
        "trl-grpo 2x8x80 --max-completion-length 16384",
        "per-device-train-batch-size=2 gradient-accumulation-steps=4",
        shape=QWEN3_8B,
    ),
    row("trl-grpo 1x8", "vllm-prompt-tokens=3072", **IN_4096),
    row("trl-grpo 1x8 --vllm-prompt-tokens 3073 --no-vllm-tensor-parallel-size", **IN_4096),
    row("trl-grpo 1x8", "label-key=label"),
    row("trl-grpo 1x8", "label-key=label", columns=columns("label", input=True), needs_labels=True),
    row("trl-grpo 1x8", "label-key=on", columns=columns(input=True)),
    # engines that the user turns off: AGENT_TENSOR_PARALLEL neither starts nor refuses any
    *(
        row(f"trl-grpo {nodes} {off}", sets, tensor_parallel=4)
        for nodes in ("8,8", "4,6")
        for off, sets in (
            ("--vllm-tensor-parallel-size 0", "vllm-tensor-parallel-size=0"),
            ("--no-vllm-tensor-parallel-size", "!vllm-tensor-parallel-size"),
            ("--cpu", "!vllm-tensor-parallel-size"),
        )
    ),
    # vLLM on GPUs of its own: training has all that it sees, and no engine on them
    row(
        f"trl-grpo 8,6 {SERVER}",
        "vllm-server=http://{address:vllm}:8000 !vllm-tensor-parallel-size"
        " !vllm-gpu-memory-utilization !vllm-prompt-tokens",
        "14 GPUs = 14 processes",
        not_said="engine",
        **OWN_GPUS,
    ),
    # or on a node of a group, unless the user names another one or leaves it out
    row(
        "trl-grpo 8,8",
        f"vllm-server={GROUP}",
        "--vllm-server: [services.generation] of AGENT_SERVICES, in a group of nodes",
        generation=GROUP,
        **OWN_GPUS,
    ),
    row(
        f"trl-grpo 8,8 {SERVER}",
        "vllm-server=http://{address:vllm}:8000",
        generation=GROUP,
        **OWN_GPUS,
    ),
    row("trl-grpo 8,8 --no-vllm-server", "!vllm-server", generation=GROUP, **OWN_GPUS),
    # adapters: rank, alpha and rate of TRL's scripts; FSDP would have to gather what vLLM gets
    row(
        "trl-grpo 1x8x80",
        "lora-rank=32 lora-alpha=32 learning-rate=1e-5 !shard",
        shape=QWEN2_5_7B,
        lora_rank=32,
    ),
]
ENGINES = "rollout-num-gpus-per-engine"
EXPERT, TENSOR_OF_SLIME = "expert-model-parallel-size", "tensor-model-parallel-size"
BATCHES = "rollout-batch-size=32 global-batch-size=256"
SLIME = [
    row(
        "slime-grpo 2x8x80",
        "actor-num-nodes=2 actor-num-gpus-per-node=8 load=/v/run save=/v/run"
        " rollout-external-engine-addrs={addresses:engine|space} rm-type=remote_rm"
        " update-weight-disk-dir=/v/run/weights ref-load=/v/Qwen2.5-7B-Instruct"
        " rm-url={reward_url} env:CUDA_DEVICE_MAX_CONNECTIONS=1",
    ),
    # Megatron's division follows from memory, and all copies share a batch evenly
    row("slime-grpo 1x8x80", f"{TENSOR_OF_SLIME}=2 {EXPERT}=1 {BATCHES}"),
    row("slime-grpo 3x8x80", f"{TENSOR_OF_SLIME}=2 rollout-batch-size=33 global-batch-size=264"),
    row("slime-grpo 4x8x80", f"{TENSOR_OF_SLIME}=8 {EXPERT}=1 {BATCHES}", shape=QWEN2_5_32B),
    row("slime-grpo 2x8x80", f"{TENSOR_OF_SLIME}=1 {EXPERT}=8 {BATCHES}", shape=QWEN3_30B),
    row("slime-grpo 1x8x80", f"!{TENSOR_OF_SLIME} !{EXPERT} {BATCHES}", shape=None),
    row(f"slime-grpo 2x4x80 --{TENSOR_OF_SLIME} 4", f"{TENSOR_OF_SLIME}=4 {EXPERT}=1 {BATCHES}"),
    row("slime-grpo 1x8x80 --n-samples-per-prompt 16", "global-batch-size=512"),
    # the limit of requests at once depends on the GPUs of an engine
    row("slime-grpo 4x8x80", f"{ENGINES}=2", shape=QWEN2_5_32B),
    row("slime-grpo 2x8x80", f"{ENGINES}=4", tensor_parallel=4),
    row("slime-grpo 2x8x80", "wandb-group=mine", wandb=True, run_name="mine"),
    row("slime-grpo 2x8x80", "disable-wandb-random-suffix=on", wandb=True),
    # a pipeline divides layers only where config.json says how many there are
    row(
        "slime-grpo 4x8x80",
        "pipeline-model-parallel-size=1",
        shape=ModelShape.from_name("Qwen3-32B"),
    ),
    row("slime-grpo 2x8x80 --rm-type math", "rm-type=math !rm-url", scores=False),
]
OFFLOAD = "trainer.model.full-offload"
RENDERER = "orchestrator.renderer.name"
PRIME_RL = [
    row(
        "prime-rl 2x8x80",
        "deployment.num-train-nodes=2 deployment.gpus-per-node=8 output-dir=/v/run run.dir=."
        f" weight-broadcast.type=filesystem !{OFFLOAD} model.name=/v/Qwen3-8B",
        "16 GPUs train; batch 512 = 32 tasks × 16",
    ),
    # a configuration of the user has environments and batches; the rest stays the recipe's
    row(
        "prime-rl 2x8x80",
        "model.name=/v/Qwen3-8B !orchestrator.train.source !orchestrator.batch-size !max-steps"
        " !seq-len",
        train_data="/v/rl.toml",
    ),
    row(
        "prime-rl 2x8x80",
        "monitors.wandb.project=prime-rl run.name=mine",
        wandb=True,
        run_name="mine",
    ),
    # the name of a model decides, also of one in a folder, for which prime-rl knows none
    row("prime-rl 2x8x80", f"{RENDERER}=qwen3", model="/v/Qwen3-8B/"),
    row("prime-rl 2x8x80", f"{RENDERER}=qwen3", model="Qwen/Qwen3-8B"),
    row("prime-rl 2x8x80", f"{RENDERER}=prime-qwen3", model="PrimeIntellect/Qwen3-0.6B"),
    row("prime-rl 2x8x80", f"{RENDERER}=default", model="Qwen/Qwen2.5-7B-Instruct"),
    row(
        "prime-rl 2x8x80 --orchestrator.batch_size 64 --max_steps=7",
        "orchestrator.batch-size=64 max-steps=7",
        "16 GPUs train; batch 64 = 4 tasks × 16",
    ),
    # the optimizer works on the CPUs where the GPUs lack room, and stays where checkpoints have it
    row(
        "prime-rl 1x8x80",
        f"{OFFLOAD}=on trainer.model.optim-cpu-offload=false",
        shape=QWEN2_5_32B,
    ),
    row(
        "prime-rl 2x8x80",
        f"{OFFLOAD}=on",
        basis=JobBasis(QWEN2_5_7B, kept={"layout": PRIME_RL_CPU.name}),
    ),
]
MICRO = f"{ACTOR}.ppo_micro_batch_size"
VALIDATE = "+trainer.val_before_train=True"
SEARCH_R1 = [
    row(
        "search-r1-ppo 2x8",
        "retriever.url='http://{head_ip}:8000/retrieve' trainer.default_local_dir=/v/run"
        ' trainer.default_hdfs_dir=null trainer.logger=["console"] !trainer.resume_mode'
        " env:VLLM_ATTENTION_BACKEND=XFORMERS",
        "cannot resume",
    ),
    # without evaluation data it evaluates once at the end, which cannot be turned off
    row("search-r1-ppo 2x8", "data.val_files=/data/train.parquet !trainer.test_freq"),
    row(
        "search-r1-ppo 2x8",
        "data.val_files=/data/test trainer.test_freq=100",
        eval_data="/data/test",
    ),
    row(
        "search-r1-ppo 2x8 retriever.url='http://10.0.0.9:8000/retrieve'",
        "retriever.url='http://10.0.0.9:8000/retrieve'",
        "retriever.url: AGENT_JOB_ARGS",
    ),
    row(f"search-r1-ppo 2x8 {VALIDATE}", "trainer.val_before_train=True", "train: AGENT_JOB_ARGS"),
    row("search-r1-ppo 2x8 trainer.val_before_train=True", "trainer.val_before_train=True"),
    row("search-r1-ppo 2x8 max_turns=2", "max_turns=2", "max_turns: AGENT_JOB_ARGS"),
    row(f"search-r1-ppo 2x8 {MICRO}=32", f"{MICRO}=32"),
    row("search-r1-ppo 2x8/9"),  # one CPU for each GPU, and one for the main task on any node
    # its authors keep models and optimizer in the host's memory on one node, and not on two
    row(
        "search-r1-ppo 0,8", f"{FSDP}.param_offload=True critic.model.fsdp_config.grad_offload=True"
    ),
    row(
        "search-r1-grpo 0,8", f"{FSDP}.optimizer_offload=True {REF}.fsdp_config.param_offload=True"
    ),
    row("search-r1-ppo 2x8", f"!{FSDP}.param_offload !{REF}.fsdp_config.param_offload"),
    row("search-r1-grpo 2x8", f"!{FSDP}.param_offload !{REF}.fsdp_config.param_offload"),
]
NAMES = [version_text(version) for version in RELEASES]
UNKNOWN_CPUS = (NodeSize(8),) * 2
STORES = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"
OPTIM = f"{ACTOR}.optim"
REWARD = "reward.custom_reward_function"
FORMER_REWARD = "custom_reward_function"
SEVEN_B: dict[str, Any] = {"shape": QWEN2_5_7B}
VERL = [
    row("verl-grpo 2x8", "trainer.default_local_dir=/v/run trainer.resume_mode=auto"),
    row(
        "verl-grpo 2x8", "data.val_files=/data/train.parquet !trainer.test_freq", "AGENT_EVAL_DATA"
    ),
    row("verl-grpo 2x8", "trainer.val_before_train=False trainer.save_freq=20"),
    row("verl-grpo 2x8", "data.val_files=/data/test trainer.test_freq=20", eval_data="/data/test"),
    row("verl-grpo 2x8", 'trainer.logger=["console","wandb"]', wandb=True),
    row("verl-grpo 2x8", 'trainer.logger=["console"]'),
    row("verl-grpo==0.5.0 2x8"),
    # a server's function: its keys moved in 0.7.1, and 0.6 awaits it only in asynchronous rollouts
    *(
        row(
            f"verl-grpo=={version} 2x8",
            f"{root}.path={REWARD_FUNCTION} {root}.name=compute_score"
            f" {root}.reward_kwargs.url='{{reward_url}}' {mode}",
            scores=True,
        )
        for version, root, mode in (
            ("0.6.1", FORMER_REWARD, f"{ROLLOUT}.mode=async"),
            ("0.7.0", FORMER_REWARD, f"!{ROLLOUT}.mode"),
            *((version, REWARD, f"!{ROLLOUT}.mode") for version in NAMES if version >= "0.7.1"),
        )
    ),
    row("verl-grpo==0.6.1 2x8", f"!{FORMER_REWARD}.path"),
    row("verl-grpo 2x8", f"!{REWARD}.path"),
    row(
        f"verl-grpo 2x8 {REWARD}.path=/mine.py",
        f"{REWARD}.path=/mine.py !{REWARD}.name !{REWARD}.reward_kwargs.url",
        scores=True,
    ),
    # the CPUs that suffice: one less is refused in test_refusals
    row("verl-grpo==0.6.1 2x8/9", tensor_parallel=2),
    row("verl-grpo==0.6.1 2x8/13", tensor_parallel=2, scores=True),
    row("verl-grpo==0.7.0 2x8/29", tensor_parallel=2),
    row("verl-grpo==0.7.0 2x4/14", tensor_parallel=8),
    row("verl-grpo==0.7.1 2x8/25", tensor_parallel=2),
    row("verl-grpo==0.8.0 2x8/25", tensor_parallel=2, scores=True),
    row("verl-grpo==0.8.0 1x1/4"),
    # 0.9 places eight stores on all nodes; with fewer free CPUs there are fewer stores
    row("verl-grpo 2x8/29", f"!{STORES}"),
    row("verl-grpo 2x8/28", f"{STORES}=6"),
    row("verl-grpo 2x8/26", f"{STORES}=2"),
    row("verl-grpo 1x8/33", f"!{STORES}"),
    row("verl-grpo 1x8/32", f"{STORES}=7"),
    row("verl-grpo 16x8/26", f"!{STORES}"),
    row("verl-grpo 0/5,8/28", f"!{STORES}"),
    row("verl-grpo 0/4,8/28", f"{STORES}=6"),
    row("verl-grpo 0/2,8/25", f"{STORES}=2"),
    # a head without CPUs: TaskRunner then runs on a node with GPUs
    *(row(f"verl-grpo=={v} 0/0,8/33", "trainer.nnodes=1") for v in NAMES if v < "0.9"),
    row("verl-grpo 8,8,6", says="20 GPUs = 5 engines × 4", tensor_parallel=4),
    row("verl-grpo 8,8,6", says="2 of 22 GPUs stay idle", tensor_parallel=4),
    row(
        "verl-grpo 2x8",
        says="a node needs up to 29 CPUs; the CPUs of the nodes are not known here",
        nodes=UNKNOWN_CPUS,
    ),
    row("verl-grpo==0.5.0 8,8,4 trainer.nnodes=2 trainer.n_gpus_per_node=8", "trainer.nnodes=2"),
    row("verl-grpo==0.6.1 8,8,4", "trainer.nnodes=5"),
    row("verl-grpo 2x8 data.prompt_key=question", columns=columns("question", "answer")),
    # the user's own keys, and the sizes that depend on them
    row("verl-grpo 2x8 data.train_batch_size=512", f"data.train_batch_size=512 {MINI}=128"),
    row(f"verl-grpo 2x8 {MINI}=64", f"data.train_batch_size=1024 {MINI}=64"),
    row(f"verl-grpo 2x8 data.train_batch_size=96 {MINI}=32", "data.train_batch_size=96"),
    row("verl-grpo 2x8 trainer.nnodes=1", "trainer.nnodes=1 trainer.n_gpus_per_node=8"),
    row("verl-grpo 2x8 trainer.n_gpus_per_node=4", f"trainer.nnodes=4 {TENSOR}=1"),
    row(f"verl-grpo 2x8 {TENSOR}=4", f"{TENSOR}=4", f"{TENSOR}: AGENT_JOB_ARGS"),
    row(f"verl-grpo 2x8 {ROLLOUT}.n=16", f"{ROLLOUT}.n=16"),
    row("verl-grpo 2x8 trainer.save_freq=5", "trainer.save_freq=5"),
    row("verl-grpo 2x8 +trainer.mine=1", "trainer.mine=1", "trainer.mine: AGENT_JOB_ARGS"),
    # micro batches turn off batches by tokens, beside which they are ignored, and only there
    row(
        f"verl-ppo 2x8 {MICRO}_per_gpu=4",
        f"{ACTOR}.use_dynamic_bsz=False {ROLLOUT}.log_prob_use_dynamic_bsz=True"
        f" {REF}.log_prob_use_dynamic_bsz=True critic.use_dynamic_bsz=True",
    ),
    row(f"verl-grpo 2x8 {MICRO}_per_gpu=4", "!critic.use_dynamic_bsz"),
    # batches by tokens hold the longest sample, which verl asserts after a whole rollout
    row("verl-grpo 2x8", f"{TOKENS}=24576"),
    row(
        "verl-ppo 2x8 data.max_response_length=40000",
        f"{TOKENS}=41024 critic.ppo_max_token_len_per_gpu=41024",
    ),
    row(f"verl-grpo 1x4x80 {TOKENS}=3072", **SEVEN_B),
    row(f"verl-grpo 1x4x80 {TOKENS}=2048 {MICRO}_per_gpu=4", **SEVEN_B),
    # a reward model: its keys moved twice; GRPO stays near its reference by its loss
    row(
        "verl-ppo==0.6.1 2x8",
        "reward_model.enable=True reward_model.model.path=org/rm algorithm.use_kl_in_reward=True",
        reward_model="org/rm",
    ),
    row(
        "verl-ppo==0.7.0 2x8",
        "reward_model.model.path=org/rm reward_model.rollout.name=vllm",
        reward_model="org/rm",
    ),
    row(
        "verl-ppo 2x8",
        "reward.reward_model.model_path=org/rm reward.num_workers=8"
        " reward.reward_model.rollout.prompt_length=4096 algorithm.use_kl_in_reward=True",
        reward_model="org/rm",
    ),
    row("verl-grpo 2x8", "!algorithm.use_kl_in_reward", reward_model="org/rm"),
    # its engines wake up while states stay on the GPU: 0.8, as in verl's scripts, is too much
    *(
        row(
            f"{recipe} 1x8x80",
            f"reward.reward_model.rollout.gpu_memory_utilization={share}"
            f" reward.reward_model.rollout.tensor_model_parallel_size={size}",
            shape=QWEN2_5_7B,
            tensor_parallel=1,
            reward_model=model,
        )
        for recipe, model, share, size in (
            ("verl-grpo", "org/RM-8B", "0.7", "1"),
            ("verl-ppo", "org/RM-8B", "0.6", "1"),  # beside the critic's states, too
            ("verl-ppo", "org/RM-70B", "0.6", "8"),
            ("verl-ppo", "org/rm", "0.6", "1"),
        )
    ),
]
BUCKET = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
SEVENTY_TWO_B = {
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
SMALL_GEMMA = {
    "hidden_size": 2048,
    "vocab_size": 262_400,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "num_hidden_layers": 30,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "head_dim": 64,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "vocab_size": 201_088,
}
THIRTY_B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151_936,
}
WIDER_EXPERTS = shape(**THIRTY_B_A3B | {"hidden_size": 4096, "moe_intermediate_size": 1536})


def seven_b(**changes: object) -> ModelShape:
    """Return the shape of Qwen2.5-7B with other fields of its `config.json`."""
    return shape(**QWEN2_5_7B_CONFIG | changes)


# The sender of 0.7.1 asserts that its bucket holds the largest tensor, at the first weight sync.
BUCKETS = [
    row("verl-grpo==0.7.1 16x8", f"{BUCKET}=2304", **SEVEN_B),  # 2,079 MiB in float32
    row(f"verl-grpo==0.7.1 16x8 {FSDP}.model_dtype=bf16", f"!{BUCKET}", **SEVEN_B),
    row(f"verl-grpo==0.7.1 16x8 {BUCKET}=4096", f"{BUCKET}=4096", **SEVEN_B),
    row("verl-grpo==0.7.1 16x8", f"!{BUCKET}", shape=seven_b(vocab_size=32_000)),
    row("verl-grpo==0.7.1 16x8", f"!{BUCKET}", shape=QWEN2_5_7B, backend="megatron"),
    row(  # 2,376 MiB in bf16
        "verl-grpo==0.7.1 16x8",
        f"{BUCKET}=2560",
        shape=seven_b(**SEVENTY_TWO_B),
        backend="megatron",
    ),
    # the embeddings of all layers in one tensor
    row("verl-grpo==0.7.1 16x8", f"{BUCKET}=7680", shape=seven_b(**SMALL_GEMMA)),
    row("verl-grpo==0.7.1 16x8", f"{BUCKET}=8192", shape=shape(**GPT_OSS)),  # so are its experts
    row("verl-grpo==0.7.1 16x8", f"!{BUCKET}", shape=shape(**THIRTY_B_A3B)),
    # experts as transformers 5 loads them, and as the checkpoint has them
    row("verl-grpo==0.7.1 16x8", f"{BUCKET}=6144", shape=WIDER_EXPERTS),
    row("verl-grpo==0.7.1 16x8", f"!{BUCKET}", shape=WIDER_EXPERTS, backend="megatron"),
    row("verl-grpo==0.7.1 16x8", f"{BUCKET}=5632"),
    *(row(f"verl-grpo=={v} 16x8", f"!{BUCKET}", **SEVEN_B) for v in ("0.7.0", "0.8.0", "0.9.1")),
]
LENGTHS = "data.max_prompt_length=2048 data.max_response_length=20480"
ULYSSES = "ulysses_sequence_parallel_size"
LLAMA_8B = shape(**LLAMA_8B_CONFIG, max_position_embeddings=131_072)
LONGEST = f"{ROLLOUT}.max_model_len"
LONGER = "data.max_response_length=8192"
OVERRIDE = "+actor_rollout_ref.model.override_config.max_position_embeddings=9216"
STRETCHED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
TEXTS = [
    # long answers are divided before states go to the CPUs; a batch divides over the copies
    row(
        f"verl-grpo==0.7.1 2x8x80 {LENGTHS}",
        f"{ACTOR}.{ULYSSES}=2 !{FSDP}.offload_policy",
        "it is divisible by 8 data-parallel ranks",
        shape=QWEN2_5_32B,
    ),
    row(f"verl-grpo 2x8x80 {LENGTHS}", f"{FSDP}.{ULYSSES}=2 {TOKENS}=19456", shape=QWEN2_5_32B),
    row(
        f"verl-grpo 2x8x80 {LENGTHS} {ACTOR}.{ULYSSES}=8",
        f"{ACTOR}.{ULYSSES}=8 {FSDP}.{ULYSSES}=8 !{FSDP}.offload_policy",
        "it is divisible by 2 data-parallel ranks",
        shape=QWEN2_5_32B,
    ),
    row("verl-grpo 2x8x80", f"!{FSDP}.{ULYSSES} !{ACTOR}.{ULYSSES}", shape=QWEN2_5_32B),
    # on small cards engines lack a cache for one text of the model's length, which vLLM wants
    row("verl-grpo 1x2x24", f"{LONGEST}=3072", shape=LLAMA_8B),
    row("verl-grpo==0.7.1 1x2x24", f"{LONGEST}=3072", shape=LLAMA_8B),
    row("verl-grpo 1x8x80", f"!{LONGEST}", shape=LLAMA_8B),
    row("verl-grpo 1x2x24", f"!{LONGEST}", shape=replace(LLAMA_8B, positions=32_768)),
    row("verl-grpo==0.6.1 1x2x24", f"!{LONGEST}", shape=LLAMA_8B),  # it limits them otherwise
    # texts longer than the model's end verl 0.6 by an assertion; in later ones answers end there
    row(
        f"verl-grpo 1x8x80 {LONGER}",
        says="answers end at the model's 4096 positions",
        shape=replace(QWEN2_5_7B, positions=4096),
    ),
    row(
        f"verl-grpo==0.6.1 1x8x80 {LONGER} {OVERRIDE}",
        not_said="positions",
        shape=replace(QWEN2_5_7B, positions=4096),
    ),
    row(
        f"verl-grpo==0.6.1 1x8x80 {LONGER}",
        not_said="positions",
        shape=seven_b(rope_scaling=STRETCHED, max_position_embeddings=16_384),
    ),
]
MODE = "trainer.v1.trainer_mode=separate_async"
APART = [
    row(f"verl-grpo 4x4 {MODE} {TENSOR}=8", says="8 GPUs for training, 8 GPUs = 1 engine × 8"),
    # training GPUs hold no engine; an engine has as many GPUs as its weights take of their own
    row(
        f"verl-grpo 4x8x80 {MODE}",
        f"{TENSOR}=4",
        f"{SHARE}: the engines' GPUs do not train",
        shape=QWEN2_5_32B,
    ),
]
RANK, ALPHA, STRATEGY = f"{MODEL}.lora_rank", f"{MODEL}.lora_alpha", f"{ACTOR}.strategy"
LAYERED = f"{ROLLOUT}.layered_summon"
NO_LORA = "!critic.model.lora_rank !critic.model.lora.rank"
OF_7B: dict[str, Any] = {"shape": QWEN2_5_7B, "lora_rank": 32}
ADAPTERS = [
    row(
        f"verl-grpo 2x8 {OPTIM}.lr=1e-5 {RANK}=32",
        f"{OPTIM}.lr=1e-5 {RANK}=32 {ALPHA}=32",
        lora_rank=64,
    ),
    row("verl-grpo==0.6.1 2x8", f"{RANK}=48", lora_rank=48),  # verl rounds it for the engines
    # verl merges adapters for SGLang from 0.9 on; the limit of the rank is vLLM's
    row("verl-grpo 2x8", f"{MODEL}.lora.merge=True {RANK}=513", rollout="sglang", lora_rank=513),
    # how adapters reach the engines: by what each release's `collect_lora_params` can do
    row("verl-grpo==0.8.0 1x1x80", f"!{STRATEGY} {LAYERED}=True !{FSDP}.offload_policy", **OF_7B),
    # torch refuses the fallback of FSDP 1 there
    row("verl-grpo==0.9.0 1x1x80", f"{STRATEGY}=fsdp2 !{LAYERED} !{FSDP}.offload_policy", **OF_7B),
    row("verl-grpo 1x1x80", f"{STRATEGY}=fsdp2 !{LAYERED}", **OF_7B),
    row("verl-grpo 1x2x80", f"{STRATEGY}=fsdp2 {LAYERED}=True", **OF_7B),
    row(  # its states are in CPU memory
        "verl-grpo==0.8.0 1x1x24",
        f"{STRATEGY}=fsdp2 !{LAYERED} {FSDP}.offload_policy=True",
        **OF_7B,
    ),
    row("verl-grpo 1x1x24", f"{STRATEGY}=fsdp2 !{LAYERED} {FSDP}.offload_policy=True", **OF_7B),
    # adapters that FSDP 1 saved are not continued by FSDP 2
    row(
        "verl-grpo 2x8",
        f"!{STRATEGY}",
        basis=JobBasis(kept={STRATEGY: "fsdp", RANK: "32"}),
        lora_rank=32,
    ),
    # only the actor has adapters: a critic beside them is trained in full, and counted so
    row("verl-ppo 1x8x80", NO_LORA, "× 20 bytes / 8 GPUs", shape=QWEN2_5_7B, lora_rank=64),
    *(
        row(
            f"verl-grpo=={version} 2x8x80",
            f"{MODEL}.lora.rank=32 {MODEL}.lora.alpha=64 {MODEL}.lora.lora_A_init_method=kaiming"
            f" {OPTIM}.lr=3e-6 {MEGATRON}.vanilla_mbridge=False !{RANK} !{LAYERED}",
            "adapters of rank 32",
            backend="megatron",
            **OF_7B,
        )
        for version in ("0.7.1", "0.8.0", "0.9.0", "0.9.1")
    ),
]
TP, PP = f"{MEGATRON}.tensor_model_parallel_size", f"{MEGATRON}.pipeline_model_parallel_size"
EP = f"{MEGATRON}.expert_model_parallel_size"
CONFIG = "--config-name=ppo_megatron_trainer"
ON_CPU = f"{OPTIM}.override_optimizer_config.optimizer_cpu_offload"
LAYERS = f"{MEGATRON}.override_transformer_config.num_layers_in"
LAST, FIRST = f"{LAYERS}_last_pipeline_stage", f"{LAYERS}_first_pipeline_stage"
WITH_IMAGES = replace(QWEN3_30B, has_vision=True, parameters=31_070_000_000)


def on_megatron(line: str, sets: str = "", says: str = "", **fields: Any) -> Row:  # noqa: ANN401 - fields of RecipeInput
    """Return a row of verl-grpo with Megatron, of Qwen3-8B unless it says otherwise."""
    return row(
        f"verl-grpo{line}", sets, says, **{"backend": "megatron", "shape": QWEN3_8B, **fields}
    )


ON_MEGATRON = [
    on_megatron(" 1x8x80", says="8 GPUs = TP 2 × PP 1 × DP 4"),
    on_megatron(
        " 1x8x80",
        says="4.1 B of 8.19 B on a GPU × 6 bytes + optimizer 1.02 B × 12 bytes = 36.9 GB",
    ),
    # the largest of verl's scripts: uneven stages, and states offloaded
    *(
        on_megatron(
            f"=={version} 8x8x80",
            f"{FIRST}=11 {LAST}=11 {TP}=4 {PP}=8 {EP}=4 {MEGATRON}.param_offload=True"
            f" {MEGATRON}.optimizer_offload=True {ON_CPU}=True {grad}",
            shape=QWEN3_235B,
        )
        for version, grad in (
            ("0.6.1", f"{MEGATRON}.grad_offload=True"),
            ("0.9.0", f"{MEGATRON}.grad_offload=True"),
            ("0.9.1", f"!{MEGATRON}.grad_offload"),
        )
    ),
    # the user's tree counts, whatever AGENT_BACKEND says
    *(
        on_megatron(f"{line}", f"{TP}=2 !{FSDP}.param_offload", backend=backend)
        for backend in ("", "fsdp", "megatron")
        for line in (
            " 1x8x80 model_engine=megatron",
            f" 1x8x80 {CONFIG}",
            f"==0.6.1 1x8x80 {CONFIG}",
            "==0.7.1 1x8x80 --config-name ppo_megatron_trainer.yaml --config-path=config",
            "==0.7.1 1x8x80 -cn ppo_megatron_trainer",
        )
    ),
    on_megatron(
        " 1x8x80 model_engine=dp",
        f"!{TP} {REF}.fsdp_config.param_offload=True",
        backend="",
    ),
    # a configuration that the recipe does not know has keys that it does not know
    on_megatron(" 1x8x80 --config-name=mine trainer.of_mine=1", "trainer.of_mine=1", backend=""),
    on_megatron(f" 1x8x80 {ROLLOUT}.n=1 data.train_batch_size=1028 {MINI}=4"),
    on_megatron(" 1x8x80", f"!{TP}", "the model's size is not known", shape=None),
    # each checkpoint has a model that needs no merge; its folder moved in 0.9
    on_megatron(" 1x8x80", says="actor/model/huggingface"),
    on_megatron("==0.8.0 1x8x80", says="global_step_N/actor/huggingface"),
    on_megatron("==0.8.0 1x8x80", says="megatron-core"),
    # what the GPUs do not divide into is searched by memory, with the reason as a note
    on_megatron(" 6x8x96", f"{EP}=8", "departs from TP 4 × PP 8 × EP 4", shape=QWEN3_235B),
    on_megatron(" 6x8x96", says="48 GPUs are no whole copies", shape=QWEN3_235B),
    on_megatron(" 1x8x80", not_said="publish"),
    # stages would divide a number of layers that is only estimated: as published, or none
    *(
        on_megatron(f" {nodes}", sets, shape=ModelShape.from_name(name))
        for name, nodes, sets in (
            ("Qwen3-235B-A22B", "8x8x96", f"{TP}=4 {PP}=8 {FIRST}=11"),  # of 94 layers
            ("DeepSeek-V3-671B-A37B", "12x8x80", f"{TP}=8 {PP}=12 {FIRST}=5"),  # 6 of 61 last
            ("Qwen2.5-72B-Instruct", "4x8x80", f"{TP}=8 {PP}=1 !{FIRST}"),
        )
    ),
]
VL_CONFIG = {
    **QWEN2_5_7B_CONFIG,
    "vision_config": {"hidden_size": 1280, "depth": 32, "intermediate_size": 3420},
}
FREEZE = f"{ACTOR}.freeze_vision_tower"
CACHE = f"{ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache"
FUSED = f"{MODEL}.use_fused_kernels"
TRAINED_TOO = "vision tower is trained too"


def seeing(line: str, sets: str = "", says: str = "", **fields: Any) -> Row:  # noqa: ANN401 - same
    """Return a row of a model with a vision tower."""
    return row(
        f"verl-grpo{line}", sets, says, **{"model": VL, "shape": shape_of(VL, VL_CONFIG), **fields}
    )


VISION = [
    # before the model is there, its name says whether it sees
    *(
        seeing(" 2x8x80", "data.image_key=images", model=name, shape=None)
        for name in (VL, "Qwen/Qwen3-VL-30B-A3B-Instruct", "/models/my-VLM")
    ),
    *(
        seeing(
            " 2x8x80", f"!data.image_key !{FREEZE} !{ACTOR}.kl_loss_coef", model=name, shape=None
        )
        for name in ("Qwen/Qwen2.5-7B-Instruct", "org/EVLA-7B")
    ),
    # the tower is frozen where verl reads that key; Megatron has none
    seeing("==0.5.0 2x8x80", f"!{FREEZE} {CACHE}=True", TRAINED_TOO),
    *(
        seeing(
            f"=={v} 2x8x80", f"{FREEZE}=True {CACHE}=True", "qwen-vl-utils", not_said=TRAINED_TOO
        )
        for v in ("0.6.1", "0.7.0", "0.7.1")
    ),
    seeing("==0.8.0 2x8x80", f"!{FREEZE} !{CACHE}", TRAINED_TOO),
    seeing(" 2x8x80", f"!{FREEZE} !{CACHE}", TRAINED_TOO),
    seeing(" 2x8x80", f"!{FREEZE} {FUSED}=True", backend="megatron"),
    seeing("==0.7.1 2x8x80", f"!{FREEZE} !{FUSED}", backend="megatron"),
    # an engine refuses whole prompts that are longer than its batch
    seeing(" 2x8x80 data.max_prompt_length=8192", f"!{ROLLOUT}.enable_chunked_prefill"),
    # the engines have no adapters of a vision tower
    seeing(
        "==0.7.1 2x8x80",
        f"{MODEL}.exclude_modules=.*visual.* !{FREEZE}",
        not_said=TRAINED_TOO,
        lora_rank=64,
    ),
    seeing("==0.7.1 2x8x80", f"!{CACHE}", rollout="sglang"),  # the cache of images is vLLM's
    seeing(
        " 2x8x80",
        says="no column images (data.image_key)",
        columns=columns("prompt", "picture"),
    ),
    seeing(
        " 2x8x80 data.image_key=picture",
        not_said="no column",
        columns=columns("prompt", "picture"),
    ),
    seeing(f" 2x8x80 {FREEZE}=True", says="verl 0.9.1 has this key and does not read it"),
    seeing(f"==0.7.1 2x8x80 {FREEZE}=False", not_said="does not read"),
]
ROWS = [
    *(*OPENRLHF, *TRL, *SLIME, *PRIME_RL, *SEARCH_R1, *VERL, *BUCKETS, *TEXTS, *APART),
    *(*ADAPTERS, *ON_MEGATRON, *VISION),
]


@pytest.mark.parametrize("asked", ROWS, ids=lambda asked: f"{asked.line}: {asked.sets}")
def test_values(asked: Row) -> None:
    """The command has the settings, each with a reason, and says what the row says."""
    command = made(asked.line, **asked.fields)
    assert differing(command, asked.sets) == {}
    assert {name.lstrip("-") for name in command.why} <= set(settings_of(command))
    said = said_by(command)
    assert asked.says in said
    assert not asked.not_said or asked.not_said not in said
