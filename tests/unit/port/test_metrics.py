"""The metrics, read by Prometheus' own parser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import fields, replace
from prometheus_client.parser import text_string_to_metric_families

from agent.base.fields import Label, declarations, of_node
from agent.base.value import Value
from agent.job.services import JudgeCost
from agent.port.metrics import metrics
from agent.port.status_model import GpuColumns, HeadStatus
from support.statuses import A_WORKER, a_wait
from tools.page.runs import service
from tools.page.runs import status as run_of
from tools.page.situations import made_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.base.fields import Metric
    from agent.port.status_model import WorkerStatus

DASHBOARD = Path(__file__).parents[3] / "examples" / "grafana" / "dashboard.json"
Samples = dict[str, dict[str, float]]
"""The value of each sample, by the name of its metric and by the values of its labels."""
EVIL = 'a "name"\\ with\nlines} 1'
WORKER = replace(A_WORKER, waits=(a_wait("the head", EVIL),))


_SUFFIX = re.compile(r"_(bucket|sum|count)$")
"""Of the series of a histogram."""
JUDGED = JudgeCost(requests=9, prompt_tokens=900, completion_tokens=90, ungraded=1)
WITH_ALL = replace(
    run_of(3),
    services=(*run_of(3).services, replace(service("judge", "ready"), judge=JUDGED)),
    groups=made_run("groups", 3).status.groups,
)
"""A run with a sample of every metric."""


def metrics_of(kind: object) -> Iterator[Metric]:
    """Yield the metrics that a type declares, and those of the types in it."""
    parts = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Struct):
        for row in declarations(kind):
            yield from row.metrics
        parts = tuple(one.type for one in fields(kind))
    for part in parts:
        yield from metrics_of(part)


class Machine(Value):
    """An object that declares a metric and a label."""

    name: Annotated[str, Label("node")]
    load: Annotated[float | None, of_node("load", "Load of a node.")]


class Machines(Value):
    """An object around others."""

    machines: tuple[Machine, ...]


def parsed(status: HeadStatus | WorkerStatus | Machines) -> Samples:
    """Return all samples by name, as Prometheus reads them; no series may come twice."""
    found: Samples = {}
    for family in text_string_to_metric_families(metrics(status)):
        assert family.documentation
        assert family.type in {"gauge", "counter", "histogram"}
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            assert labels not in series
            series[labels] = sample.value
    return found


def test_metrics_of_a_training_run() -> None:
    """Phases, nodes, services, job and progress equal those of the status."""
    found = parsed(run_of(256))
    states = {"booting": 0, "joined": 255, "silent": 0, "lost": 1, "left": 0}
    reward = "service=reward server"
    expected = {
        "phase": {"role=head,phase=running": 1},
        "phase_seconds": {"phase=booting": 70, "phase=submitting": 2, "phase=running": 265},
        "nodes": {f"state={state}": count for state, count in states.items()},
        "service_last_answer_seconds": {reward: 0.031},
        "service_answer_seconds_sum": {reward: pytest.approx(0.331)},
        "service_answer_seconds_count": {reward: 2},
        "attempt": {"": 2},
        "job_step": {"": 25},
        "job_steps": {"": 40},
        "job_step_seconds": {"": 7.5},
        "job_reward": {"": pytest.approx(0.89)},
        "job_metric": {"name=reward": pytest.approx(0.89)},
    }
    assert {name: found[f"pod_agent_{name}"] for name in expected} == expected
    assert len(found["pod_agent_node_join_seconds"]) == 256
    assert [name for name, up in found["pod_agent_service_up"].items() if up] == [reward]
    assert found["pod_agent_service_restarts_total"][reward] == 1
    assert found["pod_agent_service_outage_seconds"][reward] == 7.5
    buckets = found["pod_agent_service_answer_seconds_bucket"]
    counts = {"0.02": 0, "0.05": 1, "0.25": 1, "0.5": 2, "+Inf": 2}
    assert {le: buckets[f"{reward},le={le}"] for le in counts} == counts
    jobs = found["pod_agent_job_status"]
    assert [name for name, value in jobs.items() if value] == ["status=running"]


def test_metrics_of_machines() -> None:
    """One sample for each node: a thousand nodes with eight GPUs have a thousand of each."""
    run = run_of(3)
    first, second, third = run.nodes
    assert first.figures is not None
    run = replace(run, nodes=(first, second, replace(third, figures=None)))
    found = parsed(replace(run, figures=first.figures))
    nodes = [f"node=pod{rank},rank={rank}" for rank in range(3)]
    watts = {nodes[0]: 8 * 650, nodes[1]: 8 * 650, nodes[2]: 8 * 260}
    assert found["pod_agent_gpu_power_watts"] == watts
    assert found["pod_agent_gpu_clock_mhz"][nodes[2]] == 690
    assert found["pod_agent_disk_used_bytes"][f"{nodes[0]},folder=/workspace"] == 900 << 30
    assert found["pod_agent_gpu_memory_bytes"][nodes[0]] == pytest.approx(8 * 81_559 << 20)
    without = replace(first.figures, gpus=GpuColumns(), disks=(), host_memory_used=0)
    assert "pod_agent_gpu_use_percent" in found
    names = parsed(replace(run, nodes=(replace(first, figures=without),))).keys()
    assert not {"pod_agent_gpu_use_percent", "pod_agent_disk_bytes"} & names


def test_missing_values_have_no_sample() -> None:
    """A worker has only own metrics; without a job or a step these metrics are absent."""
    assert parsed(WORKER).keys() == {
        "pod_agent_phase",
        "pod_agent_uptime_seconds",
        "pod_agent_waits",
    }
    run = replace(run_of(3), progress=None, metrics={})
    without = parsed(replace(run, job=None))
    assert not [name for name in without if "job" in name or "attempt" in name]
    early = parsed(replace(run, services=()))
    assert not {"pod_agent_job_reward", "pod_agent_service_up"} & early.keys()


def test_the_dashboard_uses_existing_metrics() -> None:
    """Every expression of the Grafana dashboard names metrics and labels of a run."""
    found = parsed(WITH_ALL)
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expr in asked for name in re.findall(r"\bpod_agent_\w+", expr)}
    assert names
    assert names <= found.keys()
    labels = {*re.findall(r'[{,](\w+)="', metrics(WITH_ALL))}
    used = {label for expr in asked for label in re.findall(r"\b(\w+)=~?\"", expr)}
    shown = [target["legendFormat"] for panel in dashboard["panels"] for target in panel["targets"]]
    used |= {label for text in shown for label in re.findall(r"\{\{(\w+)\}\}", text)}
    assert used <= labels | {"instance", "job"}  # these two are Prometheus' own


def test_every_declared_metric_is_made_and_shown() -> None:
    """The run that is made for tests has samples of each, and the dashboard a panel."""
    declared = {f"pod_agent_{metric.name}" for metric in metrics_of(HeadStatus)}
    made = {_SUFFIX.sub("", name) for name in parsed(WITH_ALL)}
    assert made == declared, "a metric without a value in scripts/tools/page/runs.py"
    shown = {
        _SUFFIX.sub("", name) for name in re.findall(r"\bpod_agent_\w+", DASHBOARD.read_text())
    }
    assert declared - shown == {"pod_agent_uptime_seconds", "pod_agent_service_outages"}


def test_metrics_of_groups() -> None:
    """Each member has its own series: those of two nodes have the same name."""
    found = parsed(WITH_ALL)
    restarts = found["pod_agent_member_restarts_total"]
    engines = [labels for labels in restarts if "service=engine," in labels]
    assert engines == [
        f"group=rollout,service=engine,member=engine.{index},node=pod{node}"
        for node in (1, 2)
        for index in (0, 1)
    ]
    assert found["pod_agent_members_serving"] == {
        "group=rollout,service=engine": 0,
        "group=judges,service=judge": 8,
    }


def test_the_panels_of_the_dashboard_are_apart() -> None:
    """Each has an id and a place of its own: Grafana shows one of two with the same id."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len({*taken})


def test_two_nodes_with_one_name() -> None:
    """A series has one value: that of the first node."""
    run = run_of(2)
    nodes = tuple(replace(node, name="pod", rank=None) for node in run.nodes)
    run = replace(run, services=run.services * 2, nodes=nodes)
    assert len(parsed(run)["pod_agent_node_join_seconds"]) == 1


def test_a_metric_is_declared_at_its_field() -> None:
    """With the labels of what is around it; a value that is not there has no sample."""
    text = metrics(Machines((Machine("pod1", 0.5), Machine("pod2", None))))
    assert text.splitlines() == [
        "# HELP pod_agent_load Load of a node.",
        "# TYPE pod_agent_load gauge",
        'pod_agent_load{node="pod1",rank="0"} 0.5',
    ]


@given(st.text(max_size=30))
@example("pod\ud800")
def test_labels_are_escaped(name: str) -> None:
    """A label holds any text, and the parser returns it; a lone surrogate becomes its number."""
    shown = name.replace("\ud800", r"\ud800")
    assert parsed(Machines((Machine(name, 0.5),))) == {
        "pod_agent_load": {f"node={shown},rank=0": 0.5}
    }
