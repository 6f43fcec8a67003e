"""Extra checks of verl's commands: rules that otherwise only verl's workers apply."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tools.frameworks.inside.modelled_ray import PlacedGroup
from tools.frameworks.inside.verl import rules, start_servers
from tools.frameworks.placement import Cluster, WaitsForEverError


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({}, []),
        ({"world": 24}, ["1024 x 8 for 24", "256 x 8 for 24"]),
        ({"world": 24, "queue": True}, ["256 x 8 for 24"]),
        ({"tensor_parallel": 3}, ["engines of 3"]),
        ({"train": 1001, "mini": 251}, ["251 x 8 for 16", "1001 x 8 for 16"]),
        ({"mini": 384}, ["do not fill"]),
        ({"loops": 7}, ["7 agent loops"]),
    ],
)
def test_verls_rules_for_batches(changes: dict[str, int], faults: list[str]) -> None:
    """What only its workers would find is held against their rules."""
    asked = {"world": 16, "train": 1024, "mini": 256, "n": 8, "tensor_parallel": 1, "loops": 8}
    asked |= changes
    rollout = SimpleNamespace(
        tensor_model_parallel_size=asked["tensor_parallel"],
        n=asked["n"],
        mode="async",
        agent=SimpleNamespace(num_workers=asked["loops"]),
    )
    actor = SimpleNamespace(ppo_mini_batch_size=asked["mini"], use_dynamic_bsz=True)
    config = SimpleNamespace(
        data=SimpleNamespace(train_batch_size=asked["train"]),
        actor_rollout_ref=SimpleNamespace(rollout=rollout, actor=actor),
    )
    found = rules(config, asked["world"], queue=bool(asked.get("queue")))
    for what in faults:
        assert any(what in fault.what for fault in found)
    assert bool(found) is bool(faults)


def test_a_server_needs_a_cpu_beside_its_group() -> None:
    """Up to verl 0.7.0: on the group's own node, whatever is free on another."""
    bundles = [{"GPU": 1.0, "CPU": 3.0}] * 8
    for cpus, fits in ((32, True), (31, False)):
        cluster = Cluster([(8, cpus), (0, 64)], roomy=True)
        group = PlacedGroup(cluster.group(bundles, "STRICT_PACK"))
        if fits:
            start_servers(cluster, [group], 8)
            continue
        with pytest.raises(WaitsForEverError, match="a vLLM server"):
            start_servers(cluster, [group], 8)
