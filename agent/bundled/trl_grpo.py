"""GRPO by TRL with rewards from a server, started by torchrun, on GPUs or CPUs.

TRL's own `trl grpo` cannot resume from a checkpoint, read a data file by its path or use a reward
server. This program needs only TRL (1.0 or newer) and rehearsal.py beside it, not the agent. Every
process requests the rewards of its own answers, and ends the job if the server stays down. On
SIGUSR1 to any process all save a checkpoint at the end of the step, and go on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib.util
import json
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent.bundled import rehearsal
else:  # by its path, since the agent's package may be missing in this Python
    _FILE = Path(__file__).with_name("rehearsal.py")
    _SPEC = importlib.util.spec_from_file_location("pod_agent_rehearsal", _FILE)
    rehearsal = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(rehearsal)

_SETTINGS_WRONG = 78
_BY_EPOCHS = -1  # steps
_AT_ONCE = 64  # answers per request: a server that needs a second for each still replies in time
_EFFICIENT_LOADING = "FSDP_CPU_RAM_EFFICIENT_LOADING"  # One process of a node loads, and sends
_FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
    _EFFICIENT_LOADING: "true",
}
_SHARDS: dict[str, dict[str, str]] = {
    "none": {},
    "fsdp": _FSDP,
    "offload": {**_FSDP, "FSDP_OFFLOAD_PARAMS": "true"},
}
"""What `accelerate launch` sets for TRL's own configuration fsdp2.yaml."""
_FILES = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}

_NO_DATA = "corresponds to no data"  # of datasets, for a file without rows (5.2)


class TrainerSetupError(Exception):
    """An error in the arguments, the data or the checkpoints."""


class FinishedAlreadyError(Exception):
    """The checkpoint has all steps; TRL would make one more."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of this program's arguments."""
    made = argparse.ArgumentParser(
        prog="trl_grpo",
        description=__doc__,
        usage=argparse.SUPPRESS,  # an error begins with what is wrong
        allow_abbrev=False,
    )
    add = made.add_argument

    # Model, data and reward.
    add("--model", required=True, help="Hugging Face id or path")
    add("--data", required=True, help="a .json, .jsonl, .csv or .parquet file, a folder, or an id")
    add("--split", default="train", help="split of the data, unless it is a file")
    add("--eval-data", default="", help="data to evaluate on")
    add("--eval-split", default="test", help="split of the evaluation data, unless it is a file")
    add("--prompt-key", default="input", help="column of the prompt: text or messages")
    add("--label-key", default="label", help="column of the right answer; '' for none")
    add("--chat", action="store_true", help="send a text prompt as the user message of a chat")
    add("--reward-url", required=True, help="URL of the reward server")
    add("--reward-seconds", type=float, default=1800.0, help="seconds for which it may be down")

    # Checkpoints and steps.
    add("--checkpoints", required=True, help="folder to save to and resume from")
    add("--save-steps", type=int, default=20)
    add("--save-total-limit", type=int, default=3)
    add("--eval-steps", type=int, default=20)
    add("--num-generations", type=int, default=8, help="answers to each prompt")
    add("--per-device-train-batch-size", type=int, default=8, help="answers of a process per step")
    add("--gradient-accumulation-steps", type=int, default=1)
    add("--max-completion-length", type=int, default=1024)
    add("--max-steps", type=int, default=_BY_EPOCHS, help="-1: by the epochs")
    add("--num-train-epochs", type=float, default=1.0)
    add("--learning-rate", type=float, default=1e-6)
    add("--temperature", type=float, default=1.0)
    add("--beta", type=float, default=0.0, help="weight of the KL term; 0: no reference model")
    add("--seed", type=int, default=42)
    add("--lora-rank", type=int, default=0, help="train adapters of this rank; 0: the whole model")
    add("--lora-alpha", type=int, default=32)

    # GPUs.
    engine = "GPUs of a vLLM engine; 0: no vLLM"
    add("--vllm-tensor-parallel-size", type=int, default=0, help=engine)
    add("--vllm-gpu-memory-utilization", type=float, default=0.3, help="vLLM's share of a GPU")
    add("--vllm-server", default="", help="URL of a vLLM server for TRL, which generates instead")
    add("--vllm-prompt-tokens", type=int, default=4096, help="longest prompt for vLLM")
    help_text = "fsdp: divide weights, gradients and optimizer; offload: in the host's memory too"
    add("--shard", choices=_SHARDS, default="none", help=help_text)
    add("--cpu", action="store_true", help="train on CPUs, by gloo")

    # The rest.
    add("--wandb", action="store_true", help="log to W&B, with the environment's WANDB_API_KEY")
    add("--run-name", default="", help="name of the run in W&B")
    add("--config", nargs="*", default=[], help="any other field of GRPOConfig: NAME=VALUE …")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Train to the end, or exit with the reason."""
    rehearsal.register_stacks()
    options = parser().parse_args(argv)
    os.environ.update(sharding_of(options))
    run: Callable[[argparse.Namespace], object] = train
    if "TORCHELASTIC_RUN_ID" in os.environ:  # write the first error to torchrun's error file
        with without_collections():
            from torch.distributed.elastic.multiprocessing.errors import record  # noqa: PLC0415

        run = record(train)
    try:
        run(options)
    except TrainerSetupError as error:
        print(f"trl_grpo: {error}", file=sys.stderr)
        return _SETTINGS_WRONG
    return 0


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Import without searches for garbage, a fifth of the time that torch and TRL take.

    What they make lives as long as the process, so that later searches leave it out.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def sharding_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment for accelerate.

    With a reference model every process loads both: TRL shards the reference as each process has
    it, and sends no weights to the processes that did not load them (`prepare_fsdp`, TRL 1.9).
    """
    environment = dict(_SHARDS[options.shard])
    if environment and options.beta:
        environment[_EFFICIENT_LOADING] = "false"
    return environment


def train(options: argparse.Namespace) -> None:
    """Load, resume and train; the final model is in the checkpoints' folder as `model`."""
    requested = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: requested.set())
    with without_collections():
        from transformers import PrinterCallback  # noqa: PLC0415 - seconds that --help need not take
        from trl import GRPOTrainer  # noqa: PLC0415 - as above

    # From which step?
    config = config_of(options)
    last = agreed(last_checkpoint(Path(options.checkpoints)))
    evaluated = None
    if options.eval_data:
        evaluated = prompts_of(options, options.eval_data, options.eval_split)
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=Rewards(options.reward_url, options.reward_seconds, options.label_key),
        args=config,
        train_dataset=prompts_of(options, options.data, options.split),
        eval_dataset=evaluated,
        peft_config=adapters_of(options),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_callback(requested, last))
    start = f"going on from {last}" if last else "no checkpoint yet: from step 0"
    if trainer.accelerator.is_main_process:
        print(f"{start}, {config.world_size} processes", flush=True)

    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    folder = Path(options.checkpoints)
    try:
        trainer.train(resume_from_checkpoint=last)
    except FinishedAlreadyError as finished:
        if trainer.accelerator.is_main_process:
            print(finished, flush=True)
        model = "adapters" if options.lora_rank and plugin is not None else "model"
        if all(of_all_processes(has_saved(folder / model, Path(last or "")))):
            return  # else all of them save, since they do so together

    # Save the whole model, not each process its own part.
    if plugin is not None:
        plugin.set_state_dict_type("FULL_STATE_DICT")
    if options.lora_rank:
        save_merged(trainer, folder, is_sharded=plugin is not None)
    else:
        trainer.save_model(str(folder / "model"))


def adapters_of(options: argparse.Namespace) -> Any:  # noqa: ANN401 - peft's LoraConfig
    """Return the configuration of adapters on all linear layers, or None."""
    if not options.lora_rank:
        return None
    if importlib.util.find_spec("peft") is None:
        raise TrainerSetupError("--lora-rank needs the package peft: pip install peft")
    return importlib.import_module("peft").LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def save_merged(trainer: Any, folder: Path, *, is_sharded: bool) -> None:  # noqa: ANN401 - TRL's own
    """Save the adapters as `adapters`, and the model with them merged as `model`.

    A sharded model is not merged: no process has all of it.
    """
    trainer.save_model(str(folder / "adapters"))
    if not trainer.accelerator.is_main_process:
        return
    if is_sharded:
        print(f"the model is sharded: {folder / 'adapters'} has the adapters, not merged")
        return
    merged = trainer.accelerator.unwrap_model(trainer.model).merge_and_unload()
    merged.save_pretrained(str(folder / "model"))
    trainer.processing_class.save_pretrained(str(folder / "model"))


def config_of(options: argparse.Namespace) -> Any:  # noqa: ANN401 - trl's GRPOConfig
    """Return TRL's configuration."""
    from trl import GRPOConfig  # noqa: PLC0415 - as above

    known = {field.name for field in dataclasses.fields(GRPOConfig)}
    fields = {name: value for name, value in vars(options).items() if name in known}
    fields |= {
        "output_dir": options.checkpoints,
        "logging_steps": 1,
        "disable_tqdm": True,
        "report_to": ["wandb"] if options.wandb else [],
        "run_name": options.run_name or None,
    }
    if options.cpu:
        fields |= {"use_cpu": True, "bf16": False, "ddp_backend": "gloo"}
    if options.eval_data:
        fields |= {"eval_strategy": "steps", "do_eval": True}
        fields |= {"per_device_eval_batch_size": options.num_generations}
    if options.vllm_server:
        del fields["vllm_tensor_parallel_size"]
        fields |= {"use_vllm": True, "vllm_mode": "server"}
        fields |= {"vllm_server_base_url": options.vllm_server}
    elif options.vllm_tensor_parallel_size:
        longest = options.vllm_prompt_tokens + options.max_completion_length
        fields |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}
        fields |= {"vllm_max_model_length": longest}
    else:
        del fields["vllm_tensor_parallel_size"]
    if (options.shard != "none" or options.lora_rank) and not options.cpu:
        # FSDP keeps float32 for the optimizer; every process loads half as much. Adapters are
        # float32 beside a base that is not trained.
        fields |= {"model_init_kwargs": {"dtype": "bfloat16"}}
    fields |= further(options.config, known)
    check_steps(options.max_steps, options.num_train_epochs)
    try:
        return GRPOConfig(**fields)
    except ValueError as error:
        raise TrainerSetupError(f"GRPOConfig: {error}") from error


def check_steps(steps: int, epochs: float) -> None:
    """Refuse a number of steps with which TRL would train one step, or by the epochs."""
    if steps != _BY_EPOCHS and steps <= 0:
        why = f"a positive number of steps, or {_BY_EPOCHS} for as many as the epochs have"
        raise TrainerSetupError(f"--max-steps {steps}: expected {why}")
    if steps == _BY_EPOCHS and epochs <= 0:
        raise TrainerSetupError(f"--num-train-epochs {epochs:g}: expected a positive number")


def further(pairs: Sequence[str], known: set[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE …`; a value is JSON if valid, else text."""
    read: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in known:
            raise TrainerSetupError(f"--config {pair}: expected NAME=VALUE, a field of GRPOConfig")
        try:
            read[name] = json.loads(text)
        except ValueError:
            read[name] = {"True": True, "False": False, "None": None}.get(text, text)
    return read


def prompts_of(options: argparse.Namespace, data: str, split: str) -> Any:  # noqa: ANN401 - a Dataset
    """Load the data and rename the prompt column for TRL."""
    rows = _load(data, split)
    wanted = [key for key in (options.prompt_key, options.label_key) if key]
    missing = [key for key in wanted if key not in rows.column_names]
    if missing:
        why = f"{data} has no column {' and no '.join(missing)}, only {rows.column_names}"
        raise TrainerSetupError(f"{why}: name them by --prompt-key and --label-key ('' for none)")
    if options.prompt_key != "prompt":
        if "prompt" in rows.column_names:
            rows = rows.remove_columns("prompt")
        rows = rows.rename_column(options.prompt_key, "prompt")
    if options.chat and rows.features["prompt"].dtype == "string":
        rows = rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    return rows


def _load(data: str, split: str) -> Any:  # noqa: ANN401 - a Dataset
    path = Path(data)
    is_file = path.suffix in _FILES
    if is_file and not path.is_file():
        raise TrainerSetupError(f"no file {data} on {os.uname().nodename}")
    no_rows = TrainerSetupError(f"{data} has no rows")
    if is_file and not path.stat().st_size:
        raise no_rows
    from datasets import load_dataset, load_from_disk  # noqa: PLC0415 - as above

    if is_file:
        try:
            return load_dataset(_FILES[path.suffix], data_files=data, split="train")
        except ValueError as error:
            if _NO_DATA in str(error):
                raise no_rows from error
            raise
    if (path / "state.json").is_file():
        return load_from_disk(data)
    return load_dataset(data, split=split)


def _callback(requested: threading.Event, last: str | None) -> Any:  # noqa: ANN401 - a TrainerCallback
    """Return a callback that prints one line per step, and saves at the end of a requested one.

    It raises FinishedAlreadyError before the first step if the checkpoint has all of them.
    """
    import torch  # noqa: PLC0415 - as above
    from transformers import TrainerCallback  # noqa: PLC0415 - as above

    class Callback(TrainerCallback):  # type: ignore[misc]  # transformers is not installed for mypy
        def on_train_begin(self, args: Any, state: Any, *_: object, **__: object) -> None:  # noqa: ANN401 - TRL's own
            if last is not None and state.global_step >= state.max_steps:
                flag = "--max-steps" if args.max_steps > 0 else "--num-train-epochs"
                raise FinishedAlreadyError(finished_sentence(state.max_steps, last, flag))

        def on_log(self, _args: object, state: Any, *_: object, **named: Any) -> None:  # noqa: ANN401 - TRL's own
            logs = named["logs"]
            for part in ("", "eval_") if state.is_world_process_zero else ():
                if f"{part}reward" in logs:
                    at = f"{part}step {state.global_step}/{state.max_steps}"
                    mean = float(logs[f"{part}reward"])
                    length = float(logs.get(f"{part}completions/mean_length", 0))
                    line = f"{at} mean reward {mean:.3f} tokens {length:.0f}"
                    print(line, *metrics_of(logs), flush=True)

        def on_step_end(self, args: Any, _state: object, control: Any, **_: object) -> None:  # noqa: ANN401 - TRL's own
            was_requested = requested.is_set()
            if was_requested:  # a request that follows this line stays for the next step
                requested.clear()
            # A checkpoint needs all processes, so they agree after each step.
            wanted = torch.tensor([int(was_requested)], device=args.device)
            if torch.distributed.is_initialized():
                torch.distributed.all_reduce(wanted, torch.distributed.ReduceOp.MAX)
            control.should_save = control.should_save or bool(wanted.item())

    return Callback()


def metrics_of(logs: Mapping[str, Any]) -> list[str]:
    """Return the numbers among TRL's metrics as `name=value`, without blanks in a name."""
    pairs = []
    for name, value in logs.items():
        with contextlib.suppress(TypeError, ValueError):
            pairs.append(f"{name.replace(' ', '_')}={float(value):.6g}")
    return pairs


def last_checkpoint(folder: Path) -> str | None:
    """Return the newest complete checkpoint; its state file is written last."""
    complete = []
    for path in folder.glob("checkpoint-*"):
        number = re.fullmatch(r"checkpoint-(\d+)", path.name)
        with contextlib.suppress(OSError, ValueError):
            state = json.loads((path / "trainer_state.json").read_text())
            if number and "global_step" in state:
                complete.append((int(number[1]), str(path)))
    return max(complete)[1] if complete else None


def finished_sentence(steps: int, checkpoint: str, flag: str) -> str:
    """Say that no step is left, in the words that the agent reads, and how to train on."""
    what = f"this training was finished already: {steps} of {steps} steps are in {checkpoint}"
    return f"{what}. To train on, raise {flag}, or set another folder in AGENT_CHECKPOINTS"


def has_saved(model: Path, checkpoint: Path) -> bool:
    """Return whether the end of this training has saved its model: weights, then the tokenizer.

    A model that is older than the checkpoint is that of a shorter training.
    """
    try:
        saved = (model / "tokenizer_config.json").stat().st_mtime_ns
        return saved >= (checkpoint / "trainer_state.json").stat().st_mtime_ns
    except OSError:
        return False


def agreed(last: str | None) -> str | None:
    """Return the checkpoint that every process sees; raise TrainerSetupError if they differ."""
    seen = of_all_processes(last)
    if len(set(seen)) == 1:
        return last
    names = sorted({*map(str, seen)})
    raise TrainerSetupError(
        f"processes see different checkpoints ({', '.join(names)}): "
        "--checkpoints must be a folder on a disk that all nodes share"
    )


def of_all_processes(own: object) -> list[Any]:
    """Return this value of every process."""
    from torch import distributed  # noqa: PLC0415 - as above

    if not distributed.is_initialized():
        return [own]
    seen: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(seen, own)
    return seen


class Rewards:
    """A reward function for TRL that queries a server."""

    __name__ = "server"

    def __init__(self, url: str, seconds: float, label_key: str) -> None:
        self._client = rehearsal.RewardClient(url, seconds)
        self._label_key = label_key

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Any,  # noqa: ANN401 - of the data
    ) -> list[float]:
        """Return a reward for each answer; raise rehearsal.RewardError on failure."""
        asked = [_text(prompt) for prompt in prompts]
        texts = [p + _text(c) for p, c in zip(asked, completions, strict=True)]
        labels = columns.get(self._label_key) if self._label_key else None
        fields: dict[str, Sequence[Any]] = {"query": texts, "prompts": asked}
        fields |= {} if labels is None else {"labels": labels}
        rewards: list[float] = []
        for start in range(0, len(texts), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            rewards += self._client.rewards({name: items[part] for name, items in fields.items()})
        return rewards


def _text(words: Any) -> str:  # noqa: ANN401 - a text, or a chat's messages
    if isinstance(words, str):
        return words
    return "\n".join(str(message.get("content") or "") for message in words)


if __name__ == "__main__":
    here = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]  # its siblings are not libraries
    sys.exit(main())
