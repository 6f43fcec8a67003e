"""What is packed of a folder of code, and what never is."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from agent.node import code_archive
from agent.node.code_archive import UnpackableError, pack

SECRETS = (".env", "conf/prod.env", "keys/id_ed25519", ".netrc", "key.pem")
NO_CODE = (
    *("agent-logs/latest/agent.log", "logs/x", "wandb/run/x", "checkpoints/w.pt"),
    *("out/global_step_40/w.pt", "out/checkpoint-20/w.pt", "__pycache__/m.pyc", ".venv/bin/python"),
)
"""Files that no node needs, whether git ignores them or not."""


def write(folder: Path, *names: str, text: str = "content\n") -> None:
    """Write files with their folders."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def git(folder: Path, *words: str) -> None:
    """Run git in a folder."""
    as_somebody = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    argv = ["git", "-C", str(folder), *as_somebody, *words]
    subprocess.run(argv, check=True, capture_output=True)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a folder of code, with all that must not leave this machine."""
    folder = tmp_path / "code"
    write(folder, "train.py", "lib/model.py", "data/large.bin", ".env.example", *NO_CODE)
    write(folder, *SECRETS, text="-----BEGIN PRIVATE KEY-----\n")
    (folder / ".gitignore").write_text("data/\n")
    return folder


WANTED = (".env.example", ".gitignore", "lib/model.py", "train.py")


@pytest.mark.parametrize("repository", [False, True])
def test_only_code_is_packed(code: Path, repository: bool) -> None:  # noqa: FBT001 - a table
    """In a repository or not: without what .gitignore names, logs, checkpoints, credentials."""
    if repository:
        git(code, "init")
        git(code, "add", "train.py")
    packed = pack(code, code)
    assert packed.names == WANTED
    assert set(packed.credentials) == set(SECRETS)
    for name in ("agent-logs", "checkpoints", "wandb", "global_step_40", "checkpoint-20"):
        assert name in packed.left_out
    assert "4 files" in packed.about()
    assert "since they hold credentials: .env" in packed.about()
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as archive:
        assert tuple(archive.getnames()) == WANTED
        assert {(member.uid, member.uname) for member in archive} == {(0, "")}
    assert pack(code, code).content == packed.content


def test_without_git(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same but for .gitignore, which nobody reads: the line says so."""
    monkeypatch.setenv("PATH", "")
    packed = pack(code, code)
    assert packed.names == (*WANTED[:2], "data/large.bin", *WANTED[2:])
    assert ".gitignore was not read" in packed.about()


def test_what_git_tracks_is_code(code: Path) -> None:
    """A package named checkpoints is sent; a tracked key is not; a nested repository is."""
    write(code, "logs/writer.py")
    write(code, "engine/core.py", "engine/build/x")
    write(code, "engine/.gitignore", text="build/\n")
    git(code / "engine", "init")
    git(code, "init")
    git(code, "add", "-f", "train.py", "logs/writer.py", "key.pem")
    names = pack(code, code).names
    assert "logs/writer.py" in names
    assert "logs/x" not in names
    assert "key.pem" not in names
    assert "engine/core.py" in names
    assert "engine/build/x" not in names
    assert not [name for name in names if ".git/" in name]


def test_links(code: Path, tmp_path: Path) -> None:
    """A link to a file is its content, unless that is a credential; other links are left out."""
    write(tmp_path, "shared.py", "secrets/.env")
    (code / "linked.py").symlink_to(tmp_path / "shared.py")
    (code / "settings").symlink_to(tmp_path / "secrets/.env")
    (code / "all").symlink_to(tmp_path)
    (code / "gone").symlink_to(tmp_path / "gone")
    packed = pack(code, code)
    assert packed.names == (*WANTED[:3], "linked.py", "train.py")
    assert "settings" in packed.credentials
    assert "all" in packed.left_out
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as archive:
        assert archive.getmember("linked.py").isfile()


def test_the_start_files_are_left_out(code: Path) -> None:
    """They are known by name everywhere, and by the folder in which they are written."""
    assert pack(code, code.parent).names[-1] == "train.py"
    write(code, "code.tar.gz", "pod_agent-0.1.0-py3-none-any.whl", "pod-agent", "run/a.yml")
    write(code, "other/code.tar.gz", "other/pod_agent-0.1.0-py3-none-any.whl")
    assert pack(code, code / "run").names == WANTED
    assert pack(code, code).names == (*WANTED[:3], "run/a.yml", "train.py")


def test_what_cannot_be_packed(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too much is refused with its largest parts, and so is nothing."""
    monkeypatch.setattr(code_archive, "LIMIT", 20)
    with pytest.raises(UnpackableError, match=r"at most 1 KiB are sent: leave the largest out by"):
        pack(code, code)
    with pytest.raises(UnpackableError, match="is no folder"):
        pack(code / "none", code)
    empty = code / "empty"
    empty.mkdir()
    with pytest.raises(UnpackableError, match="has no files to send"):
        pack(empty, empty)


def test_the_program_packs_anew(code: Path) -> None:
    """Beside the start files it needs nothing of the agent, and packs what is there then."""
    program = Path(code_archive.__file__)
    shutil.copy(program, code / "pack.py")
    argv = [sys.executable, "-I", "-S", str(code / "pack.py")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.startswith("packed code.tar.gz: 5 files")
    write(code, "more.py")
    subprocess.run(argv, check=True, capture_output=True)
    with tarfile.open(code / "code.tar.gz") as archive:
        assert "more.py" in archive.getnames()
    for path in (code / name for name in ("code.tar.gz", "pack.py")):
        assert path.exists()

    # The command's script must still be there.
    text = program.read_text().replace('\nSCRIPT = ""\n', '\nSCRIPT = "train.py"\n')
    (code / "pack.py").write_text(text)
    subprocess.run(argv, check=True, capture_output=True)
    (code / "train.py").rename(code / "main.py")
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "train.py, which the command starts, is not in" in done.stderr
    (code / "pack.py").write_text(program.read_text())
    write(code, ".gitignore", text="*\n")
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has no files to send" in done.stderr
