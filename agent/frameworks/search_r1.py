"""Search-R1: PPO and GRPO on questions whose answers the model searches for.

A frozen fork of verl: search_r1.toml has what the command sets; this module computes the quantities
that the table names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.frameworks.arguments import GivenKeys, merged, quoted, read, texts
from agent.frameworks.layouts import (
    FSDP_RESIDENT,
    SEARCH_R1_OFFLOAD,
    SEARCH_R1_OPTIMIZER,
    Layout,
    Split,
)
from agent.frameworks.layouts import SEARCH_R1 as LAYOUTS
from agent.frameworks.recipe import (
    Command,
    MisfitError,
    check_multiple,
    critic_warnings,
    engines_text,
    nearest,
)
from agent.frameworks.sizing import Host, Sizing, Workload, sizing_for
from agent.frameworks.table import read_table
from agent.frameworks.verl import run_facts
from agent.frameworks.verl_keys import (
    ACTOR,
    CRITIC_MODEL,
    MINI_BATCH,
    ROLLOUT,
    SHARE,
    TENSOR_PARALLEL,
    TRAIN_BATCH,
)
from agent.frameworks.verl_memory import MEMORY_KEYS
from agent.frameworks.verl_placement import Placement, groups_of

if TYPE_CHECKING:
    from agent.frameworks.arguments import Override
    from agent.frameworks.recipe import RecipeInput
    from agent.frameworks.table import Facts

SEARCH_R1 = read_table("search_r1")
FRAMEWORK = SEARCH_R1.framework
VERSIONS = SEARCH_R1.versions
ABOUT = SEARCH_R1.about
PRESETS = SEARCH_R1.presets

_MICRO_BATCH = f"{ACTOR}.ppo_micro_batch_size"
_CRITIC_MICRO_BATCH = "critic.ppo_micro_batch_size"
_LOG_PROB_BATCHES = tuple(
    f"{part}.log_prob_micro_batch_size" for part in (ROLLOUT, "actor_rollout_ref.ref")
)
_RETRIEVER_KEY = "retriever.url"
_RETRIEVER = "http://{head_ip}:8000/retrieve"
_MINI_NEAR = 256

_AGENTS = 5  # Answers to each prompt that GRPO compares


class _Authors(Value):
    """What its authors choose by a model's size, for PPO and for GRPO."""

    least: float  # Parameters from which it applies
    rate: str = ""  # The actor's learning rate; '' for the default, 1e-6
    ppo: Layout = FSDP_RESIDENT
    grpo: Layout = FSDP_RESIDENT
    ppo_samples: tuple[int, int] = (4, 8)
    """Samples of each GPU at once: in an update, and for log-probabilities."""
    grpo_samples: tuple[int, int] = (4, 8)
    share: float = 0.6  # Of each GPU for engines


_BY_SIZE = (
    _Authors(
        least=60e9,
        rate="1e-7",
        ppo=SEARCH_R1_OFFLOAD,
        grpo=SEARCH_R1_OFFLOAD,
        ppo_samples=(1, 1),
        grpo_samples=(1, 1),
        share=0.5,
    ),
    _Authors(
        least=25e9,
        rate="2e-7",
        ppo=SEARCH_R1_OPTIMIZER,
        ppo_samples=(1, 1),
        grpo_samples=(2, 4),
        share=0.5,
    ),
    _Authors(least=0),
)
"""Their scripts for 72B (GRPO only), for 32B, and for 3B to 8B on several nodes."""
_LENGTHS = (("data.max_prompt_length", 4096), ("data.max_response_length", 500))


def make(asked: RecipeInput) -> Command:
    """Make the command for the nodes that joined."""
    users = [_checked(read(argument)) for argument in asked.args]
    given = GivenKeys.of(users, SEARCH_R1.newest)

    # What fits the nodes: layout by memory, groups of GPUs, then batches.
    sizing = _sizing(asked, given)
    tensor_parallel = sizing.tensor_parallel
    groups = groups_of(asked.nodes, tensor_parallel, given)
    placement = Placement(groups, tensor_parallel)
    cpu_notes = placement.check(asked.nodes)
    samples = _samples(asked, given, sizing)
    grpo = asked.recipe == "search-r1-grpo"
    model = asked.basis.model
    batches, sizes = _batches(groups.total, samples, given, grpo=grpo)
    facts = {
        **{f"why_{name}": why for name, why in sizing.why.items()},
        "recipe": asked.recipe,
        "grpo": grpo,
        "ppo": not grpo,
        "train_data": texts(asked.train_data),
        "eval_data": texts(asked.eval_data) if asked.eval_data else "",
        "model": quoted(asked.model_path),
        "groups": groups.count,
        "gpus": groups.gpus,
        "total": groups.total,
        "tensor_parallel": tensor_parallel,
        **batches,
        "share": f"{sizing.share:g}",
        "offloads": sizing.layout.name == SEARCH_R1_OFFLOAD.name,
        "offloads_optimizer": sizing.layout.name == SEARCH_R1_OPTIMIZER.name,
        "rate": _authors_of(asked).rate if model is not None else "",
        "billions": "" if model is None else model.billions,
        "retriever": quoted(_RETRIEVER),
        **run_facts(asked),
    }
    arguments, why = merged(SEARCH_R1.rows(asked.version, facts), users)

    # What should the user know about this command?
    url = given.get(_RETRIEVER_KEY, _RETRIEVER)
    notes = [
        "Search-R1 cannot resume: it saves models, and every attempt starts at step 0",
        f"its main task asks {url}: AGENT_SERVICES starts a retrieval server",
        "it scores by exact match, and only rows with a known data_source (nq, hotpotqa, …)",
    ]
    if not asked.eval_data:
        notes.append("no AGENT_EVAL_DATA: the evaluation after the last step uses training data")

    warnings = list(sizing.warnings)
    if not grpo:
        warnings += critic_warnings(asked, CRITIC_MODEL, given.get(CRITIC_MODEL, ""))

    engines = engines_text(groups.total, groups.total // tensor_parallel, tensor_parallel)
    return Command(
        argv=(asked.python, "-m", "verl.trainer.main_ppo", *arguments),
        env={
            "HYDRA_FULL_ERROR": "1",
            "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
            "VLLM_ATTENTION_BACKEND": "XFORMERS",
        },
        why=why,
        notes=(f"{engines}; {sizes}", *cpu_notes, *notes, *sizing.notes),
        warnings=tuple(warnings),
    )


def _authors_of(asked: RecipeInput) -> _Authors:
    model = asked.basis.model
    parameters = 0 if model is None else model.parameters
    return next(authors for authors in _BY_SIZE if parameters >= authors.least)


def _sizing(asked: RecipeInput, given: GivenKeys) -> Sizing:
    """Size the models and the engines, which share all GPUs.

    Its authors' layout is preferred: on one node everything is offloaded, else by the model's size.
    The others are tried where the nodes' memory does not suffice for it.
    """
    is_ppo = asked.recipe == "search-r1-ppo"
    authors = _authors_of(asked)
    preferred = authors.ppo if is_ppo else authors.grpo
    if len(asked.gpu_nodes) == 1:
        preferred = SEARCH_R1_OFFLOAD
    first = LAYOUTS.index(preferred)

    # The reference is offloaded with everything else; a saved model is gathered in float32.
    load = Workload(
        layouts=(*LAYOUTS[first:], *reversed(LAYOUTS[:first])),
        tokens=_longest(given),
        trained=2 if is_ppo else 1,
        frozen=1,
        share=authors.share,
        own_share=given.fraction(SHARE),
        tensor_parallel=given.whole(TENSOR_PARALLEL),
        in_nodes=Host(
            frozen=Split(2 if preferred is SEARCH_R1_OFFLOAD else 0),
            loading=4,
            loads_tied=True,
            gathered=4,
            keeps_engines=True,
        ),
    )
    return sizing_for(asked, given.begin(*MEMORY_KEYS), load)


def _longest(given: GivenKeys) -> int:
    return sum(given.whole(key) or default for key, default in _LENGTHS)


def _checked(override: Override) -> Override:
    """Refuse a key that its configuration does not have."""
    sections = SEARCH_R1.sections("fsdp", ())
    root, _, rest = override.key.partition(".")
    known = root in sections[""] and (root != "trainer" or rest.split(".")[0] in sections[root])
    if not known and override.prefix not in {"+", "++"}:
        what = f"AGENT_JOB_ARGS: {override.key}: Search-R1 has no such key"
        raise MisfitError(f"{what}; +{override.key} would add one")
    return override


def _samples(asked: RecipeInput, given: GivenKeys, sizing: Sizing) -> tuple[int, int]:
    """Return the samples of a GPU in an update, and for log-probabilities, by its memory.

    They are its authors', or half as many as often as the longest ones do not fit.
    """
    authors = _authors_of(asked)
    longest = _longest(given)
    wanted = authors.ppo_samples if asked.recipe == "search-r1-ppo" else authors.grpo_samples
    if not sizing.tokens:  # the model's size is not known
        return wanted
    update, log_prob = wanted
    while update > 1 and update * longest > sizing.tokens:
        update //= 2
    while log_prob > 1 and log_prob * longest > sizing.forward:
        log_prob //= 2
    return update, log_prob


def _batches(
    gpus: int, samples: tuple[int, int], given: GivenKeys, *, grpo: bool
) -> tuple[Facts, str]:
    """Return the facts about batches near its authors' 512 and 256, and their arithmetic.

    The GPUs divide the prompts of a step, of an update, and of a micro batch over all GPUs.
    """
    # The user's sizes, else the nearest to its authors'.
    unit = 4 * gpus if 4 * gpus <= _MINI_NEAR else gpus
    mini = given.whole(MINI_BATCH) or nearest(_MINI_NEAR, unit)
    train = given.whole(TRAIN_BATCH) or 2 * mini
    at_once, log_probs_at_once = samples
    largest = max(part for part in range(1, at_once + 1) if mini // gpus % part == 0)
    micro = given.whole(_MICRO_BATCH) or largest * gpus
    answers = train * (given.whole(f"{ROLLOUT}.n_agent") or (_AGENTS if grpo else 1))
    critic = given.whole(_CRITIC_MICRO_BATCH) or gpus

    # Do the GPUs divide all of them, and the smaller ones the larger?
    log_prob = ((key, given.whole(key) or gpus) for key in _LOG_PROB_BATCHES)
    parts = (_MICRO_BATCH, micro), (_CRITIC_MICRO_BATCH, critic)
    for key, value in (
        (TRAIN_BATCH, answers),
        (MINI_BATCH, mini),
        *parts,
        *log_prob,
    ):
        check_multiple(key, value, gpus)
    check_multiple(TRAIN_BATCH, train, mini)
    for _, size in parts:
        check_multiple(MINI_BATCH, mini, size)

    facts = {
        "train_batch": train,
        "mini_batch": mini,
        "micro_batch": micro,
        "micro_batch_of_gpu": micro // gpus,
        "log_prob_batch": log_probs_at_once * gpus,
        "log_prob_batch_of_gpu": log_probs_at_once,
    }
    return facts, f"batch {train} = {train // mini} × {mini}"
