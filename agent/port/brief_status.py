"""The status in one look: the judgment, the job, and what differs, in about a screen.

All lines of a status are in status.py; the judgment is that of port/glance.py.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import UNSET

from agent.base.text import Line, duration_text, number_text
from agent.job.progress import meant
from agent.port.glance import SIGNS, exceptions_of, money, step_time
from agent.port.status import one_line, prepare_lines, service_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.base.text import Tone
    from agent.port.status_model import GlanceException, JudgedStatus, ProgressStatus, State

MOST_ROWS = 12  # nodes and services that differ; further ones are counted
_LABEL = 10  # columns
_NAME = 8  # columns of a name, at least
_WORDS: Mapping[State, str] = {"keep": "keep", "look": "look", "end": "end?"}
_TONES: Mapping[State, Tone] = {"keep": "good", "look": "busy", "end": "bad"}
_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 16
_OF_NODES = ("suspect", "slow", "fault", "full soon", "silent", "lost", "booting", "left")
"""The states of rows about nodes, in the order in which they are counted."""
_BAD = {"lost", "silent", "fault", "failed", "down", "dead", "retired"}
_CLOCKS = re.compile(r"(?<![\w-])[-+▲▼$]?[\d.,:]+(?: (?:s|min|h|%))?(?![\w-])|[▁-█]+")
"""Numbers, their units, and bars: what changes in a line without being news."""


def brief_lines(status: JudgedStatus) -> list[Line]:
    """Return the status in one look."""
    rows = exceptions_of(status)
    return [
        _title(status),
        *_judgment(status),
        *_progress(status),
        *_prepare_steps(status),
        *_nodes(status, rows),
        *_groups(status),
        *_exceptions(rows),
    ]


def lines_by_content(status: JudgedStatus) -> dict[str, str]:
    """Return these lines, each by itself without clocks, counts and bars."""
    lines = [f"{line.label}{line.text}".rstrip() for line in brief_lines(status)]
    return {" ".join(_CLOCKS.sub("", line).split()): line for line in lines}


def _row(label: str, text: str, tone: Tone = "") -> Line:
    return Line(f"{label:<{_LABEL}}", one_line(text), tone)


def _title(status: JudgedStatus) -> Line:
    """Return what runs, since when, and what it has cost."""
    parts = [status.run_name or f"run {status.run_id or 'without an id'}"]
    job = status.job
    if job is not None:
        allowed = status.attempts_allowed
        attempt = f"attempt {job.attempt} of {allowed}" if allowed > 1 else ""
        parts += [name for name in (job.name, attempt) if name and name != parts[0]]
    parts.append(duration_text(status.receipt.total))
    if status.cost is not None:
        parts.append(money(status.cost))
    return Line(one_line(" · ".join(parts)), tone="title")


def _judgment(status: JudgedStatus) -> Iterator[Line]:
    """Yield the judgment and its reasons, or how the run has ended."""
    glance = status.glance
    state = glance.state
    word = _WORDS[state]
    sentence = glance.sentence
    details = glance.details
    verdict = status.verdict
    if verdict is not None:
        word = "over"
        sentence = f"{verdict.headline} (exit code {verdict.exit_code})"
        details = verdict.remedy
    yield _row(f"{SIGNS[state]} {word}", sentence, _TONES[state])
    if details:
        yield _row("", details)


def _progress(status: JudgedStatus) -> Iterator[Line]:
    """Yield the step, the metrics, and what is saved of them."""
    progress = status.progress
    if progress is None:
        return

    # How far is it?
    step = f"{progress.step}" if progress.of is None else f"{progress.step}/{progress.of}"
    parts = [step]
    since = duration_text(progress.seconds_since_step)
    each = progress.seconds_per_step
    parts.append(
        f"last {since} ago" if each is None else f"{step_time(each)} each, last {since} ago"
    )
    if progress.ends_at is not None:
        parts.append(f"done about {progress.ends_at[11:16]} UTC")
    yield _row("step", " · ".join(parts))

    # How does it go?
    values = [*_other_values({} if status.metrics is UNSET else status.metrics)]
    if progress.reward is not None:
        yield _row("reward", "   ".join((_reward(status, progress, progress.reward), *values)))
    elif values:
        yield _row("metrics", "   ".join(values))

    # What would a further attempt not have to do again?
    if status.checkpoint is not None:
        ago = progress.step - status.checkpoint.step
        behind = f", {ago} steps ago" if ago > 0 else ""
        yield _row("saved", f"step {status.checkpoint.step}{behind}")


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


def _reward(status: JudgedStatus, progress: ProgressStatus, reward: float) -> str:
    """Return the reward, how it moved, and its curve."""
    text = number_text(reward)
    trend = progress.reward_trend
    if trend:
        text += f" {'▲' if trend > 0 else '▼'}{number_text(abs(trend), 2)}"
    points = status.curves.keys.get("reward")
    return text if points is None else f"{text} {bars(points.values)}".rstrip()


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


def _prepare_steps(status: JudgedStatus) -> Iterator[Line]:
    """Yield the prepare steps that run, with the last line of their output."""
    lines_by_node = prepare_lines(status)
    head = lines_by_node.get("head", {})
    for step in status.prepare:
        if step.state == "pending":
            yield _row("prepare", f"{step.name}  {head.get(step.name, '') or step.detail}")
    others = {name: lines for name, lines in lines_by_node.items() if name != "head" and lines}
    for name, lines in [*others.items()][:MOST_ROWS]:
        shown = "; ".join(f"{step}: {line}" for step, line in lines.items())
        yield _row("prepare", f"{name}  {shown}")


def _nodes(status: JudgedStatus, rows: Sequence[GlanceException]) -> Iterator[Line]:
    """Yield how many nodes are fine, and how many are not."""
    present = 1 + len(status.nodes)
    of_nodes = [row for row in rows if row.state in _OF_NODES]
    fine = present - len({row.name for row in of_nodes})
    parts = [f"{fine} fine"]
    counts = Counter(row.state for row in of_nodes)
    parts += [f"{counts[state]} {state}" for state in reversed(_OF_NODES) if counts[state]]
    missing = status.nodes_expected - present
    if missing > 0:
        parts.append(f"{missing} never reported")
    yield _row("nodes", " · ".join(parts))


def _groups(status: JudgedStatus) -> Iterator[Line]:
    """Yield a line for each service of a group."""
    for group in status.groups:
        for service in group.services:
            yield _row(group.name, " · ".join(service_parts(service)))


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
