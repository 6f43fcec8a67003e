"""The judgment of a run in one look: keep it, look at it, or consider ending it.

`glance_of` is a pure function of a head's status. Terminal, page and notifications show its
result, so that all give the same judgment. It quotes only what its reader may read: the server
applies it to the status that it is about to send.

The first situation that applies makes the sentences: the run has ended; no job runs yet; the job's
metrics are broken; nothing of a group serves; it hangs; nodes, members of groups or services are
missing; its money is nearly used; something differs; fine.
"""

from __future__ import annotations

from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING

from agent.base.ends import Kind
from agent.base.text import duration_text, first_names, number_text
from agent.base.value import Value
from agent.decisions.head.fleet import NodeState
from agent.decisions.head.head_state import HeadPhase
from agent.plan.node_price import MOST_OF_COST
from agent.port.status_model import Glance, GlanceException, JudgedStatus, State, extended

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.base.ends import Outcome
    from agent.port.status_model import (
        HeadStatus,
        MachineStatus,
        MemberStatus,
        NodeStatus,
        ProgressStatus,
        WaitStatus,
    )

SIGNS: Mapping[State, str] = {"keep": "●", "look": "▲", "end": "■"}
"""By state; never color alone."""

MOST_EXCEPTIONS = 24  # rows; further ones are counted
SLOW_STEPS = 3  # a step that takes so many times the usual one is named
SHORTEST_WAIT = 60  # seconds without a step before it is named
STEADY = 0.01  # a reward that moved by less than this share of it is steady
SOON_FULL = 2 * 3600  # seconds ahead from which a full memory or disk makes the state `look`
SOON_OVER = 120  # seconds left of a wait from which it makes the state `look`
_MOST_NAMED = 3
_WORST_FIRST = (
    *("lost", "silent", "fault", "failed", "down", "suspect", "dead", "retired", "slow"),
    *("full soon", "stale", "loading", "pending", "booting", "left"),
)
_NO_REPORT_AFTER = 15  # seconds
_AWAY = {NodeState.LOST, NodeState.SILENT}
_PRESENT = {NodeState.JOINED, NodeState.BOOTING}
_PART_OF_RUN = {HeadPhase.RUNNING, HeadPhase.JUDGING, HeadPhase.STOPPING}


def judged(status: HeadStatus) -> JudgedStatus:
    """Return a status with its judgment, which quotes nothing that is not in this status."""
    return extended(JudgedStatus, status, glance=glance_of(status))


def glance_of(status: HeadStatus) -> Glance:
    """Return the judgment on a head's status."""
    exceptions = exceptions_of(status)
    sentences = _sentences(status, exceptions)
    return Glance(
        sentences.state,
        sentences.sentence,
        sentences.details,
        tuple(exceptions[:MOST_EXCEPTIONS]),
        max(0, len(exceptions) - MOST_EXCEPTIONS),
    )


class _Sentences(Value):
    state: State
    sentence: str
    details: str


def _sentences(status: HeadStatus, exceptions: Sequence[GlanceException]) -> _Sentences:
    if status.verdict is not None:
        return _ended(status, status.verdict)
    if status.phase is not HeadPhase.RUNNING:
        return _before_or_after_job(status, exceptions)
    for judge in _JUDGES:
        sentences = judge(status, exceptions)
        if sentences is not None:
            return sentences
    return _fine(status)


# --- the run has ended ----------------------------------------------------------------------------


def state_of_end(outcome: Outcome) -> State:
    """Judge an end: a failed run needs a person, a stopped or successful one none."""
    if outcome.exit_code == 0:
        return "look" if outcome.is_warning else "keep"
    return "keep" if outcome.kind is Kind.STOPPED and outcome.exit_code >= 128 else "end"


def _ended(status: HeadStatus, verdict: Outcome) -> _Sentences:
    """Return the sentences of an end."""
    reason = verdict.reason
    remedy = verdict.remedy
    state = state_of_end(verdict)
    code = f"exit code {verdict.exit_code}"
    if state == "look":
        return _Sentences(
            state, f"Done, with a warning: {reason}.", _joined(remedy, _spent(status))
        )
    if state == "end":
        return _Sentences(state, f"{_capitalized(reason)}.", _joined(remedy, _spent(status), code))
    if verdict.exit_code == 0:
        return _Sentences(state, f"Done: {reason}.", _joined(_result(status), _spent(status)))
    return _Sentences(state, f"Stopped: {reason}.", _joined(code, _spent(status)))


def _result(status: HeadStatus) -> str:
    progress = status.progress
    if progress is None:
        return ""
    text = f"{progress.step} steps"
    if progress.reward is None:
        return text
    return f"{text}, last reward {number_text(progress.reward)}"


def _spent(status: HeadStatus) -> str:
    text = f"after {duration_text(status.receipt.total)}"
    return text if status.cost is None else f"{text} and {money(status.cost)}"


# --- no job runs ----------------------------------------------------------------------------------


def _before_or_after_job(status: HeadStatus, exceptions: Sequence[GlanceException]) -> _Sentences:
    phase = status.phase
    waits = [wait for wait in status.waits if not wait.following]
    if phase is HeadPhase.RESUMING:
        what = "The agent was restarted and looks for the job of this run."
        return _Sentences("look", what, _waited(waits))
    if phase is HeadPhase.JUDGING:
        return _Sentences("look", "The job failed; all nodes are asked whether one was lost.", "")
    if phase in {HeadPhase.STOPPING, HeadPhase.LEAVING}:
        return _Sentences("look", "The job is being stopped.", _waited(waits))
    if phase is HeadPhase.SUBMITTING:
        return _Sentences("keep", f"{_attempt(status)} is being submitted.", _waited(waits))

    # Booting: what is waited for, and does a limit end it soon?
    expected = status.nodes_expected
    joined = 1 + sum(node.state is NodeState.JOINED for node in status.nodes)
    job = status.job
    what = f"Starting: {joined} of {expected} nodes have joined."
    if expected == 1:
        what = "Starting on one node."
    if job is not None and job.attempt > 1:
        before = [attempt for attempt in status.attempts if attempt.reason]
        why = f": {before[-1].reason}" if before else ""
        what = f"{_attempt(status)} is being prepared{why}."
    is_late = any(wait.seconds_left < SOON_OVER for wait in waits)
    is_late = is_late and status.seconds_in_phase > SOON_OVER
    has_loss = any(row.state in {"lost", "failed", "silent", "fault"} for row in exceptions)
    return _Sentences("look" if is_late or has_loss else "keep", what, _waited(waits))


def _waited(waits: Sequence[WaitStatus]) -> str:
    """Return what is waited for and what ends that; the wait that ends first has its evidence."""
    if not waits:
        return ""
    first = min(waits, key=lambda wait: wait.seconds_left)
    names = first_names([wait.what for wait in waits], _MOST_NAMED)
    left = duration_text(first.seconds_left)
    evidence = f" ({first.evidence})" if first.evidence else ""
    return f"Waiting for {names}{evidence}; {left} left."


# --- a job runs -----------------------------------------------------------------------------------


def _broken_metrics(status: HeadStatus, _rows: Sequence[GlanceException]) -> _Sentences | None:
    """Judge metrics that no further step repairs: nan, or a reward that collapsed."""
    broken = [advice for advice in status.advice if advice.state == "end"]
    if not broken:
        return None
    others = [advice.what for advice in status.advice if advice is not broken[0]]
    more = f"{_capitalized('; '.join(others))}." if others else ""
    details = _joined(more, _saved(status), _hourly(status))
    return _Sentences("end", f"{_capitalized(broken[0].what)}.", details)


def _nothing_serves(status: HeadStatus, _rows: Sequence[GlanceException]) -> _Sentences | None:
    """Judge a group of which nothing serves: the job waits for it, whatever else it shows."""
    services = [(group, service) for group in status.groups for service in group.services]
    starved = [pair for pair in services if pair[1].nothing_since is not None]
    if not starved:
        return None
    group, service = starved[0]
    more = [other.short for _, other in starved[1:]]
    follows = "Its members are started again; the job goes on once one serves."
    if not service.may_recover:
        follows = (
            "Its members are given up, their nodes are gone, or another attempt must send them "
            f"the weights by NCCL (lost = {group.lost})."
        )
    stall = "" if status.stall is None else status.stall.what
    is_final = not service.may_recover and group.lost == "wait"
    details = _joined(*more, follows, stall, _saved(status), _hourly(status))
    return _Sentences("end" if is_final else "look", f"{_capitalized(service.short)}.", details)


def _stalled(status: HeadStatus, _rows: Sequence[GlanceException]) -> _Sentences | None:
    """Judge a job that was examined since it makes no progress."""
    stall = status.stall
    if stall is None:
        return None
    what = f"{_capitalized(stall.what)}."
    gpus = _gpu_use(status)
    if stall.then == "log":
        follows = "Nothing ends it by itself (AGENT_ON_STALL=log)."
        details = _joined(stall.suspects, gpus, follows, _saved(status), _hourly(status))
        return _Sentences("end", what, details)
    follows = "It is examined once more, then the run is stopped."
    if stall.then == "retry":
        follows = f"It is examined once more, then the attempt ends. {_next_attempt(status)}"
    return _Sentences("look", what, _joined(stall.suspects, gpus, follows))


def _losing_nodes(status: HeadStatus, rows: Sequence[GlanceException]) -> _Sentences | None:
    """Judge needed nodes that are missing: their grace runs."""
    left = status.loss_seconds_left
    if left is None:
        return None
    names = [row.name for row in rows if row.state in {"lost", "silent", "left"}]
    what = f"{_nodes_text(status, names)} missing: {first_names(names, _MOST_NAMED)}."
    if not names:
        what = "A needed node is missing."
    ends = f"The attempt ends in {duration_text(left)} unless all are back (AGENT_NODE_GRACE)."
    return _Sentences("look", what, _joined(ends, _next_attempt(status)))


def _short_of_members(status: HeadStatus, _rows: Sequence[GlanceException]) -> _Sentences | None:
    """Judge groups of which fewer members serve than needed."""
    short = [
        service.short for group in status.groups for service in group.services if service.short
    ]
    if not short:
        return None
    return _Sentences("look", f"{short[0]}.", _joined(*short[1:], _progress(status)))


def _missing(status: HeadStatus, rows: Sequence[GlanceException]) -> _Sentences | None:
    """Judge nodes without a report, and services that do not answer."""
    silent = [row.name for row in rows if row.state in {"silent", "lost"}]
    if silent:
        names = first_names(silent, _MOST_NAMED)
        what = f"{_nodes_text(status, silent)} without a report: {names}."
        return _Sentences("look", what, _joined("The job runs on.", _progress(status)))
    down = [row for row in rows if row.state in {"down", "failed"}]
    if down:
        what = f"{_capitalized(down[0].name)} does not answer."
        if len(down) > 1:
            what = f"{first_names([row.name for row in down], _MOST_NAMED)} do not answer."
        return _Sentences("look", what, _joined(down[0].figure, down[0].detail, _progress(status)))
    return None


def _no_step(status: HeadStatus, _rows: Sequence[GlanceException]) -> _Sentences | None:
    """Judge a step that takes much longer than the usual one."""
    progress = status.progress
    job = status.job
    if progress is None or job is None or progress.attempt != job.attempt:
        return None
    since = progress.seconds_since_step
    usual = progress.usual_seconds
    if usual is None or since < max(SLOW_STEPS * usual, SHORTEST_WAIT):
        return None
    what = f"No step for {duration_text(since)}. A step usually takes {step_time(usual)}."
    if progress.is_pausing:
        what = f"No step for {duration_text(since)}: an evaluation or checkpoint runs."
    follows = "AGENT_STALL decides when the job is examined."
    return _Sentences("look", what, _joined(_gpu_use(status), follows))


def _advised(status: HeadStatus, _rows: Sequence[GlanceException]) -> _Sentences | None:
    """Judge a metric that left its past."""
    if not status.advice:
        return None
    first, *others = status.advice
    more = f"{_capitalized('; '.join(other.what for other in others))}." if others else ""
    return _Sentences("look", f"{_capitalized(first.what)}.", _joined(more, first.remedy))


def cost_notice(status: HeadStatus) -> tuple[str, str] | None:
    """Return what there is to say of AGENT_MAX_COST, and what follows; None if there is nothing."""
    limit = status.max_cost
    cost = status.cost
    price = status.price
    if limit is None:
        return None
    if cost is None or not price:
        if status.seconds < SHORTEST_WAIT:
            return None
        what = "AGENT_MAX_COST has no effect yet: no price is known."
        return what, "AGENT_PRICE_PER_HOUR sets it."
    if cost < MOST_OF_COST * limit:
        return None
    left = duration_text(max(0.0, (limit - cost) / price * 3600))
    return f"{money(cost)} of AGENT_MAX_COST={money(limit)} are used.", f"The end is in {left}."


def _costly(status: HeadStatus, _rows: Sequence[GlanceException]) -> _Sentences | None:
    """Judge money that is nearly used."""
    notice = cost_notice(status)
    if notice is None:
        return None
    what, follows = notice
    return _Sentences("look", what, _joined(follows, _progress(status)))


def _differs(status: HeadStatus, rows: Sequence[GlanceException]) -> _Sentences | None:
    """Judge nodes that are slow, have a fault, or will be full."""
    for state, words in (("fault", "a GPU fault"), ("slow", "a slow node")):
        named = [row for row in rows if row.state == state]
        if named:
            names = first_names([row.name for row in named], _MOST_NAMED)
            what = f"Training, with {words}: {names}."
            return _Sentences("look", what, _joined(named[0].detail, _progress(status)))
    full = [row for row in rows if row.state == "full soon" and _is_soon(status, row)]
    if full:
        what = f"Training; {full[0].detail} on {full[0].name} in {full[0].figure}."
        return _Sentences("look", what, _progress(status))
    return None


def _fine(status: HeadStatus) -> _Sentences:
    """Return the sentences of a run in which nothing differs."""
    expected = status.nodes_expected
    report = "The node reports." if expected == 1 else f"All {expected} nodes report."
    job = status.job
    if job is None:
        what = "The cluster is up; no job is submitted (AGENT_JOB=none)."
        return _Sentences("keep", what, _joined(report, "It stays until it is stopped."))
    progress = status.progress
    if progress is None or progress.attempt != job.attempt:
        since = duration_text(status.seconds_in_phase)
        what = f"{_attempt(status)} runs for {since}, without a known step so far."
        return _Sentences("keep", what, report)
    what = f"Training: step {progress.step}"
    if progress.of is not None:
        what += f" of {progress.of}"
    return _Sentences("keep", f"{what}. Nothing to do.", _joined(_progress(status), report))


# --- parts of sentences ---------------------------------------------------------------------------


def _progress(status: HeadStatus) -> str:
    """Return reward and expected end, as far as they are known."""
    progress = status.progress
    if progress is None:
        return ""
    parts = []
    if progress.reward is not None:
        text = f"Reward {number_text(progress.reward)}"
        trend = progress.reward_trend
        if trend is not None:
            is_steady = abs(trend) < STEADY * abs(progress.reward)
            moved = "steady" if is_steady else number_text(trend, 2, signed=True)
            text += f" ({moved} over 20 steps)"
        parts.append(text)
    left = seconds_to_end(progress)
    if left is not None and progress.ends_at is not None:
        text = f"done about {progress.ends_at[11:16]} UTC, in {duration_text(left)}"
        if status.price is not None:
            text += f" and {money(status.price * left / 3600)}"
        parts.append(text)
    return f"{'; '.join(parts)}." if parts else ""


def seconds_to_end(progress: ProgressStatus) -> float | None:
    """Return the seconds until the last step is expected; None if not known, or overdue."""
    if progress.ends_at is None:
        return None
    ends = datetime.fromisoformat(progress.ends_at.replace("Z", "+00:00"))
    last = datetime.fromisoformat(progress.last_step_at.replace("Z", "+00:00"))
    left = (ends - last).total_seconds() - progress.seconds_since_step
    return left if left > 0 else None


def _next_attempt(status: HeadStatus) -> str:
    """Return what follows the loss of this attempt, and what is done again."""
    number = 1 if status.job is None else status.job.attempt
    allowed = status.attempts_allowed
    if number >= allowed:
        return f"No attempt follows: this is {number} of {allowed} (AGENT_JOB_RETRIES)."
    text = f"Then attempt {number + 1} of {allowed} starts"
    progress = status.progress
    if status.checkpoint is None or progress is None:
        return f"{text}."
    again = max(0, progress.step - status.checkpoint.step)
    text += f" from step {status.checkpoint.step}: {again} steps again"
    each = progress.seconds_per_step
    if each is not None and status.price is not None:
        text += f", {money(status.price * again * each / 3600)}"
    return f"{text}."


def _attempt(status: HeadStatus) -> str:
    number = 1 if status.job is None else status.job.attempt
    allowed = status.attempts_allowed
    return f"Attempt {number} of {allowed}" if allowed > 1 else "The job"


def _hourly(status: HeadStatus) -> str:
    return "" if status.price is None else f"Each further hour costs {money(status.price)}."


def _saved(status: HeadStatus) -> str:
    """Return from which step a later run goes on."""
    if status.checkpoint is None:
        return ""
    return f"Newest checkpoint: step {status.checkpoint.step}."


def _nodes_text(status: HeadStatus, names: Sequence[str]) -> str:
    verb = "is" if len(names) == 1 else "are"
    return f"{len(names)} of {status.nodes_expected} nodes {verb}"


def _gpu_use(status: HeadStatus) -> str:
    """Return what the GPUs do: a hung collective shows full utilization."""
    machines = [figures.gpus for _, figures in _machines(status)]
    uses = [use for gpus in machines for use in gpus.known("use")]
    if not uses:
        return ""
    power = [watts for gpus in machines for watts in gpus.known("power")]
    text = f"GPUs: {median(uses):.0f} %"
    return f"{text}, {median(power):.0f} W." if power else f"{text}."


def _is_soon(status: HeadStatus, row: GlanceException) -> bool:
    figures = dict(_machines(status)).get(row.name)
    forecasts = () if figures is None else figures.forecasts
    return any(seconds < SOON_FULL for _, seconds in forecasts)


def money(dollars: float) -> str:
    """Format dollars: `$12.50`, `$12,824`."""
    return f"${dollars:,.0f}" if dollars >= 100 else f"${dollars:.2f}"


def step_time(seconds: float) -> str:
    """Format the time of a step; one below ten seconds with its tenths."""
    return f"{seconds:.2g} s" if seconds < 10 else duration_text(seconds)


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _joined(*parts: str) -> str:
    """Join sentences; each ends with a full stop."""
    sentences = [part if part.endswith(".") else f"{part}." for part in parts if part]
    return " ".join(map(_capitalized, sentences))


# --- what differs ---------------------------------------------------------------------------------


def exceptions_of(status: HeadStatus) -> list[GlanceException]:
    """Return the nodes, services and prepare steps that differ, the worst first."""
    rows = [*_service_rows(status), *_member_rows(status)]
    for name, figures in _machines(status):
        rows += _machine_rows(name, figures)
    for name in () if status.stall is None else status.stall.nodes:
        rows.append(GlanceException(name, "suspect", "", "the other nodes may wait for it"))
    rows += [
        _slow_row(node) for node, state in status.all_nodes() if state in _PRESENT and node.slow
    ]

    # Nodes that are not part of the cluster, or do not report.
    is_running = status.phase in _PART_OF_RUN
    for node in status.nodes:
        row = _node_row(node, is_running=is_running)
        if row is not None:
            rows.append(row)
    place = {state: number for number, state in enumerate(_WORST_FIRST)}
    return sorted(rows, key=lambda row: place[row.state])


def _node_row(node: NodeStatus, *, is_running: bool) -> GlanceException | None:
    """Return the row of a node that is not part of the cluster, or does not report."""
    state = node.state
    if state is NodeState.JOINED or (state is NodeState.LEFT and not is_running):
        return None
    silence = node.heard_seconds_ago
    figure = ""
    if silence is not None and silence > _NO_REPORT_AFTER:
        figure = duration_text(silence)
    detail = node.last_error or node.detail
    if not detail and state in _AWAY:
        detail = f"does not report; it was {node.phase}"
    return GlanceException(node.name, state.value, figure, detail or node.phase)


def _machines(status: HeadStatus) -> list[tuple[str, MachineStatus]]:
    """Return the figures of all present nodes, with their names, the head first."""
    return [
        (node.name, node.figures)
        for node, state in status.all_nodes()
        if state in _PRESENT and node.figures is not None
    ]


def _machine_rows(name: str, figures: MachineStatus) -> list[GlanceException]:
    """Return the faults of a machine, and what will be full on it."""
    rows = []
    gpus = figures.gpus
    faults = [fault for fault in (figures.gpu_fault, *gpus.fault) if fault]
    xids = [number for number in gpus.xid if number]
    if faults:
        rows.append(GlanceException(name, "fault", "", faults[0]))
    elif xids:
        rows.append(GlanceException(name, "fault", f"Xid {xids[0]}", "the GPU's driver reports it"))
    elif any(gpus.errors):
        detail = "uncorrected memory errors since its driver was loaded"
        rows.append(GlanceException(name, "fault", f"{sum(gpus.errors)}", detail))
    for what, seconds in figures.forecasts:
        detail = f"{what} will be full"
        rows.append(GlanceException(name, "full soon", duration_text(seconds), detail))
    return rows


def _slow_row(node: HeadStatus | NodeStatus) -> GlanceException:
    """Return the row of a slow node, with its utilization, clock and temperature."""
    figures = node.figures
    if figures is None:
        return GlanceException(node.name, "slow", "", node.slow)
    uses = figures.gpus.known("use")
    clocks = figures.gpus.known("clock")
    heat = figures.gpus.known("temperature")
    more = []
    if clocks and node.slow_by != "clock":
        more.append(f"{min(clocks):.0f} MHz")
    if heat:
        more.append(f"{max(heat):.0f} °C")
    figure = f"{sum(uses) / len(uses):.0f} %" if uses else ""
    return GlanceException(node.name, "slow", figure, "; ".join((node.slow, *more)))


def _service_rows(status: HeadStatus) -> list[GlanceException]:
    """Return the rows of services that were ready and do not answer, and of failed steps."""
    rows = []
    for service in status.services:
        since = service.outage_since
        if service.state == "lost" or since is not None:
            figure = "" if since is None else duration_text(status.seconds - since)
            rows.append(GlanceException(service.name, "down", figure, service.detail))
    rows += [
        GlanceException(step.name, "failed", "", step.detail)
        for step in status.prepare
        if step.state == "lost"
    ]
    return rows


def _member_rows(status: HeadStatus) -> Iterator[GlanceException]:
    """Yield a row for the members of a group's service that share a state and do not serve."""
    if status.verdict is not None:
        return
    for service in (service for group in status.groups for service in group.services):
        by_state: dict[str, list[MemberStatus]] = {}
        for member in service.members:
            by_state.setdefault(member.state, []).append(member)
        by_state.pop("serving", None)
        for state, members in by_state.items():
            names = first_names([f"{one.name} on {one.node}" for one in members], _MOST_NAMED)
            why = next((one.detail for one in members if one.detail), "")
            figure = f"{len(members)} of {sum(service.states.values())}"
            yield GlanceException(service.name, state, figure, f"{names}{why and f': {why}'}")


_JUDGES = (
    *(_broken_metrics, _nothing_serves, _stalled, _losing_nodes, _short_of_members, _missing),
    *(_no_step, _advised, _costly, _differs),
)
"""Of a running job, in their order: the first that finds something makes the sentences."""
