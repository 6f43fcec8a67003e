"""The checks of scripts/frameworks, on small made-up frameworks: no network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.frameworks.facts import openrlhf_m, search_r1
from tools.frameworks.faults import Case
from tools.frameworks.inside.verl import rules
from tools.frameworks.placement import Cluster, waits

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


WHOLE, NODE = "PACK", "STRICT_PACK"


@pytest.mark.parametrize(
    ("nodes", "groups", "waits_for"),
    [
        ([(8, 16), (8, 16)], [(16, WHOLE)], ""),
        ([(8, 16), (7, 16)], [(16, WHOLE)], "only 15 fit"),
        ([(8, 8), (8, 4)], [(16, WHOLE)], "only 12 fit"),  # GPUs enough, CPUs not
        ([(8, 16), (8, 16)], [(4, NODE), (8, NODE)], ""),
        ([(8, 16), (4, 16)], [(4, NODE), (8, NODE)], "8 bundles"),  # the four may take the eight
        ([(4, 16), (4, 16)], [(8, NODE)], "8 bundles"),  # the total is of no use
    ],
)
def test_a_placement_group_waits_where_it_finds_no_room(
    nodes: list[tuple[int, int]], groups: list[tuple[int, str]], waits_for: str
) -> None:
    """Whole groups are reserved or nothing; what fits in one of two orders only waits."""

    def place(cluster: Cluster) -> None:
        for count, strategy in groups:
            cluster.group([{"GPU": 1.0, "CPU": 1.0}] * count, strategy)

    found = waits(nodes, place)
    assert bool(found) is bool(waits_for)
    assert all(waits_for in fault.what for fault in found)


FRAMEWORK = """
import argparse
import ray
import torch
from ray.util.placement_group import placement_group

@ray.remote(num_gpus=1)
class Model(torch.nn.Module):
    pass

def train(args):
    world = args.actor_num_nodes * args.actor_num_gpus_per_node
    bundles = [{"GPU": 1, "CPU": 1} for _ in range(world)]
    pg = placement_group(bundles, strategy="PACK")
    ray.get(pg.ready())
    assert args.engines * 2 == len(bundles), "engines of two"
    Model.options(num_cpus=1, num_gpus=1).remote(args.pretrain, args.train_batch_size)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--actor_num_nodes", type=int, default=1)
    parser.add_argument("--actor_num_gpus_per_node", type=int, default=8)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--train_batch_size", type=int, default=128)
    parser.add_argument("--micro_train_batch_size", type=int, default=1)
    parser.add_argument("--pretrain", type=str)
    parser.add_argument("--forgotten", type=str)
    parser.add_argument("--sleep", action="store_true")
    args = parser.parse_args()
    if args.sleep:
        print("Set args.sleep to False when it is of no use.")
    train(args)
"""
GOOD = "--actor_num_nodes 1 --actor_num_gpus_per_node 8 --pretrain M"


PROGRAM_CASES = {
    "all right": (GOOD, 9, ""),
    "no room for a model": (GOOD, 8, "waits: no room for Model"),
    "no room for a group": (GOOD, 7, "waits: of 8 bundles of 1 GPU and 1 CPU only 7 fit"),
    "unknown": (f"{GOOD} --nope 1", 9, "refused: unrecognized arguments: --nope 1"),
    "abbreviated": ("--actor_num_gpus_per 8", 9, "refused: unrecognized arguments"),
    "its assertion": (f"{GOOD} --engines 3", 9, "refused: engines of two"),
    "no number": (f"{GOOD} --engines many", 9, "refused: argument --engines: invalid int value"),
    "its batch": (f"{GOOD} --train_batch_size 100", 9, "refused: DeepSpeed: a batch of 100"),
    "read by nothing": (f"{GOOD} --forgotten x", 9, "dead: nothing reads --forgotten"),
    "ignored": (f"{GOOD} --sleep", 9, "ignored: Set args.sleep to False"),
    "twice": (f"{GOOD} --pretrain N", 9, "twice: --pretrain"),
}


def test_a_program_is_checked_by_its_own_code(tmp_path: Path) -> None:
    """Parser, assertions and placement are the program's; Ray is modeled, torch a stub."""
    program = tmp_path / "openrlhf/cli/train_ppo_ray.py"
    program.parent.mkdir(parents=True)
    program.write_text(FRAMEWORK, encoding="utf-8")
    for package in (tmp_path / "openrlhf", tmp_path / "openrlhf/cli"):
        (package / "__init__.py").touch()
    module = "openrlhf.cli.train_ppo_ray"
    cases = [
        {"name": name, "argv": argv.split(), "nodes": [[gpus, 32]], "module": module}
        for name, (argv, gpus, _fault) in PROGRAM_CASES.items()
    ]
    out = tmp_path / "faults.json"
    subprocess.run(
        [sys.executable, "-m", "tools.frameworks.inside.openrlhf", str(out)],
        input=json.dumps({"package": str(tmp_path), "cases": cases}),
        env={"PATH": os.defpath, "PYTHONPATH": str(SCRIPTS)},
        text=True,
        check=True,
        timeout=60,
    )
    found = json.loads(out.read_text())
    for name, (_argv, _gpus, fault) in PROGRAM_CASES.items():
        described = [f"{one['kind']}: {one['what']}" for one in found[name]]
        assert len(described) == bool(fault), name
        assert all(one.startswith(fault) for one in described), name


OPENRLHF_M = (
    "--ref_num_nodes 2 --ref_num_gpus_per_node 8 --actor_num_nodes 2 --actor_num_gpus_per_node 8 "
    "--vllm_num_engines 16 --colocate_all_models --vllm_enable_sleep --pretrain M --prompt_data D "
    "--remote_rm_url U --advantage_estimator group_norm --n_samples_per_prompt 4 --use_kl_loss "
    "--kl_estimator k3 --zero_stage 3 --bf16 --train_batch_size 128 --rollout_batch_size 1024"
)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("", ""),
        ("--no_such_flag", "refused: unrecognized arguments: --no_such_flag"),
        ("--kl_estimator k9", "twice: --kl_estimator"),
        ("--micro_train_batch_size 3", "refused: DeepSpeed: a batch of 128"),
        ("--vllm_tensor_parallel_size 2", "refused: 16 engines of 2"),
        ("--pretrain_data P", "ignored: --pretrain_data is not supported"),
        ("--packing_samples", "ignored: --packing_samples without --flash_attn"),
    ],
)
def test_openrlhf_m_by_its_facts(more: str, fault: str) -> None:
    """A copy of its parser and assertions."""
    nodes = ((8, 32), (8, 32))
    found = openrlhf_m.judge_one(Case("x", tuple(f"{OPENRLHF_M} {more}".split()), nodes))
    assert [str(one) for one in found][:1] == [
        str(one) for one in found if str(one).startswith(fault)
    ][:1]
    assert bool(found) is bool(fault)
    small = openrlhf_m.judge_one(Case("x", tuple(OPENRLHF_M.split()), ((8, 32), (4, 32))))
    assert {one.kind for one in small} == {"waits"}


SEARCH_R1 = (
    "data.train_files=/t data.val_files=/v algorithm.adv_estimator=gae trainer.nnodes=2 "
    "trainer.n_gpus_per_node=8 trainer.default_hdfs_dir=null retriever.topk=3 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=256 max_turns=4 +trainer.val_before_train=true"
)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("", ""),
        ("trainer.resume_mode=auto", "refused: Could not override 'trainer.resume_mode'"),
        ("+trainer.nnodes=3", "twice: trainer.nnodes"),
        ("actor_rollout_ref.actor.optim.warmup_style=cosine", "dead: nothing reads"),
        ("retriever.url=http://10.0.0.1:8000/retrieve do_search=perhaps", "refused: do_search"),
        ("trainer.total_epochs=many", "refused: trainer.total_epochs is a number"),
        ("critic.ppo_micro_batch_size=24", "refused: critic.ppo_micro_batch_size=24"),
    ],
)
def test_search_r1_by_its_facts(more: str, fault: str) -> None:
    """A copy of its configuration and rules."""
    nodes = ((8, 32), (8, 32))
    found = search_r1.judge_one(Case("x", tuple(f"{SEARCH_R1} {more}".split()), nodes))
    assert bool(found) is bool(fault)
    assert all(str(one).startswith(fault) for one in found[:1])
    tight = search_r1.judge_one(Case("x", tuple(SEARCH_R1.split()), ((8, 8), (8, 8))))
    assert {one.kind for one in tight} == {"waits"}


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
