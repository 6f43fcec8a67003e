"""`fetch.sh` of Slurm, as `init` writes it, with stand-ins for the containers and the hub."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from typing import TYPE_CHECKING

import pytest

from agent.cli import init_verb
from agent.cli.command_line import main as agent
from agent.cli.start_files.platforms_of_init import PLATFORMS, misfit, missing_image
from support import stand_in_containers
from support.stand_in_packages import ONE_FILE, git_variables, search_r1_image, verl_repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from _pytest.mark import ParameterSet

pytestmark = pytest.mark.processes

HUB = """
import os
from pathlib import Path

def snapshot_download(name, repo_type="model", local_dir=None):
    place = Path(local_dir or Path(os.environ["HF_HOME"], "hub", name.replace("/", "--")))
    place.mkdir(parents=True, exist_ok=True)
    (place / "fetched").touch()
    return place
"""
IMAGE_FILES = {"apptainer": "image.sif", "pyxis": "image.sqsh", "podman": "image.tar", "none": ""}
RECIPES = {
    "verl-grpo": ("data/gsm8k/train.parquet", "huggingface/hub/Qwen--Qwen2.5-7B-Instruct/fetched"),
    "openrlhf-grpo": ("data/dapo-math-17k/fetched",),
    "search-r1-ppo": ("data/e5_Flat.index", "data/nq_search/train.parquet", "services.toml"),
    "trl-grpo": ("data/dapo-math-17k/fetched",),
    "rehearsal": (),
}
"""What there must be of each recipe."""
OFTEN = {
    ("none", "verl-grpo"),
    ("apptainer", "openrlhf-grpo"),
    ("pyxis", "search-r1-ppo"),
    ("podman", "trl-grpo"),
}
"""Each container and recipe once; the other pairs are slow."""


def pairs() -> Iterator[ParameterSet]:
    """Yield each container with each recipe that it fits."""
    for container, recipe in product(PLATFORMS["slurm"].variants, RECIPES):
        if misfit("slurm", container, recipe, 2):
            continue
        if (container, recipe) == ("none", "rehearsal"):
            continue  # run in the lab, with the one file and a package index
        marks = () if (container, recipe) in OFTEN else pytest.mark.slow
        yield pytest.param(container, recipe, marks=marks)


def login_node(folder: Path) -> dict[str, str]:
    """Write the stand-ins; return the environment of the login node's shell."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    packages = folder / "packages"
    for name in ("verl", "openrlhf", "trl", "ray"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    (packages / "huggingface_hub.py").write_text(HUB)
    (folder / "calls").touch()
    for name in ("apptainer", "enroot", "podman"):
        stand_in_containers.install(bin_folder, name, folder / "calls")
    programs = {
        "python3": f'PYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} "$@"',
        "pip": "true",
    }
    for name, text in programs.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / name).chmod(0o755)
    hosted = folder / "hosted"
    verl_repository(hosted)
    return {"PATH": f"{bin_folder}:{os.defpath}", "HOME": str(folder), **git_variables(str(hosted))}


def init(recipe: str, *flags: str, container: str = "none") -> None:
    """Write the start files of Slurm."""
    words = ["init", "slurm", recipe, "--container", container, "--nodes", "2", "--gpus", "8"]
    assert agent([*words, *flags]) == 0


def fetched(folder: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `fetch.sh` on the login node."""
    command = ["bash", str(folder / "fetch.sh")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("container", "recipe"), [*pairs()])
def test_everything_is_fetched_once(container: str, recipe: str, tmp_path: Path) -> None:
    """Image, repository, model, data and services are there; a second run makes no image."""
    made = tmp_path / "made"
    environ = login_node(tmp_path)
    (tmp_path / "pod-agent").write_bytes(ONE_FILE)
    flags = ["--agent", str(tmp_path / "pod-agent"), "--to", str(made)]
    if container == "none":
        flags += ["--python", str(tmp_path / "bin/python3")]
    if missing_image("slurm", container, recipe):
        flags += ["--image", "ghcr.io/acme/rl:1"]
    init(recipe, *flags, container=container)

    # Places of an image are here, too.
    for place, source in search_r1_image(tmp_path / "parts").items():
        (tmp_path / "opt").mkdir(exist_ok=True)
        (tmp_path / place.lstrip("/")).symlink_to(source)
    fetch = made / "fetch.sh"
    fetch.write_text(fetch.read_text().replace(" /opt/", f" {tmp_path}/opt/"))

    for time in ("first", "second"):
        done = fetched(made, environ)
        assert done.returncode == 0, f"{time}: {done.stdout}{done.stderr}"
        assert done.stdout.endswith(f"all is here: sbatch {recipe}.sbatch\n")
        for name in filter(None, (IMAGE_FILES[container], *RECIPES[recipe])):
            assert (made / name).is_file(), name
        assert not (made / "tmp").exists()
    calls = (tmp_path / "calls").read_text()
    makes = [line for line in calls.splitlines() if line.split()[1:2] in (["import"], ["save"])]
    makes += [line for line in calls.splitlines() if line.split()[1:2] in (["pull"], ["build"])]
    expected = {"none": 0, "apptainer": 1, "pyxis": 1, "podman": 2}[container]
    installs = recipe in {"openrlhf-grpo", "trl-grpo", "rehearsal"} and "--image" not in flags
    assert len(makes) == expected + (container == "podman" and installs)


@pytest.mark.parametrize(
    "container",
    [
        "none",
        *(pytest.param(container, marks=pytest.mark.slow) for container in ("pyxis", "podman")),
    ],
)
def test_the_agent_is_installed_once(
    container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a one file, by pip into the folder: nodes need no index, and no clone is needed."""
    monkeypatch.setattr(init_verb, "one_file_here", lambda: None)
    made = tmp_path / "made"
    environ = login_node(tmp_path) | {"PIP_NO_INDEX": "1"}
    flags = ["--to", str(made)]
    if container == "none":
        flags += ["--python", str(tmp_path / "bin/python3")]
    init("verl-grpo", *flags, container=container)
    program = made / "pod-agent-venv/bin/pod-agent"
    assert '"$PWD/pod-agent-venv/bin/pod-agent"' in (made / "verl-grpo.sbatch").read_text()

    installed = set()
    for time in ("first", "second"):
        done = fetched(made, environ)
        assert done.returncode == 0, f"{time}: {done.stdout}{done.stderr}"
        installed.add(program.stat().st_mtime_ns)
    assert len(installed) == 1
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("pod-agent ")


@pytest.mark.parametrize(
    ("container", "program", "said"),
    [
        ("apptainer", "apptainer", "no apptainer on PATH here: module load apptainer"),
        ("pyxis", "enroot", "no enroot on PATH here: module load enroot"),
        ("podman", "podman", "neither podman nor docker on PATH here"),
    ],
)
def test_a_missing_container_program_is_named(
    container: str, program: str, said: str, tmp_path: Path
) -> None:
    """On a login node without it `fetch.sh` says where to run it, and begins nothing."""
    environ = login_node(tmp_path)
    (tmp_path / "bin" / program).unlink()
    init("verl-grpo", "--to", str(tmp_path / "made"), container=container)
    done = fetched(tmp_path / "made", environ)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.endswith("srun bash fetch.sh\n")


def test_a_python_without_the_framework_is_named(tmp_path: Path) -> None:
    """Without a container, `fetch.sh` says which package the named Python lacks."""
    environ = login_node(tmp_path)
    (tmp_path / "packages" / "verl" / "__init__.py").unlink()
    (tmp_path / "packages" / "verl").rmdir()
    (tmp_path / "pod-agent").write_bytes(ONE_FILE)
    programs = ["--python", str(tmp_path / "bin/python3"), "--agent", str(tmp_path / "pod-agent")]
    init("verl-grpo", *programs, "--to", str(tmp_path), "--force")
    done = fetched(tmp_path, environ)
    assert done.returncode == 1
    assert done.stderr == f"verl is not in {tmp_path}/bin: install it there\n"
