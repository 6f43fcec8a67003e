"""Checks a Search-R1 command against a copy of its configuration and rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.frameworks.facts.search_r1_keys import (
    ANYTHING,
    BOOLEAN,
    DEAD,
    DECIMAL,
    LINKED,
    TEXT,
    WHOLE,
)
from tools.frameworks.faults import Case, Fault
from tools.frameworks.overrides import parse
from tools.frameworks.placement import Cluster, waits

if TYPE_CHECKING:
    from collections.abc import Mapping

ADDED = ("trainer.val_only", "trainer.val_before_train")
"""Keys that its code reads and its configuration lacks: they need a +."""
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
NUMBERS = {
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "data.train_batch_size": 1024,
    "data.val_batch_size": 1312,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.ppo_micro_batch_size": 64,
    "critic.ppo_micro_batch_size": 64,
    "actor_rollout_ref.ref.log_prob_micro_batch_size": 128,
    f"{ROLLOUT}.log_prob_micro_batch_size": 128,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.n_agent": 1,
}
"""Defaults that its rules use."""
READERS = {
    **dict.fromkeys(BOOLEAN, "bool"),
    **dict.fromkeys(WHOLE, "int"),
    **dict.fromkeys(DECIMAL, "float"),
    **dict.fromkeys((*TEXT, *ANYTHING, *LINKED, *DEAD), "any"),
}


def judge_one(case: Case) -> list[Fault]:
    """Compose, check its rules, and place."""
    faults: list[Fault] = []
    numbers = dict(NUMBERS)
    overrides = [parse(word) for word in case.argv]
    keys = [override.key for override in overrides]
    faults += [Fault("twice", key) for key in dict.fromkeys(keys) if keys.count(key) > 1]
    for override in overrides:
        what = refusal(override.sign, override.key, override.value)
        if what:
            faults.append(Fault("refused", what))
        elif override.key in DEAD:
            faults.append(Fault("dead", f"nothing reads {override.key}"))
        elif override.key in numbers:
            numbers[override.key] = int(override.value)
    if any(fault.kind == "refused" for fault in faults):
        return faults
    faults += [Fault("refused", what) for what in rules(numbers)]
    return faults + waits(case.nodes, lambda cluster: place(numbers, cluster))


def refusal(sign: str, key: str, value: str) -> str:
    """Return why hydra, or the code behind it, would refuse this; '' if it would not."""
    known = READERS.get(key)
    if known is None and not (sign and key in ADDED):
        return f"Could not override {key!r}"
    if known is not None and sign == "+":
        return f"Could not append to config: {key!r} is there"
    if known == "bool" and value.lower() not in {"true", "false"}:
        return f"{key} is true or false, and was given {value!r}"
    try:
        {"int": int, "float": float}.get(known or "any", str)(value)
    except ValueError:
        return f"{key} is a number, and was given {value!r}"
    return ""


def rules(numbers: Mapping[str, int]) -> list[str]:
    """List the errors that its workers would raise: sizes must divide evenly by the GPUs."""
    world = numbers["trainer.nnodes"] * numbers["trainer.n_gpus_per_node"]
    samples = numbers[f"{ROLLOUT}.n"] * numbers[f"{ROLLOUT}.n_agent"]
    found = []
    size = numbers[f"{ROLLOUT}.tensor_model_parallel_size"]
    if world % size:
        found.append(f"{world} GPUs do not make engines of {size}")
    if numbers["data.train_batch_size"] * samples % world:
        found.append(f"a batch of {numbers['data.train_batch_size']} x {samples} for {world} GPUs")
    for key, number in numbers.items():
        if "mini_batch" not in key and "micro_batch" not in key:
            continue
        if number % world:
            found.append(f"{key}={number} for {world} GPUs")
    mini, micro = f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_micro_batch_size"
    if numbers[mini] % numbers[micro]:
        found.append(f"{mini}={numbers[mini]} is no multiple of {micro}={numbers[micro]}")
    if numbers["data.train_batch_size"] % numbers[mini]:
        found.append(f"{numbers['data.train_batch_size']} is no multiple of {mini}={numbers[mini]}")
    return found


def place(numbers: Mapping[str, int], cluster: Cluster) -> None:
    """Reserve its resources: its main task takes a CPU, each node's GPUs are one group."""
    cluster.place({"CPU": 1}, "main_task with 1 CPU")
    for _ in range(numbers["trainer.nnodes"]):
        cluster.group([{"GPU": 1, "CPU": 1}] * numbers["trainer.n_gpus_per_node"], "STRICT_PACK")
