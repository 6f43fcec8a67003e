"""Compile caches in the plan: variables, the archive's name, and the step that seeds."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from agent.base.errors import SettingsError
from agent.job.compile_caches import (
    LIBRARY_CACHES,
    CompileCaches,
    default_folder,
    seal_of,
    signer_of,
)
from agent.job.services import CACHES
from agent.node.facts import Folder, Mount, RayPython
from agent.node.node_kind import NodeKind
from agent.plan.show import render, summary, to_json
from agent.platforms.resolve import resolve
from agent.run.plan_input import plan_from_environment
from agent.run.read_caches import read_caches, with_archive_size
from agent.settings import load
from agent.settings.redact import redactor_for
from support.disks import needs_mount, read_only
from support.worlds import MACHINE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.node.facts import Facts
    from agent.plan.plan import Plan

KIND = NodeKind("NVIDIA H100 80GB HBM3", "570.1", "x86_64", "ab", "", "3.11.7", {"torch": "2.8.0"})
HERE = CompileCaches("/vol", "/tmp/pod-agent", KIND, "u0")
COMMAND = ["python3", "-c", "print(1)"]


def caches_of(
    environ: Mapping[str, str], facts: Facts = MACHINE, command: list[str] | None = COMMAND
) -> tuple[CompileCaches | None, str]:
    """Return the caches of a node, and why it keeps none."""
    loaded = load(environ, command)
    return read_caches(loaded, resolve(environ, loaded.settings, facts), facts, environ)


def kept(
    environ: Mapping[str, str], facts: Facts = MACHINE, command: list[str] | None = COMMAND
) -> CompileCaches:
    """Return the caches of a node that keeps them."""
    caches, why = caches_of(environ, facts, command)
    assert caches is not None, why
    return caches


def test_each_library_has_its_own_folder() -> None:
    """Below one path that hardware does not change."""
    variables = HERE.variables({})
    assert variables["TRITON_CACHE_DIR"] == f"{HERE.folder}/triton"
    assert variables["DG_JIT_CACHE_DIR"] == variables["SGLANG_DG_CACHE_DIR"]
    assert len({*variables.values()}) == len(LIBRARY_CACHES)
    other = replace(HERE, kind=replace(KIND, gpu="H200", driver="9"))
    assert other.variables({}) == variables
    assert {*other.archives}.isdisjoint(HERE.archives)


@pytest.mark.parametrize(
    ("given", "stay"),
    [
        ("TRITON_CACHE_DIR", {"TRITON_CACHE_DIR"}),
        ("TRITON_HOME", {"TRITON_CACHE_DIR"}),
        ("DG_JIT_CACHE_DIR", {"DG_JIT_CACHE_DIR", "SGLANG_DG_CACHE_DIR"}),
    ],
)
def test_the_users_place_stays(given: str, stay: set[str]) -> None:
    """With what belongs to it; an empty value is a choice, too."""
    assert HERE.variables({}).keys() - HERE.variables({given: ""}).keys() == stay


def test_who_shares_archives() -> None:
    """Nodes with one token, and without one those of one user; the token cannot be read of it."""
    seal = seal_of("token-0123456789")
    assert seal == seal_of("token-0123456789") != seal_of("token-2")
    assert signer_of(seal, 0) == signer_of(seal, 1000)
    assert signer_of("", 0) == "u0"
    assert seal_of(None) == ""
    assert seal[:8] not in signer_of(seal, 0)


def test_the_archives_names() -> None:
    """They say for which GPU and role they are, and fit a file name: the node's own is first."""
    head, worker = HERE.archives
    assert head == f"nvidia-h100-80gb-hbm3-{KIND.digest}-head-u0.tar.gz"
    assert replace(HERE, is_head=False).archives == (worker, head)
    cpu = replace(HERE, kind=replace(KIND, gpu=""))
    assert cpu.archives[0].startswith("x86_64-")


VOLUME = Mount("/workspace", "nfs4", "server:/x")


@pytest.mark.parametrize(
    ("environ", "mount", "expected"),
    [
        ({"AGENT_CACHE_DIR": "/vol/c"}, None, "/vol/c"),
        ({"AGENT_CACHE_DIR": "off", "AGENT_CHECKPOINTS": "/workspace/run/ckpt"}, VOLUME, ""),
        ({"AGENT_CHECKPOINTS": "/workspace/run/ckpt"}, VOLUME, "/workspace/run/compile-caches"),
        ({"AGENT_CHECKPOINTS": "/x/ckpt"}, Mount("/", "overlay", "overlay"), ""),
        ({}, VOLUME, ""),  # a command whose checkpoints are not known
    ],
)
def test_where_archives_are(environ: dict[str, str], mount: Mount | None, expected: str) -> None:
    """AGENT_CACHE_DIR, else beside the checkpoints where these are on a volume."""
    caches, why = caches_of(environ, replace(MACHINE, checkpoints=mount))
    assert ("" if caches is None else caches.volume) == expected
    assert why == ""


def test_archives_are_on_the_disk_of_the_checkpoints(tmp_path: Path) -> None:
    """Beside a mount is the container's own disk; a link is where it leads."""
    assert default_folder("/a/b", "/a") == "/a/compile-caches"
    mount = replace(VOLUME, folder=str(tmp_path / "mount"))
    (tmp_path / "mount" / "run").mkdir(parents=True)
    (tmp_path / "whole").symlink_to(tmp_path / "mount")
    (tmp_path / "part").symlink_to(tmp_path / "mount" / "run")
    facts = replace(MACHINE, checkpoints=mount)
    recipe = {"AGENT_JOB": "openrlhf-sft", "AGENT_MODEL": "/m", "AGENT_TRAIN_DATA": "/d"}
    whole, part = f"{mount.folder}/.compile-caches", f"{mount.folder}/compile-caches"
    expected = {"mount": whole, "mount/run": part, "whole": whole, "part": part}
    for name, volume in expected.items():
        environ = {**recipe, "AGENT_CHECKPOINTS": str(tmp_path / name)}
        assert kept(environ, facts, None).volume == volume


def test_a_command_may_use_a_whole_volume(tmp_path: Path) -> None:
    """Its program may count what is there as its own checkpoints, or want an empty folder."""
    facts = replace(MACHINE, checkpoints=replace(VOLUME, folder=str(tmp_path)))
    caches, why = caches_of({"AGENT_CHECKPOINTS": str(tmp_path)}, facts)
    assert caches is None
    assert why.endswith("the command may use all of it. Set AGENT_CACHE_DIR to keep them")


def test_the_kind_is_that_of_the_jobs_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that the command names: environments are asked, though they link to one Python."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.symlink_to(sys.executable)
    libraries = {"torch": "2.13.0"}
    asked = []

    def ask(executable: str) -> RayPython:
        asked.append(executable)
        return replace(MACHINE.ray, executable=executable, libraries=libraries)

    monkeypatch.setattr("agent.node.read.ask_python", ask)
    environ = {"AGENT_CACHE_DIR": "/vol", "PATH": str(tmp_path / "bin")}
    for command in ([str(python), "train.py"], ["python3", "train.py"]):
        assert kept(environ, command=command).kind.versions == libraries
    assert kept(environ, command=[sys.executable, "train.py"]).kind.versions == {}
    assert asked == [str(python)] * 2

    # A script's first line names its Python; torchrun starts one by its own.
    train = tmp_path / "train.py"
    scripts = (tmp_path / "bin" / "torchrun", train)
    for script in scripts:
        script.write_text(f"#!{python}\nimport torch\n")
        script.chmod(0o755)
    for command in (["torchrun", "t.py"], [str(scripts[0])], [str(train)]):
        assert kept(environ, command=command).kind.versions == libraries
    by_torchrun = {**environ, "AGENT_LAUNCHER": "torchrun"}
    assert kept(by_torchrun, command=[str(train)]).kind.versions == {}


def test_extensions_of_an_unknown_torch() -> None:
    """Torch loads what is in the folder as it is: they stay where torch puts them."""
    unknown = replace(HERE, kind=replace(KIND, versions={}))
    assert HERE.variables({}).keys() - unknown.variables({}).keys() == {"TORCH_EXTENSIONS_DIR"}


def test_the_rehearsal_keeps_none() -> None:
    """It compiles nothing."""
    assert caches_of({}, replace(MACHINE, checkpoints=VOLUME), None) == (None, "")


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (Folder("/x", is_folder=True, uid=5, mode=0o700), "is not this user's own"),
        (Folder("/x", is_folder=False, uid=0, mode=0o700), "is not this user's own"),
        (Folder("/x", is_folder=True, uid=0, mode=0o777), "others may write to"),
    ],
)
def test_a_folder_that_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, folder: Folder, words: str
) -> None:
    """The job would run what others can put there: the caches stay where they were, with a note."""
    monkeypatch.setattr("agent.node.read.read_folder", lambda _path: folder)
    caches, why = caches_of({"AGENT_CACHE_DIR": "/vol"})
    assert caches is None
    assert words in why


@needs_mount
@pytest.mark.parametrize("has_folder", [False, True])
def test_a_disk_that_may_not_be_written(tmp_path: Path, *, has_folder: bool) -> None:
    """The node's own: its folder, or the one in which it would be."""
    facts = replace(MACHINE, temp=str(tmp_path))
    around = tmp_path / f"pod-agent{'' if MACHINE.uid == 0 else f'-{MACHINE.uid}'}"
    nearest = tmp_path
    if has_folder:
        around.mkdir(mode=0o700)
        nearest = around
    with read_only(tmp_path):
        caches, why = caches_of({"AGENT_CACHE_DIR": "/vol"}, facts)
    assert caches is None
    assert why == f"{nearest} may not be written"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, r"got .*; expected `off`, or an abs") for text in ("caches", "./x", "On")),
        *((text, "expected a path without braces") for text in ("/vol/{rank}", "/vol/a{b", "~/c}")),
    ],
)
def test_a_wrong_value(text: str, words: str) -> None:
    """No placeholders: commands would fill them in, and the agent itself would not."""
    with pytest.raises(SettingsError, match=f"AGENT_CACHE_DIR: .*{words}"):
        load({"AGENT_CACHE_DIR": text})


def line_of(plan: Plan) -> str:
    """Return what the plan's summary says of the caches."""
    return next(row.text for row in summary(plan) if row.label.startswith("caches:"))


def test_the_plan_shows_them(tmp_path: Path) -> None:
    """Archive, size, folder and variables, in lines and as JSON; the token only as a digest."""
    token = "token-0123456789abcdef"  # noqa: S105 - no secret of anybody's
    environ = {"AGENT_CACHE_DIR": str(tmp_path), "RAY_AUTH_TOKEN": token, "TRITON_HOME": "/mine"}
    plan = with_archive_size(plan_from_environment(environ, COMMAND))
    assert plan.caches is not None
    own, workers = plan.caches.archives
    none_yet = f"none yet in {tmp_path} ({own}): a fresh node starts cold"
    assert line_of(plan) == f"{none_yet}; kept in {plan.caches.folder}"

    archive = tmp_path / workers  # a worker's, where the head has none yet
    archive.write_bytes(b"x" * 3000)
    plan = with_archive_size(plan)
    assert plan.caches is not None
    data: dict[str, Any] = to_json(plan)["caches"]
    assert (data["archive"], data["archive_bytes"]) == (archive.name, 3000)
    assert data["archive_fault"] == ""
    assert line_of(plan) == f"seeded from {archive} (3 KiB), kept in {plan.caches.folder}"
    assert data["variables"]["VLLM_CACHE_ROOT"] == f"{plan.caches.folder}/vllm"
    assert "TRITON_CACHE_DIR" not in to_json(plan)["environment"]
    assert "TORCHINDUCTOR_CACHE_DIR" in to_json(plan)["environment"]
    whole = render(plan, redactor_for(environ, plan.settings))
    assert "kind of this node, for its compile caches" in whole
    assert seal_of(token) not in whole + json.dumps(to_json(plan))

    # The step that seeds, on every node, before the job.
    step = next(step for step in plan.steps if step.name == CACHES)
    assert step.where.kind == "every"
    assert f"--volume {tmp_path}" in step.command
    without = plan_from_environment({**environ, "AGENT_CACHE_DIR": "off"}, COMMAND)
    assert "AGENT_CACHE_DIR" not in {step.name for step in without.steps}


def test_a_volume_that_cannot_be_used(tmp_path: Path) -> None:
    """The reason is in the plan, also where nobody can say that no archive exists."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    plan = with_archive_size(plan_from_environment({"AGENT_CACHE_DIR": str(loop)}, COMMAND))
    assert plan.caches is not None
    why = "cannot be read: Too many levels of symbolic links"
    assert line_of(plan) == f"{loop} {why}; kept in {plan.caches.folder}"
    assert to_json(plan)["caches"]["archive_fault"] == "Too many levels of symbolic links"

    file = tmp_path / "file"
    file.touch()
    plan = plan_from_environment({"AGENT_CACHE_DIR": str(file)}, COMMAND)
    warning = next(row for row in plan.findings if row.check == "compile caches")
    assert warning.what == f"AGENT_CACHE_DIR: {file} is a file, not a folder: nothing will be kept"


def test_launchers_without_ray_have_them(tmp_path: Path) -> None:
    """Each node's processes inherit the variables."""
    environ = {"AGENT_CACHE_DIR": str(tmp_path), "AGENT_LAUNCHER": "node"}
    plan = plan_from_environment(environ, COMMAND)
    assert plan.caches is not None
    assert plan.environment("10.0.0.1", "10.0.0.1").items() >= plan.caches.variables({}).items()
