"""A job's checkpoints: their folder, its disk, their owner, and what can resume from them."""

from __future__ import annotations

import json
import os
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.bundled.trl_grpo import last_checkpoint
from agent.checks.finding import Level
from agent.frameworks.verl import FRAMEWORK
from agent.job.checkpoints import (
    CHECKPOINT_FILE,
    CheckpointOwner,
    FolderContents,
    folder_of,
    kept_settings,
    resumes_from,
    why_not_resumable,
    why_untracked,
    why_unusable,
)
from agent.node.facts import Mount
from agent.node.read import mount_of, why_no_folder
from agent.plan.show import commands_of, summary
from agent.record.checkpoint_folder import read_checkpoints, write_mark
from agent.run.plan_input import plan_from_environment, with_checkpoints
from support.worlds import settings_of

if TYPE_CHECKING:
    from pathlib import Path

OURS = CheckpointOwner("verl-grpo", "verl", "0.9.1", "org/model", 16, 2)


def folder(**changes: str) -> str:
    """Return where the checkpoints of a recipe lie."""
    recipe = {"AGENT_MODEL": "org/model", "AGENT_TRAIN_DATA": "/data/a.parquet"}
    return folder_of(settings_of({**recipe, **changes}), "/logs", "verl-grpo", None)


def test_the_default_folder() -> None:
    """Another recipe, model or data has another folder; equal ones have the same."""
    assert folder().startswith("/logs/checkpoints/verl-grpo-")
    assert folder() == folder(AGENT_JOB_ARGS="--lr 1")
    assert folder() != folder(AGENT_MODEL="org/other")
    assert folder() != folder(AGENT_TRAIN_DATA="/data/b.parquet")
    assert folder(AGENT_CHECKPOINTS="/volume/mine") == "/volume/mine"
    own = folder_of(settings_of({}), "/logs", "command", ("python", "train.py"))
    assert own.startswith("/logs/checkpoints/command-")


@given(
    st.builds(
        CheckpointOwner,
        *(st.text() for _ in range(4)),
        world_size=st.integers(0, 10_000),
        tensor_parallel=st.integers(1, 64),
        settings=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    )
)
def test_a_mark_is_read_as_it_was_written(mark: CheckpointOwner) -> None:
    """For any texts."""
    with TemporaryDirectory() as place:
        assert not write_mark(place, mark)
        assert read_checkpoints(place).owner == mark


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"recipe": "x"}', "null", "nonsense"])
def test_what_is_no_mark(text: str, tmp_path: Path) -> None:
    """A foreign file refuses the run and is not overwritten."""
    (tmp_path / CHECKPOINT_FILE).write_text(text)
    held = read_checkpoints(str(tmp_path))
    assert held.owner is None
    assert held.fault
    assert "cannot be read" in why_unusable(held, OURS)


LOCAL = replace(OURS, model="/m/small/model")


@pytest.mark.parametrize(
    ("own", "changes", "said"),
    [
        (OURS, {}, ""),
        (OURS, {"version": "0.8.0"}, ""),
        (OURS, {"tensor_parallel": 4}, ""),
        (OURS, {"world_size": 8}, ""),
        (OURS, {"model": "org/other"}, "another model's: org/other, not org/model"),
        (OURS, {"framework": "openrlhf"}, "another framework's: openrlhf, not verl"),
        (OURS, {"recipe": "verl-ppo"}, "another recipe's: verl-ppo, not verl-grpo"),
        (LOCAL, {"model": "/m/small/../small/model/"}, ""),
        (LOCAL, {"model": "/m/small/model2"}, "model's: /m/small/model2, not /m/small/model"),
    ],
)
def test_whose_they_are(own: CheckpointOwner, changes: dict[str, str | int], said: str) -> None:
    """Another model's or framework's folder is refused; another version's is not."""
    why = why_unusable(FolderContents(replace(own, **changes)), own)
    assert said in why
    assert bool(said) == bool(why)


@pytest.mark.parametrize(
    ("framework", "newest", "world", "kept", "own", "said"),
    [
        ("verl", "global_step_40", 16, {}, {}, ""),
        ("verl", "global_step_40", 24, {}, {}, "24"),
        ("openrlhf", "_actor/global_step40", 8, {}, {}, "8"),
        ("openrlhf-m", "_actor/global_step40", 8, {}, {}, "8"),
        ("trl", "checkpoint-40", 4, {}, {}, ""),
        ("verl", "", 24, {}, {}, ""),
        ("verl", "global_step_40", 16, {}, {"ZeRO stage": "2"}, ""),
        ("verl", "global_step_40", 16, {"ZeRO stage": "3"}, {"ZeRO stage": "3"}, ""),
        (
            *("verl", "global_step_40", 16, {"ZeRO stage": "3"}, {"ZeRO stage": "2"}),
            "ZeRO stage 3, and this run has 2",
        ),
        ("verl", "global_step_40", 16, {"dtype": "bf16"}, {}, "dtype bf16, and this run has none"),
        ("verl", "", 16, {"dtype": "bf16"}, {}, ""),
    ],
)
def test_what_another_run_cannot_resume(  # noqa: PLR0913 - a row
    framework: str,
    newest: str,
    world: int,
    kept: dict[str, str],
    own: dict[str, str],
    said: str,
) -> None:
    """Shards that depend on the world size, and checkpoints that other settings have formed."""
    ours = replace(OURS, framework=framework)
    tracked = "40" if newest else ""
    held = FolderContents(replace(ours, settings=kept), newest=newest, tracked=tracked)
    assert kept_settings(held, framework) == (kept if newest else {})
    why = why_not_resumable(held, replace(ours, world_size=world, settings=own))
    assert bool(why) == bool(said)
    assert said in why
    assert "16" in why or world == 16 or not said


@pytest.mark.parametrize(
    ("framework", "folders", "tracked", "step"),
    [
        ("verl", ["global_step_8", "global_step_40", "global_step_9"], "40", "global_step_40"),
        ("verl", ["global_step_20", "global_step_40"], "20", "global_step_20"),
        ("openrlhf", ["_actor/global_step5", "_critic/global_step5", "x"], "", "global_step5"),
        ("trl", ["checkpoint-20", "checkpoint-100", "runs"], "", "checkpoint-100"),
        ("search-r1", ["actor/global_step_100"], "", ""),
        ("verl", ["logs", "global_step_x"], "", ""),
        ("trl", [], "", ""),
    ],
)
def test_what_it_resumes_from(
    framework: str, folders: list[str], tracked: str, step: str, tmp_path: Path
) -> None:
    """The newest by number, or the one that the framework's own file names."""
    for name in folders:
        (tmp_path / name / "inside").mkdir(parents=True)
        (tmp_path / name / "trainer_state.json").write_text("{}")
    if tracked:
        (tmp_path / FRAMEWORK.checkpoints.tracker).write_text(tracked)
    found = resumes_from(read_checkpoints(str(tmp_path)), framework)
    assert found.endswith(step)
    assert bool(found) == bool(step)


def test_a_save_that_was_killed_is_not_resumed_from(tmp_path: Path) -> None:
    """The agent names the checkpoint that TRL's program chooses."""
    states = {"checkpoint-9": '{"global_step": 9}', "checkpoint-40": '{"global_st', "x": "{}"}
    for name in (*states, "checkpoint-240", "x/checkpoint-300"):
        (tmp_path / name).mkdir()
    for name, state in states.items():
        (tmp_path / name / "trainer_state.json").write_text(state)
    contents = read_checkpoints(str(tmp_path))
    assert str(tmp_path / resumes_from(contents, "trl")) == last_checkpoint(tmp_path)
    assert contents.marked_whole == "checkpoint-9"
    assert contents.newest == "x/checkpoint-300"


def test_prime_rls_checkpoints_have_a_folder(tmp_path: Path) -> None:
    """Beside it are folders with the same names; a part of a checkpoint is none to resume from."""
    for name in ("rollouts/step_9", "broadcasts/step_9", "checkpoints/step_8/orchestrator"):
        (tmp_path / name).mkdir(parents=True)
    whole = tmp_path / "checkpoints/step_4/trainer"
    whole.mkdir(parents=True)
    (whole / ".metadata").write_bytes(b"\x80\x04")
    contents = read_checkpoints(str(tmp_path))
    assert resumes_from(contents, "prime-rl") == "checkpoints/step_4"
    assert contents.newest == "checkpoints/step_8"


def test_verl_would_begin_anew_without_its_note(tmp_path: Path) -> None:
    """Steps that verl would skip are not lost silently."""
    (tmp_path / "global_step_40").mkdir()
    why = why_unusable(read_checkpoints(str(tmp_path)), OURS)
    assert "begins at step 0" in why
    assert FRAMEWORK.checkpoints.tracker in why
    assert why_unusable(read_checkpoints(str(tmp_path)), replace(OURS, framework="openrlhf")) == ""
    assert write_mark(str(tmp_path), OURS) == ""  # in that case verl's own save was interrupted
    own = read_checkpoints(str(tmp_path))
    assert why_unusable(own, OURS) == ""
    assert resumes_from(own, "verl") == ""
    assert "begins at step 0" in why_untracked(own, "verl")


def test_the_mark_is_put_whole(tmp_path: Path) -> None:
    """The owner file is written atomically, and a file in the way is reported."""
    place = tmp_path / "a" / "b"
    assert write_mark(str(place), OURS) == ""
    assert [path.name for path in place.iterdir()] == [CHECKPOINT_FILE]
    keys = json.loads((place / CHECKPOINT_FILE).read_text())
    assert {"recipe", "framework", "world_size"} <= {*keys}
    assert write_mark(str(place / CHECKPOINT_FILE), OURS)
    assert read_checkpoints(str(tmp_path / "none")) == FolderContents()


TRL = {
    "EXPECTED_WORKERS": "0",
    "AGENT_JOB": "trl-grpo",
    "AGENT_MODEL": "/m/small-0.5B",
    "AGENT_TRAIN_DATA": "/d/train.jsonl",
}


def test_the_plan_says_what_it_would_resume_from(tmp_path: Path) -> None:
    """Or that the run would be refused; warnings about the user's paths come first."""
    environ = {**TRL, "AGENT_CHECKPOINTS": str(tmp_path), "PATH": os.environ["PATH"]}
    plan = plan_from_environment(environ, None)
    assert with_checkpoints(plan).resumes_from == ""
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    (folder / "trainer_state.json").write_text('{"global_step": 3}')
    resumed = with_checkpoints(plan)
    lines = summary(resumed)
    assert any(line.text.endswith("; resumes from checkpoint-3") for line in lines)
    assert f"checkpoints: {tmp_path}; resumes from checkpoint-3" in "\n".join(commands_of(resumed))
    warnings = [found.what for found in resumed.findings if found.level is Level.WARN]
    assert [what.partition(":")[0] for what in warnings[:2]] == ["AGENT_MODEL", "AGENT_TRAIN_DATA"]

    other = replace(OURS, recipe="trl-grpo", framework="trl")
    assert write_mark(str(tmp_path), other) == ""
    refused = with_checkpoints(plan)
    assert refused.resumes_from == ""
    assert "it is another model's: org/model, not /m/small-0.5B" in refused.failed()[-1].what


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    """It is named before the boot, with nothing written."""
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        assert why_no_folder(str(place)) == f"{file} is a file, not a folder"
        plan = plan_from_environment({**TRL, "AGENT_CHECKPOINTS": str(place)}, None)
        assert f"no place for them in {place}: {file} is a file" in str(plan.failed())
        assert with_checkpoints(plan) == plan
    assert "file system of the kernel (proc)" in why_no_folder("/proc/ckpt")
    assert why_no_folder(str(tmp_path / "a" / "b")) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


MOUNTS = r"""overlay / overlay rw,lowerdir=/x 0 0
tmpfs /tmp tmpfs rw 0 0
mfs#10.0.0.1:9421 /workspace fuse rw,relatime 0 0
10.0.0.9:/export /my\040data nfs4 rw 0 0
/dev/sda1 /workspace/local ext4 rw 0 0
/dev/sdb1 /tmp ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("place", "mount", "own_and_shared"),
    [
        ("/root/checkpoints", Mount("/", "overlay", "overlay"), (True, False)),
        ("/workspace/run/x", Mount("/workspace", "fuse", "mfs#10.0.0.1:9421"), (False, True)),
        ("/workspaces/x", Mount("/", "overlay", "overlay"), (True, False)),
        ("/workspace/local/x", Mount("/workspace/local", "ext4", "/dev/sda1"), (False, False)),
        ("/my data/x", Mount("/my data", "nfs4", "10.0.0.9:/export"), (False, True)),
        ("/tmp/x", Mount("/tmp", "ext4", "/dev/sdb1"), (False, False)),
    ],
)
def test_on_what_a_folder_lies(
    place: str,
    mount: Mount,
    own_and_shared: tuple[bool, bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The longest mount above it, the later of two; whether it outlasts the pod; who shares it."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert mount_of(place) == mount
    assert (mount.is_containers_own, mount.is_shared) == own_and_shared


def test_this_machines_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's list has a mount for every folder; without the list there is none."""
    found = mount_of(str(tmp_path))
    assert found is not None
    assert str(tmp_path).startswith(found.folder)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "none"))
    assert mount_of("/") is None
