"""The tables of frameworks: every row is in a command, and what is misspelled is refused."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from agent.base.versions import is_in, version_text
from agent.frameworks import (
    openrlhf,
    openrlhf_m,
    openrlhf_train,
    search_r1,
    table,
    trl,
    verl,
    verl_keys,
)
from agent.frameworks.recipe import JobBasis, MisfitError, NodeSize, RecipeInput
from agent.frameworks.search_r1 import SEARCH_R1
from agent.frameworks.table import FrameworkTable, Moved, read_table
from agent.frameworks.verl_keys import VERL
from agent.settings.jobs import RECIPES
from support.model_shapes import QWEN2_5_7B, QWEN2_5_32B, QWEN3_30B, QWEN3_235B, shape

if TYPE_CHECKING:
    from types import ModuleType

    from agent.base.versions import Version
    from agent.frameworks.recipe import ModelShape

FOLDER = Path(table.__file__).parent
GIB = 1 << 30
LARGE = shape(
    hidden_size=8192,
    num_hidden_layers=81,
    num_attention_heads=64,
    num_key_value_heads=8,
    intermediate_size=29568,
    vocab_size=152_064,
)
UNKNOWN = (None, (NodeSize(8),))
IN_7B = (QWEN2_5_7B, (NodeSize(8, 28, 500 * GIB, 80),) * 2)
IN_30B = (QWEN3_30B, (NodeSize(8, 128, 2000 * GIB, 80),) * 2)
IN_32B = (QWEN2_5_32B, (NodeSize(8, 128, 2000 * GIB, 80),) * 4)
IN_LARGE = (LARGE, (NodeSize(8, 128, 4000 * GIB, 80),) * 3)
IN_EXPERTS = (QWEN3_235B, (NodeSize(8, 128, 4000 * GIB, 96),) * 4)
FAST, SLOW = None, 9e8
EVALUATED = {"scores": True, "eval_data": "/data/eval.parquet"}
CONTEXT = ("actor_rollout_ref.actor.megatron.context_parallel_size=2",)
LONG = ("data.max_response_length=30000",)
MICRO = ("critic.ppo_micro_batch_size=64", "actor_rollout_ref.actor.ppo_micro_batch_size=64")
MICRO_OF_LOGS = (
    "actor_rollout_ref.rollout.log_prob_micro_batch_size=64",
    "actor_rollout_ref.ref.log_prob_micro_batch_size=64",
)
Nodes = tuple["ModelShape | None", tuple[NodeSize, ...]]
Asked = tuple[str, Nodes, float | None, dict[str, Any]]
VERLS: tuple[Asked, ...] = (
    ("verl-ppo", IN_EXPERTS, FAST, {**EVALUATED, "backend": "megatron", "args": CONTEXT}),
    ("verl-ppo", IN_32B, SLOW, {"reward_model": "org/rm", "wandb": True}),
    ("verl-ppo", IN_LARGE, SLOW, {"args": LONG}),
    ("verl-ppo", UNKNOWN, FAST, {"args": MICRO_OF_LOGS}),
    ("verl-grpo", UNKNOWN, FAST, {"args": MICRO}),
    ("verl-grpo", UNKNOWN, FAST, {"model": "org/model-VL"}),
    ("verl-grpo", UNKNOWN, FAST, {"lora_rank": 64, "rollout": "sglang"}),
    ("verl-grpo", UNKNOWN, FAST, {"lora_rank": 64, "rollout": "sglang", "backend": "megatron"}),
    ("verl-grpo", IN_7B, FAST, {"model": "org/model-VL", "lora_rank": 64}),
    ("verl-grpo", IN_30B, FAST, {"model": "org/model-VL", "backend": "megatron"}),
    ("verl-grpo", IN_7B, FAST, {"args": ("trainer.v1.trainer_mode=separate_async",)}),
    ("verl-grpo", IN_32B, FAST, {"args": ("async_training.staleness_threshold=0.5",)}),
)
"""In all releases together they have every row of verl's table."""
SEARCH_R1S: tuple[Asked, ...] = (
    ("search-r1-ppo", IN_LARGE, FAST, {"eval_data": "/data/eval.parquet"}),
    ("search-r1-grpo", UNKNOWN, FAST, {}),
)


def settings_of(module: ModuleType, commands: tuple[Asked, ...]) -> set[tuple[str, str]]:
    """Return each argument of the commands in each release that has them, with its reason."""
    found: set[tuple[str, str]] = set()
    for version, (recipe, nodes, link, way) in product(module.VERSIONS or ((),), commands):
        model, sizes = nodes
        asked = {"model": "org/model", **way}
        try:
            made = module.make(
                RecipeInput(
                    recipe=recipe,
                    nodes=sizes,
                    version=version,
                    train_data="/data/train.parquet",
                    checkpoints="/volume",
                    basis=JobBasis(model=model, link=link),
                    **asked,
                )
            )
        except MisfitError:
            continue
        for word in made.argv:
            key, _, value = word.partition("=")
            why = made.why.get(key.removeprefix("+"), "")
            found.add((f"{key}={value}", why))
    return found


def pattern_of(text: str) -> str:
    """Return the expression for a text of a table with any quantities."""
    return re.sub(r"\\\{\w+\\\}", "(?s:.*)", re.escape(text))


@pytest.mark.parametrize(
    ("module", "known", "commands"),
    [(verl, VERL, VERLS), (search_r1, SEARCH_R1, SEARCH_R1S)],
    ids=["verl", "search"],
)
def test_every_row_is_in_a_command(
    module: ModuleType, known: FrameworkTable, commands: tuple[Asked, ...]
) -> None:
    """No row waits for conditions that never hold, and each name in braces is a fact."""
    found = settings_of(module, commands)
    missing = []
    for group in known.settings:
        versions = [one for one in known.versions or ((),) if is_in(one, group.versions)]
        for key, (value, why) in group.rows.items():
            names = {known.spelled(key, version) for version in versions}
            spelled = [re.compile(pattern_of(f"{name}={value}")) for name in names]
            reason = re.compile(pattern_of(why))
            if not any(
                reason.fullmatch(said) and any(one.fullmatch(word) for one in spelled)
                for word, said in found
            ):
                missing.append((group.when, group.versions, key, why))
    assert missing == []


def test_every_row_of_openrlhf_is_in_a_command() -> None:
    """The flags of its tables are set by some recipe in some release, as that spells them."""
    found: set[str] = set()
    for module in (openrlhf, openrlhf_m, openrlhf_train):
        recipes = [
            known.name for known in RECIPES if f"agent.frameworks.{known.module}" == module.__name__
        ]
        for recipe, version in product(recipes, module.VERSIONS):
            program = {"openrlhf-grpo": "ppo", "openrlhf-m-grpo": "m"}.get(recipe, recipe[9:])
            spelling = {flag: name for name, flag in openrlhf.flags_of(program, version)[1].items()}
            made = module.make(
                RecipeInput(
                    recipe=recipe,
                    nodes=(NodeSize(8, 128, 2000 * GIB, 80),) * 2,
                    version=version,
                    model="org/model",
                    train_data="/data/train.parquet",
                    checkpoints="/volume",
                    scores=True,
                )
            )
            words = {word[2:] for word in made.argv if word.startswith("--")}
            found |= {f"{module.VERSIONS} {spelling.get(word, word)}" for word in words}
    for module, known in ((openrlhf, openrlhf.OPENRLHF), (openrlhf_m, openrlhf_m.OPENRLHF_M)):
        keys = [key for group in known.settings for key in group.rows]
        assert [key for key in keys if f"{module.VERSIONS} {key}" not in found] == []


def test_every_row_of_trl_is_in_a_command() -> None:
    """The flags of its table are set for some nodes and settings."""
    usual = RecipeInput(
        recipe="trl-grpo",
        nodes=(NodeSize(8, 128, 2000 * GIB, 80),),
        version=trl.VERSIONS[-1],
        model="org/model",
        train_data="/data/train.jsonl",
        checkpoints="/volume",
        scores=True,
    )
    short = replace(QWEN2_5_32B, positions=4096)
    asked = (
        replace(usual, eval_data="/data/eval.jsonl", lora_rank=8, wandb=True),
        replace(usual, nodes=(NodeSize(0),)),
        replace(usual, nodes=(NodeSize(4, 128, 2000 * GIB, 40),), basis=JobBasis(model=short)),
    )
    found = {word[2:] for one in asked for word in trl.make(one).argv if word.startswith("--")}
    assert [key for group in trl.TRL.settings for key in group.rows if key not in found] == []


def test_the_code_asks_for_every_change() -> None:
    """A change with a version that no module asks for would have no effect."""
    code = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))
    for known in (VERL, openrlhf.OPENRLHF, trl.TRL):
        assert [name for name in known.changes if f'"{name}"' not in code] == []
        for versions in known.changes.values():
            assert len({is_in(version, versions) for version in known.versions}) == 2


@pytest.mark.parametrize("version", verl.VERSIONS[-2:])
def test_a_key_that_moves_is_read_by_both_names(
    monkeypatch: pytest.MonkeyPatch, version: Version
) -> None:
    """A version that renames a key is a row of the table, also where the code reads the key."""
    usual = RecipeInput(
        recipe="verl-grpo",
        nodes=(NodeSize(5),),
        version=version,
        model="org/model",
        train_data="/data/train.parquet",
        checkpoints="/volume",
    )
    expected = batch_of(replace(usual, args=(f"{verl_keys.MINI_BATCH}=100",)))
    assert expected != batch_of(usual)

    new = "actor.batch"
    moved = (*VERL.moved, Moved(verl_keys.MINI_BATCH, new, version_text(verl.VERSIONS[-1])))
    monkeypatch.setattr(verl, "VERL", replace(VERL, moved=moved))
    name = new if version == verl.VERSIONS[-1] else verl_keys.MINI_BATCH
    assert batch_of(replace(usual, args=(f"++{name}=100",))) == expected
    with pytest.raises(MisfitError, match=rf"AGENT_JOB_ARGS: {re.escape(name)}=x"):
        verl.make(replace(usual, args=(f"++{name}=x",)))


def batch_of(asked: RecipeInput) -> str:
    """Return the size of a batch of prompts in verl's command."""
    return next(word for word in verl.make(asked).argv if word.startswith(verl_keys.TRAIN_BATCH))


def test_a_key_may_move_twice() -> None:
    """Each version has its own name for it."""
    moved = (Moved("a", "b", "0.7"), Moved("b", "c.d", "0.9"))
    known = replace(VERL, moved=moved)
    names = [known.spelled("+c.d.e", version) for version in ((0, 6), (0, 7), (0, 9))]
    assert names == ["+a.e", "+b.e", "+c.d.e"]
    assert {known.newest(name.removeprefix("+")) for name in names} == {"c.d.e"}


@pytest.mark.parametrize(
    ("versions", "inside"),
    [
        ("", [True, True, True]),
        ("all", [True, True, True]),
        (">=0.7", [False, True, True]),
        ("<0.7.1", [True, True, False]),
        (">=0.7,<0.7.1", [False, True, False]),
    ],
)
def test_ranges_of_versions(versions: str, inside: list[bool]) -> None:
    """They are written as pip does; 0.7 begins with its first patch."""
    assert [is_in(one, versions) for one in ((0, 6, 1), (0, 7, 0), (0, 7, 1))] == inside


@pytest.mark.parametrize("versions", ["0.7", ">0.7", ">=0.7 <0.8", ">=x"])
def test_what_is_no_range_is_refused(versions: str) -> None:
    """A misspelled range is never taken for all versions."""
    with pytest.raises(ValueError, match="no range of versions"):
        is_in((0, 7, 0), versions)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[changes]", "[chnages]"),
        ("is_sized_by_links", "is_sized"),
        ("prefix = ", "prefixes = "),
        ('shows = "step"', 'show = "step"'),
        ("reward = [", "rewards = ["),
        ('image = "', 'images = "'),
        ('refused = "0.9"', 'refusd = "0.9"'),
        ('"algorithm.adv_estimator" = ["grpo"', '"algorithm.adv_estimator" = [1'),
    ],
)
def test_a_misspelled_field_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """A field that no part of a table has is no silent default."""
    text = (FOLDER / "verl.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "verl.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(table, "__file__", str(tmp_path / "table.py"))
    with pytest.raises(ValueError, match=r"unknown field|Expected"):
        read_table("verl")
