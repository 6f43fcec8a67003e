"""Run OpenRLHF's own command line up to the placement: parser, asserts, engines, actors."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

from agent.bundled.ask_framework import (
    RefusedError,
    leave_out_training,
    options_of,
    refusing,
    source_of,
)
from tools.frameworks.faults import Case, Fault
from tools.frameworks.inside import stub_modules
from tools.frameworks.inside.exchange import answer
from tools.frameworks.inside.modelled_ray import ModelledRay
from tools.frameworks.inside.uses import names_read
from tools.frameworks.placement import Cluster, WaitsForEverError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

HEAVY = {
    *("ray", "torch", "deepspeed", "transformers", "datasets", "vllm", "tqdm", "peft", "wandb"),
    *("loralib", "flash_attn", "optree", "accelerate", "bitsandbytes", "einops", "PIL"),
    *("ring_flash_attn", "torchdata", "torchmetrics", "aiohttp", "requests", "pylatexenc"),
    *("sympy", "jsonlines", "tensorboard", "liger_kernel", "latex2sympy2_extended"),
    *("math_verify", "levenshtein"),
}
"""Modules that its files import at the top, and that take seconds or a GPU."""
PLACES = "openrlhf.cli.train_ppo_ray"
"""Its program that places actors: that part runs as well."""
SAID = ("[Warning]", "Set args", "Recommend setting")
WANTED = "in async RLHF only colocates DeepSpeed models"
"""In a warning about what the recipe asks for: its own asynchronous script has both flags, too."""
"""Texts with which its own checks report a replaced value."""


def judge(package: Path, cases: Sequence[Case]) -> dict[str, list[Fault]]:
    """Check all cases with one version's package."""
    sys.path.insert(0, str(package))
    stub_modules.install(HEAVY)
    # prints and option reads during the import are not part of the program's run
    read = names_read(package / "openrlhf")
    ray = ModelledRay()
    ray.install()
    return {case.name: judge_one(ray, case, read) for case in cases}


def judge_one(ray: ModelledRay, case: Case, read: frozenset[str]) -> list[Fault]:
    """Run one command twice: with the fullest node first and with the emptiest first."""
    found: dict[Fault, None] = {}
    for roomy in (True, False):
        for fault in run(ray, case, read, roomy=roomy):
            found[fault] = None
    return list(found)


def run(ray: ModelledRay, case: Case, read: frozenset[str], *, roomy: bool) -> list[Fault]:
    """Run its file as a program."""
    ray.cluster = Cluster(case.nodes, roomy=roomy)
    sys.argv = [case.module, *case.argv]
    out = io.StringIO()
    faults: list[Fault] = []
    parsers: list[argparse.ArgumentParser] = []
    try:
        with contextlib.redirect_stdout(out), strict_argparse(parsers):
            args = options(case)
    except RefusedError as error:
        return [Fault("refused", str(error))]
    except AssertionError as error:
        faults.append(Fault("refused", str(error)))
    except WaitsForEverError as error:
        faults.append(Fault("waits", str(error)))
    except Exception as error:  # noqa: BLE001 - whatever its code ends with is a finding
        faults.append(Fault("crash", f"{type(error).__name__}: {error}"))
    else:
        world = world_of(case, args)
        faults += batch_faults(args, world) + critic_faults(case, args, world)
    said = out.getvalue().splitlines()
    warned = [line for line in said if line.startswith(SAID) and WANTED not in line]
    faults += [Fault("ignored", line) for line in warned]
    for parser in parsers:
        faults += argument_faults(case.argv, parser, read)
    return faults


def options(case: Case) -> Any:  # noqa: ANN401 - a namespace of the program's
    """Run a case's program, with its training only where that places actors."""
    program = source_of(case.module)
    if program is None:
        raise ImportError(f"the package has no {case.module}")
    tree = ast.parse(program.read_text(encoding="utf-8"))
    if case.module != PLACES:
        leave_out_training(tree)
    return options_of(program, tree)


@contextlib.contextmanager
def strict_argparse(made: list[argparse.ArgumentParser]) -> Iterator[None]:
    """Make parsers refuse abbreviations and raise an exception; record those that parse."""
    parse = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - argparse's
        self.allow_abbrev = False
        made.append(self)
        return parse(self, *args, **kwargs)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", parse_args), refusing():
        yield


def option(args: object, dotted: str, flat: str) -> int:
    """Return an option's value, under the name that this version uses."""
    if hasattr(args, flat):
        return int(getattr(args, flat))
    for part in dotted.split("."):
        args = getattr(args, part)
    return int(args)  # type: ignore[call-overload,no-any-return] # a leaf is a number


def world_of(case: Case, args: object) -> int:
    """Count the training processes: with Ray as requested, with torchrun one per GPU."""
    if case.module != PLACES:
        return sum(gpus for gpus, _cpus in case.nodes) or len(case.nodes)
    nodes = option(args, "actor.num_nodes", "actor_num_nodes")
    return nodes * option(args, "actor.num_gpus_per_node", "actor_num_gpus_per_node")


def batch_faults(args: object, world: int) -> list[Fault]:
    """Check DeepSpeed's rule: batch = micro batch x steps x processes."""
    batch = option(args, "train.batch_size", "train_batch_size")
    micro = option(args, "train.micro_batch_size", "micro_train_batch_size")
    if batch % (micro * world):
        what = f"DeepSpeed: a batch of {batch} is not a multiple of {micro} x {world} processes"
        return [Fault("refused", what)]
    return []


def critic_faults(case: Case, args: object, world: int) -> list[Fault]:
    """Find a critic that leaves GPUs of the actor unused, which OpenRLHF does not report."""
    flat = getattr(args, "critic_pretrain", None)
    model = getattr(getattr(args, "critic", None), "model_name_or_path", flat)
    if case.module != PLACES or not model:
        return []
    nodes = option(args, "critic.num_nodes", "critic_num_nodes")
    critic = nodes * option(args, "critic.num_gpus_per_node", "critic_num_gpus_per_node")
    if critic == world:
        return []
    return [Fault("ignored", f"the critic is on {critic} GPUs, the actor on {world}")]


def argument_faults(
    argv: Sequence[str], parser: argparse.ArgumentParser, read: frozenset[str]
) -> list[Fault]:
    """Check the arguments themselves: given twice, or read by nothing."""
    given = [word.split("=")[0] for word in argv if word.startswith("--")]
    faults = [Fault("twice", flag) for flag in dict.fromkeys(given) if given.count(flag) > 1]
    for action in parser._actions:  # noqa: SLF001 - there is no other way to ask
        used = [flag for flag in action.option_strings if flag in given]
        if used and not is_read(action.dest, read):
            faults.append(Fault("dead", f"nothing reads {used[0]}"))
    return faults


def is_read(destination: str, read: frozenset[str]) -> bool:
    """Check whether an option is read: as args.NAME, as ….GROUP.NAME, or as NAME of a variable."""
    *groups, name = destination.split(".")
    variables = {"args", "cfg", "config", "opt", *groups[-1:]}
    return any(f"{variable}.{name}" in read for variable in variables)


if __name__ == "__main__":
    answer(judge)
