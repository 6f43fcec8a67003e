"""Sizes, placement and flags that all OpenRLHF recipes share."""

from __future__ import annotations

from math import gcd, lcm
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.work.recipes.recipe import MisfitError, count_of

if TYPE_CHECKING:
    from agent.work.recipes.arguments import Arguments
    from agent.work.recipes.recipe import NodeSize, RecipeInput, Version


STEPS_A_ROLLOUT = 8
"""Batches that one rollout is trained in: 1,024 samples in batches of 128."""


class OpenrlhfGroups(Value):
    """How many groups of GPUs there are, and how many GPUs each has, within one node."""

    groups: int
    gpus: int

    @property
    def world(self) -> int:
        """Return the GPUs of all groups together."""
        return self.groups * self.gpus


def groups_of(nodes: tuple[NodeSize, ...]) -> OpenrlhfGroups:
    """Return the nodes' GPUs as equal groups, as large as the nodes let them be."""
    counts = [node.gpus for node in nodes]
    if not any(counts):
        raise MisfitError("OpenRLHF trains on GPUs only, and no node has one")
    each = gcd(*counts)
    return OpenrlhfGroups(sum(counts) // each, each)


def shapes(nodes: tuple[NodeSize, ...]) -> str:
    """Return what the nodes are, in words: 2 nodes of 8 GPUs, nodes of 8 and 4 GPUs."""
    counts = [node.gpus for node in nodes]
    if len(set(counts)) > 1:
        return f"nodes of {', '.join(map(str, counts[:-1]))} and {counts[-1]} GPUs"
    return f"{count_of(len(counts), 'node')} of {count_of(counts[0], 'GPU')}"


def check_cpus(asked: RecipeInput, *, spare: bool) -> None:
    """Refuse nodes on which a process would wait for a CPU: each GPU's place takes one.

    With `spare`, one more is needed anywhere: for the calls of the reward server, which are Ray
    tasks of a CPU each (an actor without a number of CPUs starts without any).
    """
    for index, node in enumerate(asked.nodes):
        if node.gpus and node.cpus is not None and node.cpus < node.gpus:
            raise MisfitError(
                f"node {index} has {node.gpus} GPUs and only {node.cpus} CPUs, and OpenRLHF takes "
                f"one CPU for each GPU: raise AGENT_NUM_CPUS there, or set "
                f"AGENT_NUM_GPUS={node.cpus}"
            )
    known = [node.cpus for node in asked.nodes if node.cpus is not None]
    gpus = sum(node.gpus for node in asked.nodes)
    if spare and len(known) == len(asked.nodes) and sum(known) <= gpus:
        raise MisfitError(
            f"the {gpus} GPUs take one CPU each and there are {sum(known)} CPUs, but calls of the "
            "reward server take one more: raise AGENT_NUM_CPUS on a node by one"
        )


def check_engine(nodes: tuple[NodeSize, ...], tensor_parallel: int) -> str:
    """Refuse engines that would lie across nodes in part; return what to say where they do whole.

    An engine's GPUs talk in every layer, so they belong in one node, or fill whole ones.
    """
    counts = [node.gpus for node in nodes]
    if all(count % tensor_parallel == 0 for count in counts):
        return ""
    whole_nodes = len(set(counts)) == 1 and tensor_parallel % counts[0] == 0
    if whole_nodes and sum(counts) % tensor_parallel == 0:
        return f"each engine spans {tensor_parallel // counts[0]} nodes, over the network"
    largest = gcd(*counts)
    fitting = [str(size) for size in range(1, largest + 1) if largest % size == 0]
    raise MisfitError(
        f"{shapes(nodes)} cannot hold engines of {tensor_parallel} GPUs without one lying across "
        f"nodes: set AGENT_TENSOR_PARALLEL to {' or '.join(fitting)}"
    )


def nearest(target: int, step: int) -> int:
    """Return the multiple of a step nearest to a target, at least one step."""
    return max(1, (target + step // 2) // step) * step


class TrainBatch(Value):
    """Samples of one update: `size` = `micro` × steps × `ranks`, as DeepSpeed asserts."""

    size: int
    micro: int
    """Samples that a rank takes at once."""
    ranks: int
    """Processes that each get data of their own."""
    gpus: int

    def told(self) -> str:
        """Return the arithmetic, for a person."""
        steps = self.size // (self.micro * self.ranks)
        factors = [self.ranks, *([self.micro] if self.micro > 1 else []), steps]
        apart = self.gpus // self.ranks
        ranks = "" if apart == 1 else f" ({count_of(self.ranks, 'rank')} of {apart} GPUs)"
        return f"batch {self.size} = {' × '.join(map(str, factors))}{ranks}"


class OpenrlhfBatches(Value):
    """How samples are cut: a rollout is whole batches, and every rank gets as many samples."""

    train: TrainBatch
    rollout: int
    """Prompts of a rollout."""
    micro_rollout: int
    samples: int
    """Answers to each prompt."""

    def told(self) -> str:
        """Return the arithmetic, for a person."""
        batches = self.rollout * self.samples // self.train.size
        return (
            f"{self.train.told()}; rollout {self.rollout} prompts × {self.samples} = "
            f"{count_of(batches, 'batch')}"
        )


def train_batch(arguments: Arguments, gpus: int, target: int) -> TrainBatch:
    """Return a batch that the ranks divide, as near to a target as it can be."""
    apart = arguments.count("ds.ring_attn_size") * arguments.count("ds.tensor_parallel_size")
    if gpus % apart:
        raise MisfitError(
            f"{gpus} GPUs cannot be cut into ranks of {apart}: ring attention times DeepSpeed's "
            "tensor parallel must divide them"
        )
    ranks = gpus // apart
    micro = arguments.count("train.micro_batch_size")
    size = arguments.count("train.batch_size", nearest(target, micro * ranks))
    _divides(arguments, "train.batch_size", size, micro * ranks, f"{ranks} ranks × micro {micro}")
    return TrainBatch(size, micro, ranks, gpus)


def batches_of(
    arguments: Arguments, gpus: int, samples: int, *, prompts_by_rank: bool = False
) -> OpenrlhfBatches:
    """Return batches that fit the ranks, or refuse the user's own that do not.

    Where a rollout's samples are no whole batches, or one rank has more than another, ranks wait
    for each other in a collective until NCCL gives up. With `prompts_by_rank` every rank also gets
    as many prompts.
    """
    train = train_batch(arguments, gpus, 128)
    micro = arguments.count("rollout.micro_batch_size")
    samples = arguments.count("rollout.n_samples_per_prompt", samples)
    unit = lcm(train.size, micro * train.ranks)
    step = unit // gcd(unit, samples)
    if prompts_by_rank:
        step = lcm(step, gpus)
    target = STEPS_A_ROLLOUT * train.size // samples
    rollout = arguments.count("rollout.batch_size", nearest(target, step))
    _divides(arguments, "rollout.batch_size", rollout, step, f"{samples} samples a prompt")
    return OpenrlhfBatches(train, rollout, micro, samples)


def _divides(arguments: Arguments, flag: str, size: int, step: int, of: str) -> None:
    if size % step:
        raise MisfitError(
            f"AGENT_JOB_ARGS: {arguments.flag_text(flag)} {size} is no multiple of {step} ({of}); "
            f"the nearest that is: {nearest(size, step)}"
        )


VERSIONS: tuple[Version, ...] = ((0, 8, 11), (0, 9, 10), (0, 10, 4), (0, 11, 2))
DOTTED: Version = (0, 10, 2)
"""From here on every flag has dots."""
SAME_GPUS = "checkpoints go on with the same number of GPUs only (ZeRO)"
WANDB = "by-WANDB_API_KEY"
"""Switches W&B on; wandb itself reads the key from the environment, so none stands in argv."""

LEAST = "takes the least memory; more is faster"

FLAT = {
    "train.colocate_all": "colocate_all_models",
    "train.colocate_actor_ref": "colocate_actor_ref",
    "train.colocate_critic_reward": "colocate_critic_reward",
    "train.async_enable": "async_train",
    "train.agent_func_path": "agent_func_path",
    "train.micro_batch_size": "micro_train_batch_size",
    "train.batch_size": "train_batch_size",
    "rollout.micro_batch_size": "micro_rollout_batch_size",
    "rollout.batch_size": "rollout_batch_size",
    "rollout.n_samples_per_prompt": "n_samples_per_prompt",
    "actor.num_nodes": "actor_num_nodes",
    "actor.num_gpus_per_node": "actor_num_gpus_per_node",
    "actor.model_name_or_path": "pretrain",
    "actor.gradient_checkpointing_enable": "gradient_checkpointing",
    "ref.num_nodes": "ref_num_nodes",
    "ref.num_gpus_per_node": "ref_num_gpus_per_node",
    "critic.num_nodes": "critic_num_nodes",
    "critic.num_gpus_per_node": "critic_num_gpus_per_node",
    "reward.num_nodes": "reward_num_nodes",
    "reward.num_gpus_per_node": "reward_num_gpus_per_node",
    "reward.model_name_or_path": "reward_pretrain",
    "reward.remote_url": "remote_rm_url",
    "vllm.num_engines": "vllm_num_engines",
    "vllm.tensor_parallel_size": "vllm_tensor_parallel_size",
    "vllm.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "vllm.enable_sleep": "vllm_enable_sleep",
    "vllm.sync_backend": "vllm_sync_backend",
    "ds.enable_sleep": "deepspeed_enable_sleep",
    "ds.zero_stage": "zero_stage",
    "ds.ring_attn_size": "ring_attn_size",
    "ds.tensor_parallel_size": "ds_tensor_parallel_size",
    "data.prompt_dataset": "prompt_data",
    "data.input_key": "input_key",
    "data.label_key": "label_key",
    "data.max_len": "max_len",
    "eval.dataset": "eval_dataset",
    "eval.steps": "eval_steps",
    "ckpt.path": "ckpt_path",
    "ckpt.output_dir": "save_path",
    "ckpt.save_steps": "save_steps",
    "ckpt.load_enable": "load_checkpoint",
    "algo.advantage.estimator": "advantage_estimator",
    "algo.kl.use_loss": "use_kl_loss",
    "algo.kl.estimator": "kl_estimator",
    "algo.kl.init_coef": "init_kl_coef",
    "logger.wandb.key": "use_wandb",
}
"""What a dotted flag was called up to 0.10.1."""


def place(arguments: Arguments, asked: RecipeInput, *, critic: bool) -> tuple[OpenrlhfGroups, str]:
    """Put every model on all GPUs, and as many engines as they hold; return the arithmetic."""
    found = groups_of(asked.gpu_nodes)
    shape = shapes(asked.gpu_nodes)
    nodes = arguments.count("actor.num_nodes", found.groups)
    gpus = arguments.count("actor.num_gpus_per_node", found.gpus)
    groups = OpenrlhfGroups(nodes, gpus)
    tensor_parallel = arguments.count("vllm.tensor_parallel_size", asked.tensor_parallel)
    spans = check_engine(asked.gpu_nodes, tensor_parallel)
    if groups.world % tensor_parallel:
        raise MisfitError(
            f"{groups.world} GPUs cannot be cut into engines of {tensor_parallel}: "
            "set AGENT_TENSOR_PARALLEL to what divides them"
        )
    engines = arguments.count("vllm.num_engines", groups.world // tensor_parallel)
    for model in ("actor", "ref", *(["critic"] if critic else [])):
        why = shape if model == "actor" else "as the actor, whose GPUs it shares"
        arguments.add(f"{model}.num_nodes", nodes, why=why)
        arguments.add(f"{model}.num_gpus_per_node", gpus, why=why)
    told = f"{count_of(groups.world, 'GPU')} = {count_of(engines, 'engine')} × {tensor_parallel}"
    arguments.add("vllm.num_engines", engines, why=told)
    arguments.add("vllm.tensor_parallel_size", tensor_parallel, why="AGENT_TENSOR_PARALLEL")
    arguments.add(
        "vllm.gpu_memory_utilization", 0.5, why="training shares the GPUs; its default is nearly 1"
    )
    arguments.add("train.colocate_all")
    arguments.add("vllm.enable_sleep", why="engines give their memory back while models train")
    arguments.add("ds.enable_sleep", why="models give their memory back while engines generate")
    uneven = f" ({shape} count as {found.groups} groups of {found.gpus})"
    is_uneven = len({node.gpus for node in asked.gpu_nodes}) > 1
    idle = sum(node.gpus for node in asked.nodes) - groups.world
    told += uneven if is_uneven else ""
    told += f" ({spans})" if spans else ""
    return groups, told + (f"; {count_of(idle, 'GPU')} idle" if idle > 0 else "")


def cut(arguments: Arguments, batches: OpenrlhfBatches) -> None:
    """Set the batches."""
    ranks = count_of(batches.train.ranks, "rank")
    arguments.add(
        "train.batch_size", batches.train.size, why=f"fits {ranks}; as near to 128 as that"
    )
    arguments.add("train.micro_batch_size", batches.train.micro, why=LEAST)
    arguments.add(
        "rollout.batch_size",
        batches.rollout,
        why=f"× {batches.samples} = whole batches of {batches.train.size}, fits {ranks}",
    )
    arguments.add("rollout.micro_batch_size", batches.micro_rollout, why=LEAST)
    if batches.samples > 1:
        arguments.add("rollout.n_samples_per_prompt", batches.samples, why="answers to compare")


def add_training(arguments: Arguments, asked: RecipeInput, model: str) -> None:
    """Set how weights lie on the GPUs, and in which precision; turn W&B on where a key is there."""
    arguments.add("ds.zero_stage", 3, why="weights spread over all GPUs")
    arguments.add(f"{model}.gradient_checkpointing_enable", why="longer texts in the same memory")
    for switch in ("bf16", "flash_attn"):  # what newer versions do by themselves
        if arguments.supports(switch):
            arguments.add(switch)
    if asked.wandb:
        arguments.add("logger.wandb.key", WANDB, why="any word turns W&B on; WANDB_API_KEY counts")


def add_lengths(arguments: Arguments) -> None:
    """Set how long prompt and answer may be."""
    if arguments.supports("prompt_max_len"):
        arguments.add("prompt_max_len", 1024)
        arguments.add("generate_max_len", 3072)
    else:
        arguments.add("data.max_len", 4096, why="prompt and answer together")


def add_reward(arguments: Arguments, asked: RecipeInput, groups: OpenrlhfGroups) -> None:
    """Set where rewards come from: the reward server, else what the user's arguments name."""
    if asked.scores:
        arguments.add("reward.remote_url", "{reward_url}", why="the run's reward server")
    elif arguments.given("reward.model_name_or_path"):
        arguments.add("reward.num_nodes", groups.groups, why="as the actor")
        arguments.add("reward.num_gpus_per_node", groups.gpus, why="as the actor")
    elif not (
        arguments.given("reward.remote_url")
        or (
            arguments.supports("train.agent_func_path") and arguments.given("train.agent_func_path")
        )
    ):
        raise MisfitError(
            "nothing gives rewards: set AGENT_REWARD to a server or its URL, or name a model by "
            f"{arguments.flag_text('reward.model_name_or_path')} in AGENT_JOB_ARGS"
        )


def add_checkpoints(arguments: Arguments, asked: RecipeInput, steps: int, within: str = "") -> None:
    """Save, and go on from what is saved: where nothing is, the flag to load does nothing."""
    if not asked.checkpoints:
        return
    path = f"{asked.checkpoints}/{within}" if within else asked.checkpoints
    arguments.add("ckpt.save_steps", steps, why="its own default never saves")
    arguments.add("ckpt.path", path, why="AGENT_CHECKPOINTS")
    arguments.add("ckpt.load_enable", why="goes on from the last checkpoint, where there is one")
    arguments.add("ckpt.output_dir", f"{asked.checkpoints}/model", why="the model at the end")


def check_demand(arguments: Arguments, gpus: int) -> None:
    """Refuse placement groups that the GPUs cannot hold: they would wait for ever."""
    wanted = {"actor": _world(arguments, "actor")}
    engines = arguments.count("vllm.num_engines") * arguments.count("vllm.tensor_parallel_size")
    everything = arguments.holds("train.colocate_all")
    apart = arguments.supports("train.async_enable") and arguments.holds("train.async_enable")
    if apart and arguments.holds("vllm.enable_sleep"):
        raise MisfitError(
            f"{arguments.flag_text('train.async_enable')} excludes "
            f"{arguments.flag_text('vllm.enable_sleep')}: add --no-"
            f"{arguments.flag_text('vllm.enable_sleep')[2:]} to AGENT_JOB_ARGS"
        )
    if everything or arguments.holds("train.colocate_actor_ref"):
        if _world(arguments, "ref") != wanted["actor"]:
            raise MisfitError("the actor and its reference share GPUs: give both the same number")
    else:
        wanted["reference"] = _world(arguments, "ref")
    if not everything:
        for model in ("critic", "reward"):
            if arguments.holds(f"{model}.num_nodes"):
                wanted[model] = _world(arguments, model)
    if apart or not everything:
        wanted["engines"] = engines
    elif engines != wanted["actor"]:
        raise MisfitError(
            f"actor and engines share GPUs, and the actor has {wanted['actor']}, the engines "
            f"{engines}: leave out {arguments.flag_text('vllm.num_engines')}, or set "
            "AGENT_TENSOR_PARALLEL so that engines × GPUs of each are as many"
        )
    if sum(wanted.values()) > gpus:
        parts = ", ".join(f"{name} {count}" for name, count in wanted.items())
        raise MisfitError(f"{sum(wanted.values())} GPUs are wanted ({parts}) and {gpus} are there")


def remarks(batches: OpenrlhfBatches) -> tuple[str, ...]:
    """Return what a person should know of the data's size and of resuming."""
    return (f"data of fewer than {batches.rollout} prompts fill no rollout", SAME_GPUS)


def _world(arguments: Arguments, model: str) -> int:
    nodes = arguments.count(f"{model}.num_nodes", 1)
    return nodes * arguments.count(f"{model}.num_gpus_per_node", 8)
