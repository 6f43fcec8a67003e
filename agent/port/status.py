"""The status for people, as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from agent.base.text import Line, duration_text, escaped, listed, short_duration
from agent.decisions.head.fleet import NodeState
from agent.job.progress import reward_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.base.text import Tone
    from agent.port.status_model import (
        GroupServiceStatus,
        HeadStatus,
        MemberStatus,
        NodeStatus,
        ProgressStatus,
    )

_STALL = "stall"
_OF_RUN = (_STALL, "slow node", "full soon", "training")
"""The checks of warnings about what the run does (run/stall.py, run/machine_watch.py, and
diagnosis/advice.py); others are about machines and settings."""
_MAX_TEXT = 400  # Characters of one text
_SILENT_AFTER = 15
_FEW_MEMBERS = 16  # of a service: all of them have a line; of more only those that do not serve
_MOST_MEMBERS = 32  # lines of members of one service
_WORST_FIRST = (
    *(NodeState.LOST, NodeState.SILENT, NodeState.BOOTING, NodeState.LEFT, NodeState.JOINED),
)
_TONES: Mapping[str, Tone] = {
    **dict.fromkeys(("lost", "silent", "failed", "dead", "retired"), "bad"),
    **dict.fromkeys(("booting", "pending", "loading", "stale"), "busy"),
    **dict.fromkeys(("joined", "ready", "running", "succeeded", "serving"), "good"),
    "left": "dim",
}
"""By the state of a node, a service, a member of a group, a prepare step or the job."""


def status_lines(status: HeadStatus) -> list[Line]:
    """Return all that a person is shown of a status, the worst nodes first."""
    nodes = (_line(tone, f"node {rank}", *more) for tone, (rank, *more) in node_rows(status))
    return [*run_lines(status), *nodes, *_more_refused(status)]


def run_lines(status: HeadStatus) -> list[Line]:
    """Return the lines of a status apart from its nodes."""
    parts = (
        _summary(status),
        _receipt(status),
        _waits(status),
        _services(status),
        _groups(status),
        _prepare_steps(status),
        _caches(status),
    )
    return [line for part in parts for line in part]


def _line(tone: Tone, *cells: object) -> Line:
    return Line("  ".join(filter(None, map(one_line, cells))), tone=tone)


def _summary(status: HeadStatus) -> Iterator[Line]:
    since = duration_text(status.seconds_in_phase)
    total = duration_text(status.seconds)
    title = f"run {status.run_id or 'without an id'}"
    title += f": {status.phase.value} for {since}, {total} since the start"
    if status.cost is not None:
        title += f", ${status.cost:.2f}"
    yield _line("title", title)

    verdict = status.verdict
    if verdict is not None:
        tone: Tone = "good" if verdict.exit_code == 0 else "bad"
        if verdict.is_warning:
            tone = "busy"
        yield _line(tone, f"{verdict.headline} (exit code {verdict.exit_code})")
        if verdict.remedy:
            yield _line(tone, verdict.remedy)

    job = status.job
    if job is not None:
        text = f"job {job.name}: {job.status}"
        if job.attempt > 1:
            text += f", attempt {job.attempt}"
        text = ", ".join((text, *progress_parts(status.progress)))
        yield _line(_TONES.get(job.status, ""), text)
    yield from _warnings(status)


def _warnings(status: HeadStatus) -> Iterator[Line]:
    """Yield the warnings about what the run does; of stalls the last one."""
    known = () if status.warnings is UNSET else status.warnings
    warnings = [warning for warning in known if warning.check in _OF_RUN]
    stalls = [warning for warning in warnings if warning.check == _STALL]
    for warning in [*stalls[-1:], *(other for other in warnings if other.check != _STALL)]:
        what = one_line(f"{warning.check}: {warning.what}")
        yield Line(f"{what}. {one_line(warning.remedy)}", tone="busy")


def progress_parts(progress: ProgressStatus | None) -> Iterator[str]:
    """Yield the parts of a sentence about the job's steps."""
    if progress is None:
        return
    yield (
        f"step {progress.step}" if progress.of is None else f"step {progress.step} of {progress.of}"
    )
    if progress.seconds_per_step is not None:
        yield f"{short_duration(progress.seconds_per_step)} a step"
    if progress.ends_at is not None:
        yield f"done about {progress.ends_at[:16].replace('T', ' ')} UTC"
    if progress.reward is not None:
        yield reward_text(progress.reward, progress.reward_trend)


def _receipt(status: HeadStatus) -> Iterator[Line]:
    line = status.receipt.sentence()
    if line:
        yield _line("dim", f"time: {line}")


def _waits(status: HeadStatus) -> Iterator[Line]:
    """Yield the waits with a deadline, without that for the end of the run."""
    for wait in status.waits:
        if not wait.following:
            limit = f"{duration_text(wait.seconds_left)} left"
            yield _line("busy", f"waiting for {wait.what}", limit, wait.evidence or "no report yet")


def _services(status: HeadStatus) -> Iterator[Line]:
    for service in status.services:
        details = []
        if service.gpus:
            details.append(f"GPUs of its own: {service.gpus}")
        judge = service.judge
        if judge is not None:
            tokens = judge.prompt_tokens + judge.completion_tokens
            details.append(f"judge: {judge.requests} requests, {tokens} tokens")
        if judge is not None and judge.ungraded:
            details.append(f"answers without a grade: {judge.ungraded}")
        if service.restarts:
            details.append(f"restarts: {service.restarts}")
        if service.outages:
            is_open = ", not over" if service.outage_since is not None else ""
            seconds = duration_text(service.outage_seconds)
            details.append(f"outages: {service.outages}, {seconds}{is_open}")
        name = f"service {service.name}"
        tone = _TONES.get(service.state, "")
        yield _line(tone, name, service.state, "; ".join(details), service.detail)


def _groups(status: HeadStatus) -> Iterator[Line]:
    """Yield a line for each service of a group, and for its members: of many, those that differ."""
    for group in status.groups:
        for service in group.services:
            tone: Tone = "bad" if service.nothing_since is not None else "good"
            if service.short and tone == "good":
                tone = "busy"
            title = f"group {group.name}"
            nodes = f"{group.joined} of {group.nodes} nodes"
            yield _line(tone, title, nodes, "; ".join(service_parts(service)), service.short)

            shown = service.members
            if len(shown) > _FEW_MEMBERS:
                shown = tuple(member for member in shown if member.state != "serving")
            for member in shown[:_MOST_MEMBERS]:
                name = f"  {member.name} on {member.node}"
                details = "; ".join(_member_parts(member))
                yield _line(
                    _TONES.get(member.state, ""), name, member.state, details, member.detail
                )
            more = len(shown) - _MOST_MEMBERS
            if more > 0:
                yield _line("", f"  {more} more members of {service.name} do not serve")


def service_parts(service: GroupServiceStatus) -> Iterator[str]:
    """Yield what there is to say of a group's service: members by state, weights, requests."""
    total = sum(service.states.values())
    needed = f", {service.needed} needed" if service.needed != total else ""
    yield f"{service.name}: {service.serving} of {total} serve{needed}"
    for state, count in service.states.items():
        if state != "serving":
            yield f"{count} {state}"
    if service.version:
        yield f"weights {service.version}"
    if service.requests_per_second is not None:
        yield f"{service.requests_per_second:g} requests a second"
    if service.errors:
        yield f"errors: {service.errors}"
    if service.held:
        yield f"requests held: {service.held}"


def _member_parts(member: MemberStatus) -> Iterator[str]:
    if member.version:
        yield f"weights {member.version}"
    if member.requests:
        yield f"{member.requests_per_second:g} requests a second"
    if member.errors:
        yield f"errors: {member.errors}"
    if member.restarts:
        yield f"restarts: {member.restarts}"
    if member.outages:
        yield f"outages: {member.outages}, {duration_text(member.outage_seconds)}"


def _prepare_steps(status: HeadStatus) -> Iterator[Line]:
    progress = prepare_lines(status).get("head", {})
    for step in status.prepare:
        state = "done" if step.state == "ready" else step.state
        detail = step.detail or progress.get(step.name, "")
        yield _line(_TONES.get(step.state, ""), f"prepare step {step.name}", state, detail)


def prepare_lines(status: HeadStatus) -> Mapping[str, Mapping[str, str]]:
    """Return the last lines of running prepare steps by node; none for readers without a token."""
    return {} if status.prepare_lines is UNSET else status.prepare_lines


def _caches(status: HeadStatus) -> Iterator[Line]:
    """Yield how the nodes' compile caches were seeded, with the nodes that started cold."""
    own = status.caches
    if own is None:
        return
    cold = [node.name for node in status.nodes if node.caches == "cold"]
    others = f"cold on {listed(cold)}" if cold else ""
    yield _line("", "compile caches", own.state, own.detail, others)


def _more_refused(status: HeadStatus) -> Iterator[Line]:
    if status.more_refused:
        yield _line("bad", f"{status.more_refused} more agents were refused")


def node_rows(status: HeadStatus) -> list[tuple[Tone, list[str]]]:
    """Return the tone and the cells of each node, the head first, then the worst."""
    if not status.nodes:
        return []
    worst = {state: place for place, state in enumerate(_WORST_FIRST)}
    since = duration_text(status.seconds_in_phase)
    head = ("head", status.name, "", "", status.phase.value, since, status.slow)
    nodes = sorted(status.nodes, key=lambda node: worst[node.state])
    rows = [head, *(_node(status, node) for node in nodes)]
    return [(_TONES.get(row[3], ""), [*map(one_line, row)]) for row in rows]


def _node(status: HeadStatus, node: NodeStatus) -> tuple[str, ...]:
    silence = node.heard_seconds_ago
    since = duration_text(status.seconds - node.phases[-1][1]) if node.phases else ""
    is_present = node.state not in {NodeState.LEFT, NodeState.LOST}
    text = node.last_error or _preparing(status, node) or node.detail
    text = "; ".join(filter(None, (node.slow, text)))
    if is_present and silence is not None and silence > _SILENT_AFTER:
        text = "; ".join(filter(None, (f"last report {duration_text(silence)} ago", text)))
    rank = "-" if node.rank is None else str(node.rank)
    return (rank, node.name, node.ip, node.state.value, node.phase, since, text)


def _preparing(status: HeadStatus, node: NodeStatus) -> str:
    """Return a node's failed or running prepare steps, with the last line of their logs."""
    failed = [step.name for step in node.steps if step.state == "lost"]
    if failed:
        return f"failed: {', '.join(failed)}"
    progress = prepare_lines(status).get(node.name)
    if progress:
        return "; ".join(f"{name}: {line}" for name, line in progress.items())
    running = [step.name for step in node.steps if step.state == "pending"]
    if running:
        return f"preparing: {', '.join(running)}"
    return ""


def one_line(text: object) -> str:
    """Return a text on one line, without control characters."""
    return escaped(str(text)[:_MAX_TEXT].replace("\t", " "))
