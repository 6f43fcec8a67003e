"""Properties over environments of every platform: one role or one error, one head a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.errors import SettingsError
from agent.plan.show import render
from agent.platforms.resolve import PLATFORMS
from agent.settings.redact import redactor_for
from support.captured import NAMES, machine, plan_of, read
from support.clusters import CLUSTERS, address, cluster
from support.worlds import our_ray

if TYPE_CHECKING:
    from agent.plan.plan import Plan
    from support.clusters import Node

NUMBERS = ["0", "1", "2", "3", "-1", "x", "", "1:2", "٣"]
HOSTS = ["10.0.0.5", "10.0.0.9", "head.lan", "localhost", "127.0.0.1", "0.0.0.0", "::1", ""]
ENVIRONS = [read(stem)[0] for stem in NAMES]
SEEN = sorted({name for environ in ENVIRONS for name in environ})
CAPTURED = {name: sorted({e[name] for e in ENVIRONS if name in e}) for name in SEEN}
"""Every variable that was captured anywhere, and its values."""
BY_HAND = {
    "RAY_WORKER": ["0", "1"],
    "HEAD_POD_ID": ["abc123", "def456"],
    "AGENT_HEAD": HOSTS[:3],
    "EXPECTED_WORKERS": ["0", "1", "2"],
    "AGENT_PORT": ["8266", "27110"],
    "AGENT_RAY_PORT": ["6379", "27113"],
}
ENVIRONMENTS = st.fixed_dictionaries(
    {},
    optional={
        name: st.one_of(
            st.sampled_from(texts), st.sampled_from([*NUMBERS, *HOSTS]), st.text(max_size=5)
        )
        for name, texts in {**CAPTURED, **BY_HAND}.items()
    },
)


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, str]:
    """Draw a part of one captured environment, all of another, and settings of a user."""
    one, other = draw(st.sampled_from(ENVIRONS)), draw(st.sampled_from(ENVIRONS))
    kept = draw(st.sets(st.sampled_from(sorted(one))))
    hand = {name: st.sampled_from(texts) for name, texts in BY_HAND.items()}
    added = draw(st.fixed_dictionaries({}, optional=hand))
    return {**{name: one[name] for name in kept}, **other, **added}


def plan_or_error(environ: dict[str, str]) -> Plan | SettingsError:
    """Return a node's plan, or its error; any other exception is a bug."""
    try:
        return plan_of(environ, machine(environ))
    except SettingsError as error:
        return error


@given(st.one_of(ENVIRONMENTS, mixtures()))
def test_one_role_or_one_error(environ: dict[str, str]) -> None:
    """For any variables, a node has exactly one role, or one error that names its variables."""
    plan = plan_or_error(environ)
    if isinstance(plan, SettingsError):
        assert plan.end.exit_code == 78
        assert all(p.variable and p.got and p.expected for p in plan.problems)
        return
    topology = plan.topology
    assert topology.is_head or topology.head_host is not None
    assert topology.evidence
    assert topology.expected_workers >= 0
    rank = topology.platform.rank
    nodes = topology.platform.nodes
    if nodes is None:  # a platform that counts each group's nodes apart
        assert rank is None or topology.platform.group
    else:
        assert rank is None or 0 <= rank < nodes
    if "RAY_WORKER" in environ:
        assert topology.is_head == (environ["RAY_WORKER"].strip() in {"0", "false"})
    assert render(plan, redactor_for(environ, plan.settings)).startswith("role: ")


def planned_on(node: Node) -> Plan | SettingsError:
    """Return a node's plan, or why it is refused."""
    try:
        return plan_of(node.environ, node.facts)
    except SettingsError as error:
        return error


@pytest.mark.parametrize("platform", CLUSTERS)
@given(st.integers(2, 12))
def test_one_head_that_all_workers_find(platform: str, nodes: int) -> None:
    """Over all ranks there is one head, and every worker uses an address of the head."""
    plans = [plan_of(node.environ, node.facts) for node in cluster(platform, nodes)]
    heads = [plan for plan in plans if plan.topology.is_head]
    assert [plan.topology.platform.name for plan in plans] == [platform.partition(",")[0]] * nodes
    assert len(heads) == 1
    head = heads[0]
    for plan in plans:
        host = plan.topology.head_host
        if plan is not head:
            assert host is not None
            found = plan.facts.known_names.get(host, (host,))
            assert head.facts.own_address_of(host) in found
            assert not plan.facts.is_own(host)
        assert plan.ports == head.ports
        assert (plan.own_ray is None) == (head.own_ray is None) == (platform == "kuberay")
        if plan.own_ray is not None:
            assert plan.own_ray.session == our_ray(head).session
    assert head.address.ip in (None, *head.facts.addresses())
    assert len({plan.topology.node_name for plan in plans}) == nodes


@pytest.mark.parametrize("platform", CLUSTERS)
@given(st.integers(2, 5), st.data())
def test_never_two_heads(platform: str, nodes: int, data: st.DataObject) -> None:
    """With equal settings on all nodes at most one of them becomes the head."""
    hand = {
        "AGENT_HEAD": st.sampled_from([address(0), address(1), "head.rl.default"]),
        "HEAD_POD_ID": st.sampled_from(["pod0", "pod1"]),
        "EXPECTED_WORKERS": st.sampled_from(["1", "4"]),
    }
    more = data.draw(st.fixed_dictionaries({}, optional=hand))
    plans = [planned_on(node) for node in cluster(platform, nodes, more)]
    found = [plan.topology for plan in plans if not isinstance(plan, SettingsError)]
    assert sum(t.is_head and not t.must_own_head_host for t in found) <= 1


@pytest.mark.parametrize(
    "platform", sorted(CLUSTERS.keys() - {"plain", "vast", "runpod", "kuberay"})
)
def test_ranks_are_in_the_evidence(platform: str) -> None:
    """The sentence reads: worker, rank 2 of 3, and the variables that say so."""
    for rank, node in enumerate(cluster(platform, 3)):
        topology = plan_of(node.environ, node.facts).topology
        assert topology.platform.rank == rank
        assert topology.sentence().startswith(f"{topology.role}, rank {rank} of 3: ")
        assert all("=" in word or "begins with" in word for word in topology.evidence)


def test_the_order_is_visible_and_has_an_end() -> None:
    """Each platform is once in the tuple, and `plain`, which claims everything, is last."""
    names = [name for name, _ in PLATFORMS]
    assert len(set(names)) == len(names)
    assert names[-1] == "plain"
    before = [
        ("dstack", "runpod"),
        ("skypilot", "slurm"),
        ("slurm", "runpod-cluster"),
        ("runpod-cluster", "runpod"),
        ("kuberay", "lws"),
        ("kubeflow-trainer", "pytorchjob"),
        ("torchrun", "runpod"),
    ]
    assert [pair for pair in before if names.index(pair[0]) > names.index(pair[1])] == []
