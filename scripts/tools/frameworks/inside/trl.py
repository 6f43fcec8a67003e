"""TRL's own configuration, made by the recipe's program, for any number of processes."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from agent.bundled.ask_framework import ON_CPUS, load
from tools.frameworks.faults import Case, Fault
from tools.frameworks.inside.exchange import answer

if TYPE_CHECKING:
    from collections.abc import Sequence


def judge(package: Path, cases: Sequence[Case]) -> dict[str, list[Fault]]:
    """Check all cases with one version's package."""
    sys.path.insert(0, str(package))
    warnings.simplefilter("ignore")
    arguments = importlib.import_module("transformers").TrainingArguments
    return {case.name: judge_one(arguments, case) for case in cases}


def judge_one(arguments: Any, case: Case) -> list[Fault]:  # noqa: ANN401 - transformers' is not typed here
    """Parse one command; let TRL check its configuration for this many processes."""
    given = [word.split("=")[0] for word in case.argv if word.startswith("--")]
    faults = [Fault("twice", flag) for flag in dict.fromkeys(given) if given.count(flag) > 1]
    program = load(Path(case.module))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = program.parser().parse_args(case.argv)
    except SystemExit:
        return [*faults, Fault("refused", said.getvalue().strip().splitlines()[-1])]
    options.wandb = False  # the optional packages of this environment do not matter
    options.config = [*options.config, *ON_CPUS]
    options.checkpoints = "checkpoints"
    world = sum(gpus for gpus, _cpus in case.nodes) or 1
    try:
        with mock.patch.object(arguments, "world_size", world):
            program.config_of(options)
    except (ValueError, program.TrainerSetupError) as error:
        faults.append(Fault("refused", str(error)))
    except Exception as error:  # noqa: BLE001 - whatever its code ends with is a finding
        faults.append(Fault("crash", f"{type(error).__name__}: {error}"))
    return faults


if __name__ == "__main__":
    answer(judge)
