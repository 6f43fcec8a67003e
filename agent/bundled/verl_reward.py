"""verl's custom reward function that queries a reward server, by the client of rehearsal.py.

verl loads this file by its path on every node where it scores, and awaits `compute_score` for each
answer. Requests are retried for `within` seconds; then the error ends the job. A missing server
never causes a reward of 0.

Its keywords are `reward_kwargs` of verl's configuration: `url`, and optionally `within` (seconds)
and `parallel` (concurrent requests of each process).
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.bundled import rehearsal
else:  # by its path, since the agent's package may be missing in this Python
    _FILE = Path(__file__).with_name("rehearsal.py")
    _SPEC = importlib.util.spec_from_file_location("pod_agent_rehearsal", _FILE)
    rehearsal = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(rehearsal)


async def compute_score(  # noqa: PLR0913 - verl's names
    data_source: str,  # noqa: ARG001 - the server decides by prompt and label
    solution_str: str,
    ground_truth: object,
    extra_info: dict[str, Any] | None = None,
    *,
    url: str,
    within: float = 1800.0,
    parallel: int = 64,
    **_others: object,
) -> float:
    """Return the server's reward for one answer; raise RuntimeError on failure."""
    # Some data sets have the question beside the answer.
    request: dict[str, Any] = {"query": [solution_str], "labels": [_label(ground_truth)]}
    questions = ((extra_info or {}).get(name) for name in ("question", "prompt"))
    texts = [text for text in questions if isinstance(text, str)]
    if texts:
        request["prompts"] = texts[:1]

    client, threads = _server(url, float(within), int(parallel))
    loop = asyncio.get_running_loop()
    try:
        (reward,) = await loop.run_in_executor(threads, client.rewards, request)
    except rehearsal.RewardError as error:  # Ray's driver cannot load that class
        look = "Its log has the reason (see `pod-agent status`); AGENT_REWARD chooses the server"
        raise RuntimeError(f"reward server {error}. {look}") from None
    return reward


@cache
def _server(
    url: str, within: float, parallel: int
) -> tuple[rehearsal.RewardClient, ThreadPoolExecutor]:
    """Return this process's client of a server, and the threads that wait for its replies."""
    return rehearsal.RewardClient(url, within), ThreadPoolExecutor(parallel)


def _label(truth: object) -> str | float | None:
    """Return a ground truth for the request: text, a number or null."""
    if hasattr(truth, "tolist"):  # numpy's scalars and arrays
        truth = truth.tolist()
    if truth is None or isinstance(truth, str):
        return truth
    if isinstance(truth, (int, float)) and not isinstance(truth, bool):
        if abs(truth) <= sys.float_info.max:  # isfinite raises for a huge integer
            return truth
        return json.dumps(truth)
    return json.dumps(truth, default=str, ensure_ascii=False)
