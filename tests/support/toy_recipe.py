"""A small recipe that is sized and refused like a real one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from agent import frameworks
from agent.frameworks import verl
from agent.frameworks.recipe import Command, MisfitError
from agent.settings import jobs
from agent.settings.jobs import RecipeInfo

if TYPE_CHECKING:
    from agent.base.versions import Version
    from agent.frameworks.recipe import RecipeInput

NAME = "toy-grpo"
KNOWN = RecipeInfo(NAME, "toy", "verl", "possible")
NEEDED = {"AGENT_JOB": NAME, "AGENT_MODEL": "org/model", "AGENT_TRAIN_DATA": "/data/train.parquet"}

FRAMEWORK = verl.FRAMEWORK
VERSIONS: tuple[Version, ...] = ((0, 8, 0), (0, 9, 0), (0, 9, 1))
ABOUT = "nothing: it is there for tests"


def make(asked: RecipeInput) -> Command:
    """Make a command whose batch size must be divisible by the number of GPUs."""
    if "--no-such" in asked.args:
        raise MisfitError("--no-such is no argument of it")
    total = sum(node.gpus for node in asked.gpu_nodes)
    if total == 0 or 1024 % total:
        raise MisfitError(f"a batch of 1024 is not divisible by {total} GPUs")
    url = ("--url", "{reward_url}") if asked.scores else ()
    version = ".".join(str(part) for part in asked.version)
    return Command(
        (asked.python, "-m", "toy", "--gpus", str(total), f"--for={version}", *url, *asked.args),
        {"TOY_MODE": "fast"},
        {"--gpus": f"{total} GPUs joined"},
        (f"{total} GPUs: batch 1024 = {total} x {1024 // total}",),
    )


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> RecipeInfo:
    """Add the toy to the recipes."""
    monkeypatch.setitem(jobs.BY_NAME, NAME, KNOWN)
    monkeypatch.setitem(sys.modules, f"{frameworks.__name__}.toy", sys.modules[__name__])
    return KNOWN
