"""Stalled jobs: when a job without progress is examined, and what follows.

Three rules can raise an alarm, and AGENT_STALL sets their limits:
- The job's steps are known (`StallRule.STEPS`): no step for three times the median of the last
  twenty, at least 5 minutes, and half as long again as the longest so far. An evaluation or a
  checkpoint, known by a line or by files that grow, may take longer.
- It is to print steps and has printed none (`StallRule.FIRST_STEP`): AGENT_FIRST_STEP.
- Else (`StallRule.QUIET`): no output, no finished Ray task, and nothing of it works on any node.

While nothing of a group serves that may serve again, nothing but a line in the log follows: the job
can only wait. Limits count anew from when it serves.

`tick` runs at intervals. Where a limit is near, it asks for a look at the nodes; `after_look`
asks for an examination if the alarm stands. A second one follows after a minute if it could have
consequences: `after_examination` returns what AGENT_ON_STALL says once two of them agree.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from agent.base import times
from agent.base.text import duration_text
from agent.base.value import Value
from agent.decisions.shared import HeadEvent
from agent.job.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_STALL_AGAIN = 60.0  # Until the second examination: suspects that work are elsewhere by then.
_STALL_AGAIN_LONGEST = 600.0  # Between later ones, where the two before differed.
_STALL_CHECK_SHORTEST = 1.0  # Signs of work are read ten times within AGENT_STALL, no more often.
_MEDIANS = 3.0  # A step that takes so many medians is late,
_LONGEST = 1.5  # if it also takes so many times the longest so far.
_WITH_PAUSE = 5.0  # An evaluation or a checkpoint may take so many times as long as a step.
_WITHOUT_OUTPUT = 6.0
"""Nodes that work may only have a log stream that pauses: so many times the least limit."""
_LOOKS_PER_LIMIT = 10  # Signs of work are read so often within a limit.
_LEAST_DURATIONS = 5  # Before so many steps the usual one is not known well enough to end a job.
_MOST_EXAMINATIONS = 12  # Of one alarm: suspects that change so often are at work.

Then = Literal["log", "retry", "stop", "lost"]
"""What follows an examination; `lost`: the attempt has lost a node, and does not recover."""

# --- what nodes report about the job's work ------------------------------------------------------


class NodeActivity(Value):
    """What works for the job on a node, as the node reports it."""

    work: str = ""  # what works, such as "GPU 3 at 97 %"; '' for nothing
    writes: bool = False  # its share of the job has written since the last look
    checkpoint_grows: bool = False
    unknown: str = ""  # why it cannot be told; this is no sign of work, nor of its absence


class Look(Value):
    """What a look at all nodes showed."""

    work: str = ""  # what works for the job on a node, or ''
    writes: bool = False  # with torchrun: a share has written since the last look
    is_partial: bool = False  # a node did not answer, or could not tell yet
    checkpoint_grows: bool = False
    task_at: float | None = None  # when a task of Ray finished last, if it is known


def look_of(reports: Iterable[NodeActivity], task_at: float | None = None) -> Look:
    """Return what the reports of all nodes show."""
    reports = [*reports]
    working = sorted(report.work for report in reports if report.work)
    return Look(
        work=working[0] if working else "",
        writes=any(report.writes for report in reports),
        is_partial=any(report.unknown for report in reports),
        checkpoint_grows=any(report.checkpoint_grows for report in reports),
        task_at=task_at,
    )


# --- the rules -----------------------------------------------------------------------------------


class StallRules(Value):
    """The settings of a run about stalls."""

    limit: float | None = None  # AGENT_STALL as a duration; None for auto
    first_step: float | None = None  # AGENT_FIRST_STEP, if it is set
    prints_steps: bool = False  # the job's framework is known to print its steps
    on_stall: Literal["log", "retry", "stop"] = "log"
    is_set_by_hand: bool = False
    """AGENT_ON_STALL is set: it also applies before the first step, and to the last attempt."""
    has_debugger: bool = False  # DEBUG_RAY: a breakpoint is no hang
    least: float = times.STALL_LEAST  # tests scale it

    @property
    def quiet(self) -> float:
        """Return after how long without a sign of work a job without known steps is stalled."""
        return times.STALL_QUIET if self.limit is None else self.limit

    @property
    def between_ticks(self) -> float:
        """Return the seconds between two ticks."""
        return _interval(self.least if self.limit is None else self.limit)

    @property
    def between_looks(self) -> float:
        """Return the seconds between two looks at the nodes."""
        return _interval(_WITHOUT_OUTPUT * self.least if self.limit is None else self.limit)


def _interval(limit: float) -> float:
    interval = limit / _LOOKS_PER_LIMIT
    return min(times.STALL_CHECK_LONGEST, max(_STALL_CHECK_SHORTEST, interval))


class StallRule(str, Enum):
    """The rules by which a job counts as stalled."""

    STEPS = "steps"
    FIRST_STEP = "first step"
    QUIET = "quiet"

    @property
    def setting(self) -> str:
        """Return the variable that sets its limit."""
        return "AGENT_FIRST_STEP" if self is StallRule.FIRST_STEP else "AGENT_STALL"


class JobSigns(Value):
    """What the head knows of a running attempt without asking a node; on the run's clock."""

    attempt: int
    began_at: float
    has_lost_node: bool = False  # it has lost a node, rejoined or not
    last_output: float | None = None
    progress: Progress | None = None
    may_be_retried: bool = True  # AGENT_JOB_RETRIES allows another attempt after this one
    is_starved: bool = False  # nothing of a group serves, and its members may serve again
    served_at: float = -math.inf  # when a group served again of which nothing had served

    @property
    def steps(self) -> Progress | None:
        """Return the steps of this attempt, if it has made any."""
        progress = self.progress
        if progress is None or progress.attempt != self.attempt or progress.last_at is None:
            return None
        return progress

    @property
    def has_begun(self) -> bool:
        """Return whether the run has made a step, in this attempt or an earlier one.

        A progress bar of any program may count files or samples: it is no step of a training.
        """
        progress = self.progress
        return progress is not None and progress.highest is not None and not progress.only_bar

    @property
    def is_complete(self) -> bool:
        """Return whether it has made all its steps: what follows has none."""
        steps = self.steps
        if steps is None or steps.of is None or steps.last is None:
            return False
        return steps.last >= steps.of

    @property
    def may_be_complete(self) -> bool:
        """Return whether its last line with a step may have been the last one of all.

        Steps may count from 0, and not every step has a line. Where the number of steps is not
        known, each one may be the last: saving and evaluating may follow.
        """
        steps = self.steps
        if steps is None or steps.last is None:
            return False
        return steps.of is None or steps.last + max((1, *steps.strides)) >= steps.of

    @property
    def pause_at(self) -> float:
        """Return when an evaluation or a checkpoint was last seen in the output since a step."""
        progress = self.progress
        if progress is None or progress.attempt != self.attempt or progress.pause_at is None:
            return -math.inf
        return progress.pause_at


class Alarm(Value):
    """A stall that was found."""

    rule: StallRule
    at: float
    since: float
    step: int | None = None  # the last step before it
    examinations: int = 0
    agreed: int = 0  # so many of the last ones had the suspects of the one before
    examined_at: float = -math.inf  # the end of the last examination
    is_acted_on: bool = False


class StallState(Value):
    """What the watch remembers of a running attempt."""

    attempt: int
    quiet_since: float  # the last sign of work, as far as the nodes were looked at
    has_lost_node: bool = False  # then time counts from the loss
    looked_at: float = -math.inf
    checkpoint_at: float = -math.inf  # when a checkpoint was seen to grow
    alarm: Alarm | None = None


class Next(str, Enum):
    """What is to be done next."""

    NOTHING = "nothing"
    LOOK = "look"  # look at all nodes; `after_look` follows
    EXAMINE = "examine"  # examine the job on all nodes; `after_examination` follows


class Stalled(HeadEvent):
    """A job was found to be stalled; `then` is what follows, if anything does."""

    attempt: int
    what: str  # as "no step for 12 min since step 41"
    suspects: str = ""  # the sentence of the examination, or ''
    then: Then = "log"
    setting: str = "AGENT_STALL"  # whose limit is over
    cause_key: str = ""  # rule and suspects without names and times: equal for the same cause
    nodes: tuple[str, ...] = ()  # of the suspects, by name; () where no node stands out
    usual: str = ""  # as "usually 20 s", if it is known
    is_without_reward: bool = False  # it makes steps, and their rewards are lost

    @property
    def sentence(self) -> str:
        """Return for how long there was no progress, and the usual time in parentheses."""
        return f"{self.what} ({self.usual})" if self.usual else self.what

    def since_loss(self, nodes: str) -> str:
        """Return for how long there was no progress since these nodes were lost."""
        return f"{self.what} since the loss of {nodes} ({self.setting})"

    @property
    def with_setting(self) -> str:
        """Return for how long there was no progress, with the setting in the parentheses."""
        notes = f"{self.usual}, {self.setting}" if self.usual else self.setting
        return f"{self.what} ({notes})"


# --- the course of a watch -----------------------------------------------------------------------


def tick(
    state: StallState | None, rules: StallRules, signs: JobSigns | None, now: float
) -> tuple[StallState | None, Next]:
    """Compare an attempt's signs of progress with the limits; None if no attempt runs."""
    if signs is None:
        return None, Next.NOTHING
    state = _followed(state, signs, now)

    # Is it examined already? Once more only if something could follow.
    alarm = state.alarm
    if alarm is not None:
        is_due = now >= alarm.examined_at + _pause_after(alarm.examinations)
        again = is_due and alarm.examinations < _MOST_EXAMINATIONS
        follows = again and _may_follow(state, rules, signs, now)
        return state, Next.LOOK if follows else Next.NOTHING

    # Is a limit over, or long enough quiet to look for other signs of work?
    if now < state.looked_at + rules.between_looks:
        return state, Next.NOTHING
    near = (now >= due.since + min(due.limit, due.look_after) for due in _dues(state, rules, signs))
    return state, Next.LOOK if any(near) else Next.NOTHING


def after_look(
    state: StallState, rules: StallRules, signs: JobSigns, look: Look, now: float
) -> tuple[StallState, Next]:
    """Raise the alarm, unless the look shows why no step came."""
    state = replace(state, looked_at=now)

    # Signs of work: a node that does not answer is none that idles.
    if look.checkpoint_grows:
        state = replace(state, checkpoint_at=now)
    if look.work or look.writes or look.is_partial or look.checkpoint_grows:
        state = replace(state, quiet_since=now)
    elif look.task_at is not None:
        state = replace(state, quiet_since=max(state.quiet_since, look.task_at))
    state = _followed(state, signs, now)

    # Is it examined again? The second examination decides, not this look.
    if state.alarm is not None:
        return state, Next.EXAMINE
    over = (due for due in _dues(state, rules, signs) if now >= due.since + due.limit)
    due = next((due for due in over if not _is_excused(due, rules, signs, look, now)), None)
    if due is None:
        return state, Next.NOTHING
    steps = signs.steps
    alarm = Alarm(due.rule, now, due.since, None if steps is None else steps.last)
    return replace(state, alarm=alarm), Next.EXAMINE


def after_examination(
    state: StallState, rules: StallRules, signs: JobSigns, now: float, *, agrees: bool
) -> tuple[StallState, Then]:
    """Return what follows an examination; `agrees` if its suspects are those of the last one."""
    state = _followed(state, signs, now)
    alarm = state.alarm
    if alarm is None:  # it has gone on meanwhile
        return state, "log"
    count = alarm.examinations + 1
    agreed = alarm.agreed + 1 if agrees and count > 1 else 0
    alarm = replace(alarm, examinations=count, agreed=agreed, examined_at=now)
    state = replace(state, alarm=alarm)
    if not _may_follow(state, rules, signs, now):
        return state, "log"

    # A job that shows no sign of work since it lost a node is lost. Else the first two
    # examinations must agree, or three later ones in a row: a busy loop is seen twice in one line
    # sooner or later.
    is_lost = _is_lost(state, alarm)
    is_sure = agreed >= (1 if count == 2 else 2)
    if not (is_sure or is_lost):
        return state, "log"
    acted_on = replace(state, alarm=replace(alarm, is_acted_on=True))
    return acted_on, "lost" if is_lost else rules.on_stall


def stalled(alarm: Alarm, signs: JobSigns, now: float) -> Stalled:
    """Return for how long there was no step, or no sign of work, before it is examined."""
    long = duration_text(round(now - alarm.since))
    steps = signs.steps
    usual = ""
    if alarm.rule is StallRule.QUIET:
        what = f"the job shows no sign of work for {long}"
    elif steps is None:
        what = f"the job has made no step for {long} since it began"
    else:
        what = f"the job has made no step for {long} since step {steps.last}"
        usual = "" if steps.usual is None else f"usually {duration_text(round(steps.usual))}"
    return Stalled(signs.attempt, what, usual=usual, setting=alarm.rule.setting)


def after_stall(alarm: Alarm, signs: JobSigns, now: float) -> str:
    """Return how the job went on after an alarm."""
    long = duration_text(round(now - alarm.since))
    steps = signs.steps
    if alarm.rule is StallRule.QUIET or steps is None:
        return f"the job works again after {long} without a sign of work"
    return f"the job made step {steps.last} after {long} without one"


# --- the limits ----------------------------------------------------------------------------------


def is_limit_over(state: StallState | None, rules: StallRules, signs: JobSigns, now: float) -> bool:
    """Return whether the job is stalled unless a look at the nodes shows that it works."""
    state = _followed(state, signs, now)
    return any(now >= due.since + due.limit for due in _dues(state, rules, signs))


class _Due(Value):
    rule: StallRule
    since: float
    limit: float
    look_after: float = math.inf  # when nodes are looked at before the limit is over


def _dues(state: StallState, rules: StallRules, signs: JobSigns) -> Iterator[_Due]:
    """Yield the rules that apply to an attempt, with their limits."""
    steps = signs.steps
    pause_at = max(signs.pause_at, state.checkpoint_at)
    if steps is not None and steps.last_at is not None and not signs.is_complete:
        has_pause = pause_at > steps.last_at
        since = max(pause_at if has_pause else steps.last_at, signs.served_at)
        yield _Due(StallRule.STEPS, since, _step_limit(rules, steps, has_pause=has_pause))
        return

    # Where a first step is due, it may load and compile without any other sign of work.
    is_expected = rules.prints_steps or rules.first_step is not None or signs.has_begun
    if steps is None and is_expected:
        limit = times.FIRST_STEP if rules.first_step is None else rules.first_step
        since = max(signs.began_at, pause_at, signs.served_at)
        yield _Due(StallRule.FIRST_STEP, since, limit)
        if rules.limit is None and not state.has_lost_node:
            return
    since = max(state.quiet_since, signs.served_at)
    yield _Due(StallRule.QUIET, since, rules.quiet, rules.between_looks)


def _step_limit(rules: StallRules, steps: Progress, *, has_pause: bool) -> float:
    """Return how long the next step may take; `has_pause` with an evaluation or a checkpoint."""
    # A duration is the limit, whatever the steps took.
    if rules.limit is not None:
        return _WITH_PAUSE * rules.limit if has_pause else rules.limit

    # After the first step of all, its own time with loading and compiling is all that is known.
    longest = _LONGEST * steps.longest
    if steps.usual is not None:
        usual = max(rules.least, _MEDIANS * steps.usual)
    else:
        until_first = _MEDIANS * ((steps.last_at or 0.0) - steps.began_at)
        usual = max(rules.least, min(until_first, rules.first_step or times.FIRST_STEP))
    return max(_WITH_PAUSE * usual if has_pause else usual, longest)


def _is_excused(due: _Due, rules: StallRules, signs: JobSigns, look: Look, now: float) -> bool:
    """Return whether a look shows that a job works, although no step comes."""
    works = bool(look.work or look.is_partial)
    if due.rule is StallRule.FIRST_STEP:  # it may be one that prints no steps
        return works and not signs.has_begun and rules.first_step is None
    if due.rule is StallRule.QUIET or rules.limit is not None:
        return False

    # Without any output the log stream may pause: then nodes at work count, for some time.
    is_silent = signs.last_output is None or now >= signs.last_output + due.limit / 2
    has_task = look.task_at is not None and look.task_at > due.since
    is_within = now < due.since + max(due.limit, _WITHOUT_OUTPUT * rules.least)
    return is_silent and is_within and (works or has_task)


# --- what follows --------------------------------------------------------------------------------


def _is_lost(state: StallState, alarm: Alarm) -> bool:
    """Return whether the job has shown no sign of work since it lost a node."""
    return state.has_lost_node and alarm.rule is StallRule.QUIET


def _is_only_logged(rules: StallRules, signs: JobSigns) -> bool:
    """Return whether nothing is to follow a stall: the default ends no run for want of a retry."""
    if rules.on_stall == "retry" and not rules.is_set_by_hand:
        return not signs.may_be_retried
    return rules.on_stall == "log"


def _may_follow(state: StallState, rules: StallRules, signs: JobSigns, now: float) -> bool:
    """Return whether anything but a line in the log may follow this alarm."""
    alarm = state.alarm
    if alarm is None or alarm.is_acted_on or rules.has_debugger or signs.is_starved:
        return False
    if _is_lost(state, alarm):
        return rules.on_stall != "log" or not rules.is_set_by_hand
    if _is_only_logged(rules, signs):
        return False

    # Loading, compiling, saving and evaluating take their time: no attempt is ended for that.
    steps = signs.steps
    last_at = None if steps is None else steps.last_at
    if max(signs.pause_at, state.checkpoint_at) > (last_at or signs.began_at):
        return False
    if rules.is_set_by_hand:
        return True

    # Unasked only where the steps are known well. The last step may be behind it: then, and only
    # where their number is unknown, a long silence has to say the same.
    if not signs.has_begun or (steps is not None and len(steps.durations) < _LEAST_DURATIONS):
        return False
    if not signs.may_be_complete:
        return True
    is_silent = signs.last_output is None or now >= signs.last_output + times.STALL_QUIET
    return is_silent and steps is not None and steps.of is None


def _pause_after(examinations: int) -> float:
    """Return the seconds until the next examination, after so many."""
    if examinations < 1:
        return 0.0
    return min(_STALL_AGAIN_LONGEST, _STALL_AGAIN * 2.0 ** (examinations - 1))


def _followed(state: StallState | None, signs: JobSigns, now: float) -> StallState:
    """Return the state of the running attempt after what was seen of it; an alarm may be over."""
    if state is None or state.attempt != signs.attempt:
        return StallState(signs.attempt, now, has_lost_node=signs.has_lost_node)
    if state.has_lost_node != signs.has_lost_node:  # from then on it may be lost for that reason
        state = replace(state, quiet_since=now, has_lost_node=signs.has_lost_node, alarm=None)

    steps = signs.steps
    for at in (signs.last_output, None if steps is None else steps.last_at):
        if at is not None and at > state.quiet_since:
            state = replace(state, quiet_since=at)
    has_served = state.alarm is not None and signs.served_at > state.alarm.at
    return replace(state, alarm=None) if has_served or is_over(state, signs) else state


def is_over(state: StallState, signs: JobSigns) -> bool:
    """Return whether the job has gone on since the alarm."""
    alarm = state.alarm
    if alarm is None:
        return False
    steps = signs.steps
    has_stepped = steps is not None and steps.last_at is not None and steps.last_at > alarm.at
    return has_stepped or (alarm.rule is StallRule.QUIET and state.quiet_since > alarm.at)
