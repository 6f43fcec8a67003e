"""The bundled GRPO job without GPUs: tests every node, the network and the rewards.

A small policy, a table of logits over ten answers to each prompt, learns additions by GRPO without
clipping or a reference. An actor on each node draws answers and requests their rewards; the mean
reward rises from chance to the target, or the job names the node that failed.

trl_grpo.py and verl_reward.py load this file by its path for `RewardClient`: without Ray it needs
only the standard library, and not the agent.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import faulthandler
import http.client
import json
import math
import os
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence


FAILED = 1
SETTINGS_WRONG = 78
_CONNECT_SECONDS = 60
_ACTOR_SECONDS = 60.0  # for its start, and for each step
_SCORE_SECONDS = 45.0  # a restart of the reward server fits, and the actor can still report why
_START_ONE = "start it with `ray start --head`, or let `pod-agent` boot it and submit this"


# --- rewards --------------------------------------------------------------------------------------

# Longer than the 120 s after which the bundled server replies 503, and short enough to notice a
# server that is gone with its node while it holds the request.
_REQUEST_SECONDS = 180.0
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 10.0
_LONGEST_REPLY = 64 << 20  # bytes; more cannot be the numbers of a batch
_LATER = {408, 425, 429}  # statuses to retry after; any other 4xx means that the request is wrong


class RewardError(RuntimeError):
    """Why there are no rewards: no server, a refusal, or an invalid reply."""


class _BusyError(Exception):
    """A temporary failure of the server, and the seconds that it asks to wait."""

    def __init__(self, why: str, pause: float) -> None:
        super().__init__(why)
        self.pause = pause


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET."""

    def redirect_request(self, *_about: object) -> None:
        """Refuse to follow."""


class RewardClient:
    """Requests rewards from one server, which may be down for some seconds."""

    def __init__(self, url: str, seconds: float) -> None:
        self._seconds = seconds
        parts = urlsplit(url)
        login, _, host = parts.netloc.rpartition("@")
        self._url = parts._replace(netloc=host).geturl()
        self._name = f"{parts.scheme}://{host}{parts.path}"  # without secrets, for messages
        self._headers = {"Content-Type": "application/json"}
        token = os.environ.get("AGENT_REWARD_TOKEN", "").strip()
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        elif login:
            encoded = base64.b64encode(unquote(login).encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        # The server is within the cluster: an environment's proxy is not meant for it.
        proxies = urllib.request.ProxyHandler({})
        self._opener = urllib.request.build_opener(proxies, _NoRedirects)

    def rewards(self, request: dict[str, Any]) -> list[float]:
        """Return a reward for each text of `query`; raise RewardError on failure."""
        until = time.monotonic() + self._seconds
        pause = _FIRST_PAUSE
        while True:
            remaining = until - time.monotonic()
            try:
                body = self._exchange(request, min(_REQUEST_SECONDS, max(remaining, 1.0)))
                return self._rewards_in(body, len(request["query"]))
            except (OSError, http.client.HTTPException) as error:
                why = getattr(error, "reason", None) or error
                least = 0.0
            except _BusyError as busy:
                why = busy
                least = busy.pause
            if time.monotonic() + least + pause >= until:
                sentence = f"{self._name} returned no rewards for {self._seconds:g} s: {why}"
                raise RewardError(f"{sentence}; is it up, at an address that this node can reach?")
            # Jittered, so that the retries of all processes do not arrive at the same time.
            time.sleep(least + random.uniform(pause / 2, pause))  # noqa: S311 - no secret
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _exchange(self, request: dict[str, Any], seconds: float) -> bytes:
        """Send a request; return the reply, or raise _BusyError if another try may succeed."""
        data = json.dumps(request, default=str).encode()
        posted = urllib.request.Request(self._url, data, self._headers)  # noqa: S310 - as set
        try:
            with self._opener.open(posted, timeout=seconds) as reply:
                body: bytes = reply.read(_LONGEST_REPLY)
                missing = reply.length or 0
        except urllib.error.HTTPError as error:
            text = f"{error.code} {error.read(200).decode(errors='replace').strip()}"
            if error.code < 500 and error.code not in _LATER:
                raise RewardError(f"{self._name} refuses to score: {text}") from error
            wish = error.headers.get("Retry-After", "")
            pause = min(float(wish), _LONGEST_PAUSE) if wish.isdecimal() else 0.0
            raise _BusyError(text, pause) from error

        # A bounded read does not raise for a reply that is cut short.
        if missing and len(body) < _LONGEST_REPLY:
            raise http.client.IncompleteRead(body, missing)
        return body

    def _rewards_in(self, body: bytes, count: int) -> list[float]:
        """Return the rewards that a reply has, a finite number for each text."""
        rewards: Any = None
        with contextlib.suppress(ValueError, TypeError, LookupError):
            rewards = json.loads(body)["rewards"]
        are_numbers = isinstance(rewards, list) and all(  # isfinite raises for a huge integer
            isinstance(reward, (int, float)) and abs(reward) <= sys.float_info.max
            for reward in rewards
        )
        if are_numbers and len(rewards) == count:
            return [float(reward) for reward in rewards]
        text = body[:200].decode(errors="replace")
        expected = f"`rewards` with {count} finite numbers"
        raise RewardError(f"{self._name} replied {text!r}, and not {expected}")


# --- nodes ----------------------------------------------------------------------------------------


class RehearsalError(Exception):
    """Why the rehearsal cannot continue, with the remedy and the exit code."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.code = code


class Node(NamedTuple):
    """A node of the rehearsal."""

    ip: str
    id: str


def connect(least: int) -> list[Node]:
    """Connect to the cluster as a driver; return its alive nodes in a fixed order."""
    import ray  # noqa: PLC0415 # a third of a second that --help need not pay

    signal.alarm(_CONNECT_SECONDS)  # Ray tries for minutes
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        alive = [node for node in ray.nodes() if node["Alive"]]
    except Exception as problem:  # noqa: BLE001 # Ray raises its own and builtin ones here
        why = f"no Ray cluster to join ({' '.join(str(problem).split())[:300]}): {_START_ONE}"
        raise RehearsalError(why, SETTINGS_WRONG) from None
    signal.alarm(0)
    nodes = sorted(Node(node["NodeManagerAddress"], node["NodeID"]) for node in alive)
    if len(nodes) < least:
        there = ", ".join(node.ip for node in nodes)
        raise RehearsalError(f"{len(nodes)} of {least} nodes are alive ({there}): see `ray status`")
    return nodes


def response_of(answer: int) -> str:
    """Return the text that the policy generates for an answer, as a reward server reads it."""
    return f"Counting up, the answer is \\boxed{{{answer}}}."


Sample = tuple[str, str, str, list[float]]
"""The seed of an answer, its prompt and label, and the probabilities of the answers."""


class Rollout:
    """The actor on each node: draws answers and requests their rewards from there."""

    def __init__(self, reward_url: str, seconds: float = _SCORE_SECONDS) -> None:
        self._client = RewardClient(reward_url, seconds)

    def step(self, samples: Sequence[Sample]) -> list[tuple[int, float]] | str:
        """Draw and score answers; return each with its reward, or a sentence on failure."""
        drawn = []
        request: dict[str, list[str]] = {"query": [], "prompts": [], "labels": []}
        for seed, prompt, label, weights in samples:
            drawn += random.Random(seed).choices(range(len(weights)), weights)  # noqa: S311 # no secret
            request["query"].append(f"{prompt} {response_of(drawn[-1])}")
            request["prompts"].append(prompt)
            request["labels"].append(label)
        try:
            return list(zip(drawn, self._client.rewards(request), strict=True))
        except RewardError as error:
            return str(error)


class Actors:
    """One actor on each node; all run the same step."""

    def __init__(self, nodes: Sequence[Node], reward_url: str) -> None:
        import ray  # noqa: PLC0415 # a third of a second that --help need not pay
        from ray import cloudpickle  # noqa: PLC0415
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        # A node may lack this package, or the user's directory may have one of the same name.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        actor_class = ray.remote(Rollout)
        self._ray: Any = ray
        self._nodes = nodes
        self._actors = []
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node.id, soft=False)
            made = actor_class.options(num_cpus=0, scheduling_strategy=there).remote(reward_url)
            self._actors.append(made)
        calls = [actor.__ray_ready__.remote() for actor in self._actors]
        self._gather(calls, "the rehearsal: its actor did not start")

    def step(self, number: int, samples: Sequence[Sample]) -> list[tuple[int, float]]:
        """Draw and score an equal part of the samples on each node; return all in order."""
        count = len(self._actors)
        calls = [actor.step.remote(samples[i::count]) for i, actor in enumerate(self._actors)]
        scored = [(0, 0.0)] * len(samples)
        for i, reply in enumerate(self._gather(calls, f"step {number}")):
            scored[i::count] = reply
        return scored

    def _gather(self, calls: list[Any], part: str) -> list[Any]:
        """Wait for the replies of all nodes; raise RehearsalError with the nodes that failed."""
        done, _ = self._ray.wait(calls, num_returns=len(calls), timeout=_ACTOR_SECONDS)
        replies = [self._reply(call) if call in done else None for call in calls]
        reasons: dict[str, list[str]] = {}
        for node, reply in zip(self._nodes, replies, strict=True):
            if reply is None or isinstance(reply, str):
                reason = reply or f"no answer within {_ACTOR_SECONDS:g} s"
                reasons.setdefault(reason, []).append(node.ip)
        failures = [
            f"nodes {', '.join(ips)} took no part in {part}: {why}" for why, ips in reasons.items()
        ]
        if failures:
            raise RehearsalError("; ".join(failures))
        return replies

    def _reply(self, call: object) -> object:
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayError as problem:
            return f"{type(problem).__name__}: {' '.join(str(problem).split())[:500]}"


# --- learning -------------------------------------------------------------------------------------

ANSWERS = 10  # every sum is one digit, so one guess in ten is right
PROBLEMS = 24
_LAST_STEPS = 3
_LEARNING_RATE = 1.0
_SMALLEST_DEVIATION = 1e-6


def exercises(count: int, seed: int) -> list[tuple[str, str]]:
    """Draw different additions with sums of one digit, with the right answers; there are 55."""
    pairs = [(left, right) for left in range(ANSWERS) for right in range(ANSWERS - left)]
    every = [(f"What is {left}+{right}?", str(left + right)) for left, right in pairs]
    return random.Random(seed).sample(every, min(count, len(every)))  # noqa: S311 # no secret


def probabilities(logits: Sequence[float]) -> list[float]:
    """Return the softmax of a prompt's logits."""
    most = max(logits)
    weights = [math.exp(logit - most) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return each reward's distance from the group's mean, in deviations; equal ones give zeros."""
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [(reward - mean) / (deviation + _SMALLEST_DEVIATION) for reward in rewards]


def updated(
    logits: Sequence[float], answers: Sequence[int], rewards: Sequence[float]
) -> list[float]:
    """Return a prompt's logits after one step along the gradient of a group of answers.

    The gradient of log p(answer) is 1 - p on its own logit and -p on the others. The advantages of
    a group sum to 0, so that the terms with p cancel.
    """
    row = list(logits)
    for answer, advantage in zip(answers, advantages(rewards), strict=True):
        row[answer] += _LEARNING_RATE * advantage / len(answers)
    return row


def learn(options: argparse.Namespace, nodes: Sequence[Node]) -> list[float]:
    """Run the steps: sample and score on every node, update here; return the mean rewards."""
    means: list[float] = []
    actors = Actors(nodes, options.reward_url)
    problems = exercises(PROBLEMS, options.seed)
    policy = [[0.0] * ANSWERS for _ in problems]
    for step in range(1, options.steps + 1):
        # A group of answers to each problem, drawn and scored on the nodes.
        samples: list[Sample] = []
        for (prompt, label), logits in zip(problems, policy, strict=True):
            weights = probabilities(logits)
            for _ in range(options.group):
                seed = f"{options.seed}:{step}:{len(samples)}"
                samples.append((seed, prompt, label, weights))
        scored = actors.step(step, samples)

        # The policy learns from each group.
        starts = range(0, len(scored), options.group)
        groups = [zip(*scored[start : start + options.group], strict=True) for start in starts]
        policy = [updated(row, *group) for row, group in zip(policy, groups, strict=True)]
        means.append(sum(reward for _, reward in scored) / len(scored))
        at = f"step {step}/{options.steps}"
        print(f"{at} mean reward {means[-1]:.2f} nodes {len(nodes)}", flush=True)
    return means


# --- the run --------------------------------------------------------------------------------------


def rehearse(options: argparse.Namespace) -> str:
    """Connect, train and write the curve; return the final sentence."""
    begun = time.monotonic()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise RehearsalError(f"cannot write to --out: {problem}", SETTINGS_WRONG) from None

    nodes = connect(options.nodes)
    samples = PROBLEMS * options.group
    if len(nodes) > samples:
        raise RehearsalError(f"{len(nodes)} nodes share {samples} samples: raise --group")
    where = f"nodes {', '.join(node.ip for node in nodes)}"
    print(f"rehearsing on {where}", file=sys.stderr, flush=True)
    means = learn(options, nodes)
    recent = means[-_LAST_STEPS:]
    mean = sum(recent) / len(recent)

    curve = {
        "steps": list(range(1, options.steps + 1)),
        "mean_reward": means,
        "nodes": [
            {"ip": node.ip, "samples": options.steps * len(range(i, samples, len(nodes)))}
            for i, node in enumerate(nodes)
        ],
        "target": options.target,
        "passed": mean >= options.target,
    }
    file = write_private(options.out / "curve.json", json.dumps(curve, indent=1) + "\n")

    # Ray merges stderr and stdout of a job into one file: this must not look like a step line
    measured = f"{mean:.3f} over the last {_LAST_STEPS} steps, target {options.target:g}"
    if mean >= options.target:
        spent = f"{samples * options.steps} samples on {where} in {time.monotonic() - begun:.1f} s"
        return f"the mean is {measured}; {spent}; see {file}"
    raise RehearsalError(
        f"the mean was {measured}: see {file}; raise --steps or --group, if {options.reward_url} "
        "scores `\\boxed{7}` for `What is 3+4?` with label 7 higher than a wrong answer"
    )


def write_private(file: Path, text: str) -> Path:
    """Write a file that nobody may read who may not read its folder."""
    mode = file.parent.stat().st_mode & 0o666
    with contextlib.suppress(FileNotFoundError):
        file.unlink()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "w", encoding="utf-8") as out:  # noqa: PTH123 - a descriptor has no path
        out.write(text)
    return file


def register_stacks() -> None:
    """Write this process's stacks to a file on a signal, if the agent has named a folder for it.

    The agent sends the signal only to a process whose file names it (processes/job_stacks.py).
    """
    folder = os.environ.get("POD_AGENT_STACKS")
    if not folder:
        return
    signum = signal.SIGRTMIN + 5  # real-time signals are of no use to Python, Ray, torch and CUDA
    with contextlib.suppress(OSError):
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder, f"{os.getpid()}.stacks")
        file = path.open("w", encoding="utf-8")  # open until the process ends
        file.write(json.dumps({"pid": os.getpid(), "signal": signum}) + "\n")
        file.flush()
        faulthandler.register(signum, file=file, all_threads=True)


def _end_on_signals() -> None:
    """Exit at once on SIGTERM and SIGINT: 143 and 130.

    A thread waits for them, because ray.init replaces handlers (Ray 2.40 to 2.60 exit with 15), and
    because a handler would not run while the main thread is inside Ray.
    """
    ends = {signal.SIGTERM, signal.SIGINT, signal.SIGALRM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)

    def wait() -> None:
        number = signal.sigwait(ends)
        is_late = number == signal.SIGALRM
        why = f"no Ray: {_START_ONE}" if is_late else f"stopped by {signal.Signals(number).name}"
        print(f"rehearsal: {why}", file=sys.stderr, flush=True)
        os._exit(SETTINGS_WRONG if is_late else 128 + number)

    threading.Thread(target=wait, daemon=True, name="signals").start()


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pod-agent rehearsal",
        description="Learn additions by GRPO on every node, GPU-free.",
        usage=argparse.SUPPRESS,  # an error begins with what is wrong
    )
    add = parser.add_argument
    add("--reward-url", required=True, help="the reward server, as each node reaches it")
    add("--nodes", type=int, default=1, help="nodes that must take part (%(default)s)")
    add("--steps", type=int, default=40, help="(%(default)s)")
    add("--group", type=int, default=16, help="samples per prompt (%(default)s)")
    add("--seed", type=int, default=0, help="(%(default)s)")
    out = Path("rehearsal-out")
    add("--out", type=Path, default=out, help="folder of curve.json (./%(default)s)")
    add("--target", type=float, default=0.9, help="mean reward of the last 3 steps (%(default)s)")
    options = parser.parse_args(argv)
    if urlsplit(options.reward_url).scheme not in ("http", "https"):
        parser.error(f"--reward-url: expected http://… or https://…, got {options.reward_url!r}")
    for name, least in (("nodes", 1), ("steps", 1), ("group", 2)):
        if getattr(options, name) < least:
            parser.error(f"--{name}: expected a whole number from {least} on")
    return options


def main(argv: list[str]) -> int:
    """Run: 0 when the target is reached, 1 when not, 2 and 78 for errors to fix first."""
    options = _arguments(argv)
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
