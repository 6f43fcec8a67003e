"""A worker's hello is made of its plan, and a head reads it as it was."""

from __future__ import annotations

import msgspec
import pytest

from agent.port.protocol import Hello
from agent.run.worker import make_hello
from support.worlds import MACHINE, plan_of

WORKER = {"RAY_WORKER": "1", "EXPECTED_WORKERS": "1", "AGENT_HEAD": "10.0.0.4"}


@pytest.mark.parametrize(
    ("environ", "command"),
    [
        pytest.param(WORKER, None, id="ray"),
        pytest.param({**WORKER, "AGENT_LAUNCHER": "torchrun"}, ["train.py"], id="torchrun"),
        pytest.param({**WORKER, "AGENT_LAUNCHER": "node"}, ["./train"], id="node"),
    ],
)
def test_a_head_reads_what_a_worker_knows(
    environ: dict[str, str], command: list[str] | None
) -> None:
    """Name, versions, GPUs and facts of the machine arrive; without Ray a job's identity."""
    plan = plan_of(environ, MACHINE, command)
    hello = msgspec.json.decode(
        msgspec.json.encode(make_hello(plan, None, lambda text: text, {})), type=Hello
    )
    assert (hello.name, hello.gpus) == (plan.topology.node_name, plan.gpus)
    assert hello.ray == (MACHINE.ray.version if command is None else None)
    assert hello.facts is not None
    assert hello.facts.gpus == MACHINE.gpus
    assert bool(hello.job) is (command is not None)
