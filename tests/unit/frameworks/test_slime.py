"""slime's recipe: the nodes that train, what describes the model, and what is refused."""

from __future__ import annotations

import pytest

from agent.frameworks.recipe import CONFIG, JobBasis, MisfitError, ModelShape, NodeSize, RecipeInput
from agent.frameworks.slime import make
from support.framework_defaults import parsed
from support.model_shapes import QWEN2_5_7B, QWEN2_5_32B, QWEN3_30B

GIB = 1 << 30


def asked(
    gpus: tuple[int, ...] = (8, 8),
    *args: str,
    model: str = "/v/Qwen2.5-7B-Instruct",
    shape: ModelShape | None = QWEN2_5_7B,
    **more: object,
) -> RecipeInput:
    """Return what is asked of the recipe: GRPO on two nodes that train, with a reward server."""
    given = {"scores": True, "kept": {}, **more}
    kept = given.pop("kept")
    return RecipeInput(
        recipe="slime-grpo",
        nodes=tuple(NodeSize(each, 64, 2000 * GIB, 80) for each in gpus),
        version=(0, 3, 1),
        model=model,
        train_data="/v/train.jsonl",
        checkpoints="/v/run",
        basis=JobBasis(model=shape, kept=kept),  # type: ignore[arg-type] # a mapping
        args=args,
        **given,  # type: ignore[arg-type] # fields by name
    )


def refusal(*args: str, **more: object) -> str:
    """Return why the recipe is refused."""
    with pytest.raises(MisfitError) as found:
        make(asked((8, 8), *args, **more))  # type: ignore[arg-type] # fields by name
    return str(found.value)


def test_the_whole_command() -> None:
    """A shell adds what scripts/models says of the model; the engines are those of the group."""
    made = make(asked())
    assert made.argv[:6] == (
        *("bash", "-c", 'source "$0" && exec "$@" "${MODEL_ARGS[@]}"'),
        *("scripts/models/qwen2.5-7B.sh", "python3", "train.py"),
    )
    found = parsed(made)
    assert {key: found[key] for key in ("actor-num-nodes", "actor-num-gpus-per-node")} == {
        "actor-num-nodes": "2",
        "actor-num-gpus-per-node": "8",
    }
    assert found["rollout-external-engine-addrs"] == "{addresses:engine|space}"
    assert found["update-weight-disk-dir"] == "/v/run/weights"
    assert (found["load"], found["save"], found["ref-load"]) == (
        *("/v/run", "/v/run"),
        "/v/Qwen2.5-7B-Instruct",
    )
    assert (found["rm-type"], found["rm-url"]) == ("remote_rm", "{reward_url}")
    assert made.env["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert set(made.why) <= {word.partition("=")[0] for word in made.argv}


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("/v/Qwen3-4B", "qwen3-4B"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4B-Instruct-2507"),
        ("Qwen/Qwen3-4B-Base", "qwen3-4B"),
        ("/v/Qwen3-30B-A3B/", "qwen3-30B-A3B"),
        ("THUDM/GLM4-9B-0414", "glm4-9B"),
    ],
)
def test_what_describes_a_model(model: str, file: str) -> None:
    """The longest name of slime's scripts/models that the model's name begins with."""
    assert make(asked(model=model)).argv[3] == f"scripts/models/{file}.sh"


def test_a_model_that_no_script_describes() -> None:
    """It is refused with what is missing, unless the user gives it."""
    model = "/v/our-model-7B"
    assert "--model-args scripts/models/FILE.sh in AGENT_JOB_ARGS" in refusal(model=model)
    for args in (("--model-args", "own.sh"), ("--model-args=own.sh",)):
        assert make(asked((8, 8), *args, model=model)).argv[3] == "own.sh"
    bare = make(asked((8, 8), "--num-layers", "28", model=model))
    assert bare.argv[:2] == ("python3", "train.py")
    assert "lacks its file" in refusal("--model-args", model=model)


def test_asynchronous() -> None:
    """The same arguments to slime's other program."""
    made = make(asked((8, 8), "--train-async"))
    assert made.argv[5] == "train_async.py"
    assert made.argv[6:] == make(asked()).argv[6:]


@pytest.mark.parametrize(
    ("gpus", "shape", "args", "sizes"),
    [
        ((8,), QWEN2_5_7B, (), ("2", "1", "32", "256")),
        ((8, 8, 8), QWEN2_5_7B, (), ("2", "1", "33", "264")),
        ((8,) * 4, QWEN2_5_32B, (), ("8", "1", "32", "256")),
        ((8, 8), QWEN3_30B, (), ("1", "8", "32", "256")),
        ((8,), None, (), ("", "", "32", "256")),
        ((4, 4), QWEN2_5_7B, ("--tensor-model-parallel-size", "4"), ("4", "1", "32", "256")),
        ((8,), QWEN2_5_7B, ("--n-samples-per-prompt", "16"), ("2", "1", "32", "512")),
    ],
)
def test_sizes(
    gpus: tuple[int, ...], shape: ModelShape | None, args: tuple[str, ...], sizes: tuple[str, ...]
) -> None:
    """Megatron's division follows from memory, and all copies of the model share a batch evenly."""
    found = parsed(make(asked(gpus, *args, shape=shape)))
    names = ("tensor-model-parallel-size", "expert-model-parallel-size")
    batches = ("rollout-batch-size", "global-batch-size")
    assert tuple(found.get(name, "") for name in (*names, *batches)) == sizes


def test_engines_by_the_models_size() -> None:
    """The limit of requests at once depends on the GPUs of an engine."""
    flag = "rollout-num-gpus-per-engine"
    assert parsed(make(asked((8,) * 4, shape=QWEN2_5_32B)))[flag] == "2"
    assert parsed(make(asked(tensor_parallel=4)))[flag] == "4"


def test_evaluation_and_wandb() -> None:
    """Two words name the evaluation's data; the key of W&B is in no argument."""
    found = parsed(make(asked(eval_data="/v/e.jsonl", wandb=True, run_name="mine")))
    assert found["eval-prompt-data"] == "eval /v/e.jsonl"
    assert (found["wandb-group"], found["disable-wandb-random-suffix"]) == ("mine", "on")


def test_it_keeps_the_division_of_its_checkpoints() -> None:
    """A run that resumes divides the model as the one before."""
    first = make(asked((8, 8)))
    kept = {**first.format, "tensor_model_parallel_size": "4"}
    assert parsed(make(asked(kept=kept)))["tensor-model-parallel-size"] == "4"


def test_layers_by_the_name_alone() -> None:
    """A pipeline divides layers only where config.json says how many there are."""
    assert QWEN2_5_7B.source == CONFIG
    named = ModelShape.from_name("Qwen3-32B")
    assert parsed(make(asked((8,) * 4, shape=named)))["pipeline-model-parallel-size"] == "1"


@pytest.mark.parametrize(
    ("args", "more", "words"),
    [
        ((), {"scores": False}, "no source of rewards"),
        (("--colocate",), {}, "have nodes of their own"),
        (("--global-batch-size", "100"), {}, "is no multiple of"),
        (("--tensor-model-parallel-size", "3"), {}, "no division of 16 GPUs"),
        (("--tensor-model-parallel-size", "3"), {"shape": None}, "are no multiple of 3"),
    ],
)
def test_refusals(args: tuple[str, ...], more: dict[str, object], words: str) -> None:
    """What slime or Megatron would refuse later is refused at once."""
    assert words in refusal(*args, **more)


def test_slimes_own_rewards() -> None:
    """--rm-type names one of slime's own."""
    found = parsed(make(asked((8, 8), "--rm-type", "math", scores=False)))
    assert found["rm-type"] == "math"
    assert "rm-url" not in found


@pytest.mark.parametrize(("gpus", "words"), [((8, 4), "4 and 8"), ((0, 0), "no node has one")])
def test_nodes_that_do_not_fit(gpus: tuple[int, ...], words: str) -> None:
    """Each node that trains has as many GPUs."""
    with pytest.raises(MisfitError, match=words):
        make(asked(gpus))


def test_a_model_that_the_trainers_nodes_cannot_hold() -> None:
    """The refusal counts the nodes that train; what the others are is in another file."""
    with pytest.raises(MisfitError) as refused:
        make(asked((1,), model="/v/Qwen2.5-32B", shape=QWEN2_5_32B))
    assert "B on 1×1×80 GB: no" in str(refused.value)
    assert str(refused.value).endswith("train: [groups.rollout] nodes sets the others")
