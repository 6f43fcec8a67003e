"""The job's runtime_env: how it is read, what is refused, and the size of an upload."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray._private.runtime_env.packaging import create_package
from ray.runtime_env import RuntimeEnv

from agent.base.errors import Problem, SettingsError
from agent.node.python_facts import ray_facts
from agent.node.upload import LIMIT, measure
from agent.run.plan_files import read_runtime_env
from support.worlds import SECRET, settings_of

if TYPE_CHECKING:
    from pathlib import Path

RAY = str(ray_facts()["folder"])
OF_VERL = """
working_dir: ./
excludes: ["/.git/"]
env_vars:
  TORCH_NCCL_AVOID_RECORD_STREAMS: "1"
  VLLM_ATTENTION_BACKEND: "XFORMERS"
"""
"""What verl's documents have submitted, its comment taken at its word."""


def read(**environ: str) -> dict[str, object]:
    """Return the runtime_env of an environment."""
    problems: list[Problem] = []
    found = read_runtime_env(settings_of(environ), environ, RAY, problems)[0]
    if problems:
        raise SettingsError(tuple(problems))
    return found


def test_what_the_variables_say(tmp_path: Path) -> None:
    """Without a wish none; JSON in the variable is no path; AGENT_WORKING_DIR joins it."""
    assert read() == {}
    assert read(AGENT_RUNTIME_ENV=' {"pip": ["x"]}') == {"pip": ["x"]}
    found = read(AGENT_WORKING_DIR=str(tmp_path), AGENT_RUNTIME_ENV='{"pip": ["x"]}')
    assert found == {"pip": ["x"], "working_dir": str(tmp_path)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("env.json", '{"env_vars": {"A": "1"}}'),
        ("env.yaml", "env_vars:\n  A: '1'\n"),
        ("env.yml", "env_vars: {A: '1'}"),
    ],
)
def test_a_file_is_json_or_yaml(tmp_path: Path, name: str, text: str) -> None:
    """The file's content counts, whatever its name."""
    file = tmp_path / name
    file.write_text(text)
    assert read(AGENT_RUNTIME_ENV=str(file)) == {"env_vars": {"A": "1"}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1, 2]", "no mapping"),
        (b"just text", "no mapping"),
        (b"", "no mapping"),
        (b"a: [", "JSON can carry"),
        (b"a: 2026-01-01", "JSON can carry"),
        (b"a: &x [*x]", "JSON can carry"),
        (b"\xff\xfe", "not text"),
        (None, r"env\.yaml' \(No such file"),
    ],
)
def test_a_bad_file(tmp_path: Path, content: bytes | None, words: str) -> None:
    """A file of another form, and one that is missing, is refused by the variable's name."""
    file = tmp_path / "env.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=words) as caught:
        read(AGENT_RUNTIME_ENV=str(file))
    assert caught.value.culprit == "AGENT_RUNTIME_ENV"


def test_both_variables_are_checked(tmp_path: Path) -> None:
    """What is wrong with one does not hide the other; a working_dir in each names both."""
    with pytest.raises(SettingsError) as caught:
        read(AGENT_RUNTIME_ENV=str(tmp_path / "none"), AGENT_WORKING_DIR=str(tmp_path / "no"))
    named = [problem.variable for problem in caught.value.problems]
    assert named == ["AGENT_RUNTIME_ENV", "AGENT_WORKING_DIR"]
    with pytest.raises(SettingsError, match="no folder here") as caught:
        read(AGENT_WORKING_DIR=str(tmp_path / "none"))
    assert caught.value.culprit == "AGENT_WORKING_DIR"
    with pytest.raises(SettingsError, match="a working_dir in each") as caught:
        read(AGENT_WORKING_DIR=str(tmp_path), AGENT_RUNTIME_ENV='{"working_dir": "/x"}')
    assert caught.value.culprit == "AGENT_WORKING_DIR + AGENT_RUNTIME_ENV"


def test_verls_own_is_what_ray_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read, found light enough, and passes Ray's own validation."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runtime_env.yaml").write_text(OF_VERL)
    found = read(AGENT_RUNTIME_ENV="runtime_env.yaml")
    assert found["env_vars"] == {
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        "VLLM_ATTENTION_BACKEND": "XFORMERS",
    }
    assert RuntimeEnv(**found)["excludes"] == ["/.git/"]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "place", "better"),
    [
        ({"env_vars": {"WANDB_API_KEY": SECRET}}, "env_vars.WANDB_API_KEY", "WANDB_API_KEY_FILE"),
        ({"env_vars": {"HF_TOKEN": SECRET}}, "env_vars.HF_TOKEN", "every node"),
        ({"env_vars": {"X": "hf_" + "a" * 30}}, "env_vars.X", "every node"),
        ({"pip": ["-i https://me:hunter222@pypi.lan/simple", "x"]}, "pip[0]", "every node"),
        ({"working_dir": "https://u:hunter222@git.lan/x.zip"}, "working_dir", "every node"),
    ],
)
def test_a_secret_is_refused(env: dict[str, object], place: str, better: str) -> None:
    """Ray's dashboard shows a runtime_env: where a secret stands is said, and where it belongs."""
    with pytest.raises(SettingsError) as caught:
        read(AGENT_RUNTIME_ENV=json.dumps(env))
    sentence = caught.value.sentence()
    assert f"a secret in {place}" in sentence
    assert better in sentence
    assert SECRET not in sentence
    assert "hunter222" not in sentence


@pytest.mark.parametrize("value", ["${WANDB_API_KEY}", "$WANDB_API_KEY", ""])
def test_what_only_points_at_a_secret_passes(value: str) -> None:
    """A reference is filled in on each node, and shows nothing."""
    env = {"env_vars": {"WANDB_API_KEY": value}}
    assert read(AGENT_RUNTIME_ENV=json.dumps(env)) == env


@pytest.mark.parametrize("value", [1, True, None, 0.5])
def test_a_value_that_is_no_text(value: object) -> None:
    """Ray refuses it after the boot; YAML makes such values of what is not quoted."""
    with pytest.raises(SettingsError, match=r"env_vars\.A, which is no text.*in quotes"):
        read(AGENT_RUNTIME_ENV=json.dumps({"env_vars": {"A": value}}))
    with pytest.raises(SettingsError, match="no mapping"):
        read(AGENT_RUNTIME_ENV='{"env_vars": ["A=1"]}')


# --- what an upload weighs ------------------------------------------------------------------------


def sparse(path: Path, size: int) -> None:
    """Make a file of a size that takes no disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def test_a_folder_too_large_is_refused(tmp_path: Path) -> None:
    """Size, largest parts and remedies are said; left out by either way, it passes."""
    sparse(tmp_path / "data/train.parquet", 90 << 20)
    sparse(tmp_path / "checkpoints/step_1/model.pt", 40 << 20)
    (tmp_path / "train.py").write_text("print(1)")
    with pytest.raises(SettingsError) as caught:
        read(AGENT_WORKING_DIR=str(tmp_path))
    sentence = caught.value.sentence()
    assert sentence.startswith("AGENT_WORKING_DIR: got ")
    assert "130 MiB in 3 files (data 90 MiB, checkpoints 40 MiB, train.py" in sentence
    assert "at most 100 MiB" in sentence
    assert ".gitignore" in sentence
    assert "excludes" in sentence
    excludes = json.dumps({"excludes": ["data"]})
    assert read(AGENT_WORKING_DIR=str(tmp_path), AGENT_RUNTIME_ENV=excludes)
    (tmp_path / ".gitignore").write_text("*.pt\n")
    assert read(AGENT_WORKING_DIR=str(tmp_path))
    with pytest.raises(SettingsError, match="130 MiB"):
        read(AGENT_WORKING_DIR=str(tmp_path), RAY_RUNTIME_ENV_IGNORE_GITIGNORE="1")


PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAA\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n"


@pytest.mark.parametrize(
    ("name", "content", "is_refused"),
    [
        (".env", "HF_TOKEN=x", True),
        (".env.production", "A=1", True),
        ("conf/prod.env", "A=1", True),
        (".envrc", "export A=1", True),
        (".env.example", "HF_TOKEN=", False),
        ("src/environment.py", "import os", False),
        ("keys/id_ed25519", PRIVATE, True),
        ("keys/id_ed25519.pub", "ssh-ed25519 AAAA", False),
        ("tls/server.key", PRIVATE, True),
        ("tls/ca.pem", CERTIFICATE, False),
        ("tls/both.pem", CERTIFICATE + PRIVATE, True),
        (".netrc", "machine x password y", True),
        (".aws/credentials", "[default]", True),
        (".aws/config", "[default]", False),
        ("sa.json", '{"type": "service_account", "private_key": "x"}', True),
        ("data/train.json", '{"type": "question"}', False),
        (".npmrc", "//registry/:_authToken=abc", True),
        (".kaggle/kaggle.json", '{"key": "x"}', True),
        ("tokenizer.json", "{}", False),
    ],
)
def test_credentials_are_not_uploaded(
    tmp_path: Path,
    name: str,
    content: str,
    is_refused: bool,  # noqa: FBT001 - a column
) -> None:
    """A working_dir with credentials is refused by their names, unless they are left out."""
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    if not is_refused:
        assert read(AGENT_WORKING_DIR=str(tmp_path))
        return
    with pytest.raises(SettingsError) as caught:
        read(AGENT_WORKING_DIR=str(tmp_path))
    assert f"with credentials in it: {name}" in caught.value.sentence()
    assert read(AGENT_WORKING_DIR=str(tmp_path), AGENT_ALLOW_INSECURE="1")
    (tmp_path / ".gitignore").write_text(f"/{name}\n")
    assert read(AGENT_WORKING_DIR=str(tmp_path))


def test_the_folder_of_a_runtime_env_is_measured_too(tmp_path: Path) -> None:
    """It is named by the variable that it came from; what is on the net is not measured."""
    sparse(tmp_path / "big", LIMIT + 1)
    with pytest.raises(SettingsError, match=r"^AGENT_RUNTIME_ENV: got .*100 MiB in 1 files"):
        read(AGENT_RUNTIME_ENV=json.dumps({"working_dir": str(tmp_path)}))
    for url in ("s3://bucket/code.zip", "https://example.org/code.zip"):
        assert read(AGENT_RUNTIME_ENV=json.dumps({"working_dir": url}))


def test_counting_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that takes too long to count is judged by what was counted."""
    for name in ("a", "b"):
        sparse(tmp_path / name, LIMIT + 1)
    monkeypatch.setattr("agent.node.upload.UPLOAD_COUNTED", -1.0)
    with pytest.raises(SettingsError, match=r"100 MiB in 1 files \(a 100 MiB\)"):
        read(AGENT_WORKING_DIR=str(tmp_path))


def test_without_rays_rules_nothing_is_checked(tmp_path: Path) -> None:
    """A Ray that keeps its matcher elsewhere is left to judge by itself."""
    sparse(tmp_path / "big", LIMIT + 1)
    assert measure(tmp_path, [], str(tmp_path), {}) is None
    assert measure(tmp_path, [], "", {}) is None


NAMES = st.sampled_from(["a", "b.pt", "data", "build", ".git", "__pycache__", "ü", "c d", "venv"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
LINES = st.sampled_from(
    ["*.pt", "data/", "/build", "!b.pt", "# no", "", "a/**", "c d", "**/ü", "data/*", "venv"]
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(PATHS, st.integers(0, 999), max_size=12),
    st.dictionaries(st.sampled_from(["", "a", "data"]), st.lists(LINES, max_size=3), max_size=2),
    st.lists(LINES, max_size=2),
    st.sampled_from([".gitignore", ".rayignore"]),
)
def test_what_is_measured_is_what_ray_packs(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[str, int],
    ignored: dict[str, list[str]],
    excludes: list[str],
    ignore_file: str,
) -> None:
    """The files and the size of the package are those of Ray's own packing, to the byte."""
    root = tmp_path_factory.mktemp("tree")
    for name, size in files.items():
        place = root / name
        if any(parent.is_file() for parent in place.parents) or place.is_dir():
            continue
        sparse(place, size)
    for name, lines in ignored.items():
        if (root / name).is_dir() and not (root / name / ignore_file).is_dir():
            (root / name / ignore_file).write_text("\n".join(lines))
    package = root.parent / f"{root.name}.zip"
    left_out = [".git", ".venv", "venv", "__pycache__"]
    create_package(str(root), package, include_gitignore=True, excludes=[*left_out, *excludes])
    found = measure(root, excludes, RAY, {})
    assert found is not None
    with ZipFile(package) as packed:
        names = [info.filename for info in packed.infolist() if not info.is_dir()]
    assert found.files == len(names)
    empty_folders = sum(1 for _, inner, plain in os.walk(root) if not inner and not plain)
    difference = package.stat().st_size - found.size
    assert 0 <= difference <= empty_folders * 400
