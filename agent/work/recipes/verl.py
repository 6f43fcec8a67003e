"""verl: GRPO and PPO by `verl.trainer.main_ppo`, which hydra configures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.value import Value
from agent.work.recipes.arguments import Override, merge, quoted, read, texts, whole
from agent.work.recipes.recipe import Command, MisfitError, RecipeInput, Version, count_of
from agent.work.recipes.verl_keys import chooses_another_tree, complaint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.work.recipes.recipe import NodeSize


STORES = 8
"""TransferQueue's processes that hold data, by default; one CPU each."""
_BATCH, _MINI_BATCH = 1024, 256
_TENSOR_PARALLEL = "AGENT_TENSOR_PARALLEL"


class VerlGroups(Value):
    """Into how many groups of how many GPUs the nodes are cut."""

    count: int
    gpus: int

    @property
    def total(self) -> int:
        """Return how many GPUs train."""
        return self.count * self.gpus


def groups(
    nodes: tuple[NodeSize, ...],
    tensor_parallel: int,
    *,
    count: int | None = None,
    gpus: int | None = None,
) -> VerlGroups:
    """Cut the nodes into equal groups; a user's own `count` and `gpus` are checked."""
    sizes = [node.gpus for node in nodes if node.gpus]
    if not sizes:
        raise MisfitError(f"it trains on GPUs, and none of {len(nodes)} nodes has one")
    if tensor_parallel > sum(sizes):
        raise MisfitError(
            f"{_TENSOR_PARALLEL}={tensor_parallel} is more than the {sum(sizes)} GPUs that joined"
        )
    even = min(sizes) == max(sizes)
    if gpus is None and even:
        gpus = sizes[0]
    if gpus is None:
        candidates = [size for size in range(1, max(sizes) + 1) if size % tensor_parallel == 0]
        candidates = [size for size in candidates if _places(sizes, size) >= (count or 1)]
        if not candidates:
            raise MisfitError(
                f"no node of {_named(sizes)} holds an engine of {tensor_parallel} GPUs"
                + (f" {count} times" if count else "")
                + f": set {_TENSOR_PARALLEL} to {_divisors_of(max(sizes))}"
            )
        gpus = max(candidates, key=lambda size: ((count or _places(sizes, size)) * size, size))
    places = _places(sizes, gpus)
    if (count or 1) > places:
        raise MisfitError(
            f"trainer.nnodes={count or 1} groups of {gpus} GPUs, each on one node, do not fit on "
            f"nodes of {_named(sizes)} GPUs, which hold {places}: verl would wait without end"
        )
    cut = VerlGroups(count or places, gpus)
    _check_engines(cut, tensor_parallel, whole_nodes=even and gpus == sizes[0])
    return cut


def _check_engines(cut: VerlGroups, tensor_parallel: int, *, whole_nodes: bool) -> None:
    if cut.gpus % tensor_parallel == 0:
        return
    spans = tensor_parallel % cut.gpus == 0 and cut.total % tensor_parallel == 0 and whole_nodes
    if not spans:
        raise MisfitError(
            f"{_TENSOR_PARALLEL}={tensor_parallel} does not divide the {cut.gpus} GPUs of a node: "
            f"an engine would lie across parts of nodes; {_divisors_of(cut.gpus)} fits"
        )


def _places(sizes: Iterable[int], gpus: int) -> int:
    return sum(size // gpus for size in sizes)


def _named(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))


def _divisors_of(number: int) -> str:
    found = [str(part) for part in range(1, number + 1) if number % part == 0]
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}"


def arithmetic(cut: VerlGroups, tensor_parallel: int) -> str:
    """Say how many engines there are, as `16 GPUs = 8 engines × 2`."""
    engines = cut.total // tensor_parallel
    return f"{count_of(cut.total, 'GPU')} = {count_of(engines, 'engine')} × {tensor_parallel}"


class VerlBatches(Value):
    """The prompts of a step, and of one update within it."""

    train: int
    mini: int


class BatchRules(Value):
    """What verl asserts of batches: the samples of each are dealt out in equal parts."""

    gpus: int
    samples: int
    """Answers to each prompt (`rollout.n`)."""
    loops: int = 1
    """Agent-loop workers that take equal parts of a step; 1 where they need not be equal."""

    def mini_fits(self, mini: int) -> bool:
        """Tell whether an update's samples can be dealt to all GPUs."""
        return mini * self.samples % self.gpus == 0

    def train_fits(self, train: int) -> bool:
        """Tell whether a step's samples can be dealt to all GPUs and all agent-loop workers."""
        samples = train * self.samples
        return samples % self.gpus == 0 and samples % self.loops == 0

    def fit(self, train: int | None = None, mini: int | None = None) -> VerlBatches:
        """Return batches near verl's own 1024 and 256, or near what the user gave of the two."""
        if train is not None and not self.train_fits(train):
            raise MisfitError(self._refusal("data.train_batch_size", train, self.train_fits))
        if mini is not None and not self.mini_fits(mini):
            raise MisfitError(self._refusal(_MINI_KEY, mini, self.mini_fits))
        if train is not None and mini is not None:
            if train % mini:
                raise MisfitError(
                    f"data.train_batch_size={train} is no multiple of {_MINI_KEY}={mini}"
                )
            return VerlBatches(train, mini)
        if train is not None:
            parts = (part for part in range(1, train + 1) if train % part == 0)
            return VerlBatches(train, nearest(train / 4, filter(self.mini_fits, parts)))
        if mini is not None:
            steps = range(mini, (_BATCH // mini + self.loops + 1) * mini + 1, mini)
            return VerlBatches(nearest(_BATCH, filter(self.train_fits, steps)), mini)
        share = range(self.gpus, _MINI_BATCH + (self.loops + 1) * self.gpus, self.gpus)
        mini = nearest(_MINI_BATCH, (part for part in share if self.train_fits(4 * part)))
        return VerlBatches(4 * mini, mini)

    def _refusal(self, key: str, value: int, fits: Callable[[int], bool]) -> str:
        near = range(1, value + self.gpus * self.loops + 1)
        loops = f" and {self.loops} agent loops" if self.loops > 1 else ""
        return (
            f"{key}={value} × {self.samples} answers cannot be dealt out evenly to {self.gpus} GPUs"
            f"{loops}: {nearest(value, filter(fits, near))} would do"
        )


_MINI_KEY = "actor_rollout_ref.actor.ppo_mini_batch_size"


def nearest(aim: float, numbers: Iterable[int]) -> int:
    """Return the number next to the aim, the larger of two that are as near."""
    return min(numbers, key=lambda number: (abs(number - aim), -number))


class Placement(Value):
    """What a version of verl starts on the nodes, as far as it takes CPUs."""

    version: Version
    cut: VerlGroups
    tensor_parallel: int
    served: bool = True
    """Whether engines are servers of their own, as in verl's asynchronous rollout."""
    stores: int = STORES
    name: str = "verl"
    main: str = "TaskRunner"
    """The process that directs the others, as a person knows it."""

    @property
    def _queue(self) -> bool:
        return self.version >= (0, 9)

    def needs(self, node: NodeSize, nodes: tuple[NodeSize, ...]) -> dict[str, int]:
        """Return for what a node needs how many CPUs."""
        groups_here = min(node.gpus // self.cut.gpus, self.cut.count)
        each = 3 if self.version >= (0, 7) else 1
        needs = {}
        if groups_here:
            gpus = groups_here * self.cut.gpus
            needs[f"{count_of(gpus, 'GPU')} × {each}"] = gpus * each
        if groups_here and self.served and self.version < (0, 7, 1):
            # up to 0.7.0 each engine's server takes a CPU on its node, beside the groups
            engines = groups_here * max(1, self.cut.gpus // self.tensor_parallel)
            needs[count_of(engines, "engine")] = engines
        if self._queue and self.stores:
            here = -(-self.stores // len(nodes))
            needs[f"{here} of TransferQueue's {self.stores} stores"] = here
        # Ray leaves what needs no GPU to nodes without one, where there are any with CPUs
        quiet = [other for other in nodes if not other.gpus and other.cpus != 0]
        if node in (quiet or [other for other in nodes if other.cpus != 0]):
            needs["TransferQueue's controller" if self._queue else self.main] = 1
        return needs

    def cpus(self, node: NodeSize, nodes: tuple[NodeSize, ...]) -> int:
        """Return how many CPUs a node needs."""
        return sum(self.needs(node, nodes).values())

    def fewer_stores(self, nodes: tuple[NodeSize, ...]) -> int:
        """Return how many of TransferQueue's stores find a CPU, at most verl's own number."""
        if not self._queue:
            return 0
        bare = replace(self, stores=0)
        known = [(node.cpus, bare.cpus(node, nodes)) for node in nodes]
        spare = [cpus - taken for cpus, taken in known if cpus is not None]
        fitting = min(spare, default=STORES) * len(nodes)
        return min(STORES, fitting) if fitting > 0 else STORES

    def missing(self, nodes: tuple[NodeSize, ...]) -> str:
        """Say which nodes have too few CPUs for what would be put there; '' where none has."""
        short = []
        for index, node in enumerate(nodes):
            needs = self.needs(node, nodes)
            total = self.cpus(node, nodes)
            if node.cpus is not None and node.cpus < total:
                name = f"node {index + 1}" if index else "the head"
                what = " + ".join(needs)
                short.append(f"{name} has {node.cpus} of {total} CPUs ({what})")
        if not short:
            return ""
        return (
            f"{self.name} would wait without end for CPUs: {'; '.join(short)}. Ray only counts "
            "CPUs: AGENT_NUM_CPUS on such a node says that it has more"
        )

    def unknown(self, nodes: tuple[NodeSize, ...]) -> Iterable[str]:
        """Say how many CPUs are needed, where it is not known how many there are."""
        if any(node.cpus is None for node in nodes):
            most = max(self.cpus(node, nodes) for node in nodes)
            yield f"a node needs up to {most} CPUs, and how many they have is not known here"


VERSIONS: tuple[Version, ...] = ((0, 6, 1), (0, 7, 0), (0, 7, 1), (0, 8, 0), (0, 9, 1))
ABOUT = "verl: GRPO or PPO with vLLM rollouts; the reward is verl's own, or a server's"

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_TRAIN_BATCH, _MINI_BATCH_KEY = "data.train_batch_size", f"{_ACTOR}.ppo_mini_batch_size"
_NODES, _GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
_TENSOR_PARALLEL_KEY = f"{_ROLLOUT}.tensor_model_parallel_size"
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


def make(asked: RecipeInput) -> Command:
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
        notes=(*sizes.notes(), *_missing_data_notes(asked)),
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

    def __init__(self, asked: RecipeInput, given: Mapping[str, str]) -> None:
        self._asked = asked
        self._version = asked.version
        self._grpo = asked.recipe == "verl-grpo"
        self._tensor = whole(given, _TENSOR_PARALLEL_KEY) or asked.tensor_parallel
        self._samples = whole(given, _SAMPLES) or (_GROUP_SIZE if self._grpo else 1)
        self._cut = groups(
            asked.nodes, self._tensor, count=whole(given, _NODES), gpus=whole(given, _GPUS)
        )
        loops = whole(given, _LOOPS) or _AGENT_LOOPS
        rules = BatchRules(self._cut.total, self._samples, loops if self._version < (0, 9) else 1)
        self._batches = rules.fit(whole(given, _TRAIN_BATCH), whole(given, _MINI_BATCH_KEY))
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
        yield _set(_TENSOR_PARALLEL_KEY, self._tensor), f"AGENT_TENSOR_PARALLEL; {self._engines()}"
        answers = (
            "GRPO compares the answers to one prompt" if self._grpo else "PPO needs one answer"
        )
        yield _set(_SAMPLES, self._samples), answers
        dealt = f"× {self._samples} answers it can be dealt out to {cut.total} GPUs"
        rows = f"the data needs at least {batches.train} rows"
        yield _set(_TRAIN_BATCH, batches.train), f"near 1024, and {dealt}; {rows}"
        yield _set(_MINI_BATCH_KEY, batches.mini), f"near 256, a part of the batch, and {dealt}"
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


def _what(asked: RecipeInput) -> Iterable[tuple[Override, str]]:
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


def _reward(asked: RecipeInput, given: Mapping[str, str]) -> Iterable[tuple[Override, str]]:
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


def _rest(asked: RecipeInput) -> Iterable[tuple[Override, str]]:
    """Give how it is logged and saved."""
    logger = '["console","wandb"]' if asked.wandb else '["console"]'
    yield _set("trainer.logger", logger), "WANDB_API_KEY" if asked.wandb else "no WANDB_API_KEY"
    yield _set("trainer.project_name", quoted(asked.recipe)), "the recipe's name"
    yield _set("trainer.experiment_name", quoted(_last_word(asked.model))), "the model's name"
    yield _set("trainer.default_local_dir", quoted(asked.checkpoints)), "AGENT_CHECKPOINTS"
    yield _set("trainer.save_freq", _EVERY), f"verl's default is -1: never; every {_EVERY} steps"
    yield _set("trainer.resume_mode", "auto"), "goes on from the last checkpoint there is"


def _missing_data_notes(asked: RecipeInput) -> Iterable[str]:
    if not asked.scores:
        yield (
            "verl scores by the data_source of each row, and refuses one that it does not know: "
            "AGENT_REWARD has a server score instead"
        )
    if not asked.eval_data:
        yield "no AGENT_EVAL_DATA: it is trained, and never evaluated"
    if asked.version >= (0, 9):
        yield "verl 0.9 needs the packages TransferQueue and orjson, which it does not ask pip for"


def _awaits(asked: RecipeInput) -> bool:
    return asked.scores and asked.version < (0, 7)


def _set(key: str, value: object) -> Override:
    return Override(key, str(value))


def _last_word(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1] or path
