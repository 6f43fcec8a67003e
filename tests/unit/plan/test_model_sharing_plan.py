"""Which nodes share a model that they fetch, and what the plan has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.job.services import MODEL
from agent.node.facts import Facts, Mount
from agent.plan.plan import MODEL_SERVER
from agent.run.model_programs import planned
from support.worlds import MACHINE, SECRET, plan_of, with_ray

if TYPE_CHECKING:
    from agent.plan.plan import Plan

OWN_DISK = Mount("/root", "overlay", "overlay")
HEAD = {"AGENT_MODEL": "acme/m", "AGENT_HEAD": "10.0.0.5", "EXPECTED_WORKERS": "3"}
WORKER = {"AGENT_MODEL": "acme/m", "AGENT_HEAD": "10.0.0.1", "RAY_WORKER": "1"}


def plan_with(environ: dict[str, str], mount: Mount | None = OWN_DISK) -> Plan:
    """Return the plan of a node whose Python has the hub's client, with this disk."""
    facts: Facts = replace(with_ray(MACHINE, hub="1.2.3"), hub_cache=mount)
    return plan_of({**environ, "AGENT_JOB": "none"}, facts)


def fetch_of(plan: Plan) -> str:
    """Return the command that fetches the model."""
    return next(step.command for step in plan.steps if step.name == MODEL)


def test_the_head_fetches_and_serves() -> None:
    """File by file, so that the others have the first ones early."""
    plan = plan_with(HEAD)
    assert fetch_of(plan).endswith("fetch-model acme/m --in-order")
    server = planned(plan, MODEL_SERVER)
    assert server is not None
    assert server.argv[-4:] == ("model-server", "acme/m", "--port", "19998")


def test_a_worker_asks_the_head_first() -> None:
    """Then the hub's client fetches what is missing; each worker serves what it has."""
    plan = plan_with({**WORKER, "AGENT_MODEL_REVISION": "v1"})
    pull, fetch = fetch_of(plan).split("; exec ")
    assert pull.endswith("pull-model acme/m --revision v1 --head 10.0.0.1 --port 19998")
    assert fetch.endswith("fetch-model acme/m --revision v1")
    assert planned(plan, MODEL_SERVER) is not None


@pytest.mark.parametrize(
    ("environ", "mount"),
    [
        (HEAD, Mount("/nfs", "nfs4", "server:/models")),
        (WORKER, Mount("/nfs", "nfs4", "server:/models")),
        (HEAD, None),
        ({**HEAD, "EXPECTED_WORKERS": "0"}, OWN_DISK),
    ],
    ids=["head on a shared disk", "worker on a shared disk", "unknown disk", "one node"],
)
def test_nodes_that_share_nothing(environ: dict[str, str], mount: Mount | None) -> None:
    """On a shared disk the hub's client fetches once by itself."""
    plan = plan_with(environ, mount)
    assert fetch_of(plan).endswith("fetch-model acme/m")
    assert planned(plan, MODEL_SERVER) is None
    assert plan.model_port is None


@pytest.mark.parametrize(
    ("more", "guard"),
    [
        ({}, "only models that the hub gives to everybody"),
        ({"RAY_AUTH_TOKEN": SECRET}, "a proof of the token"),
    ],
)
def test_its_port_is_shown(more: dict[str, str], guard: str) -> None:
    """With the address that it binds, and what guards it."""
    found = [row for row in plan_with({**HEAD, **more}).listeners if row.who == MODEL_SERVER]
    assert [(row.port, row.bind, row.guard) for row in found] == [
        ("19998", "every interface", guard)
    ]
