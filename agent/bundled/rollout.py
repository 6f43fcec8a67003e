"""The rehearsal's actor, one per node: draws answers and has them scored over HTTP.

It is sent to its node by value and uses only the standard library and requests, which Ray needs
too: the node may not have this package, or the user's directory may have one of the same name.
"""

from __future__ import annotations

import math
import random
import ssl
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import requests

TRIES = 3
TRY_SECONDS = 15.0
LONGEST_PAUSE = 5.0
"""Upper limit of a server's Retry-After in seconds; a step has its own deadline."""


class RolloutShare(NamedTuple):
    """The answers that one node draws for one prompt, each from its own seed."""

    prompt: str
    label: str
    probabilities: list[float]
    seeds: list[str]


class Rollout:
    """Samples the policy on its node and requests the rewards from there."""

    def __init__(self, reward_url: str) -> None:
        import requests  # noqa: PLC0415 # where it runs: --help needs no library at all

        self._url = reward_url
        self._http = requests.Session()
        # The reward server is within the cluster: an environment's proxy is not meant for it, and
        # a netrc entry would add a login. The machine's certificates count, as without requests.
        self._http.trust_env = False
        self._http.verify = ssl.get_default_verify_paths().cafile or True

    def ready(self) -> bool:
        """Confirm that the actor runs."""
        return True

    def step(self, shares: list[tuple[str, str, list[float], list[str]]]) -> object:
        """Draw and score one step's shares; return a sentence on failure."""
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
        """Request a batch's rewards, with retries for temporary errors."""
        problem = ""
        for attempt in range(1, TRIES + 1):
            pause = 0.3 * attempt
            try:
                reply = self._http.post(
                    self._url, json=batch, timeout=TRY_SECONDS, allow_redirects=False
                )
                if reply.status_code == 200:
                    return _rewards(reply, len(batch["query"]))
                text = reply.content[:200].decode(errors="replace").strip()
                problem = f"{self._url} replied {reply.status_code} {text}"
                if reply.status_code < 500:
                    return problem
                pause = _asked_pause(reply, pause)
            except (OSError, ValueError, OverflowError) as error:  # an OSError: requests' own
                problem = f"{self._url} returned no rewards to this node: {_reason(error)}"
            if attempt < TRIES:
                time.sleep(pause)
        return f"{problem}, {TRIES} times; is it up, at an address that this node can reach?"


def _rewards(reply: requests.Response, count: int) -> list[float]:
    """Parse the rewards in a reply; raise ValueError with the reason."""
    fields = reply.json()
    rewards = fields.get("rewards") if isinstance(fields, dict) else None
    if not isinstance(rewards, list) or len(rewards) != count:
        raise ValueError(f"expected `rewards`, a list of {count} numbers")
    if not all(isinstance(r, (int, float)) and math.isfinite(r) for r in rewards):
        raise ValueError("expected finite numbers as `rewards`")
    return [float(reward) for reward in rewards]


def _asked_pause(reply: requests.Response, otherwise: float) -> float:
    """Return the seconds in a Retry-After header, limited."""
    asked = reply.headers.get("Retry-After", "").strip()
    return min(float(asked), LONGEST_PAUSE) if asked.isdecimal() else otherwise


def _reason(error: BaseException) -> str:
    """Return the system's error text, which requests wraps in its own errors."""
    import requests  # noqa: PLC0415 # as above

    if isinstance(error, requests.Timeout):
        return f"no answer within {TRY_SECONDS:g} s"
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return str(error) or type(error).__name__
