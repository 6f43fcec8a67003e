"""At a terminal: the live view below what the job writes, over a whole run."""

from __future__ import annotations

import json

import pyte
import pytest

from scenario import AGENT, BOOT, Cluster, await_true, ends

ROWS, COLUMNS = 60, 110
ON_A_TERMINAL = f"""
import fcntl, os, pty, struct, sys, termios
def read(terminal):
    if not os.environ.get("SIZED"):
        os.environ["SIZED"] = "1"
        size = struct.pack("HHHH", {ROWS}, {COLUMNS}, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
    return os.read(terminal, 65536)
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:], read)))
"""
JOB = (
    "for i in 1 2 3 4 5 6; do echo line $i of the job; sleep 1; done; "
    "printf half; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo ' and half'"
)
EACH = "AGENT_PREPARE_EACH"
PREPARES = "echo 40% of it; while [ ! -e /tmp/prepared ]; do sleep 0.1; done"


class Shown:
    """What a terminal has shown of some bytes."""

    def __init__(self, written: str) -> None:
        self._screen = pyte.HistoryScreen(COLUMNS, ROWS, history=5000)
        pyte.Stream(self._screen).feed(written.replace("\n", "\r\n"))  # a file read as text

    def screen(self) -> list[str]:
        """Return what it shows now."""
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def all(self) -> list[str]:
        """Return that and what scrolled off at the top."""
        former = (
            "".join(line[column].data for column in range(COLUMNS)).rstrip()
            for line in self._screen.history.top
        )
        return [*former, *self.screen()]


@pytest.mark.slow
@pytest.mark.pods(2)
def test_the_view_stays_below_the_job_s_lines(cluster: Cluster) -> None:
    """The log and the job's lines scroll by whole; phases, nodes and waits stay at the foot."""
    cluster.env |= {EACH: PREPARES, "AGENT_REWARD": "builtin"}
    command = ["python3", "-c", ON_A_TERMINAL, AGENT, "run", "--", "sh", "-c", JOB]
    pod = cluster.pods[0]
    own = {"RUNPOD_POD_ID": pod.name, "TERM": "xterm-256color"}
    head = pod.start(command, env={**cluster.env, **own})
    cluster.started.append(head)
    await_true("the view", lambda: "─" * 50 in head.stdout(), BOOT)
    booting = Shown(head.stdout()).screen()
    assert any(line.startswith("workers") and "[" in line for line in booting), booting
    worker = cluster.agent(1, "sh", "-c", JOB)
    said = f"{EACH}: 40% of it"  # told by the worker with its beats, and by the head's own steps
    await_true("progress", lambda: any(said in x for x in Shown(head.stdout()).screen()), BOOT)
    shown = Shown(head.stdout()).screen()
    assert any(line.startswith(f"{EACH} ") and "40% of it" in line for line in shown), shown
    for each in cluster.pods:
        (each.tmp / "prepared").touch()
    await_true("half a line", lambda: "half" in Shown(head.stdout()).screen(), BOOT)
    running = Shown(head.stdout()).screen()
    at = running.index("half")
    assert running[at - 6 : at] == [f"line {number} of the job" for number in range(1, 7)]
    assert "nodes: 1 worker: 1 joined" in running[at:], running
    asked = head.exec([AGENT, "status", "--json"], env=cluster.env, timeout=30)
    (reward,) = json.loads(asked.stdout)["services"]
    assert sum(reward["latency"]["counts"]) >= 1, reward

    (pod.tmp / "go").touch()
    assert ends([head, worker]) == [0, 0]
    last = Shown(head.stdout())
    assert "half and half" in last.all()
    assert last.screen()[-1].endswith("done: the job succeeded (exit code 0)")
    assert not any(line.startswith("─") for line in last.all())
    assert not head.stderr()  # all of it is on the terminal
