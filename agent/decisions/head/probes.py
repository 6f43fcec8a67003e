"""Probes between nodes: reward server, reachability, bandwidth, agreement."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.text import first_names
from agent.checks.agreement import agreement
from agent.checks.finding import Finding, Level
from agent.checks.machine import gpus_missing_in_ray
from agent.checks.network import CHECK, slow_links
from agent.decisions import shared as v
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import Ask, Comparison, Probe, answer_of, leave
from agent.job.services import REWARD
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.base.ends import Outcome
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.head_state import HeadState, Turn


MAX_HEAD_LINKS = 16  # workers that measure their link to the head, one after the other
_MAX_LOGGED = 8
_MAX_FINDINGS = 64
_OPEN_PORTS = "Open all TCP ports between the nodes; `pod-agent plan` lists those that are used"
_REACHABLE = "Let all nodes reach it, or set AGENT_REWARD to a URL that they reach"
_TOO_SLOW = "Check the load and the network of these nodes"
_LATE = {
    v.SCORE: (REWARD, times.NODE_PROBE, "no answer to a scoring request", _REACHABLE),
    v.SAMPLE: (CHECK, times.BANDWIDTH_SAMPLE, "no bandwidth sample", _TOO_SLOW),
}
"""By kind of probe: the check, the time for an answer, and the finding about a late one."""


def advance_probes(state: HeadState, turn: Turn) -> HeadState:
    """Apply the answers of probes, end kinds that are complete or late, and ask for scores."""
    event = turn.event
    now = turn.now
    reported = event.worker if isinstance(event, h.WorkerReported) else None
    if reported is not None and reported.answers:
        state = _apply_answers(state, reported.key, reported.answers)
    own = answer_of(event, v.Answer)
    if own is not None:
        state = _apply_answers(state, v.HERE, (own,))
    for kind in _LATE.keys() & state.probes.due.keys():
        if now >= state.probes.due[kind] or not any(_pending(state, kind)):
            state = _end_kind(state, kind)
    return _order_scores(state, reported, now)


def _ask(
    state: HeadState,
    kind: str,
    pairs: Iterable[v.Link],
    until: float | None = None,
) -> HeadState:
    """Ask for the probes of a kind that were not asked for before; `pairs` are node and address.

    `until` is when an answer is late.
    """
    known = state.probes.answers.get(kind, {})
    probes = state.probes
    new: dict[v.Link, None] = dict.fromkeys(pair for pair in pairs if pair not in known)
    if not new:
        return state
    due = probes.due if until is None else {**probes.due, kind: until}
    probes = replace(probes, answers={**probes.answers, kind: {**known, **new}}, due=due)
    asked = (Ask(Probe(kind, at), node) for node, at in new)
    return replace(state, probes=probes).do(*asked)


def _pending(state: HeadState, kind: str) -> Iterator[v.Link]:
    """Yield the probes of a kind that are not answered, without those of absent nodes."""
    workers = state.fleet.workers
    for link, answer in state.probes.answers.get(kind, {}).items():
        if answer is not None:
            continue
        worker = workers.get(link[0])
        is_there = worker is not None and not worker.has_left and not worker.silent
        if is_there or link[0] == v.HERE:
            yield link


def _end_kind(state: HeadState, kind: str) -> HeadState:
    """Report what the answers of a kind show, and which are late; these do not count any more."""
    probes = state.probes
    facts = state.goal.facts
    findings = []

    # Are links slow?
    if kind == v.SAMPLE:
        links = [(*_ends(state, link), rate) for link, rate in _rates(state)]
        slow = slow_links(links, 0 if facts is None else facts.model_bytes)
        if slow:
            findings.append(slow)

    # Are answers missing?
    check, within, lack, remedy = _LATE[kind]
    late = [" to ".join(_ends(state, link)) for link in _pending(state, kind)]
    if late:
        what = f"{lack} within {within:g} s: {first_names(late)}"
        findings.append(Finding(check, Level.WARN, what, remedy))

    # Nothing of this kind is pending any more.
    ended = {
        link: answer or v.Answer(kind, link[1], "no answer in time")
        for link, answer in probes.answers[kind].items()
    }
    answers = {**probes.answers, kind: ended}
    due = {other: until for other, until in probes.due.items() if other != kind}
    state = replace(state, probes=replace(probes, answers=answers, due=due))
    return _report_findings(state, findings)


def _ends(state: HeadState, link: v.Link) -> tuple[str, str]:
    """Return the names of both nodes of a link."""
    return _name(state, link[0]), _name_at(state, link[1])


def _rates(state: HeadState) -> Iterator[tuple[v.Link, float]]:
    """Yield the measured links with their rates in bits per second."""
    for link, answer in state.probes.answers.get(v.SAMPLE, {}).items():
        if answer and answer.size > 0 and answer.seconds > 0 and not answer.evidence:
            yield link, answer.size * 8 / answer.seconds


def slowest_link(state: HeadState) -> float | None:
    """Return the rate of the slowest measured link in bits per second; None without a sample."""
    return min((rate for _, rate in _rates(state)), default=None)


def probe_waits(state: HeadState) -> Iterator[v.Wait]:
    """Yield the waits for scores, and for the links by which the first attempt's job is sized."""
    due = state.probes.due
    goal = state.goal
    waits = {v.SCORE: (wait_keys.PROBE, "every node to get a score from the reward server")}
    if goal.is_sized_by_links and not state.earlier.number:
        waits[v.SAMPLE] = (wait_keys.LINKS, "the bandwidth between the nodes")
    for kind in waits.keys() & due.keys():
        late = [node for node, _ in _pending(state, kind)]
        if late:
            yield v.Wait(*waits[kind], due[kind], partial(_evidence, state, late))


def _evidence(state: HeadState, nodes: list[str]) -> str:
    return f"no answer from {first_names(dict.fromkeys(_name(state, node) for node in nodes))}"


def _order_scores(state: HeadState, reported: Worker | None, now: float) -> HeadState:
    """Ask all nodes to request a score once the server is ready, then each that reports later."""
    home = v.HERE
    if any(spec.name == REWARD for spec in state.goal.services):
        home = state.service_home(REWARD) or v.HERE
    item = state.services.by_key.get((home, REWARD))
    if item is None or item.step is not v.Step.READY:
        return state

    # All nodes once, when the server is ready; its readiness was the probe of its own node.
    probes = state.probes
    workers = state.fleet.workers
    at = workers[home].ip if home in workers else ""
    known = probes.answers.get(v.SCORE, {})
    asked = [] if reported is None else [reported]
    if (home, at) not in known:
        own = {**known, (home, at): v.Answer(v.SCORE, at)}
        answers = {**probes.answers, v.SCORE: own}
        state = replace(state, probes=replace(probes, answers=answers))
        asked = [*workers.values()]

    keys = [
        worker.key
        for worker in asked
        if not (worker.has_left or worker.refused or worker.service_only)
    ]
    pairs = [(v.HERE, at), *((key, at) for key in keys)]
    return _ask(state, v.SCORE, pairs, now + times.NODE_PROBE)


def _order_samples(state: HeadState, now: float) -> HeadState:
    """Ask for bandwidth samples: to and from the head, and in a ring over the workers."""
    agents = state.fleet.present()
    near = agents[:MAX_HEAD_LINKS]
    links = [*((v.HERE, worker.ip) for worker in near), *((worker.key, "") for worker in near)]
    ring = zip(agents, [*agents[1:], *agents[:1]], strict=True)
    links += [(worker.key, other.ip) for worker, other in ring if other.ip != worker.ip]
    return _ask(state, v.SAMPLE, links, now + times.BANDWIDTH_SAMPLE)


def _order_reach(state: HeadState) -> HeadState:
    """Ask for probes between the head and each worker, and from each worker to the next rank."""
    head = state.ray.head_ip
    goal = state.goal
    if head is None or goal.ray_is_given or goal.by_shares:  # no Ray, or unknown ports
        return state
    agents = state.fleet.present()
    by_hand = state.fleet.alive.keys() - {worker.ip for worker in agents}  # nodes without an agent
    ring = [*(worker.ip for worker in agents), *sorted(by_hand)]
    pairs = [(v.HERE, ip) for ip in ring]
    for worker, neighbor in zip(agents, [*ring[1:], *ring[:1]], strict=False):
        pairs += [(worker.key, other) for other in (head, neighbor) if other != worker.ip]
    return _ask(state, v.REACH, pairs)


def _apply_answers(state: HeadState, node: str, answers: tuple[v.Answer, ...]) -> HeadState:
    probes = state.probes
    for answer in answers:
        kind = answer.probe
        link = (node, answer.at)
        known = probes.answers.get(kind, {})
        is_awaited = link in known and known[link] is None
        if not is_awaited:
            continue
        results = {**probes.answers, kind: {**known, link: answer}}
        probes = replace(probes, answers=results)

    findings = [_finding(state, node, answer) for answer in answers]
    state = replace(state, probes=probes)
    return _report_findings(state, [finding for finding in findings if finding is not None])


def _finding(state: HeadState, node: str, answer: v.Answer) -> Finding | None:
    who = _name(state, node)
    if answer.probe == v.SCORE and answer.evidence:
        what = f"{who} gets no score from it: {answer.evidence}"
        return Finding(REWARD, Level.WARN, what, _REACHABLE)
    if answer.probe == v.REACH and answer.evidence:
        what = f"{who} does not reach the Ray of {_name_at(state, answer.at)}: {answer.evidence}"
        return Finding("network", Level.WARN, what, _OPEN_PORTS)
    return None


def _report_findings(state: HeadState, findings: Iterable[Finding]) -> HeadState:
    """Store findings; log the first ones, and once that there are more."""
    for finding in findings:
        known = state.probes.findings
        if finding in known or len(known) >= _MAX_FINDINGS:
            continue
        state = replace(state, probes=replace(state.probes, findings=(*known, finding)))
        if len(known) < _MAX_LOGGED:
            state = state.log(finding.sentence(), "warning")
        elif len(known) == _MAX_LOGGED:
            state = state.log("more of the kind: `pod-agent doctor --all` here", "warning")
    return state


def _name(state: HeadState, node: str) -> str:
    worker = state.fleet.workers.get(node)
    return (state.goal.node or "the head") if worker is None else worker.label


def _name_at(state: HeadState, ip: str) -> str:
    key = state.fleet.agent_at.get(ip)
    if key is not None:
        return _name(state, key)
    return _name(state, v.HERE) if ip in ("", state.ray.head_ip) else ip


def compare_nodes(state: HeadState, now: float) -> HeadState:
    """Compare all nodes that count, and leave on a conflict.

    Nodes that were joined by hand have no facts. A difference is not logged twice in a row.
    """
    goal = state.goal
    fleet = state.fleet
    if goal.facts is not None:
        keys = ((fleet.agent_at.get(ip, ""), name) for ip, name in fleet.alive.items())
        workers = [(name, fleet.facts[key]) for key, name in keys if key in fleet.facts]
        nodes = [(goal.node, goal.facts), *workers]
        in_groups = {name for ip, name in fleet.alive.items() if state.is_in_group(ip)}
        differing = agreement(nodes, brings_libraries=goal.brings_libraries, in_groups=in_groups)
        differences = (*differing, *gpus_missing_in_ray([*_gpu_counts(state)]))

        # Warn of each difference that is new.
        for finding in differences:
            if finding.level is Level.WARN and finding not in state.comparison.differences:
                state = state.log(finding.sentence(), "warning")
        state = replace(state, comparison=Comparison(differences, state.comparison.workers))

        # Does one forbid the job?
        conflicts = [finding for finding in differences if finding.level is Level.FAIL]
        if conflicts:
            return leave(state, _end_by_conflicts(conflicts, differing), now)

    return replace(state, comparison=Comparison(state.comparison.differences, fleet.alive))


def probe_links(state: HeadState, now: float) -> HeadState:
    """Ask for the probes between the nodes that were not asked for before."""
    state = replace(state, probes=replace(state.probes, await_job=False))
    return _order_samples(_order_reach(state), now)


def _end_by_conflicts(conflicts: list[Finding], differing: Iterable[Finding]) -> Outcome:
    text = "; ".join(f"{finding.check}: {finding.what}" for finding in conflicts)
    remedy = ". ".join(dict.fromkeys(finding.remedy for finding in conflicts))
    if {*conflicts}.isdisjoint(differing):
        check = conflicts[0].check
        return ends.NODES_DIFFER.outcome(reason=text, check=check, remedy=remedy)
    reason = f"the nodes do not agree: {text}"
    return ends.NODES_DIFFER.outcome(reason=reason, check="agreement", remedy=remedy)


def _gpu_counts(state: HeadState) -> Iterator[tuple[str, int, int]]:
    """Yield each node's GPUs as counted by its agent and by Ray, if Ray is ours."""
    goal = state.goal
    fleet = state.fleet
    if goal.ray_is_given or goal.by_shares or state.ray.head_ip is None:
        return
    own = state.ray.node_sizes.get(state.ray.head_ip)
    if own is not None:
        yield goal.node, goal.size.gpus, own.gpus
    for ip, name in fleet.alive.items():
        worker = fleet.workers.get(fleet.agent_at.get(ip, ""))
        size = state.ray.node_sizes.get(ip)
        if worker is not None and size is not None:
            yield name, state.gpus_for_job(worker), size.gpus
