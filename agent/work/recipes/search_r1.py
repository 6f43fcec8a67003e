"""Search-R1: PPO on questions whose answers the model searches for; a frozen fork of verl.

It has no package: its arguments are those of its sources at a14dc3a (2026), and its values those
of its authors' scripts for several nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.work.recipes.arguments import Override, merge, quoted, read, texts, whole
from agent.work.recipes.recipe import Command, MisfitError, RecipeInput
from agent.work.recipes.verl import Placement, arithmetic, groups, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.work.recipes.recipe import Version

VERSIONS: tuple[Version, ...] = ()
ABOUT = "Search-R1: PPO that learns to use a search engine; wants a retrieval server"

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_REF, _MODEL = "actor_rollout_ref.ref", "actor_rollout_ref.model"
_TRAIN_BATCH, _EVAL_BATCH = "data.train_batch_size", "data.val_batch_size"
_MINI_BATCH, _MICRO_BATCH = f"{_ACTOR}.ppo_mini_batch_size", f"{_ACTOR}.ppo_micro_batch_size"
_CRITIC_MICRO_BATCH = "critic.ppo_micro_batch_size"
_LOG_PROB_BATCHES = tuple(f"{part}.log_prob_micro_batch_size" for part in (_ROLLOUT, _REF))
_NODES, _GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
_TENSOR_PARALLEL, _AGENTS = f"{_ROLLOUT}.tensor_model_parallel_size", f"{_ROLLOUT}.n_agent"
_RETRIEVER_KEY = "retriever.url"
_RETRIEVER = "http://{head_ip}:8000/retrieve"
_EVERY = 100
_FORKED_FROM = (0, 1)
"""The verl that it was: placement is as it was then."""
_MINI_NEAR = 256

_ROOTS = (
    *("actor_rollout_ref", "algorithm", "critic", "data", "do_search", "hydra", "max_turns"),
    *("retriever", "reward_model", "trainer"),
)
_TRAINER = (
    *("critic_warmup", "default_hdfs_dir", "default_local_dir", "experiment_name", "logger"),
    *("n_gpus_per_node", "nnodes", "project_name", "save_freq", "test_freq", "total_epochs"),
    *("total_training_steps", "val_before_train"),
)
"""What its configuration has at its root, and of `trainer`, where a newer verl has more.

`val_before_train` is heeded, but not in its configuration: the recipe adds it.
"""
_AS_ITS_AUTHORS = (
    ("data.max_prompt_length", "4096"),
    ("data.max_response_length", "500"),
    ("data.max_start_length", "2048"),
    ("data.max_obs_length", "500"),
    ("algorithm.adv_estimator", "gae"),
    (f"{_MODEL}.enable_gradient_checkpointing", "True"),
    (f"{_MODEL}.use_remove_padding", "True"),
    (f"{_ACTOR}.optim.lr_warmup_steps_ratio", "0.285"),
    (f"{_ACTOR}.state_masking", "True"),
    (f"{_ROLLOUT}.name", "vllm"),
    (f"{_ROLLOUT}.gpu_memory_utilization", "0.6"),
    (f"{_ROLLOUT}.top_p", "1.0"),
    ("critic.model.enable_gradient_checkpointing", "True"),
    ("critic.model.use_remove_padding", "True"),
    ("critic.optim.lr_warmup_steps_ratio", "0.015"),
    ("trainer.total_epochs", "15"),
    ("trainer.total_training_steps", "1005"),
    ("max_turns", "4"),
    ("retriever.topk", "3"),
)


def make(asked: RecipeInput) -> Command:
    """Make the command for the nodes that joined."""
    users = [_checked(read(argument)) for argument in asked.args]
    given = {one.key: one.value for one in users if one.prefix != "~"}
    tensor = whole(given, _TENSOR_PARALLEL) or asked.tensor_parallel
    cut = groups(asked.nodes, tensor, count=whole(given, _NODES), gpus=whole(given, _GPUS))
    placement = Placement(
        _FORKED_FROM, cut, tensor, served=False, name="Search-R1", main="its main task"
    )
    missing = placement.missing(asked.nodes)
    if missing:
        raise MisfitError(missing)
    batches = _Batches.fit(cut.total, given)
    sized = {
        _NODES: (cut.count, "groups of GPUs, each on one node"),
        _GPUS: (cut.gpus, "it wants groups of one size"),
        _TENSOR_PARALLEL: (tensor, "AGENT_TENSOR_PARALLEL"),
        **batches.arguments(cut.total),
    }
    own = [*_what(asked), *((_set(key, value), why) for key, (value, why) in sized.items())]
    own += [(_set(key, value), "as its authors run it") for key, value in _AS_ITS_AUTHORS]
    own += _rest(asked)
    arguments = merge((override for override, _ in own), users)
    steps = f"batch {batches.train} = {batches.train // batches.mini} × {batches.mini}"
    sum_of_it = f"{arithmetic(cut, tensor)}; {steps}"
    why = {override.key: reason for override, reason in own}
    why |= {one.key: "AGENT_JOB_ARGS" for one in users}
    standing = {one.key for one in arguments}
    return Command(
        argv=(asked.python, "-m", "verl.trainer.main_ppo", *(one.argument() for one in arguments)),
        env={
            "HYDRA_FULL_ERROR": "1",
            "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
            "VLLM_ATTENTION_BACKEND": "XFORMERS",
        },
        why={key: reason for key, reason in why.items() if key in standing},
        notes=(sum_of_it, *placement.unknown(asked.nodes), *_notes(asked, given)),
    )


def _checked(override: Override) -> Override:
    """Refuse a key that its configuration does not have."""
    root, _, rest = override.key.partition(".")
    known = root in _ROOTS and (root != "trainer" or rest.split(".")[0] in _TRAINER)
    if not known and override.prefix not in {"+", "++"}:
        what = f"AGENT_JOB_ARGS: {override.key}: Search-R1 has no such key"
        cannot = " and cannot resume" if rest.startswith("resume") else ""
        raise MisfitError(f"{what}{cannot}; +{override.key} would add one")
    return override


class _Batches(Value):
    """The prompts of a step, of an update, and of what passes a GPU group at a time."""

    train: int
    mini: int
    micro: int

    @staticmethod
    def fit(gpus: int, given: Mapping[str, str]) -> _Batches:
        """Return batches near its authors' 512, 256 and 64 that all GPUs share evenly."""
        share = 4 * gpus if 4 * gpus <= _MINI_NEAR else gpus
        most = range(share, _MINI_NEAR + 2 * share, share)
        mini = whole(given, _MINI_BATCH) or nearest(_MINI_NEAR, most)
        train = whole(given, _TRAIN_BATCH) or 2 * mini
        parts = [part for part in range(1, 5) if mini // gpus % part == 0]
        micro = whole(given, _MICRO_BATCH) or max(parts) * gpus
        agents = whole(given, _AGENTS) or 1
        for key, value in ((_TRAIN_BATCH, train * agents), (_MINI_BATCH, mini)):
            if value % gpus:
                raise MisfitError(f"{key}: {value} samples cannot be shared evenly by {gpus} GPUs")
        if train % mini:
            raise MisfitError(f"{_TRAIN_BATCH}={train} is no multiple of {_MINI_BATCH}={mini}")
        for key in (_MICRO_BATCH, _CRITIC_MICRO_BATCH, *_LOG_PROB_BATCHES):
            passed = micro if key == _MICRO_BATCH else whole(given, key)
            if passed is not None and passed % gpus:
                raise MisfitError(f"{key}={passed} is no multiple of {gpus} GPUs")
        for key in (_MICRO_BATCH, _CRITIC_MICRO_BATCH):
            passed = micro if key == _MICRO_BATCH else whole(given, key)
            if passed is not None and mini % passed:
                raise MisfitError(f"{_MINI_BATCH}={mini} is no multiple of {key}={passed}")
        return _Batches(train, mini, micro)

    def arguments(self, gpus: int) -> dict[str, tuple[int, str]]:
        """Give the arguments that follow, each with its reason."""
        shared = f"all {gpus} GPUs share it evenly"
        rows = f"the data needs at least {self.train} rows"
        return {
            _TRAIN_BATCH: (self.train, f"near 512, and {shared}; {rows}"),
            _EVAL_BATCH: (self.mini, "near 256; evaluation leaves out what fills no batch"),
            _MINI_BATCH: (self.mini, f"near 256, and {shared}"),
            _MICRO_BATCH: (self.micro, f"{self.micro // gpus} a GPU"),
            **dict.fromkeys(_LOG_PROB_BATCHES, (8 * gpus, "8 a GPU")),
            _CRITIC_MICRO_BATCH: (gpus, "1 a GPU"),
        }


def _what(asked: RecipeInput) -> Iterable[tuple[Override, str]]:
    """Give what is trained on what."""
    yield _set("data.train_files", texts(asked.train_data)), "AGENT_TRAIN_DATA"
    if asked.eval_data:
        yield _set("data.val_files", texts(asked.eval_data)), "AGENT_EVAL_DATA"
        yield _set("trainer.test_freq", _EVERY), f"its default is -1: never; every {_EVERY} steps"
    else:
        unused = "it reads some in any case, and evaluates once, after the last step"
        yield _set("data.val_files", texts(asked.train_data)), f"no AGENT_EVAL_DATA: {unused}"
    before = Override("trainer.val_before_train", "False", "+")
    yield before, "an evaluation first would only delay the first step"
    yield _set(f"{_MODEL}.path", quoted(asked.model)), "AGENT_MODEL"
    yield _set("critic.model.path", quoted(asked.model)), "PPO's critic begins as AGENT_MODEL"


def _rest(asked: RecipeInput) -> Iterable[tuple[Override, str]]:
    """Give where it searches, how it is logged and saved."""
    where = "the head's address reaches it from wherever the main task lands"
    yield _set(_RETRIEVER_KEY, quoted(_RETRIEVER)), where
    logger = '["console","wandb"]' if asked.wandb else '["console"]'
    yield _set("trainer.logger", logger), "WANDB_API_KEY" if asked.wandb else "no WANDB_API_KEY"
    yield _set("trainer.project_name", asked.recipe), "the recipe's name"
    name = asked.model.rstrip("/").rsplit("/", 1)[-1]
    yield _set("trainer.experiment_name", quoted(name)), "the model's name"
    yield _set("trainer.default_local_dir", quoted(asked.checkpoints)), "AGENT_CHECKPOINTS"
    yield (
        _set("trainer.default_hdfs_dir", "null"),
        "else it copies models to an HDFS of its authors",
    )
    yield _set("trainer.save_freq", _EVERY), f"its default is -1: never; every {_EVERY} steps"


def _notes(asked: RecipeInput, given: Mapping[str, str]) -> Iterable[str]:
    yield "Search-R1 cannot resume: it saves models, and every attempt begins with step 0"
    where = given.get(_RETRIEVER_KEY, _RETRIEVER)
    yield f"its main task asks {where}: AGENT_SERVICES starts a retrieval server"
    yield "it scores by exact match, and only rows whose data_source it knows (nq, hotpotqa, …)"
    if not asked.eval_data:
        yield "no AGENT_EVAL_DATA: the evaluation after the last step is of training data"


def _set(key: str, value: object) -> Override:
    return Override(key, str(value))
