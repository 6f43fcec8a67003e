"""The question to the installed framework, and what follows from its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.ends import Kind
from agent.checks.finding import Level
from agent.checks.job_needs import unasked_framework
from agent.job.framework_question import (
    FrameworkAnswer,
    FrameworkQuestion,
    question_of,
    refusal_of,
    why_not_asked,
)
from agent.job.job import Job
from agent.node.facts import Framework
from support.worlds import MACHINE, plan_of

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.plan.plan import Plan

NEEDED = {"AGENT_MODEL": "org/model", "AGENT_TRAIN_DATA": "/d.parquet", "RAY_WORKER": "0"}
GPUS = replace(MACHINE, gpus=8, cpus=64, framework=Framework("verl", "/opt/verl", "0.9.7"))
PPO = "verl.trainer.main_ppo"


def recipe_plan(name: str, args: str = "", facts: Facts = GPUS) -> Plan:
    """Return the plan of a recipe on one node."""
    environ = {**NEEDED, "AGENT_JOB": name, "EXPECTED_WORKERS": "0"}
    return plan_of({**environ, "AGENT_JOB_ARGS": args} if args else environ, facts)


def question_about(job: Job | None, facts: Facts = MACHINE) -> FrameworkQuestion:
    """Return the question about a job, which must have one."""
    question = question_of(job, facts)
    assert question is not None
    return question


def command(*argv: str, **runtime_env: object) -> Job:
    """Return a job of a command."""
    return Job("command", argv, dict(runtime_env))


@pytest.mark.parametrize(
    ("name", "module", "framework"),
    [
        ("verl-grpo", PPO, Framework("verl", "/opt/verl", "0.9.7")),
        ("openrlhf-grpo", "openrlhf.cli.train_ppo_ray", Framework("openrlhf", "/o", "0.12.0")),
        ("openrlhf-sft", "openrlhf.cli.train_sft", Framework("openrlhf", "/o", "0.11.2")),
        ("search-r1-ppo", PPO, Framework("search-r1", "/s", "")),
        ("openrlhf-m-grpo", "openrlhf.cli.train_ppo_ray", Framework("openrlhf-m", "/m", "")),
    ],
)
def test_every_recipe_of_a_framework_is_asked(name: str, module: str, framework: Framework) -> None:
    """By its whole command; a release that is not known is not refused for that."""
    plan = recipe_plan(name, facts=replace(GPUS, framework=framework))
    question = question_about(plan.job, plan.facts)
    assert plan.job is not None
    assert (question.module, question.argv) == (module, plan.job.argv[3:])
    assert question.is_recipe
    assert question.framework == f"{module.partition('.')[0]} {framework.version}".strip()


def test_trls_recipe_is_asked_by_its_program() -> None:
    """The bundled program makes TRL's configuration."""
    facts = replace(GPUS, framework=Framework("trl", "/opt/trl", "1.18.0"))
    question = question_about(recipe_plan("trl-grpo", facts=facts).job, facts)
    assert question.framework == "TRL 1.18.0"
    assert question.module.endswith("bundled/trl_grpo.py")


OWN = MACHINE.job_python
SFT = "verl.trainer.sft_trainer"


@pytest.mark.parametrize(
    ("line", "python", "module", "argv"),
    [
        (f"python3 -m {PPO} a=1", "python3", PPO, ("a=1",)),
        (f"/opt/py/bin/python3.11 -u -m {PPO}", "/opt/py/bin/python3.11", PPO, ()),
        (f"torchrun --nnodes 2 -m {SFT} a=1", OWN, SFT, ("a=1",)),
        ("-m openrlhf.cli.train_sft --x 1", OWN, "openrlhf.cli.train_sft", ("--x", "1")),
    ],
)
def test_a_users_own_command(line: str, python: str, module: str, argv: tuple[str, ...]) -> None:
    """A module of a known framework is asked."""
    question = question_about(command(*line.split()))
    assert (question.python, question.module, question.argv) == (python, module, argv)
    assert question.framework == module.partition(".")[0]


@pytest.mark.parametrize("line", ["python3 -m train", "python3 train.py -m x", "bash run.sh", ""])
def test_other_programs_are_not_asked(line: str) -> None:
    """Any other program could do anything."""
    assert question_of(command(*line.split()), MACHINE) is None


@pytest.mark.parametrize(
    "runtime_env",
    [
        {"pip": ["verl==0.9.1"]},
        {"conda": "train"},
        {"container": {"image": "x"}},
        {"image_uri": "x"},
        {"py_modules": ["/code/verl"]},
        {"working_dir": "s3://bucket/code.zip"},
    ],
)
def test_a_runtime_env_may_bring_another_framework(runtime_env: dict[str, object]) -> None:
    """Then the installed one is not asked."""
    job = command("python3", "-m", PPO, **runtime_env)
    assert question_of(job, MACHINE) is None
    assert next(iter(runtime_env)) in why_not_asked(job)
    (finding,) = unasked_framework(job)
    assert finding.level is Level.WARN
    script = command("python3", "train.py", **runtime_env)
    assert why_not_asked(script) == ""
    assert [*unasked_framework(script), *unasked_framework(None)] == []


def test_an_uploaded_folder_is_where_it_is_asked() -> None:
    """With the variables of the runtime_env: the job imports by them."""
    env = {"PYTHONPATH": "/more", "N": 1}
    question = question_about(command("python3", "-m", PPO, working_dir="/code", env_vars=env))
    assert question.folder == "/code"
    assert dict(question.env) == {"PYTHONPATH": "/more", "N": "1"}


ASKED = FrameworkQuestion(
    framework="verl 0.9.7",
    python="python3",
    module=PPO,
    argv=("trainer.nnodes=1",),
    own=("trainer.nnodez=2",),
    is_recipe=True,
    known="0.9.0, 0.9.1",
)


@pytest.mark.parametrize(
    ("question", "answer", "sentence"),
    [
        (
            ASKED,
            FrameworkAnswer("refused", "no such key", "trainer.nnodez", "trainer.nnodes"),
            (
                "trainer.nnodez in AGENT_JOB_ARGS: no such key (exit code 78). "
                "Did you mean trainer.nnodes? Correct it there"
            ),
        ),
        (
            ASKED,
            FrameworkAnswer("refused", "no such key", "algorithm.new"),
            (
                "algorithm.new in the recipe's command: no such key (exit code 78). Install a "
                "version that the recipe knows (0.9.0, 0.9.1), or give your own command after --"
            ),
        ),
        (
            replace(ASKED, own=("a=1",), is_recipe=False),
            FrameworkAnswer("refused", "an {odd} word"),
            "the command after --: an {odd} word (exit code 78). Correct it there",
        ),
    ],
)
def test_a_refusal_names_the_argument_and_the_remedy(
    question: FrameworkQuestion, answer: FrameworkAnswer, sentence: str
) -> None:
    """In the framework's own words, and where the argument was given."""
    end = refusal_of(question, answer)
    assert end.kind is Kind.REFUSED
    assert end.sentence() == f"refused: verl 0.9.7 refuses {sentence}"


def test_sizes_are_those_of_the_expected_nodes() -> None:
    """A recipe that does not fit them has no command to ask about."""
    plan = recipe_plan("verl-grpo", "trainer.nnodes=2")
    assert plan.job is not None
    few = replace(plan.job, argv=())
    assert question_of(few, plan.facts) is None
