"""The receipt of a run: what its time was spent on, and what that cost.

Each moment of a run belongs to one part, so that the parts sum to the run's time. While a job runs,
its steps decide: the time from the last step on is open until the next step, or the end of the
attempt, shows what it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from agent.base.text import duration_text
from agent.base.value import RunTime, Value

if TYPE_CHECKING:
    from agent.job.progress import Progress

Part = Literal["boot", "wait", "first_step", "training", "checkpoints", "stalled", "redone", "hold"]
PARTS: dict[Part, str] = {
    "boot": "boot",  # Ray, services and prepare steps
    "wait": "wait",  # for workers, for the next attempt after a loss, and while no agent ran
    "first_step": "first step",  # from the submission on: loading and compiling
    "training": "training",
    "checkpoints": "checkpoints",  # and evaluations, beyond a usual step
    "stalled": "stalled",  # from the last step before a stall was found to the next one
    "redone": "redone",  # steps that an earlier, lost attempt had done
    "hold": "hold",  # after the verdict: stopping everything, and holding the pod
}
"""The parts of a receipt in their order, with their names in a sentence."""
WASTED: tuple[Part, ...] = ("boot", "wait", "stalled", "redone", "hold")
"""The parts in which nothing new is trained; `stalled` and `redone` are those of lost attempts."""
_SHORTEST = 1  # second below which a part is left out of a sentence


class Parts(Value):
    """An amount for each part of a run: its seconds, or its dollars."""

    boot: float = 0.0
    wait: float = 0.0
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

    def sentence(self) -> str:
        """Return it in one line."""
        names: dict[Part, str] = PARTS
        if not self.has_steps:
            names = {**PARTS, "first_step": "job", "training": "job"}
        parts = []
        for part, name in names.items():
            spent = self.seconds.of(part)
            if spent >= _SHORTEST:
                notes = []
                if self.cost is not None and self.cost.of(part):
                    notes.append(f"${self.cost.of(part):.2f}")
                if name == "job":
                    notes.append("no steps known")
                more = f" ({', '.join(notes)})" if notes else ""
                parts.append(f"{name} {duration_text(spent)}{more}")
        line = ", ".join(parts)

        # What has a step cost, and how much money trained nothing?
        if self.cost_per_step is None or self.cost_wasted is None:
            return line
        each = f"${self.cost_per_step:.2f} a step"
        return f"{line}; {each}, ${self.cost_wasted:.2f} trained nothing"


class Receipt(Parts):
    """The seconds of a run by what they were spent on."""

    away: float = 0.0  # part of `wait`: no agent ran, which costs nothing
    steps: int = 0  # made in this run; one that was made again counts once
    has_steps: bool = True  # False: the job has printed none, which may be its way

    def with_time(self, part: Part, seconds: float) -> Receipt:
        """Return it with more time of a part."""
        return replace(self, **{part: getattr(self, part) + max(0.0, seconds)})

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


class Meter(Value):
    """A receipt so far, and what the time since `at` may become."""

    spent: Receipt = Receipt()
    at: RunTime = 0.0  # until when the time is spent
    seen_at: RunTime = 0.0  # when the run was looked at last
    now: RunActivity = RunActivity("boot")
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
            meter = replace(
                self._with_step(activity, activity.step, until), usual=activity.usual, now=activity
            )
        # What was seen of the open time holds until the next step.
        else:
            is_pausing = activity.is_pausing or self.now.is_pausing
            is_stalled = activity.is_stalled or self.now.is_stalled
            same = replace(activity, is_pausing=is_pausing, is_stalled=is_stalled)
            meter = replace(self, now=same)
        steps = [step for step in (meter.highest, activity.step) if step is not None]
        return replace(meter, seen_at=now, highest=max(steps, default=None))

    def receipt(self, now: float, *, has_succeeded: bool = False) -> Receipt:
        """Return the receipt at a moment; a job that succeeded without a step was all training."""
        spent = self._settled(max(now, self.seen_at)).spent
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

    def _with_step(self, activity: RunActivity, step: int, until: float) -> Meter:
        """Spend the open time up to a step; several steps may be completed since the last look."""
        seconds = max(0.0, until - self.at)
        spent = self.spent
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
        return replace(self, spent=spent, at=max(self.at, until))

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
        spent = self.spent.with_time(part, now - self.at)
        return replace(self, spent=spent, at=max(self.at, now))
