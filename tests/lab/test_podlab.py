"""The pod lab itself: what the scenarios rely on, with real namespaces and without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tools.lab as podlab
from support.scenario import lookup
from tools.lab import leftovers
from tools.lab.network import ip, mount_points
from tools.lab.waiting import until

if TYPE_CHECKING:
    from tools.lab import Container, Lab

CLI = Path(__file__).parents[2] / "scripts/lab"
IDLE = ("sleep", "infinity")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 3"], 3),
        ([sys.executable, "-c", "raise SystemExit(7)"], 7),
        (["no-such-command"], 127),
        (["/etc/hosts"], 126),
    ],
)
def test_exit_codes(lab: Lab, argv: list[str], code: int) -> None:
    """PID 1's exit code is returned as a shell would; so is that of a further command."""
    assert lab.pods[0].start(argv).wait(10) == code
    idle = lab.pods[0].start(IDLE)
    assert idle.exec(argv).returncode == code
    idle.kill()


def test_killed_by_signal(idle: list[Container]) -> None:
    """A process killed by signal n returns 128+n, PID 1 included."""
    assert idle[0].exec(["sh", "-c", "kill -TERM $$"]).returncode == 143
    idle[0].signal(signal.SIGKILL)
    assert idle[0].wait(5) == 137
    assert idle[0].ended_at is not None
    assert 0 <= time.monotonic() - idle[0].ended_at < 1


def test_pid_1_and_term(lab: Lab) -> None:
    """PID 1 receives TERM only if it has a handler, as in any container."""
    deaf = lab.pods[0].start(IDLE)
    deaf.signal(signal.SIGTERM)
    trap = "trap 'echo got TERM; exit 5' TERM; echo pid $$; while :; do sleep 0.02; done"
    container = lab.pods[0].start(["sh", "-c", trap])
    container.wait_for(r"^pid 1$", stream="stdout")
    container.signal(signal.SIGTERM)
    assert container.wait(5) == 5
    assert container.stdout().endswith("got TERM\n")
    assert deaf.running
    deaf.kill()


def test_kill_takes_grandchildren_along(lab: Lab) -> None:
    """`processes` lists every session; after `kill` no process remains."""
    script = "setsid sh -c 'sleep 971 & sleep 972' & sleep 0.01 & exec sleep 973"
    container = lab.pods[0].start(["sh", "-c", script])

    def complete() -> bool:
        lines = {info.cmdline for info in container.processes()}
        zombies = [info for info in container.processes() if info.zombie]
        return {"sleep 971", "sleep 972", "sleep 973"} <= lines and bool(zombies)

    until(complete, 5, "three sleeps and a zombie")
    infos = container.processes()
    assert (infos[0].pid, infos[0].ppid, infos[0].cmdline) == (1, 0, "sleep 973")
    container.kill()
    assert container.processes() == []
    assert not [info for info in infos if Path(f"/proc/{info.host_pid}").exists()]


def test_exec_and_spawn(idle: list[Container]) -> None:
    """Further commands run inside, in the foreground or background, and end with the container."""
    done = idle[0].exec(["sh", "-c", "echo $A; hostname >&2; pwd"], env={"A": "b"}, cwd="/tmp")
    assert (done.stdout, done.stderr) == ("b\n/tmp\n", "pod0\n")
    with pytest.raises(TimeoutError, match=r"still running after 0.3 s(.|\n)*words"):
        idle[0].exec(["sh", "-c", "echo words; sleep 981; true"], timeout=0.3)
    running = idle[0].spawn(["sh", "-c", "echo up; sleep 982; true"])
    running.wait_for("up")

    def only_second() -> bool:
        lines = [info.cmdline for info in idle[0].processes()]
        return "sleep 982" in lines and "sleep 981" not in lines

    until(only_second, 5, "the first command's end with its child, the second's child")
    idle[0].kill()
    assert running.wait(5) == 137


def test_wait_for(lab: Lab) -> None:
    """A match is returned; a container that exits without one fails at once, with log tails."""
    container = lab.pods[0].start(["sh", "-c", "echo port 6379; echo broken >&2; exit 4"])
    assert container.wait_for(r"port (\d+)")[1] == "6379"
    with pytest.raises(podlab.LabError, match=r"ended with 4(.|\n)*broken"):
        container.wait_for("ready", timeout=30)
    idle = lab.pods[0].start(IDLE)
    with pytest.raises(TimeoutError, match="ready"):
        idle.wait_for("ready", timeout=0.1)
    idle.kill()


def test_freeze_and_thaw(lab: Lab, idle: list[Container]) -> None:
    """All processes of a frozen pod stop; they can be resumed or killed."""
    ticks = idle[0].spawn(["sh", "-c", "while :; do echo tick; sleep 0.01; done"])
    ticks.wait_for("tick")
    lab.pods[0].freeze()
    assert {info.state for info in idle[0].processes()} == {"T"}
    lab.pods[0].thaw()
    assert "T" not in {info.state for info in idle[0].processes()}
    lab.pods[0].freeze()
    idle[0].kill()


def test_clean_environment(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container gets PATH, HOME, LANG and the test's variables; default signal handling."""
    for name in ("CI", "AGENT_JOB", "RAY_ADDRESS", "RUNPOD_POD_ID"):
        monkeypatch.setenv(name, "leak")
    container = lab.pods[0].start(["env"], env={"A": "b"})
    assert container.wait(5) == 0
    names = dict(line.split("=", 1) for line in container.stdout().splitlines())
    assert set(names) == {"PATH", "HOME", "LANG", "A"}
    status = lab.pods[0].start(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
    assert status.wait(5) == 0
    assert set(status.stdout().split()) == {"SigBlk:", "SigIgn:", "0" * 16}


def test_private_folders(lab: Lab, tmp_path: Path) -> None:
    """/tmp and $HOME belong to the pod and outlast a container; /dev/shm and /run are new."""
    first, second, _ = lab.pods
    write = "echo kept | tee /tmp/note $HOME/note /dev/shm/note /run/note"
    assert first.start(["sh", "-c", write]).wait(5) == 0
    again = first.start(["sh", "-c", "cat /tmp/note $HOME/note; ls /dev/shm /run"])
    assert again.wait(5) == 0
    assert again.stdout().split() == ["kept", "kept", "/dev/shm:", "/run:", "home"]
    assert (first.tmp / "note").read_text() == (first.home / "note").read_text() == "kept\n"
    other = second.start(["sh", "-c", f"ls -A /tmp; ls -d {tmp_path} {lab.folder}"])
    assert other.wait(5) != 0
    # a checkout inside /tmp is visible there; no other file of the machine is
    assert not {"note", tmp_path.parts[2], lab.folder.name} & set(other.stdout().split())
    size = first.start(["df", "--output=size", "/dev/shm"], shm="64m")
    assert size.wait(5) == 0
    assert size.stdout().split()[-1] == "65536"
    assert not Path("/dev/shm/note").exists()


def test_shared_path(lab: Lab, tmp_path: Path) -> None:
    """A shared path under /tmp is the same inside, read-write; DNS can start empty."""
    with podlab.Lab(names=["abc123"], unpublished=["abc123"], share=[tmp_path]) as other:
        assert other.id != lab.id
        pod = other["abc123"]
        container = pod.start(["sh", "-c", "hostname > it; exec sleep infinity"], cwd=tmp_path)
        assert lookup(container, "abc123.runpod.internal") == ""
        pod.publish()
        assert lookup(container, "abc123.runpod.internal") == pod.ip
        assert (tmp_path / "it").read_text() == "abc123\n"
    assert (tmp_path / "it").exists()


def test_nothing_is_left(lab: Lab) -> None:
    """Closing a lab, even by an exception, removes everything; making it was quick."""
    before = mount_points()
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), podlab.Lab(pods=3) as other:  # noqa: PT012 - a with block is the point
        took = time.monotonic() - began
        containers = [pod.start(["sh", "-c", "sleep 991 & sleep 992"]) for pod in other]
        assert other.id != lab.id
        # 5 namespaces, 3 folders in /etc, 1 temporary folder
        assert len(leftovers.is_left(other.id)) == 9
        _ = 1 / 0
    assert took < 1.5
    assert [container.poll() for container in containers] == [137] * 3
    assert leftovers.is_left(other.id) == []
    assert mount_points() == before


def start_cli(*words: str) -> subprocess.Popen[str]:
    """Start scripts/lab run, and wait for the first line of the pods."""
    process = subprocess.Popen(
        [sys.executable, CLI, "run", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().endswith("| up\n")
    return process


def test_creator_killed(lab: Lab) -> None:
    """The creator is killed: the lab's processes end at once; clean() removes the rest."""
    process = start_cli("--pods", "1", "--", "sh", "-c", "echo up; sleep 993")
    name = f"podlab-{process.pid}-1"
    netns = f"{name}-pod-pod0"
    assert name not in leftovers.clean()
    process.kill()
    process.communicate(timeout=10)
    until(lambda: not ip("netns", "pids", netns), 5, "end of the pod's processes")
    assert name in leftovers.clean()
    assert leftovers.is_left(name) == []
    assert leftovers.is_left(lab.id) != []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_stopped(lab: Lab, number: signal.Signals) -> None:
    """Ctrl-C or TERM is sent to every pod as TERM; the exit code is the first pod's."""
    assert lab.pods
    script = "trap 'echo got TERM; exit 9' TERM; echo up; while :; do sleep 0.02; done"
    process = start_cli("--pods", "2", "--", "sh", "-c", script)
    assert process.stdout is not None
    first, second = "pod0", process.stdout.readline().split()[0]
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 9, err
    assert {first, second} == {"pod0", "pod1"}
    assert sorted(out.splitlines()) == ["pod0 | got TERM", "pod1 | got TERM"]
    assert leftovers.is_left(f"podlab-{process.pid}-1") == []


def test_the_last_pod_is_killed_and_comes_back(lab: Lab) -> None:
    """--kill waits for a line of the first pod, kills the last one, and starts it again."""
    assert lab.pods
    process = start_cli("--pods", "2", "--kill", "^up$", "--", "sh", "-c", "echo up; sleep 4")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    steps = ("is killed", "ended with 137", "is started again", "ended with 0")
    places = [err.index(f"pod1 {step}") for step in steps]
    assert places == sorted(places)
    assert leftovers.is_left(f"podlab-{process.pid}-1") == []


def test_a_container_in_an_image_sees_only_the_image(lab: Lab) -> None:
    """The image is its root, also for later commands; its writes stay in the container."""
    written = Path(f"/written-{os.getpid()}")  # the machine's own files serve as the image
    first, second = (lab.pods[i].start(IDLE, image=Path("/"), cwd="/") for i in (0, 1))
    first.exec(["sh", "-c", f"echo one >{written}; echo two >/tmp/shared"])
    assert first.exec(["cat", written]).stdout == "one\n"
    assert second.exec(["cat", written]).returncode != 0
    assert not written.exists()
    assert (lab.pods[0].tmp / "shared").read_text() == "two\n"
    assert first.exec(["hostname"]).stdout.strip() == lab.pods[0].name
    assert "nameserver 10.77." in first.exec(["cat", "/etc/resolv.conf"]).stdout
    assert [info.pid for info in first.processes()] == [1]
    for container in (first, second):
        container.kill()
