"""What each framework's module declares: one row for each, and none is missing."""

from __future__ import annotations

import pytest

from agent.frameworks import all_frameworks, framework_named, recipe_of
from agent.job.checkpoints import CheckpointOwner, FolderContents, resumes_from, step_of
from agent.job.checkpoints import why_not_resumable as why_not
from agent.job.progress import PauseSeen, ProgressReader, StepSeen, meant
from agent.settings.jobs import RECIPES

ROWS = [
    # framework, its package, a checkpoint, whether it resumes and reshards, a line of a step
    ("", "", "", True, True, "step 7/40 mean reward 0.5"),
    ("verl", "verl", "global_step_7", True, False, "step:7 - critic/rewards/mean:0.5"),
    ("openrlhf", "openrlhf", "global_step7", True, False, "Global step 7: {'reward': 0.5}"),
    ("openrlhf-m", "openrlhf", "global_step7", True, False, "Global step 7: {'reward': 0.5}"),
    ("search-r1", "verl", "global_step_7", False, True, "step:7 - critic/rewards/mean:0.5"),
    ("trl", "trl", "checkpoint-7", True, True, "step 7/40 mean reward 0.5"),
    (
        *("slime", "slime", "iter_0000007", True, False),
        "step 7: {'train/loss': 0.1, 'rollout/raw_reward': 0.5}",  # a line of its own, in fact
    ),
    (
        *("prime-rl", "prime_rl", "checkpoints/step_7", True, True),
        "Step 7 |   11.9s | Loss 0.1000\nStep 8 |    9.1s | Reward 0.5000 | Trainable 60/64",
    ),
]


def test_every_framework_has_a_row() -> None:
    """A further framework is a module, rows of `RECIPES`, and a row here."""
    assert [row[0] for row in ROWS] == list(dict.fromkeys(known.framework for known in RECIPES))
    assert len(all_frameworks()) == len(ROWS)


@pytest.mark.parametrize("known", RECIPES, ids=lambda known: known.name)
def test_a_recipes_module_has_all_of_it(known: object) -> None:
    """Start file and framework; the recipes of a framework have the same facts."""
    (row,) = [one for one in RECIPES if one == known]
    module = recipe_of(row)
    assert row.name in module.PRESETS
    assert module.FRAMEWORK is framework_named(row.framework)
    package = module.FRAMEWORK.package
    assert (package.name if package else "") == row.framework


@pytest.mark.parametrize(
    ("name", "package", "checkpoint", "resumes", "reshards", "line"),
    ROWS,
    ids=[row[0] or "rehearsal" for row in ROWS],
)
def test_a_framework(  # noqa: PLR0913 - the columns of a row
    name: str, package: str, checkpoint: str, line: str, *, resumes: bool, reshards: bool
) -> None:
    """Its package, checkpoints and steps are recognized."""
    framework = framework_named(name)
    assert (framework.package.module if framework.package else "") == package
    assert framework.checkpoints.can_reshard == reshards
    if checkpoint:
        assert step_of(f"actor/{checkpoint}") == 7
        held = FolderContents(newest=checkpoint, marked_whole=checkpoint, tracked="7")
        assert resumes_from(held, name) == (checkpoint if resumes else "")
        owner = CheckpointOwner("any", name, "", "m", 8, 1)
        other = FolderContents(CheckpointOwner("any", name, "", "m", 4, 1), newest=checkpoint)
        assert bool(why_not(other, owner)) != reshards
    reader = ProgressReader()
    readings = [found for text in line.splitlines() for found in reader.read(text, 0.0)]
    (seen,) = [found for found in readings if isinstance(found, StepSeen)]
    assert (seen.step, seen.of) == (7, 40 if "/40" in line else None)
    (*_, last) = readings
    assert not isinstance(last, PauseSeen)
    assert meant("reward", last.metrics) == 0.5
    assert framework.steps is not None
    assert framework.steps.meaning.value("reward", last.metrics) == 0.5
