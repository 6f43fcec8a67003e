"""The receipt of a run: what its time was spent on, and what that cost.

Each moment of a run belongs to one part, so that the parts sum to the run's time. While a job runs,
its steps decide: the time from the last step on is open until the next step, or the end of the
attempt, shows what it was. What of it passed while nothing of a group served is the group's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import field
from msgspec.structs import replace

from agent.base.text import duration_text
from agent.base.value import RunTime, Value

if TYPE_CHECKING:
    from agent.job.progress import Progress

Part = Literal[
    "boot",
    "wait",
    "group",
    "first_step",
    "training",
    "checkpoints",
    "stalled",
    "redone",
    "hold",
]
PARTS: dict[Part, str] = {
    "boot": "boot",  # Ray, services and prepare steps
    "wait": "wait",  # for workers, for the next attempt after a loss, and while no agent ran
    "group": "waited for a group",  # of which nothing served while the job ran
    "first_step": "first step",  # from the submission on: loading and compiling
    "training": "training",
    "checkpoints": "checkpoints",  # and evaluations, beyond a usual step
    "stalled": "stalled",  # from the last step before a stall was found to the next one
    "redone": "redone",  # steps that an earlier, lost attempt had done
    "hold": "hold",  # after the verdict: stopping everything, and holding the pod
}
"""The parts of a receipt in their order, with their names in a sentence."""
WASTED: tuple[Part, ...] = ("boot", "wait", "group", "stalled", "redone", "hold")
"""The parts in which nothing new is trained; `stalled` and `redone` are those of lost attempts."""
_SHORTEST = 1  # second below which a part is left out of a sentence


class Parts(Value):
    """An amount for each part of a run: its seconds, or its dollars."""

    boot: float = 0.0
    wait: float = 0.0
    group: float = 0.0
    first_step: float = 0.0
    training: float = 0.0
    checkpoints: float = 0.0
    stalled: float = 0.0
    redone: float = 0.0
    hold: float = 0.0

    def of(self, *parts: Part) -> float:
        """Return the sum of some parts."""
        amounts: list[float] = [getattr(self, part) for part in parts]
        return sum(amounts)

    @property
    def total(self) -> float:
        """Return the sum of all parts."""
        return self.of(*PARTS)

    def times(self, factor: float, digits: int) -> Parts:
        """Return each part multiplied and rounded."""
        return Parts(**{part: round(factor * getattr(self, part), digits) for part in PARTS})


class ReceiptStatus(Value):
    """What a run's time was spent on, in seconds, and in dollars where the price is known."""

    total: float
    seconds: Parts
    away: float
    cost: Parts | None
    wasted: float
    cost_wasted: float | None
    cost_per_step: float | None
    has_steps: bool = True
    groups: Mapping[str, float] = field(default_factory=dict)
    """The seconds of `group` by the name of the group that was waited for."""

    def sentence(self) -> str:
        """Return it in one line."""
        names: dict[Part, str] = PARTS
        if not self.has_steps:
            names = {**PARTS, "first_step": "job", "training": "job"}
        line = ", ".join(
            self._row(name, seconds, part)
            for part, whole in names.items()
            for name, seconds in self._named(part, whole)
            if seconds >= _SHORTEST
        )

        # What has a step cost, and how much money trained nothing?
        if self.cost_per_step is None or self.cost_wasted is None:
            return line
        each = f"${self.cost_per_step:.2f} a step"
        return f"{line}; {each}, ${self.cost_wasted:.2f} trained nothing"

    def _named(self, part: Part, name: str) -> Iterator[tuple[str, float]]:
        """Yield a name and its seconds for a part: each group has its own."""
        if part != "group":
            yield name, self.seconds.of(part)
            return
        for group, seconds in self.groups.items():
            yield f"waited for the group {group}", seconds

    def _row(self, name: str, seconds: float, part: Part) -> str:
        """Return a part with what it has cost; a group costs its share of what all have."""
        notes = []
        if self.cost is not None and self.cost.of(part):
            dollars = self.cost.of(part) * seconds / self.seconds.of(part)
            notes.append(f"${dollars:.2f}")
        if name == "job":
            notes.append("no steps known")
        more = f" ({', '.join(notes)})" if notes else ""
        return f"{name} {duration_text(seconds)}{more}"


class Receipt(Parts):
    """The seconds of a run by what they were spent on."""

    away: float = 0.0  # part of `wait`: no agent ran, which costs nothing
    steps: int = 0  # made in this run; one that was made again counts once
    has_steps: bool = True  # False: the job has printed none, which may be its way
    groups: Mapping[str, float] = field(default_factory=dict)  # the seconds of `group` by group

    def with_time(self, part: Part, seconds: float) -> Receipt:
        """Return it with more time of a part."""
        return replace(self, **{part: getattr(self, part) + max(0.0, seconds)})

    def with_group_time(self, group: str, seconds: float) -> Receipt:
        """Return it with more time in which a group was waited for."""
        groups = {**self.groups, group: self.groups.get(group, 0.0) + seconds}
        return replace(self.with_time("group", seconds), groups=groups)

    def to_status(self, price: float | None) -> ReceiptStatus:
        """Return it as status and outcome have it; `price` is dollars an hour of all nodes."""
        cost = None
        cost_wasted = None
        cost_per_step = None
        if price is not None:
            paid = replace(self, wait=max(0.0, self.wait - self.away))
            each = price / 3600
            cost = paid.times(each, 2)
            cost_wasted = round(paid.of(*WASTED) * each, 2)
            if self.steps:
                cost_per_step = round(paid.total * each / self.steps, 4)
        return ReceiptStatus(
            total=round(self.total, 1),
            seconds=self.times(1, 1),
            away=round(self.away, 1),
            cost=cost,
            wasted=round(self.of(*WASTED), 1),
            cost_wasted=cost_wasted,
            cost_per_step=cost_per_step,
            has_steps=self.has_steps,
            groups={name: round(seconds, 1) for name, seconds in self.groups.items()},
        )


class RunActivity(Value):
    """What a run does at a moment."""

    part: Part | Literal["job"]  # "job": its steps decide
    attempt: int = 0
    step: int | None = None  # the last step of this attempt
    step_at: RunTime | None = None  # when it was seen
    first: int | None = None  # the first step of this attempt
    each: float | None = None  # seconds of a step
    usual: float | None = None  # seconds between two lines with steps
    is_pausing: bool = False  # an evaluation or checkpoint was seen since the last step
    is_stalled: bool = False  # a stall was found since the last step
    waits_for: str = ""  # the group of which nothing serves at this moment

    @classmethod
    def of_job(cls, attempt: int, progress: Progress) -> RunActivity:
        """Return what a run does whose job is in this attempt, by its steps."""
        return cls(
            "job",
            attempt,
            step=progress.last,
            step_at=progress.last_at,
            first=progress.first,
            each=progress.seconds_per_step,
            usual=progress.usual,
            is_pausing=progress.pause_at is not None,
        )


class GroupWait(Value):
    """A period in which nothing of a group served while the job ran."""

    group: str
    since: RunTime
    until: RunTime


class Meter(Value):
    """A receipt so far, and what the time since `at` may become."""

    spent: Receipt = Receipt()
    at: RunTime = 0.0  # until when the time is spent
    seen_at: RunTime = 0.0  # when the run was looked at last
    now: RunActivity = RunActivity("boot")
    waits: tuple[GroupWait, ...] = ()  # in the open time
    highest: int | None = None  # step of all attempts
    redo_until: int | None = None  # the same of the attempts before this one
    usual: float | None = None  # seconds of a step before the open one
    prints_steps: bool = False  # the job is known to print its steps

    def at_moment(self, activity: RunActivity, now: float) -> Meter:
        """Return the meter after a look at the run."""
        now = max(now, self.seen_at)
        goes_on = activity.part == self.now.part and activity.attempt == self.now.attempt

        # Does something else begin, or another attempt?
        if not goes_on:
            meter = replace(
                self._settled(now), redo_until=self.highest, usual=activity.usual, now=activity
            )
        # Did the attempt complete a step since? It ends the open time.
        elif activity.step is not None and activity.step != self.now.step:
            until = now if activity.step_at is None else min(now, activity.step_at)
            meter = self._with_step(activity, activity.step, until, now)
            meter = replace(meter, usual=activity.usual, now=activity)
        # What was seen of the open time holds until the next step.
        else:
            is_pausing = activity.is_pausing or self.now.is_pausing
            is_stalled = activity.is_stalled or self.now.is_stalled
            same = replace(activity, is_pausing=is_pausing, is_stalled=is_stalled)
            meter = replace(self, now=same, waits=self._waits_until(now))
        steps = [step for step in (meter.highest, activity.step) if step is not None]
        return replace(meter, seen_at=now, highest=max(steps, default=None))

    def receipt(self, now: float, *, has_succeeded: bool = False) -> Receipt:
        """Return the receipt at a moment; a job that succeeded without a step was all training."""
        now = max(now, self.seen_at)
        spent = self._settled(now).spent
        if self.highest is None and not self.prints_steps and spent.first_step:
            spent = replace(spent, has_steps=False)
        if has_succeeded and self.highest is None:
            moved = spent.first_step
            spent = replace(spent, first_step=0.0).with_time("training", moved)
        return spent

    def resumed(self, now: float, *, job_runs: bool) -> Meter:
        """Return the meter of the next agent: no agent ran since the last look.

        A job that still runs made use of that time.
        """
        if job_runs and self.now.part == "job":
            return self
        meter = self._settled(self.seen_at)
        gap = max(0.0, now - self.seen_at)
        spent = replace(meter.spent.with_time("wait", gap), away=meter.spent.away + gap)
        return replace(meter, spent=spent, at=now, seen_at=now, now=RunActivity("boot"))

    def _waits_until(self, now: float) -> tuple[GroupWait, ...]:
        """Return the waits with the time since the last look, if a group was waited for then."""
        group = self.now.waits_for
        if not group or now <= self.seen_at:
            return self.waits
        last = self.waits[-1] if self.waits else None
        if last is not None and (last.group, last.until) == (group, self.seen_at):
            return (*self.waits[:-1], replace(last, until=now))
        return (*self.waits, GroupWait(group, self.seen_at, now))

    def _without_waits(
        self, until: float, now: float
    ) -> tuple[Receipt, float, tuple[GroupWait, ...]]:
        """Spend the open time in which groups were waited for, up to a moment.

        Returns the receipt, the rest of that time, and the waits after it.
        """
        spent = self.spent
        seconds = max(0.0, until - self.at)
        waits = self._waits_until(now)
        for wait in waits:
            waited = min(seconds, max(0.0, min(wait.until, until) - max(wait.since, self.at)))
            if waited:
                spent = spent.with_group_time(wait.group, waited)
                seconds -= waited
        after = (wait for wait in waits if wait.until > until)
        later = tuple(replace(wait, since=max(wait.since, until)) for wait in after)
        return spent, seconds, later

    def _with_step(self, activity: RunActivity, step: int, until: float, now: float) -> Meter:
        """Spend the open time up to a step; several steps may be completed since the last look."""
        spent, seconds, waits = self._without_waits(until, now)
        from_step = self.now.step

        # The first look that finds steps: all before the first of them was its own.
        if from_step is None:
            from_step = step if activity.first is None else min(activity.first, step)
            after_first = min(seconds, (step - from_step) * (activity.each or 0.0))
            spent = spent.with_time("first_step", seconds - after_first)
            seconds = after_first

        # How many of the steps are new to this run?
        made = step - max(from_step, self.highest or 0)
        if self.highest is None and self.now.step is None:
            made += 1  # the first of them, too
        spent = replace(spent, steps=spent.steps + max(0, made))

        # Which share of the steps had an earlier attempt done?
        if self.redo_until is not None and not self.now.is_stalled:
            count = max(1, step - from_step)
            again = min(count, max(0, self.redo_until - step + count))
            redone = seconds * again / count
            spent = spent.with_time("redone", redone)
            seconds -= redone

        if self.now.is_stalled:
            spent = spent.with_time("stalled", seconds)
        elif self.now.is_pausing and self.usual is not None:
            usual = min(seconds, self.usual)
            spent = spent.with_time("training", usual).with_time("checkpoints", seconds - usual)
        else:
            spent = spent.with_time("training", seconds)
        return replace(self, spent=spent, at=max(self.at, until), waits=waits)

    def _settled(self, now: float) -> Meter:
        """Spend the open time up to now: no step ended it."""
        part: Part = "training"
        if self.now.part != "job":
            part = self.now.part
        elif self.now.step is None:
            part = "first_step"
        elif self.now.is_stalled:
            part = "stalled"
        elif self.redo_until is not None and self.now.step < self.redo_until:
            part = "redone"
        spent, seconds, waits = self._without_waits(now, now)
        return replace(
            self, spent=spent.with_time(part, seconds), at=max(self.at, now), waits=waits
        )
