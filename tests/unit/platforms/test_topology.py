"""Topology: who this node is, from its environment, its settings and its machine."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.errors import SettingsError
from support.worlds import MACHINE, POD, topology_of

if TYPE_CHECKING:
    from agent.platforms.resolve import Topology

NAMES = {"head.lan": ("10.0.0.5",), "other.lan": ("10.0.0.9",)}
NAMED = replace(MACHINE, known_names=NAMES)
"""The machine, after names were looked up."""


def dstack(rank: int, nodes: int) -> dict[str, str]:
    """Return the environment of a dstack node."""
    return {
        "DSTACK_NODE_RANK": str(rank),
        "DSTACK_NODES_NUM": str(nodes),
        "DSTACK_MASTER_NODE_IP": "10.0.0.1",
        "DSTACK_NODES_IPS": "\n".join(f"10.0.0.{n + 1}" for n in range(nodes)),
        "DSTACK_GPUS_PER_NODE": "8",
        "DSTACK_RUN_ID": "run-1",
    }


def topology(line: str) -> Topology:
    """Return the topology of a node with these variables; `dstack=0/3` is the first of three."""
    environ = dict(word.split("=", 1) for word in shlex.split(line))
    if place := environ.pop("dstack", ""):
        rank, nodes = map(int, place.split("/"))
        environ = {**dstack(rank, nodes), **environ}
    return topology_of(environ, POD if "POD_ID=" in line else NAMED)


ROWS = [
    ("DSTACK_MASTER_NODE_IP=10.0.0.1", "single head - 0 -"),
    ("WORLD_SIZE=16 MASTER_ADDR=10.0.0.9 RANK=3", "single head - 0 -"),
    ("EXPECTED_WORKERS=0", "single head - 0 -"),
    ("EXPECTED_WORKERS=2", "plain head - 2 -"),
    ("RAY_WORKER=0", "plain head - 0 -"),
    ("AGENT_HEAD=10.0.0.5", "plain head - 1 10.0.0.5"),
    ("AGENT_HEAD=10.0.0.9", "plain worker - 1 10.0.0.9"),
    ("AGENT_HEAD=node-a", "plain head - 1 node-a"),
    ("AGENT_HEAD=head.lan", "plain head - 1 head.lan"),
    ("AGENT_HEAD=other.lan", "plain worker - 1 other.lan"),
    ("AGENT_HEAD=late.lan", "plain worker - 1 late.lan"),
    ("AGENT_HEAD=10.0.0.9 RAY_WORKER=1", "plain worker - 1 10.0.0.9"),
    ("AGENT_HEAD=10.0.0.5 RAY_WORKER=1", "plain worker - 1 10.0.0.5"),
    ("AGENT_HEAD=late.lan RAY_WORKER=0 EXPECTED_WORKERS=3", "plain head - 3 late.lan"),
    ("RUNPOD_POD_ID=poda HEAD_POD_ID=poda RAY_WORKER=0", "runpod head - 1 poda.runpod.internal"),
    ("RUNPOD_POD_ID=podb HEAD_POD_ID=poda RAY_WORKER=1", "runpod worker - 1 poda.runpod.internal"),
    ("HEAD_POD_ID=poda", "runpod head - 1 poda.runpod.internal"),
    ("HEAD_POD_ID=poda RAY_WORKER=1", "runpod worker - 1 poda.runpod.internal"),
    ("RUNPOD_POD_ID=poda AGENT_HEAD=172.17.0.2 EXPECTED_WORKERS=1", "runpod head - 1 172.17.0.2"),
    ("RUNPOD_POD_ID=podb AGENT_HEAD=172.17.0.9 EXPECTED_WORKERS=1", "runpod worker - 1 172.17.0.9"),
    ("dstack=0/3 EXPECTED_WORKERS=1", "dstack head 0 1 10.0.0.1"),
    ("RUNPOD_POD_ID=poda EXPECTED_WORKERS=1 RAY_WORKER=0", "runpod head - 1 poda.runpod.internal"),
    (
        "dstack=1/2 RUNPOD_POD_ID=poda HEAD_POD_ID=poda RAY_WORKER=1 AGENT_HEAD=10.0.0.9",
        "dstack worker 1 1 10.0.0.9",
    ),
    ("dstack=0/2 RUNPOD_POD_ID=poda", "dstack head 0 1 10.0.0.1"),
]
"""Variables; platform, role, rank, expected workers and head."""


@pytest.mark.parametrize(("line", "expected"), ROWS)
def test_role_rank_workers_and_head(line: str, expected: str) -> None:
    """Environment and facts decide platform, role, rank, expected workers and head."""
    t = topology(line)
    found = (t.platform.name, t.role, t.platform.rank, t.expected_workers, t.head_host)
    assert " ".join("-" if value is None else str(value) for value in found) == expected


CONTRADICTIONS = [
    ("RAY_WORKER=1", ["HEAD_POD_ID + AGENT_HEAD"]),
    ("RUNPOD_POD_ID=poda RAY_WORKER=1", ["HEAD_POD_ID + AGENT_HEAD", "RUNPOD_POD_ID=poda"]),
    (
        "RUNPOD_POD_ID=poda HEAD_POD_ID=poda RAY_WORKER=1",
        ["RAY_WORKER=1", "RUNPOD_POD_ID=poda", "HEAD_POD_ID=poda"],
    ),
    (
        "RUNPOD_POD_ID=podb HEAD_POD_ID=poda RAY_WORKER=0",
        ["RAY_WORKER=0", "RUNPOD_POD_ID=podb", "HEAD_POD_ID=poda"],
    ),
    ("AGENT_HEAD=10.0.0.9 RAY_WORKER=0", ["RAY_WORKER=0", "AGENT_HEAD=10.0.0.9", "10.0.0.5"]),
    (
        "dstack=1/2 RUNPOD_POD_ID=poda HEAD_POD_ID=poda",
        ["HEAD_POD_ID=poda with RUNPOD_POD_ID=poda", "DSTACK_NODE_RANK=1"],
    ),
    ("dstack=0/2 DSTACK_NODE_RANK=first", ["DSTACK_NODE_RANK", "'first'"]),
    ("RUNPOD_POD_ID=poda HEAD_POD_ID=poda RUNPOD_GPU_COUNT=?", ["RUNPOD_GPU_COUNT", "'?'"]),
]


@pytest.mark.parametrize(("line", "words"), CONTRADICTIONS)
def test_contradictions_show_both_sides(line: str, words: list[str]) -> None:
    """A contradiction is refused with 78 and names all sides."""
    with pytest.raises(SettingsError) as caught:
        topology(line)
    (problem,) = caught.value.problems
    assert [word for word in words if word not in problem.sentence()] == []
    assert problem.expected


OWN_NAMES = [
    ("dstack=0/2", ("10.0.0.1",)),
    ("dstack=1/2", ()),
    ("""'SM_HOSTS=["algo-1", "algo-2"]' SM_CURRENT_HOST=algo-2""", ("algo-2",)),
    ("""'SM_HOSTS=["algo-2"]' SM_CURRENT_HOST=algo-2""", ()),
    ("RUNPOD_POD_ID=poda", ("poda.runpod.internal",)),
    ("RUNPOD_POD_ID=poda AGENT_HEAD=172.17.0.2", ("poda.runpod.internal",)),
]


@pytest.mark.parametrize(("line", "names"), OWN_NAMES)
def test_a_node_knows_its_own_names(line: str, names: tuple[str, ...]) -> None:
    """The names that others call it: requests to them are answered."""
    assert topology(line).platform.own_names == names


def test_only_an_unproven_head_must_prove_itself() -> None:
    """HEAD_POD_ID alone, as in an ssh shell, makes a head that must own the name's address."""
    assert topology("HEAD_POD_ID=poda").must_own_head_host
    for proven in ("RAY_WORKER=0", "RUNPOD_POD_ID=poda", "RAY_WORKER=1"):
        assert not topology(f"HEAD_POD_ID=poda {proven}").must_own_head_host
