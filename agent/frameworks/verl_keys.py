"""The keys of verl's configuration: which ones the recipe sets, and which a version lacks."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from agent.frameworks.arguments import rows_for
from agent.frameworks.recipe import MisfitError, Version, version_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.frameworks.arguments import Override

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
NODES = "trainer.nnodes"
GPUS = "trainer.n_gpus_per_node"
TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
SHARE = f"{ROLLOUT}.gpu_memory_utilization"
TRAIN_BATCH = "data.train_batch_size"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
SAMPLES = f"{ROLLOUT}.n"
MODE = f"{ROLLOUT}.mode"
STORES_KEY = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
PROMPT = "data.max_prompt_length"
ANSWER = "data.max_response_length"
REF = "actor_rollout_ref.ref"
STRATEGY = f"{ACTOR}.strategy"
FSDP_SIZE = f"{ACTOR}.fsdp_config.fsdp_size"
DTYPE = f"{ACTOR}.fsdp_config.model_dtype"
"""The keys on which the format of checkpoints depends."""

_MOVED: tuple[tuple[Version, str, str], ...] = (
    ((0, 7, 1), "custom_reward_function", "reward.custom_reward_function"),
    ((0, 7, 1), "reward_manager", "reward.reward_manager"),
    ((0, 8), "critic.model.fsdp_config", "critic.fsdp"),
    ((0, 9), "reward_model.model.path", "reward.reward_model.model_path"),
    ((0, 9), "reward_model.num_workers", "reward.num_workers"),
    ((0, 9), "reward_model.reward_manager", "reward.reward_manager.name"),
    ((0, 9), "reward_model", "reward.reward_model"),
    ((0, 9), "sandbox_fusion", "reward.sandbox_fusion"),
)
"""Moved keys, and the first version that refuses or ignores the old one."""
_ESTIMATORS = {
    *("gae", "gdpo", "gpg", "grpo", "grpo_passk", "grpo_vectorized", "opo"),
    *("optimal_token_baseline", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax"),
    *("rloo", "rloo_vectorized", "tir_optimal_token_baseline"),
}
"""Those of 0.9.1; earlier versions have some of them. verl checks only after the first rollout."""


def check_keys(
    users: list[Override], version: Version, *, tree: str = "", chosen: Sequence[str] = ()
) -> None:
    """Refuse all keys that this version of verl lacks or ignores; those of 0.5 are not known.

    `tree` is the one that trains: `megatron`, or '' for FSDP's; `chosen` are the user's flags that
    choose a tree. Those of others are not in the tables.
    """
    names = [override.key for override in users]
    is_foreign = any("@" in name or "/" in name for name in names)
    if not tree:
        is_foreign = is_foreign or bool(chosen) or "model_engine" in names
    if version < (0, 6) or is_foreign:
        return

    # The keys of a tree are those of its own table, where it has the section.
    sections = _sections("verl_keys.txt", version)
    if tree == "megatron":
        own = _sections("verl_megatron_keys.txt", version)
        engines = {
            part + section.removeprefix(ACTOR): names
            for section, names in own.items()
            for part in (REF, "critic")
            if f"{section}.".startswith(f"{ACTOR}.megatron.")
        }
        sections = sections | own | engines
    complaints = list(filter(None, (_complaint(user, version, sections) for user in users)))
    if complaints:
        raise MisfitError(f"AGENT_JOB_ARGS: {'; '.join(complaints)}")


def _sections(table: str, version: Version) -> dict[str, set[str]]:
    sections: dict[str, set[str]] = {}
    for names, *keys in rows_for(table, version):
        for section in names.split(","):
            sections.setdefault(section.strip("."), set()).update(keys)
    return sections


def _complaint(override: Override, version: Version, sections: Mapping[str, set[str]]) -> str:
    """Return why a key is wrong in this version, with a suggestion; '' for a valid key."""
    key = override.key
    verl = f"verl {version_text(version)}"

    # Has this version moved it?
    for since, old, new in _MOVED:
        if version >= since and f"{key}.".startswith(f"{old}."):
            return f"{key}: {verl} calls it {new}{key.removeprefix(old)}"
    if override.prefix == "++":
        return ""

    # Does a section that is known lack a name in it?
    name, known = _lacked(key, sections)
    if override.prefix == "+":
        parent, _, last = key.rpartition(".")
        has_key = not name and last in sections.get(parent, ())
        return f"+{key}: {verl} has this key: write {key}=… or ++{key}=…" if has_key else ""

    # Is it an estimator that there is?
    if key == "algorithm.adv_estimator" and override.value not in _ESTIMATORS:
        name = override.value
        known = _ESTIMATORS
    if not name:
        return ""
    near = get_close_matches(name, known, 1)
    hint = f" ({near[0]}?)" if near else ""
    return f"{key}: {verl} has no {name}{hint}; ++{key}=… insists"


def _lacked(key: str, sections: Mapping[str, set[str]]) -> tuple[str, set[str]]:
    """Return the first name of a key that its section lacks, and that section's names.

    The name is '' where none is missing: what is in a section without a row is not checked.
    """
    section = ""
    for name in key.split("."):
        known = sections.get(section)
        if known is None:
            break
        if name not in known:
            return name, known
        section = f"{section}.{name}".strip(".")
    return "", set()
