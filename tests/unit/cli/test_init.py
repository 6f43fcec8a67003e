"""`pod-agent init`: its questions, its output, and the examples that it generates."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agent.cli.init_verb import PLATFORMS
from agent.cli.start_files.request import (
    Folders,
    Request,
    job_variables,
    presets,
    run_commands,
    shell_exports,
    yaml_mapping,
)
from agent.frameworks import recipe_of
from agent.frameworks.recipe import NodeSize, RecipeInput
from agent.settings import load
from agent.settings.jobs import BY_NAME, RECIPES

ROOT = Path(__file__).parents[3]
AGENT = [sys.executable, "-m", "agent", "init"]
FETCHED = ("--agent-url", "https://my.server/pod-agent", "--sha256", "0" * 64)
FOLDERS = Folders("/data", "/code", "/checkpoints", "/logs", "/models")
KINDS = [
    (name, platform.flag, variant)
    for name, platform in PLATFORMS.items()
    for variant in platform.variants
]


def init(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the verb, without a terminal."""
    done = subprocess.run(
        [*AGENT, *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def test_the_examples_are_its_output(tmp_path: Path) -> None:
    """Each file is what its command in examples/README.md writes."""
    environ = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts/examples", tmp_path], check=True, env=environ)
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(made) == 14
    for path in made:
        example = ROOT / "examples" / path.relative_to(tmp_path)
        assert example.read_bytes() == path.read_bytes(), "run ./scripts/examples"


def test_every_recipe_has_its_settings() -> None:
    """A new recipe needs a row here too."""
    assert list(presets()) == [job.name for job in RECIPES]


@pytest.mark.parametrize("recipe", [job.name for job in RECIPES if job.name != "rehearsal"])
def test_the_settings_of_a_recipe_are_a_job(recipe: str) -> None:
    """They are valid, and make a command on two nodes of eight GPUs."""
    request = Request(recipe=recipe, nodes=2, gpus=8)
    variables = job_variables(request, FOLDERS, restarted=True)
    settings = load({k: v for k, v in variables.items() if k.startswith("AGENT_")}).settings
    assert settings.job == recipe
    known = BY_NAME[recipe]
    module = recipe_of(known)
    asked = RecipeInput(
        recipe,
        (NodeSize(8, 128),) * 2,
        max(module.VERSIONS, default=()),
        model=variables["AGENT_MODEL"],
        train_data=variables["AGENT_TRAIN_DATA"],
        eval_data=variables.get("AGENT_EVAL_DATA", ""),
        checkpoints=variables["AGENT_CHECKPOINTS"],
        args=tuple(shlex.split(variables.get("AGENT_JOB_ARGS", ""))),
        scores=known.reward == "needed",
    )
    assert module.make(asked).argv


@pytest.mark.parametrize("recipe", list(presets()))
@pytest.mark.parametrize(("name", "flag", "variant"), KINDS)
@pytest.mark.parametrize("fetched", [False, True])
def test_every_file_is_well_formed(
    name: str, flag: str, variant: str, recipe: str, *, fetched: bool
) -> None:
    """Shell files parse in a shell, YAML and JSON parse, and three lines are marked."""
    request = Request(
        recipe=recipe,
        nodes=3,
        gpus=4,
        variant=variant,
        volume="" if fetched else "volume",
        url="https://my.server/pod-agent" if fetched else "",
        sha256="0" * 64 if fetched else "",
    )
    (file,) = PLATFORMS[name].render(request)
    assert flag in {"", "container", "kind"}
    assert file.next_steps
    scripts = []
    if file.name.endswith(".json"):
        body = json.loads(file.text)
        assert body["image"] == presets()[recipe].image
        assert next(iter(body)) == "image"
        words = shlex.split(body["args"])
        scripts = [words[2]] if words[0] == "bash" else []
        assert ("curl" in body["args"]) == fetched
    elif file.name.endswith((".yml", ".yaml")):
        documents = list(yaml.safe_load_all(file.text))
        assert all(isinstance(document, dict) for document in documents)
        task = documents[0]
        scripts = ["\n".join(task["commands"])] if "commands" in task else [task.get("run", "")]
        scripts.append(task.get("setup", ""))
    else:
        scripts = [file.text]
    if not file.name.endswith(".json"):
        marks = [f"change ({number} of 3): " for number in (1, 2, 3)]
        assert [file.text.count(mark) for mark in marks] == [1, 1, 1]
    for script in scripts:
        done = subprocess.run(
            ["bash", "-n"], input=script, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), script


def test_values_survive_their_format(tmp_path: Path) -> None:
    """A shell and YAML return the written values, folded lines included."""
    values = {
        "PLAIN": "verl-grpo",
        "LIKE_A_NUMBER": "3",
        "LIKE_A_TRUTH": "yes",
        "LONG": "test -e /data/train.parquet || " + " ".join(f"--word{n} value" for n in range(20)),
        "ODD": "a: b # c",
    }
    assert yaml.safe_load(yaml_mapping(values, 2)) == values
    script = shell_exports(values) + "\nenv"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert {name: " ".join(found[name].split()) for name in values} == values
    file = tmp_path / "pod-agent"
    request = Request(recipe="rehearsal", nodes=1, gpus=0, url=f"file://{file}", sha256="0" * 64)
    file.write_text("the file", encoding="utf-8")
    other = ["bash", "-c", *run_commands(request, str(tmp_path / "fetched"))]
    assert subprocess.run(other, capture_output=True, check=False).returncode != 0


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    """An existing file stays, unless --force is given."""
    words = ("dstack", "verl-grpo", "--nodes", "3", "--gpus", "8", "--to", str(tmp_path))
    printed = init(*words).stdout
    file = tmp_path / "verl-grpo.dstack.yml"
    assert f"wrote {file}" in printed
    steps = (
        "cp dist/pod-agent pod-agent",
        "dstack secret set",
        "dstack apply -f verl-grpo.dstack.yml",
    )
    assert sorted(steps, key=printed.index) == list(steps)
    file.write_text("mine", encoding="utf-8")
    assert "--force" in init(*words, code=2).stderr
    assert file.read_text(encoding="utf-8") == "mine"
    init(*words, "--force")
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["nodes"] == 3


def test_a_program_may_be_run(tmp_path: Path) -> None:
    """The loop over ssh and the script for RunPod's pods are executable."""
    init("ssh", "--to", str(tmp_path))
    init("runpod", "--to", str(tmp_path), *FETCHED)
    assert os.access(tmp_path / "loop.sh", os.X_OK)
    assert os.access(tmp_path / "pods.py", os.X_OK)
    assert (tmp_path / "template.json").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "which platform? One of slurm, runpod, dstack"),
        (("runpod", "rehearsal"), "--volume ID"),
        (("dstack", "--agent-url", "https://my.server/pod-agent"), "dist/SHA256SUMS"),
        (("dstack", "--container", "pyxis"), "dstack has no pyxis"),
        (("kubernetes", "--kind", "cluster"), "--kind lws or trainjob or pytorchjob"),
        (("slurm", "--nodes", "0"), "a run has a node at least"),
        (("slurm", "--nodes", "many"), "'many' is no whole number"),
        (("slurm", "verl-gpro"), "verl-grpo"),
        (("slrum",), "no platform 'slrum': did you mean slurm?"),
    ],
)
def test_what_is_wrong_is_named(words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    """Usage errors name the flag and the remedy, and write nothing."""
    assert expected in init(*words, "--to", str(tmp_path), code=2).stderr
    assert not list(tmp_path.iterdir())


def test_it_asks_at_a_terminal(tmp_path: Path) -> None:
    """Missing values are requested; an empty answer takes the default."""
    ours, theirs = pty.openpty()
    argv = [*AGENT, "--to", str(tmp_path), "--gpus", "4"]
    with subprocess.Popen(argv, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, b"kubernetes\nrehearsal\ntrainjob\n\n")
        assert process.wait(timeout=60) == 0
    printed = os.read(ours, 65_536).decode()
    os.close(ours)
    for question in ("platform:", "recipe:", "kind:", "nodes [2]"):
        assert question in printed
    manifest = (tmp_path / "kubeflow-trainjob.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load_all(manifest)
    assert "nvidia.com/gpu: 4" in manifest
