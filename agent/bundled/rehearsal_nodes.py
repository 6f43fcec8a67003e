"""The rehearsal's nodes: joins the cluster, puts an actor on each node, asks them in lockstep."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.bundled import rollout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FAILED, SETTINGS_WRONG = 1, 78
_CONNECT_SECONDS = 60.0
_ACTORS_SECONDS = 60.0
_STEP_SECONDS = 60.0
_NOISE = re.compile(r"(?m)^\s+(?:class_name|actor_id|pid|namespace|ip): .*$")
_START_ONE = (
    "start one with `ray start --head`, or let `pod-agent` boot the cluster and submit this"
)


class RehearsalError(Exception):
    """Why the rehearsal cannot go on, and what to do; with the exit code."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.code = code


class Node(NamedTuple):
    """A node that takes part."""

    ip: str
    id: str


def connect(least: int) -> list[Node]:
    """Join the cluster as a driver; return its living nodes, always in the same order."""
    address = os.environ.get("RAY_ADDRESS", "")
    _probe(address)
    import ray  # noqa: PLC0415 # a third of a second that --help need not pay

    with _deadline(_CONNECT_SECONDS, f"Ray at {address or 'auto'} did not answer", SETTINGS_WRONG):
        try:
            ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
            alive = [node for node in ray.nodes() if node["Alive"]]
        except Exception as problem:  # noqa: BLE001 # Ray raises its own and builtin ones here
            said = " ".join(str(problem).split())[:300]
            raise RehearsalError(
                f"no Ray cluster to join ({said}): {_START_ONE}", SETTINGS_WRONG
            ) from None
    nodes = sorted(Node(node["NodeManagerAddress"], node["NodeID"]) for node in alive)
    if len(nodes) < least:
        there = ", ".join(node.ip for node in nodes)
        raise RehearsalError(f"{len(nodes)} of {least} nodes are alive ({there}): see `ray status`")
    return nodes


def _probe(address: str) -> None:
    """Find out in seconds what Ray's own client would find out in a minute."""
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as problem:
        sentence = f"no Ray cluster answers at RAY_ADDRESS={address} ({problem}): {_START_ONE}"
        raise RehearsalError(sentence, SETTINGS_WRONG) from None


def named(ips: Sequence[str]) -> str:
    """Name nodes in a sentence."""
    return f"node{'s' if len(ips) > 1 else ''} {', '.join(ips)}"


class Actors:
    """One actor on each node, driven in lockstep."""

    def __init__(self, nodes: Sequence[Node], reward_url: str) -> None:
        import ray  # noqa: PLC0415 # a third of a second that --help need not pay
        from ray import cloudpickle  # noqa: PLC0415
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        cloudpickle.register_pickle_by_value(rollout)
        actor_class = ray.remote(rollout.Rollout)
        self._ray: Any = ray
        self._nodes = nodes
        self._actors = [
            actor_class.options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            ).remote(reward_url)
            for node in nodes
        ]
        calls = [actor.ready.remote() for actor in self._actors]
        self._gather(calls, _ACTORS_SECONDS, "the rehearsal: its actor did not start")

    def step(self, step: int, shares: Sequence[Sequence[rollout.Share]]) -> list[list[Any]]:
        """Have each node draw and score its shares; answers and rewards in the same order."""
        calls = [
            actor.step.remote([tuple(share) for share in own])
            for actor, own in zip(self._actors, shares, strict=True)
        ]
        return self._gather(calls, _STEP_SECONDS, f"step {step}")

    def _gather(self, calls: Sequence[Any], seconds: float, part: str) -> list[Any]:
        """Wait for every node's reply; name each node that owes one, and why."""
        with _deadline(seconds + 10, f"Ray did not answer in {part}"):
            done, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=seconds)
            replies = [self._reply(call) if call in done else None for call in calls]
        reasons: dict[str, list[str]] = {}
        for node, reply in zip(self._nodes, replies, strict=True):
            if reply is None or isinstance(reply, str):
                reason = reply or f"no answer within {seconds:g} s"
                reasons.setdefault(reason, []).append(node.ip)
        if reasons:
            told = [f"{named(ips)} took no part in {part}: {why}" for why, ips in reasons.items()]
            raise RehearsalError("; ".join(told))
        return replies

    def _reply(self, call: object) -> object:
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayError as problem:
            said = _NOISE.sub("", str(problem).partition("Some common causes")[0])
            return f"{type(problem).__name__}: {' '.join(said.split())[:300]}"


@contextlib.contextmanager
def _deadline(seconds: float, sentence: str, code: int = FAILED) -> Iterator[None]:
    """End the process where Ray blocks for ever: its calls cannot be interrupted from outside."""

    def end() -> None:
        print(f"rehearsal: {sentence} within {seconds:g} s", file=sys.stderr, flush=True)
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
