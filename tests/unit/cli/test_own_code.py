"""A command of one's own brings its code: which folder, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from agent.cli.start_files.own_code import CodeError, command_files, command_warnings, find_code
from support.init_files import written

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of code, which is the current one."""
    folder = tmp_path / "code"
    (folder / "trainer").mkdir(parents=True)
    for name in ("train.py", "run.sh", "conf.yaml", "trainer/main.py", ".env"):
        (folder / name).write_text("x = 1\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("command", "script", "modules"),
    [
        ("python3 train.py --nodes {nodes}", "train.py", ()),
        ("python3 -u sub/train.py a.py", "sub/train.py", ()),
        ("./start --quick", "./start", ()),
        ("bash run.sh", "run.sh", ()),
        ("python3 -m trainer.main conf.yaml", "", ("trainer",)),
        ("python3 -m torch.distributed.run train.py", "train.py", ("torch",)),
        ("accelerate launch --num_machines {nodes} train.py", "train.py", ()),
        ("bash -c 'pip install x; python3 train.py'", "train.py", ()),
        ("bash -lc 'cd /opt/verl && python3 train.py'", "", ()),
        ("python3 /opt/app/train.py", "/opt/app/train.py", ()),
        ("verl-train trainer.file=x.py", "", ()),
        ("python3 {log_dir}/x.py", "", ()),
        ("llamafactory-cli train conf.yaml", "", ()),
    ],
)
def test_the_files_of_a_command(command: str, script: str, modules: tuple[str, ...]) -> None:
    """The first script is what must be there; a shell line is read, too."""
    files = command_files(shlex.split(command))
    assert (files.script, files.modules) == (script, modules)


@pytest.mark.parametrize(
    ("command", "about"),
    [
        ("python3 train.py", "since the command names train.py: 4 files"),
        ("python3 -m trainer.main", "since the command names -m trainer"),
        ("llamafactory-cli train conf.yaml", "since the command names conf.yaml"),
        ("python3 /opt/x/train.py conf.yaml", "since the command names conf.yaml"),
        ("python3 ./trainer/main.py", "since the command names ./trainer/main.py"),
        ("bash -c 'cd trainer && python3 main.py || ./run.sh'", "since the command names ./run.sh"),
    ],
)
def test_this_folder_where_the_command_names_a_file_in_it(
    command: str, about: str, code: Path, tmp_path: Path
) -> None:
    """Without --code, with a line that says why."""
    found, line = find_code(shlex.split(command), None, tmp_path / "run", shared_disk=False)
    assert found is not None
    assert found.folder == str(code)
    assert found.from_start_files == "../code"
    assert about in line
    assert "hold credentials: .env" in line
    with tarfile.open(fileobj=io.BytesIO(found.archive)) as archive:
        assert archive.getnames() == ["conf.yaml", "run.sh", "train.py", "trainer/main.py"]


@pytest.mark.parametrize(
    ("command", "about"),
    [
        ("python3 /opt/x/train.py", "none is sent: /opt/x/train.py is taken as the image's"),
        ("python3 -m verl.trainer.main_ppo", "verl is not in"),
        ("nvidia-smi", "the command names no file of"),
    ],
)
@pytest.mark.usefixtures("code")
def test_what_is_in_the_image(command: str, about: str, tmp_path: Path) -> None:
    """Nothing is sent, and a line says what is taken as the image's."""
    found, line = find_code(shlex.split(command), None, tmp_path, shared_disk=False)
    assert found is None
    assert about in line
    assert "--code DIR" in line


@pytest.mark.parametrize(
    ("command", "given", "error"),
    [
        ("python3 nope.py", None, "nope.py is not in this folder"),
        ("python3 nope.py", None, "--code DIR names the folder that it is in"),
        ("python3 nope.py", None, "a script of the image is named by its absolute path"),
        ("./nope", None, "./nope is not in this folder"),
        ("train.py", None, "train.py is no program on PATH: -- python3 train.py"),
        ("./run.sh", None, "./run.sh may not be executed: -- bash ./run.sh, or chmod +x it"),
        ("'python3 train.py'", None, "is one word: give the command without quotes around it"),
        ("python3 ../train.py", None, "../train.py is not in this folder"),
        ("python3 train.py", "trainer", "train.py is not in --code trainer"),
        ("python3 train.py", "none", "--code none: there is no such folder"),
        ("python3 {code}/train.py", None, "name it as in its folder, train.py"),
        ("python3 ignored.py", None, "would not be sent: .gitignore names it"),
        ("python3 logs/train.py", None, "a folder above it is one for logs"),
        ("LR=1 python3 train.py", None, "'LR=1' is no program: no shell reads it: -- env LR=1 COM"),
        ("cd trainer", None, "'cd' is no program: no shell reads it: -- bash -c"),
    ],
)
def test_a_script_that_would_be_missing_is_refused(
    command: str, given: str | None, error: str, code: Path, tmp_path: Path
) -> None:
    """With the remedy, before anything is written."""
    (code / "logs").mkdir()
    for name in ("ignored.py", "logs/train.py"):
        (code / name).touch()
    (code.parent / "train.py").touch()
    (code / ".gitignore").write_text("ignored.py\n")
    words = shlex.split(command.replace("{code}", str(code)))
    folder = None if given is None else code / given
    with pytest.raises(CodeError) as refused:
        find_code(words, folder and folder.relative_to(code), tmp_path, shared_disk=False)
    assert error in str(refused.value)


@pytest.mark.parametrize(
    ("command", "refusal", "warning"),
    [
        ("bash clean.sh", "clean.sh, line 1: `ray stop` would end the agent's Ray. Remove it", ""),
        (
            "bash maybe.sh",
            "",
            "maybe.sh, line 2: `pkill python` would end the agent or its Ray, if",
        ),
        ("pod-agent run -- python3 train.py", "would start an agent within the agent's job", ""),
        ("python3 train.py --nodes {node}", "", "Did you mean {nodes}?"),
        ("python3 train.py --lr $LR", "", "$LR in the job's command stays as it is"),
        ("python3 train.py --nodes {nodes}", "", ""),
    ],
)
def test_what_a_node_would_refuse_is_refused_before(
    command: str, refusal: str, warning: str, code: Path
) -> None:
    """The command and its scripts are read in the folder of the code, as a node reads them."""
    (code / "clean.sh").write_text("ray stop\n")
    (code / "maybe.sh").write_text("if true; then\n  pkill python\nfi\n")
    words = shlex.split(command)
    if refusal:
        with pytest.raises(CodeError, match=re.escape(refusal)):
            command_warnings(words, code)
        return
    warnings = command_warnings(words, code)
    assert warning in " ".join(warnings)
    assert bool(warnings) == bool(warning)


def test_a_home_is_no_folder_of_code(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is in a home is not sent because a script lies in it."""
    monkeypatch.setenv("HOME", str(code))
    with pytest.raises(CodeError, match="is no folder of code alone: --code DIR"):
        find_code(["python3", "train.py"], None, code, shared_disk=False)


def test_on_a_shared_disk_nothing_is_copied(code: Path, tmp_path: Path) -> None:
    """The job runs in the folder itself; an absolute path is on the disk, too."""
    words = ["python3", str(code / "train.py")]
    found, line = find_code(words, code, tmp_path, shared_disk=True)
    assert found is not None
    assert found.archive == b""
    assert "all nodes must see" in line
    found, line = find_code(["python3", "/elsewhere/x.py"], None, tmp_path, shared_disk=True)
    assert found is None
    assert "/elsewhere/x.py is used where it is" in line


INIT = "--nodes 2 --gpus 8 --image me/app:1"
COMMAND = "-- python3 train.py --nodes {nodes}"


def test_init_writes_the_code_beside_its_files(code: Path, tmp_path: Path) -> None:
    """A second `init` after a change needs no --force; the step itself packs anew."""
    made = tmp_path / "run"
    files, printed = written(f"dstack {INIT} {COMMAND}", made)
    assert f"The code: {code}, since the command names train.py" in printed
    assert "  python3 pack.py && dstack apply -f command.dstack.yml" in printed
    assert "code.tar.gz:/opt/code.tar.gz" in files["command.dstack.yml"]
    (code / "more.py").touch()
    written(f"dstack {INIT} {COMMAND}", made)
    with tarfile.open(made / "code.tar.gz") as archive:
        assert "more.py" in archive.getnames()
    (code / "last.py").touch()
    pack = [sys.executable, str(made / "pack.py")]
    subprocess.run(pack, check=True, capture_output=True)
    with tarfile.open(made / "code.tar.gz") as archive:
        assert "last.py" in archive.getnames()
    (code / "train.py").unlink()
    done = subprocess.run(pack, check=False, capture_output=True, text=True)
    assert done.stderr.startswith(f"pack.py: train.py, which the command starts, is not in {code}")


@pytest.mark.parametrize(
    ("kind", "name"), [("pods", "pod.json"), ("cluster", "instant-cluster.json")]
)
@pytest.mark.usefixtures("code")
def test_a_pod_of_runpod_takes_the_code_by_its_digest(kind: str, name: str, tmp_path: Path) -> None:
    """pods.py may pack it anew, so that its size and digest are variables."""
    files, _ = written(f"runpod {INIT} --kind {kind} {COMMAND}", tmp_path / kind)
    request = json.loads(files[name])
    content = (tmp_path / kind / "code.tar.gz").read_bytes()
    assert request["env"]["CODE_SIZE"] == str(len(content))
    assert request["env"]["CODE_SHA256"] == hashlib.sha256(content).hexdigest()
    kept = "/workspace/pod-agent/$CODE_SHA256/code.tar.gz"
    assert f"$CODE_SIZE $CODE_SHA256 {kept} &&" in request["args"]
    assert f"tar -xzf {kept} --no-same-owner -C /opt/code" in request["args"]


def test_slurm_runs_in_the_folder(code: Path, tmp_path: Path) -> None:
    """Its own, or another on the disk that all nodes see: in and beside a container."""
    for container in ("none", "apptainer", "pyxis", "podman"):
        more = "--python /venv/bin/python" if container == "none" else "--image me/app:1"
        line = f"slurm --nodes 2 --gpus 8 --container {container} {more} --force {COMMAND}"
        for to in (tmp_path / container, code):
            text = written(line, to).files["command.sbatch"]
            assert (str(code) in text) == (to != code)
            assert not (to / "code.tar.gz").exists()
    assert f"--workdir {code}" in (tmp_path / "podman/command.sbatch").read_text()
    assert f"--chdir={code}" in (tmp_path / "none/command.sbatch").read_text()
