"""Stand-ins for the frameworks of recipes: their arguments, placement and checkpoints.

`install` writes packages with their names, whose programs call this file. Each one reads its
arguments as strictly as the real one, asks Ray for the same kind of placement, sends the reward
server the same requests, and writes checkpoints with the same layout. It trains nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import runpy
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

PLACEMENT_LIMIT = 20.0
"""The real frameworks wait without limit for a placement."""
STEPS = 20
"""Steps between two checkpoints: a run ends after that many."""

VERL_KEYS = {
    *("algorithm.adv_estimator", "data.train_files", "data.val_files", "data.train_batch_size"),
    *("data.filter_overlong_prompts", "data.max_prompt_length", "data.max_response_length"),
    *("actor_rollout_ref.model.path", "critic.model.path", "actor_rollout_ref.actor.optim.lr"),
    *("actor_rollout_ref.actor.use_kl_loss", "actor_rollout_ref.actor.use_dynamic_bsz"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.rollout.n"),
    *("actor_rollout_ref.rollout.name", "actor_rollout_ref.rollout.mode"),
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.agent.num_workers",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    *("reward.custom_reward_function.path", "reward.custom_reward_function.name"),
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.logger", "trainer.project_name"),
    *("trainer.experiment_name", "trainer.default_local_dir", "trainer.save_freq"),
    *("trainer.resume_mode", "trainer.val_before_train", "trainer.test_freq"),
    *("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep", "trainer.total_epochs"),
    *("actor_rollout_ref.model.use_remove_padding", "critic.model.use_remove_padding"),
    *("actor_rollout_ref.actor.checkpoint.save_contents", "critic.ppo_max_token_len_per_gpu"),
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    *(
        f"{part}.{setting}"
        for part in (
            *("actor_rollout_ref.actor.fsdp_config", "critic.fsdp"),
            "critic.model.fsdp_config",  # before 0.8
        )
        for setting in ("param_offload", "optimizer_offload", "offload_policy", "fsdp_size")
    ),
    *("actor_rollout_ref.ref.fsdp_config.param_offload", "critic.optim.lr"),
    *("actor_rollout_ref.actor.strategy", "actor_rollout_ref.ref.strategy", "critic.strategy"),
}
"""The keys of verl's configuration, 0.7 to 0.9, that a recipe or a start file may set."""
VERL_OPEN = ("reward.custom_reward_function.reward_kwargs.",)
"""Groups in which + may add keys."""

OPENRLHF_NUMBERS = {
    *("actor.num_nodes", "actor.num_gpus_per_node", "ref.num_nodes", "ref.num_gpus_per_node"),
    *("critic.num_nodes", "critic.num_gpus_per_node", "vllm.num_engines", "train.batch_size"),
    *("vllm.tensor_parallel_size", "train.micro_batch_size", "rollout.batch_size"),
    *("rollout.micro_batch_size", "rollout.n_samples_per_prompt", "ds.zero_stage"),
    *("ckpt.save_steps", "data.max_len", "train.max_tokens_per_gpu", "ds.zpg"),
    *("rollout.max_tokens_per_gpu", "rollout.max_new_tokens"),
}
OPENRLHF_TEXTS = {
    *("actor.model_name_or_path", "data.prompt_dataset", "data.input_key", "data.label_key"),
    *("algo.advantage.estimator", "algo.kl.estimator", "reward.remote_url", "ckpt.path"),
    *("ckpt.output_dir", "vllm.gpu_memory_utilization", "logger.wandb.key"),
    *("actor.adam.lr", "algo.kl.init_coef", "logger.wandb.run_name"),
    *("algo.advantage.is_correction_level", "algo.advantage.is_correction_mode"),
}
OPENRLHF_SWITCHES = {
    *("train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep", "algo.kl.use_loss"),
    *("ckpt.load_enable", "actor.gradient_checkpointing_enable", "data.apply_chat_template"),
    *("ds.packing_samples", "train.dynamic_batch_enable", "reward.normalize_enable"),
    *("vllm.enable_prefix_caching", "ds.adam_offload", "ckpt.save_hf"),
}
"""The options of OpenRLHF 0.11's train_ppo_ray that a recipe or a start file may set."""


TRAIN_NUMBERS = {
    *("train.batch_size", "train.micro_batch_size", "ds.zero_stage", "ckpt.save_steps"),
    *("data.max_len", "data.max_samples", "train.max_epochs", "ds.zpg"),
}
TRAIN_TEXTS = {
    *("adam.lr", "logger.wandb.key", "logger.wandb.run_name"),
    *("model.model_name_or_path", "data.dataset", "ckpt.path", "ckpt.output_dir"),
    *("data.input_key", "data.output_key", "data.chosen_key", "data.rejected_key"),
}
TRAIN_SWITCHES = {
    *("model.gradient_checkpointing_enable", "ckpt.load_enable", "data.apply_chat_template"),
    *("ds.packing_samples", "ds.adam_offload"),
}
"""The options of OpenRLHF 0.11's train_sft, train_rm and train_dpo that a recipe may set."""

OPENRLHF_M_NUMBERS = {
    *("actor_num_nodes", "actor_num_gpus_per_node", "ref_num_nodes", "ref_num_gpus_per_node"),
    *(
        "vllm_num_engines",
        "vllm_tensor_parallel_size",
        "train_batch_size",
        "micro_train_batch_size",
    ),
    *("rollout_batch_size", "micro_rollout_batch_size", "n_samples_per_prompt", "zero_stage"),
    *("save_steps", "prompt_max_len", "generate_max_len", "zpg", "max_samples", "num_episodes"),
}
OPENRLHF_M_TEXTS = {
    *("pretrain", "prompt_data", "input_key", "advantage_estimator", "kl_estimator", "ckpt_path"),
    *("init_kl_coef", "vllm_sync_backend", "remote_rm_url", "save_path"),
    *("vllm_gpu_memory_utilization", "use_wandb", "wandb_run_name", "actor_learning_rate"),
    "temperature",
}
OPENRLHF_M_SWITCHES = {
    *("colocate_all_models", "vllm_enable_sleep", "deepspeed_enable_sleep", "use_kl_loss"),
    *("gradient_checkpointing", "bf16", "flash_attn", "vllm_sync_with_ray", "load_checkpoint"),
    *("enable_prefix_caching", "save_hf_ckpt", "normalize_reward", "adam_offload"),
}
"""The options of OpenRLHF-M that a recipe or a start file may set."""

SEARCH_R1_KEYS = {
    *("data.train_files", "data.val_files", "data.train_batch_size", "data.val_batch_size"),
    *("data.max_prompt_length", "data.max_response_length", "data.max_start_length"),
    *("data.max_obs_length", "algorithm.adv_estimator", "max_turns", "retriever.topk"),
    *("retriever.url", "actor_rollout_ref.model.path", "critic.model.path"),
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
    *("actor_rollout_ref.actor.state_masking", "actor_rollout_ref.actor.ppo_mini_batch_size"),
    *("actor_rollout_ref.actor.ppo_micro_batch_size", "actor_rollout_ref.rollout.name"),
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size",
    "actor_rollout_ref.ref.log_prob_micro_batch_size",
    *("actor_rollout_ref.rollout.gpu_memory_utilization", "actor_rollout_ref.rollout.top_p"),
    *("critic.model.enable_gradient_checkpointing", "critic.model.use_remove_padding"),
    *("critic.optim.lr_warmup_steps_ratio", "critic.ppo_micro_batch_size"),
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs", "trainer.logger"),
    *("trainer.total_training_steps", "trainer.project_name", "trainer.experiment_name"),
    *("trainer.default_local_dir", "trainer.default_hdfs_dir", "trainer.save_freq"),
    *("trainer.test_freq", "actor_rollout_ref.rollout.n_agent"),
    *("data.shuffle_train_dataloader", "critic.optim.lr"),
    *("actor_rollout_ref.actor.use_kl_loss", "actor_rollout_ref.actor.optim.lr"),
    *(
        f"{part}.{setting}"
        for part in (
            *("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config"),
            "critic.model.fsdp_config",
        )
        for setting in ("param_offload", "grad_offload", "optimizer_offload", "fsdp_size")
    ),
}
SEARCH_R1_OPEN = ("trainer.val_before_train", "trainer.val_only")
"""The keys of Search-R1's configuration that + adds; it has no `resume_mode`."""


class Work(NamedTuple):
    """The inputs of a program, the same for every framework."""

    groups: int
    gpus: int
    cpus: int
    """Per GPU."""
    strategy: str
    model: str
    folder: str
    reward: str
    function: str = ""
    """The file of a reward function, if the framework calls one."""


PROGRAMS = {
    "verl": "verl/trainer/main_ppo.py",
    "search-r1": "verl/trainer/main_ppo.py",
    "openrlhf": "openrlhf/cli/train_ppo_ray.py",
    "openrlhf-m": "openrlhf/cli/train_ppo_ray.py",
}
BY_TORCHRUN = {
    "train_sft": ("data.input_key", "data.output_key"),
    "train_rm": ("data.chosen_key", "data.rejected_key"),
    "train_dpo": ("data.chosen_key", "data.rejected_key"),
}
"""OpenRLHF's other programs, and the data keys that each reads."""
KEPT = {
    "openrlhf by torchrun": ("", "global_step{}", "latest"),
    "verl": ("", "global_step_{}", "latest_checkpointed_iteration.txt"),
    "search-r1": ("actor", "global_step_{}", ""),
    "openrlhf": ("_actor", "global_step{}", "latest"),
    "openrlhf-m": ("_actor", "global_step{}", "latest"),
}
"""Per framework: checkpoint folder, step names, the file that names the last; '' never resumes."""
FORKS = {"search-r1": "search_r1", "openrlhf-m": "openrlhf/models/remote_rm"}
"""Forks without a version, and the folder that identifies each."""


def install(place: Path, framework: str, version: str = "") -> None:
    """Write a framework's package, with the metadata of a version."""
    file = place / PROGRAMS[framework]
    file.parent.mkdir(parents=True)
    for folder in (file.parent, file.parents[1]):
        (folder / "__init__.py").touch()
    run = f"from support.stand_in_frameworks import main\n\nmain({framework!r})\n"
    file.write_text(run, encoding="utf-8")
    for program in BY_TORCHRUN if framework == "openrlhf" else ():
        run = f"from support.stand_in_frameworks import train\n\ntrain({program!r})\n"
        file.with_name(f"{program}.py").write_text(run, encoding="utf-8")
    kept = FORKS.get(framework, f"{framework}-{version}.dist-info")
    (place / kept).mkdir(parents=True, exist_ok=True)


def main(framework: str) -> None:
    """Run as a framework's program."""
    work = READ[framework](sys.argv[1:])
    print(f"{framework}: {work.groups} x {work.gpus} GPUs, model {work.model}", flush=True)
    where = place_ranks(work)
    print(f"on {' '.join(sorted(where))}", flush=True)
    reward = score(work) if work.reward else None
    print(f"score {reward}", flush=True)
    write_checkpoint(framework, work)


def train(program: str) -> None:
    """Run as one rank of a torchrun program; rank 0 writes the checkpoint."""
    found = flags(sys.argv[1:], TRAIN_NUMBERS, TRAIN_TEXTS, TRAIN_SWITCHES)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if found["train.batch_size"] % (world * found["train.micro_batch_size"]):
        sys.exit("the batch is not divisible by the ranks")
    given = {key for key in found if key.endswith("_key") and found[key]}
    if given != set(BY_TORCHRUN[program]):
        sys.exit(f"{program} reads other data: {given}")
    model, folder = found["model.model_name_or_path"], found["ckpt.path"]
    print(f"{program}: rank {rank} of {world}, model {model}", flush=True)
    if rank == 0:
        write_checkpoint("openrlhf by torchrun", Work(1, world, 0, "", model, folder, ""))


def read_verl(words: list[str]) -> Work:
    """Read verl's overrides; refuse those that its validation refuses."""
    found = dict(override(word, VERL_KEYS, VERL_OPEN) for word in words)
    if "actor_rollout_ref.rollout.name" not in found:
        sys.exit("rollout.name is mandatory")
    if found.get("actor_rollout_ref.actor.use_dynamic_bsz") != "True":
        sys.exit("micro batches are missing")
    groups, gpus = _divisors(found, int(found["actor_rollout_ref.rollout.n"]))
    url = found.get("reward.custom_reward_function.reward_kwargs.url", "")
    function = found.get("reward.custom_reward_function.path", "")
    model, folder = found["actor_rollout_ref.model.path"], found["trainer.default_local_dir"]
    return Work(groups, gpus, 3, "STRICT_PACK", model, folder, url, function)


def read_search_r1(words: list[str]) -> Work:
    """Read the overrides of Search-R1, a fork of verl 0.1 with a retriever and no reward URL."""
    found = dict(override(word, SEARCH_R1_KEYS, SEARCH_R1_OPEN) for word in words)
    groups, gpus = _divisors(found, 1)
    if not found.get("retriever.url", "").startswith("http://"):
        sys.exit("there is nobody to retrieve")
    model, folder = found["actor_rollout_ref.model.path"], found["trainer.default_local_dir"]
    return Work(groups, gpus, 1, "STRICT_PACK", model, folder, "")


def _divisors(found: dict[str, str], samples: int) -> tuple[int, int]:
    """Return the nodes and GPUs per node among which the batches are divided."""
    groups, gpus = int(found["trainer.nnodes"]), int(found["trainer.n_gpus_per_node"])
    for key in ("data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"):
        if int(found[key]) * samples % (groups * gpus):
            sys.exit(f"{key} is not divisible by {groups * gpus} GPUs")
    return groups, gpus


def override(word: str, keys: set[str], open_keys: tuple[str, ...]) -> tuple[str, str]:
    """Read one override like hydra: an unknown key fails, + only adds, quotes are removed."""
    match = re.fullmatch(r"(\+{0,2})([\w.]+)=(.*)", word, re.DOTALL)
    if match is None:
        sys.exit(f"no override: {word}")
    added, key, text = match.groups()
    if added == "+" and key in keys:
        sys.exit(f"{key} is there already")
    if key not in keys and not (added and key.startswith(open_keys)):
        sys.exit(f"Key '{key}' is not in struct")
    quoted = re.fullmatch(r"'(.*)'", text, re.DOTALL)
    items = text[1:-1].split(",") if re.fullmatch(r"\[.*\]", text) else [text]
    if quoted is None and any(re.search(r"[~=,#;!({]", item) for item in items):
        sys.exit(f"{key} must be quoted: {text}")
    return key, text if quoted is None else quoted[1]


def read_openrlhf(words: list[str]) -> Work:
    """Read OpenRLHF's flags as argparse does."""
    found = flags(words, OPENRLHF_NUMBERS, OPENRLHF_TEXTS, OPENRLHF_SWITCHES)
    names = ("actor.num_nodes", "actor.num_gpus_per_node", "vllm.num_engines")
    sizes = ("vllm.tensor_parallel_size", "train.batch_size")
    texts = ("actor.model_name_or_path", "ckpt.path", "reward.remote_url")
    return _colocated(*(found[name] for name in (*names, *sizes, *texts)))


def read_openrlhf_m(words: list[str]) -> Work:
    """Read OpenRLHF-M's flags, which are flat."""
    found = flags(words, OPENRLHF_M_NUMBERS, OPENRLHF_M_TEXTS, OPENRLHF_M_SWITCHES)
    names = ("actor_num_nodes", "actor_num_gpus_per_node", "vllm_num_engines")
    sizes = ("vllm_tensor_parallel_size", "train_batch_size")
    texts = ("pretrain", "ckpt_path", "remote_rm_url")
    return _colocated(*(found[name] for name in (*names, *sizes, *texts)))


def flags(
    words: list[str], numbers: set[str], texts: set[str], switches: set[str]
) -> dict[str, Any]:
    """Read flags as argparse does; one that is not known ends the program."""
    parser = argparse.ArgumentParser()
    for name in numbers:
        parser.add_argument(f"--{name}", type=int)
    for name in texts:
        parser.add_argument(f"--{name}")
    for name in switches:
        parser.add_argument(f"--{name}", action="store_true")
    return vars(parser.parse_args(words))


def _colocated(  # noqa: PLR0913 - all that OpenRLHF reads
    groups: int,
    gpus: int,
    engines: int,
    tensor_parallel: int,
    batch: int,
    model: str,
    folder: str,
    url: str,
) -> Work:
    """Assert what OpenRLHF asserts of models that share their GPUs."""
    if engines * tensor_parallel != groups * gpus:
        sys.exit(f"engines hold {engines * tensor_parallel} GPUs, the actor {groups * gpus}")
    if batch % (groups * gpus):
        sys.exit("the batch is not divisible by the ranks")
    if not url:
        sys.exit("reward_model_group is required")
    return Work(groups, gpus, 1, "PACK", model, folder, url)


READ: dict[str, Callable[[list[str]], Work]] = {
    "verl": read_verl,
    "search-r1": read_search_r1,
    "openrlhf": read_openrlhf,
    "openrlhf-m": read_openrlhf_m,
}


def place_ranks(work: Work) -> set[str]:
    """Run every rank where the framework would place it; return the nodes' addresses."""
    import ray  # noqa: PLC0415 - as the real ones do, in the job alone
    from ray.util.placement_group import placement_group  # noqa: PLC0415 - same
    from ray.util.scheduling_strategies import (  # noqa: PLC0415 - same
        PlacementGroupSchedulingStrategy,
    )

    ray.init(address="auto", log_to_driver=False)
    bundle = {"GPU": 1.0, "CPU": float(work.cpus)}
    groups = [
        placement_group([dict(bundle)] * work.gpus, strategy=work.strategy)
        for _ in range(work.groups)
    ]
    ready, late = ray.wait(
        [group.ready() for group in groups], num_returns=len(groups), timeout=PLACEMENT_LIMIT
    )
    if late:
        sys.exit(f"{len(ready)} of {len(groups)} groups of {work.gpus} GPUs could be placed")

    def rank() -> tuple[str, str]:
        address = ray.util.get_node_ip_address()
        return str(address), os.environ.get("HYDRA_FULL_ERROR", "")

    calls = [
        ray.remote(rank)
        .options(
            num_gpus=1,
            num_cpus=work.cpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
        )
        .remote()
        for group in groups
        for index in range(work.gpus)
    ]
    return {address for address, _ in ray.get(calls)}


def score(work: Work) -> float:
    """Score an answer: by the reward function, else by the server, with OpenRLHF's request."""
    if work.function:
        compute = runpy.run_path(work.function)["compute_score"]
        return float(asyncio.run(compute("sums", "1+1=2", "2", {}, url=work.reward)))
    body = {"query": ["1+1=2"], "prompts": ["1+1="], "labels": ["2"]}
    request = urllib.request.Request(  # noqa: S310 - the lab's own
        work.reward, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310 - same
        (reward,) = json.load(reply)["rewards"]
    return float(reward)


def write_checkpoint(framework: str, work: Work) -> None:
    """Resume from the last checkpoint, and write the next one in the framework's layout."""
    inner, form, note = KEPT[framework]
    place = Path(work.folder) / inner
    last = int(re.findall(r"\d+", (place / note).read_text())[0]) if (place / note).is_file() else 0
    print(f"from step {last}", flush=True)
    world = work.groups * work.gpus
    shards = place / form.format(last)
    if last and len(list(shards.iterdir())) != world:
        sys.exit("another world size wrote these shards")
    new = place / form.format(last + STEPS)
    new.mkdir(parents=True)
    for rank in range(world):
        (new / f"model_world_size_{world}_rank_{rank}.pt").touch()
    if note:
        (place / note).write_text(str(last + STEPS) if framework == "verl" else new.name)
    print(f"saved {new.name}", flush=True)
