"""The head's decisions: a pure function from state, event and time to state and actions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.decisions.attempts import Attempt, id_of
from agent.decisions.head import after as dependencies
from agent.decisions.head import hangs, parts, probes, retry, services, turns, underway
from agent.decisions.head import state as h
from agent.decisions.head.booting import booting
from agent.decisions.head.notes import note
from agent.decisions.head.remarks import departed, remarks
from agent.decisions.head.resuming import resuming
from agent.decisions.head.running import judging, running, submitting
from agent.decisions.head.state import HeadEvent, HeadState, Phase
from agent.decisions.head.stopping import on_stop, stopping, superseded
from agent.decisions.head.waits import waits, with_service
from agent.decisions.head.workers import Fleet
from agent.decisions.items import HERE, Item, Step
from agent.decisions.shared import StopAsked
from agent.plan import waits as planned

if TYPE_CHECKING:
    from agent.decisions.head.leaving import Decision


def first_state(goal: h.Goal) -> HeadState:
    """Return the head's first state."""
    number = goal.first_attempt
    state = HeadState(
        goal=goal,
        attempt=Attempt(id_of(goal.run_id, number, goal.submission_id), number),
        ray=Item(Step.READY) if goal.by_torchrun else Item(),
        fleet=Fleet(by_report=goal.by_torchrun),
        steps={
            (HERE, step.name): Item().ready() if step.name in goal.done else Item()
            for step in goal.steps
        },
        turns=turns.first_turns(goal),
        required=goal.expected_workers,
        leftovers=dict.fromkeys(goal.former_nodes, 0.0),
    )
    for spec in goal.services:
        if spec.where.includes(goal.rank, is_head=True):
            state = with_service(state, (HERE, spec.name), services.begun(goal))
    own = [key for key, item in state.steps.items() if item.step is Step.PENDING]
    state = dependencies.held_back(state, [*own, *state.services.items], state.attempt.began)
    return state if goal.underway is None else underway.taken_up(state, goal.underway)


def decide(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Take in one event; return the new state and what to do about it.

    What a next agent would have to know is written down before anything else is done.
    """
    after, actions = _decided(state, event, now)
    known = underway.of(after)
    if known is not None and underway.is_news(state, known):
        actions = (h.Keep(known), *actions)
    return after, actions


def _decided(state: HeadState, event: HeadEvent, now: float) -> Decision:
    if state.phase is Phase.LEAVING:
        return note(state, event, now), ()
    if isinstance(event, StopAsked):
        return on_stop(state, event, now)
    if isinstance(event, h.LaterHead):
        return superseded(state, event, now)
    noted = note(state, event, now)
    noted = replace(noted, fleet=noted.fleet.looked(now))
    noted = parts.counted(state, noted)
    said = remarks(state, noted, event)
    noted = hangs.judged(noted, now)
    noted = retry.noticed(noted, departed(state, noted, event), now)
    noted, ordered = services.order(noted, event, now)
    noted, in_turn = turns.order(noted, event, now)
    is_count_new = noted.fleet.alive is not state.fleet.alive
    noted, tried = probes.after(noted, event, now, is_count_new=is_count_new)
    decided, actions = _BY_PHASE[noted.phase](noted, event, now)
    done = (*said, *ordered, *in_turn, *tried, *actions)
    if decided.phase is Phase.LEAVING:
        return decided, done
    decided, begun = dependencies.started(state, decided, event, now)
    decided, more = turns.resumed(state, decided)
    return decided, (*done, *begun, *more)


def deadline(state: HeadState) -> float | None:
    """Return when the state must be looked at again though nothing happens."""
    if state.phase is Phase.LEAVING:
        return None
    times = [wait.deadline for wait in waits(state)]
    if state.phase is Phase.BOOTING and not times:
        times.append(state.since)  # nothing is waited for, not even for a Ray
    if state.phase in {Phase.BOOTING, Phase.RUNNING}:
        dead = state.services.dead.values()
        times += [item.again_at for item in dead if item.again_at is not None]
        alone = services.alone_deadline(state)
        times += [] if alone is None else [alone]
    times += [at for at in (state.probes.sampled_by, state.probes.early_at) if at is not None]
    if state.fleet.look_at is not None:
        times.append(state.fleet.look_at)
    if state.phase is Phase.STOPPING and (told := parts.next_look(state)) is not None:
        times.append(told)
    if state.short_since is not None and state.phase is Phase.RUNNING and state.goal.wants_job:
        times.append(state.short_since + state.goal.limits[planned.NODE])
    return min(times, default=None)


_BY_PHASE = {
    Phase.RESUMING: resuming,
    Phase.BOOTING: booting,
    Phase.SUBMITTING: submitting,
    Phase.RUNNING: running,
    Phase.JUDGING: judging,
    Phase.STOPPING: stopping,
}
