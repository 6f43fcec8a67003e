"""No alarm in 200 days of trainings that do not hang, and one in time for each that does.

The lines of every framework go through the shipped reader, what follows from them through the
shipped decisions, as run/stall.py drives them.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from agent.decisions import stall
from agent.decisions.stall import JobSigns, Look, Next, StallRules, StallState
from agent.job.progress import Progress, ProgressReader
from support.job_series import OF, PRINTERS, Course, Printer, training, with_pauses

DAY = 86_400.0
DAYS = 200.0


class Watched(NamedTuple):
    """What a watch saw of one training."""

    alarms: tuple[str, ...]  # sentences
    alarm_at: float  # of the first one; inf without
    last_step_at: float
    seconds: float  # how long the training was watched


def watched(printer: Printer, course: Course, seed: int, most: float) -> Watched:
    """Watch a training for some time, as run/stall.py does."""
    chance = random.Random(seed)  # noqa: S311 - a test's own
    rules = StallRules(prints_steps=printer.prints_steps, on_stall="retry")
    reader, progress = ProgressReader(), Progress(1, 0.0)
    state: StallState | None = None
    works, saves, output, last_step_at = False, False, 0.0, 0.0
    alarms: list[str] = []
    alarm_at = float("inf")
    tick_at = now = 0.0
    coming = with_pauses(training(printer, course, chance), course)
    moment = next(coming, None)
    is_hang = course.hangs_after < OF
    while now < most and (moment is not None or (is_hang and now < last_step_at + DAY)):
        # What happens before the next tick?
        while moment is not None and moment.at <= tick_at:
            works = works if moment.works is None else moment.works
            saves = saves if moment.saves is None else moment.saves
            if moment.line:
                if printer.is_file and moment.is_step:
                    seen = reader.read_file(moment.line.encode(), moment.at)
                else:
                    output = moment.at
                    seen = reader.read(moment.line.rpartition("\r")[2], moment.at)
                for reading in seen:
                    progress = progress.with_reading(reading)
            if moment.is_step:
                last_step_at = moment.at
            moment = next(coming, None)

        # A tick of the watch.
        now = tick_at
        tick_at += rules.between_ticks
        signs = JobSigns(1, 0.0, last_output=output, progress=progress)
        before = state
        state, follows = stall.tick(state, rules, signs, now)
        if follows is Next.LOOK:
            assert state is not None
            look = Look("GPU 0 at 97 %" if works else "", checkpoint_grows=saves)
            state, follows = stall.after_look(state, rules, signs, look, now)
            if follows is Next.EXAMINE and (before is None or before.alarm is None):
                assert state.alarm is not None
                alarms.append(f"{now:.0f}: {stall.stalled(state.alarm, signs, now).sentence}")
                alarm_at = min(alarm_at, now)
                if is_hang:
                    break
                state, _ = stall.after_examination(state, rules, signs, now, agrees=False)
    return Watched(tuple(alarms), alarm_at, last_step_at, now)


KINDS = {
    "a checkpoint of 10 steps' length": Course(step=240.0, checkpoint_every=20),
    "an evaluation": Course(step=120.0, evaluate_every=25),
    "a first step of compiling": Course(step=90.0, first_step=3300.0),
    "steps that slowly grow": Course(step=40.0, growth=1.002),
    "a paused log stream": Course(step=180.0, pause_every=40, pause=1500.0),
}


@pytest.mark.parametrize("framework", PRINTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_alarm(kind: str, framework: str) -> None:
    """Days of each kind that is no hang, in the lines of each framework."""
    course = KINDS[kind]
    if not PRINTERS[framework].prints_steps:  # nobody knows that a first step is due
        course = course._replace(first_step=min(1500.0, course.first_step))
    no_alarm_in(PRINTERS[framework], course, DAYS / (len(KINDS) + 1) / len(PRINTERS))


@pytest.mark.parametrize("name", ["with output", "without output", "with the lines of engines"])
def test_no_alarm_without_step_lines(name: str) -> None:
    """A job that prints no steps works for days, whatever it writes."""
    lines = {"with output": ("epoch done, loss is 0.5",), "without output": ()}.get(name, ())
    noise = PRINTERS["verl"].noise if name == "with the lines of engines" else ""
    printer = Printer((), lambda _n, _seconds: lines, noise, prints_steps=False)
    course = Course(step=900.0, first_step=1500.0, checkpoint_every=5, checkpoint=2.0)
    no_alarm_in(printer, course, DAYS / (len(KINDS) + 1) / 3)


def no_alarm_in(printer: Printer, course: Course, days: float) -> None:
    """Watch trainings of a kind for so many days."""
    seen = 0.0
    for seed in range(1000):
        found = watched(printer, course, seed, days * DAY - seen)
        assert found.alarms == ()
        seen += found.seconds
        if days * DAY - seen < 60.0:
            return
    pytest.fail(f"only {seen / DAY:.1f} days")


COURSES = {
    "of short steps": (Course(step=5.0), 300.0),
    "of long steps": (Course(step=400.0), 1200.0),
    "with checkpoints": (Course(step=20.0, checkpoint_every=10), 330.0),
    "with evaluations": (Course(step=20.0, evaluate_every=10), 330.0),
}


@pytest.mark.parametrize("framework", PRINTERS)
@pytest.mark.parametrize("name", COURSES)
@pytest.mark.parametrize("is_silent", [True, False])
def test_a_hang_is_found_in_time(name: str, framework: str, is_silent: bool) -> None:  # noqa: FBT001 - a row
    """By the same rules, whether engines go on writing or nothing writes any more."""
    course, limit = COURSES[name]
    printer = PRINTERS[framework]
    for seed in range(3):
        ending = course._replace(hangs_after=25 + seed, writes_on=not is_silent)
        found = watched(printer, ending, seed, 10 * DAY)
        assert len(found.alarms) == 1
        late = found.alarm_at - found.last_step_at - limit
        assert -0.25 * limit <= late <= 0.3 * limit + 90.0, found.alarms
