"""Series of lines of whole trainings, with times and with what the GPUs do meanwhile.

A training runs on a simulated clock. It prints what a framework prints (`PRINTERS`), and does what
its `Course` says: steps of some length, checkpoints, evaluations, a slow first step, a log stream
that pauses, a hang.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from agent.record.job_lines import JobLines

OF = 2000  # steps of a training


def rewards(lines: JobLines) -> tuple[int | None, list[tuple[int, float]]]:
    """Return the number of steps and the curve of rewards, as the status has them."""
    curves = lines.curves()
    points = curves.keys["reward"]
    return curves.of, [*zip(points.steps, points.values, strict=True)]


class Printer(NamedTuple):
    """What a framework prints."""

    begin: tuple[str, ...]  # once, as it starts
    step: Callable[[int, float], tuple[str, ...]]  # after a step of some seconds
    noise: str  # what engines and loggers write meanwhile
    evaluation: tuple[str, ...] = ()  # as an evaluation begins; () where nothing is written
    evaluated: tuple[str, ...] = ()  # as it ends
    checkpoint: tuple[str, ...] = ()  # as one begins; () where only files that grow show it
    prints_steps: bool = True
    is_file: bool = False  # the steps go to AGENT_PROGRESS_FILE


_ENGINE = '(WorkerDict pid=71) INFO:     10.0.0.2:51234 - "GET /metrics HTTP/1.1" 200 OK'
_OPENRLHF = "(PPOTrainer pid=1) INFO 05-13 10:11:12 ppo_trainer.py:547] "
_VERL = "\x1b[36m(TaskRunner pid=9, ip=10.0.0.2)\x1b[0m "


def _bar(n: int, of: int, seconds: float, words: str = "", more: str = "") -> str:
    done = 100 * n // of
    shown = f"{done:3}%|{'█' * (done // 10):10}| {n}/{of}"
    return f"\r{words}{shown} [1:00:49<1:53:43, {seconds:.2f}s/it{more}]"


def _verl(n: int, seconds: float) -> tuple[str, ...]:
    metrics = f"actor/kl_loss:np.float64(0.0012) - actor/lr:1e-06 - timing_s/step:{seconds:.3f}"
    line = f"{_VERL}step:{n} - {metrics} - critic/rewards/mean:{n / OF:.3f}"
    return line, _VERL + _bar(n, OF, seconds, "Training Progress: ")


def _search_r1(n: int, seconds: float) -> tuple[str, ...]:
    metrics = f"actor/lr:0.000 - critic/rewards/mean:{n / OF:.3f} - timing_s/step:{seconds:.3f}"
    return (f"(main_task pid=144783) step:{n} - {metrics}",)


def _openrlhf(n: int, seconds: float) -> tuple[str, ...]:
    metrics = {"policy_loss": -0.01, "reward": n / OF, "timing/step_total": seconds}
    return (f"{_OPENRLHF}✨ Global step {n}: {metrics}",)


def _trl(n: int, seconds: float) -> tuple[str, ...]:
    metrics = {"loss": "0.0187", "grad_norm": "0.03", "reward": f"{n / OF:.4f}", "epoch": "0.6"}
    return (_bar(n, OF, seconds), f"\r{metrics}")


def _own(n: int, _seconds: float) -> tuple[str, ...]:
    return (f"step {n}/{OF} mean reward {n / OF:.3f} tokens 120 kl=0.1 loss=0.02",)


def _sft(n: int, seconds: float) -> tuple[str, ...]:
    epoch, at = divmod(n - 1, 500)
    words = f"Train step of epoch {epoch}: "
    return (_bar(at + 1, 500, seconds, words, ", loss_mean=2.1, lr=5e-06"),)


def _general(n: int, _seconds: float) -> tuple[str, ...]:
    return (f"step {n}/{OF} loss=0.5, lr=1e-5",)


def _file(n: int, _seconds: float) -> tuple[str, ...]:
    return (json.dumps({"step": n, "of": OF, "reward": n / OF}),)


_BEFORE_VERL = (
    f"{_VERL}Total training steps: {OF}",
    f"{_VERL}step:0 - val-core/gsm8k/acc/mean@1:0.5",
)
_SAMPLES = "Processed prompts:  50%|█████     | 12/512 [00:05<00:05,  1.3it/s]"
_SAVES_TORCH = ("[Torch] Checkpoint global_step20 is about to be saved!",)
PRINTERS = {
    "verl": Printer(
        _BEFORE_VERL,
        _verl,
        _ENGINE,
        (f"{_VERL}test_gen_batch meta info: {{'eos_token_id': 1}}",),
        (f"{_VERL}validation generation end",),
        (f"{_VERL}local_global_step_folder: /ckpt/global_step_20",),
    ),
    "Search-R1": Printer(
        (f"(main_task pid=144783) Total training steps: {OF}",),
        _search_r1,
        "(WorkerDict pid=71) INFO 11-26 10:11:12 metrics.py:345] Avg generation throughput: 9",
        ("(main_task pid=144783) validation generation end",),
        (),
        ("(main_task pid=144783) Saving actor checkpoint to /ckpt/global_step_20",),
    ),
    "OpenRLHF": Printer(
        (),
        _openrlhf,
        _SAMPLES,
        ("INFO ⏰ Evaluation start time: 2026-01-01 10:11:12",),
        ("✨ Evaluation completed in 0:01:02, global_step 20, eval_metrics: {'eval_a': 0.5}",),
        _SAVES_TORCH,
    ),
    "TRL": Printer(
        (_bar(0, OF, 0.0).replace("0.00s/it", "?it/s"),),
        _trl,
        "[rank1]: W1126 10:11:12 torch/utils/checkpoint.py:86] None of the inputs",
        (_bar(1, 63, 3.0),),
        ("\r{'eval_loss': '0.5', 'eval_reward': '0.6', 'epoch': '0.6'}",),
    ),
    "trl-grpo": Printer((), _own, _ENGINE, (), (f"eval_step 20/{OF} mean reward 0.5 tokens 9",)),
    "SFT, RM, DPO": Printer(
        ("\rTrain epoch:   0%|          | 0/4 [00:00<?, ?it/s]",),
        _sft,
        "[2026-11-26 10:11:12,345] [INFO] [logging.py:96:log_dist] [Rank 0] step=40, skipped=0",
        (_bar(3, 25, 3.3, "Eval stage of steps 20: "),),
        (),
        _SAVES_TORCH,
    ),
    "another program": Printer((), _general, _ENGINE, prints_steps=False),
    "AGENT_PROGRESS_FILE": Printer((), _file, _ENGINE, prints_steps=False, is_file=True),
}
"""A printer for each row of what training jobs print; the last two are any other program."""


class Course(NamedTuple):
    """What happens in a training."""

    step: float = 60.0  # seconds of its first steps
    growth: float = 1.0  # each step takes so many times as long as the last one
    first_step: float = 300.0  # with loading and compiling
    checkpoint_every: int = 0
    checkpoint: float = 10.0  # in steps
    evaluate_every: int = 0
    evaluation: float = 10.0
    pause_every: int = 0  # the log stream pauses each so many steps,
    pause: float = 0.0  # for so many seconds
    noise_every: float = 120.0
    hangs_after: int = OF  # this step
    writes_on: bool = False  # engines go on writing then


class Moment(NamedTuple):
    """What happens at a time: a line, or a change of what the GPUs and checkpoints do."""

    at: float
    line: str = ""
    is_step: bool = False  # of the file or the output with steps
    works: bool | None = None
    saves: bool | None = None


def training(printer: Printer, course: Course, chance: random.Random) -> Iterator[Moment]:
    """Yield what happens in a training, in the order of time, and for hours after it hangs."""
    now = 0.0
    yield Moment(now, works=False)
    for line in printer.begin:
        yield Moment(now + 1.0, line)
    now += course.first_step
    usual = course.step
    for n in range(1, course.hangs_after + 1):
        # The step itself: generation and training, with a few other lines.
        began = now
        yield Moment(now, works=True)
        seconds = usual * chance.uniform(0.75, 1.3)
        usual *= course.growth
        if n > 1:
            for other in range(int(seconds // course.noise_every)):
                yield Moment(now + other * course.noise_every, printer.noise)
            now += seconds

        # What it does beside.
        if course.evaluate_every and n % course.evaluate_every == 0:
            for line in printer.evaluation:
                yield Moment(now, line)
            for other in range(int(course.evaluation * usual // 10) if printer.evaluation else 0):
                yield Moment(now + 10 * other, printer.noise)
            now += course.evaluation * usual
            for line in printer.evaluated:
                yield Moment(now, line)
        if course.checkpoint_every and n % course.checkpoint_every == 0:
            yield Moment(now, works=False, saves=not printer.checkpoint)
            for line in printer.checkpoint:
                yield Moment(now, line)
            now += course.checkpoint * usual
            yield Moment(now, works=True, saves=False)
        for line in printer.step(n, now - began):
            yield Moment(now, line, is_step=True)

    # After a hang the GPUs idle; engines may write on.
    yield Moment(now, works=False)
    if course.hangs_after < OF and course.writes_on:
        for other in range(1, 1000):
            yield Moment(now + 10 * other, printer.noise)


def with_pauses(moments: Iterator[Moment], course: Course) -> Iterator[Moment]:
    """Delay lines as a log stream does that pauses: they all come when it goes on."""
    steps = 0
    until = 0.0
    held: list[Moment] = []
    for moment in moments:
        if held and moment.at >= until:
            yield from (one._replace(at=until) for one in held)
            held = []
        if moment.is_step:
            steps += 1
            if course.pause_every and steps % course.pause_every == 0:
                until = moment.at + course.pause
        if moment.line and moment.at < until:
            held.append(moment)
        else:
            yield moment
    yield from (one._replace(at=until) for one in held)
