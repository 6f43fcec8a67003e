"""What a terminal shows of a status: a few rows that fit its height, worst first.

Pure: the same status, height and seconds make the same rows; how they are drawn is another's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.base.value import dataclass
from agent.record.log import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Status = Mapping[str, Any]

_LONGEST = 400
"""No terminal shows more of one text."""
_LONGEST_NAME = 24
"""Longer ones leave no room for what is said beside them."""
_MOST_WAITS = 6
_MOST_SERVICES = 8
_LEAST_TAIL = 3
_BAR = 20
_WORST_FIRST = ("lost", "silent", "booting", "left", "joined")
_NODE_TONES = {"lost": "bad", "silent": "bad", "booting": "busy", "left": "dim", "joined": "good"}
_ITEM_TONES = {"lost": "bad", "pending": "busy", "ready": "good"}
_JOB_TONES = {"running": "good", "succeeded": "good", "failed": "bad", "pending": "busy"}
_RUNNING, _FAILED = "running", "failed"


@dataclass(frozen=True)
class Row:
    """One line: its cells, and how they are meant: '', good, busy, bad or dim."""

    cells: tuple[str, ...]
    tone: str = ""


@dataclass(frozen=True)
class Section:
    """Lines of one kind, in columns; the first may be a title of its own."""

    title: str
    rows: tuple[Row, ...]

    @property
    def height(self) -> int:
        """Return how many lines it takes."""
        return len(self.rows) + bool(self.title)


@dataclass(frozen=True)
class View:
    """All that is shown."""

    sections: tuple[Section, ...]

    @property
    def height(self) -> int:
        """Return how many lines it takes, each of one line."""
        return sum(section.height for section in self.sections)


def view_of(
    status: Status, height: int, passed: float = 0.0, gone: str = "", *, with_tail: bool = True
) -> View:
    """Return what fits into so many lines of a status that came `passed` seconds ago.

    `gone` says why there is no later one. Raises KeyError, TypeError, ValueError or
    AttributeError for what no head of this version tells.
    """
    top = _top(status, passed, gone)
    left = max(0, height - top.height)
    waits = _waits(status, passed, min(_MOST_WAITS, left))
    left -= waits.height
    services = _services(status, passed, min(_MOST_SERVICES, left))
    left -= services.height
    lines = [*status.get("job_tail", [])] if with_tail else []
    tail_least = min(len(lines), _LEAST_TAIL) + bool(lines)
    nodes = _nodes(status, passed, left - tail_least if left > 2 * tail_least else left)
    left -= nodes.height
    sections = (top, waits, services, nodes, _tail(lines, left))
    return View(tuple(section for section in sections if section.height))


# --- the sections --------------------------------------------------------------------------------


def _top(status: Status, passed: float, gone: str) -> Section:
    since = f" for {long(status['seconds_in_phase'] + passed)}"
    run = f"run {status.get('run_id') or 'without an id'}: {status['phase']}{since}"
    started = f"{long(status['seconds'] + passed)} since the start"
    rows = [Row((plain(f"{run}, {started}"),), "title")]
    if gone:
        rows.append(Row((plain(gone),), "bad"))
    verdict = status.get("verdict")
    if verdict:
        tone = "good" if verdict["exit_code"] == 0 else "bad"
        told = f"{verdict['kind']}: {verdict['reason']} (exit code {verdict['exit_code']})"
        rows.append(Row((plain(told),), tone))
        rows += [Row((plain(verdict["remedy"]),), tone)] if verdict.get("remedy") else []
    job = status.get("job")
    if job:
        rows.append(Row((plain(f"job {_job_says(status)}"),), _JOB_TONES.get(job["status"], "")))
    return Section("", tuple(rows))


def _job_says(status: Status) -> str:
    job, curve = status["job"], status.get("curve") or {}
    attempt = f", attempt {job['attempt']}" if job["attempt"] > 1 else ""
    says = f"{job['name']}: {job['status']}{attempt}"
    points, steps = curve.get("points") or [], curve.get("steps")
    if not points:
        return says
    step, reward = points[-1]
    of = f" of {steps} {bar(step / steps)}" if steps else ""
    return f"{says}, step {step}{of}, mean reward {reward:.3g}"


def _waits(status: Status, passed: float, most: int) -> Section:
    in_phase = status["seconds_in_phase"] + passed
    rows = []
    for wait in _awaited(status):
        left = wait["seconds_left"] - passed
        # a wait of a boot, a submission or a stop began with its phase
        share = in_phase / max(0.1, in_phase + left) if status["phase"] != _RUNNING else None
        share = wait.get("share", share)
        rest = f"{long(left)} left"
        cells = (short(wait["what"]), "" if share is None else bar(share), rest, wait["evidence"])
        rows.append(Row(tuple(map(plain, cells)), "busy"))
    return _fitting("waiting for", rows, most)


def _awaited(status: Status) -> list[Status]:
    """Return what may come late: that the run merely goes on is nothing to wait for."""
    return [wait for wait in status["waits"] if not wait.get("following")]


def _services(status: Status, passed: float, most: int) -> Section:
    rows = []
    for one in status["services"]:
        restarts = f"restarts: {one['restarts']}" if one["restarts"] else ""
        latency = one.get("latency")
        answers = f"answers in {quick(latency['last'])}" if latency else ""
        told = "; ".join(filter(None, (restarts, _outages(one, passed), answers)))
        cells = (short(one["name"]), one["state"], told, one["detail"])
        rows.append(Row(tuple(map(plain, cells)), _ITEM_TONES.get(one["state"], "")))
    for one in status.get("prepare", []):
        state = "done" if one["state"] == "ready" else one["state"]
        said = _progress(status, "head").get(one["name"], "")
        cells = (short(one["name"]), state, "", one["detail"] or said)
        rows.append(Row(tuple(map(plain, cells)), _ITEM_TONES.get(one["state"], "")))
    rows.sort(key=lambda row: ("bad", "busy", "good", "").index(row.tone))
    return _fitting("services and prepare steps", rows, most)


def _outages(service: Status, passed: float) -> str:
    if not service["outages"]:
        return ""
    is_open = service["outage_since"] is not None
    seconds = service["outage_seconds"] + (passed if is_open else 0.0)
    return f"outages: {service['outages']}, {long(seconds)}{', not over' if is_open else ''}"


def _nodes(status: Status, passed: float, most: int) -> Section:
    nodes = status["nodes"]
    now = status["seconds"] + passed
    if not nodes:
        return Section("", ())
    in_phase = long(status["seconds_in_phase"] + passed)
    own = ("head", short(status.get("name") or ""), "", status["phase"], in_phase, "")
    head = Row(tuple(map(plain, own)))
    states = [node["state"] for node in nodes]
    counts = [f"{states.count(one)} {one}" for one in _WORST_FIRST if one in states]
    workers = "worker" if len(nodes) == 1 else "workers"
    title = f"nodes: {len(nodes)} {workers}: {', '.join(counts)}"
    rows = [head, *(_node(status, node, now, passed) for node in nodes)]
    if len(rows) + 1 > most:
        rank = {state: place for place, state in enumerate(_WORST_FIRST)}
        order = sorted(nodes, key=lambda node: rank.get(node["state"], 0))
        rows = [_node(status, node, now, passed) for node in order]
    return _fitting(plain(title), rows, most)


def _node(status: Status, node: Status, now: float, passed: float) -> Row:
    heard = node["heard_seconds_ago"]
    phases = node["phases"]
    since = long(now - phases[-1][1]) if phases else ""
    quiet = heard is not None and heard + passed > 15 and node["state"] not in {"left", "lost"}
    word = node["last_error"] or _preparing(status, node) or node["detail"]
    if quiet:
        word = f"last heard {long(heard + passed)} ago{f'; {word}' if word else ''}"
    rank = "-" if node["rank"] is None else str(node["rank"])
    cells = (rank, short(node["name"]), node["state"], short(node["phase"]), since, word)
    return Row(tuple(map(plain, cells)), _NODE_TONES.get(node["state"], ""))


def _preparing(status: Status, node: Status) -> str:
    """Return which of a node's prepare steps failed, or run, and what that one said last."""
    said = _progress(status, node["name"])
    steps = _steps(node)
    if said and not steps.startswith(_FAILED):
        return "; ".join(f"{name}: {line}" for name, line in said.items())
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
    return Section("the job's last lines", tuple(Row((plain(line),), "dim") for line in last))


def _fitting(title: str, rows: Sequence[Row], most: int) -> Section:
    """Return as many rows as there is room for, below a title; the rest are counted."""
    if not rows or most < 1:
        return Section("", ())
    if len(rows) + 1 <= most:
        return Section(title, tuple(rows))
    shown = tuple(rows[: most - 1])
    more = len(rows) - len(shown)
    return Section(f"{title} ({more} more not shown)", shown)


# --- words ---------------------------------------------------------------------------------------


def plain(text: object) -> str:
    """Return a text on one line, without what would steer a terminal."""
    return printable(str(text)[:_LONGEST].replace("\t", " "))


def short(name: str) -> str:
    """Return a name with its middle left out where it is long: names differ at their ends."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME // 2 - 1]}…{name[-_LONGEST_NAME // 2 :]}"


def long(seconds: float) -> str:
    """Write a length of time as the page does."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def quick(seconds: float) -> str:
    """Write how fast an answer was."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def bar(share: float, width: int = _BAR) -> str:
    """Draw how much of something is over, in signs that every terminal has."""
    full = round(min(1.0, max(0.0, share)) * width)
    return f"[{'#' * full}{'.' * (width - full)}]"


# --- the same as lines ---------------------------------------------------------------------------


def changes(before: Status, after: Status) -> list[str]:
    """Say what is news since the status before, a sentence each: of clocks and beats nothing."""
    lines = []
    if before.get("run_id") != after.get("run_id"):
        lines.append(f"run {after.get('run_id')}")
    if before["phase"] != after["phase"]:
        lines.append(f"the head is {after['phase']}")
    lines += _new(_wait_lines(before), _wait_lines(after))
    lines += _new(_item_lines(before), _item_lines(after))
    lines += _new(_node_lines(before), _node_lines(after))
    lines += _new(_job_lines(before), _job_lines(after))
    verdict = after.get("verdict")
    if verdict and before.get("verdict") != verdict:
        lines.append(f"verdict: {verdict['kind']}: {verdict['reason']}")
    return [plain(line) for line in lines]


def _new(before: Mapping[object, str], after: Mapping[object, str]) -> Iterable[str]:
    return [line for key, line in after.items() if key not in before]


def _wait_lines(status: Status) -> dict[object, str]:
    """Return a line for each wait, by what of it is no number: counts and clocks are no news."""
    found: dict[object, str] = {}
    for wait in _awaited(status):
        gist = "".join(sign for sign in wait["evidence"] if not sign.isdigit())
        evidence = wait["evidence"] or "no word"
        left = long(wait["seconds_left"])
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
