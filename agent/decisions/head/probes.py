"""Probes between nodes before the job: reward server, reachability, bandwidth, agreement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.text import first_names, listed
from agent.checks.agreement import agreement
from agent.checks.finding import Finding, Level
from agent.checks.machine import gpus_missing_in_ray
from agent.checks.network import CHECK, PREFLIGHT, all_reduce_result, slow_links
from agent.decisions import values as v
from agent.decisions.head import state as h
from agent.decisions.head.retry import leave
from agent.decisions.head.state import ProbeNode, then
from agent.plan import waits as planned
from agent.work.recipes.recipe import NodeSize
from agent.work.services import REWARD
from agent.work.torchrun import ShareOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.state import Actions, Decision, HeadState, Turn


_MAX_LINKS_NAMED = 4
MAX_HEAD_LINKS = 16  # workers that measure their link to the head, one after the other


def _order_samples(state: HeadState, now: float) -> Decision:
    """Order bandwidth samples between the nodes that joined, each link once per run."""
    probes, agents = state.probes, state.fleet.present()
    near = [one for one in agents if (v.HERE, one.ip) in probes.samples]
    others = [one for one in agents if (v.HERE, one.ip) not in probes.samples]
    near += others[: max(0, MAX_HEAD_LINKS - len(near))]
    links = [*((v.HERE, one.ip) for one in near), *((one.key, "") for one in near)]
    ring = zip(agents, [*agents[1:], *agents[:1]], strict=True)
    links += [(one.key, following.ip) for one, following in ring if following.ip != one.ip]
    new = [link for link in links if link not in probes.samples]
    if not new:
        return state, ()
    samples = {**probes.samples, **dict.fromkeys(new)}
    probes = replace(probes, samples=samples, samples_due=now + times.BANDWIDTH_SAMPLE)
    return replace(state, probes=probes), tuple(ProbeNode(node, v.SAMPLE, at) for node, at in new)


def _report_slow_links(state: HeadState, now: float) -> Decision:
    """Report findings from the samples once all are there, or their time is over."""
    probes, goal, workers = state.probes, state.goal, state.fleet.workers
    if probes.samples_due is None:
        return state, ()

    def is_awaited(link: tuple[str, str]) -> bool:
        node = link[0]
        if probes.samples[link] is not None or not _has_not_left(state, node):
            return False
        return node == v.HERE or not workers[node].silent

    if now < probes.samples_due and any(map(is_awaited, probes.samples)):
        return state, ()
    names = {link: (_name(state, link[0]), _name_at(state, link[1])) for link in probes.samples}
    rates = [
        (*names[link], one.size * 8 / one.seconds)
        for link, one in probes.samples.items()
        if one is not None and not one.evidence and one.seconds > 0 and one.size > 0
    ]
    slow = slow_links(rates, 0 if goal.facts is None else goal.facts.model_bytes)
    found = () if slow is None else (slow,)
    late = [" to ".join(names[link]) for link in filter(is_awaited, probes.samples)]
    if late:
        within = f"no bandwidth sample within {times.BANDWIDTH_SAMPLE:g} s"
        what = f"{within}: {first_names(late, _MAX_LINKS_NAMED)}"
        remedy = "Check the load and the network of these nodes"
        found = (*found, Finding(CHECK, Level.WARN, what, remedy))
    samples = {
        link: v.Answer(v.SAMPLE, link[1], "no sample in time") if one is None else one
        for link, one in probes.samples.items()
    }
    probes = replace(probes, samples=samples, samples_due=None)
    return _report_findings(replace(state, probes=probes), found)


def slowest_link(state: HeadState) -> float | None:
    """Return the rate of the slowest measured link in bits per second; None without a sample."""
    samples = (one for one in state.probes.samples.values() if one is not None and one.size)
    return min((one.size * 8 / one.seconds for one in samples if one.seconds > 0), default=None)


def link_waits(state: HeadState) -> Iterator[v.Wait]:
    """Yield the wait for samples of the links, by which the first attempt's job is sized."""
    due = state.probes.samples_due
    if due is None or not state.goal.is_sized_by_links or state.earlier_attempts:
        return
    open_links = sum(1 for one in state.probes.samples.values() if one is None)
    evidence = f"{open_links} of {len(state.probes.samples)} links are not measured"
    yield v.Wait(planned.LINKS, "the bandwidth between the nodes", due, evidence)


def begin_preflight(state: HeadState, now: float) -> Decision:
    """Order all nodes to begin the all-reduce, once, if AGENT_PREFLIGHT asks for it."""
    goal, fleet = state.goal, state.fleet
    if not goal.preflight or state.preflight is not None:
        return state, ()
    by_ray = {} if goal.by_torchrun else state.node_sizes
    own = by_ray.get(state.ray_head_ip or "", goal.size)
    members = [(v.HERE, goal.node or "the head", own.gpus)]
    for worker in fleet.present():
        gpus = by_ray.get(worker.ip, NodeSize(worker.gpus)).gpus
        members.append((worker.key, worker.name, gpus))
    sizes = tuple(NodeSize(gpus) for _, _, gpus in members)
    until = now + times.ALL_REDUCE + times.ALL_REDUCE_SPARE
    state = replace(state, preflight=v.Preflight(until, tuple(members)))
    orders = tuple(
        ProbeNode(key, v.ALL_REDUCE, share=ShareOrder(rank, sizes))
        for rank, (key, _, _) in enumerate(members)
    )
    nodes = f"{len(members)} node(s)"
    return state, (v.LogLine(f"{PREFLIGHT}: an all-reduce over {nodes} before the job"), *orders)


def preflight_waits(state: HeadState) -> Iterator[v.Wait]:
    """Yield the wait for the head's result of the all-reduce."""
    known = state.preflight
    if known is not None and not known.is_over:
        what = f"an all-reduce over all nodes ({PREFLIGHT})"
        yield v.Wait(planned.PREFLIGHT, what, known.deadline)


def finish_preflight(state: HeadState, now: float) -> Decision:
    """Report the result of the all-reduce once known; leave if it failed."""
    known = state.preflight
    if known is None or known.is_over:
        return state, ()
    own, fleet = known.answers.get(v.HERE), state.fleet
    lost = tuple(
        name
        for key, name, _ in known.shares
        if key != v.HERE and (key not in fleet.workers or not fleet.counts(fleet.workers[key]))
    )
    if own is None and lost and not known.lost:  # it cannot succeed without them
        until = min(known.deadline, now + state.goal.limits[planned.NODE])
        known = replace(known, lost=lost, deadline=until)
    if own is None and now < known.deadline:
        return replace(state, preflight=known), ()
    state = replace(state, preflight=replace(known, is_over=True))
    words = "" if own is None else own.words
    speed, failure = all_reduce_result(words, [one[1:] for one in known.shares])
    if not failure:
        return state, (v.LogLine(speed),)
    if lost:
        end = ends.ALL_REDUCE_ABORTED.outcome(check=PREFLIGHT, nodes=listed(lost))
        return leave(state, end, now)
    names, answers = {key: name for key, name, _ in known.shares}, known.answers.items()
    failures = [f"{names[key]}: {one.evidence}" for key, one in answers if one.evidence]
    if failures and not words:  # else the head's own result is more detailed
        failure = listed(failures)
    return leave(state, ends.ALL_REDUCE_FAILED.outcome(check=PREFLIGHT, failure=failure), now)


_MAX_LOGGED = 8
_MAX_FINDINGS = 64
_MAX_NAMED = 8
_OPEN_PORTS = "Open all TCP ports between the nodes; `pod-agent plan` lists those that are used"
_ONE_DATA_CENTER = "Take nodes of one data center"
_REACHABLE = "Let all nodes reach it, or set AGENT_REWARD to a URL that they reach"


def advance_probes(state: HeadState, turn: Turn) -> Decision:
    """Apply the answers of probes, and order the scores that are possible now."""
    log: Actions = ()
    event, now = turn.event, turn.now
    reported = event.worker if isinstance(event, h.WorkerReported) else None
    if reported is not None and reported.answers:
        state, log = _apply_answers(state, reported.key, reported.answers, now)
    if isinstance(event, v.Answered):
        state, log = _apply_answers(state, v.HERE, (event.answer,), now)
    state, warned = _report_slow_links(state, now)
    state, tried = _order_scores(state, reported, now)
    return state, (*log, *warned, *tried)


def _order_scores(state: HeadState, reported: Worker | None, now: float) -> Decision:
    """Order all nodes to request a score once the server is ready, then each that reports later."""
    has_server = any(spec.name == REWARD for spec in state.goal.services)
    home = (has_server and state.service_home(REWARD)) or v.HERE
    item = state.services.get((home, REWARD))
    if item is None or item.step is not v.Step.READY:
        return state, ()
    probes, workers = state.probes, state.fleet.workers
    is_first = not probes.score_asked
    asked = workers.values() if is_first else (() if reported is None else (reported,))
    new = [
        one.key
        for one in asked
        if one.key != home and one.key not in probes.score_asked
        if not (one.has_left or one.refused or one.service_only)
    ]
    if is_first and home != v.HERE:  # if it runs here, its readiness was this probe
        new.insert(0, v.HERE)
    if not new:
        return state, ()
    scores = {**probes.open_scores, **dict.fromkeys(new, now + times.NODE_PROBE)}
    probes = replace(probes, score_asked=probes.score_asked | {*new}, open_scores=scores)
    at = workers[home].ip if home in workers else ""
    return replace(state, probes=probes), tuple(ProbeNode(key, v.SCORE, at) for key in new)


def score_waits(state: HeadState) -> Iterator[v.Wait]:
    """Yield the wait for scores that nodes were asked for."""
    scores = state.probes.open_scores
    left = [key for key in scores if _has_not_left(state, key)]
    if left:
        until = max(scores[key] for key in left)
        what = "every node to get a score from the reward server"
        yield v.Wait(planned.PROBE, what, until, lambda: f"no answer from {_names(state, left)}")


def give_up_scores(state: HeadState) -> Decision:
    """End the wait for scores; report the nodes that sent none."""
    left = [key for key in state.probes.open_scores if _has_not_left(state, key)]
    if not left:
        return state, ()
    state = replace(state, probes=replace(state.probes, open_scores={}))
    within = f"within {times.NODE_PROBE:g} s"
    what = f"{_names(state, left)} did not report {within} whether they reach it"
    return _report_findings(state, (Finding(REWARD, Level.WARN, what, _REACHABLE),))


def _has_not_left(state: HeadState, key: str) -> bool:
    worker = state.fleet.workers.get(key)
    return key == v.HERE or (worker is not None and not worker.has_left)


def _order_reach(state: HeadState) -> Decision:
    """Order probes between the head and each worker, and from each worker to the next rank."""
    head, goal = state.ray_head_ip, state.goal
    if head is None or goal.ray_is_given or goal.by_torchrun:  # no Ray, or unknown ports
        return state, ()
    agents = state.fleet.present()
    by_hand = state.fleet.alive.keys() - {worker.ip for worker in agents}  # nodes without an agent
    ring = [*(worker.ip for worker in agents), *sorted(by_hand)]
    pairs = [(v.HERE, ip) for ip in ring]
    for worker, neighbor in zip(agents, [*ring[1:], *ring[:1]], strict=False):
        pairs += [(worker.key, other) for other in (head, neighbor) if other != worker.ip]
    new = [pair for pair in pairs if pair not in state.probes.reach_asked]
    reached = state.probes.reach_asked | {*new}
    state = replace(state, probes=replace(state.probes, reach_asked=reached))
    return state, tuple(ProbeNode(node, v.REACH, at) for node, at in new)


def _apply_answers(
    state: HeadState, node: str, answers: tuple[v.Answer, ...], now: float
) -> Decision:
    """Apply a node's answers, and report the findings that follow."""
    probes, preflight = state.probes, state.preflight
    members = {key for key, _, _ in preflight.shares} if preflight is not None else set()
    for one in answers:
        link = (node, one.at)
        if one.probe == v.SAMPLE and probes.samples.get(link, one) is None:
            probes = replace(probes, samples={**probes.samples, link: one})
        if one.probe == v.SCORE and node in probes.open_scores:
            left = {key: until for key, until in probes.open_scores.items() if key != node}
            probes = replace(probes, open_scores=left)
        is_awaited = preflight is not None and node in members and not preflight.is_over
        if one.probe == v.ALL_REDUCE and preflight is not None and is_awaited:
            until = now + times.HEAD_RESULT if one.evidence else preflight.deadline
            until, results = min(until, preflight.deadline), {**preflight.answers, node: one}
            preflight = replace(preflight, answers=results, deadline=until)
    found = [_finding(state, node, answer) for answer in answers]
    state = replace(state, probes=probes, preflight=preflight)
    return _report_findings(state, tuple(one for one in found if one is not None))


def _finding(state: HeadState, node: str, answer: v.Answer) -> Finding | None:
    who = _name(state, node)
    if answer.probe == v.SCORE and answer.evidence:
        what = f"{who} gets no score from it: {answer.evidence}"
        return Finding(REWARD, Level.WARN, what, _REACHABLE)
    if answer.probe != v.REACH:
        return None
    other = _name_at(state, answer.at)
    if answer.evidence:
        what = f"{who} does not reach the Ray of {other}: {answer.evidence}"
        return Finding("network", Level.WARN, what, _OPEN_PORTS)
    if answer.seconds > times.ROUND_TRIP_SLOW:
        ms = round(answer.seconds * 1000)
        what = f"{ms} ms from {who} to {other} and back: every exchange between them pays that"
        return Finding("network", Level.WARN, what, _ONE_DATA_CENTER)
    return None


def _report_findings(state: HeadState, findings: tuple[Finding, ...]) -> Decision:
    """Store findings; log the first ones, and once that there are more."""
    known = state.probes.findings
    new = tuple(one for one in findings if one not in known)[: max(0, _MAX_FINDINGS - len(known))]
    if not new:
        return state, ()
    room = max(0, _MAX_LOGGED - len(known))
    log = [v.LogLine(one.sentence(), "warning") for one in new[:room]]
    if len(known) <= _MAX_LOGGED < len(known) + len(new):
        log.append(v.LogLine("more of the kind: `pod-agent doctor --all` here", "warning"))
    probes = replace(state.probes, findings=(*known, *new))
    return replace(state, probes=probes), tuple(log)


def _names(state: HeadState, keys: list[str]) -> str:
    return first_names((_name(state, key) for key in keys), _MAX_NAMED)


def _name(state: HeadState, node: str) -> str:
    worker = state.fleet.workers.get(node)
    return (state.goal.node or "the head") if worker is None else worker.label


def _name_at(state: HeadState, ip: str) -> str:
    key = state.fleet.agent_at.get(ip)
    if key is not None:
        return _name(state, key)
    return _name(state, v.HERE) if ip in ("", state.ray_head_ip) else ip


def compare_nodes(state: HeadState, now: float) -> Decision:
    """Compare all nodes that count, and leave on a conflict; else order probes between them.

    Nodes that were joined by hand have no facts. A difference is not logged twice in a row.
    """
    goal, fleet = state.goal, state.fleet
    state = replace(state, compared_workers=fleet.alive)
    log: Actions = ()
    if goal.facts is not None:
        keys = ((fleet.agent_at.get(ip, ""), name) for ip, name in fleet.alive.items())
        workers = [(name, fleet.facts[key]) for key, name in keys if key in fleet.facts]
        nodes = [(goal.node, goal.facts), *workers]
        differing = agreement(nodes, brings_libraries=goal.brings_libraries)
        found = (*differing, *gpus_missing_in_ray([*_gpu_counts(state)]))
        new = [one for one in found if one not in state.differences]
        log = tuple(v.LogLine(one.sentence(), "warning") for one in new if one.level is Level.WARN)
        failed = [one for one in found if one.level is Level.FAIL]
        state = replace(state, differences=found)
        if failed:
            text = "; ".join(f"{one.check}: {one.what}" for one in failed)
            remedy = ". ".join(dict.fromkeys(one.remedy for one in failed))
            reason, culprit = text, failed[0].check
            if {*failed} & {*differing}:
                reason, culprit = f"the nodes do not agree: {text}", "agreement"
            end = ends.NODES_DIFFER.outcome(reason=reason, check=culprit, remedy=remedy)
            return then(log, leave(state, end, now))
    state, tried = _order_reach(state)
    state, sampled = _order_samples(state, now)
    return state, (*log, *tried, *sampled)


def _gpu_counts(state: HeadState) -> Iterator[tuple[str, int, int]]:
    """Yield each node's GPUs as counted by its agent and by Ray, if Ray is ours."""
    goal, fleet = state.goal, state.fleet
    if goal.ray_is_given or goal.by_torchrun or state.ray_head_ip is None:
        return
    own = state.node_sizes.get(state.ray_head_ip)
    if own is not None:
        yield goal.node, goal.size.gpus, own.gpus
    for ip, name in fleet.alive.items():
        worker, size = fleet.workers.get(fleet.agent_at.get(ip, "")), state.node_sizes.get(ip)
        if worker is not None and size is not None:
            yield name, worker.gpus, size.gpus
