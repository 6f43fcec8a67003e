"""The process that asks the framework: started, read, and killed at the end of a run."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest
from msgspec.structs import replace

from agent.checks.finding import Level
from agent.decisions.head.head_state import FrameworkAnswered
from agent.job.compile_caches import CompileCaches
from agent.job.services import Placeholders
from agent.node.node_kind import NodeKind
from agent.processes.waiting import NotYet, until
from agent.record.run_folder import RunFolder
from agent.run.framework_answer import FrameworkAsker, refused_by_framework
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
    launcher: str = "",
) -> tuple[NodeRun, FrameworkAsker, list[FrameworkAnswered]]:
    """Return what asks about a command with the packages of a folder, and its events."""
    environ = {"AGENT_LOG_DIR": str(tmp_path / "logs"), "RAY_WORKER": "0"}
    environ["AGENT_CHECKPOINTS"] = checkpoints
    if launcher:
        environ["AGENT_LAUNCHER"] = launcher
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


def answers_to(
    tmp_path: Path,
    *argv: str,
    python: str = sys.executable,
    volume: Path | None = None,
    checkpoints: str = "/data/run",
    launcher: str = "",
) -> list[FrameworkAnswered]:
    """Ask; return the events."""
    run, asked, sent = asker(
        tmp_path, *argv, python=python, volume=volume, checkpoints=checkpoints, launcher=launcher
    )
    anyio.run(asked.ask)
    run.close()
    return sent


def answer_to(tmp_path: Path, *argv: str, python: str = sys.executable) -> FrameworkAnswered:
    """Ask; return the one event."""
    (event,) = answers_to(tmp_path, *argv, python=python)
    return event


def test_a_framework_that_accepts(tmp_path: Path) -> None:
    """Its placeholders are filled for the expected nodes."""
    install_openrlhf(tmp_path)
    assert answer_to(tmp_path, "--train.batch_size", "{nodes}") == FrameworkAnswered()


def test_nothing_waits_for_the_answer_about_an_accepted_command(tmp_path: Path) -> None:
    """A fresh pod with the volume knows it, too; another command, or GPU, is asked about."""
    install_openrlhf(tmp_path)
    volume = tmp_path / "volume"
    sizes = ("--train.batch_size", "{nodes}")
    assert answers_to(tmp_path, *sizes, volume=volume) == [FrameworkAnswered()]
    assert answers_to(tmp_path, *sizes, volume=volume) == [FrameworkAnswered()]

    # The framework refuses everything now: that comes later, and is not forgotten.
    install_openrlhf(tmp_path, REFUSES)
    first, late = answers_to(tmp_path, *sizes, volume=volume)
    assert first == FrameworkAnswered()
    assert late.refusal is not None
    (again,) = answers_to(tmp_path, *sizes, volume=volume)
    assert again.refusal is not None


@pytest.mark.parametrize(
    ("change", "is_known"),
    [
        ({}, True),
        ({"checkpoints": "/data/other"}, True),  # an experiment saves in a folder of its own
        ({"epochs": "2"}, False),
        ({"age": "8"}, False),  # days: a package may change without another version
        ({"volume": ""}, False),
    ],
)
def test_an_accepted_command_is_known(
    tmp_path: Path, change: dict[str, str], *, is_known: bool
) -> None:
    """With torchrun the framework is not even asked."""
    install_openrlhf(tmp_path)

    def answers(
        epochs: str = "1", checkpoints: str = "/data/run", volume: str = "volume"
    ) -> list[FrameworkAnswered]:
        argv = ("--train.batch_size", epochs, "--ckpt", f"{checkpoints}/last")
        place = tmp_path / volume if volume else None
        return answers_to(
            tmp_path, *argv, volume=place, checkpoints=checkpoints, launcher="torchrun"
        )

    assert answers() == [FrameworkAnswered()]
    (file,) = (tmp_path / "volume" / "accepted-commands").iterdir()
    changed = time.time() - 86_400 * float(change.pop("age", "0"))
    os.utime(file, (changed, changed))
    install_openrlhf(tmp_path, REFUSES)
    (answer,) = answers(**change)
    assert (answer.refusal is None) == is_known


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
