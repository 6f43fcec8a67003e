"""The all-reduce before the job (AGENT_PREFLIGHT): the program that each node runs for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.plan.plan import ALL_REDUCE, PREFLIGHT_LOG, PlannedProcess
from agent.plan.waits import PREFLIGHT_LIMIT
from agent.work.where import HEAD_IP

if TYPE_CHECKING:
    from agent.base.ports import Ports
    from agent.node.facts import Facts
    from agent.topology.resolve import Topology

PROGRAM = Path(__file__).parents[1] / "bundled" / "all_reduce.py"
OUT = "preflight.json"
GPUS = "{gpus}"
"""Stands for every node's GPUs, which are known when all have joined."""


def processes(topology: Topology, facts: Facts, ports: Ports) -> tuple[PlannedProcess, ...]:
    """Return it: in the job's Python, with a deadline of its own."""
    if topology.given_ray is not None or topology.is_idle:
        return ()
    argv = (
        *(facts.job_python, str(PROGRAM), "--address", HEAD_IP, "--port", str(ports.last_worker)),
        *("--node", "{rank}", "--gpus", GPUS, "--within", f"{PREFLIGHT_LIMIT:g}"),
        *("--out", "{log_dir}/" + OUT),
        *(("--host",) if topology.is_head else ()),
    )
    return (PlannedProcess(ALL_REDUCE, "before", argv, PREFLIGHT_LOG),)
