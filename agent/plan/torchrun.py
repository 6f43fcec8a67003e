"""The command line and environment of torchrun on each node.

It uses torch's static rendezvous, since the agents have already assigned the ranks. Rank 0 is on
the head, whose output is the run's. One store, in the head's torchrun, serves torchrun and the job,
so only one port must be reachable. The c10d rendezvous would assign ranks by arrival, and name the
node of rank 0 by its host name, which pods cannot resolve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import Problem
from agent.base.text import in_url
from agent.base.value import dataclass
from agent.settings.jobs import TORCHRUN, launcher
from agent.work.torchrun import command_fault, torchrun_arguments
from agent.work.where import HEAD_IP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.settings.model import Settings
    from agent.work.torchrun import ShareOrder

MONITOR_INTERVAL = 0.05
"""Seconds between torchrun's checks of its processes, short to find the first failure."""
_SET_BY_AGENT = (
    *("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "MAX_RESTARTS"),
    *("RDZV_BACKEND", "RDZV_ENDPOINT", "RDZV_ID", "RDZV_CONF", "MONITOR_INTERVAL"),
    *("STANDALONE", "MODULE", "NO_PYTHON", "RUN_PATH"),
)
"""Flags that the agent sets; their PET_* variables are dropped."""


@dataclass(frozen=True)
class Torchrun:
    """The torchrun of a node without Ray: the inputs of its command line."""

    python: str
    """The Python that has torch."""
    port: int
    """The port of the rendezvous: GCS's number, free without Ray."""
    processes: int
    """The number of processes on this node."""
    stop_within: float
    """Seconds that its processes get to stop before torchrun kills them."""

    @property
    def session(self) -> str | None:
        """Return None: without Ray there are no sessions."""
        return None

    def command(
        self, argv: Sequence[str], rank: str, nodes: str, attempt: str, head_ip: str = HEAD_IP
    ) -> list[str]:
        """Return this node's command line; rank, nodes and attempt may be placeholders."""
        return [
            *(self.python, "-m", "torch.distributed.run"),
            *("--nnodes", nodes, "--node_rank", rank),
            *("--master_addr", in_url(head_ip), "--master_port", str(self.port)),
            *("--rdzv_id", attempt, "--nproc_per_node", str(self.processes)),
            *("--max_restarts", "0", "--monitor_interval", str(MONITOR_INTERVAL)),
            *torchrun_arguments(argv),
        ]

    def share_command(
        self, argv: Sequence[str], seat: ShareOrder, attempt: str, head_ip: str
    ) -> list[str]:
        """Return the command line for this node's rank in an attempt."""
        return self.command(argv, str(seat.rank), str(len(seat.nodes)), attempt, head_ip)

    def environment(self, full: Mapping[str, str], attempt: int, error_file: str) -> dict[str, str]:
        """Return the environment of torchrun and its ranks."""
        dropped = {f"PET_{name}" for name in _SET_BY_AGENT}
        kept = {name: text for name, text in full.items() if name not in dropped}
        within = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(self.stop_within)))}
        own = {"AGENT_ATTEMPT": str(attempt), "TORCHELASTIC_ERROR_FILE": error_file}
        return {**within, **kept, **own}


def torchrun_problems(
    settings: Settings, command: Sequence[str] | None, *, wants_job: bool
) -> tuple[Problem, ...]:
    """Return problems of a command for torchrun; `wants_job` is true for `run` and `plan`."""
    if launcher(settings, None) != TORCHRUN:
        return ()
    if command is None and settings.job is None and wants_job:
        expected = "a command after --, or a recipe for torchrun: the rehearsal needs Ray"
        return (Problem("AGENT_LAUNCHER", f"{TORCHRUN!r} without a job", expected),)
    fault = None if not command else command_fault(command)
    return () if fault is None else (Problem("--", *fault),)
