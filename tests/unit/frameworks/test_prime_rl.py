"""prime-rl's recipe: nodes and wiring, environments, renderers, memory, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.frameworks.layouts import PRIME_RL_CPU
from agent.frameworks.prime_rl import make
from agent.frameworks.recipe import Command, JobBasis, MisfitError, NodeSize, RecipeInput
from support.framework_defaults import parsed
from support.model_shapes import QWEN2_5_7B, QWEN2_5_32B

GIB = 1 << 30
SHORT = replace(QWEN2_5_7B, positions=32_768)


def asked(gpus: tuple[int, ...] = (8, 8), *args: str, **more: object) -> RecipeInput:
    """Return what is asked of the recipe: an environment, on two nodes that train."""
    given: dict[str, object] = {
        "model": "/v/Qwen3-8B",
        "train_data": "reverse-text",
        "basis": JobBasis(model=QWEN2_5_7B),
        **more,
    }
    return RecipeInput(
        recipe="prime-rl",
        nodes=tuple(NodeSize(each, 64, 2000 * GIB, 80) for each in gpus),
        version=(0, 8, 0),
        checkpoints="/v/run",
        args=args,
        **given,  # type: ignore[arg-type] # fields by name
    )


def refusal(*args: str, **more: object) -> str:
    """Return why the recipe is refused."""
    with pytest.raises(MisfitError) as found:
        make(asked((8, 8), *args, **more))
    return str(found.value)


def environment_of(made: Command, kind: str = "train") -> str:
    """Return the only environment of a command's sources."""
    (source,) = json.loads(parsed(made)[f"orchestrator.{kind}.source"])
    found: str = source["env"]["taskset"]["id"]
    return found


def test_the_whole_command() -> None:
    """A script starts the processes; the engines are those of the group, behind a router."""
    made = make(asked())
    assert made.argv[0] == "bash"
    assert Path(made.argv[1]).is_file()
    assert made.argv[2:5] == (
        *("/v/run", "http://{address:router}:8000/v1", "{addresses:engine|url|space}"),
    )
    found = parsed(made)
    assert found["deployment.num-train-nodes"] == "2"
    assert found["deployment.gpus-per-node"] == "8"
    assert found["weight-broadcast.type"] == "filesystem"
    assert (found["output-dir"], found["run.dir"]) == ("/v/run", ".")
    assert environment_of(made) == "reverse-text"
    assert set(made.why) <= {*made.argv}
    assert "16 GPUs train; batch 512 = 32 tasks × 16" in made.notes


def test_a_configuration_of_the_users() -> None:
    """It has environments and batches; the wiring and the model stay the recipe's."""
    made = make(asked(train_data="/v/rl.toml"))
    assert made.argv[5:7] == ("@", "/v/rl.toml")
    found = parsed(made)
    of_file = ("orchestrator.train", "orchestrator.batch-size", "trainer.", "max-steps", "seq-len")
    assert not [key for key in found if key.startswith(of_file)]
    assert found["model.name"] == "/v/Qwen3-8B"


def test_evaluation_and_wandb() -> None:
    """Another environment evaluates; the key of W&B is in no argument."""
    made = make(asked(eval_data="aime24", wandb=True, run_name="mine"))
    assert environment_of(made, "eval") == "aime24"
    assert parsed(made)["monitors.wandb.project"] == "prime-rl"
    assert parsed(made)["run.name"] == "mine"


@pytest.mark.parametrize(
    ("model", "renderer"),
    [
        ("/v/Qwen3-8B/", "qwen3"),
        ("Qwen/Qwen3-8B", "qwen3"),
        ("PrimeIntellect/Qwen3-0.6B", "prime-qwen3"),
        ("Qwen/Qwen2.5-7B-Instruct", "default"),
    ],
)
def test_what_makes_tokens_of_a_chat(model: str, renderer: str) -> None:
    """The name of a model decides, also of one in a folder, for which prime-rl knows none."""
    assert parsed(make(asked(model=model)))["orchestrator.renderer.name"] == renderer


def test_the_users_flags_count_in_either_spelling() -> None:
    """prime-rl takes dashes and underscores."""
    made = make(asked((8, 8), "--orchestrator.batch_size", "64", "--max_steps=7"))
    assert parsed(made)["orchestrator.batch-size"] == "64"
    assert parsed(made)["max-steps"] == "7"
    assert "16 GPUs train; batch 64 = 4 tasks × 16" in made.notes


def test_the_optimizer_by_memory() -> None:
    """It works on the CPUs where the GPUs lack room, and stays where checkpoints have it."""
    flag = "trainer.model.full-offload"
    assert flag not in parsed(make(asked()))
    large = make(asked((8,), basis=JobBasis(model=QWEN2_5_32B)))
    assert parsed(large)[flag] == "on"
    assert parsed(large)["trainer.model.optim-cpu-offload"] == "false"
    kept = JobBasis(model=QWEN2_5_7B, kept={"layout": PRIME_RL_CPU.name})
    assert parsed(make(asked(basis=kept)))[flag] == "on"


@pytest.mark.parametrize(
    ("args", "more", "words"),
    [
        ((), {"revision": "abc"}, "AGENT_MODEL_REVISION"),
        (("--inference.vllm.max-model-len", "9"), {}, "[services.engine] command"),
        (("--deployment.num_infer_nodes", "9"), {}, "[groups.rollout] nodes"),
        (("--orchestrator.batch-size", "100"), {}, "is no multiple of 16"),
        (("--seq-len", "100000"), {"basis": JobBasis(model=SHORT)}, "lower --seq-len"),
    ],
)
def test_refusals(args: tuple[str, ...], more: dict[str, object], words: str) -> None:
    """What prime-rl would refuse later, or not read, is refused at once."""
    assert words in refusal(*args, **more)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [((8, 4), "4 and 8"), ((0, 0), "no node has one"), ((0, 8), "node 0 has no GPU")],
)
def test_nodes_that_do_not_fit(gpus: tuple[int, ...], words: str) -> None:
    """Each node that trains has as many GPUs."""
    with pytest.raises(MisfitError, match=words):
        make(asked(gpus))


def test_a_model_that_the_trainers_nodes_cannot_hold() -> None:
    """The refusal counts the nodes that train; what the others are is in another file."""
    with pytest.raises(MisfitError) as refused:
        make(asked((1,), basis=JobBasis(model=QWEN2_5_32B)))
    assert str(refused.value).endswith("train: [groups.rollout] nodes sets the others")
