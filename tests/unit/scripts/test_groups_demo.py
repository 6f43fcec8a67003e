"""The demo of groups without its pods: who is killed, and the last line."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tools.demo.__main__ import command_line
from tools.demo.killer import Killer
from tools.lab.cli import make_parser
from tools.lab.container import Container, ProcessInfo

if TYPE_CHECKING:
    import pytest

ENGINE = "/venv/bin/python /venv/bin/pod-agent rehearsal-engine --host 10.77.0.11 --port {}"


def process(pid: int, cmdline: str, state: str = "S") -> ProcessInfo:
    """Return a process of a pod."""
    return ProcessInfo(pid, 1, 1000 + pid, state, "python", cmdline)


class Pod:
    """A container with these processes."""

    def __init__(self, name: str, *processes: ProcessInfo) -> None:
        self.label = f"{name}: pod-agent"
        self._processes = processes

    def processes(self) -> list[ProcessInfo]:
        """Return its processes."""
        return [*self._processes]


def test_engines_are_killed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at each interval while the trainer runs; the shell around one is no engine."""
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, _number: killed.append(pid))
    first = Pod("pod1", process(1, "pod-agent"), process(7, ENGINE.format(8100)))
    shell = process(8, f"/bin/sh -c exec something; {ENGINE.format(8100)}")
    gone = process(10, ENGINE.format(8102), "Z")
    second = Pod("pod2", shell, process(9, ENGINE.format(8101)), gone)
    said: list[str] = []
    containers = [cast("Container", pod) for pod in (first, second)]
    killer = Killer(containers, 10.0, said.append)
    for now in range(45):
        killer.step(now, is_training=now >= 5)
    assert killed == [1007, 1009, 1007]
    assert killer.kills == 3
    assert said[0] == "engine at port 8100 of pod1 (pid 7) is killed"


def test_its_command_line_is_one_of_the_lab() -> None:
    """Three pods, and the trainer's command behind the agent's."""
    args = make_parser().parse_args(command_line(40))
    assert args.pods == 3
    assert args.command[1:4] == ["run", "--", args.command[0]]
    assert "{addresses:engine|space}" in args.command
