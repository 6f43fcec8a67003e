"""Checks an OpenRLHF-M command against a copy of its parser's options and rules."""

from __future__ import annotations

import argparse
from typing import NoReturn

from tools.frameworks.facts.openrlhf_m_options import (
    CHOICES,
    DECIMAL,
    DEFAULTS,
    LISTS,
    SWITCHES,
    TEXT,
    WHOLE,
)
from tools.frameworks.faults import Case, Fault
from tools.frameworks.placement import Cluster, WaitsForEverError, waits

SHARE = 0.2
"""The share of a GPU for each model that shares it."""


class RefusedError(Exception):
    """The parser's error."""


class Parser(argparse.ArgumentParser):
    """A parser that raises an exception."""

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        raise RefusedError(message)


def make_parser() -> Parser:
    """Build the parser from the facts; unlike the real one, it refuses abbreviations."""
    parser = Parser(allow_abbrev=False, add_help=False)
    for name in (*WHOLE, *DECIMAL, *TEXT):
        kind = int if name in WHOLE else float if name in DECIMAL else str
        parser.add_argument(f"--{name}", type=kind, default=DEFAULTS.get(name))
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    for name, choices in CHOICES.items():
        parser.add_argument(f"--{name}", choices=choices, default=DEFAULTS[name])
    for name, (of, count) in LISTS.items():
        parser.add_argument(f"--{name}", type=of, nargs=count)
    return parser


def judge_one(case: Case) -> list[Fault]:
    """Parse, check its assertions, and place."""
    given = [word.split("=")[0] for word in case.argv if word.startswith("--")]
    faults = [Fault("twice", flag) for flag in dict.fromkeys(given) if given.count(flag) > 1]
    try:
        options = make_parser().parse_args(case.argv)
    except RefusedError as error:
        return [*faults, Fault("refused", str(error))]
    faults += [Fault("refused", what) for what in refusals(options)]
    faults += [Fault("ignored", what) for what in replaced(options)]
    return faults + waits(case.nodes, lambda cluster: place(options, cluster))


def refusals(options: argparse.Namespace) -> list[str]:
    """List the assertions that fail, and the batch sizes that DeepSpeed would refuse."""
    world = options.actor_num_nodes * options.actor_num_gpus_per_node
    engines, size = options.vllm_num_engines or 0, options.vllm_tensor_parallel_size
    critic = options.critic_num_nodes * options.critic_num_gpus_per_node
    actor = (options.actor_num_nodes, options.actor_num_gpus_per_node)
    with_ref = options.init_kl_coef > 0 and is_shared(options)
    grouped = options.advantage_estimator in {"rloo", "reinforce_baseline", "group_norm"}
    batch, micro = options.train_batch_size, options.micro_train_batch_size
    checks = (
        (
            options.rollout_batch_size % world != 0,
            f"rollout_batch_size {options.rollout_batch_size} for {world} GPUs",
        ),
        (options.zero_stage == 3 and not engines, "ZeRO-3 without vLLM"),
        (
            engines and world % engines and engines % world,
            f"{engines} engines for {world} GPUs",
        ),
        (
            options.colocate_all_models and engines and world != engines * size,
            f"{engines} engines of {size} are not the {world} GPUs of the actor",
        ),
        (
            with_ref and (options.ref_num_nodes, options.ref_num_gpus_per_node) != actor,
            "the reference model's nodes and GPUs are not the actor's",
        ),
        (
            has_critic(options) and world % critic != 0,
            f"{critic} GPUs for the critic beside {world} for the actor",
        ),
        (
            grouped and options.n_samples_per_prompt <= 1,
            f"{options.advantage_estimator} needs several samples a prompt",
        ),
        (
            batch % (micro * world) != 0,
            f"DeepSpeed: a batch of {batch} is no multiple of {micro} x {world} processes",
        ),
    )
    return [what for wrong, what in checks if wrong]


def is_shared(options: argparse.Namespace) -> bool:
    """Check whether the reference model shares the actor's GPUs."""
    return bool(options.colocate_all_models or options.colocate_actor_ref)


def replaced(options: argparse.Namespace) -> list[str]:
    """List the options that it replaces with a warning."""
    found = []
    if options.pretrain_data:
        found.append("--pretrain_data is not supported")
    if options.packing_samples and not options.flash_attn:
        found.append("--packing_samples without --flash_attn")
    if options.vllm_enable_sleep and not options.colocate_all_models:
        found.append("--vllm_enable_sleep without --colocate_all_models")
    if options.use_kl_loss and options.kl_estimator == "k1":
        found.append("the k1 estimator is not recommended as a loss")
    if not options.use_kl_loss and options.kl_estimator != "k1":
        found.append(f"the {options.kl_estimator} estimator is recommended as a loss only")
    return found


def has_critic(options: argparse.Namespace) -> bool:
    """Check whether a critic is trained."""
    return bool(options.advantage_estimator == "gae")


def place(options: argparse.Namespace, cluster: Cluster) -> None:
    """Reserve the resources of its models and engines."""
    world = options.actor_num_nodes * options.actor_num_gpus_per_node
    bundle = {"GPU": 1.0, "CPU": 1.0}
    shared = is_shared(options)
    group = cluster.group([bundle] * world, "PACK") if shared else None
    engines, size = options.vllm_num_engines or 0, options.vllm_tensor_parallel_size
    if engines and not options.colocate_all_models:
        cluster.group([bundle] * (engines * size), "PACK")
    parts = [("actor", shared)]
    if options.init_kl_coef > 0:
        parts.append(("ref", shared))
    if has_critic(options):
        parts.append(("critic", options.colocate_all_models))
    if not options.remote_rm_url:
        parts.append(("reward", options.colocate_all_models))
    for name, inside in parts:
        nodes, gpus = (
            getattr(options, f"{name}_num_{what}") for what in ("nodes", "gpus_per_node")
        )
        for index in range(nodes * gpus):
            if not inside or group is None:
                cluster.place(bundle, f"the {name} model with 1 GPU and 1 CPU")
                continue
            if index >= world:
                raise WaitsForEverError(f"the {name} model's process {index} has no bundle")
            cluster.inside(group, index, {"GPU": SHARE, "CPU": SHARE}, f"the {name} model")
