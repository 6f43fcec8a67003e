"""The run folder: one for each run and node, with `latest` beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.base.errors import PreflightError
from agent.record import run_folder
from agent.record.files import appending
from agent.record.log_dir import log_dir
from agent.record.node_record import NodeRecord
from agent.record.outcome_file import outcome_text, write_outcome
from agent.record.run_folder import RunFolder
from support.run_folders import run_folder_of

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLDER = """
import sys
import threading
from pathlib import Path
from agent.record.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]), "run-1", "pod0")
print(folder.path.name, flush=True)
sys.stdin.read()
"""


@contextmanager
def another_agent(root: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Let another process hold pod0's folder of run-1."""
    argv = [sys.executable, "-c", HOLDER, str(root)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def test_a_heads_folder(tmp_path: Path) -> None:
    """Logs are in <log dir>/<run id>/<node>/, and `latest` links to the newest run."""
    root = tmp_path / "logs"
    for run in ("run-1", "run-2"):
        assert run_folder_of(root, run).path == root / run / "pod0"
        assert (root / "latest").resolve() == root / run
    assert sorted(path.name for path in root.iterdir()) == ["latest", "run-1", "run-2"]


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set a umask for one test."""
    former = os.umask(request.param)
    try:
        yield request.param
    finally:
        os.umask(former)
        log_dir.allow("private")


@pytest.mark.parametrize(
    ("mode", "folders", "files"),
    [("private", 0o700, 0o600), ("group", 0o750, 0o640), ("umask", 0o777, 0o666)],
)
def test_who_may_read_a_run(
    tmp_path: Path, umask: int, mode: str, folders: int, files: int
) -> None:
    """AGENT_LOG_MODE holds whatever the umask is, and leaves AGENT_LOG_DIR as it is."""
    log_dir.allow(mode)
    root = tmp_path / "logs"
    folder = run_folder_of(root)
    os.close(appending(folder.path / "agent.log")())
    assert not write_outcome(
        folder.path, outcome_text(Outcome(Kind.DONE, 0, "running", "pod0", "it ended"))
    )
    if mode == "umask":
        folders, files = folders & ~umask, files & ~umask
    modes = {path: path.stat().st_mode & 0o777 for path in (root, *root.rglob("*"))}
    assert modes.pop(root) == 0o777 & ~umask
    assert {mode for path, mode in modes.items() if path.is_dir()} == {folders}
    assert {mode for path, mode in modes.items() if path.is_file()} == {files}


def test_a_disk_without_modes_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on; the log says that others can read its folder."""
    monkeypatch.setattr("agent.record.log_dir.os.fchmod", lambda _file, _mode: None)
    said: list[str] = []
    monkeypatch.setattr(run_folder, "say", lambda text, _level: said.append(text))
    former = os.umask(0o022)
    try:
        (tmp_path / "run-1").mkdir()
        run_folder_of(tmp_path)
    finally:
        os.umask(former)
        log_dir.allow("private")
    assert [text.partition(":")[0] for text in said] == ["AGENT_LOG_MODE"]


# --- the same node once more -------------------------------------------------------------------


def test_a_restarted_node_uses_its_folder_again(tmp_path: Path) -> None:
    """Files stay, the previous record is read, and its outcome is renamed: the last is kept."""
    for number in range(4):
        first = run_folder_of(tmp_path)
        first.file("agent.log").write_text(f"{number}\n")
        write_outcome(first.path, outcome_text(Outcome(Kind.LOST, 75, str(number))))
        (first.path / ".run.json.0123.part").write_text("{")  # which a killed agent left
        first.close()
    second = run_folder_of(tmp_path)
    assert (second.path, second.former) == (first.path, first.own)
    files = {path.name: path for path in second.path.iterdir()}
    assert files["agent.log"].read_text() == "3\n"
    (former,) = files.keys() - {"agent.log", "node.json", ".agent.lock"}
    assert former.startswith("outcome.former-")
    assert json.loads(files[former].read_text())["reason"] == "3"


def test_a_running_agent_keeps_its_folder(tmp_path: Path) -> None:
    """Another agent of the same name takes a numbered folder."""
    for remove_record in (False, True):
        first = run_folder_of(tmp_path)
        assert first.path.name == "pod0"
        if remove_record:
            (first.path / "node.json").unlink()
        second, third = run_folder_of(tmp_path), run_folder_of(tmp_path)
        assert [second.path.name, third.path.name] == ["pod0-2", "pod0-3"]
        for folder in (first, second, third):
            folder.close()


def test_a_killed_agents_folder_is_free_at_once(tmp_path: Path) -> None:
    """While another process holds it, `-2` is used; later the folder itself."""
    with another_agent(tmp_path) as (name, process):
        assert name == "pod0"
        beside = run_folder_of(tmp_path)
        assert beside.path.name == "pod0-2"
        process.kill()
        process.wait()
        after = run_folder_of(tmp_path)
    assert after.path.name == "pod0"
    assert after.former is not None
    assert after.former.agent.pid == process.pid


def test_concurrent_nodes_never_share_a_folder(tmp_path: Path) -> None:
    """Nodes of one name that start at once have one folder each."""
    made: list[RunFolder] = []
    threads = [
        threading.Thread(target=lambda: made.append(run_folder_of(tmp_path))) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({folder.path for folder in made}) == 12


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99}', "\0" * 100, "[" * 100_000])
def test_a_broken_record_does_not_block_the_folder(tmp_path: Path, text: str) -> None:
    """The folder is used again if no agent holds its lock."""
    run_folder_of(tmp_path).close()
    (tmp_path / "run-1" / "pod0" / "node.json").write_text(text)
    again = run_folder_of(tmp_path)
    assert (again.path.name, again.former) == ("pod0", None)
    assert isinstance(NodeRecord.read(again.path / "node.json"), NodeRecord)


def test_a_folder_of_another_machine_or_node(tmp_path: Path) -> None:
    """Its agent may run, or two node names give one folder name: the second gets a number."""
    first = run_folder_of(tmp_path)
    elsewhere = replace(first.own.place, boot_id="other", pid_namespace="other", hostname="other")
    replace(first.own, place=elsewhere).write(first.path / "node.json")
    first.close()
    assert run_folder_of(tmp_path).path.name == "pod0-2"
    run_folder_of(tmp_path, node="pod:0").close()
    assert run_folder_of(tmp_path, node="pod-0").path.name == "pod-0-2"


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "node"),
    [("../../etc", ".."), ("a/b", "c/d"), ("", ""), ("run 1", "pod:0"), ("r" * 4000, "n" * 400)],
)
def test_no_name_leaves_the_log_folder(tmp_path: Path, run: str, node: str) -> None:
    """Names come from platforms and from the head; one that is too long for a disk is cut."""
    root = tmp_path / "logs"
    folder = RunFolder(root, run, node)
    assert folder.path.resolve().parent.parent == root
    folder.move_to_run(f"{run}-other")
    assert folder.path.resolve().parent.parent == root


def test_an_unwritable_root_is_a_preflight_error(tmp_path: Path) -> None:
    """A log dir that cannot be made ends with 78 and names the variable."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError) as caught:
        RunFolder(tmp_path / "file" / "logs", "run-1", "pod0")
    assert caught.value.culprit == "AGENT_LOG_DIR"
    assert "cannot be written: Not a directory" in caught.value.sentence()
