"""The process that asks the framework: started, read, and killed at the end of a run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest
from msgspec.structs import replace

from agent.decisions.head.head_state import FrameworkAnswered
from agent.job.compile_caches import CompileCaches
from agent.job.services import Placeholders
from agent.node.node_kind import NodeKind
from agent.processes.waiting import NotYet, until
from agent.record.run_folder import RunFolder
from agent.run.framework_answer import FrameworkAsker
from agent.run.node_run import NodeRun
from agent.settings.redact import redactor_for
from support.asked_frameworks import install_openrlhf
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes
KIND = NodeKind("", "", "x86_64", "ab", "", "3.11.7", {"torch": "2.8.0"})
PPO = "openrlhf.cli.train_ppo_ray"
REFUSES = "import argparse\nargparse.ArgumentParser().parse_args()\n"
HANGS = "import argparse, time\ntime.sleep(1000)\nargparse.ArgumentParser().parse_args()\n"


def asker(
    tmp_path: Path,
    *argv: str,
    python: str = sys.executable,
    volume: Path | None = None,
    checkpoints: str = "/data/run",
) -> tuple[NodeRun, FrameworkAsker, list[FrameworkAnswered]]:
    """Return what asks about a command with the packages of a folder, and its events."""
    environ = {"AGENT_LOG_DIR": str(tmp_path / "logs"), "RAY_WORKER": "0"}
    environ["AGENT_CHECKPOINTS"] = checkpoints
    plan = plan_of(environ, command=[python, "-m", PPO, *argv])
    if volume is not None:
        own = CompileCaches(str(volume), str(tmp_path / "own"), KIND, "u0")
        plan = replace(plan, caches=own)
    run = NodeRun(
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


def answer_to(
    tmp_path: Path,
    *argv: str,
    python: str = sys.executable,
    volume: Path | None = None,
    checkpoints: str = "/data/run",
) -> FrameworkAnswered:
    """Ask; return the one event."""
    run, asked, sent = asker(tmp_path, *argv, python=python, volume=volume, checkpoints=checkpoints)
    anyio.run(asked.ask)
    run.close()
    (event,) = sent
    return event


def test_a_framework_that_accepts(tmp_path: Path) -> None:
    """Its placeholders are filled for the expected nodes."""
    install_openrlhf(tmp_path)
    assert answer_to(tmp_path, "--train.batch_size", "{nodes}") == FrameworkAnswered()


def test_an_accepted_command_is_not_asked_about_again(tmp_path: Path) -> None:
    """A fresh pod with the volume knows it, too; another command, or GPU, is asked about."""
    install_openrlhf(tmp_path)
    volume = tmp_path / "volume"
    sizes = ("--train.batch_size", "{nodes}")
    assert answer_to(tmp_path, *sizes, volume=volume) == FrameworkAnswered()
    (known,) = (volume / "accepted-commands").iterdir()

    # The framework would refuse everything now, and is not asked.
    install_openrlhf(tmp_path, REFUSES)
    assert answer_to(tmp_path, *sizes, volume=volume) == FrameworkAnswered()
    assert answer_to(tmp_path, "--train.epochs", "2", volume=volume).refusal is not None
    assert answer_to(tmp_path, *sizes).refusal is not None, "without a volume"

    # Nor is it remembered for long, since a package may change without another version.
    os.utime(known, (0, 0))
    assert answer_to(tmp_path, *sizes, volume=volume).refusal is not None


def test_an_experiment_with_a_folder_of_its_own_is_not_asked_about(tmp_path: Path) -> None:
    """The name of the folder for checkpoints decides nothing."""
    volume = tmp_path / "volume"
    install_openrlhf(tmp_path)
    first = answer_to(tmp_path, "--ckpt", "/a/last", volume=volume, checkpoints="/a")
    install_openrlhf(tmp_path, REFUSES)
    second = answer_to(tmp_path, "--ckpt", "/b/last", volume=volume, checkpoints="/b")
    assert (first, second) == (FrameworkAnswered(), FrameworkAnswered())


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
    install_openrlhf(tmp_path, "import argparse, os\nos._exit(3)\nparse_args()\n")
    assert "exit code 3" in answer_to(tmp_path).unknown


def test_the_end_of_the_run_kills_it(tmp_path: Path) -> None:
    """At once, and no answer follows."""
    install_openrlhf(tmp_path, HANGS)
    run, asked, sent = asker(tmp_path)

    def child() -> psutil.Process | NotYet:
        found = [p for p in psutil.Process().children() if "ask_framework.py" in str(p.cmdline())]
        return found[0] if found else NotYet()

    async def find() -> psutil.Process | NotYet:
        return child()

    async def story() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asked.ask)
                process = await until(find, None)
                asked.cancel()
            assert not process.is_running()

    anyio.run(story)
    assert sent == []
    assert replace(FrameworkAnswered(), unknown="") == FrameworkAnswered()
    run.close()
