"""`/metrics`: the status in the Prometheus text format."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agent.work.services import LATENCY_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Status = Mapping[str, Any]
    Sample = tuple[Mapping[str, object], float] | tuple[Mapping[str, object], float, str]
    """Labels, value, and the suffix of a histogram's series."""
    Samples = Callable[[Status], Iterable[Sample]]
    Metric = tuple[str, str, str, Samples]

STATES = ("booting", "joined", "silent", "lost", "left")
"""All states of a node; each has a sample, so that a graph of it starts at 0."""
JOB_STATES = ("not submitted", "pending", "running", "succeeded", "failed", "stopped")
_JOINED = "following the head"


def metrics(status: Status) -> str:
    """Render a status; a metric has no samples where the status lacks a key."""
    lines: list[str] = []
    is_head = status.get("role") == "head"
    for name, kind, help_text, samples in (*_OF_NODES, *(_OF_HEADS if is_head else ())):
        rows: dict[str, float] = {}
        with suppress(KeyError):
            for labels, value, *suffix in samples(status):
                # two nodes may share a name; a series has one value
                rows.setdefault(f"pod_agent_{name}{''.join(suffix)}{_labels(labels)}", value)
        if rows:
            lines += [f"# HELP pod_agent_{name} {help_text}", f"# TYPE pod_agent_{name} {kind}"]
            lines += [f"{series} {value:.10g}" for series, value in rows.items()]
    return "\n".join(lines) + "\n"


def _at(*path: str | int) -> Samples:
    """Return the sample at a path in the status; none without a value."""

    def samples(status: Status) -> list[Sample]:
        found: Any = status
        for key in path:
            if not found:
                return []
            found = found[key]
        return [] if found is None else [({}, found)]

    return samples


def _of_services(*path: str) -> Samples:
    """Return the sample at a path in each service; none for one without a value."""
    values = _at(*path)
    return lambda status: [
        ({"service": one["name"]}, sample[1])
        for one in status["services"]
        for sample in values(one)
    ]


def _phase(status: Status) -> list[Sample]:
    return [({"role": status["role"], "phase": status["phase"]}, 1)]


def _services_up(status: Status) -> list[Sample]:
    return [({"service": one["name"]}, one["state"] == "ready") for one in status["services"]]


def _node_states(status: Status) -> list[Sample]:
    states = [node["state"] for node in status["nodes"]]
    return [({"state": state}, states.count(state)) for state in STATES]


def _job_states(status: Status) -> list[Sample]:
    job = status.get("job")
    if job is None:
        return []
    states = dict.fromkeys([*JOB_STATES, job["status"]])
    return [({"status": one}, one == job["status"]) for one in states]


def _answer_times(status: Status) -> Iterator[Sample]:
    for service in status["services"]:
        latency, name = service.get("latency"), service["name"]
        if not latency:
            continue
        cumulative = 0
        for bound, count in zip((*LATENCY_BOUNDS, "+Inf"), latency["counts"], strict=True):
            cumulative += count
            yield {"service": name, "le": bound}, cumulative, "_bucket"
        yield {"service": name}, latency["total"], "_sum"
        yield {"service": name}, cumulative, "_count"


def _phase_seconds(status: Status) -> list[Sample]:
    spans = status["phases"]
    ends = [*(start for _, start in spans[1:]), status["seconds"]]
    spent: dict[str, float] = {}
    for (phase, start), end in zip(spans, ends, strict=False):
        spent[phase] = spent.get(phase, 0.0) + max(0.0, end - start)
    return [({"phase": phase}, round(seconds, 1)) for phase, seconds in spent.items()]


def _joins(status: Status) -> Iterator[Sample]:
    for node in status["nodes"]:
        joined = next((start for phase, start in node["phases"] if phase == _JOINED), None)
        if joined is not None:
            rank = "" if node["rank"] is None else node["rank"]
            yield {"node": node["name"], "rank": rank}, joined


def _labels(labels: Mapping[str, object]) -> str:
    """Return the labels of a series; surrogates as numbers."""
    pairs = []
    for name, text in labels.items():
        plain = str(text).encode(errors="backslashreplace").decode()
        escaped = plain.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        pairs.append(f'{name}="{escaped}"')
    return "{" + ",".join(pairs) + "}" if pairs else ""


_OF_NODES: tuple[Metric, ...] = (
    ("phase", "gauge", "The phase of this node's agent; 1 for the current one.", _phase),
    ("uptime_seconds", "gauge", "Seconds since the agent's start.", _at("seconds")),
    ("waits", "gauge", "Things waited for.", lambda status: [({}, len(status["waits"]))]),
)
"""Name, type, help and samples of the metrics of every node."""

_last_answer = _of_services("latency", "last")
_OF_HEADS: tuple[Metric, ...] = (
    ("phase_seconds", "gauge", "Seconds that the head has spent in a phase.", _phase_seconds),
    ("nodes", "gauge", "Workers by state.", _node_states),
    ("node_join_seconds", "gauge", "Seconds from the head's start to a worker's join.", _joins),
    ("service_up", "gauge", "Whether a service answers.", _services_up),
    ("service_restarts_total", "counter", "Restarts of a service.", _of_services("restarts")),
    ("service_outages", "gauge", "Outages of a ready service.", _of_services("outages")),
    ("service_outage_seconds", "gauge", "Their total seconds.", _of_services("outage_seconds")),
    ("service_last_answer_seconds", "gauge", "Latency of the last answer.", _last_answer),
    ("service_answer_seconds", "histogram", "Latency of a probe's answer.", _answer_times),
    ("job_status", "gauge", "The job's status; 1 for the current one.", _job_states),
    ("attempt", "gauge", "The number of the attempt at the job.", _at("job", "attempt")),
    ("job_step", "gauge", "The last step in the job's output.", _at("curve", "points", -1, 0)),
    ("job_steps", "gauge", "The number of the job's steps.", _at("curve", "steps")),
    ("job_reward", "gauge", "The mean reward of that step.", _at("curve", "points", -1, 1)),
)
"""The same of the metrics that only the head has."""
