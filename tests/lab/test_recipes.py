"""Recipes end to end: sized for the joined nodes, scored, saved, and resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.settings.jobs import BY_NAME
from support.lab_frameworks import TORCH, install
from support.scenario import ends, last_line

if TYPE_CHECKING:
    from support.scenario import Cluster


@pytest.mark.pods(2)
def test_verl_is_sized_scored_and_resumed(cluster: Cluster) -> None:
    """Both nodes' GPUs train, the reward server scores, a second run resumes the first.

    A third run on one node is refused: verl's shards fit only the number of ranks that wrote them.
    """
    install(cluster, "verl", "0.9.1")
    cluster.env |= {"AGENT_JOB": "verl-grpo", "AGENT_REWARD": "builtin"}
    first = cluster.agents()
    assert ends(first) == [0, 0], first[0].tail()
    log, out = first[0].stderr(), first[0].stdout()
    assert "verl: 2 x 2 GPUs, model org/model" in out
    assert f"on {' '.join(sorted(pod.ip for pod in cluster.pods))}" in out
    assert "score 1.0" in out
    assert "from step 0" in out
    assert "4 GPUs = 4 engines" in log
    assert "checkpoints go to /tmp/checkpoints" in log
    assert "is no disk that all nodes share" in log

    cluster.env["AGENT_RERUN"] = "1"  # a container that is only restarted repeats no step
    again = cluster.agents()
    assert ends(again) == [0, 0], again[0].tail()
    assert "resumes from /tmp/checkpoints/global_step_20" in again[0].stderr()
    assert "from step 20" in again[0].stdout()

    cluster.env["EXPECTED_WORKERS"] = "0"
    smaller = cluster.agent(0)
    assert ends([smaller]) == [78]
    assert "written by 4 processes, and verl cannot resume from it with 2" in last_line(smaller)
    assert smaller.stdout() == ""


@pytest.mark.pods(2)
def test_openrlhf_refuses_an_engine_that_does_not_fit(cluster: Cluster) -> None:
    """An engine of 4 GPUs on 3 GPUs: both nodes end with 78, and no job is submitted."""
    install(cluster, "openrlhf", "0.11.2")
    cluster.env |= {"AGENT_JOB": "openrlhf-grpo"}
    agents = cluster.agents()
    assert ends(agents) == [0, 0], agents[0].tail()
    assert "openrlhf: 2 x 2 GPUs, model org/model" in agents[0].stdout()
    assert "score 1.0" in agents[0].stdout()

    other = {"AGENT_NUM_GPUS": "3", "AGENT_TENSOR_PARALLEL": "4", "AGENT_CHECKPOINTS": "/tmp/new"}
    misfits = cluster.agents(env=other)
    assert ends(misfits) == [78, 78], misfits[0].tail()
    assert "openrlhf-grpo does not fit what joined (2 of 3 GPUs and 24 CPUs)" in last_line(
        misfits[0]
    )
    assert misfits[0].stdout() == ""
    assert not (cluster.pods[0].tmp / "new").exists()


@pytest.mark.pods(1)
@pytest.mark.parametrize(
    ("name", "framework", "version"),
    [
        ("verl-ppo", "verl", "0.9.1"),
        ("openrlhf-ppo", "openrlhf", "0.11.2"),
        ("openrlhf-m-grpo", "openrlhf-m", ""),
        ("search-r1-ppo", "search-r1", ""),
        ("search-r1-grpo", "search-r1", ""),
    ],
)
def test_every_other_recipe(cluster: Cluster, name: str, framework: str, version: str) -> None:
    """Its framework accepts every argument, finds its GPUs, is scored at its URL, and saves."""
    install(cluster, framework, version)
    cluster.env |= {"AGENT_JOB": name, "EXPECTED_WORKERS": "0"}
    head = cluster.agent(0)
    assert ends([head]) == [0], head.tail()
    out = head.stdout()
    assert f"{framework}: 1 x 2 GPUs, model org/model" in out
    assert ("score 1.0" in out) == (BY_NAME[name].reward == "needed")
    assert "step20" in out.replace("_", "")
    assert "2 GPUs = 2 engines" in head.stderr()


@pytest.mark.pods(2)
def test_openrlhf_by_torchrun_is_resumed(cluster: Cluster) -> None:
    """All nodes' GPUs train; a second run resumes; one of another size is refused."""
    install(cluster, "openrlhf", "0.11.2")
    cluster.env["PYTHONPATH"] += f":{TORCH}"
    cluster.env |= {"AGENT_JOB": "openrlhf-sft"}
    first = cluster.agents()
    assert ends(first) == [0, 0], first[0].tail()
    assert "train_sft: rank 0 of 4, model org/model" in first[0].stdout()
    assert "from step 0" in first[0].stdout()
    assert "4 GPUs = 4 processes" in first[0].stderr()
    theirs = cluster.file(1, "job.log").read_text()
    assert all(f"train_sft: rank {rank} of 4" in theirs for rank in (2, 3))

    cluster.env["AGENT_RERUN"] = "1"
    again = cluster.agents()
    assert ends(again) == [0, 0], again[0].tail()
    assert "resumes from /tmp/checkpoints/state/global_step20" in again[0].stderr()
    assert "from step 20" in again[0].stdout()

    cluster.env["EXPECTED_WORKERS"] = "0"
    smaller = cluster.agent(0)
    assert ends([smaller]) == [78]
    assert "written by 4 processes" in last_line(smaller)


@pytest.mark.pods(1)
@pytest.mark.parametrize("name", ["rm", "dpo"])
def test_every_other_recipe_by_torchrun(cluster: Cluster, name: str) -> None:
    """Its program accepts every argument, and saves."""
    install(cluster, "openrlhf", "0.11.2")
    cluster.env["PYTHONPATH"] += f":{TORCH}"
    cluster.env |= {"AGENT_JOB": f"openrlhf-{name}", "EXPECTED_WORKERS": "0"}
    head = cluster.agent(0)
    assert ends([head]) == [0], head.tail()
    assert f"train_{name}: rank 0 of 2, model org/model" in head.stdout()
    assert "saved global_step20" in head.stdout()
