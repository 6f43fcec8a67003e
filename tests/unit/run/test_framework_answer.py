"""The process that asks the framework: started, read, and killed at the end of a run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from agent.checks.finding import Level
from agent.decisions.shared import CHECK, JobItem, JobWant, Step
from agent.job.services import Placeholders
from agent.processes.waiting import NotYet, until
from agent.record.run_folder import RunFolder
from agent.run.framework_answer import FrameworkAsker, refused_by_framework
from agent.settings.redact import redactor_for
from support.asked_frameworks import install_openrlhf
from support.executing import executing
from support.node_runs import made_run
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.anyio]
PPO = "openrlhf.cli.train_ppo_ray"
REFUSES = "import argparse\ndef train(args): ...\nargparse.ArgumentParser().parse_args()\n"
HANGS = "import time\ndef train(args): ...\ntime.sleep(1000)\n"


def asker(tmp_path: Path, *argv: str, python: str = sys.executable) -> FrameworkAsker:
    """Return what asks about a command with the packages of a folder."""
    environ = {"AGENT_LOG_DIR": str(tmp_path / "logs"), "RAY_WORKER": "0"}
    plan = plan_of(environ, command=[python, "-m", PPO, *argv])
    redactor = redactor_for({**environ, "MY_API_KEY": "hidden-word-123"}, plan.settings, ())
    run = made_run(plan, redactor, RunFolder(tmp_path / "logs", "run-1", "node-a"))
    env = {"PATH": os.defpath, "PYTHONPATH": str(tmp_path)}
    place = Placeholders("10.0.0.1", "10.0.0.1", "0", "/logs")
    return FrameworkAsker(run, env, lambda: place)


async def answer_to(tmp_path: Path, *argv: str, python: str = sys.executable) -> JobItem:
    """Ask; return the last report of the check."""
    asked = asker(tmp_path, *argv, python=python)
    async with executing(lambda _name: asked.run) as there:
        there.executor.apply({CHECK: JobWant(1)})
        await there.executor.until_over(CHECK)
    assert isinstance(there.item, JobItem)
    return there.item


async def child() -> psutil.Process | NotYet:
    """Return the process that asks, once there is one."""
    found = [p for p in psutil.Process().children() if "ask_framework.py" in str(p.cmdline())]
    return found[0] if found else NotYet()


async def test_a_framework_that_accepts(tmp_path: Path) -> None:
    """Its placeholders are filled for the expected nodes."""
    install_openrlhf(tmp_path)
    answer = await answer_to(tmp_path, "--train.batch_size", "{nodes}")
    assert (answer.step, answer.evidence, answer.refusal) == (Step.READY, "", None)


async def test_a_framework_that_refuses(tmp_path: Path) -> None:
    """Its words are masked, as everything that is recorded."""
    install_openrlhf(tmp_path)
    answer = await answer_to(tmp_path, "--wandb_key", "hidden-word-123")
    assert answer.refusal is not None
    assert "openrlhf refuses --wandb_key in the command after --" in answer.refusal.reason
    assert "hidden-word-123" not in f"{answer.refusal.reason} {answer.evidence}"


async def test_a_program_that_cannot_be_started_or_crashes(tmp_path: Path) -> None:
    """Both are an unknown answer with the reason."""
    missing = await answer_to(tmp_path)
    assert "openrlhf.cli.train_ppo_ray is not installed" in missing.evidence
    no_python = await answer_to(tmp_path, python="/nowhere/python9.9")
    assert "python9.9" in no_python.evidence
    install_openrlhf(tmp_path, "import os\ndef train(args): ...\nos._exit(3)\n")
    crashed = await answer_to(tmp_path)
    assert "exit code 3" in crashed.evidence


async def test_the_end_of_the_run_kills_it(tmp_path: Path) -> None:
    """At once, and no answer follows."""
    install_openrlhf(tmp_path, HANGS)
    asked = asker(tmp_path)
    async with executing(lambda _name: asked.run) as there:
        there.executor.apply({CHECK: JobWant(1)})
        process = await until(child, None, longest=0.05)
        await there.executor.close()
        assert not process.is_running()
    assert (there.item.was_stopped, there.item.is_running) == (True, False)


async def test_a_second_question_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """One answer comes, about what is installed by then."""
    install_openrlhf(tmp_path, HANGS)
    asked = asker(tmp_path)
    async with executing(lambda _name: asked.run) as there:
        there.executor.apply({CHECK: JobWant(1)})
        await until(child, None, longest=0.05)
        install_openrlhf(tmp_path)
        there.executor.apply({CHECK: JobWant(2)})
        await there.executor.until_over(CHECK)
    items = [one.items[0] for one in there.sent]
    assert [item.generation for item in items if item.step is Step.READY] == [2]


def test_a_check_asks_at_once(tmp_path: Path) -> None:
    """`plan --check` finds what the framework would refuse while a run boots."""
    environ = {"RAY_WORKER": "0", "PATH": os.defpath, "PYTHONPATH": str(tmp_path)}
    install_openrlhf(tmp_path, REFUSES)
    plan = plan_of(environ, command=[sys.executable, "-m", PPO, "--train.bach_size", "8"])
    finding = refused_by_framework(plan)
    assert finding is not None
    assert finding.level is Level.FAIL
    assert "openrlhf refuses --train.bach_size in the command after --" in finding.what
    assert refused_by_framework(plan_of(environ, command=[sys.executable, "-m", PPO])) is None
    assert refused_by_framework(plan_of(environ, command=["true"])) is None
