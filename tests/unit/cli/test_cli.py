"""The command line from a user's view: the real program in a separate process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

BIN = Path(sys.executable).parent
AGENT = str(BIN / "pod-agent")
CLEAN = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}


def agent(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program with only the given variables in its environment."""
    return subprocess.run(
        [AGENT, *arguments],
        env={**CLEAN, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_all_problems_at_once_and_nothing_started(tmp_path: Path) -> None:
    """Every wrong variable is named, with 78, no traceback and nothing written."""
    wrong = {
        "RAY_WORKER": "maybe",
        "EXPECTED_WORKERS": "two",
        "AGENT_WAIT_HED": "5m",
        "AGENT_WAIT_HEAD": "soon",
        "AGENT_NODE_IP": "0.0.0.0",
        "RAY_AUTH_TOKEN": "",
        "AGENT_ON_DONE": "stop-pod",
    }
    done = agent("run", env=wrong, cwd=tmp_path)
    assert done.returncode == 78
    assert all(name in done.stderr for name in wrong if name != "AGENT_ON_DONE")
    assert "RUNPOD_API_KEY: got nothing" in done.stderr
    assert "Traceback" not in done.stderr
    assert "exit code 78" in done.stderr.strip().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
    assert done.stdout == ""


def test_plan_touches_nothing_and_masks_secrets(tmp_path: Path) -> None:
    """`plan` prints role and evidence, leaves no file, and shows no secret."""
    env = {
        "HEAD_POD_ID": "abc",
        "RUNPOD_POD_ID": "xyz",
        "RAY_AUTH_TOKEN": "top-secret-token",
        "WANDB_API_KEY": "top-secret-key",
    }
    done = agent("plan", "--", "train", "--key", "top-secret-key", env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "worker: RUNPOD_POD_ID=xyz, HEAD_POD_ID=abc" in done.stdout
    assert "top-secret" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_agent_package_is_not_taken_for_ours(tmp_path: Path) -> None:
    """A user's own package called `agent`, in the current directory, changes nothing."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "__init__.py").write_text("raise SystemExit('the wrong agent')")
    (tmp_path / "log.py").write_text("raise SystemExit('the wrong log')")
    assert agent("--version", cwd=tmp_path).stdout.startswith("pod-agent ")
    file = Path(__file__).parents[3] / "agent" / "__main__.py"
    by_file = [sys.executable, str(file), "reward-server", "--help"]
    done = subprocess.run(
        by_file, cwd=tmp_path, env=CLEAN, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


def test_usage_is_2() -> None:
    """A misspelled command line is a usage error (test_command_line has the others)."""
    done = agent("rehersal")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'rehearsal'?" in done.stderr


def test_a_folder_that_was_removed(tmp_path: Path) -> None:
    """Ray and the job could not start in it: every verb says so at once."""
    gone = tmp_path / "gone"
    program = f'mkdir {gone} && cd {gone} && rmdir {gone} && exec "$@"'
    for verb in (["run"], ["plan"], ["init", "slurm", "rehearsal", "--nodes", "2"]):
        words = ["sh", "-c", program, "sh", str(AGENT), *verb]
        done = subprocess.run(words, env=CLEAN, capture_output=True, text=True, check=False)
        assert done.returncode == 78
        assert "the current folder cannot be used: No such file or directory. cd to" in done.stderr


def test_a_program_that_is_not_there_ends_before_the_boot(tmp_path: Path) -> None:
    """78 by `run`; `plan` shows it first and stays 0, with --check it is 78, too."""
    env = {"AGENT_LOG_DIR": str(tmp_path), "WANDB_APIKEY": "3", "AGENT_PORT": "21970"}
    env |= {"AGENT_RAY_PORT": "21960", "AGENT_DASHBOARD_PORT": "21961", "AGENT_REWARD": "off"}
    done = agent("run", "--", "./no-such-train.sh", env=env, cwd=tmp_path)
    assert done.returncode == 78, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "'./no-such-train.sh' does not exist" in last
    assert "! names: WANDB_APIKEY is no known variable" in done.stderr
    shown = agent("plan", "--", "./no-such-train.sh", env=env, cwd=tmp_path)
    assert shown.returncode == 0
    first, second, *_ = shown.stdout.splitlines()
    assert first.startswith("warn names: WANDB_APIKEY is no known variable")
    assert second == "refused:   `run` would be refused (78): 1 check(s) fail"
    assert "FAIL job: the program after --: './no-such-train.sh'" in shown.stdout
    checked = agent("plan", "--check", "--", "./no-such-train.sh", env=env, cwd=tmp_path)
    assert (checked.returncode, checked.stdout) == (78, shown.stdout)
    assert agent("plan", "--check", "--", "true", env=env, cwd=tmp_path).returncode == 0
    doctor = agent("doctor", env={"WANDB_APIKEY": "3"}, cwd=tmp_path)
    assert "warn names: WANDB_APIKEY" in doctor.stdout


@pytest.mark.parametrize(
    "folder", ["/proc/nowhere/logs", pytest.param("/dev/null/logs", marks=pytest.mark.slow)]
)
def test_a_log_folder_that_cannot_be_made(folder: str, tmp_path: Path) -> None:
    """78 with the variable and the reason, before anything starts; `plan` and `doctor` see it."""
    env = {"AGENT_LOG_DIR": folder, "AGENT_PORT": "21980"}
    for verb in (("plan", "--check", "--", "true"), ("doctor",)):
        checked = agent(*verb, env=env, cwd=tmp_path)
        assert checked.returncode == 78
        assert f"FAIL AGENT_LOG_DIR: {folder} cannot be written" in checked.stdout
    done = agent("run", "--", "true", env=env, cwd=tmp_path)
    assert done.returncode == 78, done.stderr
    assert f"AGENT_LOG_DIR={folder} cannot be written" in done.stderr.splitlines()[-1]
    assert "bug" not in done.stderr


def test_a_run_folder_that_a_run_would_not_use(tmp_path: Path) -> None:
    """A link in place of the run's folder refuses the run: `plan` and `doctor` see it, too."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "no-head").symlink_to(tmp_path / "elsewhere")
    env = {"AGENT_LOG_DIR": str(tmp_path), "RAY_WORKER": "1", "AGENT_HEAD": "192.0.2.1"}
    env["AGENT_PORT"] = "21980"
    for verb in (("plan", "--check"), ("doctor",)):
        checked = agent(*verb, env=env, cwd=tmp_path)
        assert checked.returncode == 78, checked.stdout
        assert "FAIL AGENT_LOG_DIR: " in checked.stdout
        assert "is a symbolic link" in checked.stdout
    done = agent("run", env=env, cwd=tmp_path)
    assert done.returncode == 78, done.stderr
    assert "is a symbolic link" in done.stderr.splitlines()[-1]


def test_a_near_miss_explains_a_refusal() -> None:
    """If a mistyped variable explains why a worker has no head, it is an error, too."""
    done = agent("plan", env={"RAY_WORKER": "1", "HEAD_PODID": "abc"})
    assert done.returncode == 78
    assert "HEAD_PODID: got an unknown name; expected HEAD_POD_ID" in done.stderr


def test_status_without_a_head_is_69(tmp_path: Path) -> None:
    """Without a head and without a run folder: 69, with what was tried."""
    done = agent("status", env={"AGENT_PORT": "21999"}, cwd=tmp_path)
    assert done.returncode == 69
    assert "127.0.0.1:21999" in done.stderr
    assert "Traceback" not in done.stderr


def test_status_live_asks_this_nodes_own_agent() -> None:
    """A container's health check: 69 and the reason without an agent here, on any node."""
    done = agent("status", "--live", env={"AGENT_PORT": "21999", "AGENT_HEAD": "192.0.2.1"})
    assert done.returncode == 69
    assert "no agent runs here: 127.0.0.1:21999" in done.stderr


def test_a_name_without_an_encoding_is_printed_escaped() -> None:
    """A variable of another program with invalid bytes in its name breaks no output."""
    env = {"AGENT_caf\udce9": "1", "PYTHONIOENCODING": "utf-8:strict"}
    done = agent("plan", env=env)
    assert done.returncode == 0, done.stderr
    assert "AGENT_caf\\udce9" in done.stdout


def test_a_closed_pipe_is_no_error() -> None:
    """`pod-agent env --all | head -1` ends quietly."""
    pipe = f"{AGENT} env --all | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", pipe], env=CLEAN, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "nodes:\n"
    assert done.stderr == ""


def test_doctor_reports_a_taken_port() -> None:
    """`doctor` fails if another process has one of our ports, and names the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = agent("doctor", "--json", env={"AGENT_RAY_PORT": str(port)})
    assert done.returncode == 78
    ports = next(f for f in json.loads(done.stdout)["findings"] if f["check"] == "ports")
    assert (ports["level"], str(port) in ports["what"]) == ("fail", True)


def test_a_taken_agent_port_ends_with_78(tmp_path: Path) -> None:
    """A run that finds the agent's own port taken ends with 78, the port and a remedy."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"AGENT_PORT": str(port), "AGENT_LOG_DIR": str(tmp_path)}
        done = agent("run", "--", "true", env=env)
    assert done.returncode == 78, done.stderr
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr
    outcome = json.loads(next(tmp_path.glob("*-*/*/outcome.json")).read_text())
    assert outcome["kind"] == "refused"


def test_a_worker_that_finds_no_head_ends_with_69(tmp_path: Path) -> None:
    """A worker whose head never answers ends at its deadline, with the last evidence."""
    env = {
        "RAY_WORKER": "1",
        "AGENT_HEAD": "localhost.invalid",
        "AGENT_PORT": "21990",
        "AGENT_RAY_PORT": "21979",
        "AGENT_WAIT_HEAD": "1s",
        "AGENT_LOG_DIR": str(tmp_path),
    }

    done = agent("run", env=env)
    assert done.returncode == 69, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "localhost.invalid" in last
    assert "does not resolve" in last or "no answer from DNS" in last
