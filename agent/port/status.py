"""The status for people, as lines, and for Prometheus, as metrics."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agent.base.text import Line, duration_text, escaped, listed, short_duration
from agent.decisions.receipt import sentence
from agent.job.progress import reward_text
from agent.job.services import LATENCY_BOUNDS
from agent.node.facts import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agent.base.text import Tone

    Status = Mapping[str, Any]
    Sample = tuple[Mapping[str, object], float] | tuple[Mapping[str, object], float, str]
    """Labels, value, and the suffix of a histogram's series."""
    Samples = Callable[[Status], Iterable[Sample]]
    Metric = tuple[str, str, str, Samples]

_CLOCK_FIELDS = {
    *("seconds", "seconds_in_phase", "seconds_left", "heard_seconds_ago", "outage_seconds"),
    *("latency", "judge", "cost", "figures", "receipt", "slow", "glance", "seconds_since_step"),
    *("loss_seconds_left", "at", "gpu_history"),
}
"""Fields that change with the clock or with each probe."""

_STALL = "stall"
_OF_RUN = (_STALL, "slow node", "full soon", "training")
"""The checks of warnings about what the run does (run/stall.py, run/machine_watch.py, and
diagnosis/advice.py); others are about machines and settings."""
_NUMBER = re.compile(r"(?<![\w-])\d+(?:\.\d+)?")  # none within a name
_MAX_TEXT = 400  # Characters of one text
_SILENT_AFTER = 15
_WORST_FIRST = ("lost", "silent", "booting", "left", "joined")
_TONES: Mapping[str, Tone] = {
    **dict.fromkeys(("lost", "silent", "failed"), "bad"),
    **dict.fromkeys(("booting", "pending"), "busy"),
    **dict.fromkeys(("joined", "ready", "running", "succeeded"), "good"),
    "left": "dim",
}
"""By the state of a node, a service, a prepare step or the job."""


def at_rest(status: Any, name: str = "") -> Any:  # noqa: ANN401 - any JSON
    """Return a status with its clocks at 0 and without numbers in evidence."""
    if name in _CLOCK_FIELDS and status is not None:
        return 0
    if name == "evidence":
        return re.sub(r"\d", "", str(status))
    if name == "warnings":
        warnings = status or ()
        return [{**warning, "what": _NUMBER.sub("", str(warning["what"]))} for warning in warnings]
    if isinstance(status, dict):
        return {key: at_rest(value, key) for key, value in status.items()}
    if isinstance(status, list):
        return [at_rest(item) for item in status]
    return status


def status_lines(status: Status) -> list[Line]:
    """Return all that a person is shown of a status, the worst nodes first.

    Raises KeyError, TypeError, ValueError or AttributeError for the status of another version.
    """
    nodes = (_line(tone, f"node {rank}", *more) for tone, (rank, *more) in node_rows(status))
    return [*run_lines(status), *nodes, *_more_refused(status)]


def run_lines(status: Status) -> list[Line]:
    """Return the lines of a status apart from its nodes."""
    parts = (
        _summary(status),
        _receipt(status),
        _waits(status),
        _services(status),
        _prepare_steps(status),
        _caches(status),
    )
    return [line for part in parts for line in part]


def _line(tone: Tone, *cells: object) -> Line:
    return Line("  ".join(filter(None, map(one_line, cells))), tone=tone)


def _summary(status: Status) -> Iterator[Line]:
    run_id = status.get("run_id") or "without an id"
    since = duration_text(status["seconds_in_phase"])
    total = duration_text(status["seconds"])
    title = f"run {run_id}: {status['phase']} for {since}, {total} since the start"
    if status.get("cost") is not None:
        title += f", ${status['cost']:.2f}"
    yield _line("title", title)

    verdict = status.get("verdict")
    if verdict:
        reason = verdict["reason"]
        tone: Tone = "good" if verdict["exit_code"] == 0 else "bad"
        headline = f"{verdict['kind']}: {reason}"
        if reason.startswith("warning: "):  # a success that is none to rely on
            tone = "busy"
            headline = reason
        yield _line(tone, f"{headline} (exit code {verdict['exit_code']})")
        if verdict.get("remedy"):
            yield _line(tone, verdict["remedy"])

    job = status.get("job")
    if job:
        text = f"job {job['name']}: {job['status']}"
        if job["attempt"] > 1:
            text += f", attempt {job['attempt']}"
        text = ", ".join((text, *progress_parts(status.get("progress"))))
        yield _line(_TONES.get(job["status"], ""), text)
    yield from _warnings(status)


def _warnings(status: Status) -> Iterator[Line]:
    """Yield the warnings about what the run does; of stalls the last one."""
    warnings = [warning for warning in status.get("warnings") or () if warning["check"] in _OF_RUN]
    stalls = [warning for warning in warnings if warning["check"] == _STALL]
    for warning in [*stalls[-1:], *(other for other in warnings if other["check"] != _STALL)]:
        what = one_line(f"{warning['check']}: {warning['what']}")
        yield Line(f"{what}. {one_line(warning['remedy'])}", tone="busy")


def progress_parts(progress: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the parts of a sentence about the job's steps, as `/status` has them."""
    if not progress:
        return
    step = f"step {progress['step']}"
    if progress["of"] is not None:
        step += f" of {progress['of']}"
    yield step
    if progress["seconds_per_step"] is not None:
        yield f"{short_duration(progress['seconds_per_step'])} a step"
    if progress["ends_at"] is not None:
        yield f"done about {progress['ends_at'][:16].replace('T', ' ')} UTC"
    if progress["reward"] is not None:
        yield reward_text(progress["reward"], progress["reward_trend"])


def _receipt(status: Status) -> Iterator[Line]:
    receipt = status.get("receipt")
    line = sentence(receipt) if receipt else ""
    if line:
        yield _line("dim", f"time: {line}")


def _waits(status: Status) -> Iterator[Line]:
    """Yield the waits with a deadline, without that for the end of the run."""
    for wait in status["waits"]:
        if not wait.get("following"):
            what = f"waiting for {wait['what']}"
            limit = f"{duration_text(wait['seconds_left'])} left"
            yield _line("busy", what, limit, wait["evidence"] or "no report yet")


def _services(status: Status) -> Iterator[Line]:
    for service in status["services"]:
        state = service["state"]
        details = []
        if service.get("gpus"):
            details.append(f"GPUs of its own: {service['gpus']}")
        judge = service.get("judge")
        if judge:
            tokens = judge["prompt_tokens"] + judge["completion_tokens"]
            details.append(f"judge: {judge['requests']} requests, {tokens} tokens")
        if judge and judge["ungraded"]:
            details.append(f"answers without a grade: {judge['ungraded']}")
        if service["restarts"]:
            details.append(f"restarts: {service['restarts']}")
        if service["outages"]:
            is_open = ", not over" if service["outage_since"] is not None else ""
            seconds = duration_text(service["outage_seconds"])
            details.append(f"outages: {service['outages']}, {seconds}{is_open}")
        name = f"service {service['name']}"
        yield _line(_TONES.get(state, ""), name, state, "; ".join(details), service["detail"])


def _prepare_steps(status: Status) -> Iterator[Line]:
    progress = (status.get("prepare_lines") or {}).get("head", {})
    for step in status.get("prepare", []):
        state = "done" if step["state"] == "ready" else step["state"]
        detail = step["detail"] or progress.get(step["name"], "")
        yield _line(_TONES.get(step["state"], ""), f"prepare step {step['name']}", state, detail)


def _caches(status: Status) -> Iterator[Line]:
    """Yield how the nodes' compile caches were seeded, with the nodes that started cold."""
    own = status.get("caches")
    if not own:
        return
    cold = [node["name"] for node in status["nodes"] if node.get("caches") == "cold"]
    others = f"cold on {listed(cold)}" if cold else ""
    yield _line("", "compile caches", own["state"], own["detail"], others)


def _more_refused(status: Status) -> Iterator[Line]:
    count = status.get("more_refused")
    if count:
        yield _line("bad", f"{count} more agents were refused")


def node_rows(status: Status) -> list[tuple[Tone, list[str]]]:
    """Return the tone and the cells of each node, the head first, then the worst."""
    if not status["nodes"]:
        return []
    worst = {state: place for place, state in enumerate(_WORST_FIRST)}
    since = duration_text(status["seconds_in_phase"])
    slow = status.get("slow") or ""
    head = ("head", status.get("name") or "", "", "", status["phase"], since, slow)
    nodes = sorted(status["nodes"], key=lambda node: worst.get(node["state"], 0))
    rows = [head, *(_node(status, node) for node in nodes)]
    return [(_TONES.get(row[3], ""), [*map(one_line, row)]) for row in rows]


def _node(status: Status, node: Status) -> tuple[str, ...]:
    silence = node["heard_seconds_ago"]
    phases = node["phases"]
    since = duration_text(status["seconds"] - phases[-1][1]) if phases else ""
    is_present = node["state"] not in {"left", "lost"}
    text = node["last_error"] or _preparing(status, node) or node["detail"]
    text = "; ".join(filter(None, (node.get("slow", ""), text)))
    if is_present and silence is not None and silence > _SILENT_AFTER:
        text = "; ".join(filter(None, (f"last report {duration_text(silence)} ago", text)))
    rank = "-" if node["rank"] is None else str(node["rank"])
    return (rank, node["name"], node["ip"], node["state"], node["phase"], since, text)


def _preparing(status: Status, node: Status) -> str:
    """Return a node's failed or running prepare steps, with the last line of their logs."""
    steps = node.get("steps", [])
    failed = [step["name"] for step in steps if step["state"] == "lost"]
    if failed:
        return f"failed: {', '.join(failed)}"
    progress = (status.get("prepare_lines") or {}).get(node["name"])
    if progress:
        return "; ".join(f"{name}: {line}" for name, line in progress.items())
    running = [step["name"] for step in steps if step["state"] == "pending"]
    if running:
        return f"preparing: {', '.join(running)}"
    return ""


def one_line(text: object) -> str:
    """Return a text on one line, without control characters."""
    return escaped(str(text)[:_MAX_TEXT].replace("\t", " "))


# --- metrics -------------------------------------------------------------------------------------

STATES = ("booting", "joined", "silent", "lost", "left")  # Each has a sample, from 0 on
JOB_STATES = ("not submitted", "pending", "running", "succeeded", "failed", "stopped")
_JOINED = "following the head"


def metrics(status: Status) -> str:
    """Render a status; a metric has no samples where the status lacks a key."""
    lines: list[str] = []
    known = _OF_NODES
    if status.get("role") == "head":
        known = (*_OF_NODES, *_OF_HEADS)
    for name, kind, help_text, samples in known:
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
        value: Any = status
        for key in path:
            if not value:
                return []
            value = value[key]
        if value is None:
            return []
        return [({}, value)]

    return samples


def _of_services(*path: str) -> Samples:
    """Return the sample at a path in each service; none for one without a value."""
    values = _at(*path)
    return lambda status: [
        ({"service": service["name"]}, sample[1])
        for service in status["services"]
        for sample in values(service)
    ]


def _phase(status: Status) -> list[Sample]:
    return [({"role": status["role"], "phase": status["phase"]}, 1)]


def _services_up(status: Status) -> list[Sample]:
    return [
        ({"service": service["name"]}, service["state"] == "ready")
        for service in status["services"]
    ]


def _node_states(status: Status) -> list[Sample]:
    states = [node["state"] for node in status["nodes"]]
    return [({"state": state}, states.count(state)) for state in STATES]


def _job_states(status: Status) -> list[Sample]:
    job = status.get("job")
    if job is None:
        return []
    states = dict.fromkeys([*JOB_STATES, job["status"]])
    return [({"status": state}, state == job["status"]) for state in states]


def _job_metrics(status: Status) -> list[Sample]:
    return [({"name": name}, value) for name, value in status["metrics"].items()]


def _answer_times(status: Status) -> Iterator[Sample]:
    for service in status["services"]:
        latency = service.get("latency")
        name = service["name"]
        if not latency:
            continue
        cumulative = 0
        for bound, count in zip((*LATENCY_BOUNDS, "+Inf"), latency["counts"], strict=True):
            cumulative += count
            yield {"service": name, "le": bound}, cumulative, "_bucket"
        yield {"service": name}, latency["total"], "_sum"
        yield {"service": name}, cumulative, "_count"


def _judge_tokens(status: Status) -> Iterator[Sample]:
    for service in status["services"]:
        judge = service.get("judge")
        for kind in ("prompt", "completion") if judge else ():
            yield {"service": service["name"], "kind": kind}, judge[f"{kind}_tokens"]


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


def _machines(status: Status) -> Iterator[tuple[dict[str, object], Status]]:
    """Yield the labels and the figures of each node that has some, the head first."""
    head = {"name": status["name"], "rank": 0, "figures": status["figures"]}
    for node in (head, *status["nodes"]):
        if node["figures"] is not None:
            rank = "" if node["rank"] is None else node["rank"]
            yield {"node": node["name"], "rank": rank}, node["figures"]


def _of_gpus(column: str, combine: Callable[[list[float]], float], unit: float = 1) -> Samples:
    """Return one sample for each node: its GPUs' figures, combined."""

    def samples(status: Status) -> Iterator[Sample]:
        for labels, figures in _machines(status):
            values = [value for value in figures["gpus"].get(column, []) if value is not None]
            if values:
                yield labels, combine(values) * unit

    return samples


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _of_machines(name: str) -> Samples:
    """Return one sample for each node that reports a figure."""
    return lambda status: (
        (labels, figures[name]) for labels, figures in _machines(status) if figures[name]
    )


def _of_disks(place: int) -> Samples:
    """Return a sample for each disk: 1 is what is used, 2 its size."""
    return lambda status: (
        ({**labels, "folder": disk[0]}, disk[place])
        for labels, figures in _machines(status)
        for disk in figures["disks"]
    )


def _labels(labels: Mapping[str, object]) -> str:
    """Return the labels of a series; surrogates as numbers."""
    pairs = []
    for name, text in labels.items():
        plain = str(text).encode(errors="backslashreplace").decode()
        escaped = plain.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        pairs.append(f'{name}="{escaped}"')
    if not pairs:
        return ""
    return "{" + ",".join(pairs) + "}"


_OF_NODES: tuple[Metric, ...] = (
    ("phase", "gauge", "The phase of this node's agent; 1 for the current one.", _phase),
    ("uptime_seconds", "gauge", "Seconds since the agent's start.", _at("seconds")),
    ("waits", "gauge", "Things waited for.", lambda status: [({}, len(status["waits"]))]),
)
"""Name, type, help and samples of the metrics of every node."""

_judge_requests = _of_services("judge", "requests")
_judge_ungraded = _of_services("judge", "ungraded")
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
    ("judge_requests_total", "counter", "Requests to the judge.", _judge_requests),
    ("judge_tokens_total", "counter", "Tokens that the judge has counted.", _judge_tokens),
    ("judge_ungraded_total", "counter", "Answers that got no grade.", _judge_ungraded),
    ("job_status", "gauge", "The job's status; 1 for the current one.", _job_states),
    ("attempt", "gauge", "The number of the attempt at the job.", _at("job", "attempt")),
    ("gpu_use_percent", "gauge", "Mean utilization of a node's GPUs.", _of_gpus("use", _mean)),
    ("gpu_power_watts", "gauge", "Power of a node's GPUs in all.", _of_gpus("power", sum)),
    ("gpu_clock_mhz", "gauge", "Clock of a node's slowest GPU.", _of_gpus("clock", min)),
    ("gpu_celsius", "gauge", "Temperature of its hottest GPU.", _of_gpus("temperature", max)),
    ("gpu_memory_used_bytes", "gauge", "GPU memory in use.", _of_gpus("memory_used", sum, MIB)),
    ("gpu_memory_bytes", "gauge", "GPU memory of a node.", _of_gpus("memory_total", sum, MIB)),
    ("host_memory_used_bytes", "gauge", "Host memory in use.", _of_machines("host_memory_used")),
    ("host_memory_bytes", "gauge", "Host memory of a node.", _of_machines("host_memory_total")),
    ("disk_used_bytes", "gauge", "What is used of a folder's disk.", _of_disks(1)),
    ("disk_bytes", "gauge", "The size of a folder's disk.", _of_disks(2)),
    ("received_bytes_per_second", "gauge", "Over the network.", _of_machines("network_received")),
    ("sent_bytes_per_second", "gauge", "Over the network.", _of_machines("network_sent")),
    ("job_step", "gauge", "The job's last step.", _at("progress", "step")),
    ("job_steps", "gauge", "The number of the job's steps.", _at("progress", "of")),
    ("job_step_seconds", "gauge", "Seconds of a step.", _at("progress", "seconds_per_step")),
    ("job_reward", "gauge", "The mean reward of the last step.", _at("progress", "reward")),
    ("job_metric", "gauge", "The newest value of each of the job's metrics.", _job_metrics),
)
"""The same of the metrics that only the head has."""
