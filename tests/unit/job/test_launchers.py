"""Launchers without Ray: torchrun's part of a command, a command once on each node, its end."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.errors import SettingsError
from agent.checks.finding import Level
from agent.frameworks.prime_rl import FRAMEWORK
from agent.job.job import fill
from agent.job.node_command import NodeCommand, node_problems
from agent.job.services import Placeholders
from agent.job.share import SharePlace, gpus_of, processes
from agent.job.torchrun_command import (
    Torchrun,
    command_fault,
    first_failure,
    seconds_since_closing,
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
from support.golden import assert_golden

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.plan.plan import Plan

PYTHON = "/opt/conda/bin/python3"
GOLDEN = Path(__file__).parents[2] / "data" / "launchers"
BY_TORCHRUN, BY_NODE = {"AGENT_LAUNCHER": "torchrun"}, {"AGENT_LAUNCHER": "node"}
HEAD = {"AGENT_HEAD": "10.0.0.5", "EXPECTED_WORKERS": "2"}
WORKER = {**HEAD, "AGENT_HEAD": "10.0.0.9", "AGENT_NODE_IP": "10.0.0.5"}
ACCELERATE = (
    *("accelerate", "launch", "--num_machines", "{nodes}", "--machine_rank", "{rank}"),
    *("--main_process_ip", "{head_ip}", "--main_process_port", "{master_port}"),
    *("--num_processes", "{total_gpus}", "train.py", "{other}"),
)
PLACE = SharePlace("1", "3", "10.0.0.5", "run-2")


def without_ray(environ: dict[str, str]) -> Facts:
    """Return a machine with eight GPUs that has torch and no Ray."""
    facts = machine(environ)
    ray = replace(facts.ray, version=None)
    return replace(facts, ray=ray, torch=TorchPython(PYTHON, "2.13.0"))


def plan_of(environ: dict[str, str], *command: str, facts: Facts | None = None) -> Plan:
    """Make the plan of such a machine."""
    loaded = load(environ, list(command) or None)
    facts = facts or without_ray(environ)
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
    words = command.split()
    (problem,) = torchrun_problems(load(BY_TORCHRUN, words).settings, words, wants_job=True)
    assert problem.variable == "--"
    assert named in problem.got


@pytest.mark.parametrize(
    "command", ["python train.py", "torchrun --nnodes 2 t.py", "accelerate launch t.py", "./go.sh"]
)
def test_the_command_of_a_node_is_taken_word_for_word(command: str) -> None:
    """A leading python, torchrun or accelerate stays, unlike with AGENT_LAUNCHER=torchrun."""
    words = command.split()
    settings = load(BY_NODE, words).settings
    assert node_problems(settings, words, wants_job=True) == ()
    assert NodeCommand(6379, 8, 13.0).command(words, PLACE) == words


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


def test_a_recipe_by_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# --- command and environment of a node -----------------------------------------------------------


def test_torchruns_command_line() -> None:
    """Rank, nodes, the head's address and the attempt; restarts are the agent's, not torch's."""
    place = SharePlace("1", "2", "fd00::1", "run-2")
    line = Torchrun(PYTHON, 6379, 4, 13.0).command(["python", "t.py", "x"], place)
    assert line == [
        *(PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", "1"),
        *("--master_addr", "[fd00::1]", "--master_port", "6379", "--rdzv_id", "run-2"),
        *("--nproc_per_node", "4", "--max_restarts", "0", "--monitor_interval", "0.05"),
        *("t.py", "x"),
    ]


def test_the_placeholders_of_a_node() -> None:
    """Rank, port and the number of all nodes, with and without GPUs; other braces stay."""
    own = NodeCommand(6379, 8, 13.0).placeholders(PLACE)
    place = Placeholders(head_ip="10.0.0.5", log_dir="/logs")
    assert fill(ACCELERATE, [0, 8, 8], place, "", 2, "/saved", own) == [
        *("accelerate", "launch", "--num_machines", "3", "--machine_rank", "1"),
        *("--main_process_ip", "10.0.0.5", "--main_process_port", "6379"),
        *("--num_processes", "16", "train.py", "{other}"),
    ]


def test_only_the_node_launcher_has_rank_and_port() -> None:
    """With Ray a {rank} in the job's command stays as it is, and a warning names it."""
    words = ("{rank}", "{master_port}")
    assert fill(words, [8], Placeholders(), "", 1, "") == [*words]
    plan = plan_of({**BY_NODE, **HEAD}, *ACCELERATE)
    slips = [one.what for one in plan.findings if one.check == "placeholders"]
    assert slips == ["{other} in the job's command is no placeholder and stays as it is"]


def test_the_environment_of_a_share() -> None:
    """Another launcher's PET_* defaults go; the user's own shutdown timeout stays."""
    kept = {"PET_LOG_DIR": "/logs", "OMP_NUM_THREADS": "4"}
    given = {"PET_RDZV_ENDPOINT": "elsewhere:1", "PET_MONITOR_INTERVAL": "9", **kept}
    by_torchrun = Torchrun(PYTHON, 6379, 4, 13.7)
    made = by_torchrun.environment(given, PLACE)
    assert made == {**kept, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "13"}
    own = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    assert by_torchrun.environment(own, PLACE) == own

    # By node, the agent's values replace a platform's: all five must describe one set of nodes.
    by_node = NodeCommand(6379, 8, 13.7)
    assert by_node.environment({"MASTER_ADDR": "elsewhere", "RANK": "7", **own}, PLACE) == {
        "RANK": "7",
        "NNODES": "3",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.5",
        "MASTER_PORT": "6379",
        "NPROC_PER_NODE": "8",
        "AGENT_ATTEMPT_ID": "run-2",
        **own,
    }
    assert by_node.environment({}, PLACE)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "13"


# --- the plan ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "environ"),
    [
        ("node-head", {**BY_NODE, **HEAD, "RAY_WORKER": "0"}),
        ("node-worker", {**BY_NODE, **WORKER, "RAY_WORKER": "1"}),
    ],
)
def test_golden(name: str, environ: dict[str, str]) -> None:
    """The plan shows the command of this node, its environment and port, and no Ray."""
    plan = plan_of(environ, *ACCELERATE, facts=replace(without_ray(environ), torch=None))
    text = render(plan, redactor_for(environ, plan.settings)) + "\n"
    text = text.replace(shlex.quote(sys.executable), "PYTHON")
    assert_golden(GOLDEN / f"{name}.plan.txt", text)
    assert "ray start" not in text


@pytest.mark.parametrize(("place", "rank"), [(HEAD, "0"), (WORKER, "'{rank}'")])
def test_the_plan_shows_each_nodes_share(place: dict[str, str], rank: str) -> None:
    """Head and worker show torchrun's line; no Ray, no bridge, no check of Ray is left in it."""
    environ = {**BY_TORCHRUN, **place}
    plan = plan_of(environ, "python", "train.py")
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


def test_torch_is_required_by_torchrun_alone() -> None:
    """The finding names the Pythons that were searched; by node only AGENT_PREFLIGHT needs it."""
    none = TorchPython("/usr/bin/python3", None, ("/usr/bin/python3",))
    facts = replace(without_ray(HEAD), torch=none)
    failed = plan_of({**BY_TORCHRUN, **HEAD}, "train.py", facts=facts).failed()
    (finding,) = [finding for finding in failed if finding.check == "torch"]
    assert "/usr/bin/python3" in finding.what
    assert finding.remedy
    by_node, facts = {**BY_NODE, **HEAD}, replace(facts, torch=None)
    assert plan_of(by_node, "bash", "go.sh", facts=facts).failed() == ()
    failed = plan_of({**by_node, "AGENT_PREFLIGHT": "nccl"}, "bash", "go.sh", facts=facts).failed()
    assert [one.check for one in failed] == ["torch"]


def test_a_missing_program_is_refused_on_every_node() -> None:
    """Every node runs the command, so a worker's own is checked, too."""
    environ = {**BY_NODE, **WORKER}
    facts = replace(without_ray(environ), program_fault="'no-such' is no program on PATH")
    (finding,) = plan_of(environ, "no-such", facts=facts).failed()
    assert (finding.check, finding.level) == ("job", Level.FAIL)


@pytest.mark.parametrize(
    ("more", "level"), [({}, Level.FAIL), ({"AGENT_ALLOW_INSECURE": "1"}, Level.WARN)]
)
def test_a_public_address_needs_insisting(more: dict[str, str], level: Level) -> None:
    """The rendezvous has no token auth: a token of the agent's guards nothing of it."""
    environ = {**BY_TORCHRUN, "RAY_AUTH_TOKEN": "secret-enough", **more}
    facts = replace(without_ray(environ), interfaces={"eth0": ("8.8.4.4",)})
    plan = plan_of(environ, "train.py", facts=facts)
    (finding,) = [finding for finding in plan.findings if finding.check == "addresses"]
    assert finding.level is level


def test_the_jobs_environment_has_no_ray_and_no_token() -> None:
    """W&B's key is the job's, the cluster's token is the agent's; NCCL's interface is set."""
    environ = {**BY_TORCHRUN, **HEAD, "RAY_AUTH_TOKEN": "secret-enough", "WANDB_API_KEY": "my-key"}
    found = plan_of(environ, "train.py").environment("10.0.0.5", "10.0.0.5")
    assert found["WANDB_API_KEY"] == "my-key"
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


def test_the_python_of_torchrun(torch: Path) -> None:
    """The one that the command names, without importing torch; else that of torchrun on PATH."""
    assert read.find_torch(str(torch), sys.executable) == TorchPython(sys.executable, "2.12.1")
    script = torch / "torchrun"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    assert read.find_torch(str(torch), "python").executable == sys.executable
    assert read.find_torch(str(torch), None).version == "2.12.1"


def test_a_named_python_without_torch_is_reported(tmp_path: Path) -> None:
    """No other Python is searched, since the job would run in the named one."""
    found = read.find_torch(str(tmp_path), sys.executable)
    assert (found.version, found.asked) == (None, (sys.executable,))


def test_a_plan_searches_torch_only_for_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with Ray starts no Python to ask it for torch."""
    monkeypatch.setattr(read, "find_torch", lambda *_: pytest.fail("torch was looked for"))
    assert plan_input.plan_from_environment({}, ["true"]).facts.torch is None


# --- the first rank that failed: messages of torch 1.13, 2.1 and 2.13 ----------------------------

NOON = 12 * 3600.0
OF_TORCH = "17301 torch/distributed/elastic/multiprocessing/api.py"
FAILURE = "failed (exitcode: {}) local_rank: 1 (pid: 17306) of binary: /opt/conda/bin/python"
CLOSING = f"W1122 11:59:50.500000 {OF_TORCH}:1028] Sending process 17305 closing signal SIGTERM"
FAILED = f"E1122 11:59:58.250000 {OF_TORCH}:1002] {FAILURE}"
OLDER = (
    "[2026-11-22 11:59:58,250] torch.distributed.elastic.multiprocessing.api: [ERROR] " + FAILURE
)
OLDEST = f"ERROR:torch.distributed.elastic.multiprocessing.api:{FAILURE}"
TOLD = (
    "W1122 11:59:49.000000 17301 torch/distributed/elastic/agent/server/api.py:1] "
    "Received Signals.SIGTERM death signal, shutting down workers"
)
SUMMARY = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
f.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_05:27:58
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 17305)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 17305
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_05:27:58
  host      : localhost
  rank      : 5 (local_rank: 1)
  exitcode  : {} (pid: 17306)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.parametrize(("printed_code", "code"), [("7", 7), ("-9", 137), ("1", 1), ("-6", 134)])
@pytest.mark.parametrize(
    ("text", "now", "ago"),
    [
        (FAILED, NOON, 1.75),
        (OLDER, NOON, 1.75),
        (OLDEST, NOON, 0.0),
        (f"step 3\n{CLOSING}\nbye\n{FAILED}\n{SUMMARY}", NOON, 9.5),
        (f"{TOLD}\n{CLOSING}\n{FAILED}", NOON, 1.75),
        (FAILED.replace("11:59:58.25", "23:59:59.25"), 0.5, 1.25),
        (FAILED, NOON - 60, 0.0),
    ],
    ids=["2.13", "2.1", "1.13", "closing", "stopped", "midnight", "a clock that was set back"],
)
def test_the_first_failure(text: str, now: float, ago: float, printed_code: str, code: int) -> None:
    """Its code as a shell tells it, its local rank, and how long ago torchrun noticed."""
    found = first_failure(text.replace("{}", printed_code), now)
    assert found is not None
    assert (found.code, found.local_rank) == (code, 1)
    assert found.ago == pytest.approx(ago)


@pytest.mark.parametrize(
    "text", ["", "step 1\n", TOLD, f"{TOLD}\n{CLOSING}", "failed (exitcode: x)"]
)
def test_no_failure(text: str) -> None:
    """A rank that was stopped has not failed; nor has one without a message."""
    assert first_failure(text, NOON) is None
    assert seconds_since_closing(text, NOON) is None


@given(st.text(max_size=300))
def test_any_output_can_be_read(text: str) -> None:
    """A job may write anything."""
    first_failure(text + FAILED, NOON)


def test_a_torchrun_below_a_nodes_command() -> None:
    """Its rank and time count, not its code; a report of an earlier torchrun does not count."""
    command = NodeCommand(6379, 8, 13.0)
    report = f"{CLOSING}\n{FAILED}\n".replace("{}", "9")
    end = command.end(3, report, NOON)
    assert end is not None
    assert (end.code, end.local_rank, end.ago) == (3, 1, 9.5)
    assert command.is_closing(f"{CLOSING}\n", NOON)
    later = NOON + 3600.0
    assert command.end(3, report, later) is None
    assert not command.is_closing(f"{CLOSING}\n", later)
