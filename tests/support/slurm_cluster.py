"""Slurm's real daemons in the pods of a lab: slurmctld on the first, slurmd on each."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from agent.cli.start_files.agent_file import ONE_FILE, AgentFile
from agent.cli.start_files.platform_files import SERVICES
from agent.cli.start_files.recipe_check import with_groups
from agent.cli.start_files.request import OWN_COMMAND, Request
from agent.cli.start_files.slurm_files import slurm
from support.scenario import AGENT, BOOT, await_true, read_outcome

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    import tools.lab as podlab
    from tools.lab import Container, Pod, ProcessInfo
    from tools.lab.process import Running

EXAMPLE = "the start file for Slurm"
PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
}
INIT = ("bash", "-c", "sleep infinity & wait")  # a PID 1 that reaps, like a machine's init
TOKEN = "a-secret-that-all-nodes-share"  # noqa: S105 - of these nodes alone
STATE = "/tmp/slurm"  # in each node's private /tmp
READY = 60.0
"""Maximum time until a daemon is ready, on a busy machine."""
CONF = """\
ClusterName=lab
SlurmctldHost={head}({head_ip})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={state}/munge.socket
StateSaveLocation={state}/ctld
SlurmdSpoolDir={state}/spool
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
KillWait=30
{more}
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def need_slurm() -> None:
    """Skip where Slurm is not installed, with the reason; in CI, fail."""
    absent = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if not absent:
        return
    reason = f"Slurm is not installed here (Debian packages: {' '.join(absent)})"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class SlurmCluster:
    """A Slurm cluster over all pods of a lab, with a shared folder."""

    def __init__(self, lab: podlab.Lab, shared: Path, more: str = "") -> None:
        self._lab = lab
        self._shared = shared
        self._more = more
        self._daemons: list[Running] = []
        self.nodes: dict[str, Container] = {}
        self.jobs: list[Job] = []

    def up(self) -> None:
        """Start the daemons; return when every node accepts jobs."""
        self._configure()
        for pod in self._lab.pods:
            (pod.tmp / "slurm").mkdir(mode=0o755)
            token = pod.home / ".config" / "pod-agent" / "token"
            token.parent.mkdir(parents=True)
            token.write_text(TOKEN)
            self._boot(pod)
        self._daemon(next(iter(self.nodes)), "slurmctld", "-D")
        for name in self.nodes:
            self._daemon(name, "slurmd", "-D", "-N", name)
        ready = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
        count = f"{len(self.nodes)}\n"
        await_true("all nodes are idle", lambda: self.run(*ready).stdout == count, READY)

    def bring_back(self, name: str) -> None:
        """Boot a killed node again, with its daemon."""
        self._boot(next(pod for pod in self._lab.pods if pod.name == name))
        self._daemon(name, "slurmd", "-D", "-N", name)

    def _boot(self, pod: Pod) -> None:
        """Start a machine with everything but slurmd."""
        socket = pod.tmp / "slurm" / "munge.socket"
        socket.unlink(missing_ok=True)  # left by a previous boot
        env = {"SLURM_CONF": str(self._shared / "slurm.conf")}
        self.nodes[pod.name] = pod.start(INIT, env=env, cwd=self._shared)
        self._daemon(pod.name, *self._munged())
        await_true("munged listens", socket.exists, READY)

    def _configure(self) -> None:
        key = self._shared / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o600)
        nodes = "\n".join(
            f"NodeName={pod.name} NodeAddr={pod.ip} CPUs=4 RealMemory=8000"
            for pod in self._lab.pods
        )
        head = self._lab.pods[0]
        text = CONF.format(
            head=head.name, head_ip=head.ip, state=STATE, nodes=nodes, more=self._more
        )
        (self._shared / "slurm.conf").write_text(text)

    def _munged(self) -> list[str]:
        places = {
            "socket": "munge.socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        options = [f"--{option}={STATE}/{file}" for option, file in places.items()]
        return ["munged", "--foreground", f"--key-file={self._shared}/munge.key", *options]

    def _daemon(self, node: str, *argv: str) -> None:
        self._daemons.append(self.nodes[node].spawn(argv))

    def report(self) -> str:
        """Return the daemons' last log lines, for a failed test."""
        return "\n".join(f"{daemon}{daemon.tail()}" for daemon in self._daemons)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command on the first node, in the shared folder."""
        return next(iter(self.nodes.values())).exec(argv, cwd=self._shared)

    def submit(self, name: str, job: str, *options: str, services: Path | None = None) -> Job:
        """Submit what `init` writes for a command; `job` is shell text. One line is replaced.

        `services` is a file for AGENT_SERVICES, whose groups become components of the job.
        """
        asked = Request(
            job=OWN_COMMAND,
            nodes=len(self.nodes),
            gpus=0,
            agent=AgentFile("one file", ONE_FILE, "it is here."),
            variant="none",
            command=tuple(shlex.split(job)),
            python=sys.executable,
        )
        made = slurm(with_groups(asked, services))
        for file in made.files:
            if file.name == SERVICES:
                (self._shared / file.name).write_bytes(file.content)
        text = made.files[0].text
        (before,) = [line for line in text.splitlines() if line.startswith("agent=")]
        print(f"replaced in {EXAMPLE}: {before}")  # the lab runs the checkout, not the one file
        text = text.replace(before, f"agent={AGENT}")
        script = self._shared / f"{name}.sbatch"
        script.write_text(text)
        output = self._shared / f"{name}.out"
        argv = ["sbatch", "--parsable", "--wait", f"--output={output}", *options, str(script)]
        sbatch = next(iter(self.nodes.values())).spawn(argv, cwd=self._shared)
        number = sbatch.wait_for(r"^(\d+)$", "stdout", READY)[1]
        self.jobs.append(Job(self, number, output, sbatch))
        return self.jobs[-1]

    def outcome(self, run: str, node: str, file: str = "outcome.json") -> dict[str, Any]:
        """Read a node's outcome.json of a run, or that of an earlier run of the job."""
        return read_outcome(self._shared / "agent-logs" / run / node, file)


@dataclass(frozen=True)
class Job:
    """A job of a cluster, and the command that submitted it."""

    cluster: SlurmCluster
    id: str
    output: Path
    sbatch: Running

    def text(self) -> str:
        """Return the job's output so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def fields(self) -> dict[str, str]:
        """Return the fields of `scontrol show job`, of a heterogeneous one those of its leader."""
        shown = self.cluster.run("scontrol", "show", "job", "--oneliner", self.id).stdout
        words = shown.partition("\n")[0].split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, pattern: str, timeout: float = BOOT) -> None:
        """Wait until the job's output matches."""
        compiled = re.compile(pattern, re.MULTILINE)
        self._wait(f"{pattern!r} in", lambda: compiled.search(self.text()) is not None, timeout)

    def state(self, timeout: float, *wanted: str) -> dict[str, str]:
        """Wait until the job is in one of these states; return its fields."""
        self._wait(" or ".join(wanted), lambda: self.fields().get("JobState") in wanted, timeout)
        return self.fields()

    def _wait(self, what: str, check: Callable[[], bool], timeout: float) -> None:
        try:
            await_true(f"{what} job {self.id}", check, timeout, step=0.3)
        except AssertionError as late:
            evidence = f"{self.fields()}\n{self.text()}\n{self.cluster.report()}"
            raise AssertionError(f"{late}\n{evidence}") from None

    def processes(self) -> dict[str, list[ProcessInfo]]:
        """Return the job's processes by node, found by Slurm's variables, whatever their parent."""
        return {
            name: [info for info in node.processes() if self._owns(info)]
            for name, node in self.cluster.nodes.items()
        }

    def _owns(self, info: ProcessInfo) -> bool:
        with suppress(OSError):  # the process has exited meanwhile
            return info.environ().get("SLURM_JOB_ID") == self.id
        return False

    def parent(self, node: str) -> ProcessInfo:
        """Return the agent's parent process, which Slurm started on a node."""
        found = self.processes()[node]
        return next(p for p in found if "pod-agent run" in p.cmdline and p.name != "srun")

    def agent(self, node: str) -> ProcessInfo | None:
        """Return the agent below it: one, or briefly none."""
        parent = self.parent(node)
        below = [p for p in self.processes()[node] if p.ppid == parent.pid]
        return next((p for p in below if p.cmdline == parent.cmdline), None)

    def ray(self) -> dict[str, dict[str, int]]:
        """Return the PIDs of the job's Ray processes, by node and name."""
        parts = {"gcs_server", "raylet"}
        return {
            node: {info.name: info.pid for info in found if info.name in parts}
            for node, found in self.processes().items()
        }

    def wait_until_gone(self, timeout: float, *nodes: str) -> None:
        """Wait until none of the job's processes is left on these nodes, or on any."""

        def gone() -> bool:
            return not any(self.processes()[name] for name in nodes or self.cluster.nodes)

        self._wait("no process is left of", gone, timeout)

    def outcomes(self, file: str = "outcome.json") -> dict[str, dict[str, Any]]:
        """Read every node's outcome.json, or that of an earlier run of the job."""
        return {name: self.cluster.outcome(self.id, name, file) for name in self.cluster.nodes}
