"""The process that asks the framework: started, read, and killed at the end of a run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest

from agent.checks.finding import Level
from agent.decisions.head.head_state import FrameworkAnswered
from agent.job.services import Placeholders
from agent.processes.waiting import NotYet, until
from agent.record.run_folder import RunFolder
from agent.run.framework_answer import FrameworkAsker, refused_by_framework
from agent.settings.redact import redactor_for
from support.asked_frameworks import install_openrlhf
from support.node_runs import made_run
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.run.node_run import NodeRun

pytestmark = pytest.mark.processes
PPO = "openrlhf.cli.train_ppo_ray"
REFUSES = "import argparse\ndef train(args): ...\nargparse.ArgumentParser().parse_args()\n"
HANGS = "import time\ndef train(args): ...\ntime.sleep(1000)\n"


def asker(
    tmp_path: Path, *argv: str, python: str = sys.executable
) -> tuple[NodeRun, FrameworkAsker, list[FrameworkAnswered]]:
    """Return what asks about a command with the packages of a folder, and its events."""
    environ = {"AGENT_LOG_DIR": str(tmp_path / "logs"), "RAY_WORKER": "0"}
    plan = plan_of(environ, command=[python, "-m", PPO, *argv])
    run = made_run(
        plan,
        redactor_for({**environ, "MY_API_KEY": "hidden-word-123"}, plan.settings, ()),
        RunFolder(tmp_path / "logs", "run-1", "node-a"),
        0.0,
        "run-1",
    )
    env = {"PATH": os.defpath, "PYTHONPATH": str(tmp_path)}
    sent: list[FrameworkAnswered] = []
    place = Placeholders("10.0.0.1", "10.0.0.1", "0", "/logs")
    return run, FrameworkAsker(run, env, lambda: place, sent.append), sent


def answer_to(tmp_path: Path, *argv: str, python: str = sys.executable) -> FrameworkAnswered:
    """Ask; return the one event."""
    run, asked, sent = asker(tmp_path, *argv, python=python)
    anyio.run(asked.ask)
    run.close()
    (event,) = sent
    return event


async def child() -> psutil.Process | NotYet:
    """Return the process that asks, once there is one."""
    found = [p for p in psutil.Process().children() if "ask_framework.py" in str(p.cmdline())]
    return found[0] if found else NotYet()


def test_a_framework_that_accepts(tmp_path: Path) -> None:
    """Its placeholders are filled for the expected nodes."""
    install_openrlhf(tmp_path)
    assert answer_to(tmp_path, "--train.batch_size", "{nodes}") == FrameworkAnswered()


def test_a_framework_that_refuses(tmp_path: Path) -> None:
    """Its words are masked, as everything that is recorded."""
    install_openrlhf(tmp_path)
    event = answer_to(tmp_path, "--wandb_key", "hidden-word-123")
    assert event.refusal is not None
    assert "openrlhf refuses --wandb_key in the command after --" in event.refusal.reason
    assert "hidden-word-123" not in event.refusal.reason


def test_a_program_that_cannot_be_started_or_crashes(tmp_path: Path) -> None:
    """Both are an unknown answer with the reason."""
    assert "openrlhf.cli.train_ppo_ray is not installed" in answer_to(tmp_path).unknown
    assert "python9.9" in answer_to(tmp_path, python="/nowhere/python9.9").unknown
    install_openrlhf(tmp_path, "import os\ndef train(args): ...\nos._exit(3)\n")
    assert "exit code 3" in answer_to(tmp_path).unknown


def test_the_end_of_the_run_kills_it(tmp_path: Path) -> None:
    """At once, and no answer follows."""
    install_openrlhf(tmp_path, HANGS)
    run, asked, sent = asker(tmp_path)

    async def story() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asked.ask)
                process = await until(child, None, longest=0.05)
                asked.cancel()
            assert not process.is_running()

    anyio.run(story)
    assert sent == []
    run.close()


def test_a_second_question_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """One answer comes, about what is installed by then."""
    install_openrlhf(tmp_path, HANGS)
    run, asked, sent = asker(tmp_path)

    async def story() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asked.ask)
                await until(child, None, longest=0.05)
                install_openrlhf(tmp_path)
                await asked.ask()

    anyio.run(story)
    assert sent == [FrameworkAnswered()]
    run.close()


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
