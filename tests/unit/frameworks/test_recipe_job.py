"""A recipe's job: planned for the nodes that are expected, made of those that join."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.base.errors import SettingsError
from agent.checks.finding import Level
from agent.frameworks import recipe_of
from agent.frameworks.recipe import JobBasis, MisfitError, NodeSize, choose
from agent.job.job import job_identity, version_of
from agent.node.facts import Facts, Framework, Mount
from agent.plan.show import render
from agent.settings import load
from agent.settings.jobs import RECIPES, RecipeInfo
from agent.settings.redact import redactor_for
from support.toy_recipe import NAME, NEEDED, VERSIONS, toy
from support.worlds import MACHINE, plan_of

__all__ = ["toy"]

HEAD = {"RAY_WORKER": "0", "EXPECTED_WORKERS": "1"}
WITH = replace(MACHINE, gpus=8, framework=Framework("verl", "/opt/verl", "0.9.1"))
pytestmark = pytest.mark.usefixtures("toy")


def shown(environ: dict[str, str], facts: Facts = WITH) -> str:
    """Return what `plan` prints."""
    plan = plan_of({**HEAD, **NEEDED, **environ}, facts)
    return render(plan, redactor_for({}, plan.settings))


@pytest.mark.parametrize(
    ("text", "wanted", "warned"),
    [
        ("0.9.1", (0, 9, 1), ""),
        ("v0.9.1", (0, 9, 1), ""),
        ("0.9.1.post2", (0, 9, 1), ""),
        ("0.9.1+cu128", (0, 9, 1), ""),
        ("0.9", (0, 9, 1), ""),
        ("0.9.0", (0, 9, 0), ""),
        ("0.9.7", (0, 9, 1), "0.9.7"),
        ("0.9.1.dev0", (0, 9, 1), "0.9.1.dev0"),
        ("0.9.1rc1", (0, 9, 1), "0.9.1rc1"),
        ("0.8.5", (0, 8, 0), "0.8.5"),
        ("0.8.0.dev1", (0, 8, 0), "0.8.0.dev1"),
        ("0.10.0.dev0+g1dda039", (0, 9, 1), "0.10.0.dev0+g1dda039"),
        ("1.0.dev20261101", (0, 9, 1), "1.0.dev20261101"),
        # an unknown release is never refused: the framework itself refuses what it does not have
        ("0.7.0", (0, 8, 0), "is not known, and is taken for 0.8.0"),
        ("1.0", (0, 9, 1), "is not known, and is taken for 0.9.1"),
        ("0.10.0", (0, 9, 1), "is not known, and is taken for 0.9.1"),
        ("9", (0, 9, 1), "is not known, and is taken for 0.9.1"),
        ("main", (0, 9, 1), "is not known, and is taken for 0.9.1"),
        ("", (0, 9, 1), "is not known, and is taken for 0.9.1"),
        ("0.", (0, 8, 0), "is not known, and is taken for 0.8.0"),
        ("unknown", (0, 9, 1), "is not known, and is taken for 0.9.1"),
    ],
)
def test_the_nearest_known_version(text: str, wanted: tuple[int, ...], warned: str) -> None:
    """The nearest lower one of the minor release, with a warning if it differs."""
    version, warning = choose(VERSIONS, text)
    assert version == wanted
    assert bool(warning) == bool(warned)
    assert warned in warning


def test_a_patch_before_the_first_known_one() -> None:
    """It is kept, since a recipe may depend on the patch."""
    version, warning = choose(((0, 7, 1), (0, 10, 4)), "0.10.1")
    assert version == (0, 10, 1)
    assert "0.10.1 is older than 0.10.4" in warning


@pytest.mark.parametrize(
    "known", [known for known in RECIPES if known.framework], ids=lambda known: known.name
)
def test_every_recipe_takes_any_version(known: RecipeInfo) -> None:
    """TRL 1.17 and 1.18 are out, and the newest known one is 1.16."""
    versions = recipe_of(known).VERSIONS
    for text in ("99.1.0", "1.17.0", "1.18.0", "0.0.1", "nightly", ""):
        version, warning = version_of(known, Framework(known.framework, "/opt", text))
        assert version in (versions or [()])
        numberless = len(versions) == 1 and not text
        assert bool(warning) == bool(versions and not numberless)
        if known.name == "trl-grpo" and text.startswith("1."):
            assert version == versions[-1]


def test_the_run_id_is_the_group_in_wandb() -> None:
    """It is known once a job is submitted, so no node's environment has it before."""
    plan = plan_of({**HEAD, **NEEDED, "WANDB_API_KEY": "k" * 40}, WITH)
    assert plan.job is not None
    assert plan.job.recipe is not None
    nodes = (NodeSize(8, 32),) * 2
    assert plan.job.recipe.command(nodes, "run-7", JobBasis()).env == {
        "TOY_MODE": "fast",
        "WANDB_RUN_GROUP": "run-7",
    }
    assert plan.recipe_env == {"TOY_MODE": "fast"}
    offline = plan_of({**HEAD, **NEEDED}, WITH).job
    assert offline is not None
    assert offline.recipe is not None
    assert "WANDB_RUN_GROUP" not in offline.recipe.command(nodes, "run-7", JobBasis()).env


def test_the_plan_is_for_nodes_like_this_one() -> None:
    """`plan` shows the command for such nodes, and its reasons, or that it does not fit."""
    text = shown({})
    assert "-m toy --gpus 16 --for=0.9.1" in text
    assert "sized for 2 node(s) like this one" in text
    assert "--gpus: 16 GPUs joined" in text
    assert "16 GPUs: batch 1024 = 16 x 64" in text
    assert "TOY_MODE=fast" in text
    text = shown({"AGENT_NUM_GPUS": "3"})
    assert "does not fit 2 node(s) like this one: a batch of 1024 is not divisible by 6" in text
    assert "TOY_MODE=fast" in text


def test_the_command_is_for_the_nodes_that_joined() -> None:
    """The same job on other nodes has another size, or does not fit."""
    job = plan_of({**HEAD, **NEEDED}, WITH).job
    assert job is not None
    assert job.recipe is not None
    nodes = (NodeSize(0, 8), NodeSize(4, 32), NodeSize(4, 32))
    assert "8" in job.recipe.command(nodes, "run", JobBasis()).argv
    with pytest.raises(MisfitError, match="not divisible by 12"):
        job.recipe.command((NodeSize(8), NodeSize(4)), "run", JobBasis())


def test_arguments_that_fit_no_nodes_are_refused_at_once() -> None:
    """An argument that is wrong on any cluster is a problem of the settings."""
    with pytest.raises(SettingsError) as caught:
        plan_of({**HEAD, **NEEDED, "AGENT_JOB_ARGS": "--no-such"}, WITH)
    assert "--no-such is no argument of it" in caught.value.sentence()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"AGENT_MODEL": None}, "AGENT_MODEL: got nothing; expected a model"),
        ({"AGENT_TRAIN_DATA": None}, "AGENT_TRAIN_DATA: got nothing"),
        ({"AGENT_MODEL": "./model"}, "AGENT_MODEL: got './model'; expected an absolute path"),
        ({"AGENT_EVAL_DATA": "~/x"}, "AGENT_EVAL_DATA: got '~/x'"),
        ({"AGENT_LAUNCHER": "torchrun"}, "AGENT_LAUNCHER: got 'torchrun' beside toy-grpo"),
    ],
)
def test_required_settings(changes: dict[str, str | None], named: str) -> None:
    """A missing or wrong setting is named by its variable before the start."""
    environ = {name: text for name, text in {**NEEDED, **changes}.items() if text is not None}
    with pytest.raises(SettingsError) as caught:
        load(environ)
    assert any(named in problem.sentence() for problem in caught.value.problems)


def test_all_missing_settings_are_reported_together() -> None:
    """One Problem for each."""
    with pytest.raises(SettingsError) as caught:
        load({"AGENT_JOB": NAME})
    found = {problem.variable for problem in caught.value.problems}
    assert found == {"AGENT_MODEL", "AGENT_TRAIN_DATA"}


@pytest.mark.parametrize(
    ("framework", "environ", "level", "said"),
    [
        (Framework("verl", "/opt/verl", "0.9.1"), {}, Level.OK, "verl 0.9.1 in /opt/verl"),
        (Framework("verl", "/opt/verl", "0.9.4"), {}, Level.WARN, "taken for 0.9.1"),
        (Framework("verl", "/opt/verl", "0.5.0"), {}, Level.WARN, "known are 0.8.0, 0.9.0, 0.9.1"),
        (Framework("verl", "/opt/verl", "1.2.0"), {}, Level.WARN, "taken for 0.9.1"),
        (Framework("verl", "/opt/verl"), {}, Level.WARN, "its version is not known"),
        (Framework("verl"), {}, Level.FAIL, f"verl is not installed for {MACHINE.ray.executable}"),
        (Framework("verl"), {"AGENT_PREPARE": "pip install verl"}, Level.WARN, "is not installed"),
    ],
)
def test_the_check_of_the_framework(
    framework: Framework, environ: dict[str, str], level: Level, said: str
) -> None:
    """A missing framework refuses the run; an unknown version is a warning with the known ones."""
    plan = plan_of({**HEAD, **NEEDED, **environ}, replace(WITH, framework=framework))
    (found,) = [finding for finding in plan.findings if finding.check == "framework"]
    assert found.level is level
    assert said in found.what


def test_a_worker_sets_the_recipes_environment() -> None:
    """Actors inherit from Ray on their own node; the user's variables win on each."""
    worker = {"RAY_WORKER": "1", "AGENT_HEAD": "10.0.0.1", **NEEDED}
    plan = plan_of(worker, replace(WITH, framework=None))
    assert plan.job is None
    assert plan.environment("10.0.0.5", "10.0.0.1")["TOY_MODE"] == "fast"
    own = plan_of({**worker, "TOY_MODE": "slow"}, WITH)
    assert own.environment("10.0.0.5", "10.0.0.1")["TOY_MODE"] == "slow"
    assert [f for f in plan.findings if f.check == "framework"] == []


@pytest.mark.parametrize(
    ("environ", "has_url"),
    [
        ({}, False),
        ({"AGENT_REWARD": "off"}, False),
        ({"AGENT_REWARD": "builtin"}, True),
        ({"AGENT_REWARD": "http://far.example/score"}, True),
    ],
)
def test_an_optional_reward_server(environ: dict[str, str], *, has_url: bool) -> None:
    """The job asks a server only if AGENT_REWARD is set."""
    plan = plan_of({**HEAD, **NEEDED, **environ}, WITH)
    assert plan.job is not None
    assert ("{reward_url}" in plan.job.argv) == has_url
    assert bool(plan.all_services) == has_url


@pytest.mark.parametrize(
    ("mount", "warned"),
    [
        (Mount("/", "overlay", "overlay"), True),
        (Mount("/tmp", "tmpfs", "tmpfs"), True),
        (Mount("/workspace", "fuse", "mfs#net:9421"), False),
        (Mount("/", "ext4", "/dev/sda1"), False),
        (None, False),
    ],
)
def test_checkpoints_on_no_volume(mount: Mount | None, *, warned: bool) -> None:
    """A container's own disk is deleted with the container."""
    plan = plan_of({**HEAD, **NEEDED}, replace(WITH, checkpoints=mount))
    said = [f.what for f in plan.findings if f.check == "checkpoints"]
    assert bool(said) == warned


def test_the_identity_of_a_run() -> None:
    """It depends on the settings, not on the nodes or the order in argv."""

    def own(**changes: str) -> object:
        return job_identity(plan_of({**HEAD, **NEEDED, **changes}, WITH).job)

    assert own() == own(EXPECTED_WORKERS="3", AGENT_NUM_GPUS="4")
    for name, text in {
        "AGENT_MODEL": "org/other",
        "AGENT_TRAIN_DATA": "/other",
        "AGENT_EVAL_DATA": "/other",
        "AGENT_TENSOR_PARALLEL": "2",
        "AGENT_JOB_ARGS": "--other",
        "AGENT_CHECKPOINTS": "/other",
    }.items():
        assert own(**{name: text}) != own(), name
    older = replace(WITH, framework=Framework("verl", "/opt/verl", "0.8.0"))
    assert job_identity(plan_of({**HEAD, **NEEDED}, older).job) != own()
