"""verl's recipes and a user's own arguments: they win, or are refused by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.frameworks.recipe import MisfitError
from agent.frameworks.verl import make
from support.recipe_words import arguments
from support.verl_asked import MINI, TENSOR, asked

if TYPE_CHECKING:
    from agent.base.versions import Version

OPTIM = "actor_rollout_ref.actor.optim"
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("data.train_batch_size=512",), {"data.train_batch_size": "512", MINI: "128"}),
        ((f"{MINI}=64",), {"data.train_batch_size": "1024", MINI: "64"}),
        (("data.train_batch_size=96", f"{MINI}=32"), {"data.train_batch_size": "96", MINI: "32"}),
        (("trainer.nnodes=1",), {"trainer.nnodes": "1", "trainer.n_gpus_per_node": "8"}),
        (("trainer.n_gpus_per_node=4",), {"trainer.nnodes": "4", TENSOR: "1"}),
        ((f"{TENSOR}=4",), {TENSOR: "4"}),
        (("actor_rollout_ref.rollout.n=16",), {"actor_rollout_ref.rollout.n": "16"}),
        (("trainer.save_freq=5",), {"trainer.save_freq": "5"}),
        (("+trainer.mine=1",), {"trainer.mine": "1"}),
    ],
)
def test_a_users_argument_replaces_the_recipes(
    args: tuple[str, ...], expected: dict[str, str]
) -> None:
    """The key occurs once, and dependent sizes follow."""
    command = make(asked("2x8", (0, 9, 1), *args))
    found = arguments(command)
    assert {key: found[key] for key in expected} == expected
    for argument in args:
        assert command.why[argument.partition("=")[0].lstrip("+")] == "AGENT_JOB_ARGS"


@pytest.mark.parametrize(
    ("version", "argument", "said"),
    [
        ((0, 9, 1), "data.train_batch_size=1001", "is no multiple of 16"),
        ((0, 9, 1), "data.train_batch_size=many", "expected a whole number"),
        ((0, 9, 1), "trainer.nnodes=3", "would wait forever"),
        ((0, 9, 1), "trainer.n_gpus_per_node=16", "would wait forever"),
        ((0, 9, 1), f"{TENSOR}=3", "engines of 3 GPUs do not fit nodes of 8, 8 GPUs"),
        ((0, 9, 1), "critic.model.fsdp_config.param_offload=True", "critic.fsdp.param_offload"),
        ((0, 7, 1), "custom_reward_function.path=/x.py", "reward.custom_reward_function.path"),
        ((0, 7, 0), "reward.num_workers=4", "has no reward"),
        ((0, 9, 1), "reward_manager.name=x", "calls it reward.reward_manager.name"),
        ((0, 9, 1), "reward_model.reward_manager=dapo", "calls it reward.reward_manager.name"),
        ((0, 9, 1), "trainr.nnodes=2", "has no trainr (trainer?)"),
        ((0, 9, 1), "trainer.nnode=2", "has no nnode (nnodes?)"),
        ((0, 9, 1), "algorithm.adv_estimator=grop", "has no grop (grpo?)"),
        ((0, 8, 0), "trainer.use_v1=True", "has no use_v1"),
        ((0, 6, 1), "actor_rollout_ref.rollout.seed=1", "has no seed"),
        ((0, 9, 1), f"{OPTIM}.lrr=1e-6", f"{OPTIM}.lrr: verl 0.9.1 has no lrr (lr?)"),
        ((0, 7, 1), "critic.optim.lrr=1e-6", "has no lrr (lr?)"),
        ((0, 9, 1), "critic.model.lora.rnk=8", "has no rnk (rank?)"),
        ((0, 9, 1), f"{ROLLOUT}.val_kwargs.topp=1", "has no topp (top_p?)"),
        ((0, 8, 0), f"{ROLLOUT}.checkpoint_engine.backnd=nccl", "has no backnd (backend?)"),
        ((0, 8, 0), "actor_rollout_ref.actor.router_replay.mod=R2", "has no mod (mode?)"),
        ((0, 9, 1), "reward.reward_model.enabled=True", "has no enabled (enable?)"),
        ((0, 9, 1), "data.custom_cls.pat=/x.py", "has no pat (path?)"),
        ((0, 9, 1), f"{ROLLOUT}.engine_kwargs.vllm.mine=1", "++actor_rollout_ref.rollout.engine_"),
        ((0, 9, 1), f"+{OPTIM}.lr=1", f"write {OPTIM}.lr=… or ++{OPTIM}.lr=…"),
        (
            (0, 8, 0),
            "actor_rollout_ref.rollout.multi_turn.interaction_config_path=x",
            "has no inter",
        ),
        ((0, 9, 1), "--nnodes=2", "no argument for hydra"),
        ((0, 9, 1), "+trainer.test_freq=5", "+trainer.test_freq: verl 0.9.1 has this key"),
        ((0, 9, 1), "+trainer.nnodes=2", "write trainer.nnodes=… or ++trainer.nnodes=…"),
    ],
)
def test_wrong_arguments_are_refused(version: Version, argument: str, said: str) -> None:
    """The refusal names the key that verl would refuse, wait for, or ignore."""
    with pytest.raises(MisfitError) as refusal:
        make(asked("2x8", version, argument))
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("version", "args"),
    [
        ((0, 6, 1), ("custom_reward_function.path=/x.py", "reward_model.reward_manager=dapo")),
        ((0, 8, 0), ("reward_model.num_workers=2",)),
        ((0, 7, 1), ("critic.model.fsdp_config.param_offload=True",)),
        ((0, 9, 1), ("trainer.v1.trainer_mode=sync", "hydra.run.dir=/tmp/x")),
        ((0, 9, 1), ("++algorithm.adv_estimator=mine",)),
        ((0, 9, 1), ("++trainer.of_tomorrow=1", "+ray_kwargs.ray_init.x=1")),
        ((0, 9, 1), ("+data.apply_chat_template_kwargs.x=1", "+trainer.of_tomorrow=1")),
        ((0, 9, 1), ("model_engine=veomni", "actor_rollout_ref.actor.veomni.x=1")),
        ((0, 9, 1), ("actor@actor_rollout_ref.actor=megatron_actor", "critic.megatron.x=1")),
        ((0, 9, 1), (f"{OPTIM}.lr=1e-6", "trainer.total_epochs=3")),
        ((0, 9, 1), (f"+{ROLLOUT}.engine_kwargs.vllm.mine=1", f"++{OPTIM}.lrr=1")),
        ((0, 9, 1), ("actor_rollout_ref.actor.profiler.of_tomorrow=1",)),
    ],
)
def test_valid_keys_are_accepted(version: Version, args: tuple[str, ...]) -> None:
    """Keys of the version, insisted keys and keys outside the tables are accepted."""
    assert set(args) <= set(make(asked("2x8", version, *args)).argv)


def test_wrong_keys_are_reported_together() -> None:
    """All wrong keys are in one message."""
    with pytest.raises(MisfitError, match=r"trainer\.nnode:.*data\.batch_size:"):
        make(asked("2x8", (0, 9, 1), "trainer.nnode=1", "data.batch_size=1"))


def test_a_users_reward_function_replaces_ours() -> None:
    """The user's path also removes the arguments of the agent's function."""
    own = "reward.custom_reward_function.path=/mine.py"
    found = arguments(make(asked("2x8", (0, 9, 1), own, scores=True)))
    assert [key for key in found if "reward" in key] == [own.partition("=")[0]]
