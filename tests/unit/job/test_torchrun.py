"""torchrun: its part of a command, its node ranks, and its Python."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.errors import SettingsError
from agent.checks.finding import Level
from agent.job.node_command import node_problems
from agent.job.share import SharePlace, gpus_of, processes
from agent.job.torchrun_command import (
    Torchrun,
    command_fault,
    torchrun_arguments,
    torchrun_problems,
)
from agent.node import read
from agent.node.facts import TorchPython
from agent.plan.make import make_plan
from agent.plan.show import render
from agent.platforms.resolve import resolve
from agent.run import plan_input
from agent.settings import load
from agent.settings.redact import redactor_for
from support.captured import machine

if TYPE_CHECKING:
    from pathlib import Path

    from agent.plan.plan import Plan

PYTHON = "/opt/conda/bin/python3"
BY_TORCHRUN = {"AGENT_LAUNCHER": "torchrun"}
HEAD = {**BY_TORCHRUN, "AGENT_HEAD": "10.0.0.5", "EXPECTED_WORKERS": "2"}
WORKER = {**HEAD, "AGENT_HEAD": "10.0.0.9", "AGENT_NODE_IP": "10.0.0.5"}


def plan_of(environ: dict[str, str], *command: str, gpus: int = 0) -> Plan:
    """Make the plan of a machine that has torch and no Ray."""
    loaded = load(environ, list(command) or None)
    facts = machine(environ)
    facts = replace(
        facts,
        gpus=gpus,
        ray=replace(facts.ray, version=None),
        torch=TorchPython(PYTHON, "2.13.0"),
    )
    topology = resolve(environ, loaded.settings, facts)
    return make_plan(loaded, topology, facts, environ, {})


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python train.py --lr 1", "train.py --lr 1"),
        ("python3 -m pkg.train a", "-m pkg.train a"),
        ("/opt/conda/bin/python3.11 -u train.py", "train.py"),
        ("train.py --lr 1", "train.py --lr 1"),
        ("-m pkg.train", "-m pkg.train"),
        ("./train.sh a b", "--no_python ./train.sh a b"),
        ("accelerate launch x.py", "--no_python accelerate launch x.py"),
    ],
)
def test_what_torchrun_is_given(command: str, words: str) -> None:
    """A leading Python is dropped; a program that is not Python starts unchanged."""
    assert command_fault(command.split()) is None
    assert torchrun_arguments(command.split()) == words.split()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("torchrun --nnodes 2 train.py", "torchrun itself"),
        ("/opt/conda/bin/torchrun train.py", "torchrun itself"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run itself"),
        ("python", "nothing for torchrun to run"),
        ("python3 -m", "nothing for torchrun to run"),
        ("python -O train.py", "'-O', a flag of Python's"),
        ("python -c pass", "'-c', a flag of Python's"),
    ],
)
def test_what_torchrun_cannot_run(command: str, named: str) -> None:
    """Unsuitable commands are refused before the start, with the given text."""
    (problem,) = torchrun_problems(
        load(BY_TORCHRUN, command.split()).settings, command.split(), wants_job=True
    )
    assert problem.variable == "--"
    assert named in problem.got


PROBLEMS = {"torchrun": torchrun_problems, "node": node_problems}


@pytest.mark.parametrize("launcher", PROBLEMS)
def test_a_run_needs_a_job_and_a_plan_does_not(launcher: str) -> None:
    """The rehearsal needs Ray: without a job of its own a run is refused, `doctor` is not."""
    settings = load({"AGENT_LAUNCHER": launcher}).settings
    (problem,) = PROBLEMS[launcher](settings, None, wants_job=True)
    assert problem.variable == "AGENT_LAUNCHER"
    assert "a command after --" in problem.expected
    assert PROBLEMS[launcher](settings, None, wants_job=False) == ()


@pytest.mark.parametrize("launcher", PROBLEMS)
@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("DEBUG_RAY", "1", "unset"),
        ("DEBUG_RAY", "post-mortem", "unset"),
        ("AGENT_RUNTIME_ENV", '{"pip": ["x"]}', "unset"),
        ("AGENT_WORKING_DIR", "/src", "unset"),
        ("AGENT_RESOURCES", '{"h100": 8}', "unset"),
        ("AGENT_JOB", "none", "a command after --"),
    ],
)
def test_what_only_ray_could_heed_is_refused(
    launcher: str, name: str, text: str, remedy: str
) -> None:
    """Each is named with its remedy; nothing is ignored in silence."""
    with pytest.raises(SettingsError) as refused:
        load({"AGENT_LAUNCHER": launcher, name: text})
    (problem,) = [one for one in refused.value.problems if one.variable == name]
    assert remedy in problem.expected


@pytest.mark.parametrize(
    ("launcher", "recipe", "own"),
    [
        ("node", "verl-grpo", "ray"),
        ("node", "openrlhf-sft", "torchrun"),
        ("torchrun", "verl-grpo", "ray"),
        ("ray", "openrlhf-sft", "torchrun"),
    ],
)
def test_a_recipe_has_its_own_launcher(launcher: str, recipe: str, own: str) -> None:
    """Another one is a contradiction."""
    needed = {"AGENT_JOB": recipe, "AGENT_MODEL": "a/b", "AGENT_TRAIN_DATA": "/d"}
    with pytest.raises(SettingsError) as refused:
        load({**needed, "AGENT_LAUNCHER": launcher})
    (problem,) = refused.value.problems
    assert problem.sentence() == (
        f"AGENT_LAUNCHER: got '{launcher}' beside {recipe}; expected {own}, or unset"
    )


@pytest.mark.parametrize(
    ("environ", "seen", "gpus", "count"),
    [
        ({}, 8, 8, 8),
        ({}, 0, 0, 1),
        ({"AGENT_NUM_CPUS": "4"}, 0, 0, 4),
        ({"AGENT_NUM_CPUS": "4"}, 2, 2, 2),
        ({"AGENT_NUM_GPUS": "3"}, 8, 3, 3),
        ({"AGENT_NUM_GPUS": "0", "AGENT_NUM_CPUS": "2"}, 8, 0, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 8, 2, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 8, 0, 1),
        ({"HIP_VISIBLE_DEVICES": "4,5,6"}, 8, 3, 3),
    ],
)
def test_processes_of_a_node(environ: dict[str, str], seen: int, gpus: int, count: int) -> None:
    """Its GPUs, as far as the job is shown them; else AGENT_NUM_CPUS, else one."""
    settings = load({**BY_TORCHRUN, **environ}).settings
    assert gpus_of(settings, seen, environ) == gpus
    assert processes(gpus, settings) == count


def test_the_command_line_of_a_share() -> None:
    """Rank, nodes, the head's address and the attempt; restarts are the agent's, not torch's."""
    place = SharePlace("1", "2", "fd00::1", "run-2")
    line = Torchrun(PYTHON, 6379, 4, 13.0).command(["python", "t.py", "x"], place)
    assert line == [
        *(PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", "1"),
        *("--master_addr", "[fd00::1]", "--master_port", "6379", "--rdzv_id", "run-2"),
        *("--nproc_per_node", "4", "--max_restarts", "0", "--monitor_interval", "0.05"),
        *("t.py", "x"),
    ]


def test_the_environment_of_a_share() -> None:
    """Another launcher's PET_* defaults go; the user's own shutdown timeout stays."""
    given = {
        "PET_RDZV_ENDPOINT": "elsewhere:1",
        "PET_MONITOR_INTERVAL": "9",
        "PET_LOG_DIR": "/logs",
        "OMP_NUM_THREADS": "4",
    }
    place = SharePlace("1", "2", "10.0.0.1", "run-2")
    made = Torchrun(PYTHON, 6379, 4, 13.7).environment(given, place)
    assert made == {
        "PET_LOG_DIR": "/logs",
        "OMP_NUM_THREADS": "4",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "13",
    }
    own = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    made = Torchrun(PYTHON, 6379, 4, 13.7).environment(own, place)
    assert made["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "5"


@pytest.mark.parametrize(("environ", "rank"), [(HEAD, "0"), (WORKER, "'{rank}'")])
def test_the_plan_shows_each_nodes_share(environ: dict[str, str], rank: str) -> None:
    """Head and worker show torchrun's line; no Ray, no bridge, no check of Ray is left in it."""
    plan = plan_of(environ, "python", "train.py", gpus=8)
    text = render(plan, redactor_for(environ, plan.settings))
    assert f"{PYTHON} -m torch.distributed.run --nnodes 3 --node_rank {rank} " in text
    assert "--nproc_per_node 8" in text
    assert "--max_restarts 0" in text
    assert ("6379         torchrun's rendezvous" in text) == plan.topology.is_head
    assert "8266" in text
    for word in ("ray start", "ray-bridge", "Ray on this node", "Ray GCS", "RAY_prestart"):
        assert word not in text
    assert not plan.processes
    assert not [finding for finding in plan.failed() if finding.check == "ray"]


def test_no_torch_anywhere_is_a_refusal() -> None:
    """The finding names the Pythons that were searched, and a remedy."""
    plan = plan_of(HEAD, "python", "train.py")
    facts = replace(plan.facts, torch=TorchPython("/usr/bin/python3", None, ("/usr/bin/python3",)))
    made = make_plan(load(HEAD, ["train.py"]), plan.topology, facts, HEAD, {})
    (finding,) = [finding for finding in made.failed() if finding.check == "torch"]
    assert "/usr/bin/python3" in finding.what
    assert finding.remedy


def test_a_public_address_needs_insisting() -> None:
    """The rendezvous has no token auth: a token of the agent's guards nothing of it."""
    public = {"eth0": ("8.8.4.4",)}
    for extra, level in (({}, Level.FAIL), ({"AGENT_ALLOW_INSECURE": "1"}, Level.WARN)):
        environ = {**BY_TORCHRUN, "RAY_AUTH_TOKEN": "secret-enough", **extra}
        loaded = load(environ, ["train.py"])
        facts = replace(machine(environ), interfaces=public, torch=TorchPython(PYTHON, "2.13"))
        plan = make_plan(loaded, resolve(environ, loaded.settings, facts), facts, environ, {})
        (finding,) = [finding for finding in plan.findings if finding.check == "addresses"]
        assert finding.level is level


def test_the_jobs_environment_has_no_ray_and_no_token() -> None:
    """W&B's key is the job's, the cluster's token is the agent's; NCCL's interface is set."""
    environ = {**HEAD, "RAY_AUTH_TOKEN": "secret-enough", "WANDB_API_KEY": "wandb-key-of-mine"}
    found = plan_of(environ, "train.py").environment("10.0.0.5", "10.0.0.5")
    assert found["WANDB_API_KEY"] == "wandb-key-of-mine"
    assert found["NCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == "eth0"
    assert [name for name in found if name.startswith("RAY_")] == []


# --- which Python --------------------------------------------------------------------------------


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put something that looks like torch where Pythons find it."""
    (tmp_path / "torch/distributed").mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('imported: takes seconds')\n")
    (tmp_path / "torch-2.12.1.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_named_python_is_asked_first(torch: Path) -> None:
    """The Python that the command names is the job's, and torch is not imported to be found."""
    assert read.find_torch(str(torch), sys.executable) == TorchPython(sys.executable, "2.12.1")


def test_a_named_python_without_torch_is_reported(tmp_path: Path) -> None:
    """No other Python is searched, since the job would run in the named one."""
    found = read.find_torch(str(tmp_path), sys.executable)
    assert (found.version, found.asked) == (None, (sys.executable,))


def test_the_python_of_torchrun_on_path(torch: Path) -> None:
    """`torchrun` on PATH leads to its Python, even where `python` is missing."""
    script = torch / "torchrun"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    assert read.find_torch(str(torch), "python").executable == sys.executable
    assert read.find_torch(str(torch), None).version == "2.12.1"


def test_a_plan_searches_torch_only_for_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with Ray starts no Python to ask it for torch."""
    monkeypatch.setattr(read, "find_torch", lambda *_: pytest.fail("torch was looked for"))
    assert plan_input.plan_from_environment({}, ["true"]).facts.torch is None
