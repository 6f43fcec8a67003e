"""The steps in a job's output: every framework's lines, and hostile ones."""

from __future__ import annotations

import json
import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.job.progress import (
    LARGEST_STEP,
    MOST_METRICS,
    RECENT,
    PauseSeen,
    Progress,
    ProgressReader,
    Reading,
    StepSeen,
    ValuesSeen,
    meant,
    place_of,
)

VERL = (
    "\x1b[36m(TaskRunner pid=9, ip=10.0.0.2)\x1b[0m step:12 - actor/kl_loss:np.float64(0.0012)"
    " - actor/lr:1e-06 - critic/rewards/mean:0.088 - response_length/clip_ratio:0.0"
    " - timing_s/step:61.2 - perf/throughput:524.48"
)
SEARCH_R1 = (
    "(main_task pid=144783) step:1 - actor/lr:0.000 - critic/rewards/mean:0.056"
    " - env/finish_ratio:0.031"
)
OPENRLHF = (
    "(PPOTrainer pid=1) INFO 05-13 10:11:12 ppo_trainer.py:547] ✨ Global step 12: "
    "{'policy_loss': -0.01, 'reward': 0.375, 'ppo_kl': 3e-05, 'timing/step_total': 61.2,"
    " 'rollout/reward_mean': 0.37}"
)
FROZEN = "✨ Global step 2: {'critic_loss': 0.4, 'rollout/reward_mean': 0.37}"
SLIME = (
    "(MegatronTrainRayActor pid=9) [2026-11-26 10:11:12] model.py:918 - step 12: "
    "{'train/loss': 0.1, 'train/grad_norm': 0.5, 'train/step': 12}"
)
TRL = "{'loss': 0.0187, 'grad_norm': 0.03, 'reward': 0.454, 'kl': 1.87, 'epoch': 0.6}"
QUOTED = "{'loss': '-0.007415', 'reward': '0.9688', 'step_time': '17.3', 'epoch': '0.07143'}"
BAR = "  4%|▍         | 9/200 [03:00<1:04:17, 20.20s/it]"
SFT = (
    "Train step of epoch 0:  12%|█▏        | 3/25 [00:10<01:12,  3.3s/it, loss_mean=2.1, lr=5e-06]"
)


def read(*lines: str, every: float = 60.0) -> tuple[Reading, ...]:
    """Return what lines show that come at this interval."""
    reader = ProgressReader()
    return tuple(seen for n, line in enumerate(lines) for seen in reader.read(line, n * every))


def steps(*lines: str, every: float = 60.0) -> list[int]:
    """Return the steps that count among lines at this interval."""
    return [seen.step for seen in read(*lines, every=every) if isinstance(seen, StepSeen)]


@pytest.mark.parametrize(
    ("line", "step", "of", "some"),
    [
        (VERL, 12, None, {"actor/kl_loss": 0.0012, "actor/lr": 1e-06, "perf/throughput": 524.48}),
        (SEARCH_R1, 1, None, {"actor/lr": 0.0, "env/finish_ratio": 0.031}),
        (OPENRLHF, 12, None, {"policy_loss": -0.01, "ppo_kl": 3e-05, "timing/step_total": 61.2}),
        (FROZEN, 2, None, {"critic_loss": 0.4, "rollout/reward_mean": 0.37}),
        (BAR, 9, 200, {}),
        (f"{BAR}{QUOTED}", 9, 200, {}),
        (SFT, 3, None, {"loss_mean": 2.1, "lr": 5e-06}),
        ("step 3/40 mean reward 0.61 nodes 3", 3, 40, {"reward": 0.61}),
        ("step 9/200 mean reward 0.5 tokens 9 kl=0.1 loss=-1e-3", 9, 200, {"loss": -0.001}),
        ("step:10 - train/loss:0.5 - train/lr:1e-05", 10, None, {"train/loss": 0.5}),
        (SLIME, 12, None, {"train/loss": 0.1, "train/grad_norm": 0.5}),
        # Any other program.
        ("step 12: {'loss': 0.1, 'acc': 0.5}", 12, None, {"loss": 0.1, "acc": 0.5}),
        ("step 3/40 loss=0.5, lr=1e-5", 3, 40, {"loss": 0.5, "lr": 1e-05}),
        ("[rank0]: 2026-11-26 10:11:12 INFO Step: 3 / 40 | loss: 0.5", 3, 40, {"loss": 0.5}),
        (
            " iteration       10/  100000 | consumed samples: 80 | lm loss: 1.1E+01 |",
            10,
            100000,
            {},
        ),
        ("global_step=7 loss=0.25", 7, None, {"loss": 0.25}),
        ('{"step": 3, "loss": 0.5, "note": "x"}', 3, None, {"loss": 0.5}),
        ("{'loss': 0.5, 'step': 3}", 3, None, {"loss": 0.5}),
        ("Epoch 2:  12%|█▏  | 12/100 [00:01<00:10, 8.5it/s, v_num=0]", 212, None, {"v_num": 0}),
    ],
)
def test_a_line_of_each_program(line: str, step: int, of: int | None, some: object) -> None:
    """Step, number of steps, and metrics by their own names."""
    seen = read(line)[0]
    assert isinstance(seen, StepSeen)
    assert (seen.step, seen.of) == (step, of)
    assert some == {name: seen.metrics[name] for name in seen.metrics if name in dict(some)}  # type: ignore[call-overload]
    assert len(steps(line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "",
        "one more step 3/40 of the way",
        "we are at step 3 of the proof",
        "Step 1: Let x=5, so y=6",
        "Loading checkpoint shards: 100%|██████████| 4/4 [00:05<00:00,  1.3s/it]",
        "Processed prompts:  50%|█████     | 12/512 [00:05<00:05,  1.3it/s]",
        "Generate samples:  50%|█████     | 12/512 [00:05<00:05,  1.3it/s]",
        "Train epoch [1/1]:  50%|█████     | 12/24 [00:05<00:05,  1.3it/s, loss=1]",
        "  0%|          | 0/200 [00:00<?, ?it/s]",
        " 25%|██▌       | 50/200 [00:00<?, ?it/s]",
        f"step {'7' * 4301}/40 mean reward 0.5",
        f"step 3/{'7' * 4301} mean reward 0.5",
        f"step:{'7' * 4301} - critic/rewards/mean:0.5",
        f"Global step {'7' * 4301}: {{'reward': 0.5}}",
        f"step:{'7' * 12} - critic/rewards/mean:0.5",
        "step 41/40 mean reward 0.5",
        "{'train_runtime': 12.1, 'train_loss': 0.5}",
    ],
)
def test_a_line_without_a_step(line: str) -> None:
    """Text, other bars, bars that only begin, and numbers without end."""
    assert steps(line) == []


@pytest.mark.parametrize("text", ["1e999", "nan", "inf", "-inf", "-1e999"])
def test_what_is_no_finite_number_has_no_value(text: str) -> None:
    """Its name is known: somebody may want a warning."""
    (seen,) = read(f"step:7 - critic/rewards/mean:{text} - actor/lr:0.5 - x:{'9' * 400}")
    assert isinstance(seen, StepSeen)
    assert seen.metrics == {"actor/lr": 0.5}
    assert seen.not_finite == ("critic/rewards/mean",)
    json.dumps(dict(seen.metrics), allow_nan=False)
    known = Progress(1, 0.0).with_step(seen)
    assert known.not_finite == ("critic/rewards/mean",)
    later = known.with_step(StepSeen(8, None, {"critic/rewards/mean": 1.0}, 1.0))
    assert later.not_finite == ()


EVALUATION, CHECKPOINT = PauseSeen("evaluation", 0.0), PauseSeen("checkpoint", 0.0)
SLIMES = "[2026-11-26 10:11:12] rollout_metrics.py:247 - "
PRIME_RLS = "\x1b[2m10:11:12\x1b[0m\x1b[32m\x1b[1m SUCCESS\x1b[0m \x1b[32m\x1b[1m\x1b[22m"


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("(TaskRunner pid=1) test_gen_batch meta info: {}", (EVALUATION,)),
        ("(TaskRunner pid=1) validation generation end", (EVALUATION,)),
        ("(TaskRunner pid=1) local_global_step_folder: /ckpt/global_step_20", (CHECKPOINT,)),
        ("INFO ⏰ Evaluation start time: 2026-01-01 10:11:12", (EVALUATION,)),
        ("[Torch] Checkpoint global_step20 is about to be saved!", (CHECKPOINT,)),
        ("Eval stage of steps 20:  12%|█▏ | 3/25 [00:10<01:12,  3.3s/it]", (EVALUATION,)),
        ("***** Running Evaluation *****", (EVALUATION,)),
        # verl's before the first step
        (
            "(TaskRunner pid=1) step:0 - val-core/openai/gsm8k/acc/mean@1:0.508",
            (EVALUATION, ValuesSeen(0, {"val-core/openai/gsm8k/acc/mean@1": 0.508}, 0.0)),
        ),
        # slime counts rollouts, which are no steps
        (
            f"{SLIMES}rollout 3: {{'rollout/raw_reward': 0.5, 'rollout/truncated': 0.1}}",
            (ValuesSeen(None, {"rollout/raw_reward": 0.5, "rollout/truncated": 0.1}, 0.0),),
        ),
        (
            f"{SLIMES}eval 3: {{'eval/aime': 0.25}}",
            (EVALUATION, ValuesSeen(None, {"eval/aime": 0.25}, 0.0)),
        ),
        # prime-rl's orchestrator has sent a batch, which the trainer's step may follow
        (
            f"{PRIME_RLS}Step 8 |   1m 12s | Reward 0.4100 | Trainable 60/64 (93.8%) | Turns 1.0",
            (ValuesSeen(None, {"reward": 0.41}, 0.0),),
        ),
    ],
)
def test_pauses_and_values_are_no_steps(line: str, seen: tuple[Reading, ...]) -> None:
    """An evaluation or a checkpoint that takes long is no hang; metrics are kept by their step."""
    assert read(line) == seen


def test_an_evaluation_of_openrlhf_has_its_step() -> None:
    """It says how good the model was after it."""
    line = "✨ Evaluation completed in 0:01:02, global_step 20, eval_metrics: {'eval_a_pass1': 0.5}"
    values = ValuesSeen(20, {"eval_a_pass1": 0.5}, 60.0)
    _, *readings = read("✨ Global step 20: {'reward': 0.5}", line)
    assert readings == [PauseSeen("evaluation", 60.0), values]


def test_lines_of_our_own_trainer_for_trl() -> None:
    """All metrics of a step in one line; those of an evaluation are no step."""
    step, *rest = read(
        "step 9/200 mean reward 0.969 tokens 5 loss=0.0187 reward=0.9688 completions/mean_length=5",
        "eval_step 9/200 mean reward 0.5 tokens 9 eval_reward=0.5 eval_loss=nan",
    )
    assert isinstance(step, StepSeen)
    assert step.metrics == {"reward": 0.9688, "loss": 0.0187, "completions/mean_length": 5.0}
    values = ValuesSeen(9, {"eval_reward": 0.5}, 60.0, ("eval_loss",))
    assert rest == [PauseSeen("evaluation", 60.0), values]


VERLS_BAR = "(TaskRunner pid=9) Training Progress:   {}%|▏ | {}/140 [00:49<1:53:43, 49.09s/it]"
VERLS_BARS = (VERLS_BAR.format(8, 12), VERLS_BAR.format(9, 13))
EPOCHS = "Train epoch:   0%|          | 0/2 [00:00<?, ?it/s]"
SECOND_EPOCH = SFT.replace("epoch 0", "epoch 1").replace("3/25", "1/25")
BARS = [BAR.replace("9/200", f"{n}/200") for n in range(9, 13)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("Total training steps: 140", VERL, *VERLS_BARS), [(12, 140)]),
        (VERLS_BARS, [(12, 140), (13, 140)]),
        ([text for bar in BARS for text in (bar, TRL)], [(n, 200) for n in range(9, 13)]),
        ((EPOCHS, SFT, SECOND_EPOCH), [(3, 50), (26, 50)]),
        (("step 1/3 of it", VERL, "step 2/3 of it", "step 13/14"), [(1, 3), (12, None)]),
        (("step:5 - a:1", "step:70000 - a:1", "step:6 - a:1"), [(5, None), (6, None)]),
    ],
    ids=[
        "verl's total stands in another line",
        "its bar counts where there are no such lines",
        "metrics make a bar the job's",
        "steps of epochs add up",
        "a model's text in a job of a known framework",
        "a step that does not follow the last one",
    ],
)
def test_which_lines_count(lines: list[str], expected: list[tuple[int, int | None]]) -> None:
    """Of all lines of a job, those of its own loop."""
    assert [(one.step, one.of) for one in read(*lines) if isinstance(one, StepSeen)] == expected


def test_metrics_beside_a_bar_are_those_of_its_step() -> None:
    """TRL's and transformers' lines have no step; a bar with another total is an evaluation's."""
    reader = ProgressReader()
    known = Progress(1, 0.0)
    for line in (BAR, TRL, " 20%|▍ | 3/15 [00:03<00:17, 1.20s/it]", "{'eval_loss': 0.5}"):
        for seen in reader.read(line, 60.0):
            known = known.with_reading(seen)
    assert (known.last, known.of) == (9, 200)
    assert known.metrics == {
        "loss": 0.0187,
        "grad_norm": 0.03,
        "reward": 0.454,
        "kl": 1.87,
        "epoch": 0.6,
        "eval_loss": 0.5,
    }
    assert known.pause_at == 60.0
    (seen,) = read(f"{BAR}{QUOTED}")
    assert isinstance(seen, StepSeen)
    assert seen.metrics == {
        "loss": -0.007415,
        "reward": 0.9688,
        "step_time": 17.3,
        "epoch": 0.07143,
    }


def test_values_of_another_step_are_those_of_the_last_one() -> None:
    """A model's text can name any step; only the job's own lines say which one it is at."""
    line = "eval_step {}/40 reward=0.5"
    readings = read("step 7/40 mean reward 0.5", line.format(7), line.format(0), line.format(39))
    assert [seen.step for seen in readings if isinstance(seen, ValuesSeen)] == [7, None, None]


def test_a_models_text_is_no_step() -> None:
    """Steps that do not follow the last ones do not count, unless a program began anew."""
    line = "step {}/{} mean reward 0.5"
    real = [line.format(n, 900) for n in range(10, 16)]
    assert steps(*real) == [10, 11, 12, 13, 14, 15]
    forged = [line.format(3, 900), line.format(4, 5), line.format(899, 900), line.format(2, 7)]
    mixed = [text for pair in zip(real, [*forged, *forged], strict=False) for text in pair]
    assert steps(*mixed)[:3] == [10, 11, 12]

    # At once, however many follow each other, none counts; as slowly as steps they do.
    reader = ProgressReader()
    for n, text in enumerate(real):
        reader.read(text, 60.0 * n)
    assert not any(reader.read(line.format(n, 900), 301.0) for n in range(1, 8))
    counted = [bool(reader.read(line.format(n, 900), 400.0 + 60 * n)) for n in range(1, 6)]
    assert counted == [False, False, True, True, True]


def test_the_file_counts_most() -> None:
    """What a job writes to AGENT_PROGRESS_FILE is meant for us."""
    reader = ProgressReader()
    line = json.dumps({"step": 3, "of": 100, "reward": 0.5, "loss": math.nan, "text": "x"})
    (seen,) = reader.read_file(line.encode(), 7.0)
    assert seen == StepSeen(3, 100, {"reward": 0.5}, 7.0, ("loss",))
    assert reader.read(VERL, 8.0) == ()


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "[]", "3", '{"step": "3"}', '{"step": true}', '{"step": 1.5}', '{"step": -1}'),
        *('{"of": 3}', '{"step": ' + "7" * 5000 + "}", '{"a":' * 5000, '{"step": 1e999}'),
    ],
)
def test_other_lines_of_the_file(line: str) -> None:
    """They are skipped."""
    assert ProgressReader().read_file(line.encode(), 0.0) == ()


def test_large_numbers_of_the_file() -> None:
    """JSON has integers of any size."""
    (seen,) = ProgressReader().read_file(b'{"step": 1, "a": ' + b"9" * 400 + b', "b": 2}', 0.0)
    assert isinstance(seen, StepSeen)
    assert (seen.metrics, seen.not_finite) == ({"b": 2.0}, ("a",))


# --- the progress of an attempt -------------------------------------------------------------------


def progress_of(*lines: str, known: Progress | None = None) -> Progress:
    """Return the progress of an attempt after lines that come once a minute."""
    progress = Progress(1, 0.0) if known is None else known
    for seen in read(*lines):
        progress = progress.with_reading(seen)
    return progress


@pytest.mark.parametrize(
    ("lines", "only_bar"),
    [
        ((), False),
        ((BAR,), True),
        ((BAR, BAR.replace("9/200", "10/200")), True),
        ((BAR, TRL), False),
        ((BAR, TRL, BAR), False),
        ((BAR, "step 3/20 loss=0.5"), False),
        (("step 3/20 loss=0.5", BAR), False),
        ((SFT,), False),
        ((VERL, BAR), False),
    ],
)
def test_steps_of_a_bar_alone_are_marked(lines: tuple[str, ...], *, only_bar: bool) -> None:
    """The bar may be that of a download or of tokenizing, which are no steps of the job."""
    known = progress_of(*lines)
    assert known.only_bar is only_bar
    assert known.next_attempt(2, 900.0).only_bar is only_bar


def test_a_better_line_ends_the_mark_for_the_run() -> None:
    """A bar in a later attempt does not bring it back; AGENT_PROGRESS_FILE ends it, too."""
    known = progress_of("step 3/20 loss=0.5").next_attempt(2, 900.0)
    assert not progress_of(BAR, known=known).only_bar
    reader = ProgressReader()
    known = progress_of(BAR)
    for seen in (*reader.read(BAR, 60.0), *reader.read_file(b'{"step": 9}', 70.0)):
        known = known.with_reading(seen)
    assert not known.only_bar


def test_progress_of_an_attempt() -> None:
    """Durations between steps, without the time before the first one."""
    known = Progress(1, 100.0)
    for n, at in enumerate([160.0, 170.0, 180.0, 240.0], 5):
        known = known.with_step(StepSeen(n, 20, {"reward": n / 10}, at))
    assert (known.first, known.last, known.of, known.highest) == (5, 8, 20, 8)
    assert known.durations == (10.0, 10.0, 60.0)
    assert (known.usual, known.longest, known.last_at) == (10.0, 60.0, 240.0)
    assert known.ends_at == pytest.approx(240.0 + 12 * 80 / 3)
    assert known.value("reward") == 0.8
    paused = known.with_reading(PauseSeen("checkpoint", 250.0))
    assert paused.pause_at == 250.0
    assert paused.with_step(StepSeen(9, 20, {}, 260.0)).pause_at is None


def test_lines_for_several_steps() -> None:
    """Where every tenth step is logged, a step takes a tenth of the time between two lines."""
    known = Progress(1, 0.0)
    for n in range(1, 6):
        known = known.with_step(StepSeen(10 * n, 100, {}, 60.0 * n))
    assert known.usual == 60.0
    assert known.seconds_per_step == 6.0
    assert known.ends_at == 300.0 + 50 * 6.0


def test_lines_that_are_read_at_once() -> None:
    """An agent that was killed reads many together: they have one time, not none."""
    known = Progress(1, 0.0)
    for step, at in [(1, 10.0), (2, 20.0), *((step, 100.0) for step in range(3, 11)), (11, 110.0)]:
        known = known.with_step(StepSeen(step, 100, {}, at))
    assert known.durations == (10.0, 80.0, 10.0)
    assert known.strides == (1, 8, 1)
    assert known.seconds_per_step == 10.0
    first = Progress(1, 0.0)
    for step in (1, 2, 3):
        first = first.with_step(StepSeen(step, 100, {}, 10.0))
    assert (first.durations, first.seconds_per_step) == ((), None)


def test_the_next_attempt() -> None:
    """It resumes from a checkpoint; what is known of the run stays."""
    known = Progress(1, 0.0)
    for n in range(1, 40):
        known = known.with_step(StepSeen(n, 100, {"reward": 0.1}, 10.0 * n))
    later = known.next_attempt(2, 500.0)
    assert (later.first, later.last, later.last_at) == (None, None, None)
    assert (later.highest, later.longest, later.of) == (39, 10.0, 100)
    assert len(later.durations) == RECENT
    assert later.metrics == {}
    again = later.with_step(StepSeen(31, 100, {}, 900.0))
    assert (again.first, again.last, again.highest) == (31, 31, 39)
    assert again.durations == later.durations


def test_meanings_of_all_frameworks() -> None:
    """Rewards, lengths and so on are found whatever a framework calls them."""
    assert meant("reward", {"critic/rewards/mean": 0.5}) == 0.5
    assert meant("clipped", {"completions/clipped_ratio": 0.2}) == 0.2
    assert meant("kl", {}) is None
    assert place_of("critic/rewards/mean") < place_of("val-core/gsm8k/acc/mean@1") < place_of("x")


# --- hostile output -------------------------------------------------------------------------------

_PARTS = (
    *("step:", "step ", "1/2", "9" * 50, " - ", "a/b:", "0.5", "nan", "1e999", "%|", "| ", "["),
    *("{'loss': ", "'reward': ", "}", "Global step ", ": {", " mean reward ", "(x pid=1) "),
    *("\x1b[31m", "\r", "\0", "=", "np.float64(", "Train step of epoch ", "12%|█| 3/25 [0<1, 2"),
    *('{"step": ', ", ", "loss", "é", "\ud800", "Epoch 1: ", "iteration ", "/", "'" * 40, " " * 60),
)
_LINES = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(_PARTS)).map("".join))


@given(st.lists(_LINES, max_size=12))
def test_any_output_is_read(lines: list[str]) -> None:
    """Nothing raises, numbers are finite, steps rise or are the same again."""
    known = Progress(1, 0.0)
    reader = ProgressReader()
    for n, line in enumerate(lines):
        for seen in (*reader.read(line, n), *reader.read_file(line.encode(errors="replace"), n)):
            known = known.with_reading(seen)
            json.dumps(dict(known.metrics), allow_nan=False)
    assert known.last is None or 0 <= known.last <= LARGEST_STEP
    assert len(known.metrics) <= MOST_METRICS


_REPEATED = (
    *("step:1 - ", "Global step 1: {", "step 1/2 ", "a=1 ", "'a':1,", "{'loss': ", "%|", "1%|"),
    *(" ", "(", "[", "\x1b]", "\x1b[", "'", "a", "9", "-", "step", "step:1 - a:1 - ", "é"),
    *("Training Progress: ", "Train step of epoch 1", "{'step': 'loss", "12%|█| 3/25 [0<1, 2, a="),
    *("2026-11-26 10:11:12 ", "INFO ", "x.py:1] ", "loss ", "loss=", "a" * 99 + "=", "np.float64("),
)
_STARTS = ("", "step 1/2 ", "step:1 - ", "Global step 1: {", "{'loss': ", '{"step": 1, "loss')


@pytest.mark.parametrize("part", _REPEATED)
def test_a_line_of_a_megabyte(part: str) -> None:
    """The time for a line is bounded: no expression takes the square of its length."""
    for start in _STARTS:
        line = start + part * (LARGEST_STEP // 1000 // len(part))
        began = time.process_time()
        ProgressReader().read(line, 0.0)
        ProgressReader().read_file(line.encode(), 0.0)
        assert time.process_time() - began < 0.1


def test_many_hostile_lines() -> None:
    """20,000 lines that look like steps cost well under a second."""
    chance = random.Random(7)  # noqa: S311 - the same lines each time
    parts = (
        *("step:", "step ", "1/2", "9" * 20, " - ", "a/b:0.5", "nan", "%|", "{'loss': 1"),
        *("\x1b[31m", "Global step ", "=", "(x pid=1) ", "Epoch 1: ", " mean reward ", "["),
        *("loss", "'step': 3}"),
    )
    lines = ["".join(chance.choices(parts, k=8)) for _ in range(10_000)]
    lines += [f"step:{n} - " + " - ".join(f"a{k}:{n}.5" for k in range(8)) for n in range(10_000)]
    reader = ProgressReader()
    began = time.process_time()
    for line in lines:
        reader.read(line, 0.0)
    assert time.process_time() - began < 0.9
