"""Agreement between nodes: differences are named with their nodes, as errors or warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.checks.agreement import agreement
from agent.checks.finding import Level
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import REACH, SAMPLE, LogLine
from support.heads import REWARD_SPEC, STEPS, SubmitJob, Trace, goal, nodes, ray_lost, reported
from support.worlds import MACHINE, with_ray

if TYPE_CHECKING:
    from agent.node.facts import Facts

GPUS = replace(MACHINE, gpus=8, gpu_maker="nvidia")
TWO_NETS = replace(MACHINE, interfaces={"lo": ("127.0.0.1",), "eth0": ("172.17.0.2",)})
BOTH = replace(MACHINE, interfaces={**TWO_NETS.interfaces, "podnet1": ("10.0.0.3",)})


def with_versions(facts: Facts = MACHINE, **versions: object) -> Facts:
    """Return a machine with other versions."""
    return replace(facts, node_versions=replace(facts.node_versions, **versions))


def has(facts: Facts = MACHINE, **libraries: str) -> Facts:
    """Return a machine whose Ray's Python has these libraries."""
    named = {name.replace("cuda", "CUDA of torch"): text for name, text in libraries.items()}
    return with_ray(facts, libraries=named)


def says(facts: Facts = MACHINE, /, **variables: str) -> Facts:
    """Return a machine on which these variables are set."""
    return replace(facts, variables=variables)


ROWS: dict[str, tuple[list[Facts], list[tuple[str, Level, str]]]] = {
    "one machine": ([says(DEBUG_RAY="1")], []),
    "all alike": ([has(torch="2.6.0")] * 3, []),
    "the odd one first": (
        [says(BOTH, NCCL_SOCKET_IFNAME="podnet1")] * 3 + [says(BOTH, NCCL_SOCKET_IFNAME="eth0")],
        [("NCCL_SOCKET_IFNAME", Level.WARN, "eth0 on n3, podnet1 on the 3 others")],
    ),
    "one network, named differently": (
        [says(BOTH, NCCL_SOCKET_IFNAME="podnet1"), says(TWO_NETS, NCCL_SOCKET_IFNAME="eth0")],
        [("NCCL_SOCKET_IFNAME", Level.WARN, "eth0 on n1, podnet1 on n0")],
    ),
    "an interface named on one only": (
        [says(BOTH), says(BOTH, GLOO_SOCKET_IFNAME="podnet1")],
        [("GLOO_SOCKET_IFNAME", Level.WARN, "podnet1 on n1, not set on n0")],
    ),
    "one left out is no interface": (
        [says(BOTH, NCCL_SOCKET_IFNAME="^lo"), says(BOTH, NCCL_SOCKET_IFNAME="podnet1")],
        [("NCCL_SOCKET_IFNAME", Level.WARN, "podnet1 on n1, ^lo on n0")],
    ),
    "torch": (
        [has(torch="2.6.0"), has(torch="2.5.1"), has(torch="2.5.1"), has(torch="2.6.0")],
        [("torch", Level.FAIL, "2.5.1 on n1 and n2, 2.6.0 on the 2 others")],
    ),
    "torch for CPUs on a head without GPUs": (
        [has(torch="2.6.0+cpu"), has(GPUS, torch="2.6.0+cu124", cuda="12.4")],
        [("GPUs", Level.WARN, "8 on n1, none on n0")],
    ),
    "CUDA among those with GPUs": (
        [has(GPUS, torch="2.6.0+cu126", cuda="12.6"), has(GPUS, torch="2.6.0+cu124", cuda="12.4")],
        [("CUDA of torch", Level.FAIL, "12.4 on n1, 12.6 on n0")],
    ),
    "one without it may not need it": ([MACHINE, has(verl="0.5.0")], []),
    "transformers": (
        [has(transformers="4.51.0"), has(transformers="4.52.0")],
        [("transformers", Level.WARN, "4.52.0 on n1, 4.51.0 on n0")],
    ),
    "agents": (
        [with_versions(agent="0.2"), with_versions(agent="0.1")],
        [("pod-agent", Level.FAIL, "0.1 on n1, 0.2 on n0")],
    ),
    "the debugger": (
        [says(DEBUG_RAY="1"), says(), says(DEBUG_RAY="0")],
        [("DEBUG_RAY", Level.FAIL, "1 on n0, 0 on the 2 others")],
    ),
    "unset and 0 are the same": ([says(DEBUG_RAY="0"), says(DEBUG_RAY="")], []),
    "any other variable": (
        [says(NCCL_IB_DISABLE="1"), says()],
        [("NCCL_IB_DISABLE", Level.WARN, "not set on n1, 1 on n0")],
    ),
    "GPU models": (
        [
            with_versions(GPUS, gpu_models=("H100",)),
            with_versions(GPUS, gpu_models=("A100",)),
            GPUS,
        ],
        [("GPU model", Level.WARN, "A100 on n1, H100 on n0")],
    ),
    "clocks": (
        [
            MACHINE,
            with_versions(clock_ahead=4.9),
            with_versions(clock_ahead=-63.2),
            with_versions(clock_ahead=7.0),
        ],
        [
            (
                "clock",
                Level.WARN,
                "differs from the head's on n2 (-63 s) and n3 (+7 s)",
            )
        ],
    ),
    "many odd ones are counted": (
        [says(NCCL_DEBUG="INFO")] * 6 + [says()] * 7,
        [("NCCL_DEBUG", Level.WARN, "INFO on n0, n1, n2, n3 and 2 more, not set on the 7 others")],
    ),
}


@pytest.mark.parametrize(("machines", "expected"), ROWS.values(), ids=ROWS)
def test_differences(machines: list[Facts], expected: list[tuple[str, Level, str]]) -> None:
    """Each difference is one finding, with its nodes and values."""
    found = agreement([(f"n{i}", facts) for i, facts in enumerate(machines)])
    assert [(one.check, one.level, one.what) for one in found] == expected
    assert all(one.remedy for one in found)


def test_nodes_of_a_group_may_have_other_gpus() -> None:
    """Of a group that joins Ray; its versions must be the trainer's."""
    nodes = [("n0", GPUS), ("n1", has(replace(GPUS, gpus=4), torch="2.6.0")), ("n2", GPUS)]
    assert [one.check for one in agreement(nodes)] == ["GPUs"]
    assert agreement(nodes, in_groups={"n1"}) == ()
    nodes[0] = ("n0", has(GPUS, torch="2.7.0"))
    assert [one.check for one in agreement(nodes, in_groups={"n1"})] == ["torch"]


def test_a_runtime_env_may_bring_its_own() -> None:
    """Where the job brings libraries, those of the images only may matter."""
    pair = [("a", has(torch="2.6.0")), ("b", has(torch="2.5.1"))]
    (found,) = agreement(pair, brings_libraries=True)
    assert (found.check, found.level) == ("torch", Level.WARN)


_VARIABLES = st.dictionaries(
    st.sampled_from(["NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "DEBUG_RAY"]), st.sampled_from("01")
)


@given(st.lists(_VARIABLES, min_size=2, max_size=5), st.randoms())
def test_the_workers_order_does_not_matter(worn: list[dict[str, str]], random: object) -> None:
    """The same nodes give the same failures, in whatever order the workers came."""
    named = [(f"n{i}", replace(MACHINE, variables=one)) for i, one in enumerate(worn)]
    workers = named[1:]
    random.shuffle(workers)  # type: ignore[attr-defined]  # hypothesis' own
    levels = {(one.check, one.level) for one in agreement(named)}
    assert {(one.check, one.level) for one in agreement([named[0], *workers])} == levels


# --- before the submission -----------------------------------------------------------------------

PAIR = replace(goal(1, retries=1), node="pod1", facts=says(DEBUG_RAY="0"))


def joined(facts: Facts) -> list[tuple[float, h.HeadEvent]]:
    """Return the trace of a worker with these facts that joins."""
    introduced = h.WorkerIntroduced("agent2", "pod2", facts)
    return [(1.0, introduced), (1.0, reported(2)), (3.0, nodes(2))]


def test_a_run_whose_nodes_disagree_is_refused() -> None:
    """A breaking difference ends the run as soon as the last node has joined."""
    trace = Trace(PAIR, joined(says(DEBUG_RAY="1", NCCL_DEBUG="INFO")))
    (said,) = [a for a in trace.actions if isinstance(a, LogLine) and "NCCL" in a.sentence]
    assert said.level == "warning"
    leave = trace.actions[-1]
    assert isinstance(leave, h.EndRun)
    assert leave.outcome.exit_code == 78
    assert leave.outcome.reason == "the nodes do not agree: DEBUG_RAY: 1 on pod2, 0 on pod1"
    assert leave.outcome.remedy == "Set the same DEBUG_RAY on all nodes"
    assert not any(isinstance(action, SubmitJob) for action in trace.actions)


def test_differences_are_reported_before_a_long_wait() -> None:
    """Differences are reported before long waits, such as for the data."""
    slow = replace(PAIR, steps=STEPS, services=(REWARD_SPEC,))
    trace = Trace(slow, joined(says(NCCL_DEBUG="INFO")))
    assert trace.state.phase is HeadPhase.BOOTING
    assert "NCCL_DEBUG: INFO on pod2, not set on pod1" in trace.log
    assert {probe for _, probe, _ in trace.probes} == {REACH, SAMPLE}
    tried = len(trace.probes)
    trace.take(nodes(2), 4.0)
    assert len(trace.probes) == tried
    refused = Trace(slow, joined(says(DEBUG_RAY="1")))
    assert [end.exit_code for end in refused.outcomes] == [78]


def test_no_finding_for_a_worker_before_its_report() -> None:
    """Nodes are compared when all are there: the one that differs may be the one that is right."""
    three = replace(PAIR, expected_workers=2, min_workers=2)
    trace = Trace(three, joined(says(NCCL_DEBUG="INFO", DEBUG_RAY="1")))
    assert not trace.outcomes
    assert "NCCL_DEBUG" not in trace.log
    assert REACH not in {probe for _, probe, _ in trace.probes}


def test_a_warning_is_reported_once() -> None:
    """A harmless difference is reported only before the first attempt."""
    trace = Trace(PAIR, joined(says(NCCL_DEBUG="INFO")))
    assert trace.state.phase is HeadPhase.SUBMITTING
    trace.take(ray_lost("killed"), 4.0)
    again: list[tuple[float, h.HeadEvent]] = [
        (10.0, nodes(2)),
        (11.0, reported(2)),
        (60.0, nodes(2)),
    ]
    for at, event in again:
        trace.take(event, at)
    assert [type(a) for a in trace.actions].count(SubmitJob) == 2
    warned = [a for a in trace.actions if isinstance(a, LogLine) and "NCCL_DEBUG" in a.sentence]
    assert len(warned) == 1


def test_a_node_without_an_agent_is_not_compared() -> None:
    """A node that was joined by hand has no facts."""
    trace = Trace(PAIR, [(2.0, nodes(2))])
    assert trace.state.phase is HeadPhase.SUBMITTING
    assert not trace.state.comparison.differences
