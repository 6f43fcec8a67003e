"""`/metrics`: the status in the Prometheus text format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.base.latency import LATENCY_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Status = Mapping[str, Any]
    Sample = tuple[Mapping[str, object], float] | tuple[Mapping[str, object], float, str]
    """Labels, value, and the suffix of a histogram's series."""

STATES = ("booting", "joined", "silent", "lost", "left")
"""All states of a node; each has a sample, so that a graph of it starts at 0."""
JOB_STATES = ("not submitted", "pending", "running", "succeeded", "failed", "stopped")
_JOINED = "following the head"


def metrics(status: Status) -> str:
    """Render a status; missing values have no sample."""
    lines: list[str] = []
    for name, kind, help_text, samples in _families(status):
        rows: dict[str, float] = {}
        for labels, value, *suffix in samples:
            # two nodes may share a name; a series has one value
            rows.setdefault(f"{name}{''.join(suffix)}{_labels(labels)}", value)
        if rows:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            lines += [f"{series} {value:.10g}" for series, value in rows.items()]
    return "\n".join(lines) + "\n"


def _families(status: Status) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    yield (
        *("pod_agent_phase", "gauge", "The phase of this node's agent; 1 for the current one."),
        [({"role": status["role"], "phase": status["phase"]}, 1)],
    )
    yield (
        *("pod_agent_uptime_seconds", "gauge", "Seconds since the agent's start."),
        _single_sample(status.get("seconds")),
    )
    yield "pod_agent_waits", "gauge", "Things waited for.", _single_sample(len(status["waits"]))
    if status["role"] == "head":
        yield from _head_families(status)


def _head_families(status: Status) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    nodes, services = status["nodes"], status["services"]
    yield (
        *("pod_agent_phase_seconds", "gauge", "Seconds that the head has spent in a phase."),
        _phase_seconds(status),
    )
    states = [node["state"] for node in nodes]
    yield (
        *("pod_agent_nodes", "gauge", "Workers by how they stand."),
        [({"state": state}, states.count(state)) for state in STATES],
    )
    yield (
        *("pod_agent_node_join_seconds", "gauge", "When a worker said that it had joined."),
        list(_joins(nodes)),
    )
    yield (
        *("pod_agent_service_up", "gauge", "Whether a service answers."),
        [({"service": one["name"]}, one["state"] == "ready") for one in services],
    )
    yield (
        *("pod_agent_service_restarts_total", "counter", "How often a service was started again."),
        [({"service": one["name"]}, one["restarts"]) for one in services],
    )
    yield (
        *("pod_agent_service_outages", "gauge", "Times in which a service that was up was not."),
        [({"service": one["name"]}, one["outages"]) for one in services],
    )
    yield (
        *("pod_agent_service_outage_seconds", "gauge", "Seconds of these times, all in all."),
        [({"service": one["name"]}, one["outage_seconds"]) for one in services],
    )
    yield (
        *("pod_agent_service_last_answer_seconds", "gauge", "How long the last answer took."),
        [({"service": one["name"]}, one["latency"]["last"]) for one in _probed(services)],
    )
    yield (
        *("pod_agent_service_answer_seconds", "histogram", "How long a probe's answer took."),
        [sample for one in _probed(services) for sample in _histogram(one)],
    )
    yield from _job_families(status)


def _job_families(status: Status) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    job = status.get("job")
    if job is None:
        return
    states = dict.fromkeys([*JOB_STATES, job["status"]])
    yield (
        *("pod_agent_job_status", "gauge", "The job's status; 1 for the current one."),
        [({"status": one}, one == job["status"]) for one in states],
    )
    yield (
        *("pod_agent_attempt", "gauge", "The number of the attempt at the job."),
        _single_sample(job["attempt"]),
    )
    points = status["curve"]["points"]
    step, reward = points[-1] if points else (None, None)
    yield "pod_agent_job_step", "gauge", "The last step that the job told of.", _single_sample(step)
    yield (
        *("pod_agent_job_steps", "gauge", "How many steps the job is to take, where it tells."),
        _single_sample(status["curve"]["steps"]),
    )
    yield "pod_agent_job_reward", "gauge", "The mean reward of that step.", _single_sample(reward)


def _probed(services: Iterable[Status]) -> list[Status]:
    """Return the services that have answered a probe."""
    return [one for one in services if one.get("latency")]


def _histogram(service: Status) -> Iterator[Sample]:
    latency, name = service["latency"], service["name"]
    cumulative = 0
    for bound, count in zip((*LATENCY_BOUNDS, "+Inf"), latency["counts"], strict=True):
        cumulative += count
        yield {"service": name, "le": bound}, cumulative, "_bucket"
    yield {"service": name}, latency["total"], "_sum"
    yield {"service": name}, cumulative, "_count"


def _single_sample(value: float | None) -> list[Sample]:
    return [] if value is None else [({}, value)]


def _phase_seconds(status: Status) -> list[Sample]:
    spans = status["phases"]
    ends = [*(start for _, start in spans[1:]), status["seconds"]]
    spent: dict[str, float] = {}
    for (phase, start), end in zip(spans, ends, strict=False):
        spent[phase] = spent.get(phase, 0.0) + max(0.0, end - start)
    return [({"phase": phase}, round(seconds, 1)) for phase, seconds in spent.items()]


def _joins(nodes: Iterable[Status]) -> Iterator[Sample]:
    for node in nodes:
        joined = next((start for phase, start in node["phases"] if phase == _JOINED), None)
        if joined is not None:
            rank = "" if node["rank"] is None else node["rank"]
            yield {"node": node["name"], "rank": rank}, joined


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: object) -> str:
    """Return a label's value, escaped; surrogates as numbers."""
    plain = str(text).encode(errors="backslashreplace").decode()
    return plain.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
