"""OpenRLHF by torchrun: SFT, reward model and DPO, one process a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.work.recipes import openrlhf_parts as parts
from agent.work.recipes.arguments import Arguments, Program, known_flags
from agent.work.recipes.openrlhf_flags import DPO, DPO_DOTTED, KINDS, RM, RM_DOTTED, SFT, SFT_DOTTED
from agent.work.recipes.openrlhf_parts import train_batch
from agent.work.recipes.recipe import Command, MisfitError, count_of, gpu_processes

if TYPE_CHECKING:
    from agent.work.recipes.recipe import RecipeInput

VERSIONS = parts.VERSIONS
ABOUT = "SFT, a reward model or DPO with DeepSpeed, one process a GPU, by torchrun"

_PROGRAMS = {
    "openrlhf-sft": ("train_sft", SFT, SFT_DOTTED),
    "openrlhf-rm": ("train_rm", RM, RM_DOTTED),
    "openrlhf-dpo": ("train_dpo", DPO, DPO_DOTTED),
}
_FLAT = parts.FLAT | {
    "model.model_name_or_path": "pretrain",
    "model.gradient_checkpointing_enable": "gradient_checkpointing",
    "data.dataset": "dataset",
    "data.output_key": "output_key",
    "data.chosen_key": "chosen_key",
    "data.rejected_key": "rejected_key",
    "data.apply_chat_template": "apply_chat_template",
    "eval.split": "eval_split",
}
_FILES = (".json", ".jsonl", ".csv", ".parquet", ".arrow")
"""Data given as a file has one split, which is called train."""


def make(asked: RecipeInput) -> Command:
    """Make the command that torchrun gets on every node."""
    module, flat, dotted = _PROGRAMS[asked.recipe]
    is_dotted = asked.version >= parts.DOTTED
    program = Program(
        f"{module} of OpenRLHF {'.'.join(map(str, asked.version))}",
        known_flags(dotted if is_dotted else flat, asked.version),
        {} if is_dotted else _FLAT,
        KINDS,
    )
    arguments = Arguments(program, asked.args)
    world = gpu_processes(asked.nodes)
    if not world:
        raise MisfitError("OpenRLHF trains on GPUs only, and no node has one")
    batch = train_batch(arguments, world, 256)
    arguments.add("model.model_name_or_path", asked.model, why="AGENT_MODEL")
    _data(arguments, asked)
    ranks = count_of(batch.ranks, "rank")
    arguments.add("train.batch_size", batch.size, why=f"fits {ranks}; as near to 256 as that")
    arguments.add("train.micro_batch_size", batch.micro, why=parts.LEAST)
    parts.add_training(arguments, asked, "model")
    # Up to 0.8 a folder that exists must hold a checkpoint, and old ones are removed by deleting
    # what else lies beside them: so a folder of their own, which the first save makes.
    parts.add_checkpoints(arguments, asked, steps=100, within="state")
    return Command(
        (asked.python, "-m", f"openrlhf.cli.{module}", *arguments.argv()),
        {},
        arguments.why(),
        (
            f"{count_of(world, 'GPU')} = {count_of(world, 'process')}; {batch.told()}",
            f"data of fewer than {batch.size} rows fill no batch",
            parts.SAME_GPUS,
        ),
    )


def _data(arguments: Arguments, asked: RecipeInput) -> None:
    arguments.add("data.dataset", asked.train_data, why="AGENT_TRAIN_DATA")
    if asked.recipe == "openrlhf-sft":
        arguments.add("data.input_key", "input", why="where the prompt stands in each row")
        arguments.add("data.output_key", "output", why="where the answer stands in each row")
    else:
        arguments.add("data.chosen_key", "chosen", why="where the better answer stands in each row")
        arguments.add("data.rejected_key", "rejected", why="where the worse one stands")
        arguments.add(
            "data.apply_chat_template",
            why="answers are lists of messages; for plain text: "
            f"--no-{arguments.flag_text('data.apply_chat_template')[2:]}",
        )
    arguments.add("data.max_len", 4096)
    if asked.eval_data:
        arguments.add("eval.dataset", asked.eval_data, why="AGENT_EVAL_DATA")
        if asked.eval_data.endswith(_FILES):
            arguments.add("eval.split", "train", why="a file has this split only")
