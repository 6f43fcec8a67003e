"""The bundled GPU-free GRPO job: proves that every node, the network and the rewards work.

A small policy learns additions by GRPO. An actor on each node samples it and asks the reward URL
from there; the mean reward rises from chance to the target, or the job says which node is why.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from agent.bundled import curve, grpo, rollout
from agent.bundled.rehearsal_nodes import (
    SETTINGS_WRONG,
    Actors,
    Node,
    RehearsalError,
    connect,
    named,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PROBLEMS = 24
_LAST_STEPS = 3


class History(NamedTuple):
    """What the rehearsal has to show, step by step."""

    rewards: list[float]
    divergences: list[float]
    samples: list[int]

    def last(self) -> float:
        """Mean reward of the last steps, which is what must reach the target."""
        recent = self.rewards[-_LAST_STEPS:]
        return sum(recent) / len(recent) if recent else 0.0


def learn(options: argparse.Namespace, nodes: Sequence[Node], history: History) -> None:
    """Run the steps: sample on every node, score from there, update here."""
    actors = Actors(nodes, options.reward_url)
    problems = grpo.problems(_PROBLEMS, options.seed)
    reference = [[0.0] * grpo.ANSWERS for _ in problems]
    policy = [list(row) for row in reference]
    learning = grpo.Learning(rate=options.learning_rate, kl=options.kl)
    for step in range(1, options.steps + 1):
        dealt = shares(options, step, problems, policy, len(nodes))
        replies = actors.step(step, [[share for _, share in own] for own in dealt])
        answers: list[list[int]] = [[] for _ in problems]
        rewards: list[list[float]] = [[] for _ in problems]
        for rank, (own, reply) in enumerate(zip(dealt, replies, strict=True)):
            for (problem, _), (drawn, worth) in zip(own, reply, strict=True):
                answers[problem] += drawn
                rewards[problem] += worth
                history.samples[rank] += len(drawn)
        for problem, worth in enumerate(rewards):
            group = grpo.Group(answers[problem], grpo.advantages(worth))
            policy[problem] = grpo.updated(policy[problem], reference[problem], group, learning)
        history.rewards.append(sum(map(sum, rewards)) / sum(map(len, rewards)))
        history.divergences.append(grpo.divergence(policy, reference))
        note = f"kl {history.divergences[-1]:.2f} nodes {len(nodes)}"
        print(
            f"step {step}/{options.steps} mean reward {history.rewards[-1]:.2f} {note}", flush=True
        )


def shares(
    options: argparse.Namespace,
    step: int,
    problems: Sequence[grpo.Problem],
    policy: Sequence[Sequence[float]],
    count: int,
) -> list[list[tuple[int, rollout.Share]]]:
    """Deal a step's samples evenly; seeded one by one, they are the same for any count of nodes."""
    total = len(problems) * options.group
    dealt = []
    for rank in range(count):
        mine: dict[int, list[str]] = {}
        for sample in range(rank * total // count, (rank + 1) * total // count):
            seed = f"{options.seed}:{step}:{sample}"
            mine.setdefault(sample // options.group, []).append(seed)
        dealt.append([(p, _share(problems[p], policy[p], seeds)) for p, seeds in mine.items()])
    return dealt


def _share(problem: grpo.Problem, row: Sequence[float], seeds: list[str]) -> rollout.Share:
    return rollout.Share(problem.prompt, problem.label, grpo.probabilities(row), seeds)


def rehearse(options: argparse.Namespace) -> str:
    """Connect, learn, write the curve; return the sentence of success."""
    begun = time.monotonic()
    with _writing():
        options.out.mkdir(parents=True, exist_ok=True)
    nodes = connect(options.nodes)
    if len(nodes) > _PROBLEMS * options.group:
        raise RehearsalError(
            f"{len(nodes)} nodes share {_PROBLEMS * options.group} samples a step, "
            "so some would have none: raise --group"
        )
    where = named([node.ip for node in nodes])
    print(f"rehearsing on {where}", file=sys.stderr, flush=True)
    history = History([], [], [0] * len(nodes))
    try:
        learn(options, nodes, history)
    finally:
        if history.rewards:
            write_curve(options, nodes, history)
    # Ray puts stderr and stdout of a job into one file: the word of the step lines stays theirs
    measured = f"{history.last():.3f} over the last {_LAST_STEPS} steps, target {options.target:g}"
    if history.last() < options.target:
        raise RehearsalError(f"the mean was {measured}: {_where_to_look(options, history)}")
    spent = f"{sum(history.samples)} samples on {where} in {time.monotonic() - begun:.1f} s"
    return f"the mean is {measured}; {spent}; see {options.out / 'curve.svg'}"


def _where_to_look(options: argparse.Namespace, history: History) -> str:
    if max(history.rewards) == min(history.rewards):
        return (
            f"it never moved; does {options.reward_url} tell `The answer is \\boxed{{7}}` for "
            "`What is 3+4?` with label 7 from a wrong answer?"
        )
    return f"see {options.out / 'curve.svg'}; raise --steps or --group, or lower --kl"


def write_curve(options: argparse.Namespace, nodes: Sequence[Node], history: History) -> None:
    """Write curve.json and curve.svg, each whole or not at all."""
    done = len(history.rewards)
    record = {
        "steps": list(range(1, done + 1)),
        "mean_reward": history.rewards,
        "kl": history.divergences,
        "nodes": [
            {"ip": node.ip, "samples": samples}
            for node, samples in zip(nodes, history.samples, strict=True)
        ],
        "target": options.target,
        "passed": done == options.steps and history.last() >= options.target,
    }
    title = f"GRPO rehearsal: {done} steps on {len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    picture = curve.svg(history.rewards, target=options.target, chance=grpo.CHANCE, title=title)
    for name, text in (("curve.json", json.dumps(record, indent=1) + "\n"), ("curve.svg", picture)):
        draft = options.out / f".{name}.{os.getpid()}"
        with _writing():
            draft.write_text(text, encoding="utf-8")
            draft.replace(options.out / name)


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise RehearsalError(f"cannot write to --out: {problem}", SETTINGS_WRONG) from None


def _end_on_signals() -> None:
    """End at once on SIGTERM and SIGINT: 143 and 130.

    A thread waits for them, because ray.init replaces handlers (Ray 2.40 to 2.60 exit with 15), and
    because a handler would not run while the main thread is inside Ray.
    """
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)

    def wait() -> None:
        number = signal.sigwait(ends)
        print(f"rehearsal: stopped by {signal.Signals(number).name}", file=sys.stderr, flush=True)
        os._exit(128 + number)

    threading.Thread(target=wait, daemon=True, name="signals").start()


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pod-agent rehearsal", description="Learn additions by GRPO on every node, GPU-free."
    )
    add = parser.add_argument
    add("--reward-url", required=True, help="where each node asks for its rewards")
    add("--nodes", type=_at_least(1), default=1, help="how many must take part (%(default)s)")
    add("--steps", type=_at_least(1), default=40, help="(%(default)s)")
    add("--group", type=_at_least(2), default=16, help="samples per prompt (%(default)s)")
    add("--seed", type=int, default=0, help="(%(default)s)")
    add("--out", type=Path, default=Path("rehearsal-out"), help="for curve.* (./%(default)s)")
    add("--target", type=float, default=0.9, help="mean reward of the last 3 steps (%(default)s)")
    learning = grpo.Learning()
    add("--learning-rate", type=float, default=learning.rate, help="(%(default)s)")
    add("--kl", type=float, default=learning.kl, help="weight of the KL penalty (%(default)s)")
    options = parser.parse_args(argv)
    if urlsplit(options.reward_url).scheme not in ("http", "https"):
        parser.error(f"--reward-url: expected http://… or https://…, got {options.reward_url!r}")
    for name in ("target", "learning_rate", "kl"):
        if not math.isfinite(getattr(options, name)):
            parser.error(f"--{name.replace('_', '-')}: expected a finite number")
    return options


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} on")
        return int(text)

    return number


def main(argv: list[str]) -> int:
    """Rehearse: 0 when the target is reached, 1 when not, 2 and 78 for what must be fixed first."""
    try:
        options = _arguments(argv)
    except SystemExit as end:
        return int(end.code or 0)
    _end_on_signals()
    try:
        sentence = rehearse(options)
    except RehearsalError as problem:
        print(f"rehearsal failed: {problem}", file=sys.stderr, flush=True)
        return problem.code
    print(f"rehearsal passed: {sentence}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
