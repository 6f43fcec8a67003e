"""Runs are started in pods by the files that `init` writes, and by the steps that it prints.

Each test prints what it replaces, which only the platform has: the rest is what a user gets.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support import hub, stand_in_containers, stand_in_prime_rl, stand_in_slime
from support import played_platforms as played
from support.lab_frameworks import TORCH
from support.played_platforms import Parts, Platform
from support.road import Road, walked
from support.scenario import BOOT, REPO, Cluster, Process, ends, stale_samples
from support.slurm_cluster import Job, SlurmCluster, need_slurm
from support.stand_in_packages import (
    framework_wheel,
    git_variables,
    index_variables,
    openrlhf_m_image,
    ray_wheel,
    search_r1_image,
    verl_repository,
    wheel,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from _pytest.mark import ParameterSet

IMAGE = ("--image", "ghcr.io/acme/rl:1")
RAY = {"ray[default]==2.52.0": "ray[default]"}
"""What is replaced in every file: the lab's image has another version of Ray."""


class Start(NamedTuple):
    """How a platform's rehearsal is started."""

    play: Callable[[Platform], Sequence[Process]]
    words: tuple[str, ...] = ()


STARTS = {
    "dstack": Start(played.dstack),
    "skypilot": Start(played.skypilot),
    "runpod": Start(played.runpod),
    "runpod cluster": Start(played.runpod, ("--kind", "cluster")),
    "kubernetes trainjob": Start(played.kubernetes, ("--kind", "trainjob")),
    "kubernetes pytorchjob": Start(played.kubernetes, ("--kind", "pytorchjob")),
    "kubernetes lws": Start(played.kubernetes, ("--kind", "lws")),
    "kuberay": Start(played.kuberay),
    "ssh": Start(played.ssh),
}
PODS = {"kuberay": 3}  # one of them submits
HELD = {"kubernetes lws", "runpod cluster"}
"""Where a container that has ended would be started again."""


def written(
    start: str,
    words: Sequence[str],
    cluster: Cluster,
    folder: Path,
    at: Path | None = None,
) -> Road:
    """Have `init` write the files of a start for the pods of the lab."""
    name = start.partition(" ")[0]
    nodes = ("--nodes", "2")
    if name == "ssh":
        nodes = ("--hosts", ",".join(pod.ip for pod in cluster.pods))
    return walked(folder, name, *nodes, *words, at=at, replaced=RAY)


def finish(start: str, agents: Sequence[Process], cluster: Cluster, disk: Path) -> None:
    """Wait for the end: 0 on every node; some platforms' pods are held with it."""
    if start in HELD:
        for agent in cluster.started:
            agent.wait_for("holding the pod", timeout=2 * BOOT)
        folders = [disk, *(pod.tmp.parent / "volumes" / "volume" for pod in cluster.pods)]
        outcomes = [file for one in folders for file in one.glob("agent-logs/*/*/outcome.json")]
        assert {json.loads(file.read_text())["exit_code"] for file in outcomes} == {0}
    else:
        assert set(ends(agents, 2 * BOOT)) == {0}, agents[0].tail()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.pods(PODS.get(name, 2))) for name in STARTS]
)
def test_the_rehearsal(name: str, cluster: Cluster, shared: Path, tmp_path: Path) -> None:
    """Both nodes join, train, and end with 0."""
    start = STARTS[name]
    road = written(name, ("rehearsal", *start.words), cluster, tmp_path)
    agents = start.play(Platform(cluster, road, shared))
    finish(name, agents, cluster, shared)
    head = agents[0]
    assert "step 40/40" in head.stdout()
    assert "nodes          2 of 2" in head.stderr()
    if name == "ssh":
        (worker,) = road.folder.glob("*.log")
        assert "exit code 0" in worker.read_text()


# --- a command of one's own --------------------------------------------------------------------

TRAIN = """
import os, pathlib, sys
import ray
from trainer.sizes import SIZES
ray.init()
files = (path for path in pathlib.Path().rglob("*") if path.is_file())
names = sorted(str(path) for path in files if path.suffix != ".pyc")
saved = pathlib.Path(sys.argv[2], "checkpoint-3")
saved.mkdir(parents=True)
(saved / "trainer_state.json").write_text("{}")
print("own code on", sys.argv[1], "nodes:", SIZES, names, flush=True)
"""
OWN = ("--", "python3", "train.py", "{nodes}", "{checkpoints}")
SENT = "own code on 2 nodes: [7] ['train.py', 'trainer/sizes.py']"


def own_code(folder: Path) -> Path:
    """Return a folder with a train.py, what it imports, and what must not be sent."""
    code = folder / "code"
    (code / "trainer").mkdir(parents=True)
    (code / "train.py").write_text(TRAIN)
    (code / "trainer/sizes.py").write_text("SIZES = [7]\n")
    (code / ".env").write_text("HF_TOKEN=secret\n")
    (code / "wandb").mkdir()
    (code / "wandb/run.log").touch()
    return code


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.pods(PODS.get(name, 2))) for name in STARTS]
)
def test_a_command_of_ones_own(name: str, cluster: Cluster, shared: Path, tmp_path: Path) -> None:
    """`init` in the folder of a train.py sends it with what it imports, and no credentials."""
    start = STARTS[name]
    gpus = "1" if name.startswith("runpod") else "0"  # it rents no pod without one
    words = ("--gpus", gpus, *IMAGE, *start.words, *OWN)
    road = written(name, words, cluster, tmp_path, own_code(tmp_path))
    agents = start.play(Platform(cluster, road, shared))
    finish(name, agents, cluster, shared)
    head = agents[0]
    assert SENT in head.stdout(), head.tail()
    (line,) = [line for line in head.stderr().splitlines() if "newest checkpoint: " in line]
    assert line.partition(" · ")[0].endswith("/command/checkpoint-3")


GROUPS = {
    "dstack": Start(played.dstack, ("--volume", "disk")),
    "skypilot": Start(played.skypilot, ("--volume", "disk", "--center", "k8s")),
    "kubernetes lws": Start(played.kubernetes, ("--kind", "lws")),
}
ASYNC = (
    *("--", "pod-agent", "rehearsal-async", "--engines", "{addresses:engine|space}", "--keep"),
    *("--weights-dir", "{checkpoints}/weights", "--checkpoints", "{checkpoints}"),
    *("--reward-url", "{reward_url}", "--steps", "10"),
)


@pytest.mark.pods(4)
@pytest.mark.parametrize("name", GROUPS)
def test_the_platforms_groups(name: str, cluster: Cluster, shared: Path, tmp_path: Path) -> None:
    """Engines on nodes of the platform's own group serve a trainer on those of the other."""
    start = GROUPS[name]
    services = ("--services", str(REPO / "examples/services/groups.toml"))
    words = ("--gpus", "2", *IMAGE, *start.words, *services, *ASYNC)
    road = walked(tmp_path, name.partition(" ")[0], "--nodes", "4", *words, replaced=RAY)
    parts = Parts({"AGENT_REWARD": "builtin"}, {})
    agents = start.play(Platform(cluster, road, shared, parts, gpus=2))
    finish(name, agents, cluster, shared)
    head = agents[0]
    assert "step 10/10" in head.stdout(), head.tail()
    assert stale_samples(head.stdout()) == 0
    assert len(re.findall(r"engine\.1 on .* answers", head.stderr())) == 2, head.tail()


# --- recipes -----------------------------------------------------------------------------------

INDEX = "/srv/index"
HOSTED = "/srv/hosted"
GPUS = 2


def verl(folder: Path) -> Parts:
    """Return verl's repository, which start files clone."""
    verl_repository(folder)
    return Parts(git_variables(HOSTED), {HOSTED: folder})


def by_pip(folder: Path) -> Parts:
    """Return an index with what start files install, and what an image has of torch."""
    framework_wheel(folder, "openrlhf", "0.11.2", "vllm")
    wheel(folder, "trl-1.16.0", {"trl/__init__.py": b""}, "vllm")
    return Parts({**index_variables(INDEX), "PYTHONPATH": str(TORCH)}, {INDEX: folder})


def search_r1(folder: Path) -> Parts:
    """Return an image for Search-R1."""
    return Parts({}, search_r1_image(folder))


def openrlhf_m(folder: Path) -> Parts:
    """Return an image for OpenRLHF-M."""
    return Parts({}, openrlhf_m_image(folder))


def prime_rl(folder: Path) -> Parts:
    """Return prime-rl's image, which has its programs on no PATH."""
    programs = "/app/.venv/bin"
    stand_in_prime_rl.install(folder, [str(REPO / "tests"), str(REPO)])
    env = {"PYTHONPATH": f"{programs}/packages:{REPO}", stand_in_prime_rl.STEPS: "8"}
    return Parts(env, {programs: folder})


def slime(folder: Path) -> Parts:
    """Return slime's image, and the data that a start file would get."""
    code = folder / "slime"
    stand_in_slime.install(code, str(REPO / "tests"), str(REPO), "/tmp", 8)
    data = folder / "data"
    data.mkdir()
    (data / "dapo-math-17k.jsonl").touch()
    places = {"/root/slime": code, "/root/data/dapo-math-17k": data}
    return Parts({"PYTHONPATH": f"/root/slime/packages:{REPO}"}, places)


class Training(NamedTuple):
    """A recipe on a platform; `shown`: what the job prints once all that it needs is there."""

    start: str
    recipe: str
    parts: Callable[[Path], Parts]
    shown: tuple[str, ...]
    words: tuple[str, ...] = ()


ON_K8S = ("--volume", "disk", "--center", "k8s")
TRAININGS = (
    Training("dstack", "verl-grpo", verl, ("verl: 2 x 2 GPUs", "saved global_step_20")),
    Training("skypilot", "openrlhf-grpo", by_pip, ("openrlhf: 2 x 2 GPUs", "score 1.0")),
    Training("kubernetes lws", "search-r1-ppo", search_r1, ("search-r1: 2 x 2 GPUs",), IMAGE),
    Training("runpod", "openrlhf-m-grpo", openrlhf_m, ("openrlhf-m: 2 x 2", "score 1.0"), IMAGE),
    Training("kuberay", "verl-ppo", verl, ("verl: 2 x 2 GPUs", "saved global_step_20")),
    Training("ssh", "openrlhf-sft", by_pip, ("train_sft: rank 0 of 4", "saved global_step20")),
    Training("kubernetes trainjob", "trl-grpo", by_pip, ()),
    Training("dstack", "prime-rl", prime_rl, ("rl: 2 workers", "step 8/8"), ("--volume", "disk")),
    Training("skypilot", "slime-grpo", slime, ("slime: 1 x 2 GPUs", "step 8/8"), ON_K8S),
)


def row(training: Training) -> ParameterSet:
    """Return a row of the table, with the number of its pods."""
    pods = pytest.mark.pods(PODS.get(training.start, 2))
    return pytest.param(training, marks=pods, id=f"{training.recipe} on {training.start}")


@pytest.mark.parametrize("training", [row(training) for training in TRAININGS])
def test_a_recipe(training: Training, cluster: Cluster, shared: Path, tmp_path: Path) -> None:
    """Its framework, a stand-in, gets the arguments, the data and the services of the start file.

    TRL has no stand-in: its program starts on every node, and ends since there is no TRL.
    """
    start = STARTS[training.start]
    words = (training.recipe, "--gpus", str(GPUS), *start.words, *training.words)
    road = written(training.start, words, cluster, tmp_path)
    parts = training.parts(tmp_path / "parts")
    agents = start.play(Platform(cluster, road, shared, parts, GPUS))
    head = agents[0]
    if not training.shown:
        assert 0 not in ends(agents, 2 * BOOT)
        assert "job            trl-grpo, attempt 1 of 1" in head.stderr()
        print(f"{training.recipe}: its program was started; {head.stderr().splitlines()[-1]}")
        return
    finish(training.start, agents, cluster, shared)
    for text in training.shown:
        assert text in head.stdout(), head.tail()


# --- Slurm -------------------------------------------------------------------------------------


def submit(slurm: SlurmCluster, road: Road, env: Mapping[str, str]) -> Job:
    """Type the steps on the first node, which stands for the login node; return the job."""
    *typed, last = road.steps
    sent, _, watch = last.partition(" && tail -F ")
    print(f"played by the test: tail -F {watch}")
    typed += [sent, 'echo "$job"']
    login = next(iter(slurm.nodes.values()))
    path = f"{road.programs}:{played.SEARCHED}"
    submitted = login.spawn(["bash", "-ec", "\n".join(typed)], env={"PATH": path, **env})
    assert submitted.wait(2 * BOOT) == 0, submitted.tail()
    number = submitted.stdout().split()[-1]
    log = watch.split()[0].replace("${job%%;*}", number)
    return Job(slurm, number, road.folder / log, submitted)


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the one file for this Python, by the libraries of a package index."""
    target = f"cp3{sys.version_info[1]}-{platform.machine()}"
    made = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "tools.build", "--for", target, "--to", str(made)]
    environ = {**os.environ, "PYTHONPATH": str(REPO / "scripts")}
    done = subprocess.run(
        build, cwd=REPO, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"the one file cannot be built here: {done.stderr[-300:]}")
    return made / f"pod-agent-{target}"


@pytest.mark.pods(2)
def test_slurm(cluster: Cluster, shared: Path, one_file: Path) -> None:
    """`fetch.sh` makes a Python with Ray; a real Slurm runs the rehearsal on both nodes."""
    need_slurm()
    slurm = SlurmCluster(cluster.lab, shared)
    slurm.up()
    words = ("slurm", "rehearsal", "--nodes", "2", "--agent", str(one_file))
    road = walked(shared, *words)
    ray_wheel(shared / "index")
    print("replaced: the package index by a folder that has the lab's Ray")
    job = submit(slurm, road, index_variables(str(shared / "index")))
    assert job.state(2 * BOOT, "COMPLETED", "FAILED")["ExitCode"] == "0:0", job.text()
    assert "step 40/40" in job.text()
    assert "nodes          2 of 2" in job.text()


@pytest.mark.pods(2)
@pytest.mark.parametrize("container", ["pyxis", "podman"])
def test_slurm_in_a_container(
    container: str, cluster: Cluster, shared: Path, one_file: Path
) -> None:
    """`fetch.sh` makes an image with Ray, in which a real Slurm runs the rehearsal."""
    need_slurm()
    slurm = SlurmCluster(cluster.lab, shared)
    slurm.up()
    words = ("slurm", "rehearsal", "--container", container, "--nodes", "2")
    road = walked(shared, *words, "--agent", str(one_file), replaced=RAY)
    (road.folder / "fetch.sh").write_text(road.text("fetch.sh"))
    names = {"pyxis": ("enroot", "srun"), "podman": ("podman",)}[container]
    for name in names:
        stand_in_containers.install(road.programs, name)
        print(f"replaced: {name} by one that takes the machine's own files for the image")
    job = submit(slurm, road, {"PIP_NO_INDEX": "1"})
    assert job.state(2 * BOOT, "COMPLETED", "FAILED")["ExitCode"] == "0:0", job.text()
    assert "step 40/40" in job.text()
    assert "nodes          2 of 2" in job.text()


@pytest.mark.pods(2)
def test_slurm_with_a_command_of_ones_own(cluster: Cluster, shared: Path) -> None:
    """It runs in the folder of its script; the agent is the wheel that `fetch.sh` installed."""
    need_slurm()
    slurm = SlurmCluster(cluster.lab, shared)
    slurm.up()
    words = ("slurm", "--container", "pyxis", "--nodes", "2", "--gpus", "0", *IMAGE, *OWN)
    road = walked(shared, *words, at=own_code(shared))
    if not list(road.folder.glob("*.whl")):
        pytest.skip("a one file is at hand here, which is preferred")
    for name in ("enroot", "srun"):
        stand_in_containers.install(road.programs, name)
        print(f"replaced: {name} by one that takes the machine's own files for the image")
    job = submit(slurm, road, {"PIP_NO_INDEX": "1"})
    assert job.state(2 * BOOT, "COMPLETED", "FAILED")["ExitCode"] == "0:0", job.text()
    assert "own code on 2 nodes: [7]" in job.text()
    assert f"newest checkpoint: {road.folder}/checkpoints/command/checkpoint-3" in job.text()


@pytest.mark.pods(2)
def test_slurm_with_apptainer(cluster: Cluster, shared: Path, one_file: Path) -> None:
    """`fetch.sh` fetches image, repository, model and data; the nodes train without a network."""
    need_slurm()
    try:
        packages = hub.client()
    except (OSError, subprocess.SubprocessError) as problem:
        pytest.skip(f"huggingface_hub cannot be installed here: {problem}")
    slurm = SlurmCluster(cluster.lab, shared)
    slurm.up()
    words = ["slurm", "verl-grpo", "--container", "apptainer", "--nodes", "2", "--gpus", "2"]
    words += ["--model", hub.MODEL, "--agent", str(one_file)]
    no_gpus = {"#SBATCH --gpus-per-node=2": "# (this Slurm has no GPUs)"}
    road = walked(shared, *words, replaced=no_gpus)
    batch = road.folder / "verl-grpo.sbatch"
    batch.write_text(road.text(batch.name))

    # What is on the network of the login node alone.
    stand_in_containers.install(road.programs, "apptainer")
    (road.programs / "python3").write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} "$@"\n'
    )
    (road.programs / "python3").chmod(0o755)
    verl_repository(shared / "hosted")
    login = next(iter(slurm.nodes.values()))
    served = login.spawn([sys.executable, "-m", "support.hub"], cwd=REPO / "tests")
    served.wait_for("the hub listens")
    env = {
        **git_variables(str(shared / "hosted")),
        "HF_ENDPOINT": "http://127.0.0.1:9100",
        "HF_HUB_DISABLE_XET": "1",
        "AGENT_NUM_GPUS": str(GPUS),
        "AGENT_NUM_CPUS": "24",
    }
    print("replaced: apptainer, GitHub and the hub by stand-ins, GPUs by AGENT_NUM_GPUS")
    job = submit(slurm, road, env)
    assert job.state(2 * BOOT, "COMPLETED", "FAILED")["ExitCode"] == "0:0", job.text()
    for text in (f"verl: 2 x 2 GPUs, model {hub.MODEL}", "saved global_step_20"):
        assert text in job.text()
