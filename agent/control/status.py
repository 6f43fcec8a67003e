"""The status for people: as text, as lines about changes, and as a view for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agent.record.log import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


class ViewRow(NamedTuple):
    """One line: its cells, and its tone: '', title, good, busy, bad or dim."""

    cells: tuple[str, ...]
    tone: str = ""


class Section(NamedTuple):
    """Rows with the same columns, with or without a title."""

    title: str
    rows: tuple[ViewRow, ...]

    @property
    def height(self) -> int:
        """Return the number of lines."""
        return len(self.rows) + bool(self.title)


def view_of(status: Status, height: int, age: float = 0.0, outage: str = "") -> tuple[Section, ...]:
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
    lines = status.get("job_tail", [])
    tail_least = min(len(lines), _MIN_TAIL) + bool(lines)
    nodes = _nodes(status, age, left - tail_least if left > 2 * tail_least else left)
    left -= nodes.height
    sections = (top, waits, services, nodes, _tail(lines, left))
    return tuple(section for section in sections if section.height)


def _summary(status: Status, age: float, outage: str) -> Section:
    since = f" for {duration_text(status['seconds_in_phase'] + age)}"
    run = f"run {status.get('run_id') or 'without an id'}: {status['phase']}{since}"
    started = f"{duration_text(status['seconds'] + age)} since the start"
    rows = [_row("title", f"{run}, {started}")]
    if outage:
        rows.append(_row("bad", outage))
    verdict = status.get("verdict")
    if verdict:
        tone = "good" if verdict["exit_code"] == 0 else "bad"
        text = f"{verdict['kind']}: {verdict['reason']} (exit code {verdict['exit_code']})"
        rows.append(_row(tone, text))
        rows += [_row(tone, verdict["remedy"])] if verdict.get("remedy") else []
    job = status.get("job")
    if job:
        rows.append(_row(_JOB_TONES.get(job["status"], ""), f"job {_job_text(status)}"))
    return Section("", tuple(rows))


def _row(tone: str, *cells: object) -> ViewRow:
    return ViewRow(tuple(map(one_line, cells)), tone)


def _job_text(status: Status) -> str:
    text, curve = _job_state(status["job"]), status.get("curve") or {}
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
        filled = "" if share is None else bar(share)
        cells = (short_name(wait["what"]), filled, f"{duration_text(left)} left")
        rows.append(_row("busy", *cells, wait["evidence"]))
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
        rows.append(_row(_ITEM_TONES.get(one["state"], ""), *cells))
    for one in status.get("prepare", []):
        state = "done" if one["state"] == "ready" else one["state"]
        progress = _progress(status, "head").get(one["name"], "")
        cells = (short_name(one["name"]), state, "", one["detail"] or progress)
        rows.append(_row(_ITEM_TONES.get(one["state"], ""), *cells))
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
    head = _row("", "head", short_name(status.get("name") or ""), "", status["phase"], in_phase, "")
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
    name, phase, state = short_name(node["name"]), short_name(node["phase"]), node["state"]
    return _row(_NODE_TONES.get(state, ""), rank, name, state, phase, since, text)


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
    return Section("the job's last lines", tuple(_row("dim", x) for x in lines[-(most - 1) :]))


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


# --- as text -------------------------------------------------------------------------------------


def status_text(status: Status) -> str:
    """Format a status as text."""
    began = (
        f"run {status.get('run_id')}, {status['phase']} for {status['seconds_in_phase']:.0f} s "
        f"({status['seconds']:.0f} s since the start)"
    )
    return "\n".join([began, *_keyed_lines(status).values()])


def changes(before: Status, after: Status) -> list[str]:
    """Return a line for each change since the former status, except clocks."""
    lines = []
    if before.get("run_id") != after.get("run_id"):
        lines.append(f"run {after.get('run_id')}")
    if before["phase"] != after["phase"]:
        lines.append(f"the head is {after['phase']}")
    known = _keyed_lines(before)
    lines += [line for key, line in _keyed_lines(after).items() if key not in known]
    return lines


def _keyed_lines(status: Status) -> dict[object, str]:
    """Return the lines of a status; a line's key is the same while only its clocks change."""
    found: dict[object, str] = {}
    job = status.get("job") or {"name": "none", "status": "none", "attempt": 1}
    line = f"job {_job_state(job)}"
    found[line] = line
    for wait in _awaited(status):
        evidence = wait["evidence"] or "no report yet"
        gist = "".join(sign for sign in evidence if not sign.isdigit())
        left = duration_text(wait["seconds_left"])
        found[wait["what"], gist] = f"waiting for {wait['what']}: {evidence} ({left} left)"
    for one in (*status["services"], *status.get("prepare", [])):
        detail = f" ({one['detail']})" if one["detail"] else ""
        found[one["name"], one["state"], one.get("restarts")] = (
            f"{one['name']}: {one['state']}{detail}"
        )
    for node in status["nodes"]:
        rank = "" if node["rank"] is None else f" rank {node['rank']}"
        error = f"last error: {node['last_error']}" if node["last_error"] else ""
        steps = _steps(node)
        text = f"worker {node['name']}{rank} ({node['ip']}): {node['state']}, {node['phase']}"
        found[text, error, steps] = "; ".join(filter(None, (text, steps, error)))
    verdict = status.get("verdict")
    if verdict:
        line = f"verdict: {verdict['kind']}: {verdict['reason']}"
        found[line] = line
    return {key: one_line(line) for key, line in found.items()}


def _job_state(job: Status) -> str:
    attempt = f", attempt {job['attempt']}" if job["attempt"] > 1 else ""
    return f"{job['name']}: {job['status']}{attempt}"
