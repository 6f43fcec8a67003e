"""The job's program is looked up before the boot, in the same way as the shell does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.checks.finding import Level
from agent.node.read import command_fault
from support.captured import read
from support.worlds import MACHINE, plan_of

SCRIPTS = {
    "fine": "#!/bin/sh\n",
    "by-env": "#!/usr/bin/env sh\n",
    "split": "#!/usr/bin/env -S A=1 sh -e\n",
    "no-line": "true\n",
    "empty": "",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with valid and invalid programs, and change to it."""
    monkeypatch.chdir(tmp_path)
    for name, text in SCRIPTS.items():
        Path(name).write_text(text, newline="")
        Path(name).chmod(0o755)
    Path("plain").write_text("print()")
    Path("folder").mkdir()
    Path("link").symlink_to("nowhere")
    (tmp_path / "bin").mkdir()
    Path("bin/only-read").write_text("#!/bin/sh\n")
    Path("bin/tool").symlink_to("/bin/sh")
    return tmp_path


ON_PATH = "is no program on PATH"
ROWS = {
    **dict.fromkeys(("sh", "tool", "./fine", "./by-env", "./split", "./no-line", "./empty"), ""),
    sys.executable: "",
    **dict.fromkeys(("nosuch", "", "fine", "CUDA_VISIBLE_DEVICES=0", "-c", "only-read"), ON_PATH),
    **dict.fromkeys(("./nosuch", "/nosuch", "~/train.sh", "./link"), "does not exist"),
    **dict.fromkeys(("./plain", "./folder"), "may not be executed"),
    "python train.py": "give its words one by one",
}


@pytest.mark.parametrize(("word", "fault"), ROWS.items())
def test_it_is_looked_up_as_the_shell_does(here: Path, word: str, fault: str) -> None:
    """The reported fault agrees with what `exec` then does."""
    path = f"{here}/bin:/usr/bin:/bin"
    found = command_fault([word], path)
    assert fault in found
    assert bool(found) == bool(fault)
    quoted = f"exec {subprocess.list2cmdline([word])}" if not word else f"exec '{word}'"
    done = subprocess.run(
        ["/bin/sh", "-c", f"{quoted} </dev/null"],
        env={"PATH": path},
        capture_output=True,
        check=False,
        timeout=20,
    )
    assert (done.returncode != 0) == bool(fault)


def test_an_unset_path_is_the_shells_own() -> None:
    """Without PATH a shell uses a default; an empty entry means the current folder."""
    assert command_fault(["sh"], None) == ""
    assert command_fault(["sh"], "/nowhere") == "'sh' is no program on PATH"


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("python3 train.py", "'train.py' does not exist (in"),
        ("python3 /no/train.py --lr 1", "'/no/train.py' does not exist"),
        ("bash run.sh", "'run.sh' does not exist (in"),
        ("bash plain.sh", ""),
        ("python3 -m train.py", ""),
        ("python3 {log_dir}/train.py", ""),
        ("sh -c train.sh", ""),
        ("env train.py", ""),
        ("nosuch train.py", "'nosuch' is no program on PATH"),
        ("LR=1 python3 plain.sh", "no program on PATH: no shell reads it: -- env LR=1 COMMAND"),
    ],
)
def test_a_script_is_looked_up_too(here: Path, command: str, fault: str) -> None:
    """An interpreter without its script would end at once, after the boot of all nodes."""
    (here / "plain.sh").touch()
    found = command_fault(command.split(), f"{here}/bin:/usr/bin:/bin")
    assert fault in found
    assert bool(found) == bool(fault)


MISSING = replace(MACHINE, program_fault="'nosuch' is not on PATH")


@pytest.mark.parametrize(
    ("environ", "is_judged"),
    [
        ({}, True),
        ({"AGENT_REWARD": "off"}, True),
        ({"AGENT_RUNTIME_ENV": "{}"}, False),
        ({"AGENT_WORKING_DIR": "/work"}, False),
        ({"AGENT_PREPARE": "make data"}, False),
        ({"AGENT_PREPARE_EACH": "pip install x"}, False),
        ({"RAY_WORKER": "1", "AGENT_HEAD": "10.0.0.9"}, False),
    ],
)
def test_it_is_checked_where_nothing_could_provide_it(
    environ: dict[str, str],
    is_judged: bool,  # noqa: FBT001 - a column
) -> None:
    """On the head it is 78 before the boot, unless a step or an upload may bring it."""
    found = [f for f in plan_of(environ, MISSING, ["nosuch"]).findings if f.check == "job"]
    assert bool(found) == is_judged
    assert all(f.level is Level.FAIL and "'nosuch' is not on PATH" in f.what for f in found)


@pytest.mark.parametrize("name", ["kuberay-submitter-head", "kuberay-head"])
def test_a_ray_that_is_given_has_its_own_programs(name: str) -> None:
    """Where the platform starts Ray, the program is not checked here."""
    plan = plan_of(read(name)[0], MISSING, ["nosuch"])
    assert "job" not in {finding.check for finding in plan.findings}
