"""The documents that people start from: environment, ports and order of each node's plan."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from agent.node.facts import Framework, RayPython
from agent.settings.jobs import BY_NAME
from support.captured import machine, plan_of, read, text_of
from support.framework_defaults import load
from support.golden import assert_golden

if TYPE_CHECKING:
    from agent.node.facts import Facts

GOLDEN = Path(__file__).parents[2] / "data" / "seeds"
RUNPOD = {"RAY_WORKER": "", "EXPECTED_WORKERS": "", "HEAD_POD_ID": "abc123", "DEBUG_RAY": ""}
PLATFORMS = {
    "verl-manual": ("plain-head", "plain-worker", {}),
    "verl-dstack": ("dstack-head", "dstack-worker", {}),
    "verl-amd-slurm": ("slurm-head", "slurm-worker", {}),
    "openrlhf-ppo-slurm": ("slurm-head", "slurm-worker", {}),
    "openrlhf-dpo-slurm": ("slurm-head", "slurm-worker", {}),
    "openrlhf-m-runpod": ("runpod-head", "runpod-worker", RUNPOD),
    "search-r1-ppo": ("plain-head", "plain-worker", {}),
    "search-r1-grpo": ("plain-head", "plain-worker", {}),
}
"""The captured environments of the document's head and worker, and what its own text sets."""
JOB = re.compile(r"  job:    .*?(?=    checkpoints: )", re.DOTALL)
"""The job's arguments have a test of their own."""
FOUND = re.compile(r"[A-Z][A-Z0-9_]*")
LEFT_TO_RAY = {"ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}
"""On AMD GPUs Ray sets the third variable for its actors, and refuses the others beside it."""
BY_PLATFORM = {"MASTER_ADDR", "MASTER_PORT"}
"""torchrun's: the agent gives address and port."""
SEEDS = {seed["id"]: seed for seed in load("seeds")["seed"]}
CASES = [(name, role) for name in PLATFORMS for role in ("head", "worker")]


def typed_there(seed: dict[str, Any], own: dict[str, str]) -> dict[str, str]:
    """Return the variables that the document gives a value."""
    given = {
        name: text
        for name, text in seed.get("environment", {}).items()
        if FOUND.fullmatch(name) and "(given)" not in text and name not in BY_PLATFORM
    }
    return {**given, **own}


def as_many(seed: dict[str, Any]) -> dict[str, str]:
    """Return what makes a captured job of the platform as large as the document's."""
    return {"EXPECTED_WORKERS": str(seed["nodes"] - 1)}


def node(name: str, role: str) -> tuple[dict[str, str], Facts]:
    """Return the environment and machine of the document's head or worker."""
    head, worker, own = PLATFORMS[name]
    seed = SEEDS[name]
    captured, _ = read(head if role == "head" else worker)
    mine = seed["ours"]
    environ = {
        **captured,
        **typed_there(seed, own),
        "AGENT_JOB": mine["recipe"],
        "AGENT_CHECKPOINTS": "/volume/checkpoints",
        **({} if "AGENT_HEAD" in mine["environment"] else as_many(seed)),
        **own,
        **mine["environment"],
    }
    environ = {key: text for key, text in environ.items() if text}
    known = BY_NAME[mine["recipe"]]
    facts = machine(environ, is_first_process=role == "head" and name == "openrlhf-m-runpod")
    if environ.get("AGENT_HEAD") == facts.default_source and role == "worker":
        other = {**facts.interfaces, "eth0": ("10.0.0.6",)}
        facts = replace(facts, interfaces=other, default_source="10.0.0.6")
    release = mine.get("release", "0.7.1" if known.framework == "verl" else "")
    amd = name == "verl-amd-slurm"
    return environ, replace(
        facts,
        gpu_maker="amd" if amd else "nvidia",
        framework=Framework(known.framework, f"/opt/{known.framework}", release),
        ray=RayPython("/usr/bin/python3", "3.11.7", "2.60.0"),
    )


@pytest.mark.parametrize(("name", "role"), CASES)
def test_the_plan_of_each_node(name: str, role: str) -> None:
    """What runs in which order, with which environment and ports.

    POD_AGENT_UPDATE_GOLDEN=1 rewrites the files.
    """
    text = text_of(*node(name, role)).partition("\n\nwaits:")[0] + "\n"
    text = JOB.sub("  job:    see seeds.toml\n", text)
    file = GOLDEN / f"{name}-{role}.txt"
    assert_golden(file, text)


def test_no_golden_is_left_over() -> None:
    """Each file belongs to a document; each document with a job has a platform."""
    assert {file.stem for file in GOLDEN.glob("*.txt")} == {f"{n}-{r}" for n, r in CASES}
    assert PLATFORMS.keys() == {name for name, seed in SEEDS.items() if "ours" in seed}


PLATFORMS_OWN = re.compile(r"SLURM|DSTACK|RUNPOD_|HOSTNAME|KUBERNETES")


@pytest.mark.parametrize("name", PLATFORMS)
def test_the_environment_of_the_page_plans_the_documents_nodes(name: str) -> None:
    """With nothing but the platform's variables beside it, as a reader copies it."""
    environ, facts = node(name, "head")
    typed = {"AGENT_JOB": SEEDS[name]["ours"]["recipe"], **SEEDS[name]["ours"]["environment"]}
    copied = {key: text for key, text in environ.items() if PLATFORMS_OWN.match(key)} | typed
    if "slurm" in name or "dstack" in name:  # whose own variables have the number of nodes
        assert not {"AGENT_HEAD", "EXPECTED_WORKERS"} & copied.keys()
        return
    plan = plan_of(copied, facts)
    assert plan.topology.is_head
    assert plan.topology.expected_workers + 1 == SEEDS[name]["nodes"]


@pytest.mark.parametrize(("name", "role"), CASES)
def test_the_documents_variables_reach_ray_and_the_job(name: str, role: str) -> None:
    """What the document exports on every node arrives unchanged."""
    environ, facts = node(name, role)
    found = plan_of(environ, facts).environment("10.0.0.5", "10.0.0.5")
    wanted = {
        key: text
        for key, text in typed_there(SEEDS[name], {}).items()
        if not (name == "verl-amd-slurm" and key in LEFT_TO_RAY)
        and key not in {"RAY_WORKER", "HEAD_POD_ID", "EXPECTED_WORKERS", "DEBUG_RAY"}
    }
    assert {key: found.get(key) for key in wanted} == wanted


@pytest.mark.parametrize("name", [name for name in PLATFORMS if "ray" in SEEDS[name]])
def test_the_documents_ports(name: str) -> None:
    """Ray's own ports are the document's, but for Slurm, where jobs share nodes."""
    environ, facts = node(name, "head")
    plan = plan_of(environ, facts)
    ray = SEEDS[name]["ray"]["head"]
    port = re.search(r"--port[ =](\d+)", ray)
    dashboard = re.search(r"--dashboard-port[ =](\d+)", ray)
    if "slurm" not in name:
        assert plan.ports.gcs == int(port[1] if port else 6379)
    if "AGENT_DASHBOARD_PORT" in environ or "slurm" not in name:
        assert plan.ports.dashboard == int(dashboard[1] if dashboard else 8265)
