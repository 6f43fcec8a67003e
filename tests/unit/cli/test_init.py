"""`pod-agent init`: its questions, its output, and the examples that it generates."""

from __future__ import annotations

import contextlib
import io
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
from support.stand_in_packages import ONE_FILE

ROOT = Path(__file__).parents[3]
AGENT = [sys.executable, "-m", "agent", "init"]
FOLDERS = Folders("/data", "/code", "/checkpoints", "/logs", "/models", services="/services.toml")
WHEEL = AgentFile("wheel", "pod_agent-0.1.0-py3-none-any.whl", "it fits.", b"the wheel")
URL = ("--agent-url", "https://my.server/pod-agent", "--agent-sha256", "0" * 64)
KINDS = [
    (name, platform.flag, variant)
    for name, platform in PLATFORMS.items()
    for variant in platform.variants
]
COMMAND = "command"
JOBS = [*presets(), COMMAND]
PLACEHOLDER = re.compile(
    r"<[A-Za-z][\w -]*>|TODO|FIXME|\b[Yy]our-|\byou/|\bchange\b|…"
    r"|\{\{(?! (?:RUNPOD_SECRET|secrets))"
)
"""What a user would have to edit."""


def init(*words: str, code: int = 0) -> str:
    """Run the verb without a terminal; return what it printed, and what was wrong."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            found: object = agent(["init", *words])
        except SystemExit as usage:
            found = usage.code
    assert found == code, printed.getvalue()
    return printed.getvalue()


def written(folder: Path, *words: str, command: tuple[str, ...] = ()) -> tuple[dict[str, str], str]:
    """Run the verb; return its text files by name, and what it printed."""
    one_file = folder.parent / "pod-agent"
    one_file.write_bytes(ONE_FILE)
    if words[0] == "slurm" and "--agent-url" not in words:
        words = (*words, "--agent", str(one_file))
    printed = io.StringIO()
    argv = ["init", *words, "--to", str(folder), *(["--", *command] if command else [])]
    with contextlib.redirect_stdout(printed):
        assert agent(argv) == 0
    texts = {
        path.name: path.read_text(encoding="utf-8")
        for path in folder.iterdir()
        if path.suffix not in {".whl", ".gz"} and path.name != "pod-agent"
    }
    return texts, printed.getvalue()


def words_for(name: str, flag: str, variant: str, job: str) -> tuple[str, ...] | None:
    """Return the words that a job needs on a platform; None where it is refused."""
    if misfit(name, variant, job, 2):
        return None
    words = [name] if job == COMMAND else [name, job]
    words += ["--hosts", "10.0.0.5,me@10.0.0.6"] if name == "ssh" else ["--nodes", "2"]
    words += ["--gpus", "8" if job != "rehearsal" or name == "runpod" else "0"]
    if flag:
        words += [f"--{flag}", variant]
    if missing_image(name, variant, job):
        words += ["--image", "ghcr.io/acme/rl:1"]
    if job != COMMAND and brings_services(job) and name in {"runpod", "dstack", "skypilot"}:
        words += ["--volume", "s3://disk"]
    if variant == "none":
        words += ["--python", "/home/me/venv/bin/python"]
    return tuple(words)


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


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(("name", "flag", "variant"), KINDS)
def test_no_file_is_to_be_edited(
    name: str, flag: str, variant: str, job: str, tmp_path: Path
) -> None:
    """Each platform with each job: all parses, nothing is a placeholder, the steps are a road."""
    words = words_for(name, flag, variant, job)
    if words is None:
        assert job not in {"verl-grpo", "verl-ppo", "rehearsal", COMMAND}
        return
    command: tuple[str, ...] = ()
    if job == COMMAND:
        command = ("python3", "train.py", "--nodes", "{nodes}")
        (tmp_path / "code").mkdir()
        (tmp_path / "code/train.py").touch()
        words = (*words, "--code", str(tmp_path / "code"))
    files, printed = written(tmp_path / "made", *words, command=command)
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


@pytest.mark.parametrize(("name", "flag", "variant"), KINDS)
def test_the_printed_rehearsal_can_be_typed(
    name: str, flag: str, variant: str, tmp_path: Path
) -> None:
    """The command for the rehearsal is itself complete."""
    words = words_for(name, flag, variant, "verl-grpo")
    assert words is not None
    _, printed = written(tmp_path / "made", *words)
    (line,) = re.findall(r"^  pod-agent (init .* rehearsal .*)$", printed, re.MULTILINE)
    argv = shlex.split(line)[:-2]
    with contextlib.redirect_stdout(io.StringIO()):
        assert agent([*argv, "--to", str(tmp_path / "rehearsal")]) == 0


def test_the_rehearsal_is_typed_in_another_folder(tmp_path: Path) -> None:
    """A relative --agent is named by its full path; on RunPod the rehearsal has one small GPU."""
    one_file = tmp_path / "pod-agent"
    one_file.write_bytes(ONE_FILE)
    words = ("slurm", "verl-grpo", "--container", "apptainer", "--nodes", "2", "--gpus", "8")
    relative = os.path.relpath(one_file, ROOT)
    printed = init(*words, "--agent", relative, "--to", str(tmp_path / "run"))
    (line,) = re.findall(r"^  (pod-agent init .* rehearsal .*)$", printed, re.MULTILINE)
    argv = shlex.split(line)
    assert Path(argv[argv.index("--agent") + 1]).is_absolute()
    assert "without GPUs, model and data:" in printed

    _, printed = written(tmp_path / "a", "runpod", "verl-grpo", "--nodes", "2", "--gpus", "8")
    assert "with 1 GPU a node, without model and data:" in printed
    files, _ = written(tmp_path / "b", "runpod", "rehearsal", "--nodes", "2")
    assert json.loads(files["pod.json"])["gpu"] == {"id": "NVIDIA GeForce RTX 4090", "count": 1}


def test_a_pod_of_kuberay_is_as_large_as_its_gpus(tmp_path: Path) -> None:
    """A pod that asks for more than its node has would wait without an end."""
    for gpus, size in ((1, "{cpu: 8, memory: 64Gi"), (8, "{cpu: 64, memory: 512Gi")):
        words = ("kuberay", "verl-grpo", "--nodes", "2", "--gpus", str(gpus))
        files, _ = written(tmp_path / str(gpus), *words)
        assert f"{size}, nvidia.com/gpu: {gpus}}}" in files["rayjob.yaml"]


@pytest.mark.parametrize(
    ("words", "page"),
    [
        (("slurm", "verl-grpo", "--container", "apptainer"), "slurm"),
        (("runpod", "verl-grpo", "--volume", "v"), "runpod"),
    ],
)
def test_a_page_has_the_steps_that_init_prints(
    words: tuple[str, ...], page: str, tmp_path: Path
) -> None:
    """The commands between `Type:` and the rehearsal, without their comments; none is left out."""
    _, printed = written(tmp_path, *words, "--nodes", "2", "--gpus", "8")
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
        words, _, command = (shlex.split(part) for part in line.partition(" -- "))
        for option in ("--to", "--agent"):
            if option in words:
                at = words.index(option)
                del words[at : at + 2]
        files, _ = written(tmp_path / str(number), *words, command=tuple(command))
        assert files, line


KEYS = {
    "dstack": {
        *("type", "name", "image", "nodes", "fleets", "spot_policy", "resources", "env", "files"),
        *("commands", "retry", "ports", "volumes"),
    },
    "skypilot": {
        *("name", "num_nodes", "resources", "secrets", "file_mounts", "envs", "setup", "run"),
    },
    "runpod pods": {
        *("name", "image", "gpu", "globalNetworking", "dataCenterIds", "args", "env", "disk"),
        *("mounts", "ports", "startJupyter", "startSsh"),
    },
    "runpod cluster": {
        *("name", "image", "type", "compute", "dataCenterIds", "args", "env", "disk", "mounts"),
        *("ports", "startJupyter", "startSsh"),
    },
}
"""What each platform's own description has, of which nothing else may be in a file."""


def test_only_what_the_platforms_describe(tmp_path: Path) -> None:
    """No file has a key that its platform does not know, with all options given."""
    common = ("--nodes", "2", "--gpus", "8", "--wandb", "--hf-token", "--gpu-type", "H100 SXM")
    more = ("--volume", "disk", "--center", "EU-RO-1")
    on_dstack = ("--volume", "disk", "--center", "runpod/EU-RO-1", "--spot", "--fleet", "mine")
    task = written(tmp_path / "a", "dstack", "verl-grpo", *common, *on_dstack)
    text = task[0]["verl-grpo.dstack.yml"]
    assert yaml.safe_load(text).keys() == KEYS["dstack"]
    assert yaml.safe_load(text)["volumes"] == ["disk:/checkpoints"]
    volume = yaml.safe_load(task[0]["volume.dstack.yml"])
    assert volume["type"] == "volume"
    on_sky = ("--volume", "s3://disk", "--center", "aws/us-east-1", "--spot")
    sky = written(tmp_path / "b", "skypilot", "verl-grpo", *common, *on_sky)[0]
    parsed = yaml.safe_load(sky["verl-grpo.sky.yaml"])
    assert parsed.keys() == KEYS["skypilot"]
    assert parsed["resources"].keys() <= {
        *("image_id", "disk_size", "accelerators", "infra", "use_spot", "cpus", "memory"),
    }
    for kind, file in (("pods", "pod.json"), ("cluster", "instant-cluster.json")):
        words = ("runpod", "verl-grpo", "--kind", kind, *common, *more)
        body = json.loads(written(tmp_path / kind, *words)[0][file])
        assert body.keys() == KEYS[f"runpod {kind}"] - {"persistent"}
        assert {type(value) for value in body["env"].values()} == {str}
        for name in ("WANDB_API_KEY", "HF_TOKEN"):
            assert body["env"][name] == f"{{{{ RUNPOD_SECRET_{name.lower()} }}}}"


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
    "runpod --kind cluster": (
        "! The pods have the only copy, and bill until you delete the cluste",
    ),
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
    platform, *more = words.split()
    nodes = () if platform == "ssh" else ("--nodes", "2")
    _, printed = written(tmp_path / "made", platform, "verl-grpo", *nodes, "--gpus", "8", *more)
    _, found, end = printed.partition("Your model will be in ")
    assert found
    for text in MODELS[words]:
        assert text in printed
    warns = any(text.startswith("! ") for text in MODELS[words]) or "--fleet" in words
    assert ("only copy" in end) == warns
    assert len(end.splitlines()) < 5


def test_idle_machines_with_the_only_copy_stay_longer(tmp_path: Path) -> None:
    """Ten minutes suffice only where a volume has the checkpoints, or nothing is worth keeping."""
    words = ("--nodes", "2", "--gpus", "8")
    for number, (more, idle, nodes) in enumerate([((), "2h", 2), (("--volume", "v"), "10m", 1)]):
        files, _ = written(tmp_path / str(number), "dstack", "verl-grpo", *words, *more)
        assert yaml.safe_load(files["fleet.dstack.yml"])["idle_duration"] == idle
        task, get = (yaml.safe_load(files[f"{n}.dstack.yml"]) for n in ("verl-grpo", "get"))
        assert get["nodes"] == nodes
        assert {get[key] == task[key] for key in ("volumes", "fleets", "resources", "image")} == {
            True
        }
    files, _ = written(tmp_path / "rehearsal", "dstack", "rehearsal", "--nodes", "2")
    assert yaml.safe_load(files["fleet.dstack.yml"])["idle_duration"] == "10m"


def test_runpod_ends_its_bill(tmp_path: Path) -> None:
    """Pods are stopped; a cluster is deleted where its results outlive it, else held."""
    words = ("runpod", "verl-grpo", "--nodes", "2", "--gpus", "8")
    ends = {
        ("--kind", "pods"): ("pod.json", "stop-pod", False),
        ("--kind", "cluster"): ("instant-cluster.json", "hold", False),
        ("--kind", "cluster", "--volume", "v"): ("instant-cluster.json", "terminate-pod", True),
    }
    for number, (more, (file, on_done, has_key)) in enumerate(ends.items()):
        files, printed = written(tmp_path / str(number), *words, *more)
        env = json.loads(files[file])["env"]
        assert env["AGENT_ON_DONE"] == on_done
        assert ("RUNPOD_API_KEY" in env) == has_key
        assert ("100 Mbps" in printed) == (file == "pod.json")
    _, printed = written(tmp_path / "two", "runpod", "verl-grpo", "--nodes", "2", "--gpus", "2")
    assert "one pod with as many GPUs (--nodes 1 --gpus 4), or an Instant Cluster" in printed


def test_slurm_needs_no_internet_on_its_nodes(tmp_path: Path) -> None:
    """The batch script clones, pulls and downloads nothing; fetch.sh did, and installed."""
    for variant in ("apptainer", "pyxis"):
        words = ("slurm", "openrlhf-grpo", "--container", variant, "--nodes", "2", "--gpus", "8")
        files, _ = written(tmp_path / variant, *words, "--partition", "h100", "--account", "rl")
        batch = files["openrlhf-grpo.sbatch"]
        assert "HF_HUB_OFFLINE=1" in batch
        assert not re.search(r"git clone|pip install|docker://|AGENT_PREPARE", batch)
        assert "#SBATCH --partition=h100\n#SBATCH --account=rl\n" in batch
        assert "AGENT_TRAIN_DATA=$PWD/data/dapo-math-17k" in batch
        fetch = files["fetch.sh"]
        assert "pip install" in fetch
        assert "zhuzilin/dapo-math-17k" in fetch
    words = ("slurm", "prime-rl", "--container", "pyxis", "--nodes", "4", "--gpus", "8")
    files, _ = written(tmp_path / "prime-rl", *words)
    assert "AGENT_TRAIN_DATA=reverse-text\n" in files["prime-rl.sbatch"]  # an environment
    assert "load_dataset" in files["fetch.sh"]
    assert "\ninside /app/.venv/bin/python3 -c" in files["fetch.sh"]
    own = written(tmp_path / "own-image", *words, "--image", "ghcr.io/acme/rl:1")[0]["fetch.sh"]
    assert "\ninside python3 -c" in own
    bare = ("slurm", "search-r1-grpo", "--container", "apptainer", "--nodes", "2", "--gpus", "8")
    files, _ = written(tmp_path / "bare", *bare, "--image", "me/search-r1:1")
    assert "AGENT_SERVICES=$PWD/services.toml" in files["search-r1-grpo.sbatch"]
    assert 'touch "$PWD/data/.prepared-index"' in files["fetch.sh"]


def test_a_published_agent_is_verified(tmp_path: Path) -> None:
    """With --agent-url nothing is sent along, and each node checks the digest."""
    for name in ("dstack", "runpod", "kubernetes", "skypilot", "slurm"):
        more = ("--container", "apptainer") if name == "slurm" else ()
        words = (name, "verl-grpo", "--nodes", "2", "--gpus", "8", *more, *URL)
        files, _ = written(tmp_path / name, *words)
        text = "\n".join(files.values())
        assert "https://my.server/pod-agent" in text
        assert "sha256sum --check" in text
        assert not [*(tmp_path / name).glob("*.whl"), *(tmp_path / name).glob("pod-agent")]


def test_a_published_url_with_a_query(tmp_path: Path) -> None:
    """A signed URL, which has `&`, is one word of the shell; its path says what the file is."""
    signed = "https://my.server/{}?expires=1&signature=2"
    digest = URL[2:]
    one_file = signed.format("pod-agent")
    for name in ("slurm", "dstack", "runpod", "kubernetes", "kuberay", "skypilot"):
        words = (name, "rehearsal", "--nodes", "2", "--agent-url", one_file, *digest)
        files, _ = written(tmp_path / name, *words)
        scripts = [script for file, text in files.items() for script in scripts_of(file, text)]
        assert any(f" '{one_file}' $new " in script for script in scripts), name

    wheel = signed.format("pod_agent-0.1.0-py3-none-any.whl")
    words = ("dstack", "rehearsal", "--nodes", "2", "--agent-url", wheel, *digest)
    files, _ = written(tmp_path / "wheel", *words)
    assert f"pod-agent[maths] @ {wheel}#sha256=" in files["rehearsal.dstack.yml"]


def test_a_python_in_the_home(tmp_path: Path) -> None:
    """Between quotes no shell expands `~`, and a program that reads PATH does not, either."""
    words = ("slurm", "verl-grpo", "--nodes", "2", "--gpus", "8")
    files, _ = written(tmp_path / "made", *words, "--python", "~/venv/bin/python")
    for name in ("verl-grpo.sbatch", "fetch.sh"):
        assert 'PATH="$HOME/venv/bin:$PATH"' in files[name]
        assert "~/venv" not in files[name]


def test_a_large_file_is_announced_on_dstack(tmp_path: Path) -> None:
    """Above the server's limit the note names the variable; the wheel is below it."""
    words = ("dstack", "verl-grpo", "--nodes", "2", "--gpus", "8")
    _, printed = written(tmp_path / "wheel", *words)
    assert "DSTACK_SERVER_CODE_UPLOAD_LIMIT" not in printed
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    assert wheel.stat().st_size < 2 << 20
    large = tmp_path / "large"
    large.write_bytes(b"x" * (3 << 20) + ONE_FILE)
    _, printed = written(tmp_path / "large-one", *words, "--agent", str(large))
    assert "DSTACK_SERVER_CODE_UPLOAD_LIMIT=0" in printed


def test_own_model_and_data(tmp_path: Path) -> None:
    """They replace the usual ones, with what belongs to the usual data."""
    given = ("--model", "Qwen/Qwen3-8B", "--data", "/data/mine.parquet")
    files, _ = written(tmp_path / "a", "dstack", "verl-grpo", "--nodes", "2", "--gpus", "8", *given)
    env = yaml.safe_load(files["verl-grpo.dstack.yml"])["env"]
    assert env["AGENT_MODEL"] == "Qwen/Qwen3-8B"
    assert env["AGENT_TRAIN_DATA"] == "/data/mine.parquet"
    assert not {"AGENT_EVAL_DATA", "AGENT_PREPARE", "AGENT_PREPARE_EACH"} & env.keys()


def test_the_examples_are_its_output(tmp_path: Path) -> None:
    """Each file is what its command in examples/README.md writes."""
    environ = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts/examples", tmp_path], check=True, env=environ)
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(made) == 29
    for path in made:
        example = ROOT / "examples" / path.relative_to(tmp_path)
        assert example.read_bytes() == path.read_bytes(), "run ./scripts/examples"


def test_every_recipe_has_its_settings() -> None:
    """A new recipe needs a row here too."""
    assert list(presets()) == [job.name for job in RECIPES]


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
    written = yaml_block(values, 2)
    assert yaml.safe_load(written) == values
    assert '"1e-6"' in written
    script = shell_exports(values) + "\nenv"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert {name: " ".join(found[name].split()) for name in values} == values


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    """An existing file stays, unless --force is given; the same content is no loss."""
    words = ("dstack", "verl-grpo", "--nodes", "3", "--gpus", "8", "--to", str(tmp_path))
    printed = init(*words)
    file = tmp_path / "verl-grpo.dstack.yml"
    assert f"wrote {file}" in printed
    steps = ("dstack secret set", "dstack apply -y -f fleet", "dstack apply -f verl-grpo.dstack")
    assert sorted(steps, key=printed.index) == list(steps)
    init(*words)
    file.write_text("mine", encoding="utf-8")
    assert "--force" in init(*words, code=2)
    assert file.read_text(encoding="utf-8") == "mine"
    init(*words, "--force")
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["nodes"] == 3


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_folder_that_cannot_be_written(folder: str, tmp_path: Path) -> None:
    """The error names the path, without a traceback."""
    (tmp_path / "file").write_text("a file", encoding="utf-8")
    target = tmp_path / folder
    words = ("dstack", "rehearsal", "--nodes", "2", "--to", str(target))
    error = init(*words, code=2)
    assert error.startswith(f"pod-agent init: --to {target}: ")
    assert "Traceback" not in error


def test_a_program_may_be_run(tmp_path: Path) -> None:
    """The loop over ssh and the script for RunPod's pods are executable, by `sh` too."""
    written(tmp_path / "a", "ssh", "rehearsal", "--hosts", "a,b")
    written(tmp_path / "b", "runpod", "rehearsal", "--nodes", "2")
    assert os.access(tmp_path / "a/loop.sh", os.X_OK)
    assert os.access(tmp_path / "b/pods.py", os.X_OK)

    # Whoever types `sh` in place of `bash` gets the program's own answer.
    words = ["sh", str(tmp_path / "a/loop.sh")]
    environ = {"PATH": os.environ["PATH"]}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert "RAY_AUTH_TOKEN: is not set" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "not given: PLATFORM (platform: slurm, runpod, dstack"),
        (("dstack",), "RECIPE (recipe: rehearsal"),
        (
            ("dstack", "verl-grpo"),
            "--nodes (nodes, the head among them); --gpus (GPUs of each node)",
        ),
        (
            ("dstack", "search-r1-grpo", "--nodes", "2"),
            "--gpus (GPUs of each node); --image (an ima",
        ),
        (("ssh", "rehearsal"), "--hosts (machines, the head first"),
        (("ssh", "rehearsal", "--hosts", "a,root@b,a"), "--hosts: a is named twice"),
        (
            ("ssh", "rehearsal", "--hosts", "a,http://b"),
            "--hosts: 'http://b': expected a host name",
        ),
        (("ssh", "rehearsal", "--hosts", "a,b", "--nodes", "3"), "--nodes 3, and --hosts names 2"),
        (
            ("dstack", "verl-grpo", "--nodes", "2", "--gpus", "8", "--gpu-type", "H100:8"),
            "--gpu-type: 'H100:8': expected the kind alone, H100; --gpus says how many",
        ),
        (
            ("dstack", "verl-grpo", "--nodes", "2", "--gpus", "8", "--center", "runpod/X"),
            "--center is where dstack makes the volume: add --volume NAME",
        ),
        (
            ("dstack", "rehearsal", "--nodes", "2", "--volume", "v", "--center", "runpod"),
            "--center runpod: expected BACKEND/REGION",
        ),
        (
            ("skypilot", "verl-grpo", "--nodes", "2", "--gpus", "8", "--volume", "mine"),
            "a bucket has its store before it, as in s3://mine or gs://mine",
        ),
        (("slurm", "verl-grpo", "--nodes", "2", "--gpus", "8"), "--python (the Python that has"),
        (("dstack", "rehearsal", "--nodes", "2", *URL[:2]), "--agent-sha256 go together"),
        (("dstack", "rehearsal", *URL[:3], "abc"), "'abc' is no SHA-256"),
        (
            ("dstack", "rehearsal", "--nodes", "2", "--agent", "/proc/self/mem"),
            "--agent /proc/self/mem: ",
        ),
        (
            ("dstack", "rehearsal", "--nodes", "2", "--agent", str(Path(__file__))),
            "is neither the one file nor a wheel of the agent",
        ),
        (
            ("dstack", "rehearsal", "--container", "pyxis"),
            "dstack has no --container, which is for",
        ),
        (
            ("dstack", "rehearsal", "--partition", "x"),
            "dstack has no --partition, which is for slurm",
        ),
        (
            ("kubernetes", "rehearsal", "--nodes", "2", "--kind", "cluster"),
            "--kind lws or trainjob",
        ),
        (
            ("runpod", "rehearsal", "--nodes", "2", "--kind", "cluter"),
            "runpod has no cluter; it takes --kind pods or cluster",
        ),
        (("dstack", "--image", "x y", "--", "true"), "'x y': expected one word, without spaces"),
        (
            ("slurm", "rehearsal", "--nodes", "2", "--time", "1d"),
            "'1d' is no time limit of Slurm, such as 90, 12:00:00 or 1-00:00:00",
        ),
        (
            ("kuberay", "trl-grpo", "--nodes", "2", "--gpus", "8"),
            "pod-agent init kubernetes trl-grpo",
        ),
        (("runpod", "rehearsal", "--nodes", "1", "--kind", "cluster"), "two pods at least"),
        (
            ("runpod", "verl-grpo", "--nodes", "1", "--gpus", "16"),
            "a pod of RunPod has at most 8 GPUs: --nodes 2 --gpus 8",
        ),
        (("runpod", "verl-grpo", "--nodes", "1", "--gpus", "0"), "--gpus 1"),
        (
            ("runpod", "rehearsal", "--nodes", "251", "--kind", "cluster"),
            "at most 250 pods",
        ),
        (
            ("runpod", "rehearsal", "--nodes", "1", "--gpu-type", "H100"),
            "may be 'H100 SXM' or 'H100 NVL' or 'H100 PCIe'",
        ),
        (("dstack", "rehearsal", "--nodes", "0"), "a run has one node at least"),
        (("dstack", "rehearsal", "--nodes", "many"), "'many' is no whole number"),
        (("dstack", "verl-gpro"), "verl-grpo"),
        (("slrum",), "no platform 'slrum': did you mean slurm?"),
        (("dstack", "verl-grpo", "--", "true"), "either the recipe verl-grpo, or a command"),
    ],
)
def test_what_is_wrong_is_named(words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    """Usage errors name the flag and the remedy, and write nothing."""
    at = words.index("--") if "--" in words else len(words)
    argv = (*words[:at], "--to", str(tmp_path), *words[at:])
    assert expected in init(*argv, code=2)
    assert not list(tmp_path.iterdir())


SEVENTY = (
    "verl-grpo",
    "--nodes",
    "1",
    "--gpus",
    "2",
    "--model",
    "meta-llama/Llama-3.1-70B-Instruct",
)
"""What two GPUs cannot train."""


@pytest.mark.parametrize("platform", ["runpod", "dstack", "kubernetes"])
def test_what_the_recipe_refuses_is_refused(
    platform: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The sentence and the code are those of `recipe`; nothing is written."""
    refused = init(platform, *SEVENTY, "--to", str(tmp_path), code=78)
    monkeypatch.setenv("AGENT_MODEL", SEVENTY[-1])
    monkeypatch.setenv("AGENT_TRAIN_DATA", "/data")
    assert agent(["recipe", *SEVENTY[:5], "--gpu-memory", "80"]) == 78
    assert refused.startswith(capsys.readouterr().err.rstrip())
    assert "--gpu-memory GB (of each GPU) and --host-memory GB" in refused
    assert not list(tmp_path.iterdir())


def test_data_of_this_machine_are_not_sent(tmp_path: Path) -> None:
    """A path that exists here is no path on the nodes, except on Slurm's shared disk."""
    data = tmp_path / "x.parquet"
    data.touch()
    words = ("verl-grpo", "--nodes", "2", "--gpus", "8", "--data", str(data))
    warning = f"! --data {data} is on this machine, and nothing copies it"
    assert warning in written(tmp_path / "a", "dstack", *words)[1]
    slurm = ("slurm", *words, "--python", "/venv/bin/python")
    assert warning not in written(tmp_path / "b", *slurm)[1]
    refused = init("dstack", *words[:4], "0", "--to", str(tmp_path / "c"), code=78)
    assert "no node has one" in refused
    assert "--gpu-memory" not in refused


def test_memory_that_the_user_names_is_taken(tmp_path: Path) -> None:
    """GPUs and nodes with more memory are said by options, or by the kind of GPU."""
    nodes = ("--host-memory", "4096")
    init("kubernetes", *SEVENTY, *nodes, "--gpu-memory", "141", "--to", str(tmp_path / "a"))
    init("dstack", *SEVENTY, *nodes, "--gpu-type", "H200", "--to", str(tmp_path / "b"))
    for kind in (("dstack", "RTX4090"), ("skypilot", "A10G:24GB"), ("runpod", "RTX 4090")):
        words = (kind[0], *SEVENTY, *nodes, "--gpu-type", kind[1], "--to", str(tmp_path / "c"))
        assert "1×2×24 GB: no" in init(*words, code=78)


def test_it_asks_at_a_terminal(tmp_path: Path) -> None:
    """Missing values are asked for, again after a wrong answer; an empty one takes the default."""
    ours, theirs = pty.openpty()
    argv = [*AGENT, "--to", str(tmp_path), "--gpus", "4"]
    with subprocess.Popen(argv, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, b"kubernetes\nverl-gpro\nverl-grpo\nmany\n\ntrainjob\nQwen/Qwen3-8B\n")
        assert process.wait(timeout=100) == 0
    printed = os.read(ours, 65_536).decode()
    os.close(ours)
    for question in ("platform:", "recipe:", "kind:", "[2]", "model,"):
        assert question in printed
    assert "did you mean verl-grpo?" in printed
    assert printed.count("nodes, the head among them") == 2
    manifest = (tmp_path / "kubeflow-trainjob.yaml").read_text(encoding="utf-8")
    assert "nvidia.com/gpu: 4" in manifest
    assert "Qwen/Qwen3-8B" in manifest


def test_a_volume_is_asked_for_where_the_only_copy_would_be_lost(tmp_path: Path) -> None:
    """An empty answer means none."""
    for number, (answer, volume) in enumerate([(b"s3://mine\n", True), (b"\n", False)]):
        ours, theirs = pty.openpty()
        to = tmp_path / str(number)
        words = ["skypilot", "verl-grpo", "--nodes", "2", "--gpus", "8", "--model", "a/b"]
        with subprocess.Popen(
            [*AGENT, *words, "--to", str(to)], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs
        ) as process:
            os.close(theirs)
            os.write(ours, answer)
            assert process.wait(timeout=100) == 0
        printed = os.read(ours, 65_536).decode()
        os.close(ours)
        assert "a bucket such as s3://mine, which keeps the model; empty: none" in printed
        assert ("s3://mine" in (to / "verl-grpo.sky.yaml").read_text()) == volume


def test_every_usual_image_is_public() -> None:
    """A recipe without a public image says what one needs."""
    for job in presets():
        preset = preset_of(job)
        assert bool(preset.image) != bool(preset.no_image)
