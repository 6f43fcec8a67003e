"""Jobs whose command runs once on each node, by AGENT_LAUNCHER=node.

For commands that start a node's processes themselves: accelerate, LLaMA-Factory, ms-swift, Axolotl,
DeepSpeed, torchrun, or a script of the user's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from agent.base.errors import Problem
from agent.base.value import Value
from agent.job.torchrun_command import first_failure, seconds_since_closing
from agent.settings.jobs import NODE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.job.share import ShareEnd, SharePlace
    from agent.settings.model import Settings


NODE_VARIABLES = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE")
"""What the command has in its environment; the agent's values replace all others."""
NODE_PLACEHOLDERS = ("rank", "master_port")
"""Placeholders of the command beside those of every job."""
NODE_MARK = "AGENT_ATTEMPT_ID"
"""An environment variable of the command and all its processes, with the id of the attempt."""


class NodeCommand(Value):
    """The user's command, once on this node, with its place among the nodes."""

    port: int  # GCS's number, free without Ray: the job's to listen on
    processes: int  # the number of processes for this node
    stop_within: float  # seconds that its processes get to stop

    launcher: ClassVar[str] = NODE
    name: ClassVar[str] = "node command"
    mark: ClassVar[str] = NODE_MARK
    stops_its_group: ClassVar[bool] = False  # a shell script passes no signal on
    session: ClassVar[None] = None
    port_user: ClassVar[tuple[str, str]] = ("the job's MASTER_PORT", "as the job has it")

    def with_processes(self, processes: int) -> NodeCommand:
        """Return it with another NPROC_PER_NODE."""
        return replace(self, processes=processes)

    def placeholders(self, place: SharePlace) -> dict[str, str]:
        """Return the node's rank and the port; `{nodes}` is the number of all nodes, as NNODES."""
        return {"rank": place.rank, "nodes": place.nodes, "master_port": str(self.port)}

    def command(self, argv: Sequence[str], _place: SharePlace) -> list[str]:
        """Return the user's command, word for word."""
        return [*argv]

    def environment(self, full: Mapping[str, str], place: SharePlace) -> dict[str, str]:
        """Return the environment of the command.

        A torchrun below it gets as long to stop its ranks as one that the agent starts.
        """
        values = (place.nodes, place.rank, place.head_ip, str(self.port), str(self.processes))
        within = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(self.stop_within)))}
        own = dict(zip(NODE_VARIABLES, values, strict=True))
        return {**within, **full, **own, NODE_MARK: place.attempt_id}

    def is_closing(self, text: str, now: float) -> bool:
        """Return whether a torchrun below the command stops its ranks after a failure, just now."""
        since = seconds_since_closing(text, now)
        return since is not None and since <= self.stop_within

    def end(self, code: int, text: str, now: float) -> ShareEnd | None:
        """Return the rank that a torchrun below the command names, with the command's own code.

        A report that is older than a stop takes was not the end of the command.
        """
        failure = first_failure(text, now)
        if failure is None or failure.ago > 2 * self.stop_within:
            return None
        return replace(failure, code=code)


def node_problems(
    settings: Settings, command: Sequence[str] | None, *, wants_job: bool
) -> tuple[Problem, ...]:
    """Return why there is nothing to run; `wants_job` is true for `run` and `plan`."""
    if command is not None or settings.job is not None or not wants_job:
        return ()
    expected = "a command after --, which runs once on each node"
    return (Problem("AGENT_LAUNCHER", f"{NODE!r} without a command", expected),)
