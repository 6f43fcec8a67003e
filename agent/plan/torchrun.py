"""torchrun as what carries the job: its command line on each node, and what it is told.

The rendezvous is torch's static one: the agents know already who is there and who is which rank,
so there is nothing to find out. It puts rank 0 on the head, whose output is the run's; it has one
store, in the head's torchrun, for torchrun and the job alike, so one port is all that must be
reachable; and it hands every rank the address by which the head is known here. The c10d rendezvous
would give ranks by arrival and name the node of rank 0 by its host name, which pods cannot
resolve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.addresses import in_url
from agent.base.errors import Problem
from agent.base.value import dataclass
from agent.settings.jobs import TORCHRUN, launcher
from agent.work.torchrun import fault_of, words_of
from agent.work.where import HEAD_IP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.settings import Settings
    from agent.work.torchrun import Seat

LOOK_EVERY = 0.05
"""How often torchrun looks at its processes: which failed first, on which node, is told by it."""
_OWNED = (
    *("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "MAX_RESTARTS"),
    *("RDZV_BACKEND", "RDZV_ENDPOINT", "RDZV_ID", "RDZV_CONF", "MONITOR_INTERVAL"),
    *("STANDALONE", "MODULE", "NO_PYTHON", "RUN_PATH"),
)
"""Flags that the agent sets: their defaults in the environment (PET_*) are another launcher's."""


@dataclass(frozen=True)
class Torchrun:
    """One torchrun on each node, with no Ray: all that its command lines rest on."""

    python: str
    """The Python that has torch."""
    port: int
    """Where the head's torchrun answers the others: GCS's number, which nothing else uses here."""
    processes: int
    """How many this node runs."""
    stop_within: float
    """How long its processes have to stop, before torchrun kills them."""

    @property
    def session(self) -> str | None:
        """Return the folder of Ray's sessions, as of any other launch: there is none."""
        return None

    def command(
        self, argv: Sequence[str], rank: str, nodes: str, attempt: str, head_ip: str = HEAD_IP
    ) -> list[str]:
        """Return this node's command line for a job; what only the run knows is given as text."""
        return [
            *(self.python, "-m", "torch.distributed.run"),
            *("--nnodes", nodes, "--node_rank", rank),
            *("--master_addr", in_url(head_ip), "--master_port", str(self.port)),
            *("--rdzv_id", attempt, "--nproc_per_node", str(self.processes)),
            *("--max_restarts", "0", "--monitor_interval", str(LOOK_EVERY)),
            *words_of(argv),
        ]

    def part(self, argv: Sequence[str], seat: Seat, attempt: str, head_ip: str) -> list[str]:
        """Return the command line of this node's share of an attempt."""
        return self.command(argv, str(seat.rank), str(len(seat.nodes)), attempt, head_ip)

    def environment(self, full: Mapping[str, str], attempt: int, error_file: str) -> dict[str, str]:
        """Return what torchrun finds in its environment, and hands on to every rank."""
        dropped = {f"PET_{name}" for name in _OWNED}
        kept = {name: text for name, text in full.items() if name not in dropped}
        within = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(self.stop_within)))}
        own = {"AGENT_ATTEMPT": str(attempt), "TORCHELASTIC_ERROR_FILE": error_file}
        return {**within, **kept, **own}


def problems(
    settings: Settings, command: Sequence[str] | None, *, wants_job: bool
) -> tuple[Problem, ...]:
    """Find what torchrun could not run; `wants_job` where one is to be run."""
    if launcher(settings, None) != TORCHRUN:
        return ()
    if command is None and settings.job is None and wants_job:
        expected = "a command after --, or a recipe for torchrun: the rehearsal needs Ray"
        return (Problem("AGENT_LAUNCHER", f"{TORCHRUN!r} without a job", expected),)
    fault = None if not command else fault_of(command)
    return () if fault is None else (Problem("--", *fault),)
