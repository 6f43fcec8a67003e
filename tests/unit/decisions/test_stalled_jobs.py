"""When a job without progress is examined, and what follows: limits, samples, examinations."""

from __future__ import annotations

import math
from statistics import median
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import times
from agent.decisions import stall
from agent.decisions.stall import (
    Alarm,
    JobSigns,
    Look,
    Next,
    NodeActivity,
    StallRule,
    StallRules,
    StallState,
    Then,
    look_of,
)
from agent.job.progress import Progress, ProgressReader

AUTO = StallRules(prints_steps=True)
RETRY = replace(AUTO, on_stall="retry")
WORKS = Look("GPU 0 at 90 %")
IDLE = Look()


def signs(
    durations: tuple[float, ...] = (),
    last_at: float | None = 1000.0,
    output: float | None = None,
    **known: Any,  # noqa: ANN401 - fields of Progress
) -> JobSigns:
    """Return an attempt that began at 0, made its 41st step at `last_at`, and wrote since then."""
    steps: dict[str, Any] = {}
    if last_at is not None:
        steps = {"first": 1, "last": 41, "of": 400, "last_at": last_at, "highest": 41}
    longest = max(durations, default=0.0)
    fields: dict[str, Any] = {"durations": durations, "longest": longest, **steps, **known}
    return JobSigns(1, 0.0, last_output=output, progress=Progress(1, 0.0, **fields))


class Watch:
    """A watch with its state."""

    def __init__(self, rules: StallRules, seen: JobSigns, look: Look = IDLE) -> None:
        self.rules, self.signs, self.look = rules, seen, look
        self.state: StallState | None = None
        self.examined: list[float] = []
        self.then: list[tuple[float, Then]] = []

    def until(self, end: float, begin: float = 0.0, *, agrees: bool = True) -> None:
        """Let time pass; the nodes show what `look` has, and examinations agree."""
        now = begin
        while now <= end:
            state, follows = stall.tick(self.state, self.rules, self.signs, now)
            assert state is not None
            if follows is Next.LOOK:
                state, follows = stall.after_look(state, self.rules, self.signs, self.look, now)
                if follows is Next.EXAMINE:
                    self.examined.append(now)
                    state, then = stall.after_examination(
                        state, self.rules, self.signs, now, agrees=agrees
                    )
                    if then != "log":
                        self.then.append((now, then))
            self.state = state
            now += 1.0

    @property
    def alarm(self) -> Alarm | None:
        """Return the alarm that stands."""
        return None if self.state is None else self.state.alarm


def alarm_after(rules: StallRules, seen: JobSigns, look: Look = IDLE, most: float = 6e4) -> float:
    """Return after how many seconds since the last step an alarm was raised, within a tick."""
    since = seen.steps.last_at if seen.steps else 0.0
    assert since is not None
    watch = Watch(rules, seen, look)
    watch.until(since + most)
    return watch.examined[0] - since if watch.examined else math.inf


# --- the limits ----------------------------------------------------------------------------------


WRITES = 1e9  # the job writes all the time
STEADY = (10.0,) * 20  # how long its last steps took
NO_STEP = signs(last_at=None, output=WRITES)
NO_SIGN = signs(last_at=None, output=0.0)
LAST_STEP = signs(STEADY, of=41, output=2000.0)
HUNG = signs(STEADY, output=WRITES)
HALF_MINUTE = StallRules(limit=30.0)
NEVER = math.inf

LIMITS: dict[str, tuple[StallRules, JobSigns, Look, float]] = {
    # After a step: three medians, half as long again as the longest, and at least 5 minutes
    "short steps": (AUTO, signs((1.0,) * 20, output=WRITES), IDLE, 300),
    "steps of 99 s": (AUTO, signs((99.0,) * 20, output=WRITES), IDLE, 300),
    "long steps": (AUTO, signs((200.0,) * 20, output=WRITES), IDLE, 600),
    "one very long": (AUTO, signs((200.0,) * 19 + (900.0,), output=WRITES), IDLE, 1350),
    "two steps": (AUTO, signs((200.0,), output=WRITES), IDLE, 600),
    "one step: three times what it took, with loading": (AUTO, signs(output=WRITES), IDLE, 3000),
    # A duration is the limit that the plan shows, five times of it after an evaluation's line
    "a duration, short steps": (HALF_MINUTE, signs((1.0,) * 20, output=WRITES), IDLE, 30),
    "a duration, long steps": (HALF_MINUTE, signs((100.0,) * 20, output=WRITES), IDLE, 30),
    "a duration, and an evaluation": (
        StallRules(limit=60.0),
        signs(STEADY, output=WRITES, pause_at=1010.0),
        IDLE,
        10 + 5 * 60,
    ),
    # Before the first step, while anything of the job writes
    "the first step": (AUTO, NO_STEP, IDLE, times.FIRST_STEP),
    "AGENT_FIRST_STEP": (replace(AUTO, first_step=600.0), NO_STEP, IDLE, 600),
    "AGENT_FIRST_STEP of a job without steps": (StallRules(first_step=600.0), NO_STEP, IDLE, 600),
    "AGENT_FIRST_STEP beside a duration": (
        replace(AUTO, limit=60.0, first_step=600.0),
        NO_STEP,
        IDLE,
        600,
    ),
    "nodes that work, and another logger": (AUTO, NO_STEP, WORKS, NEVER),
    "nodes that work, and AGENT_FIRST_STEP": (
        replace(AUTO, first_step=600.0),
        NO_STEP,
        WORKS,
        600,
    ),
    # Where no steps are known, any sign counts
    "no sign": (StallRules(), NO_SIGN, IDLE, 1800),
    "no sign, and a duration": (StallRules(limit=1800.0), NO_SIGN, IDLE, 1800),
    "output": (StallRules(), NO_STEP, IDLE, NEVER),
    "output, and a duration": (StallRules(limit=1800.0), NO_STEP, IDLE, NEVER),
    "a node that works": (StallRules(), NO_SIGN, WORKS, NEVER),
    "a node that works, and a duration": (StallRules(limit=1800.0), NO_SIGN, WORKS, NEVER),
    "a share that writes": (StallRules(), NO_SIGN, Look(writes=True), NEVER),
    "a node that does not answer": (StallRules(), NO_SIGN, Look(is_partial=True), NEVER),
    "a checkpoint that grows": (StallRules(), NO_SIGN, Look(checkpoint_grows=True), NEVER),
    "a finished task": (StallRules(), NO_SIGN, Look(task_at=1000.0), 1000 + 1800),
    "after its last step it may evaluate and upload": (RETRY, LAST_STEP, IDLE, 1000 + 1800),
    # The log stream may pause while nodes work
    "no output, nodes at work": (AUTO, signs(STEADY, output=1001.0), WORKS, 1800),
    "no output, a finished task": (
        AUTO,
        signs(STEADY, output=1001.0),
        Look(task_at=1100.0),
        1800,
    ),
    "no output, idle nodes": (AUTO, signs(STEADY, output=1001.0), IDLE, 300),
    "rank 0 is silent, other shares write": (
        AUTO,
        signs(STEADY, output=1001.0),
        Look(writes=True),
        300,
    ),
    "engines write and work, nobody makes a step": (AUTO, HUNG, WORKS, 300),
}


@pytest.mark.parametrize(("rules", "seen", "look", "limit"), LIMITS.values(), ids=LIMITS)
def test_when_a_job_is_examined(
    rules: StallRules, seen: JobSigns, look: Look, limit: float
) -> None:
    """So many seconds after its last step, within two looks at the nodes."""
    assert limit <= alarm_after(rules, seen, look) <= limit + 2 * rules.between_looks


def test_after_its_last_step_nothing_ends_a_job() -> None:
    """It is examined only."""
    watch = Watch(RETRY, LAST_STEP)
    watch.until(6e4)
    assert watch.then == []


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=20), st.floats(0, 1e5))
def test_no_alarm_before_a_step_is_late(durations: list[float], waited: float) -> None:
    """By each part of the rule, whatever the steps took."""
    seen = signs(tuple(durations), output=1e9)
    state, _ = stall.after_look(StallState(1, 0.0), AUTO, seen, IDLE, 1000.0 + waited)
    is_late = waited >= max(300.0, 3 * median(durations), 1.5 * max(durations))
    assert (state.alarm is not None) == is_late


@pytest.mark.parametrize("checkpoint", [True, False])
def test_an_evaluation_or_a_checkpoint_may_take_longer(checkpoint: bool) -> None:  # noqa: FBT001 - a row
    """Five times as long, counted from the line, or from the last growth of a file."""
    known: dict[str, float] = {} if checkpoint else {"pause_at": 1010.0}
    watch = Watch(RETRY, signs((200.0,) * 20, output=1e9, **known))
    watch.until(1010.0)
    watch.look = Look(checkpoint_grows=checkpoint)
    watch.until(1000.0 + 660, 1011.0)
    watch.look = IDLE
    watch.until(1000.0 + 2990, 1661.0)
    assert watch.examined == []
    watch.until(9000.0, 3991.0)
    assert watch.alarm is not None
    assert len(watch.examined) == 1  # nothing can follow: no second examination
    assert watch.then == []


def test_a_late_look_does_not_raise_an_alarm_about_a_step_that_came() -> None:
    """The nodes are asked for seconds: a step may come meanwhile."""
    late = signs((10.0,) * 20, output=1e9)
    state, follows = stall.tick(StallState(1, 0.0), AUTO, late, 1400.0)
    assert follows is Next.LOOK
    assert state is not None
    went_on = signs((10.0,) * 20, last_at=1399.0, output=1e9)
    state, follows = stall.after_look(state, AUTO, went_on, IDLE, 1405.0)
    assert (state.alarm, follows) == (None, Next.NOTHING)


# --- what follows --------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["retry", "stop"])
def test_two_examinations_a_minute_apart_must_agree(action: Literal["retry", "stop"]) -> None:
    """Then it is acted on once; where they differ, later ones are compared, ever more rarely."""
    watch = Watch(replace(AUTO, on_stall=action), HUNG)
    watch.until(9000.0)
    assert len(watch.examined) == 2
    assert watch.examined[1] - watch.examined[0] == 60.0
    assert watch.then == [(watch.examined[1], action)]
    watch = Watch(replace(AUTO, on_stall=action), HUNG)
    watch.until(2e4, agrees=False)
    assert watch.then == []
    pauses = [
        after - before for before, after in zip(watch.examined, watch.examined[1:], strict=False)
    ]
    assert pauses[:5] == [60.0, 120.0, 240.0, 480.0, 600.0]
    assert len(watch.examined) == 12
    watch.until(2.1e4, 2e4 + 1)
    assert len(watch.examined) == 12


BY_HAND = replace(RETRY, is_set_by_hand=True)
LAST_TRY = replace(HUNG, may_be_retried=False)
FIRST_STEP_DUE = replace(RETRY, first_step=600.0)
FIRST_STEP_BY_HAND = replace(BY_HAND, first_step=600.0)

FOLLOWS: dict[str, tuple[StallRules, JobSigns, list[Then]]] = {
    "log, the default": (AUTO, HUNG, []),
    "retry": (RETRY, HUNG, ["retry"]),
    "stop": (replace(AUTO, on_stall="stop"), HUNG, ["stop"]),
    "DEBUG_RAY": (replace(RETRY, has_debugger=True), HUNG, []),
    "an evaluation": (RETRY, signs(STEADY, output=WRITES, pause_at=1001.0), []),
    # Where no retry is left, a stall is only logged, unless the action was set by hand
    "the last attempt": (RETRY, LAST_TRY, []),
    "the last attempt, set by hand": (BY_HAND, LAST_TRY, ["retry"]),
    "the last attempt, to be stopped": (replace(BY_HAND, on_stall="stop"), LAST_TRY, ["stop"]),
    # The default covers the first step only where the run has made steps before
    "no step of the run": (RETRY, signs(last_at=None), []),
    "no step of the run within its time": (FIRST_STEP_DUE, signs(last_at=None), []),
    "no step of the run, set by hand": (FIRST_STEP_BY_HAND, signs(last_at=None), ["retry"]),
    "no step of a later attempt": (FIRST_STEP_DUE, signs(last_at=None, highest=70), ["retry"]),
}


@pytest.mark.parametrize(("rules", "seen", "then"), FOLLOWS.values(), ids=FOLLOWS)
def test_what_follows(rules: StallRules, seen: JobSigns, then: list[Then]) -> None:
    """By the setting and the known steps; a job for which nothing may follow is examined once."""
    watch = Watch(rules, seen)
    watch.until(9000.0)
    assert [one for _, one in watch.then] == then
    assert len(watch.examined) == 1 + len(then)


def test_a_job_that_goes_on_after_the_alarm_is_not_ended() -> None:
    """Neither between the examinations, nor during the second one; a later stall is a new one."""
    watch = Watch(RETRY, HUNG)
    watch.until(1330.0)
    assert watch.alarm is not None
    state = watch.state
    assert state is not None
    went_on = signs((10.0,) * 20, last_at=1395.0, output=1e9)
    state, then = stall.after_examination(state, RETRY, went_on, 1396.0, agrees=True)
    assert (state.alarm, then) == (None, "log")
    watch.signs = went_on
    watch.until(1690.0, 1331.0)
    assert len(watch.examined) == 1
    watch.until(1800.0, 1691.0)
    assert len(watch.then) == 1


def test_an_attempt_that_lost_a_node_is_lost_without_a_sign_of_work() -> None:
    """At once and by default, as no retry is needed to know it; AGENT_ON_STALL=log keeps it."""
    lost = replace(signs(last_at=None, output=0.0), has_lost_node=True)
    rules = StallRules(limit=100.0)
    watch = Watch(rules, replace(lost, has_lost_node=False))
    watch.until(150.0)
    assert (len(watch.examined), watch.then) == (1, [])
    watch.signs = lost
    watch.until(240.0, 151.0)
    assert watch.then == []
    watch.until(260.0, 241.0)
    assert [then for _, then in watch.then] == ["lost"]
    for log in (replace(rules, is_set_by_hand=True), replace(rules, has_debugger=True)):
        watch = Watch(log, lost)
        watch.until(900.0)
        assert watch.then == []


def test_a_new_attempt_begins_anew() -> None:
    """Its own alarm is another one."""
    watch = Watch(StallRules(limit=100.0), signs(last_at=None, output=0.0))
    watch.until(150.0)
    watch.signs = replace(watch.signs, attempt=2, began_at=150.0)
    watch.until(240.0, 151.0)
    assert len(watch.examined) == 1
    watch.until(270.0, 241.0)
    assert len(watch.examined) == 2
    assert stall.tick(watch.state, watch.rules, None, 300.0) == (None, Next.NOTHING)


# --- healthy jobs whose steps are over, or not known well ----------------------------------------


def printed(*lines: str, each: float = 20.0) -> Progress:
    """Return what the shipped reader makes of lines, one after the other."""
    reader = ProgressReader()
    progress = Progress(1, 0.0)
    for number, line in enumerate(lines, 1):
        for seen in reader.read(line, number * each):
            progress = progress.with_reading(seen)
    return progress


def ended_by(progress: Progress, rules: StallRules = RETRY, *, lost: bool = False) -> list[Then]:
    """Return what follows where no step comes for an hour, while GPUs work and it writes."""
    seen = JobSigns(1, 0.0, has_lost_node=lost, last_output=1e9, progress=progress)
    watch = Watch(rules, seen, WORKS)
    last = progress.last_at or 0.0
    watch.until(last + 3600.0, last)
    assert watch.examined
    return [then for _, then in watch.then]


@pytest.mark.parametrize(
    "lines",
    [
        [f"step {number}/100 loss=0.5" for number in range(100)],  # from 0
        [f"step {number}/1000 loss=0.5" for number in range(0, 1000, 10)],  # each tenth
        [f"step {number} loss=0.5" for number in range(1, 101)],  # without their number
        [f"step:{number} - critic/rewards/mean:0.5" for number in range(1, 101)],
    ],
    ids=["from 0", "each tenth", "general line without a number", "verl without its bar"],
)
def test_a_job_that_may_have_made_its_last_step_is_not_ended(lines: list[str]) -> None:
    """It may save, merge, upload or evaluate; after half an hour of silence it hangs."""
    progress = printed(*lines)
    assert ended_by(progress) == []
    if progress.of is None:
        silent = replace(signs(), last_output=progress.last_at, progress=progress)
        watch = Watch(RETRY, silent)
        last = progress.last_at or 0.0
        watch.until(last + 3600.0, last)
        assert [then for _, then in watch.then] == ["retry"]


@pytest.mark.parametrize(
    "line",
    [
        "Running evaluation on 5000 prompts",
        "INFO 11-26 10:11:12 Evaluating...",
        "Saving checkpoint to /data/ckpt/40",
        "saving model to /data/step_40",
        "Validation: 1/200 batches",
        "Start merging 8 shards",
    ],
)
def test_anybodys_words_for_an_evaluation_or_a_checkpoint(line: str) -> None:
    """No attempt is ended for that, whatever program writes it."""
    steps = [f"step {number}/1000 loss=0.5" for number in range(1, 41)]
    assert ended_by(printed(*steps)) == ["retry"]
    assert ended_by(printed(*steps, line)) == []


def test_words_in_a_models_text_are_no_evaluation() -> None:
    """Where a framework's own lines show the steps, only its own lines show what takes longer."""
    steps = [f"step:{number} - critic/rewards/mean:0.5" for number in range(1, 41)]
    assert printed(*steps, "Evaluate the expression: 3 + 4").pause_at is None


@pytest.mark.parametrize(
    "lines",
    [
        ["Step 1/3: preparing data", "Step 2/3: training"],
        [f"{number}%|#| {number}/100 [00:{number}<01:12,  1.3s/it]" for number in range(10, 31)],
    ],
    ids=["few steps", "a bar of any program"],
)
def test_steps_that_are_not_known_well_end_nothing(lines: list[str]) -> None:
    """Stages of a script and a bar of samples are no steps of a training."""
    assert ended_by(printed(*lines)) == []
    assert ended_by(printed(*lines), replace(RETRY, is_set_by_hand=True)) == ["retry"]


def test_a_node_that_was_lost_long_ago_makes_no_late_step_a_loss() -> None:
    """A lost node matters where the job shows no sign of work at all."""
    steps = [f"step {number}/1000 loss=0.5" for number in range(1, 41)]
    assert ended_by(printed(*steps), AUTO, lost=True) == []
    verl = [f"step:{number} - critic/rewards/mean:0.5" for number in range(1, 41)]
    paused = printed(*verl, "validation generation end")
    assert ended_by(paused, lost=True) == []


def test_later_examinations_must_agree_three_times_in_a_row() -> None:
    """A busy loop is in one line in two of many examinations."""
    state: StallState | None = StallState(1, 0.0, alarm=Alarm(StallRule.STEPS, 1400.0, 1000.0, 41))
    then: list[Then] = []
    for count, agrees in enumerate([False, False, True, False, True, True]):
        assert state is not None
        now = 1400.0 + 700 * count
        state, follows = stall.after_examination(state, RETRY, HUNG, now, agrees=agrees)
        then.append(follows)
    assert then == ["log"] * 5 + ["retry"]


# --- words ---------------------------------------------------------------------------------------


def test_the_reports_of_nodes_make_a_look() -> None:
    """Nodes that do not answer are neither idle nor at work."""
    idle = NodeActivity()
    assert look_of([idle, idle]) == IDLE
    assert look_of([idle, NodeActivity("GPU 3 at 97 %")]) == Look("GPU 3 at 97 %")
    assert look_of([NodeActivity(writes=True)]) == Look(writes=True)
    works = NodeActivity("1.00 cores")
    assert look_of([NodeActivity(checkpoint_grows=True), works]) == Look(
        "1.00 cores", checkpoint_grows=True
    )
    assert look_of([idle, NodeActivity(unknown="no answer within 15 s")]) == Look(is_partial=True)


@pytest.mark.parametrize(
    ("alarm", "seen", "text"),
    [
        (
            Alarm(StallRule.STEPS, 1720.0, 1000.0, 41),
            HUNG,
            "the job has made no step for 12 min since step 41 (usually 10 s)",
        ),
        (
            Alarm(StallRule.FIRST_STEP, 3600.0, 0.0),
            signs(last_at=None),
            "the job has made no step for 28 min 40 s since it began",
        ),
        (
            Alarm(StallRule.QUIET, 1720.0, 0.0),
            HUNG,
            "the job shows no sign of work for 28 min 40 s",
        ),
    ],
)
def test_a_stall_is_described(alarm: Alarm, seen: JobSigns, text: str) -> None:
    """By the rule that found it."""
    stalled = stall.stalled(alarm, seen, 1720.0)
    assert stalled.sentence == text
    setting = "AGENT_FIRST_STEP" if alarm.rule is StallRule.FIRST_STEP else "AGENT_STALL"
    without_end = text[:-1] + ", " if text.endswith(")") else f"{text} ("
    assert stalled.with_setting == f"{without_end}{setting})"


# --- groups of which nothing serves ---------------------------------------------------------------


def test_nothing_follows_while_a_group_may_serve_again() -> None:
    """The job is examined once, for the log; once nothing is started again, a stall is one."""
    watch = Watch(RETRY, replace(HUNG, is_starved=True))
    watch.until(9000.0)
    assert len(watch.examined) == 1
    assert watch.then == []
    watch.signs = replace(HUNG, is_starved=False)
    watch.until(9200.0, 9001.0)
    assert [then for _, then in watch.then] == ["retry"]


def test_the_limits_count_from_when_a_group_serves_again() -> None:
    """The alarm is over, and the next step has its usual time."""
    watch = Watch(RETRY, replace(HUNG, is_starved=True))
    watch.until(2000.0)
    assert watch.alarm is not None
    watch.signs = replace(HUNG, served_at=2000.0)
    watch.until(2250.0, 2001.0)
    assert watch.alarm is None
    watch.until(2400.0, 2251.0)
    assert len(watch.examined) == 3
    assert 2300.0 <= watch.examined[1] < 2331.0
    assert [then for _, then in watch.then] == ["retry"]


@pytest.mark.parametrize("seen", [NO_STEP, NO_SIGN])
def test_a_job_without_steps_waits_for_a_group_too(seen: JobSigns) -> None:
    """Whichever rule applies, its limit counts from when the group serves."""
    rules = StallRules(limit=60.0, first_step=60.0)
    late = replace(seen, served_at=500.0)
    watch = Watch(rules, late)
    watch.until(700.0)
    assert 560.0 <= watch.examined[0] < 580.0
