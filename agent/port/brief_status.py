"""The status in one look: the judgment, the job, and what differs, in about a screen.

All lines of a status are in status.py; the judgment is that of diagnosis/glance.py.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from agent.base.text import Line, duration_text, number_text
from agent.diagnosis.glance import SIGNS, exceptions_of, glance_of, money, step_time
from agent.job.progress import meant
from agent.port.status import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.base.text import Tone
    from agent.diagnosis.glance import GlanceException

    Status = Mapping[str, Any]

MOST_ROWS = 12  # nodes and services that differ; further ones are counted
_LABEL = 10  # columns
_NAME = 8  # columns of a name, at least
_WORDS = {"keep": "keep", "look": "look", "end": "end?"}
_TONES: dict[str, Tone] = {"keep": "good", "look": "busy", "end": "bad"}
_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 16
_OF_NODES = ("suspect", "slow", "fault", "full soon", "silent", "lost", "booting", "left")
"""The states of rows about nodes, in the order in which they are counted."""
_BAD = {"lost", "silent", "fault", "failed", "down"}
_CLOCKS = re.compile(r"(?<![\w-])[-+▲▼$]?[\d.,:]+(?: (?:s|min|h|%))?(?![\w-])|[▁-█]+")
"""Numbers, their units, and bars: what changes in a line without being news."""


def brief_lines(status: Status) -> list[Line]:
    """Return the status in one look.

    Raises KeyError, TypeError, ValueError or AttributeError for the status of another version.
    """
    rows = exceptions_of(status)
    return [
        _title(status),
        *_judgment(status),
        *_progress(status),
        *_prepare_steps(status),
        *_nodes(status, rows),
        *_exceptions(rows),
    ]


def lines_by_content(status: Status) -> dict[str, str]:
    """Return these lines, each by itself without clocks, counts and bars."""
    lines = [f"{line.label}{line.text}".rstrip() for line in brief_lines(status)]
    return {" ".join(_CLOCKS.sub("", line).split()): line for line in lines}


def _row(label: str, text: str, tone: Tone = "") -> Line:
    return Line(f"{label:<{_LABEL}}", one_line(text), tone)


def _title(status: Status) -> Line:
    """Return what runs, since when, and what it has cost."""
    parts = [status.get("run_name") or f"run {status.get('run_id') or 'without an id'}"]
    job = status.get("job")
    if job:
        allowed = status["attempts_allowed"]
        attempt = f"attempt {job['attempt']} of {allowed}" if allowed > 1 else ""
        parts += [name for name in (job["name"], attempt) if name and name != parts[0]]
    receipt = status.get("receipt")
    parts.append(duration_text(receipt["total"] if receipt else status["seconds"]))
    if status.get("cost") is not None:
        parts.append(money(status["cost"]))
    return Line(one_line(" · ".join(parts)), tone="title")


def _judgment(status: Status) -> Iterator[Line]:
    """Yield the judgment and its reasons, or how the run has ended."""
    glance = status.get("glance") or to_builtins(glance_of(status))
    state = glance["state"]
    word = _WORDS[state]
    sentence = glance["sentence"]
    details = glance["details"]
    verdict = status.get("verdict")
    if verdict:
        word = "over"
        reason = verdict["reason"]
        headline = reason if reason.startswith("warning: ") else f"{verdict['kind']}: {reason}"
        sentence = f"{headline} (exit code {verdict['exit_code']})"
        details = verdict.get("remedy") or ""
    yield _row(f"{SIGNS[state]} {word}", sentence, _TONES[state])
    if details:
        yield _row("", details)


def _progress(status: Status) -> Iterator[Line]:
    """Yield the step, the metrics, and what is saved of them."""
    progress = status.get("progress")
    if not progress:
        return

    # How far is it?
    step = f"{progress['step']}"
    if progress["of"] is not None:
        step += f"/{progress['of']}"
    parts = [step]
    since = duration_text(progress["seconds_since_step"])
    each = progress["seconds_per_step"]
    parts.append(
        f"last {since} ago" if each is None else f"{step_time(each)} each, last {since} ago"
    )
    if progress["ends_at"] is not None:
        parts.append(f"done about {progress['ends_at'][11:16]} UTC")
    yield _row("step", " · ".join(parts))

    # How does it go?
    values = []
    if progress["reward"] is not None:
        values.append(_reward(progress, status.get("curves") or {}))
    values += _other_values(status.get("metrics") or {})
    if progress["reward"] is not None:
        yield _row("reward", "   ".join(values))
    elif values:
        yield _row("metrics", "   ".join(values))

    # What would a further attempt not have to do again?
    checkpoint = status.get("checkpoint")
    if checkpoint and checkpoint["step"] is not None:
        ago = progress["step"] - checkpoint["step"]
        behind = f", {ago} steps ago" if ago > 0 else ""
        yield _row("saved", f"step {checkpoint['step']}{behind}")


def _other_values(metrics: Mapping[str, float]) -> Iterator[str]:
    """Yield what is shown beside the reward, as far as the job reports it."""
    divergence = meant("kl", metrics)
    if divergence is not None:
        yield f"KL {number_text(divergence)}"
    length = meant("response_length", metrics)
    clipped = meant("clipped", metrics)
    if length is not None:
        share = "" if clipped is None else f", {100 * clipped:.0f} % clipped"
        yield f"length {number_text(length)}{share}"


def _reward(progress: Mapping[str, Any], curves: Mapping[str, Any]) -> str:
    """Return the reward, how it moved, and its curve."""
    text = number_text(progress["reward"])
    trend = progress["reward_trend"]
    if trend:
        text += f" {'▲' if trend > 0 else '▼'}{number_text(abs(trend), 2)}"
    points = curves.get("keys", {}).get("reward", {})
    return f"{text} {bars(points.get('values', ()))}".rstrip()


def bars(values: Sequence[float]) -> str:
    """Return a curve as bars, each the mean of equally many values; '' for fewer than two."""
    if len(values) < 2:
        return ""
    count = min(_MOST_BARS, len(values))
    edges = [round(at * len(values) / count) for at in range(count + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    least = min(means)
    span = max(means) - least
    if not span:
        return _BARS[3] * count
    return "".join(_BARS[min(7, int(8 * (mean - least) / span))] for mean in means)


def _prepare_steps(status: Status) -> Iterator[Line]:
    """Yield the prepare steps that run, with the last line of their output."""
    lines_by_node = status.get("prepare_lines") or {}
    head = lines_by_node.get("head", {})
    for step in status.get("prepare", ()):
        if step["state"] == "pending":
            yield _row("prepare", f"{step['name']}  {head.get(step['name'], '') or step['detail']}")
    others = {name: lines for name, lines in lines_by_node.items() if name != "head" and lines}
    for name, lines in [*others.items()][:MOST_ROWS]:
        shown = "; ".join(f"{step}: {line}" for step, line in lines.items())
        yield _row("prepare", f"{name}  {shown}")


def _nodes(status: Status, rows: Sequence[GlanceException]) -> Iterator[Line]:
    """Yield how many nodes are fine, and how many are not."""
    present = 1 + len(status["nodes"])
    of_nodes = [row for row in rows if row.state in _OF_NODES]
    fine = present - len({row.name for row in of_nodes})
    parts = [f"{fine} fine"]
    counts = Counter(row.state for row in of_nodes)
    parts += [f"{counts[state]} {state}" for state in reversed(_OF_NODES) if counts[state]]
    missing = status["nodes_expected"] - present
    if missing > 0:
        parts.append(f"{missing} never reported")
    yield _row("nodes", " · ".join(parts))


def _exceptions(rows: Sequence[GlanceException]) -> Iterator[Line]:
    """Yield what differs, the worst first."""
    shown = rows[:MOST_ROWS]
    width = max((len(one_line(row.name)) for row in shown), default=0)
    width = min(max(width, _NAME), 3 * _NAME)
    for row in shown:
        tone: Tone = "bad" if row.state in _BAD else "busy"
        what = ", ".join(filter(None, (row.detail, row.figure)))
        yield _row(f"  {row.state}", f"{one_line(row.name):<{width}} {what}", tone)
    more = len(rows) - len(shown)
    if more:
        yield _row("", f"and {more} more: --all shows them")
