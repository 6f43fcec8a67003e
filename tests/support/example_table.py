"""The examples: how each is started, the expected result, and its plan."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.base.value import Value
from agent.plan.make import make_plan
from agent.platforms.resolve import resolve
from agent.settings import load
from agent.settings.model import SECRET_FILE_VARIABLES
from support.clusters import cluster
from support.launches import (
    EXAMPLES,
    TOKEN,
    Launch,
    Shell,
    documents,
    dstack,
    dstack_groups,
    instant_cluster,
    job_group,
    launched,
    leader_worker_sets,
    pods,
    runpod_pods,
    sbatch,
    skypilot,
)

if TYPE_CHECKING:
    from types import ModuleType

    from agent.plan.plan import Plan

VERL = "verl.trainer.main_ppo"
OPENRLHF = "openrlhf.cli.train_ppo_ray"
SLIME = "train.py"
IN_THE_CONTAINER = {"/run/pod-agent/token": TOKEN}
"""The secret files that an example mounts."""


def make_pods() -> ModuleType:
    """Load the script that makes RunPod's pods."""
    spec = importlib.util.spec_from_file_location("pods", EXAMPLES / "runpod/pods.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def runpod(folder: Path) -> list[Launch]:
    """Return the pods that pods.py makes of pod.json."""
    script = make_pods()
    bodies: list[dict[str, Any]] = []

    def call(_method: str, _path: str, body: dict[str, Any]) -> dict[str, str]:
        bodies.append(body)
        return {"id": f"pod{len(bodies) - 1}"}

    script.call = call  # type: ignore[attr-defined] # a module's function
    script.make_pods()
    return runpod_pods(folder, bodies)


def by_sbatch(path: str, folder: Path) -> list[Launch]:
    """Return the agents that a batch script starts."""
    shell = Shell.make(folder)
    assert sbatch(shell, path) == 0
    return launched(shell, is_first_process="amd" in path)


def by_ssh(folder: Path) -> list[Launch]:
    """Return the agents that the loop starts on the machines that it names."""
    shell = Shell.make(folder)
    assert shell.run(shell.loop(), {"RAY_AUTH_TOKEN": TOKEN}) == 0
    return [Launch(call.argv, call.environ, call.place) for call in shell.agents()]


def lws(folder: Path) -> list[Launch]:
    """Return the pods of a LeaderWorkerSet's group."""
    template = documents("kubernetes/lws.yaml")[0]["spec"]["leaderWorkerTemplate"]
    assert "leaderTemplate" not in template
    return pods(folder, template["workerTemplate"], "lws", template["size"])


def trainjob(folder: Path) -> list[Launch]:
    """Return the pods of a TrainJob, which uses the settings of its runtime."""
    runtime, job = documents("kubernetes/kubeflow-trainjob.yaml")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["runtimeRef"]["kind"] == runtime["kind"]
    nodes = runtime["spec"]["mlPolicy"]["numNodes"]
    return pods(folder, runtime_template(runtime), "kubeflow-trainer", nodes)


def runtime_template(runtime: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of a training runtime."""
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    template: dict[str, Any] = node["template"]["spec"]["template"]
    return template


def pytorchjob(folder: Path) -> list[Launch]:
    """Return the pods of a PyTorchJob, its master first."""
    replicas = documents("kubernetes/pytorchjob.yaml")[0]["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["replicas"] == 1
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    nodes = 1 + replicas["Worker"]["replicas"]
    return pods(folder, replicas["Worker"]["template"], "pytorchjob, by PET", nodes)


class Example(Value):
    """An example, and its expected result."""

    start: Callable[[Path], list[Launch]]
    cluster: str
    nodes: int
    program: str | None
    """The module or program that the job runs; None for the rehearsal."""
    reward: str | None
    """How the reward server is started; None if the framework scores by itself."""
    on_done: str = "exit"
    grace: float = 30.0
    """The platform's time between its stop signal and its kill."""
    retries: int = 0
    """Additional attempts, if the platform restarts a lost run or node, and the job resumes."""
    taken: frozenset[str] = frozenset()
    """Ports of the platform's own Ray, which is never stopped."""


BUNDLED = "reward-server"
EXAMPLE = {
    "runpod/pod.json": Example(
        runpod, "runpod", 2, OPENRLHF, "math_verifier", "stop-pod", retries=3
    ),
    "runpod/instant-cluster.json": Example(
        instant_cluster, "runpod-cluster", 2, OPENRLHF, BUNDLED, "hold", retries=3
    ),
    "dstack/verl-grpo.dstack.yml": Example(dstack, "dstack", 3, VERL, None, grace=300, retries=3),
    "slurm/plain.sbatch": Example(
        partial(by_sbatch, "slurm/plain.sbatch"), "slurm", 2, VERL, None, retries=3
    ),
    "slurm/apptainer.sbatch": Example(
        partial(by_sbatch, "slurm/apptainer.sbatch"), "slurm", 2, VERL, None, retries=3
    ),
    "slurm/pyxis.sbatch": Example(
        partial(by_sbatch, "slurm/pyxis.sbatch"), "slurm", 2, OPENRLHF, BUNDLED, retries=3
    ),
    "slurm/amd.sbatch": Example(
        partial(by_sbatch, "slurm/amd.sbatch"), "slurm", 2, VERL, None, retries=3
    ),
    "slurm/groups.sbatch": Example(
        partial(by_sbatch, "slurm/groups.sbatch"), "slurm, groups", 4, SLIME, BUNDLED, retries=3
    ),
    "dstack/groups.dstack.yml": Example(
        dstack_groups, "dstack, groups", 4, SLIME, BUNDLED, grace=300, retries=3
    ),
    "skypilot/groups.yaml": Example(
        job_group,
        "skypilot, groups",
        4,
        SLIME,
        BUNDLED,
        retries=3,
        taken=frozenset({"6380", "8266"}),
    ),
    "kubernetes/groups.yaml": Example(
        leader_worker_sets, "lws, groups", 4, SLIME, BUNDLED, "hold", 120, retries=3
    ),
    "skypilot/search-r1.yaml": Example(
        skypilot, "skypilot", 2, VERL, None, taken=frozenset({"6380", "8266"})
    ),
    "kubernetes/lws.yaml": Example(lws, "lws", 2, VERL, None, "hold", 120, retries=3),
    "kubernetes/kubeflow-trainjob.yaml": Example(
        trainjob, "kubeflow-trainer", 2, OPENRLHF, BUNDLED, grace=120
    ),
    "kubernetes/pytorchjob.yaml": Example(
        pytorchjob, "pytorchjob, by PET", 2, None, BUNDLED, grace=120
    ),
    "ssh/loop.sh": Example(by_ssh, "plain", 3, None, BUNDLED),
}
PLATFORM = {
    "pytorchjob, by PET": "pytorchjob",
    "slurm, groups": "slurm",
    "dstack, groups": "dstack",
    "skypilot, groups": "skypilot",
    "lws, groups": "lws",
}


def read_secret(path: str) -> str:
    """Read a file of a secret, where an example mounts it or has it."""
    return IN_THE_CONTAINER.get(path) or Path(path).read_text(encoding="utf-8")


def plan_of(launch: Launch, example: Example, rank: int) -> Plan:
    """Plan one node of an example."""
    node = cluster(example.cluster, example.nodes)[rank]
    facts = replace(
        node.facts,
        interfaces={"lo": ("127.0.0.1",), "eth0": (launch.address,)},
        is_first_process=launch.is_first_process,
        gpus=8,
        cpus=128,
    )
    argv = list(launch.argv)
    assert argv[:1] == ["run"] or not argv
    command = argv[argv.index("--") + 1 :] if "--" in argv else None
    environ = {
        SECRET_FILE_VARIABLES.get(name, name): read_secret(text).strip()
        if name in SECRET_FILE_VARIABLES
        else text
        for name, text in launch.environ.items()
    }
    loaded = load(environ, command)
    topology = resolve(environ, loaded.settings, facts)
    return make_plan(loaded, topology, facts, environ, {})
