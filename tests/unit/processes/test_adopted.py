"""Adoption of running processes, by PID and start time; orphans are ended and reaped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from msgspec.structs import replace

from agent.base import ends, times
from agent.node.read import taken_ports
from agent.plan.plan import RAY
from agent.port.node_network import bind
from agent.processes import process
from agent.processes.process import Child, adopt, kill, kill_marked, start_time
from agent.record.node_record import NodeRecord, folder_of, own_record, process_of
from agent.record.run_folder import RunFolder
from agent.run.effects import REAL
from agent.run.make_ready import prepare_machine
from agent.run.takeover import SurvivingProcesses, find_surviving_processes
from support.conditions import is_so, lives
from support.fake_runs import run_of
from support.free_ports import free_port
from support.worlds import plan_of

pytestmark = [pytest.mark.processes, pytest.mark.anyio]

LOG = Path(os.devnull)


def orphan(*argv: str) -> int:
    """Start a session that is not our child; return its leader's PID."""
    line = 'setsid "$@" >/dev/null 2>&1 & echo $!'
    helper = subprocess.run(
        ["sh", "-c", line, "sh", *argv], capture_output=True, text=True, check=True
    )
    return int(helper.stdout)


def taken(pid: int) -> Child:
    """Adopt a process."""
    child = adopt("sleep", pid, start_time(pid), lambda: LOG)
    assert child is not None
    return child


async def test_its_end_is_noticed_and_its_session_ended() -> None:
    """As with a child process, none of its session is left."""
    pid = orphan("sh", "-c", "sleep 60 & exec sleep 61")
    child = taken(pid)
    await is_so(lambda: bool(psutil.Process(pid).children()))
    (other,) = psutil.Process(pid).children()
    os.kill(pid, 9)
    with anyio.fail_after(20):
        await child.wait()
    assert not child.running
    await is_so(lambda: not lives(other.pid))


async def test_it_is_stopped() -> None:
    """TERM, the grace, and KILL for a process that ignores TERM."""
    pid = orphan("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    child = taken(pid)
    with anyio.fail_after(20):
        await child.stop(0.3)
        assert not lives(pid)


PARENT = """
import os, sys, anyio
from pathlib import Path
from agent.processes.process import Child
folder = Path(sys.argv[1])
async def scenario():
    wait = f"while [ ! -e {folder}/go ]; do sleep 0.05; done"
    script = f"echo first; {wait}; echo second; sleep 1000"
    log = folder / "log"
    child = await Child.start("child", ["sh", "-c", script], dict(PATH=os.defpath), lambda: log)
    while not log.exists() or "first" not in log.read_text():
        await anyio.sleep(0.01)
    print(child.pid, flush=True)
    os._exit(0)
anyio.run(scenario)
"""


def test_a_child_outlives_who_reads_its_output(tmp_path: Path) -> None:
    """After its agent is killed the child continues to write, and another agent reads."""
    argv = [sys.executable, "-c", PARENT, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    pid = int(done.stdout)

    async def scenario() -> None:
        child = adopt("child", pid, start_time(pid), lambda: tmp_path / "log")
        assert child is not None
        (tmp_path / "go").touch()
        await is_so(lambda: "second" in child.tail())
        await child.stop(0.0)

    anyio.run(scenario)
    assert (tmp_path / "log").read_text().split() == ["first", "second"]


async def test_another_process_of_that_pid_is_left_alone() -> None:
    """A PID without its start time identifies no process."""
    pid = orphan("sleep", "60")
    assert adopt("sleep", pid, start_time(pid) - 1, lambda: LOG) is None
    assert adopt("sleep", 2**22 + 1, 1, lambda: LOG) is None
    assert lives(pid)
    os.kill(pid, 9)


def test_ranks_of_a_torchrun_that_is_gone_are_ended() -> None:
    """Each rank has its own session below our parent; its torchrun was killed with the agent."""
    rank, other = (
        orphan("env", f"TORCHELASTIC_RUN_ID={run}-1", "sleep", "60") for run in ("run-1", "run-2")
    )
    ranks = [*map(psutil.Process, (rank, other))]
    processes = REAL.processes._replace(descendants=lambda: ranks)
    anyio.run(is_so, lambda: all(psutil.Process(p).name() == "sleep" for p in (rank, other)))
    torchrun = subprocess.Popen(["sleep", "60"])
    record = record_with(torchrun=torchrun.pid)
    torchrun.kill()
    torchrun.wait()
    try:
        SurvivingProcesses(record, processes).end_useless((RAY,))
        anyio.run(is_so, lambda: not lives(rank))
        assert lives(other)
    finally:
        os.kill(other, 9)


def record_with(**pids: int) -> NodeRecord:
    """Return the record of an ended agent that started these."""
    own = own_record("pod0", "run-1")
    started = tuple(
        p for name, pid in pids.items() if (p := process_of(name.replace("_", " "), pid))
    )
    return NodeRecord("pod0", "run-1", own.place, own.agent, started, passed_on=9, done=("a",))


def test_ports_of_a_killed_agents_ray_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exiting process frees its ports last; a port that stays taken is refused."""
    monkeypatch.setattr(times, "DESCENDANTS_EXIT", 0.5)
    plan = plan_of({"AGENT_PORT": str(free_port())})
    left = SurvivingProcesses(record_with())
    taken = bind("127.0.0.1", plan.ports.node_manager)

    def prepared(former: SurvivingProcesses | None) -> str:
        run: Any = run_of(plan)
        run.surviving = former
        machine = REAL.machine._replace(
            stale_ray=lambda _folder, *, everything: [],  # noqa: ARG005 - as the real one
            raise_open_files=lambda: None,
        )
        run.effects = REAL._replace(machine=machine)
        end = anyio.run(prepare_machine, run)
        return "" if end is None else end.reason

    assert str(plan.ports.node_manager) in prepared(None)
    assert str(plan.ports.node_manager) in prepared(left)
    freed = threading.Timer(0.2, taken.close)
    freed.start()
    assert str(plan.ports.node_manager) not in prepared(left)
    freed.join()


@pytest.mark.parametrize(
    ("ray", "kept"),
    [("lives", [RAY, "reward"]), ("is gone", []), ("never was", ["reward"])],
)
async def test_only_useful_processes_are_adopted(ray: str, kept: list[str]) -> None:
    """Ray and services are adopted once; a bridge is stopped, and everything of a lost Ray."""
    names = ("reward", "ray_bridge", *(() if ray == "never was" else ("ray_start",)))
    pids = {name: orphan("sleep", "60") for name in names}
    record = record_with(**pids)
    if ray == "is gone":
        os.kill(pids["ray_start"], 9)
        await is_so(lambda: not lives(pids["ray_start"]))
    left = SurvivingProcesses(record)
    left.end_useless((RAY, "reward"))
    assert left.has_ray is (ray == "lives")
    assert left.running.keys() == {*kept}
    all_names = (RAY, "reward", "ray bridge")
    assert [name for name in all_names if left.adopt(name, lambda: LOG)] == kept
    assert left.running == {}
    assert left.adopt("reward", lambda: LOG) is None
    await is_so(lambda: not lives(pids["ray_bridge"]))
    await is_so(lambda: lives(pids["reward"]) is bool(kept))
    for name in kept:
        os.kill(pids[name.replace(" ", "_")], 9)


def test_a_record_goes_on_in_the_next(tmp_path: Path) -> None:
    """Adopted processes and finished steps are kept; the killed agent's PID identifies the run."""
    former = record_with()
    folder = tmp_path / "run-1" / "pod0"
    folder.mkdir(parents=True)
    assert former.write(folder / "node.json") is None
    assert NodeRecord.read(folder / "node.json") == former
    new = own_record("pod0", "").continuing(former)
    assert (new.run_id, new.passed_on, new.done) == ("run-1", 9, ("a",))
    left = replace(former, ending=ends.JOB_SUCCEEDED.outcome(before=""))
    assert own_record("pod0", "").continuing(left) == new  # the next one decides its own end
    killed = former.agent.pid
    assert folder_of(tmp_path, "pod0", (killed,)) == tmp_path / "run-1" / "pod0"
    assert folder_of(tmp_path, "pod0", (killed + 1, killed))  # the last agent left no record
    assert folder_of(tmp_path, "pod0", (killed + 1,)) is None
    assert folder_of(tmp_path, "pod1", (killed,)) is None


@pytest.mark.parametrize(("before", "found"), [(0, True), (1, True), (2, False)])
def test_the_record_of_an_earlier_agent_serves_where_the_last_left_none(
    tmp_path: Path, before: int, *, found: bool
) -> None:
    """An agent killed while the disk was full could not record which agent it replaced."""
    first = RunFolder(tmp_path, "run-1", "pod0", link=False)
    record = record_with()
    assert record.write(first.path / "node.json") is None
    first.close()
    killed = (record.agent.pid + 1,) * before + ((record.agent.pid,) if found else ())
    again = RunFolder(tmp_path, "run-1", "pod0", link=False)
    processes = REAL.processes._replace(descendants=list)
    left = find_surviving_processes(again, (RAY,), killed, processes)
    again.close()
    assert (left is not None) is found


def test_who_is_ended_holds_no_port_any_more() -> None:
    """A process releases its ports after the entries in /proc that identify it."""
    line = "import socket, time; kept = bytearray(400 << 20); own = socket.create_server(('', 0)); "
    line += "print(own.getsockname()[1], flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", line], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    port = int(child.stdout.readline())
    assert taken_ports([port])
    process.kill_tree(child.pid)
    assert not taken_ports([port])
    child.communicate()


def test_what_a_run_that_cannot_be_continued_left_is_ended(tmp_path: Path) -> None:
    """Without a readable record its job would run beside the next one; another pod's is left."""
    pid, other = (orphan("sleep", "60") for _ in range(2))
    processes = REAL.processes._replace(descendants=lambda: [psutil.Process(pid)])
    folder = RunFolder(tmp_path, "run-2", "pod0", link=False)
    assert find_surviving_processes(folder, (RAY,), (), processes) is None
    assert lives(pid)
    assert find_surviving_processes(folder, (RAY,), (os.getpid(),), processes) is None
    assert (lives(pid), lives(other)) == (False, True)
    os.kill(other, 9)
    folder.close()


# --- orphans ----------------------------------------------------------------------------------

ADOPTION = """
import os, subprocess, sys, time
import anyio, psutil
from agent.processes import parent, process

parent.become_subreaper()
# A shell that ends at once leaves two: one of another session, and one that ends by itself.
subprocess.run(["sh", "-c", "setsid sleep 1000 & (sleep 0.1; exit 3) &"], check=True)
adopted = psutil.Process().children()
assert len(adopted) == 2, adopted
assert anyio.run(process.stop_descendants, 20.0) == []
assert psutil.Process().children() == []
"""


def test_orphans_are_ended_and_reaped() -> None:
    """Whatever their session, none of them is left, not even as a zombie."""
    done = subprocess.run([sys.executable, "-c", ADOPTION], check=False, timeout=60)
    assert done.returncode == 0


def test_a_signal_never_reaches_another_of_the_same_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    """PID and start time identify a process; another process with the PID gets no signal."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        meant, other = psutil.Process(child.pid), psutil.Process(child.pid)
        # A former owner of this PID, in psutil's form.
        monkeypatch.setattr(other, "_ident", (other.pid, meant.create_time() - 60))
        assert kill([other]) == []
        with pytest.raises(psutil.NoSuchProcess):
            other.send_signal(signal.SIGKILL)
        assert child.poll() is None
        assert kill([meant]) == [f"sleep (pid {child.pid})"]
        assert child.wait(20) == -signal.SIGKILL


def test_the_dead_are_not_signaled() -> None:
    """A reaped process is reported as gone."""
    with subprocess.Popen(["true"]) as child:
        process = psutil.Process(child.pid)
    assert kill([process]) == []
    assert not os.path.exists(f"/proc/{child.pid}")  # noqa: PTH110 - a name, not a file


def test_what_carries_a_mark_is_killed_and_nothing_else() -> None:
    """A rank without its torchrun is identified by its rendezvous variables."""
    environ = {**os.environ, "RUN_ID": "run-1"}
    started = [
        subprocess.Popen(["sleep", "1000"], env={**environ, "RUN_ID": mark}, start_new_session=True)
        for mark in ("run-1", "run-2")
    ]
    # Linux shows a program's variables only some moments after its start.
    anyio.run(is_so, lambda: all(psutil.Process(one.pid).environ() for one in started))
    try:
        (name,) = kill_marked("RUN_ID", "run-1".__eq__)
        assert name == f"sleep (pid {started[0].pid})"
        assert started[0].wait(10) == -signal.SIGKILL
        assert started[1].poll() is None
        assert kill_marked("RUN_ID", "run-1".__eq__) == []
    finally:
        for process in started:
            process.kill()
            process.wait()
