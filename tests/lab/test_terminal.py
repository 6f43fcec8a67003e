"""`status --watch` at a terminal, over a whole run."""

from __future__ import annotations

import json

import pyte
import pytest

from support.scenario import AGENT, BOOT, Cluster, await_true, ends

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


class Screen:
    """A terminal's screen after some output, with its scrollback."""

    def __init__(self, written: str) -> None:
        self._screen = pyte.HistoryScreen(COLUMNS, ROWS, history=5000)
        pyte.Stream(self._screen).feed(written.replace("\n", "\r\n"))  # a file read as text

    def screen(self) -> list[str]:
        """Return the visible lines."""
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def all(self) -> list[str]:
        """Return all lines, scrollback included."""
        former = (
            "".join(line[column].data for column in range(COLUMNS)).rstrip()
            for line in self._screen.history.top
        )
        return [*former, *self.screen()]


@pytest.mark.pods(2)
def test_the_view_follows_a_run(cluster: Cluster) -> None:
    """The view shows phases, waits, nodes and the job's lines; at the end, the verdict."""
    cluster.env |= {EACH: PREPARES, "AGENT_REWARD": "builtin"}
    head = cluster.agent(0, "sh", "-c", JOB)
    pod = cluster.pods[0]
    await_true("the agent's port", lambda: "starting Ray" in head.stderr(), BOOT)
    command = ["python3", "-c", ON_A_TERMINAL, AGENT, "status", "--watch"]
    watch = pod.start(command, env={**cluster.env, "TERM": "xterm-256color"})
    cluster.started.append(watch)

    def screen() -> list[str]:
        return Screen(watch.stdout()).screen()

    def shows(text: str) -> bool:
        return any(text in line for line in screen())

    await_true("the view", lambda: shows("Starting: 1 of 2 nodes have joined."), BOOT)
    worker = cluster.agent(1, "sh", "-c", JOB)
    progress = f"{EACH}: 40% of it"  # from the worker's reports and from the head's own step
    await_true("progress", lambda: any(progress in line for line in screen()), BOOT)
    for each in cluster.pods:
        (each.tmp / "prepared").touch()
    await_true("the job's lines", lambda: any("line 6 of the job" in x for x in screen()), BOOT)
    await_true("the worker", lambda: shows("nodes     2 fine"), BOOT)
    asked = head.exec([AGENT, "status", "--json"], env=cluster.env, timeout=30)
    (reward,) = json.loads(asked.stdout)["services"]
    assert sum(reward["latency"]["counts"]) >= 1, reward

    (pod.tmp / "go").touch()
    assert ends([head, worker]) == [0, 0]
    assert watch.wait(30) == 0
    assert any("the job succeeded" in line for line in Screen(watch.stdout()).all())
    assert "half and half" in head.stdout()
    assert "\x1b" not in head.stdout()
