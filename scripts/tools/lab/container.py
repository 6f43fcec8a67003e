"""A container: a command as PID 1 in new namespaces, and further commands inside."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.lab.process import Running
from tools.lab.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.lab.launch import Spec

PROC = Path("/proc")
FREEZE_TIMEOUT = 10.0


@dataclass(frozen=True)
class ProcessInfo:
    """One process as the container sees it (pid, ppid), with its PID on the host (host_pid).

    `state` is the kernel's letter (R, S, D, T, Z for a zombie); `ppid` 0 means that it was started
    from outside; `cmdline` is the arguments joined by spaces, or [name] for a zombie.
    """

    pid: int
    ppid: int
    host_pid: int
    state: str
    name: str
    cmdline: str

    @property
    def zombie(self) -> bool:
        """True if it has exited and was not reaped."""
        return self.state == "Z"

    def environ(self) -> dict[str, str]:
        """Return the environment of its start."""
        raw = (PROC / str(self.host_pid) / "environ").read_bytes()
        return parse_environ(raw)


def parse_environ(raw: bytes) -> dict[str, str]:
    """Parse /proc/PID/environ into names and values."""
    words = raw.decode(errors="replace").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def parse_status(text: str) -> dict[str, str]:
    """Parse /proc/PID/status into its fields."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def processes_of(pidns: str) -> list[ProcessInfo]:
    """List the processes of a pid namespace (the text of its /proc/PID/ns/pid link), by pid."""
    entries = [entry for entry in PROC.iterdir() if entry.name.isdigit()]
    entries_read = [look for entry in entries if (look := _look(entry, pidns))]
    inner = {int(fields["Pid"]): int(fields["NSpid"].split()[-1]) for fields, _ in entries_read}
    infos = (
        ProcessInfo(
            pid=inner[int(fields["Pid"])],
            ppid=inner.get(int(fields["PPid"]), 0),
            host_pid=int(fields["Pid"]),
            state=fields["State"][0],
            name=fields["Name"],
            cmdline=cmdline or f"[{fields['Name']}]",
        )
        for fields, cmdline in entries_read
    )
    return sorted(infos, key=lambda info: info.pid)


def _look(entry: Path, pidns: str) -> tuple[dict[str, str], str] | None:
    """Read one /proc entry; None if it is of another namespace or exits meanwhile."""
    try:
        if str((entry / "ns/pid").readlink()) != pidns:
            return None
        return parse_status((entry / "status").read_text()), _cmdline(entry)
    except OSError:
        return None


def _cmdline(entry: Path) -> str:
    return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


class Container(Running):
    """A running container: its PID 1 (as Running), and further commands in it."""

    def __init__(self, spec: Spec, logs: Path, label: str) -> None:
        super().__init__(spec, logs, label)
        self._logs = logs
        self._pod = label
        self._numbers = itertools.count(1)
        self._spawned: list[Running] = []

    def processes(self) -> list[ProcessInfo]:
        """List everything in the container, PID 1 first, zombies included; empty after its end."""
        return processes_of(self.pidns) if self.running else []

    def spawn(
        self,
        argv: Sequence[str | os.PathLike[str]],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> Running:
        """Start a further command inside, in the background, like `docker exec -d`.

        Its environment is the container's, with env on top. PID 1 is not its parent.
        """
        spec: Spec = {
            "argv": [os.fspath(word) for word in argv],
            "env": {**self.spec["env"], **(env or {})},
            "cwd": os.fspath(cwd) if cwd is not None else self.spec["cwd"],
            "target": self.pid,
        }
        logs = self._logs.with_name(f"{self._logs.name}-exec{next(self._numbers)}")
        running = Running(spec, logs, self._pod)
        self._spawned.append(running)
        return running

    def exec(
        self,
        argv: Sequence[str | os.PathLike[str]],
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        cwd: str | os.PathLike[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a further command inside; after the timeout it and its process group are killed."""
        running = self.spawn(argv, env, cwd)
        try:
            code = running.wait(timeout)
        except TimeoutError:
            os.killpg(running.pid, signal.SIGKILL)
            raise
        finally:
            running.close()
            self._spawned.remove(running)
        words = running.spec["argv"]
        return subprocess.CompletedProcess(words, code, running.stdout(), running.stderr())

    def freeze(self) -> None:
        """Stop every process in it (SIGSTOP), like a hung machine; return when all are stopped."""

        def all_stopped() -> bool:
            moving = [info for info in self.processes() if info.state not in "TtZX"]
            self._signal_all(moving, signal.SIGSTOP)
            return not moving

        until(all_stopped, FREEZE_TIMEOUT, f"{self.label}: freeze")

    def thaw(self) -> None:
        """Continue every process in it (SIGCONT)."""
        self._signal_all(self.processes(), signal.SIGCONT)

    @staticmethod
    def _signal_all(infos: list[ProcessInfo], number: signal.Signals) -> None:
        for info in infos:
            with contextlib.suppress(ProcessLookupError):  # it exited by itself
                os.kill(info.host_pid, number)

    def close(self) -> None:
        """Kill it with everything spawned in it, and close the descriptors."""
        self.kill()
        for running in self._spawned:
            running.close()
        super().close()
