"""The keys of verl's configuration that the code reads, and the check of the user's."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from agent.base.versions import Version, is_in, version_text
from agent.frameworks.recipe import MisfitError
from agent.frameworks.table import read_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from agent.frameworks.arguments import Override

VERL = read_table("verl")
MAIN = "verl.trainer.main_ppo"
"""verl's usual program."""

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
CRITIC_MODEL = "critic.model.path"
STRATEGY = f"{ACTOR}.strategy"
FSDP_SIZE = f"{ACTOR}.fsdp_config.fsdp_size"
DTYPE = f"{ACTOR}.fsdp_config.model_dtype"
"""The keys on which the format of checkpoints depends."""
_FIRST_KNOWN: Version = (0, 6)  # The keys of 0.5 are not known


def check_keys(
    users: list[Override],
    version: Version,
    *,
    tree: str = "",
    beside: str = "",
    chosen: Sequence[str] = (),
) -> None:
    """Refuse all keys that this version of verl lacks or ignores; those of 0.5 are not known.

    `tree` is the one that trains: `megatron`, or '' for FSDP's; `beside` has further keys of the
    program. `chosen` are the user's flags that choose a tree; others are not in the tables.
    """
    names = [override.key for override in users]
    is_foreign = any("@" in name or "/" in name for name in names)
    if not tree:
        is_foreign = is_foreign or bool(chosen) or "model_engine" in names
    if version < _FIRST_KNOWN or is_foreign:
        return

    # The keys of a tree are those of its own table, where it has the section.
    sections = VERL.sections("fsdp", version)
    if tree == "megatron":
        own = VERL.sections("megatron", version)
        engines = {
            part + section.removeprefix(ACTOR): names
            for section, names in own.items()
            for part in (REF, "critic")
            if f"{section}.".startswith(f"{ACTOR}.megatron.")
        }
        sections = sections | own | engines
    if beside:
        for section, further in VERL.sections(beside, version).items():
            sections[section] = sections.get(section, set()) | further
    complaints = list(filter(None, (_complaint(user, version, sections) for user in users)))
    if complaints:
        raise MisfitError(f"AGENT_JOB_ARGS: {'; '.join(complaints)}")


def _complaint(
    override: Override, version: Version, sections: Mapping[str, AbstractSet[str]]
) -> str:
    """Return why a key is wrong in this version, with a suggestion; '' for a valid key."""
    key = override.key
    verl = f"verl {version_text(version)}"

    # Has this version moved it?
    for moved in VERL.moved:
        refused = is_in(version, f">={moved.refused or moved.since}")
        if refused and f"{key}.".startswith(f"{moved.old}."):
            return f"{key}: {verl} calls it {moved.new}{key.removeprefix(moved.old)}"
    if override.prefix == "++":
        return ""

    # Does a section that is known lack a name in it?
    name, known = _lacked(key, sections)
    if override.prefix == "+":
        parent, _, last = key.rpartition(".")
        has_key = not name and last in sections.get(parent, ())
        return f"+{key}: {verl} has this key: write {key}=… or ++{key}=…" if has_key else ""

    # Is it a value that there is?
    if override.value not in VERL.values.get(key, (override.value,)):
        name = override.value
        known = set(VERL.values[key])
    if not name:
        return ""
    near = get_close_matches(name, known, 1)
    hint = f" ({near[0]}?)" if near else ""
    return f"{key}: {verl} has no {name}{hint}; ++{key}=… insists"


def _lacked(key: str, sections: Mapping[str, AbstractSet[str]]) -> tuple[str, AbstractSet[str]]:
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
