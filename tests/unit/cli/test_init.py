"""`pod-agent init`: its questions, its output, and the examples that it generates."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli.command_line import main as agent
from agent.cli.start_files.agent_file import AgentFile
from agent.cli.start_files.platforms_of_init import PLATFORMS, misfit, missing_image
from agent.cli.start_files.request import (
    Folders,
    Request,
    brings_services,
    job_variables,
    preset_of,
    presets,
)
from agent.cli.start_files.template_text import shell_exports, yaml_block
from agent.frameworks import recipe_of
from agent.frameworks.recipe import NodeSize, RecipeInput
from agent.settings import load
from agent.settings.jobs import BY_NAME, RECIPES
from support.init_files import init, written
from support.stand_in_packages import ONE_FILE

ROOT = Path(__file__).parents[3]
AGENT = [sys.executable, "-m", "agent", "init"]
FOLDERS = Folders("/data", "/code", "/checkpoints", "/logs", "/models", services="/services.toml")
WHEEL = AgentFile("wheel", "pod_agent-0.1.0-py3-none-any.whl", "it fits.", b"the wheel")
SHA256 = f"--agent-sha256 {'0' * 64}"
URL = f"--agent-url https://my.server/pod-agent {SHA256}"
KINDS = [
    (name, platform.flag, variant)
    for name, platform in PLATFORMS.items()
    for variant in platform.variants
]
COMMAND = "command"
JOBS = [*presets(), COMMAND]
EACH_WITH_EACH = [
    pytest.param(*kind, job, marks=pytest.mark.slow if (place + number) % 3 else ())
    for place, kind in enumerate(KINDS)
    for number, job in enumerate(JOBS)
]
"""Each platform with each job; a third of them, in which each occurs, is not slow."""
ON_TWO = "--nodes 2 --gpus 8"
PLACEHOLDER = re.compile(
    r"<[A-Za-z][\w -]*>|TODO|FIXME|\b[Yy]our-|\byou/|\bchange\b|…"
    r"|\{\{(?! (?:RUNPOD_SECRET|secrets))"
)
"""What a user would have to edit."""


def words_for(name: str, flag: str, variant: str, job: str) -> str:
    """Return the words that a job needs on a platform; none where it is refused."""
    if misfit(name, variant, job, 2):
        return ""
    words = [name] if job == COMMAND else [name, job]
    words.append("--hosts 10.0.0.5,me@10.0.0.6" if name == "ssh" else "--nodes 2")
    words.append("--gpus 8" if job != "rehearsal" or name == "runpod" else "--gpus 0")
    if flag:
        words.append(f"--{flag} {variant}")
    if missing_image(name, variant, job):
        words.append("--image ghcr.io/acme/rl:1")
    if job != COMMAND and brings_services(job) and name in {"runpod", "dstack", "skypilot"}:
        words.append("--volume s3://disk")
    if variant == "none":
        words.append("--python /home/me/venv/bin/python")
    return " ".join(words)


def scripts_of(name: str, text: str) -> list[str]:
    """Return the shell code of a file."""
    if name.endswith((".sh", ".sbatch")):
        return [text]
    if name.endswith(".json"):
        words = shlex.split(json.loads(text)["args"])
        assert words[:2] == ["bash", "-c"]
        return words[2:]
    if not name.endswith((".yml", ".yaml")):
        return []
    found: list[str] = []

    def collect(node: Any) -> None:  # noqa: ANN401 - parsed YAML
        if isinstance(node, dict):
            found.extend(str(node[key]) for key in ("run", "setup") if key in node)
            if isinstance(node.get("commands"), list):
                found.append("\n".join(node["commands"]))
            if node.get("command", [])[:1] == ["bash"]:
                found.append(node["command"][2])
            for value in node.values():
                collect(value)
        elif isinstance(node, list):
            for value in node:
                collect(value)

    for document in yaml.safe_load_all(text):
        collect(document)
    return found


@pytest.mark.parametrize(("name", "flag", "variant", "job"), EACH_WITH_EACH)
def test_no_file_is_to_be_edited(
    name: str, flag: str, variant: str, job: str, tmp_path: Path
) -> None:
    """Each platform with each job: all parses, nothing is a placeholder, the steps are a road."""
    line = words_for(name, flag, variant, job)
    if not line:
        assert job not in {"verl-grpo", "verl-ppo", "rehearsal", COMMAND}
        return
    if job == COMMAND:
        (tmp_path / "code").mkdir()
        (tmp_path / "code/train.py").touch()
        line += f" --code {tmp_path / 'code'} -- python3 train.py --nodes {{nodes}}"
    files, printed = written(line, tmp_path / "made")
    scripts = [script for file, text in files.items() for script in scripts_of(file, text)]
    assert scripts
    for script in scripts:
        done = subprocess.run(
            ["bash", "-n"], input=script, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), script
    for file, text in files.items():
        if not file.endswith(".py"):
            assert PLACEHOLDER.findall(text) == [], file
        if file.endswith(".json"):
            json.loads(text)
    assert PLACEHOLDER.findall(printed) == [] or "FOLDER" in printed
    joined = "\n".join(scripts) + "\n".join(files.values())
    assert "run -- python3 train.py --nodes {nodes}" in joined or job != COMMAND

    # Every file that a step names is there.
    steps = re.findall(r"^  (.+)$", printed, re.MULTILINE)
    assert steps[0] == f"cd {tmp_path / 'made'}"
    named = set(re.findall(r"[\w.-]+\.(?:sbatch|sh|ya?ml|py)\b", "\n".join(steps)))
    assert named
    assert {one for one in named if not (tmp_path / "made" / one).exists()} <= {"train.py"}
    (plan,) = (at for at, step in enumerate(steps) if " pod-agent plan" in step)
    if job != "rehearsal":
        assert f"pod-agent init {name} rehearsal" in steps[plan - 1]

    # The plan names the data as the files do: as the pod sees them.
    for word in shlex.split(steps[plan]):
        variable, _, data = word.partition("=")
        if variable == "AGENT_TRAIN_DATA":
            assert re.search(rf"[\s\"'=]{re.escape(data)}", joined), data

    # The last lines say where the model is.
    assert ("Your model will be in " in printed) == (job != "rehearsal")
    if job == COMMAND:
        assert f"checkpoints/{COMMAND}" in printed
        assert "if your command saves it to $AGENT_CHECKPOINTS or {checkpoints}" in printed

    # The command for the rehearsal can be typed as it is printed.
    if job == "verl-grpo":
        (rehearsal,) = re.findall(r"^  pod-agent init (.* rehearsal .*)$", printed, re.MULTILINE)
        init(rehearsal.rpartition(" --to ")[0], tmp_path / "rehearsal")


def test_the_rehearsal_is_typed_in_another_folder(tmp_path: Path) -> None:
    """A relative --agent is named by its full path; on RunPod the rehearsal has one small GPU."""
    one_file = tmp_path / "pod-agent"
    one_file.write_bytes(ONE_FILE)
    relative = f"--agent {os.path.relpath(one_file)}"
    printed = init(f"slurm verl-grpo --container apptainer {ON_TWO} {relative}", tmp_path / "run")
    (line,) = re.findall(r"^  (pod-agent init .* rehearsal .*)$", printed, re.MULTILINE)
    argv = shlex.split(line)
    assert Path(argv[argv.index("--agent") + 1]).is_absolute()
    assert "without GPUs, model and data:" in printed

    printed = init(f"runpod verl-grpo {ON_TWO}", tmp_path / "a")
    assert "with 1 GPU a node, without model and data:" in printed
    files, _ = written("runpod rehearsal --nodes 2", tmp_path / "b")
    assert json.loads(files["pod.json"])["gpu"] == {"id": "NVIDIA GeForce RTX 4090", "count": 1}


@pytest.mark.parametrize(
    ("line", "page"),
    [
        ("slurm verl-grpo --container apptainer", "slurm"),
        ("runpod verl-grpo --volume v", "runpod"),
    ],
)
def test_a_page_has_the_steps_that_init_prints(line: str, page: str, tmp_path: Path) -> None:
    """The commands between `Type:` and the rehearsal, without their comments; none is left out."""
    _, printed = written(f"{line} {ON_TWO}", tmp_path / "made")
    steps = printed.partition("Type:\n")[2].partition("\nFirst ")[0].splitlines()[1:]
    commands = [step.partition("   #")[0].strip() for step in steps]
    typed = [command for command in commands if not command.startswith("#")]
    text = (ROOT / "docs/platforms" / f"{page}.md").read_text(encoding="utf-8")
    assert typed
    assert [command for command in typed if command not in text] == []


TYPED = re.compile(r"(?:dist/)?pod-agent init ([a-z][^`\n#|]*)")


def test_the_commands_of_the_pages_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every `init` in README, docs and the examples' table writes its files without a question."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").touch()
    for file in (ROOT / "examples/services").glob("*.toml"):
        (code / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(code)
    pages = [ROOT / "README.md", ROOT / "examples/README.md", *(ROOT / "docs").rglob("*.md")]
    lines = {line.strip() for page in pages for line in TYPED.findall(page.read_text())}
    assert len(lines) > 15
    for number, line in enumerate(sorted(line for line in lines if "…" not in line)):
        words = re.sub(r" --(?:to|agent) \S+", "", line)
        assert written(words, tmp_path / str(number)).files, line


def test_the_examples_are_its_output(tmp_path: Path) -> None:
    """Each file is what its command in examples/README.md writes."""
    environ = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts/examples", tmp_path], check=True, env=environ)
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(made) == 29
    for path in made:
        example = ROOT / "examples" / path.relative_to(tmp_path)
        assert example.read_bytes() == path.read_bytes(), "run ./scripts/examples"


KEYS = {
    "dstack": (
        "type name image nodes fleets spot_policy resources env files commands retry ports volumes"
    ),
    "skypilot": "name num_nodes resources secrets file_mounts envs setup run",
    "pods": (
        "name image gpu globalNetworking dataCenterIds args env disk mounts ports startJupyter"
        " startSsh"
    ),
    "cluster": (
        "name image type compute dataCenterIds args env disk mounts ports startJupyter startSsh"
    ),
    "resources": "image_id disk_size accelerators infra use_spot cpus memory",
    "node group": "name nodes resources commands ports",  # dstack 0.22
    "job group": "name execution primary_tasks termination_delay inter_connection",  # SkyPilot 0.14
}
"""What each platform's own description has, of which nothing else may be in a file."""


def test_only_what_the_platforms_describe(tmp_path: Path) -> None:
    """No file has a key that its platform does not know, with all options given."""
    known = {name: set(keys.split()) for name, keys in KEYS.items()}
    common = f"verl-grpo {ON_TWO} --wandb --hf-token --gpu-type 'H100 SXM'"
    on_dstack = "--volume disk --center runpod/EU-RO-1 --spot --fleet mine"
    files, _ = written(f"dstack {common} {on_dstack}", tmp_path / "a")
    task = yaml.safe_load(files["verl-grpo.dstack.yml"])
    assert task.keys() == known["dstack"]
    assert task["volumes"] == ["disk:/checkpoints"]
    assert yaml.safe_load(files["volume.dstack.yml"])["type"] == "volume"
    on_sky = "--volume s3://disk --center aws/us-east-1 --spot"
    files, _ = written(f"skypilot {common} {on_sky}", tmp_path / "b")
    task = yaml.safe_load(files["verl-grpo.sky.yaml"])
    assert task.keys() == known["skypilot"]
    assert task["resources"].keys() <= known["resources"]
    for kind, file in (("pods", "pod.json"), ("cluster", "instant-cluster.json")):
        line = f"runpod {common} --kind {kind} --volume disk --center EU-RO-1"
        body = json.loads(written(line, tmp_path / kind).files[file])
        assert body.keys() == known[kind]
        assert {type(value) for value in body["env"].values()} == {str}
        for name in ("WANDB_API_KEY", "HF_TOKEN"):
            assert body["env"][name] == f"{{{{ RUNPOD_SECRET_{name.lower()} }}}}"
    task = yaml.safe_load((ROOT / "examples/dstack/groups.dstack.yml").read_text())
    assert not task.keys() & {"nodes", "commands", "ports", "entrypoint", "resources"}
    assert all(group.keys() <= known["node group"] for group in task["groups"])
    header, *_ = yaml.safe_load_all((ROOT / "examples/skypilot/groups.yaml").read_text())
    assert header.keys() == known["job group"]


MODELS = {
    "dstack": (
        "/checkpoints/verl-grpo on the instances; get it by:",
        "dstack apply -y -f get.dstack.yml",
        "scp -r get-verl-grpo:/checkpoints/verl-grpo .",
        "! The instances have the only copy, and are given back 2h after the run",
    ),
    "dstack --volume disk": ("/checkpoints/verl-grpo on the volume disk; get it by:",),
    "dstack --fleet mine": ("once they have been idle as long as the fleet mine says",),
    "skypilot": (
        "rsync -az verl-grpo:/root/checkpoints/verl-grpo . && sky down verl-grpo",
        "! The cluster has the only copy, and `sky down` deletes it",
    ),
    "skypilot --volume s3://mine": (
        "s3://mine/checkpoints/verl-grpo; get it by:",
        "aws s3 sync s3://mine/checkpoints/verl-grpo verl-grpo",
    ),
    "runpod --kind pods": (
        "start it in the console, it stays up for 60 min",
        "! The pods are stopped after the run, and have the only copy",
    ),
    "runpod --kind cluster": ("! The pods have the only copy, and bill until you delete the clus",),
    "runpod --kind cluster --volume v": (
        "/workspace/checkpoints/verl-grpo on the network volume v; get it by:",
    ),
    "kubernetes": (
        "/workspace/checkpoints/verl-grpo on the claim rl-workspace; get it by:",
        "kubectl cp rl-files:/workspace/checkpoints/verl-grpo verl-grpo",
    ),
    "kuberay --volume mine": ("on the claim mine",),
    "slurm --python /venv/bin/python": (
        "checkpoints/verl-grpo in the folder of verl-grpo.sbatch.",
    ),
    "ssh --hosts me@a,b": ("scp -r me@a:pod-agent/checkpoints/verl-grpo .",),
}
"""By the words of `init`: what its last lines say about the model."""


@pytest.mark.parametrize("words", MODELS)
def test_where_the_model_is(words: str, tmp_path: Path) -> None:
    """The last lines name the place and the command, and warn where it has the only copy."""
    platform, _, more = words.partition(" ")
    nodes = "" if platform == "ssh" else "--nodes 2"
    _, printed = written(f"{platform} verl-grpo {nodes} --gpus 8 {more}", tmp_path / "made")
    _, found, end = printed.partition("Your model will be in ")
    assert found
    for text in MODELS[words]:
        assert text in printed
    warns = any(text.startswith("! ") for text in MODELS[words]) or "--fleet" in words
    assert ("only copy" in end) == warns
    assert len(end.splitlines()) < 5


@pytest.mark.parametrize(
    ("line", "file", "texts"),
    [
        # a pod that asks for more than its node has would wait without an end
        (
            "kuberay verl-grpo --nodes 2 --gpus 1",
            "rayjob.yaml",
            ["{cpu: 8, memory: 64Gi, nvidia.com/gpu: 1}"],
        ),
        # own model and data replace the usual ones, with what belongs to the usual data
        (
            f"dstack verl-grpo {ON_TWO} --model Qwen/Qwen3-8B --data /data/mine.parquet",
            "verl-grpo.dstack.yml",
            [
                "AGENT_MODEL: Qwen/Qwen3-8B",
                "AGENT_TRAIN_DATA: /data/mine.parquet",
                *("! AGENT_EVAL_DATA", "! AGENT_PREPARE"),
            ],
        ),
        # the batch script clones, pulls and downloads nothing; fetch.sh did, and installed
        (
            f"slurm openrlhf-grpo --container apptainer {ON_TWO} --partition h100 --account rl",
            "openrlhf-grpo.sbatch",
            [
                *("HF_HUB_OFFLINE=1", "AGENT_TRAIN_DATA=$PWD/data/dapo-math-17k"),
                "#SBATCH --partition=h100\n#SBATCH --account=rl\n",
                *("! git clone", "! pip install", "! docker://", "! AGENT_PREPARE"),
            ],
        ),
        (
            "slurm prime-rl --container pyxis --nodes 4 --gpus 8",
            "prime-rl.sbatch",
            ["AGENT_TRAIN_DATA=reverse-text\n"],  # an environment
        ),
        (
            "slurm prime-rl --container pyxis --nodes 4 --gpus 8",
            "fetch.sh",
            ["load_dataset", "\ninside /app/.venv/bin/python3 -c"],
        ),
        (
            "slurm prime-rl --container pyxis --nodes 4 --gpus 8 --image ghcr.io/acme/rl:1",
            "fetch.sh",
            ["\ninside python3 -c"],
        ),
        (
            f"slurm search-r1-grpo --container apptainer {ON_TWO} --image me/search-r1:1",
            "search-r1-grpo.sbatch",
            ["AGENT_SERVICES=$PWD/services.toml"],
        ),
        (
            f"slurm search-r1-grpo --container apptainer {ON_TWO} --image me/search-r1:1",
            "fetch.sh",
            ['touch "$PWD/data/.prepared-index"'],
        ),
        # between quotes no shell expands `~`, and a program that reads PATH does not, either
        *(
            (
                f"slurm verl-grpo {ON_TWO} --python ~/venv/bin/python",
                file,
                ['PATH="$HOME/venv/bin:$PATH"', "! ~/venv"],
            )
            for file in ("verl-grpo.sbatch", "fetch.sh")
        ),
        # a cluster is deleted where its results outlive it, else held; pods are stopped
        (
            f"runpod verl-grpo {ON_TWO} --kind pods",
            "pod.json",
            ['"AGENT_ON_DONE": "stop-pod"', "! RUNPOD_API_KEY"],
        ),
        (
            f"runpod verl-grpo {ON_TWO} --kind cluster",
            "instant-cluster.json",
            ['"AGENT_ON_DONE": "hold"', "! RUNPOD_API_KEY"],
        ),
        (
            f"runpod verl-grpo {ON_TWO} --kind cluster --volume v",
            "instant-cluster.json",
            ['"AGENT_ON_DONE": "terminate-pod"', "RUNPOD_API_KEY"],
        ),
        # a published wheel: its path, not the query of a signed URL, says what the file is
        (
            (
                "dstack rehearsal --nodes 2 --agent-url"
                f" 'https://my.server/pod_agent-0.1.0-py3-none-any.whl?expires=1&sig=2' {SHA256}"
            ),
            "rehearsal.dstack.yml",
            ["pod-agent[maths] @ https://my.server/pod_agent-0.1.0-py3-none-any.whl?expires=1&sig"],
        ),
        # its user may not write to a volume: root runs it, unless the image is the user's own
        (
            "dstack prime-rl --nodes 4 --gpus 8 --volume v",
            "prime-rl.dstack.yml",
            ["user: root"],
        ),
        (
            "dstack prime-rl --nodes 4 --gpus 8 --volume v --image ghcr.io/acme/rl:1",
            "prime-rl.dstack.yml",
            ["! user:"],
        ),
    ],
)
def test_what_is_in_a_file(line: str, file: str, texts: list[str], tmp_path: Path) -> None:
    """The texts are in it, and none of those behind `!`."""
    text = written(line, tmp_path / "made").files[file]
    for expected in texts:
        assert (expected.removeprefix("! ") in text) is not expected.startswith("! "), expected


def test_idle_machines_with_the_only_copy_stay_longer(tmp_path: Path) -> None:
    """Ten minutes suffice only where a volume has the checkpoints, or nothing is worth keeping."""
    for number, (more, idle, nodes) in enumerate([("", "2h", 2), ("--volume v", "10m", 1)]):
        files, _ = written(f"dstack verl-grpo {ON_TWO} {more}", tmp_path / str(number))
        assert yaml.safe_load(files["fleet.dstack.yml"])["idle_duration"] == idle
        task, get = (yaml.safe_load(files[f"{n}.dstack.yml"]) for n in ("verl-grpo", "get"))
        assert get["nodes"] == nodes
        same = ("volumes", "fleets", "resources", "image")
        assert [get[key] for key in same] == [task[key] for key in same]
    files, _ = written("dstack rehearsal --nodes 2", tmp_path / "rehearsal")
    assert yaml.safe_load(files["fleet.dstack.yml"])["idle_duration"] == "10m"


def test_a_published_agent_is_verified(tmp_path: Path) -> None:
    """With --agent-url nothing is sent along, and each node checks the digest.

    A signed URL, which has `&`, is one word of the shell.
    """
    signed = "https://my.server/pod-agent?expires=1&signature=2"
    for name in ("slurm", "dstack", "runpod", "kubernetes", "kuberay", "skypilot"):
        line = f"{name} rehearsal --nodes 2 --agent-url '{signed}' {SHA256}"
        files, _ = written(line, tmp_path / name)
        scripts = [script for file, text in files.items() for script in scripts_of(file, text)]
        assert any(f" '{signed}' $new " in script for script in scripts), name
        assert "sha256sum --check" in "\n".join(files.values())
        assert not [*(tmp_path / name).glob("*.whl"), *(tmp_path / name).glob("pod-agent")]


@pytest.mark.parametrize("recipe", [job.name for job in RECIPES if job.name != "rehearsal"])
@pytest.mark.parametrize("data", ["", "/data/mine.jsonl"])
def test_the_settings_of_a_recipe_are_a_job(recipe: str, data: str) -> None:
    """They are valid, and make a command on two nodes of eight GPUs."""
    request = Request(job=recipe, nodes=2, gpus=8, agent=WHEEL, data=data)
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


def test_values_survive_their_format() -> None:
    """A shell and YAML return the written values, folded lines and quotes included."""
    values = {
        "PLAIN": "verl-grpo",
        "LIKE_A_NUMBER": "3",
        "LIKE_A_TRUTH": "yes",
        "LIKE_A_NUMBER_OF_YAML_1_2": "1e-6",
        "LONG": "test -e /data/train.parquet || " + " ".join(f"--word{n} value" for n in range(20)),
        "ODD": "a: b # c",
        "QUOTED": 'say "yes"',
    }
    block = yaml_block(values, 2)
    assert yaml.safe_load(block) == values
    assert '"1e-6"' in block
    script = shell_exports(values) + "\nenv"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert {name: " ".join(found[name].split()) for name in values} == values


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    """An existing file stays, unless --force is given; the same content is no loss."""
    line = "dstack verl-grpo --nodes 3 --gpus 8"
    printed = init(line, tmp_path)
    file = tmp_path / "verl-grpo.dstack.yml"
    assert f"wrote {file}" in printed
    steps = ("dstack secret set", "dstack apply -y -f fleet", "dstack apply -f verl-grpo.dstack")
    assert sorted(steps, key=printed.index) == list(steps)
    init(line, tmp_path)
    file.write_text("mine", encoding="utf-8")
    assert "--force" in init(line, tmp_path, code=2)
    assert file.read_text(encoding="utf-8") == "mine"
    init(f"{line} --force", tmp_path)
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["nodes"] == 3


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_folder_that_cannot_be_written(folder: str, tmp_path: Path) -> None:
    """The error names the path, without a traceback."""
    (tmp_path / "file").write_text("a file", encoding="utf-8")
    error = init("dstack rehearsal --nodes 2", tmp_path / folder, code=2)
    assert error.startswith(f"pod-agent init: --to {tmp_path / folder}: ")
    assert "Traceback" not in error


def test_a_program_may_be_run(tmp_path: Path) -> None:
    """The loop over ssh and the script for RunPod's pods are executable, by `sh` too."""
    init("ssh rehearsal --hosts a,b", tmp_path / "a")
    init("runpod rehearsal --nodes 2", tmp_path / "b")
    assert os.access(tmp_path / "a/loop.sh", os.X_OK)
    assert os.access(tmp_path / "b/pods.py", os.X_OK)

    # Whoever types `sh` in place of `bash` gets the program's own answer.
    words = ["sh", str(tmp_path / "a/loop.sh")]
    environ = {"PATH": os.environ["PATH"]}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert "RAY_AUTH_TOKEN: is not set" in done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "not given: PLATFORM (platform: slurm, runpod, dstack"),
        ("dstack", "RECIPE (recipe: rehearsal"),
        ("dstack verl-grpo", "--nodes (nodes, the head among them); --gpus (GPUs of each node)"),
        ("dstack search-r1-grpo --nodes 2", "--gpus (GPUs of each node); --image (an ima"),
        ("ssh rehearsal", "--hosts (machines, the head first"),
        ("ssh rehearsal --hosts a,root@b,a", "--hosts: a is named twice"),
        ("ssh rehearsal --hosts a,http://b", "--hosts: 'http://b': expected a host name"),
        ("ssh rehearsal --hosts a,b --nodes 3", "--nodes 3, and --hosts names 2"),
        (
            f"dstack verl-grpo {ON_TWO} --gpu-type H100:8",
            "--gpu-type: 'H100:8': expected the kind alone, H100; --gpus says how many",
        ),
        (
            f"dstack verl-grpo {ON_TWO} --center runpod/X",
            "--center is where dstack makes the volume: add --volume NAME",
        ),
        (
            "dstack rehearsal --nodes 2 --volume v --center runpod",
            "--center runpod: expected BACKEND/REGION",
        ),
        (
            f"skypilot verl-grpo {ON_TWO} --volume mine",
            "a bucket has its store before it, as in s3://mine or gs://mine",
        ),
        (f"slurm verl-grpo {ON_TWO}", "--python (the Python that has"),
        ("dstack rehearsal --nodes 2 --agent-url https://x/y", "--agent-sha256 go together"),
        ("dstack rehearsal --agent-url https://x/y --agent-sha256 abc", "'abc' is no SHA-256"),
        ("dstack rehearsal --nodes 2 --agent /proc/self/mem", "--agent /proc/self/mem: "),
        (
            f"dstack rehearsal --nodes 2 --agent {Path(__file__)}",
            "is neither the one file nor a wheel of the agent",
        ),
        ("dstack rehearsal --container pyxis", "dstack has no --container, which is for"),
        ("dstack rehearsal --partition x", "dstack has no --partition, which is for slurm"),
        ("kubernetes rehearsal --nodes 2 --kind cluster", "--kind lws or trainjob"),
        (
            "runpod rehearsal --nodes 2 --kind cluter",
            "runpod has no cluter; it takes --kind pods or cluster",
        ),
        ("dstack --image 'x y' -- true", "'x y': expected one word, without spaces"),
        (
            "slurm rehearsal --nodes 2 --time 1d",
            "'1d' is no time limit of Slurm, such as 90, 12:00:00 or 1-00:00:00",
        ),
        (f"kuberay trl-grpo {ON_TWO}", "pod-agent init kubernetes trl-grpo"),
        ("runpod rehearsal --nodes 1 --kind cluster", "two pods at least"),
        (
            "runpod verl-grpo --nodes 1 --gpus 16",
            "a pod of RunPod has at most 8 GPUs: --nodes 2 --gpus 8",
        ),
        ("runpod verl-grpo --nodes 1 --gpus 0", "--gpus 1"),
        ("runpod rehearsal --nodes 251 --kind cluster", "at most 250 pods"),
        (
            "runpod rehearsal --nodes 1 --gpu-type H100",
            "may be 'H100 SXM' or 'H100 NVL' or 'H100 PCIe'",
        ),
        ("dstack rehearsal --nodes 0", "a run has one node at least"),
        ("dstack rehearsal --nodes many", "'many' is no whole number"),
        ("dstack verl-gpro", "verl-grpo"),
        ("slrum", "no platform 'slrum': did you mean slurm?"),
        ("dstack verl-grpo -- true", "either the recipe verl-grpo, or a command"),
        # groups: engines load each new model from a disk that all nodes share
        *(
            (f"{platform} slime-grpo --nodes 4 --gpus 8", "all nodes share. Add --volume: ")
            for platform in ("runpod", "dstack", "skypilot")
        ),
        ("runpod prime-rl --nodes 4 --gpus 8 --kind pods --volume v", "and root as its user"),
        (f"dstack --image me/rl:1 {ON_TWO} --group-nodes x -- train", "dstack has no --group-nod"),
        (
            f"kubernetes --image me/rl:1 {ON_TWO} --group-nodes a=b -- train",
            "the run has no groups",
        ),
        (
            "kubernetes slime-grpo --nodes 4 --gpus 8 --group-nodes spot",
            "expected a label of nodes, LABEL=VALUE",
        ),
        (
            "kubernetes slime-grpo --nodes 4 --gpus 8 --group-nodes a=b --kind trainjob",
            "has one kind of pods",
        ),
        # code is for a command of one's own: a recipe's is its framework's
        (f"dstack verl-grpo {ON_TWO} --code .", "--code is for a command of your own, after --"),
    ],
)
def test_what_is_wrong_is_named(line: str, expected: str, tmp_path: Path) -> None:
    """Usage errors name the flag and the remedy, and write nothing."""
    assert expected in init(line, tmp_path, code=2)
    assert not list(tmp_path.iterdir())


SEVENTY = "verl-grpo --nodes 1 --gpus 2 --model meta-llama/Llama-3.1-70B-Instruct"
"""What two GPUs cannot train."""


@pytest.mark.parametrize("platform", ["runpod", "dstack", "kubernetes"])
def test_what_the_recipe_refuses_is_refused(
    platform: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The sentence and the code are those of `recipe`; nothing is written."""
    refused = init(f"{platform} {SEVENTY}", tmp_path, code=78)
    words, _, model = SEVENTY.partition(" --model ")
    monkeypatch.setenv("AGENT_MODEL", model)
    monkeypatch.setenv("AGENT_TRAIN_DATA", "/data")
    assert agent(["recipe", *words.split(), "--gpu-memory", "80"]) == 78
    assert refused.startswith(capsys.readouterr().err.rstrip())
    assert "--gpu-memory GB (of each GPU) and --host-memory GB" in refused
    assert not list(tmp_path.iterdir())


def test_memory_that_the_user_names_is_taken(tmp_path: Path) -> None:
    """GPUs and nodes with more memory are said by options, or by the kind of GPU."""
    large = f"{SEVENTY} --host-memory 4096"
    init(f"kubernetes {large} --gpu-memory 141", tmp_path / "a")
    init(f"dstack {large} --gpu-type H200", tmp_path / "b")
    for platform, kind in (("dstack", "RTX4090"), ("skypilot", "A10G:24GB"), ("runpod", "4090")):
        refused = init(f"{platform} {large} --gpu-type {kind}", tmp_path / "c", code=78)
        assert "1×2×24 GB: no" in refused


def test_what_is_warned_of(tmp_path: Path) -> None:
    """Data of this machine, a large file on dstack, slow networks and no GPU are named."""
    data = tmp_path / "x.parquet"
    data.touch()
    line = f"verl-grpo {ON_TWO} --data {data}"
    warning = f"! --data {data} is on this machine, and nothing copies it"
    printed = init(f"dstack {line}", tmp_path / "a")
    assert warning in printed
    assert "DSTACK_SERVER_CODE_UPLOAD_LIMIT" not in printed
    (wheel,) = (tmp_path / "a").glob("*.whl")
    assert wheel.stat().st_size < 2 << 20
    slurm = written(f"slurm {line} --python /venv/bin/python", tmp_path / "b")
    assert warning not in slurm.printed
    refused = init(f"dstack verl-grpo --nodes 2 --gpus 0 --data {data}", tmp_path / "c", code=78)
    assert "no node has one" in refused
    assert "--gpu-memory" not in refused

    large = tmp_path / "large"
    large.write_bytes(b"x" * (3 << 20) + ONE_FILE)
    printed = init(f"dstack verl-grpo {ON_TWO} --agent {large}", tmp_path / "large-one")
    assert "DSTACK_SERVER_CODE_UPLOAD_LIMIT=0" in printed

    printed = init("runpod verl-grpo --nodes 2 --gpus 2", tmp_path / "pods")
    assert "100 Mbps" in printed
    assert "one pod with as many GPUs (--nodes 1 --gpus 4), or an Instant Cluster" in printed
    assert "100 Mbps" not in init(f"runpod verl-grpo {ON_TWO} --kind cluster", tmp_path / "cluster")


def at_a_terminal(words: list[str], answers: bytes) -> str:
    """Run the verb at a terminal, and type the answers; return what it printed."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*AGENT, *words], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        os.write(ours, answers)
        assert process.wait(timeout=100) == 0
    printed = os.read(ours, 65_536).decode()
    os.close(ours)
    return printed


def test_it_asks_at_a_terminal(tmp_path: Path) -> None:
    """Missing values are asked for, again after a wrong answer; an empty one takes the default."""
    answers = b"kubernetes\nverl-gpro\nverl-grpo\nmany\n\ntrainjob\nQwen/Qwen3-8B\n"
    printed = at_a_terminal(["--to", str(tmp_path), "--gpus", "4"], answers)
    for question in ("platform:", "recipe:", "kind:", "[2]", "model,"):
        assert question in printed
    assert "did you mean verl-grpo?" in printed
    assert printed.count("nodes, the head among them") == 2
    manifest = (tmp_path / "kubeflow-trainjob.yaml").read_text(encoding="utf-8")
    assert "nvidia.com/gpu: 4" in manifest
    assert "Qwen/Qwen3-8B" in manifest


@pytest.mark.parametrize(("answer", "has_volume"), [(b"s3://mine\n", True), (b"\n", False)])
def test_a_volume_is_asked_for_where_the_only_copy_would_be_lost(
    answer: bytes, tmp_path: Path, *, has_volume: bool
) -> None:
    """An empty answer means none."""
    words = f"skypilot verl-grpo {ON_TWO} --model a/b --to {tmp_path}".split()
    printed = at_a_terminal(words, answer)
    assert "a bucket such as s3://mine, which keeps the model; empty: none" in printed
    assert ("s3://mine" in (tmp_path / "verl-grpo.sky.yaml").read_text()) == has_volume


def test_every_recipe_has_a_preset() -> None:
    """A recipe without a public image says what one needs."""
    assert list(presets()) == [job.name for job in RECIPES]
    for job in presets():
        preset = preset_of(job)
        assert bool(preset.image) != bool(preset.no_image)


# --- runs with groups, which it writes as the platform's own -----------------------------------

SLIME = "slime-grpo --nodes 4 --gpus 8"
OWN = "--nodes 3 --gpus 8 --image ghcr.io/acme/rl:1"
TRAIN = "-- train --engines {addresses:engine|space}"
SERVICES = """\
[groups.rollout]
nodes = 1

[services.engine]
command = "exec serve --port {port}"
where = "rollout"
gpus = 2
ready.http = "http://{node_ip}:{port}/health"
"""


def directives(batch: str) -> list[list[str]]:
    """Return the options of each component of a batch script."""
    components: list[list[str]] = [[]]
    for line in re.findall(r"^#SBATCH (.+)$", batch, re.MULTILINE):
        if line == "hetjob":
            components.append([])
        else:
            components[-1] += shlex.split(line)
    return components


def test_components_of_slurm(tmp_path: Path) -> None:
    """The trainer's component and that of its engines, which may have another partition.

    Slurm would end a component of one node with any lost node: then ranks decide, unless its
    partition is another one.
    """
    slurm = f"slurm {SLIME} --container pyxis --partition h100 --account rl"
    files, _ = written(f"{slurm} --group-nodes scavenge", tmp_path / "a")
    trainer, rollout = directives(files["slime-grpo.sbatch"])
    assert {"--partition=h100", "--requeue", "--nodes=2", "--account=rl"} <= {*trainer}
    assert {"--partition=scavenge", "--no-kill", "--nodes=2", "--account=rl"} <= {*rollout}

    two = f"slurm slime-grpo {ON_TWO} --container pyxis"
    files, printed = written(two, tmp_path / "b")
    (only,) = directives(files["slime-grpo.sbatch"])
    assert {"--nodes=2", "--no-kill"} <= {*only}
    assert "\nsrun --kill-on-bad-exit=0 --no-kill " in files["slime-grpo.sbatch"]
    assert "requeued" not in printed
    files, printed = written(f"{two} --group-nodes cheap", tmp_path / "c")
    assert len(directives(files["slime-grpo.sbatch"])) == 2
    assert "Slurm ends a component of one node with any lost node" in printed


def test_groups_that_a_platform_lacks(tmp_path: Path) -> None:
    """On a cloud SkyPilot's tasks have no names for each other, and two kinds of Kubernetes rank.

    dstack has no spot policy of a node group: a lost instance starts all nodes anew.
    """
    files, printed = written(f"skypilot {SLIME} --volume s3://b", tmp_path / "a")
    (task,) = yaml.safe_load_all(files["slime-grpo.sky.yaml"])
    assert (task["name"], task["num_nodes"]) == ("slime-grpo", 4)
    assert "EXPECTED_WORKERS" not in task["envs"]
    assert "--center k8s" in printed
    for kind in ("trainjob", "pytorchjob"):
        files, _ = written(f"kubernetes {SLIME} --kind {kind}", tmp_path / kind)
        assert "AGENT_GROUP" not in "".join(files.values())
    printed = init(f"dstack {SLIME} --volume v --spot", tmp_path / "b")
    assert "! --spot is for the nodes of all groups" in printed


def test_pods_of_groups(tmp_path: Path) -> None:
    """The engines' pods may have nodes of their own; an image's user gives way in every set."""
    line = f"kubernetes {SLIME} --group-nodes cloud.google.com/gke-spot=true"
    trainer, rollout, _ = yaml.safe_load_all(written(line, tmp_path / "a").files["lws.yaml"])
    templates = [one["spec"]["leaderWorkerTemplate"] for one in (trainer, rollout)]
    pods = [template["workerTemplate"]["spec"] for template in templates]
    assert "nodeSelector" not in pods[0]
    assert pods[1]["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    (taint,) = pods[1]["tolerations"]
    assert taint["key"] == "cloud.google.com/gke-spot"
    sets = written("kubernetes prime-rl --nodes 4 --gpus 8", tmp_path / "b").files["lws.yaml"]
    assert sets.count("securityContext: {runAsUser: 0}") == sets.count("- name: agent\n")


@pytest.mark.parametrize("named", ["option", "variable"])
def test_a_file_of_ones_own(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its groups become the platform's; it is sent along to every node."""
    file = tmp_path / "mine.toml"
    file.write_text(SERVICES)
    option = f"--services {file}"
    if named == "variable":
        monkeypatch.setenv("AGENT_SERVICES", str(file))
        option = ""
    line = f"slurm {OWN} --container pyxis --group-nodes cheap {option} {TRAIN}"
    slurm, _ = written(line, tmp_path / "a")
    assert slurm["services.toml"] == SERVICES
    trainer, rollout = directives(slurm["command.sbatch"])
    assert "--nodes=2" in trainer
    assert "--nodes=1" in rollout
    assert "export AGENT_SERVICES=$PWD/services.toml" in slurm["command.sbatch"]
    sky, _ = written(f"skypilot {OWN} --center k8s {option} {TRAIN}", tmp_path / "b")
    _, *tasks = yaml.safe_load_all(sky["command.sky.yaml"])
    assert [task["name"] for task in tasks] == ["trainer", "rollout"]
    manifest = written(f"kubernetes {OWN} {option} {TRAIN}", tmp_path / "c").files["lws.yaml"]
    *_, config = yaml.safe_load_all(manifest)
    assert config["data"]["services.toml"].strip() == SERVICES.strip()
    assert manifest.count("- {name: services, mountPath: /etc/pod-agent}") == 2


def test_every_job_reads_the_file(tmp_path: Path) -> None:
    """Also the rehearsal, and a recipe that brings no groups."""
    file = tmp_path / "judge.toml"
    file.write_text("[services.judge]\ncommand = 'exec serve'\nready.tcp = 9000\n")
    for job in ("rehearsal", "verl-grpo"):
        files, _ = written(f"dstack {job} {ON_TWO} --services {file}", tmp_path / job)
        task = yaml.safe_load(files[f"{job}.dstack.yml"])
        assert task["env"]["AGENT_SERVICES"] == "/opt/services.toml"
        assert "services.toml:/opt/services.toml" in task["files"]


@pytest.mark.parametrize(
    ("own", "model", "nodes"),
    [
        # the platform is asked for so many nodes: other arguments must not change it later
        ("", "Qwen/Qwen3-8B", 3),
        ("", "Qwen/Qwen3-30B-A3B", 4),
        # a file with one key changes it alone
        ("[services.engine]\nready.within = '1h'\n", "Qwen/Qwen3-30B-A3B", 4),
        ("[groups.rollout]\nnodes = 5\n", "Qwen/Qwen3-8B", 5),
    ],
)
def test_the_split_is_written_down(own: str, model: str, nodes: int, tmp_path: Path) -> None:
    """As it is estimated by the model, or as the user's file has it."""
    file = tmp_path / "mine.toml"
    file.write_text(own)
    slurm = "slurm slime-grpo --nodes 6 --gpus 8 --container pyxis --group-nodes cheap"
    more = f"--services {file}" if own else ""
    files, _ = written(f"{slurm} --model {model} {more}", tmp_path / "made")
    _, rollout = directives(files["slime-grpo.sbatch"])
    assert f"--nodes={nodes}" in rollout
    assert files["services.toml"].startswith(own)
    assert files["services.toml"].endswith(f"[groups.rollout]\nnodes = {nodes}\n")
    assert "export AGENT_SERVICES=$PWD/services.toml" in files["slime-grpo.sbatch"]


@pytest.mark.parametrize(
    ("line", "services", "expected", "code"),
    [
        (
            f"dstack --nodes 1 --gpus 8 --image me/rl:1 --services mine.toml {TRAIN}",
            SERVICES,
            "--nodes 1: no node trains beside 1 of rollout",
            2,
        ),
        (f"kuberay {OWN} --services mine.toml {TRAIN}", SERVICES, "kuberay has no --services", 2),
        (
            f"dstack search-r1-ppo {OWN} --services mine.toml",
            SERVICES,
            "search-r1-ppo writes a services.toml of its own",
            2,
        ),
        (
            f"slurm {SLIME} --container pyxis --services mine.toml",
            "[groups.rollout]\nmin = 1\n",
            "[groups.rollout] lacks nodes = 2, or as you like",
            2,
        ),
        (
            f"dstack {OWN} --services mine.toml {TRAIN}",
            SERVICES.replace("gpus = 2", "gpus = 'two'"),
            "[services.engine]",
            78,
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused(  # noqa: PLR0913 - columns of a table
    line: str,
    services: str,
    expected: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The refusal names the option, or the table of the file."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(services)
    assert expected in init(line, tmp_path / "made", code=code)
    assert not (tmp_path / "made").exists()
