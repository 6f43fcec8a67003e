"""verl: GRPO and PPO by `verl.trainer.main_ppo`, which hydra configures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.work.recipes.hydra_args import Override, merge, quoted, read, texts, whole
from agent.work.recipes.recipe import Asked, Command, MisfitError
from agent.work.recipes.verl_keys import chooses_another_tree, complaint
from agent.work.recipes.verl_sizes import STORES, BatchRules, Placement, arithmetic, groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.work.recipes.recipe import Version

VERSIONS: tuple[Version, ...] = ((0, 6, 1), (0, 7, 0), (0, 7, 1), (0, 8, 0), (0, 9, 1))
ABOUT = "verl: GRPO or PPO with vLLM rollouts; the reward is verl's own, or a server's"

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_TRAIN_BATCH, _MINI_BATCH = "data.train_batch_size", f"{_ACTOR}.ppo_mini_batch_size"
_NODES, _GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
_TENSOR_PARALLEL = f"{_ROLLOUT}.tensor_model_parallel_size"
_SAMPLES, _LOOPS = f"{_ROLLOUT}.n", f"{_ROLLOUT}.agent.num_workers"
_MODE = f"{_ROLLOUT}.mode"
_STORES = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
_REWARD = "custom_reward_function"
_GROUP_SIZE = 8
"""Answers to each prompt that GRPO compares."""
_AGENT_LOOPS = 8
"""Agent-loop workers that verl starts by default."""
_EVERY = 20
"""Steps from one checkpoint, and one evaluation, to the next."""


def make(asked: Asked) -> Command:
    """Make the command for the nodes that joined, in the installed version's words."""
    users = [read(argument) for argument in asked.args]
    _check_keys(users, asked.version)
    given = {one.key: one.value for one in users if one.prefix != "~"}
    sizes = _Sizes(asked, given)
    own = (*_what(asked), *sizes.arguments(), *_reward(asked, given), *_rest(asked))
    arguments = merge((override for override, _ in own), users)
    why = {override.key: reason for override, reason in own}
    why |= {one.key: "AGENT_JOB_ARGS" for one in users}
    standing = {one.key for one in arguments}
    return Command(
        argv=(asked.python, "-m", "verl.trainer.main_ppo", *(one.argument() for one in arguments)),
        env={"HYDRA_FULL_ERROR": "1"},
        why={key: reason for key, reason in why.items() if key in standing},
        notes=(*sizes.notes(), *_notes(asked)),
    )


def reward_function() -> str:
    """Return the file with the reward function that asks a server: it lies where the agent does."""
    return str(Path(__file__).parents[2] / "bundled" / "verl_reward.py")


def _check_keys(users: list[Override], version: Version) -> None:
    """Refuse keys that this version of verl does not have, or no longer heeds: all together."""
    if any(chooses_another_tree(override) for override in users):
        return
    complaints = [found for override in users if (found := complaint(override, version))]
    if complaints:
        raise MisfitError(f"AGENT_JOB_ARGS: {'; '.join(complaints)}")


class _Sizes:
    """What follows from the nodes: placement, engines, batches."""

    def __init__(self, asked: Asked, given: Mapping[str, str]) -> None:
        self._asked = asked
        self._version = asked.version
        self._grpo = asked.recipe == "verl-grpo"
        self._tensor = whole(given, _TENSOR_PARALLEL) or asked.tensor_parallel
        self._samples = whole(given, _SAMPLES) or (_GROUP_SIZE if self._grpo else 1)
        self._cut = groups(
            asked.nodes, self._tensor, count=whole(given, _NODES), gpus=whole(given, _GPUS)
        )
        loops = whole(given, _LOOPS) or _AGENT_LOOPS
        rules = BatchRules(self._cut.total, self._samples, loops if self._version < (0, 9) else 1)
        self._batches = rules.fit(whole(given, _TRAIN_BATCH), whole(given, _MINI_BATCH))
        served = given.get(_MODE, "async" if _awaits(asked) else "sync") == "async"
        served = served or self._version >= (0, 7)
        release = f"verl {'.'.join(map(str, self._version))}"
        placement = Placement(self._version, self._cut, self._tensor, served, name=release)
        stores = whole(given, _STORES) or placement.fewer_stores(asked.nodes)
        self._placement = replace(placement, stores=stores)
        missing = self._placement.missing(asked.nodes)
        if missing:
            raise MisfitError(missing)

    def arguments(self) -> Iterable[tuple[Override, str]]:
        """Give what was sized, each with its reason."""
        cut, batches = self._cut, self._batches
        yield _set(_NODES, cut.count), self._nodes_why()
        yield (
            _set(_GPUS, cut.gpus),
            f"{cut.total} GPUs in {cut.count} equal groups, each on one node",
        )
        yield _set(_TENSOR_PARALLEL, self._tensor), f"AGENT_TENSOR_PARALLEL; {self._engines()}"
        answers = (
            "GRPO compares the answers to one prompt" if self._grpo else "PPO needs one answer"
        )
        yield _set(_SAMPLES, self._samples), answers
        dealt = f"× {self._samples} answers it can be dealt out to {cut.total} GPUs"
        rows = f"the data needs at least {batches.train} rows"
        yield _set(_TRAIN_BATCH, batches.train), f"near 1024, and {dealt}; {rows}"
        yield _set(_MINI_BATCH, batches.mini), f"near 256, a part of the batch, and {dealt}"
        if self._version >= (0, 9) and self._placement.stores != STORES:
            why = f"instead of {STORES}: each takes a CPU, and no more are free"
            yield _set(_STORES, self._placement.stores), why

    def notes(self) -> Iterable[str]:
        """Say the arithmetic."""
        train, mini = self._batches.train, self._batches.mini
        yield f"{self._engines()}; batch {train} = {train // mini} × {mini}"
        asked = self._asked
        gpus = sum(node.gpus for node in asked.nodes)
        if self._cut.total < gpus:
            yield f"{gpus - self._cut.total} of {gpus} GPUs stay idle"
        if self._tensor > self._cut.gpus:
            needs = "; vLLM 0.11.1 at least is asked for then" * (self._version >= (0, 7, 1))
            yield f"an engine spans {self._tensor // self._cut.gpus} nodes{needs}"
        yield from self._placement.unknown(asked.nodes)

    def _engines(self) -> str:
        return arithmetic(self._cut, self._tensor)

    def _nodes_why(self) -> str:
        sizes = [node.gpus for node in self._asked.nodes if node.gpus]
        if len(set(sizes)) == 1 and sizes[0] == self._cut.gpus:
            return f"{len(sizes)} nodes with GPUs joined"
        return f"groups of {self._cut.gpus} that nodes of {', '.join(map(str, sizes))} GPUs hold"


def _what(asked: Asked) -> Iterable[tuple[Override, str]]:
    """Give what is trained on what."""
    grpo = asked.recipe == "verl-grpo"
    yield _set("algorithm.adv_estimator", "grpo" if grpo else "gae"), asked.recipe
    yield _set("data.train_files", texts(asked.train_data)), "AGENT_TRAIN_DATA"
    if asked.eval_data:
        yield _set("data.val_files", texts(asked.eval_data)), "AGENT_EVAL_DATA"
        yield (
            _set("trainer.test_freq", _EVERY),
            f"verl's default is -1: never; every {_EVERY} steps",
        )
    else:
        read_only = "verl reads some in any case; without AGENT_EVAL_DATA it is never evaluated"
        yield _set("data.val_files", texts(asked.train_data)), read_only
        yield _set("trainer.val_before_train", "False"), "no AGENT_EVAL_DATA"
    yield _set("data.filter_overlong_prompts", "True"), "else one long prompt ends the job"
    yield _set("actor_rollout_ref.model.path", quoted(asked.model)), "AGENT_MODEL"
    if grpo:
        yield _set(f"{_ACTOR}.use_kl_loss", "True"), "GRPO holds on to its reference by a loss"
    else:
        yield _set("critic.model.path", quoted(asked.model)), "PPO's critic begins as AGENT_MODEL"
    yield _set(f"{_ACTOR}.use_dynamic_bsz", "True"), "without it verl asks for micro batches"
    yield _set(f"{_ROLLOUT}.name", "vllm"), "verl has no default"


def _reward(asked: Asked, given: Mapping[str, str]) -> Iterable[tuple[Override, str]]:
    """Give the function that asks the reward server, unless the user has one of his own."""
    root = _REWARD if asked.version < (0, 7, 1) else f"reward.{_REWARD}"
    if not asked.scores or f"{root}.path" in given:
        return
    yield _set(f"{root}.path", quoted(reward_function())), "asks the reward server"
    yield _set(f"{root}.name", "compute_score"), "its function"
    url = Override(f"{root}.reward_kwargs.url", quoted("{reward_url}"), "+")
    yield url, "the reward server of this run"
    if _awaits(asked):
        yield _set(_MODE, "async"), "only so does verl 0.6 await a reward function"
        if given.get(_MODE, "async") != "async":
            raise MisfitError(f"AGENT_JOB_ARGS: {_MODE}: verl 0.6 scores by a server only in async")


def _rest(asked: Asked) -> Iterable[tuple[Override, str]]:
    """Give how it is logged and saved."""
    logger = '["console","wandb"]' if asked.wandb else '["console"]'
    yield _set("trainer.logger", logger), "WANDB_API_KEY" if asked.wandb else "no WANDB_API_KEY"
    yield _set("trainer.project_name", quoted(asked.recipe)), "the recipe's name"
    yield _set("trainer.experiment_name", quoted(_last_word(asked.model))), "the model's name"
    yield _set("trainer.default_local_dir", quoted(asked.checkpoints)), "AGENT_CHECKPOINTS"
    yield _set("trainer.save_freq", _EVERY), f"verl's default is -1: never; every {_EVERY} steps"
    yield _set("trainer.resume_mode", "auto"), "goes on from the last checkpoint there is"


def _notes(asked: Asked) -> Iterable[str]:
    if not asked.scores:
        yield (
            "verl scores by the data_source of each row, and refuses one that it does not know: "
            "AGENT_REWARD has a server score instead"
        )
    if not asked.eval_data:
        yield "no AGENT_EVAL_DATA: it is trained, and never evaluated"
    if asked.version >= (0, 9):
        yield "verl 0.9 needs the packages TransferQueue and orjson, which it does not ask pip for"


def _awaits(asked: Asked) -> bool:
    return asked.scores and asked.version < (0, 7)


def _set(key: str, value: object) -> Override:
    return Override(key, str(value))


def _last_word(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1] or path
