"""verl's configuration: its hydra tree composed strictly, its validation, its placement."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from agent.bundled.ask_framework import ComposeInput, compose
from tools.frameworks.facts import words
from tools.frameworks.faults import Case, Fault
from tools.frameworks.inside import stub_modules
from tools.frameworks.inside.exchange import answer
from tools.frameworks.inside.modelled_ray import ModelledRay, PlacedGroup
from tools.frameworks.inside.uses import names_read
from tools.frameworks.overrides import Override, parse, type_fault
from tools.frameworks.placement import Cluster, WaitsForEverError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEAVY = frozenset(
    words("""
        ray torch tensordict transformers datasets vllm sglang tqdm peft wandb flash_attn
        accelerate torchdata PIL aiohttp pandas codetiming dill pylatexenc orjson cachetools
        psutil pyarrow requests httpx fastapi uvicorn pydantic msgspec zmq cloudpickle
        megatron diffusers fsspec filelock mbridge liger_kernel openai starlette regex
        transfer_queue
    """)
)
"""Modules that its files import at the top and that need GPUs."""
SERVER = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"
MIGRATION = "migrate_legacy_reward_impl"
"""Moves keys to their new names, from 0.7.1 on, where the program calls it."""
FULLY_ASYNC = "verl.experimental.fully_async_policy"
"""The package of its fully async trainer."""
NAMED = "--config-name="
"""The flag of hydra that chooses another tree, as for Megatron before 0.8."""
HANDED_ON = (
    "reward_kwargs",
    "transfer_queue",
    "override_transformer_config",
    "override_optimizer_config",
)
"""Groups that verl passes on as a whole: to a user's function, to another package."""


def judge(package: Path, cases: Sequence[Case]) -> dict[str, list[Fault]]:
    """Check all cases with one version's package."""
    sys.path.insert(0, str(package))
    # GPUs of the modelled nodes, independent of this machine
    os.environ["VERL_PLATFORM"] = "nvidia"
    warnings.simplefilter("ignore")
    stub_modules.install(HEAVY)
    importlib.import_module("transformers").AutoConfig = ModelFile  # type: ignore[attr-defined] # a stub takes any
    ray = ModelledRay()
    ray.install()
    program = (package / "verl/trainer/main_ppo.py").read_text(encoding="utf-8")
    migrates = MIGRATION in program
    read = names_read(package / "verl", but=frozenset() if migrates else frozenset({MIGRATION}))
    server = (package / SERVER).read_text(encoding="utf-8")
    has_cpu = re.search(r"@ray\.remote\(num_cpus=1\)\nclass \w*Server", server) is not None
    verl = Verl(package, ray, program, read, compose(tree(package, ())), has_cpu)
    return {case.name: judge_one(verl, case) for case in cases}


class ModelFile(stub_modules.StubResult):
    """A model's config.json, reduced to its architecture."""

    architectures = ("Qwen2ForCausalLM",)

    @classmethod
    def from_pretrained(cls, *_args: object, **_kwargs: object) -> ModelFile:
        """Return the model without reading a file."""
        return cls()


@dataclass(frozen=True)
class Verl:
    """One version: the data that all cases share."""

    package: Path
    ray: ModelledRay
    program: str
    """The source of its main program."""
    read: frozenset[str]
    defaults: Any
    server_has_cpu: bool
    """Whether a rollout engine's server requests its own CPU: up to 0.7.0."""


def judge_one(verl: Verl, case: Case) -> list[Fault]:
    """Run one command twice: with the fullest node first and with the emptiest first."""
    overrides = [parse(word) for word in case.argv if not word.startswith(NAMED)]
    keys = [override.key for override in overrides]
    found = {Fault("twice", key): None for key in keys if keys.count(key) > 1}
    for roomy in (True, False):
        verl.ray.cluster = Cluster(case.nodes, roomy=roomy)
        for fault in run(verl, case, overrides):
            found[fault] = None
    for override in overrides:
        if not is_read(override.key, verl.read):
            found[Fault("dead", f"nothing reads {override.key}")] = None
    return list(found)


def is_read(key: str, read: frozenset[str]) -> bool:
    """Check whether a key is read: its group from the configuration, and its last part."""
    parts = key.split(".")
    for whole in HANDED_ON:
        parts = parts[: parts.index(whole) + 1] if whole in parts else parts
    group = any(f"{variable}.{parts[0]}" in read for variable in ("config", "cfg", "full_config"))
    return group and any(name.endswith(f".{parts[-1]}") for name in read)


def run(verl: Verl, case: Case, overrides: Sequence[Override]) -> list[Fault]:
    """Compose, validate and place one command, as its main program does."""
    out = io.StringIO()
    faults: list[Fault] = []
    try:
        config = compose(tree(verl.package, case.argv, case.module))
        faults += type_faults(verl.defaults, config, overrides)
        with contextlib.redirect_stdout(out):
            faults += steps(verl, config, case)
    except AssertionError as error:
        faults.append(Fault("refused", str(error) or "an assertion without a message"))
    except WaitsForEverError as error:
        faults.append(Fault("waits", str(error)))
    except Exception as error:  # noqa: BLE001 - any error of hydra or of its code
        faults.append(
            Fault("refused" if is_refusal(error) else "crash", f"{type(error).__name__}: {error}")
        )
    said = [line for line in out.getvalue().splitlines() if line.startswith(("NOTICE", "WARNING"))]
    return faults + [Fault("ignored", line) for line in said]


def is_refusal(error: Exception) -> bool:
    """Distinguish a deliberate refusal from a crash."""
    theirs = type(error).__module__.split(".")[0]
    return theirs in {"hydra", "omegaconf"} or isinstance(error, ValueError)


def tree(package: Path, argv: Sequence[str], module: str = "") -> ComposeInput:
    """Return what main_ppo, or another program, composes, as the command line does."""
    if module.startswith(FULLY_ASYNC):
        folder = str(package / FULLY_ASYNC.replace(".", "/") / "config")
        return ComposeInput(folder, "fully_async_ppo_trainer", tuple(argv), {"version_base": None})
    folder = str(package / "verl/trainer/config")
    names = [word.removeprefix(NAMED) for word in argv if word.startswith(NAMED)]
    overrides = tuple(word for word in argv if not word.startswith(NAMED))
    name = (names or ["ppo_trainer"])[-1]
    return ComposeInput(folder, name, overrides, {"version_base": None})


def type_faults(defaults: Any, config: Any, overrides: Sequence[Override]) -> list[Fault]:  # noqa: ANN401 - the same
    """Compare the values' types with the defaults': hydra itself accepts a text for a number."""
    select = importlib.import_module("omegaconf").OmegaConf.select
    faults = []
    for override in overrides:
        before = select(defaults, override.key, throw_on_missing=False)
        fault = type_fault(override.key, before, select(config, override.key))
        if fault is not None:
            faults.append(fault)
    return faults


def steps(verl: Verl, config: Any, case: Case) -> list[Fault]:  # noqa: ANN401 - the same
    """Run its main program's steps up to the workers, with its own functions."""
    is_fully_async = case.module.startswith(FULLY_ASYNC)
    if is_fully_async:
        for key in ("nnodes", "n_gpus_per_node"):
            config.actor_rollout_ref.rollout[key] = config.rollout[key]
    if MIGRATION in verl.program:
        loop = importlib.import_module("verl.experimental.reward_loop.reward_loop")
        config = getattr(loop, MIGRATION)(config)
    trainer = importlib.import_module("verl.trainer.ppo.ray_trainer")
    if is_fully_async:
        start_fully_async(verl.ray, config, trainer)
        generates = config.rollout.nnodes * config.rollout.n_gpus_per_node
        trains = config.trainer.nnodes * config.trainer.n_gpus_per_node
        return rules(config, generates, queue=False, ranks=(trains, trains))
    validate(config, trainer)
    queue = "tq.init" in verl.program
    if queue:
        backend = config.transfer_queue.backend.SimpleStorage
        for number in range(1 + backend.num_data_storage_units):
            node = number % len(case.nodes)
            verl.ray.cluster.place_on(node, {"CPU": 1}, "a process of TransferQueue with 1 CPU")
        verl.ray.cluster.start_small("TaskRunner")
    else:
        verl.ray.cluster.place({"CPU": 1}, "TaskRunner with 1 CPU")
    nodes, gpus = config.trainer.nnodes, config.trainer.n_gpus_per_node
    manager = trainer.ResourcePoolManager({"global_pool": [gpus] * nodes}, {})
    manager.create_resource_pool()
    for pool in manager.resource_pool_dict.values():
        groups = pool.get_placement_groups()
        if config.actor_rollout_ref.rollout.mode == "async" and verl.server_has_cpu:
            size = config.actor_rollout_ref.rollout.tensor_model_parallel_size
            start_servers(verl.ray.cluster, groups, max(1, gpus // size))
    engines = start_separate(config, trainer) if is_separate(config) else nodes * gpus
    ranks = copies(config, nodes * gpus, trainer)
    return rules(config, engines, queue=queue, ranks=ranks)


def is_separate(config: Any) -> bool:  # noqa: ANN401 - the same
    """Return whether its engines have GPUs of their own (0.9)."""
    modes = config.trainer.get("v1") or {}
    return bool(modes.get("trainer_mode") == "separate_async")


class ReachedError(Exception):
    """Verl's own checks of a trainer are over: what follows needs GPUs."""


def start_separate(config: Any, trainer: Any) -> int:  # noqa: ANN401 - the same
    """Run the assertions of its trainer, and place the engines; return the GPUs of these."""
    module = importlib.import_module("verl.trainer.ppo.v1.trainer_separate_async")

    def reached(*_: object) -> None:
        raise ReachedError

    own = module.PPOTrainer.__init__
    module.PPOTrainer.__init__ = reached
    try:
        with contextlib.suppress(ReachedError):
            module.PPOTrainerSeparateAsync(config)
    finally:
        module.PPOTrainer.__init__ = own

    return place_engines(config, trainer)


def start_fully_async(ray: ModelledRay, config: Any, trainer: Any) -> None:  # noqa: ANN401 - the same
    """Run the assertions of its two sides, and place all its processes in its program's order."""
    ray.cluster.place({"CPU": 1}, "FullyAsyncTaskRunner with 1 CPU")
    roles: dict[str, Any] = {"role_worker_mapping": {}, "resource_pool_manager": None}
    start_side("FullyAsyncTrainer", "Tracking", config, roles)
    place_pool(trainer, [config.trainer.n_gpus_per_node] * config.trainer.nnodes)
    start_side("FullyAsyncRollouter", "ValidationGenerationsLogger", config, {})
    place_engines(config, trainer)
    importlib.import_module(f"{FULLY_ASYNC}.message_queue").MessageQueue.remote()


def start_side(name: str, last: str, config: Any, roles: dict[str, Any]) -> None:  # noqa: ANN401 - the same
    """Place one side's actor, and run its own `__init__` until it calls what needs more than it."""
    stem = name.removeprefix("FullyAsync").lower()
    module = importlib.import_module(f"{FULLY_ASYNC}.fully_async_{stem}")
    side = getattr(module, name)
    side.remote()

    def reached(*_: object, **_named: object) -> None:
        raise ReachedError

    own = getattr(module, last)
    setattr(module, last, reached)
    try:
        side.what(config=config, tokenizer=None, device_name="cuda", **roles)
    except ReachedError:
        return
    finally:
        setattr(module, last, own)
    raise RuntimeError(f"{name} did not reach {last}")


def place_pool(trainer: Any, gpus: list[int], **how: Any) -> None:  # noqa: ANN401 - the same
    """Place a pool of so many GPUs on each of some nodes."""
    manager = trainer.ResourcePoolManager({"pool": gpus}, None, **how)
    manager.create_resource_pool()
    for pool in manager.resource_pool_dict.values():
        pool.get_placement_groups()


def place_engines(config: Any, trainer: Any) -> int:  # noqa: ANN401 - the same
    """Place engines with GPUs of their own; return their GPUs.

    Each engine gets a pool of its own, as `RolloutReplica.init_standalone` makes it.
    """
    rollout = config.actor_rollout_ref.rollout
    total = rollout.nnodes * rollout.n_gpus_per_node
    size = rollout.tensor_model_parallel_size
    each = min(size, rollout.n_gpus_per_node)
    for _ in range(total // size):
        place_pool(trainer, [each] * (size // each), max_colocate_count=2)
    return int(total)


def copies(config: Any, world: int, trainer: Any) -> tuple[int, int]:  # noqa: ANN401 - the same
    """Return what divides the answers of a step and of an update: GPUs, or Megatron's copies.

    Without `_get_dp_size`, up to 0.6, a step is divided over all GPUs.
    """
    actor = config.actor_rollout_ref.actor
    if actor.strategy != "megatron":
        return world, world
    size = actor.megatron
    one = size.tensor_model_parallel_size * size.pipeline_model_parallel_size
    ranks, rest = divmod(world, one * size.context_parallel_size)
    if rest:
        raise AssertionError(f"{world} GPUs are no multiple of a copy's")
    return ranks if hasattr(trainer.RayPPOTrainer, "_get_dp_size") else world, ranks


def validate(config: Any, trainer: Any) -> None:  # noqa: ANN401 - the same
    """Run verl's validation: a function from 0.6 on, in 0.5 a method of its trainer."""
    actor = config.actor_rollout_ref.actor
    reference = bool(actor.use_kl_loss or config.algorithm.use_kl_in_reward)
    method = getattr(trainer.RayPPOTrainer, "_validate_config", None)
    if method is None:
        critic = bool(importlib.import_module("verl.trainer.ppo.utils").need_critic(config))
        importlib.import_module("verl.utils.config").validate_config(config, reference, critic)
    else:
        gae = config.algorithm.adv_estimator == "gae"
        method(SimpleNamespace(config=config, use_reference_policy=reference, use_critic=gae))


def start_servers(cluster: Cluster, groups: Sequence[PlacedGroup], each: int) -> None:
    """Start the engines' servers, which are bound to their engines' nodes, outside the groups."""
    for group in groups:
        for _ in range(each):
            cluster.place_on(group.group.where[0], {"CPU": 1}, "a vLLM server with 1 CPU")


def rules(
    config: Any,  # noqa: ANN401 - the same
    world: int,
    *,
    queue: bool,
    ranks: tuple[int, int] | None = None,
) -> list[Fault]:
    """Check the rules that otherwise only its workers would check; `world` generates."""
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    faults = []
    of_step, of_update = ranks or (world, world)
    if world % rollout.tensor_model_parallel_size:
        size = rollout.tensor_model_parallel_size
        faults.append(Fault("refused", f"{world} GPUs do not make engines of {size}"))
    if config.data.train_batch_size * rollout.n % of_step and not (queue and actor.use_dynamic_bsz):
        what = f"a batch of {config.data.train_batch_size} x {rollout.n} for {of_step} ranks"
        faults.append(Fault("refused", what))
    if actor.ppo_mini_batch_size * rollout.n % of_update:
        what = f"a mini batch of {actor.ppo_mini_batch_size} x {rollout.n} for {of_update} ranks"
        faults.append(Fault("refused", what))
    if config.data.train_batch_size % actor.ppo_mini_batch_size:
        what = f"{config.data.train_batch_size} is no multiple of {actor.ppo_mini_batch_size}"
        faults.append(Fault("ignored", f"mini batches do not fill the batch: {what}"))
    loops = rollout.agent.num_workers if rollout.mode == "async" and not queue else 1
    if config.data.train_batch_size * rollout.n % loops:
        what = f"a batch of {config.data.train_batch_size} x {rollout.n} for {loops} agent loops"
        faults.append(Fault("refused", what))
    return faults


if __name__ == "__main__":
    answer(judge)
