"""The checks of scripts/frameworks, on small made-up frameworks: no network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.frameworks import parts
from tools.frameworks.commands import made
from tools.frameworks.facts import openrlhf_m, search_r1
from tools.frameworks.faults import Case
from tools.frameworks.inside.uses import names_read
from tools.frameworks.inside.verl import is_read
from tools.frameworks.overrides import Override, parse, type_fault
from tools.frameworks.packages import REPO
from tools.frameworks.placement import Cluster, WaitsForEverError, waits

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
GPU = {"GPU": 1.0, "CPU": 1.0}


@pytest.mark.parametrize("roomy", [True, False])
@pytest.mark.parametrize(
    ("nodes", "groups", "fits"),
    [
        ([(8, 16), (8, 16)], [(16, "PACK")], True),
        ([(8, 16), (7, 16)], [(16, "PACK")], False),
        ([(8, 8), (8, 4)], [(16, "PACK")], False),  # GPUs enough, CPUs not
        ([(8, 16), (4, 16)], [(4, "STRICT_PACK"), (8, "STRICT_PACK")], None),  # by luck only
        ([(4, 16), (4, 16)], [(8, "STRICT_PACK")], False),  # the total is of no use
    ],
)
def test_a_placement_group_waits_where_it_finds_no_room(
    nodes: list[tuple[int, int]], groups: list[tuple[int, str]], *, fits: bool | None, roomy: bool
) -> None:
    """Whole groups are reserved or nothing; both orders are tried."""
    cluster = Cluster(nodes, roomy=roomy)
    try:
        for count, strategy in groups:
            cluster.group([GPU] * count, strategy)
    except WaitsForEverError:
        assert fits is not True
    else:
        assert fits is not False


def test_what_fits_only_by_luck_waits() -> None:
    """Four GPUs that may be placed on the node of eight leave no room for eight."""

    def place(cluster: Cluster) -> None:
        for count in (4, 8):
            cluster.group([GPU] * count, "STRICT_PACK")

    assert [fault.kind for fault in waits([(8, 16), (4, 16)], place)] == ["waits"]
    assert waits([(8, 16), (8, 16)], place) == []


def test_a_group_that_fits_not_takes_nothing() -> None:
    """Partial reservations are released."""
    cluster = Cluster([(2, 2), (1, 1)], roomy=True)
    with pytest.raises(WaitsForEverError, match="only 3 fit"):
        cluster.group([GPU] * 4, "PACK")
    assert len(cluster.group([GPU] * 3, "PACK").where) == 3


def test_models_share_a_bundle_until_it_is_used_up() -> None:
    """Five shares of a fifth, and no sixth."""
    cluster = Cluster([(1, 1)], roomy=True)
    group = cluster.group([GPU], "PACK")
    share = {"GPU": 0.2, "CPU": 0.2}
    for _ in range(5):
        cluster.inside(group, 0, share, "a model")
    with pytest.raises(WaitsForEverError, match="a model"):
        cluster.inside(group, 0, share, "a model")


def test_an_actor_without_cpus_needs_a_node_that_has_one() -> None:
    """It runs beside actors that hold every CPU, and never on a node without CPUs."""
    cluster = Cluster([(1, 1)], roomy=True)
    cluster.place({"CPU": 1})
    cluster.start_small("an actor")
    with pytest.raises(WaitsForEverError):
        Cluster([(1, 0)], roomy=True).start_small("an actor")


@pytest.mark.parametrize(
    ("word", "override"),
    [
        ("a.b=1", Override("", "a.b", "1")),
        ("+a.b=x=y", Override("+", "a.b", "x=y")),
        ("++a=", Override("++", "a", "")),
        ("~a.b", Override("~", "a.b", "")),
    ],
)
def test_overrides_are_read(word: str, override: Override) -> None:
    """As hydra reads them."""
    assert parse(word) == override


@pytest.mark.parametrize(
    ("default", "value", "right"),
    [
        (1, 2, True),
        (1, "two", False),
        (1, 2.5, False),
        (1.0, 2, True),
        (True, "yes", False),
        (True, 1, False),
        (None, "anything", True),
        ("console", ["console"], True),
        ("x", 1, False),
    ],
)
def test_a_value_of_another_kind_is_refused(default: object, value: object, *, right: bool) -> None:
    """Hydra itself accepts a text for a number."""
    assert (type_fault("key", default, value) is None) is right


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


@pytest.fixture(scope="module")
def framework(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a framework with one program, its parser and its rules."""
    folder = tmp_path_factory.mktemp("package")
    program = folder / "openrlhf/cli/train_ppo_ray.py"
    program.parent.mkdir(parents=True)
    program.write_text(FRAMEWORK, encoding="utf-8")
    for package in (folder / "openrlhf", folder / "openrlhf/cli"):
        (package / "__init__.py").write_text("", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("argv", "gpus", "faults"),
    [
        (GOOD, 9, []),
        (GOOD, 8, ["waits: no room for Model"]),
        (GOOD, 7, ["waits: of 8 bundles of 1 GPU and 1 CPU only 7 fit"]),
        (f"{GOOD} --nope 1", 9, ["refused: unrecognized arguments: --nope 1"]),
        ("--actor_num_gpus_per 8", 9, ["refused: unrecognized arguments"]),
        (f"{GOOD} --engines 3", 9, ["refused: engines of two"]),
        (f"{GOOD} --engines many", 9, ["refused: argument --engines: invalid int value"]),
        (f"{GOOD} --train_batch_size 100", 9, ["refused: DeepSpeed: a batch of 100"]),
        (f"{GOOD} --forgotten x", 9, ["dead: nothing reads --forgotten"]),
        (f"{GOOD} --sleep", 9, ["ignored: Set args.sleep to False"]),
        (f"{GOOD} --pretrain N", 9, ["twice: --pretrain"]),
    ],
)
def test_a_program_is_checked_by_its_own_code(
    framework: Path, tmp_path: Path, argv: str, gpus: int, faults: list[str]
) -> None:
    """Parser, assertions and placement are the program's; Ray is modeled, torch a stub."""
    out = tmp_path / "faults.json"
    case = {
        "name": "case",
        "argv": argv.split(),
        "nodes": [[gpus, 32]],
        "module": "openrlhf.cli.train_ppo_ray",
    }
    subprocess.run(
        [sys.executable, "-m", "tools.frameworks.inside.openrlhf", str(out)],
        input=json.dumps({"package": str(framework), "cases": [case]}),
        env={"PATH": os.defpath, "PYTHONPATH": str(SCRIPTS)},
        text=True,
        check=True,
        timeout=60,
    )
    described = [f"{f['kind']}: {f['what']}" for f in json.loads(out.read_text())["case"]]
    assert len(described) == len(faults)
    for one, begins in zip(described, faults, strict=True):
        assert one.startswith(begins)


def test_names_that_sources_read(tmp_path: Path) -> None:
    """Attributes and texts count with their owner, except in an excluded function."""
    (tmp_path / "a.py").write_text(
        "def old(config):\n    return config.moved.path\n"
        "def new(config, args):\n    config.written = 1\n"
        "    return config.reward.get('path'), getattr(args.data, 'label'), config['group']\n",
        encoding="utf-8",
    )
    (tmp_path / "a.yaml").write_text("defaults:\n  - actor: ${engine}_actor\n# ${unread}\n")
    read = names_read(tmp_path, but=frozenset({"old"}))
    assert is_read("engine", read)
    assert not is_read("unread", read)
    assert {"config.reward", "reward.path", "data.label", "config.group"} <= read
    assert not {"config.moved", "moved.path", "config.written"} & read
    assert is_read("reward.path", read)
    assert is_read("+reward.path".lstrip("+"), read)
    assert not is_read("moved.path", read)
    assert not is_read("reward.nothing", read)


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


@pytest.mark.parametrize(("framework", "version"), [("openrlhf", (0, 11, 2)), ("verl", (0, 9, 1))])
def test_every_recipe_makes_a_command_to_judge(framework: str, version: tuple[int, ...]) -> None:
    """Each is a module with arguments, or the recipe's reason; no placeholder is left."""
    commands = list(made(framework, version))
    assert any(command.case for command in commands)
    for command in commands:
        assert (command.case is None) is bool(command.misfit)
        if command.case:
            assert command.case.module.startswith(framework)
            assert not [word for word in command.case.argv if "{reward_url}" in word]


def test_a_change_leaves_parts_done_that_do_not_rest_on_it() -> None:
    """A part's result depends on all files except other parts'; every listed file exists."""
    by_name = {part.name: part for part in parts.PARTS}
    rest = {name: {f.name for f in parts.judges(part)} for name, part in by_name.items()}
    for begins, names in parts.OF_SOME.items():
        assert list((REPO / "scripts/tools/frameworks").glob(f"{begins}*")), begins
        assert {*names} <= {*by_name}
    assert "started_openrlhf.py" in rest["start-openrlhf"] - rest["start-verl"] - rest["verl-0.9.1"]
    assert {"bert_padding.py", "pretended.py"} <= rest["start-openrlhf"]
    assert {"parts.py", "placement.py"} <= rest["verl-0.9.1"] & rest["train-trl"]
