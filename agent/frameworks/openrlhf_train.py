"""OpenRLHF by torchrun: SFT, reward model and DPO, one process a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.frameworks import openrlhf
from agent.frameworks.arguments import check_named_columns
from agent.frameworks.layouts import OPENRLHF_TRAIN, ZERO3
from agent.frameworks.pace import StepWork
from agent.frameworks.recipe import WEIGHT, MisfitError, count_of, gpu_processes
from agent.frameworks.sizing import Host, Workload, sizing_for

if TYPE_CHECKING:
    from agent.frameworks.arguments import Arguments
    from agent.frameworks.recipe import Command, RecipeInput

FRAMEWORK = openrlhf.FRAMEWORK
VERSIONS = openrlhf.VERSIONS
ABOUT = "SFT, a reward model or DPO with DeepSpeed, one process a GPU, by torchrun"

PRESETS = openrlhf.PRESETS

_IN_PAIRS = {"rm", "dpo"}  # A sample is two answers, in one pass
_ALL_ROWS = 100_000_000
_KEYS = ("data.input_key", "data.output_key", "data.chosen_key", "data.rejected_key")
_FILES = (".json", ".jsonl", ".csv", ".parquet", ".arrow")  # Data in one file has one split, train


def make(asked: RecipeInput) -> Command:
    """Make the command that torchrun runs on every node."""
    kind = asked.recipe.removeprefix("openrlhf-")
    module = f"train_{kind}"
    arguments = openrlhf.arguments_of(f"{module} of OpenRLHF", kind, asked)
    world = gpu_processes(asked.nodes)
    if not world:
        raise MisfitError("OpenRLHF trains on GPUs only, and no node has one")
    size, micro, ranks = openrlhf.train_batch(arguments, world, 256)

    # Model, data and batches.
    arguments.add("model.model_name_or_path", asked.model_path, why="AGENT_MODEL")
    arguments.add("data.dataset", asked.train_data, why="AGENT_TRAIN_DATA")
    _add_columns(arguments, asked)
    arguments.add("data.max_samples", _ALL_ROWS, why="the default drops what follows 1,000,000")
    arguments.add("data.max_len", 8192, why="longer texts are cut")
    if asked.eval_data:
        arguments.add("eval.dataset", asked.eval_data, why="AGENT_EVAL_DATA")
        if asked.eval_data.endswith(_FILES):
            arguments.add("eval.split", "train", why="the only split of a file")
    arguments.add("train.batch_size", size, why=f"fits {count_of(ranks, 'rank')}, nearest to 256")
    arguments.add("train.micro_batch_size", micro, why=openrlhf.LEAST)

    _add_adapters(arguments, asked)

    # Which layout fits? DPO has a reference, and a reward model one value in place of the logits.
    frozen = 1 if kind == "dpo" else 0
    longest = openrlhf.longest(arguments) * (2 if kind in _IN_PAIRS else 1)
    load = Workload(
        layouts=openrlhf.kept_layouts(asked, OPENRLHF_TRAIN, arguments),
        tokens=micro * longest,
        sequences=(arguments.count(openrlhf.RING),),
        frozen=frozen,
        unsized=ZERO3,
        logit=0 if kind == "rm" else openrlhf.LOGIT_IN_FLOAT32,
        in_nodes=Host(loading=WEIGHT * (1 + frozen), gathered=WEIGHT),
        adapters=bool(arguments.whole("ds.lora.rank")),
        rank=0 if asked.lora_rank is None else arguments.whole("ds.lora.rank"),
    )
    sizing = sizing_for(asked, arguments.changed(openrlhf.MEMORY), load)
    arguments.add("ds.packing_samples", why="samples are not padded")
    openrlhf.add_training(arguments, asked, sizing, "model")

    # Up to 0.8 an existing folder must contain a checkpoint, and OpenRLHF deletes other files in it
    # together with old checkpoints: so a folder that the first save creates.
    step = StepWork(size, longest, scored=frozen, generates=False, fit=sizing.fit)
    openrlhf.add_checkpoints(arguments, asked, 100, step, within="state")

    text = openrlhf.batch_text(size, micro, ranks)
    notes = (
        f"{count_of(world, 'GPU')} = {count_of(world, 'process')}; {text}",
        f"a batch needs data of at least {size} rows",
        openrlhf.SAME_GPUS,
        *_merge_notes(asked),
    )
    return openrlhf.command(module, arguments, asked, sizing, notes)


def _add_adapters(arguments: Arguments, asked: RecipeInput) -> None:
    """Train adapters as its script for them does, where AGENT_LORA_RANK is set."""
    rank = asked.lora_rank
    if rank is None:
        return
    arguments.add("ds.lora.rank", rank, why="AGENT_LORA_RANK")
    arguments.add("ds.lora.alpha", rank, why="as its script for adapters: as the rank")
    if asked.recipe == "openrlhf-sft":
        arguments.add("adam.lr", "5e-6", why="as its script for adapters")


def _merge_notes(asked: RecipeInput) -> tuple[str, ...]:
    """Return the command that merges adapters, since OpenRLHF saves them alone."""
    if asked.lora_rank is None:
        return ()
    folder = asked.checkpoints
    words = ["python3 -m openrlhf.cli.lora_combiner", f"--model_path {asked.model_path}"]
    words += [f"--lora_path {folder}/model", f"--output_path {folder}/merged"]
    if not openrlhf.OPENRLHF.has("param_dtype_is_a_flag", asked.version):
        words.append("--bf16")
    elif not openrlhf.OPENRLHF.has("flags_have_dots", asked.version):
        words.append("--param_dtype bf16")
    else:
        words.append("--ds.param_dtype bf16")
    if asked.recipe == "openrlhf-rm":
        words.append("--is_rm")
    return (f"the model of the end has adapters alone; this merges them: `{' '.join(words)}`",)


def _add_columns(arguments: Arguments, asked: RecipeInput) -> None:
    """Name the columns of the data, and apply the chat template unless they hold plain text."""
    columns = asked.columns or {}
    is_multiturn = arguments.supports("data.multiturn") and arguments.given("data.multiturn")
    whole_chats = "output" not in columns and columns.get("input", False)
    facts = {**openrlhf.kind_of(asked), "has_answers": not (whole_chats or is_multiturn)}
    arguments.add_all(openrlhf.OPENRLHF.rows(asked.version, facts))
    keys = [key for key in _KEYS if arguments.supports(key)]
    check_named_columns(arguments, asked, *keys)
    named = [arguments.word(key) for key in keys]
    if not columns or any(columns.get(name) for name in named):
        plain = arguments.text("data.apply_chat_template", left_out=True)
        arguments.add("data.apply_chat_template", why=f"for plain text: {plain}")
