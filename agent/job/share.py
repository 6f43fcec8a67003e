"""A share: the part of a job that one node runs, where a launcher starts it on every node.

Without Ray the head gives each node a rank, and wants its share there. A launcher makes the share's
command line and environment from the job's command and its `SharePlace`: torchrun around it in
torchrun_command.py, or the command itself in node_command.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol

from agent.base.value import JOB_NODES, ExitCode, OptionalAddress, Rank, Seconds, Value
from agent.frameworks.recipe import JobBasis, NodeSize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.settings.model import Settings


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class ShareArgs(Value):
    """A node's place among those that run something together, and the size of each by rank."""

    rank: Rank
    nodes: Annotated[tuple[NodeSize, ...], JOB_NODES]
    reward_ip: OptionalAddress = ""  # The address of the reward server's node; '' for the head
    basis: JobBasis = JobBasis()  # What sizes a recipe besides the nodes

    @property
    def gpus(self) -> list[int]:
        """Return each node's GPUs."""
        return [node.gpus for node in self.nodes]


class ShareEnd(Value):
    """How the job's processes on one node ended."""

    code: ExitCode  # 0, the exit code of the first rank that failed, or the launcher's own
    local_rank: Rank | None = None
    """The local rank that failed first; None if the launcher's output names none."""
    words: str = ""  # The end of its output, where no rank is named
    ago: Seconds = 0.0  # Seconds from the failure to this report, by the node's clock
    by_stop: bool = False  # True if nothing failed before it was stopped
    lost: bool = False  # True if its node stopped it because the head was unreachable

    @property
    def failed(self) -> bool:
        """Return whether it failed by itself."""
        return self.code != 0 and not self.by_stop


class SharePlace(Value):
    """Where a share runs, as text: `plan` shows placeholders for what only the run knows."""

    rank: str  # the node's rank among those that run the job
    nodes: str  # their number
    head_ip: str  # the address of rank 0
    attempt_id: str  # the id of the attempt: `<run id>-<number>`


class ShareLauncher(Protocol):
    """Starts a node's share of a job; one for each value of AGENT_LAUNCHER without Ray."""

    launcher: ClassVar[str]  # the value of AGENT_LAUNCHER
    name: ClassVar[str]  # the name of its process
    mark: ClassVar[str]
    """The environment variable by which the attempt's processes are found, with its id."""
    stops_its_group: ClassVar[bool]  # true if it passes SIGTERM on to the job's processes
    session: ClassVar[None]  # without Ray there are no sessions

    @property
    def port(self) -> int:
        """The port at which the job's processes meet, on the head."""

    @property
    def port_user(self) -> tuple[str, str]:
        """Who listens there, and on which addresses, as `plan` shows it."""

    def with_processes(self, processes: int) -> ShareLauncher:
        """Return it for so many processes on this node."""

    def placeholders(self, place: SharePlace) -> dict[str, str]:
        """Return the job's placeholders that only this launcher has, with their values."""

    def command(self, argv: Sequence[str], place: SharePlace) -> list[str]:
        """Return this node's command line."""

    def environment(self, full: Mapping[str, str], place: SharePlace) -> dict[str, str]:
        """Return the environment of the launcher and the job's processes."""

    def is_closing(self, text: str, now: float) -> bool:
        """Return whether its output shows that it stops the job's processes after a failure."""

    def end(self, code: int, text: str, now: float) -> ShareEnd | None:
        """Return the end that its output names, if a rank failed; `now` is the time of day."""


def gpus_of(settings: Settings, seen: int, environ: Mapping[str, str]) -> int:
    """Return the number of a node's GPUs that are visible to its processes."""
    if settings.num_gpus is not None:
        return settings.num_gpus
    counts = [seen]
    for name in _VISIBLE:
        if name in environ:
            devices = [device for device in environ[name].split(",") if device.strip()]
            counts.append(len(devices))
    return min(counts)


def processes(gpus: int, settings: Settings) -> int:
    """Return the number of processes of a node: one per GPU, else AGENT_NUM_CPUS or 1."""
    return gpus or settings.num_cpus or 1
