"""The status for a terminal: sections that fit its height, and changes as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.base.value import dataclass
from agent.record.log import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Status = Mapping[str, Any]


_CLOCK_FIELDS = frozenset(
    {
        *("seconds", "seconds_in_phase", "seconds_left", "heard_seconds_ago", "outage_seconds"),
        "latency",
    }
)
"""Fields that change with the clock or with each probe."""

_MAX_TEXT = 400
"""Characters shown of one text."""
_MAX_NAME = 24
"""Longer names leave no space for the other columns."""
_MAX_WAITS = 6
_MAX_SERVICES = 8
_MIN_TAIL = 3
_BAR_WIDTH = 20
_WORST_FIRST = ("lost", "silent", "booting", "left", "joined")
_NODE_TONES = {"lost": "bad", "silent": "bad", "booting": "busy", "left": "dim", "joined": "good"}
_ITEM_TONES = {"lost": "bad", "pending": "busy", "ready": "good"}
_JOB_TONES = {"running": "good", "succeeded": "good", "failed": "bad", "pending": "busy"}
_RUNNING, _FAILED = "running", "failed"


def without_clocks(status: object) -> object:
    """Return a status without the fields that change all the time."""
    if isinstance(status, dict):
        return {
            name: without_clocks(value)
            for name, value in status.items()
            if name not in _CLOCK_FIELDS
        }
    return [without_clocks(one) for one in status] if isinstance(status, list) else status


@dataclass(frozen=True)
class ViewRow:
    """One line: its cells, and its tone: '', title, good, busy, bad or dim."""

    cells: tuple[str, ...]
    tone: str = ""


@dataclass(frozen=True)
class Section:
    """Rows with the same columns, with or without a title."""

    title: str
    rows: tuple[ViewRow, ...]

    @property
    def height(self) -> int:
        """Return the number of lines."""
        return len(self.rows) + bool(self.title)


@dataclass(frozen=True)
class View:
    """The whole view."""

    sections: tuple[Section, ...]

    @property
    def height(self) -> int:
        """Return the number of lines."""
        return sum(section.height for section in self.sections)


def view_of(status: Status, height: int, age: float = 0.0, outage: str = "") -> View:
    """Return the view of a status of `age` seconds ago that fits into `height` lines.

    `outage` is why there is no newer status. Raises KeyError, TypeError, ValueError or
    AttributeError for the status of another version.
    """
    top = _summary(status, age, outage)
    left = max(0, height - top.height)
    waits = _waits(status, age, min(_MAX_WAITS, left))
    left -= waits.height
    services = _services(status, age, min(_MAX_SERVICES, left))
    left -= services.height
    lines = [*status.get("job_tail", [])]
    tail_least = min(len(lines), _MIN_TAIL) + bool(lines)
    nodes = _nodes(status, age, left - tail_least if left > 2 * tail_least else left)
    left -= nodes.height
    sections = (top, waits, services, nodes, _tail(lines, left))
    return View(tuple(section for section in sections if section.height))


def _summary(status: Status, age: float, outage: str) -> Section:
    since = f" for {duration_text(status['seconds_in_phase'] + age)}"
    run = f"run {status.get('run_id') or 'without an id'}: {status['phase']}{since}"
    started = f"{duration_text(status['seconds'] + age)} since the start"
    rows = [ViewRow((one_line(f"{run}, {started}"),), "title")]
    if outage:
        rows.append(ViewRow((one_line(outage),), "bad"))
    verdict = status.get("verdict")
    if verdict:
        tone = "good" if verdict["exit_code"] == 0 else "bad"
        text = f"{verdict['kind']}: {verdict['reason']} (exit code {verdict['exit_code']})"
        rows.append(ViewRow((one_line(text),), tone))
        rows += [ViewRow((one_line(verdict["remedy"]),), tone)] if verdict.get("remedy") else []
    job = status.get("job")
    if job:
        rows.append(
            ViewRow((one_line(f"job {_job_text(status)}"),), _JOB_TONES.get(job["status"], ""))
        )
    return Section("", tuple(rows))


def _job_text(status: Status) -> str:
    job, curve = status["job"], status.get("curve") or {}
    attempt = f", attempt {job['attempt']}" if job["attempt"] > 1 else ""
    text = f"{job['name']}: {job['status']}{attempt}"
    points, steps = curve.get("points") or [], curve.get("steps")
    if not points:
        return text
    step, reward = points[-1]
    of = f" of {steps} {bar(step / steps)}" if steps else ""
    return f"{text}, step {step}{of}, mean reward {reward:.3g}"


def _waits(status: Status, age: float, most: int) -> Section:
    in_phase = status["seconds_in_phase"] + age
    rows = []
    for wait in _awaited(status):
        left = wait["seconds_left"] - age
        # boot, submission and stop: the wait started with the phase
        share = in_phase / max(0.1, in_phase + left) if status["phase"] != _RUNNING else None
        remaining = f"{duration_text(left)} left"
        cells = (
            short_name(wait["what"]),
            "" if share is None else bar(share),
            remaining,
            wait["evidence"],
        )
        rows.append(ViewRow(tuple(map(one_line, cells)), "busy"))
    return _section_that_fits("waiting for", rows, most)


def _awaited(status: Status) -> list[Status]:
    """Return the waits with a deadline, without that for the end of the run."""
    return [wait for wait in status["waits"] if not wait.get("following")]


def _services(status: Status, age: float, most: int) -> Section:
    rows = []
    for one in status["services"]:
        restarts = f"restarts: {one['restarts']}" if one["restarts"] else ""
        latency = one.get("latency")
        answers = f"answers in {latency_text(latency['last'])}" if latency else ""
        details = "; ".join(filter(None, (restarts, _outages(one, age), answers)))
        cells = (short_name(one["name"]), one["state"], details, one["detail"])
        rows.append(ViewRow(tuple(map(one_line, cells)), _ITEM_TONES.get(one["state"], "")))
    for one in status.get("prepare", []):
        state = "done" if one["state"] == "ready" else one["state"]
        progress = _progress(status, "head").get(one["name"], "")
        cells = (short_name(one["name"]), state, "", one["detail"] or progress)
        rows.append(ViewRow(tuple(map(one_line, cells)), _ITEM_TONES.get(one["state"], "")))
    rows.sort(key=lambda row: ("bad", "busy", "good", "").index(row.tone))
    return _section_that_fits("services and prepare steps", rows, most)


def _outages(service: Status, age: float) -> str:
    if not service["outages"]:
        return ""
    is_open = service["outage_since"] is not None
    seconds = service["outage_seconds"] + (age if is_open else 0.0)
    return (
        f"outages: {service['outages']}, {duration_text(seconds)}{', not over' if is_open else ''}"
    )


def _nodes(status: Status, age: float, most: int) -> Section:
    nodes = status["nodes"]
    now = status["seconds"] + age
    if not nodes:
        return Section("", ())
    in_phase = duration_text(status["seconds_in_phase"] + age)
    cells = ("head", short_name(status.get("name") or ""), "", status["phase"], in_phase, "")
    head = ViewRow(tuple(map(one_line, cells)))
    states = [node["state"] for node in nodes]
    counts = [f"{states.count(one)} {one}" for one in _WORST_FIRST if one in states]
    workers = "worker" if len(nodes) == 1 else "workers"
    title = f"nodes: {len(nodes)} {workers}: {', '.join(counts)}"
    rows = [head, *(_node(status, node, now, age) for node in nodes)]
    if len(rows) + 1 > most:
        rank = {state: place for place, state in enumerate(_WORST_FIRST)}
        order = sorted(nodes, key=lambda node: rank.get(node["state"], 0))
        rows = [_node(status, node, now, age) for node in order]
    return _section_that_fits(one_line(title), rows, most)


def _node(status: Status, node: Status, now: float, age: float) -> ViewRow:
    silence = node["heard_seconds_ago"]
    phases = node["phases"]
    since = duration_text(now - phases[-1][1]) if phases else ""
    is_present = node["state"] not in {"left", "lost"}
    text = node["last_error"] or _preparing(status, node) or node["detail"]
    if is_present and silence is not None and silence + age > 15:
        text = "; ".join(filter(None, (f"last heard {duration_text(silence + age)} ago", text)))
    rank = "-" if node["rank"] is None else str(node["rank"])
    cells = (
        rank,
        short_name(node["name"]),
        node["state"],
        short_name(node["phase"]),
        since,
        text,
    )
    return ViewRow(tuple(map(one_line, cells)), _NODE_TONES.get(node["state"], ""))


def _preparing(status: Status, node: Status) -> str:
    """Return a node's failed or running prepare steps, with the last line of their logs."""
    progress = _progress(status, node["name"])
    steps = _steps(node)
    if progress and not steps.startswith(_FAILED):
        return "; ".join(f"{name}: {line}" for name, line in progress.items())
    return steps


def _steps(node: Status) -> str:
    steps = node.get("steps", [])
    failed = [step["name"] for step in steps if step["state"] == "lost"]
    if failed:
        return f"{_FAILED}: {', '.join(failed)}"
    running = [step["name"] for step in steps if step["state"] == "pending"]
    return f"preparing: {', '.join(running)}" if running else ""


def _progress(status: Status, node: str) -> Mapping[str, str]:
    found: Mapping[str, str] = (status.get("progress") or {}).get(node, {})
    return found


def _tail(lines: Sequence[str], most: int) -> Section:
    if most < 2 or not lines:
        return Section("", ())
    last = lines[-(most - 1) :]
    return Section(
        "the job's last lines", tuple(ViewRow((one_line(line),), "dim") for line in last)
    )


def _section_that_fits(title: str, rows: Sequence[ViewRow], most: int) -> Section:
    """Return a section of at most `most` lines; the title counts the rows left out."""
    if not rows or most < 1:
        return Section("", ())
    if len(rows) + 1 <= most:
        return Section(title, tuple(rows))
    shown = tuple(rows[: most - 1])
    more = len(rows) - len(shown)
    return Section(f"{title} ({more} more not shown)", shown)


def one_line(text: object) -> str:
    """Return a text on one line, without control characters."""
    return printable(str(text)[:_MAX_TEXT].replace("\t", " "))


def short_name(name: str) -> str:
    """Return a name, a long one without its middle: names differ at their ends."""
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME // 2 - 1]}…{name[-_MAX_NAME // 2 :]}"


def duration_text(seconds: float) -> str:
    """Format a duration, as the page does."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def latency_text(seconds: float) -> str:
    """Format an answer's latency."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def bar(share: float, width: int = _BAR_WIDTH) -> str:
    """Draw a progress bar in ASCII."""
    full = round(min(1.0, max(0.0, share)) * width)
    return f"[{'#' * full}{'.' * (width - full)}]"


def changes(before: Status, after: Status) -> list[str]:
    """Return a sentence for each change since the former status, except clocks."""
    lines = []
    if before.get("run_id") != after.get("run_id"):
        lines.append(f"run {after.get('run_id')}")
    if before["phase"] != after["phase"]:
        lines.append(f"the head is {after['phase']}")
    lines += _new_lines(_wait_lines(before), _wait_lines(after))
    lines += _new_lines(_item_lines(before), _item_lines(after))
    lines += _new_lines(_node_lines(before), _node_lines(after))
    lines += _new_lines(_job_lines(before), _job_lines(after))
    verdict = after.get("verdict")
    if verdict and before.get("verdict") != verdict:
        lines.append(f"verdict: {verdict['kind']}: {verdict['reason']}")
    return [one_line(line) for line in lines]


def _new_lines(before: Mapping[object, str], after: Mapping[object, str]) -> Iterable[str]:
    return [line for key, line in after.items() if key not in before]


def _wait_lines(status: Status) -> dict[object, str]:
    """Return a line per wait; a change of a number alone makes no new key."""
    found: dict[object, str] = {}
    for wait in _awaited(status):
        gist = "".join(sign for sign in wait["evidence"] if not sign.isdigit())
        evidence = wait["evidence"] or "no word"
        left = duration_text(wait["seconds_left"])
        found[wait["what"], gist] = f"waiting for {wait['what']}: {evidence} ({left} left)"
    return found


def _item_lines(status: Status) -> dict[object, str]:
    found: dict[object, str] = {}
    for one in (*status["services"], *status.get("prepare", [])):
        detail = f" ({one['detail']})" if one["detail"] and one["state"] == "lost" else ""
        key = (one["name"], one["state"], one.get("restarts"))
        found[key] = f"{one['name']}: {one['state']}{detail}"
    return found


def _node_lines(status: Status) -> dict[object, str]:
    found: dict[object, str] = {}
    for node in status["nodes"]:
        rank = "" if node["rank"] is None else f" rank {node['rank']}"
        steps = _steps(node)
        key = (node["name"], node["ip"], node["state"], node["phase"], node["last_error"], steps)
        error = f"; last error: {node['last_error']}" if node["last_error"] else ""
        more = f"; {steps}{error}" if steps else error
        found[key] = f"worker {node['name']}{rank}: {node['state']}, {node['phase']}{more}"
    return found


def _job_lines(status: Status) -> dict[object, str]:
    job = status.get("job")
    if not job:
        return {}
    attempt = f", attempt {job['attempt']}" if job["attempt"] > 1 else ""
    line = f"job {job['name']}: {job['status']}{attempt}"
    return {line: line}
