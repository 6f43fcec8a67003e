"""AGENT_LAUNCHER=node: the command once on each node, its environment, and its refusals."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.errors import SettingsError
from agent.checks.finding import Level
from agent.frameworks.prime_rl import FRAMEWORK
from agent.job.job import fill
from agent.job.node_command import NodeCommand, node_problems
from agent.job.services import Placeholders
from agent.job.share import SharePlace
from agent.plan.make import make_plan
from agent.plan.show import render
from agent.platforms.resolve import resolve
from agent.run import plan_input
from agent.settings import load
from agent.settings.redact import redactor_for
from support.captured import machine
from support.golden import assert_golden

if TYPE_CHECKING:
    from agent.plan.plan import Plan

GOLDEN = Path(__file__).parents[2] / "data" / "launchers"
BY_NODE = {"AGENT_LAUNCHER": "node"}
HEAD = {**BY_NODE, "AGENT_HEAD": "10.0.0.5", "EXPECTED_WORKERS": "2", "RAY_WORKER": "0"}
WORKER = {**HEAD, "AGENT_HEAD": "10.0.0.9", "AGENT_NODE_IP": "10.0.0.5", "RAY_WORKER": "1"}
ACCELERATE = (
    *("accelerate", "launch", "--num_machines", "{nodes}", "--machine_rank", "{rank}"),
    *("--main_process_ip", "{head_ip}", "--main_process_port", "{master_port}"),
    *("--num_processes", "{total_gpus}", "train.py", "{other}"),
)
PLACE = SharePlace("1", "3", "10.0.0.5", "run-2")


def plan_of(environ: dict[str, str], *command: str) -> Plan:
    """Make the plan of a machine with eight GPUs and without Ray."""
    loaded = load(environ, list(command) or None)
    facts = machine(environ)
    facts = replace(facts, ray=replace(facts.ray, version=None))
    topology = resolve(environ, loaded.settings, facts)
    return make_plan(loaded, topology, facts, environ, {})


@pytest.mark.parametrize(("name", "environ"), [("node-head", HEAD), ("node-worker", WORKER)])
def test_golden(name: str, environ: dict[str, str]) -> None:
    """The plan shows the command of this node, its environment and port, and no Ray."""
    plan = plan_of(environ, *ACCELERATE)
    text = render(plan, redactor_for(environ, plan.settings)) + "\n"
    text = text.replace(shlex.quote(sys.executable), "PYTHON")
    assert_golden(GOLDEN / f"{name}.plan.txt", text)
    assert "ray start" not in text


def test_a_recipe_by_this_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sets AGENT_LAUNCHER; the programs of its image are on PATH, where that is one."""
    environ = {
        "AGENT_JOB": "prime-rl",
        "AGENT_MODEL": "/v/Qwen3-8B",
        "AGENT_TRAIN_DATA": "reverse-text",
        "AGENT_CHECKPOINTS": f"{tmp_path}/run",
        "EXPECTED_WORKERS": "3",
        "AGENT_NUM_GPUS": "2",
        "RAY_WORKER": "0",
        "PATH": "/usr/bin:/bin",
    }
    image = replace(FRAMEWORK, programs=str(tmp_path))
    monkeypatch.setattr(plan_input, "recipe_of", lambda _: SimpleNamespace(FRAMEWORK=image))
    plan = plan_input.plan_from_environment(environ, None)
    assert isinstance(plan.launch, NodeCommand)
    assert plan.environment("10.0.0.5", "10.0.0.5")["PATH"] == f"{tmp_path}:/usr/bin:/bin"
    assert [group.sentence() for group in plan.groups] == ["rollout: 2 node(s), ranks 2 to 3"]
    image = replace(FRAMEWORK, programs="/nowhere")
    elsewhere = plan_input.plan_from_environment(environ, None)
    assert elsewhere.environment("10.0.0.5", "10.0.0.5")["PATH"] == "/usr/bin:/bin"
    with pytest.raises(SettingsError, match="beside prime-rl"):
        plan_input.plan_from_environment({**environ, "AGENT_LAUNCHER": "ray"}, None)


@pytest.mark.parametrize(
    "command", ["python train.py", "torchrun --nnodes 2 t.py", "accelerate launch t.py", "./go.sh"]
)
def test_the_command_is_taken_word_for_word(command: str) -> None:
    """A leading python, torchrun or accelerate stays, unlike with AGENT_LAUNCHER=torchrun."""
    words = command.split()
    settings = load(BY_NODE, words).settings
    assert node_problems(settings, words, wants_job=True) == ()
    assert NodeCommand(6379, 8, 13.0).command(words, PLACE) == words


def test_the_placeholders_of_a_node() -> None:
    """Rank, port and the number of all nodes, with and without GPUs; other braces stay."""
    own = NodeCommand(6379, 8, 13.0).placeholders(PLACE)
    place = Placeholders(head_ip="10.0.0.5", log_dir="/logs")
    words = fill(ACCELERATE, [0, 8, 8], place, "", 2, "/saved", own)
    assert words == [
        *("accelerate", "launch", "--num_machines", "3", "--machine_rank", "1"),
        *("--main_process_ip", "10.0.0.5", "--main_process_port", "6379"),
        *("--num_processes", "16", "train.py", "{other}"),
    ]


def test_only_this_launcher_has_rank_and_port() -> None:
    """With Ray a {rank} in the job's command stays as it is, and a warning names it."""
    assert fill(("{rank}", "{master_port}"), [8], Placeholders(), "", 1, "") == [
        "{rank}",
        "{master_port}",
    ]
    slips = [one.what for one in plan_of(HEAD, *ACCELERATE).findings if one.check == "placeholders"]
    assert slips == ["{other} in the job's command is no placeholder and stays as it is"]


def test_the_environment_of_the_command() -> None:
    """The agent's values replace a platform's: all five must describe one set of nodes."""
    given = {"MASTER_ADDR": "elsewhere", "RANK": "7", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    assert NodeCommand(6379, 8, 13.7).environment(given, PLACE) == {
        "RANK": "7",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5",
        "NNODES": "3",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.5",
        "MASTER_PORT": "6379",
        "NPROC_PER_NODE": "8",
        "AGENT_ATTEMPT_ID": "run-2",
    }
    own = NodeCommand(6379, 8, 13.7).environment({}, PLACE)
    assert own["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "13"


def test_a_run_needs_a_command() -> None:
    """The rehearsal needs Ray."""
    with pytest.raises(SettingsError) as refused:
        plan_input.plan_from_environment(BY_NODE, None)
    assert "AGENT_LAUNCHER: got 'node' without a command" in str(refused.value)


def test_a_missing_program_is_refused_on_every_node() -> None:
    """Every node runs the command, so a worker's own is checked, too."""
    plan = plan_of(WORKER, "no-such-program")
    facts = replace(plan.facts, program_fault="'no-such-program' is no program on PATH")
    made = make_plan(load(WORKER, ["no-such-program"]), plan.topology, facts, WORKER, {})
    assert [one.check for one in made.failed()] == ["job"]
    assert made.failed()[0].level is Level.FAIL


def test_torch_is_not_required() -> None:
    """A command may bring any program; only AGENT_PREFLIGHT needs torch."""
    assert plan_of(HEAD, "bash", "go.sh").failed() == ()
    failed = plan_of({**HEAD, "AGENT_PREFLIGHT": "nccl"}, "bash", "go.sh").failed()
    assert [one.check for one in failed] == ["torch"]


# --- how a share ended ---------------------------------------------------------------------------

NOON = 12 * 3600.0
CLOSING = (
    "W1122 11:59:50.500000 17301 torch/api.py:1028] Sending process 17305 closing signal SIGTERM"
)
FAILED = (
    "E1122 11:59:58.250000 17301 torch/api.py:1002] "
    "failed (exitcode: 9) local_rank: 1 (pid: 17306) of binary: /opt/conda/bin/python"
)


def test_the_rank_that_a_torchrun_below_names() -> None:
    """Its place and time count, so that the first failure is found; the code is the command's."""
    end = NodeCommand(6379, 8, 13.0).end(3, f"{CLOSING}\n{FAILED}\n", NOON)
    assert end is not None
    assert (end.code, end.local_rank, end.ago) == (3, 1, 9.5)


def test_a_report_of_an_earlier_torchrun_does_not_count() -> None:
    """A script may go on after a torchrun that failed."""
    command = NodeCommand(6379, 8, 13.0)
    later = NOON + 3600.0
    assert command.end(3, f"{CLOSING}\n{FAILED}\n", later) is None
    assert command.is_closing(f"{CLOSING}\n", NOON)
    assert not command.is_closing(f"{CLOSING}\n", later)
