"""Topology: who this node is, from its environment, its settings and its machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from msgspec.structs import replace

from agent.base.errors import SettingsError
from support.worlds import MACHINE, POD, topology_of

if TYPE_CHECKING:
    from agent.node.facts import Facts

A, B = "podaaa", "podbbb"
NAME_OF_A = f"{A}.runpod.internal"
NAMED = replace(MACHINE, known_names={"head.lan": ("10.0.0.5",), "other.lan": ("10.0.0.9",)})
"""The machine, after names were looked up."""


def on(pod: str, **more: str) -> dict[str, str]:
    """Return the environment of a RunPod pod whose head is pod A."""
    return {"RUNPOD_POD_ID": pod, "HEAD_POD_ID": A, **more}


def dstack(rank: int, nodes: int, **more: str) -> dict[str, str]:
    """Return the environment of a dstack node."""
    return {
        "DSTACK_NODE_RANK": str(rank),
        "DSTACK_NODES_NUM": str(nodes),
        "DSTACK_MASTER_NODE_IP": "10.0.0.1",
        "DSTACK_NODES_IPS": "\n".join(f"10.0.0.{n + 1}" for n in range(nodes)),
        "DSTACK_GPUS_PER_NODE": "8",
        "DSTACK_RUN_ID": "run-1",
        **more,
    }


class Is(NamedTuple):
    """What a node turns out to be."""

    platform: str
    role: str
    rank: int | None
    expected: int
    head: str | None


ROWS = {
    "dstack's head alone": (
        {"DSTACK_MASTER_NODE_IP": "10.0.0.1"},
        MACHINE,
        Is("single", "head", None, 0, None),
    ),
    "torchrun's variables of a process": (
        {"WORLD_SIZE": "16", "MASTER_ADDR": "10.0.0.9", "RANK": "3"},
        MACHINE,
        Is("single", "head", None, 0, None),
    ),
    "expects none": ({"EXPECTED_WORKERS": "0"}, MACHINE, Is("single", "head", None, 0, None)),
    "expects two": ({"EXPECTED_WORKERS": "2"}, MACHINE, Is("plain", "head", None, 2, None)),
    "head by hand": ({"RAY_WORKER": "0"}, MACHINE, Is("plain", "head", None, 0, None)),
    "own address": ({"AGENT_HEAD": "10.0.0.5"}, MACHINE, Is("plain", "head", None, 1, "10.0.0.5")),
    "other address": (
        {"AGENT_HEAD": "10.0.0.9"},
        MACHINE,
        Is("plain", "worker", None, 1, "10.0.0.9"),
    ),
    "own host name": ({"AGENT_HEAD": "node-a"}, MACHINE, Is("plain", "head", None, 1, "node-a")),
    "own name": ({"AGENT_HEAD": "head.lan"}, NAMED, Is("plain", "head", None, 1, "head.lan")),
    "other name": ({"AGENT_HEAD": "other.lan"}, NAMED, Is("plain", "worker", None, 1, "other.lan")),
    "unknown name": ({"AGENT_HEAD": "late.lan"}, NAMED, Is("plain", "worker", None, 1, "late.lan")),
    "worker by hand": (
        {"AGENT_HEAD": "10.0.0.9", "RAY_WORKER": "1"},
        MACHINE,
        Is("plain", "worker", None, 1, "10.0.0.9"),
    ),
    "worker beside its head, another process on this machine": (
        {"AGENT_HEAD": "10.0.0.5", "RAY_WORKER": "1"},
        MACHINE,
        Is("plain", "worker", None, 1, "10.0.0.5"),
    ),
    "head by hand, name unknown yet": (
        {"AGENT_HEAD": "late.lan", "RAY_WORKER": "0", "EXPECTED_WORKERS": "3"},
        NAMED,
        Is("plain", "head", None, 3, "late.lan"),
    ),
    "runpod head twice over": (
        on(A, RAY_WORKER="0"),
        POD,
        Is("runpod", "head", None, 1, NAME_OF_A),
    ),
    "runpod worker twice over": (
        on(B, RAY_WORKER="1"),
        POD,
        Is("runpod", "worker", None, 1, NAME_OF_A),
    ),
    "runpod by ssh": ({"HEAD_POD_ID": A}, POD, Is("runpod", "head", None, 1, NAME_OF_A)),
    "runpod by ssh, worker by hand": (
        {"HEAD_POD_ID": A, "RAY_WORKER": "1"},
        POD,
        Is("runpod", "worker", None, 1, NAME_OF_A),
    ),
    "runpod without its network, head": (
        {"RUNPOD_POD_ID": A, "AGENT_HEAD": "172.17.0.2", "EXPECTED_WORKERS": "1"},
        POD,
        Is("runpod", "head", None, 1, "172.17.0.2"),
    ),
    "runpod without its network, worker": (
        {"RUNPOD_POD_ID": B, "AGENT_HEAD": "172.17.0.9", "EXPECTED_WORKERS": "1"},
        POD,
        Is("runpod", "worker", None, 1, "172.17.0.9"),
    ),
    "dstack, fewer expected": (
        dstack(0, 3, EXPECTED_WORKERS="1"),
        MACHINE,
        Is("dstack", "head", 0, 1, "10.0.0.1"),
    ),
    "runpod head that waits, by hand": (
        {"RUNPOD_POD_ID": A, "EXPECTED_WORKERS": "1", "RAY_WORKER": "0"},
        POD,
        Is("runpod", "head", None, 1, NAME_OF_A),
    ),
    "dstack on the head's pod, worker by hand": (
        dstack(1, 2, RUNPOD_POD_ID=A, HEAD_POD_ID=A, RAY_WORKER="1", AGENT_HEAD="10.0.0.9"),
        POD,
        Is("dstack", "worker", 1, 1, "10.0.0.9"),
    ),
    "dstack on runpod, head": (
        dstack(0, 2, RUNPOD_POD_ID=A),
        POD,
        Is("dstack", "head", 0, 1, "10.0.0.1"),
    ),
}


@pytest.mark.parametrize(("environ", "facts", "expected"), ROWS.values(), ids=ROWS.keys())
def test_role_rank_workers_and_head(environ: dict[str, str], facts: Facts, expected: Is) -> None:
    """Environment and facts decide platform, role, rank, expected workers and head."""
    t = topology_of(environ, facts)
    assert Is(t.platform.name, t.role, t.platform.rank, t.expected_workers, t.head_host) == expected


CONTRADICTIONS = {
    "worker without a head": ({"RAY_WORKER": "1"}, MACHINE, ["HEAD_POD_ID + AGENT_HEAD"]),
    "pod without a head": (
        {"RUNPOD_POD_ID": A, "RAY_WORKER": "1"},
        POD,
        ["HEAD_POD_ID + AGENT_HEAD", f"RUNPOD_POD_ID={A}"],
    ),
    "worker on the head's pod": (
        on(A, RAY_WORKER="1"),
        POD,
        ["RAY_WORKER=1", f"RUNPOD_POD_ID={A}", f"HEAD_POD_ID={A}"],
    ),
    "head on another pod": (
        on(B, RAY_WORKER="0"),
        POD,
        ["RAY_WORKER=0", f"RUNPOD_POD_ID={B}", f"HEAD_POD_ID={A}"],
    ),
    "head on a stranger to the address": (
        {"AGENT_HEAD": "10.0.0.9", "RAY_WORKER": "0"},
        MACHINE,
        ["RAY_WORKER=0", "AGENT_HEAD=10.0.0.9", "10.0.0.5"],
    ),
    "head's pod of rank 1": (
        dstack(1, 2, RUNPOD_POD_ID=A, HEAD_POD_ID=A),
        POD,
        [f"HEAD_POD_ID={A} with RUNPOD_POD_ID={A}", "DSTACK_NODE_RANK=1"],
    ),
    "dstack rank no number": (
        dstack(0, 2, DSTACK_NODE_RANK="first"),
        MACHINE,
        ["DSTACK_NODE_RANK", "'first'"],
    ),
    "runpod GPUs no number": (on(A, RUNPOD_GPU_COUNT="?"), POD, ["RUNPOD_GPU_COUNT", "'?'"]),
}


@pytest.mark.parametrize(
    ("environ", "facts", "words"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys()
)
def test_contradictions_show_both_sides(
    environ: dict[str, str], facts: Facts, words: list[str]
) -> None:
    """A contradiction is refused with 78 and names all sides."""
    with pytest.raises(SettingsError) as caught:
        topology_of(environ, facts)
    (problem,) = caught.value.problems
    assert [word for word in words if word not in problem.sentence()] == []
    assert problem.expected


def test_a_node_knows_its_own_names() -> None:
    """The names that others call it: requests to them are answered."""

    def names(environ: dict[str, str], facts: Facts = MACHINE) -> tuple[str, ...]:
        return topology_of(environ, facts).platform.own_names

    hosts = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
    assert names(dstack(0, 2)) == ("10.0.0.1",)
    assert names(dstack(1, 2)) == ()
    assert names(hosts) == ("algo-2",)
    assert names({**hosts, "SM_HOSTS": '["algo-2"]'}) == ()
    assert names({"RUNPOD_POD_ID": A}, POD) == (NAME_OF_A,)
    assert names({"RUNPOD_POD_ID": A, "AGENT_HEAD": "172.17.0.2"}, POD) == (NAME_OF_A,)


def test_only_an_unproven_head_must_prove_itself() -> None:
    """HEAD_POD_ID alone, as in an ssh shell, makes a head that must own the name's address."""
    assert topology_of({"HEAD_POD_ID": A}, POD).must_own_head_host
    assert not topology_of({"HEAD_POD_ID": A, "RAY_WORKER": "0"}, POD).must_own_head_host
    assert not topology_of(on(A), POD).must_own_head_host
    assert not topology_of({"HEAD_POD_ID": A, "RAY_WORKER": "1"}, POD).must_own_head_host
