"""The asynchronous rehearsal: GRPO on CPUs with engines outside the job.

1. It looks for the newest checkpoint, waits for its engines, and has them load the first weights.
2. Each step learns from the answers of the step before, while the engines generate the next ones;
   then it saves a checkpoint, and has all engines load the new weights (rehearsal_wires.py).
3. With environments, each question is asked from the next one before its answers are generated.
4. A weight sync that fails ends it, as it ends the frameworks. Requests for answers and questions
   are retried.

A sample is *stale* if its engine drew it with older weights than the newest that all engines had
confirmed when its request was sent, or with weights that this trainer has not written by the time
of its reply, such as those of a former attempt. What is not stale is learned from at most one
version later. Stale samples are counted and learned from: no framework looks.

It needs only the standard library and its siblings in this folder, and not the agent.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from agent.bundled.rehearsal import (
    ANSWERS,
    FAILED,
    PROBLEMS,
    SETTINGS_WRONG,
    RehearsalError,
    RewardClient,
    RewardError,
    exercises,
    response_of,
    updated,
)
from agent.bundled.rehearsal_weights import Policy, read_weights, write_weights
from agent.bundled.rehearsal_wires import (
    PAUSE,
    EngineReply,
    PrimeWires,
    SlimeWires,
    WireError,
    ask,
    in_thread,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

_REWARD_SECONDS = 1800.0
_TRIES = 60  # of a request for answers
_QUESTION_SECONDS = 10.0  # of an environment
_KEPT_CHECKPOINTS = 2
_PREFIX = "checkpoint-"
_LAST_FILE = "trainer_state.json"
"""What transformers writes last into a checkpoint, by which the agent finds a complete one."""


class VersionedSample(NamedTuple):
    """An answer of an engine, and which versions there were."""

    prompt: str
    reply: EngineReply
    synced: int  # the newest that all engines had confirmed when the request was sent
    written: int  # the newest on the disk when the reply came

    @property
    def is_stale(self) -> bool:
        """Return whether the engine had other weights than it should have had."""
        return not self.synced <= self.reply.version <= self.written


class Checkpoints:
    """The folder of checkpoints: none without a path."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def newest(self) -> tuple[int, Policy | None]:
        """Return the last complete step with its policy; 0 and None without one."""
        steps = self._steps()
        if not steps or self._folder is None:
            return 0, None
        return steps[-1], read_weights(self._folder / f"{_PREFIX}{steps[-1]}")

    def save(self, step: int, policy: Policy) -> None:
        """Write a checkpoint; remove all but the last two."""
        if self._folder is None:
            return
        folder = self._folder / f"{_PREFIX}{step}"
        shutil.rmtree(folder, ignore_errors=True)
        write_weights(folder, policy)
        (folder / _LAST_FILE).write_text(json.dumps({"global_step": step}))
        for old in self._steps()[:-_KEPT_CHECKPOINTS]:
            shutil.rmtree(self._folder / f"{_PREFIX}{old}")

    def _steps(self) -> list[int]:
        complete = self._folder.glob(f"{_PREFIX}*/{_LAST_FILE}") if self._folder else ()
        return sorted(int(path.parent.name.removeprefix(_PREFIX)) for path in complete)


class Trainer:
    """The loop of learning, and the requests that run meanwhile."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._problems = exercises(PROBLEMS, options.seed)
        self._policy: Policy = {prompt: [0.0] * ANSWERS for prompt, _ in self._problems}
        self._checkpoints = Checkpoints(options.checkpoints)
        self._client = RewardClient(options.reward_url, _REWARD_SECONDS)
        self._wires: SlimeWires | PrimeWires
        if options.dialect == "sglang":
            self._wires = SlimeWires(options.engines, options.weights_dir, keeps=options.keep)
        else:
            self._wires = PrimeWires(options.engines, options.weights_dir)
        self._targets = itertools.cycle([options.router] if options.router else options.engines)
        self._environments = itertools.cycle(options.environments or [""])
        self._slots = threading.Semaphore(options.in_flight)
        self._synced = -1
        self._written = -1
        self.samples = 0
        self.stale = 0

    def train(self) -> str:
        """Run all steps; return the final sentence."""
        resumed, policy = self._checkpoints.newest()
        if policy is not None:
            self._policy = policy
            print(f"rehearsal-async: resumes after step {resumed}", file=sys.stderr, flush=True)
        steps = self._options.steps
        if resumed >= steps:
            return f"all {steps} steps were made before"
        self._wires.wait_for_engines()
        self._sync(self._wires.first_version(resumed))
        pending = self._request_all()
        for step in range(resumed + 1, steps + 1):
            samples = [sample for future in pending for sample in future.result()]
            pending = self._request_all() if step < steps else []
            self._learn(step, samples)
            self._checkpoints.save(step, self._policy)
            if self._wires.waits_for_samples:
                for future in pending:
                    future.result()
            self._sync(self._written + 1)
        return f"{steps - resumed} steps, {self.samples} samples, stale samples {self.stale}"

    # --- requests ---------------------------------------------------------------------------------

    def _request_all(self) -> list[Future[list[VersionedSample]]]:
        """Send a request for a group of answers to each problem, some of them at a time."""
        return [in_thread(partial(self._request, prompt)) for prompt, _ in self._problems]

    def _request(self, prompt: str) -> list[VersionedSample]:
        """Return a group of answers; each try is sent to the next engine, as a router does."""
        tries = 0
        while True:
            tries += 1
            try:
                return self._request_once(prompt)
            except WireError:
                if tries == _TRIES:
                    raise
            time.sleep(PAUSE)

    def _request_once(self, prompt: str) -> list[VersionedSample]:
        target = next(self._targets)
        with self._slots:
            self._ask_environment(prompt)
            synced = self._synced
            try:
                replies = self._wires.generate(target, prompt, self._options.group)
            except (LookupError, TypeError) as problem:
                raise WireError(target, f"not a reply of an engine: {problem!r}") from None
            written = self._written
        return [VersionedSample(prompt, reply, synced, written) for reply in replies]

    def _ask_environment(self, prompt: str) -> None:
        """Begin an episode in the next environment, which returns its question."""
        environment = next(self._environments)
        if environment:
            asked = ask(environment, "/reset", {"prompt": prompt}, _QUESTION_SECONDS)
            if not isinstance(asked, dict) or asked.get("prompt") != prompt:
                raise WireError(environment, f"not the question of an episode: {asked!r}")

    # --- learning ---------------------------------------------------------------------------------

    def _learn(self, step: int, samples: Sequence[VersionedSample]) -> None:
        """Score the samples, take a step along their gradient, and print its line."""
        rewards = self._rewards(step, samples)
        time.sleep(self._options.seconds_per_step)
        by_prompt: dict[str, tuple[list[int], list[float]]] = {}
        for sample, reward in zip(samples, rewards, strict=True):
            answers, earned = by_prompt.setdefault(sample.prompt, ([], []))
            answers.append(sample.reply.answer)
            earned.append(reward)
        for prompt, (answers, earned) in by_prompt.items():
            self._policy[prompt] = updated(self._policy[prompt], answers, earned)

        self.samples += len(samples)
        self.stale += sum(sample.is_stale for sample in samples)
        self._write_samples(step, samples, rewards)
        mean = sum(rewards) / len(rewards)
        at = f"step {step}/{self._options.steps} mean reward {mean:.2f}"
        print(f"{at} version {self._synced} stale samples {self.stale}", flush=True)

    def _rewards(self, step: int, samples: Sequence[VersionedSample]) -> list[float]:
        """Return the reward of each sample; no two texts are the same, as those of a model."""
        labels = dict(self._problems)
        texts = (f"{one.prompt} {response_of(one.reply.answer)}" for one in samples)
        request: dict[str, list[str]] = {
            "query": [f"{text} ({step}.{number})" for number, text in enumerate(texts)],
            "prompts": [one.prompt for one in samples],
            "labels": [labels[one.prompt] for one in samples],
        }
        return self._client.rewards(request)

    def _sync(self, version: int) -> None:
        """Have all engines load the policy as a version, whose number may be another in the end."""
        self._written = version
        self._synced = self._wires.sync(self._policy, version)

    def _write_samples(
        self, step: int, samples: Sequence[VersionedSample], rewards: Sequence[float]
    ) -> None:
        if self._options.samples is None:
            return
        with self._options.samples.open("a", encoding="utf-8") as out:
            for sample, reward in zip(samples, rewards, strict=True):
                line = {
                    "at": time.time(),
                    "step": step,
                    "version": sample.reply.version,
                    "synced": sample.synced,
                    "written": sample.written,
                    "stale": sample.is_stale,
                    "engine": sample.reply.engine,
                    "start": sample.reply.start,
                    "reward": reward,
                }
                out.write(json.dumps(line) + "\n")


def _addresses(words: Sequence[str]) -> Iterator[str]:
    """Yield the addresses of words that may hold several, with commas between them."""
    for word in words:
        yield from filter(None, word.split(","))


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pod-agent rehearsal-async",
        description="Learn additions by asynchronous GRPO with engines outside, GPU-free.",
        usage=argparse.SUPPRESS,  # an error begins with what is wrong
    )
    add = parser.add_argument
    engines = "HOST:PORT of each, as words or with commas"
    add("--engines", nargs="+", required=True, metavar="ENGINE", help=engines)
    add("--router", default="", metavar="URL", help="where answers are requested (the engines)")
    environments = "HOST:PORT of each, asked for a question by POST /reset (none)"
    add("--environments", nargs="*", default=[], metavar="ENVIRONMENT", help=environments)
    dialect = "whose requests, folders and order of a weight sync (%(default)s: slime's)"
    add("--dialect", choices=("sglang", "prime-rl"), default="sglang", help=dialect)
    weights = "folder that all engines share"
    add("--weights-dir", type=Path, required=True, metavar="DIR", help=weights)
    add("--keep", action="store_true", help="sglang: keep the weights that all have loaded")
    add("--reward-url", required=True, help="the reward server")
    add("--steps", type=int, default=40, help="(%(default)s)")
    add("--group", type=int, default=16, help="samples per prompt (%(default)s)")
    add("--seed", type=int, default=0, help="(%(default)s)")
    in_flight = "requests to engines at a time (%(default)s)"
    add("--in-flight", type=int, default=8, metavar="N", help=in_flight)
    add("--seconds-per-step", type=float, default=0.0, metavar="S", help="(%(default)g)")
    saved = "folder to save to after each step, and to resume from"
    add("--checkpoints", type=Path, metavar="DIR", help=saved)
    samples = "JSON lines with each sample's version and engine"
    add("--samples", type=Path, metavar="FILE", help=samples)
    options = parser.parse_args(argv)
    options.engines = [*_addresses(options.engines)]
    options.environments = [*_addresses(options.environments)]
    if not options.engines:
        parser.error("--engines: expected at least one HOST:PORT")
    if urlsplit(options.reward_url).scheme not in ("http", "https"):
        parser.error(f"--reward-url: expected http://… or https://…, got {options.reward_url!r}")
    for name, least in (("steps", 1), ("group", 2), ("in_flight", 1)):
        if getattr(options, name) < least:
            flag = name.replace("_", "-")
            parser.error(f"--{flag}: expected a whole number from {least} on")
    return options


def rehearse(options: argparse.Namespace) -> str:
    """Make the folders and train; return the final sentence."""
    try:
        options.weights_dir.mkdir(parents=True, exist_ok=True)
        if options.samples is not None:
            options.samples.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise RehearsalError(f"cannot write: {problem}", SETTINGS_WRONG) from None
    return Trainer(options).train()


def main(argv: list[str]) -> int:
    """Run: 0 after all steps, 1 if one failed, 2 and 78 for errors to fix first."""
    options = _arguments(argv)
    try:
        sentence = rehearse(options)
    except (RehearsalError, RewardError, WireError, OSError, ValueError) as problem:
        # Ray merges stderr and stdout of a job into one file: this must not look like a step line
        print(f"rehearsal-async failed: {problem}", file=sys.stderr, flush=True)
        return problem.code if isinstance(problem, RehearsalError) else FAILED
    print(f"rehearsal-async passed: {sentence}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
