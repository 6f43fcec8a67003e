"""The rehearsal's actor, one on each node: draws answers and has them scored over HTTP.

It travels to its node by value, so it stands on the standard library alone: that node may not have
this package at all, or the user's directory another one of the same name.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import time
import urllib.error
import urllib.request
from typing import NamedTuple

TRIES = 3
TRY_SECONDS = 15.0


class Share(NamedTuple):
    """What one node draws for one prompt: a number of answers, each from its own seed."""

    prompt: str
    label: str
    probabilities: list[float]
    seeds: list[str]


class Rollout:
    """Samples the policy where it runs, and asks for the rewards from there."""

    def __init__(self, reward_url: str) -> None:
        self._url = reward_url
        # The reward server is within the cluster: an environment's http_proxy is not meant for it.
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ready(self) -> bool:
        """Tell that the actor runs."""
        return True

    def step(self, shares: list[tuple[str, str, list[float], list[str]]]) -> object:
        """Draw and score one step's shares; a sentence instead says why that did not work."""
        drawn = [[self._draw(weights, seed) for seed in seeds] for _, _, weights, seeds in shares]
        items = [
            (prompt, label, f"{prompt} Counting up, the answer is \\boxed{{{answer}}}.")
            for (prompt, label, _, _), group in zip(shares, drawn, strict=True)
            for answer in group
        ]
        prompts, labels, texts = ([item[part] for item in items] for part in range(3))
        rewards = self._score({"query": texts, "prompts": prompts, "labels": labels})
        if isinstance(rewards, str):
            return rewards
        rest = iter(rewards)
        return [(group, [next(rest) for _ in group]) for group in drawn]

    @staticmethod
    def _draw(weights: list[float], seed: str) -> int:
        return random.Random(seed).choices(range(len(weights)), weights)[0]  # noqa: S311 # no secret

    def _score(self, batch: dict[str, list[str]]) -> list[float] | str:
        """Ask for a batch's rewards, again where that may help."""
        problem = ""
        for attempt in range(TRIES):
            time.sleep(0.3 * attempt)
            try:
                return self._ask(batch)
            except urllib.error.HTTPError as refusal:
                said = refusal.read(200).decode(errors="replace").strip()
                problem = f"{self._url} replied {refusal.code} {said}"
                if refusal.code < 500:
                    return problem
            except (OSError, ValueError, OverflowError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                problem = f"{self._url} gave no rewards from there: {reason}"
        return f"{problem}, {TRIES} times; is it up, on an address that this node reaches?"

    def _ask(self, batch: dict[str, list[str]]) -> list[float]:
        body = json.dumps(batch).encode()
        request = urllib.request.Request(  # noqa: S310 # http or https, checked with the flags
            self._url, body, {"Content-Type": "application/json"}
        )
        with self._http.open(request, timeout=TRY_SECONDS) as reply:
            fields = json.load(reply)
        rewards = fields.get("rewards") if isinstance(fields, dict) else None
        if not isinstance(rewards, list) or len(rewards) != len(batch["query"]):
            raise ValueError(f"expected `rewards`, a list of {len(batch['query'])} numbers")
        if not all(isinstance(r, (int, float)) and math.isfinite(r) for r in rewards):
            raise ValueError("expected finite numbers as `rewards`")
        return [float(reward) for reward in rewards]
