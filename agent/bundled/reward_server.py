"""The bundled reward server: scores answers to mathematical questions over HTTP.

Requests and replies:

- `{"query": […], "prompts": […], "labels": […]}` gets `rewards`, `scores` and `extra_logs`, as
  OpenRLHF reads them; with `--dialect openrlhf-m` `rewards`, `format_rewards` and `acc_rewards`
- `{"prompt": …, "response": …, "label": …}`, as slime and miles send it, gets the bare number

OpenRLHF-M turns every key of a reply into a tensor: each is a list of numbers there.

If math-verify is installed, it checks answers that our own comparison finds unequal. A pair that
needs more than its CPU time gets 0 and is marked in `undecided` (of
`extra_logs`, or beside the rewards for OpenRLHF-M): a list as long as the rewards, 1.0 for such an
item. A batch that cannot be scored within --limit, or whose scorers crash repeatedly, gets a 503
with Retry-After, never rewards that depend on the load; verdicts so far are cached for the retry.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web

from agent.bundled import maths
from agent.bundled.second_opinion import NoVerdictError, Opinion, SecondOpinion
from agent.bundled.web_program import (
    BadRequestError,
    add_place,
    app_of,
    check_place,
    error,
    kind_of,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# Small enough that requests take turns, and that a stop need not wait for a huge batch.
_CHUNK = 256
# Clients wait for 180 s (OpenRLHF 0.5 to 0.9, five times): they need a 503 before that to retry.
_REQUEST_SECONDS = 120.0
_RETRY_AFTER = 2
_LABEL = (str, int, float, type(None))
_LABEL_IN_WORDS = "a string, a finite number or null"
OPENRLHF, OPENRLHF_M = "openrlhf", "openrlhf-m"


class ScoredItem(NamedTuple):
    """One text to score, with its prompt and label if the request has them."""

    query: str
    prompt: str | None
    label: str | float | None


class ScoreRequest(NamedTuple):
    """A parsed request; `single` if the reply is one bare number."""

    items: list[ScoredItem]
    single: bool = False


def read_request(body: bytes) -> ScoreRequest:
    """Parse a request's body, or raise an error that names the field."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise BadRequestError(f"body: not JSON ({problem})") from None
    if not isinstance(fields, dict):
        raise BadRequestError(f"body: expected an object with `query`, got {_kind(fields)}")
    if fields.get("query") is None and fields.get("response") is not None:
        return ScoreRequest([_one_item(fields)], single=True)
    return ScoreRequest(_batch(fields))


def _one_item(fields: dict[str, Any]) -> ScoredItem:
    """Parse one sample in the format of slime and miles; its prompt may be a list of messages."""
    prompt = fields.get("prompt")
    lists = {
        "response": [fields["response"]],
        "prompt": [prompt if isinstance(prompt, str) else None],
        "label": [fields.get("label")],
    }
    try:
        (response,) = _items(lists, "response", (str,), "a string")
        (label,) = _items(lists, "label", _LABEL, _LABEL_IN_WORDS)
    except BadRequestError as problem:
        raise BadRequestError(str(problem).replace("[0]", "", 1)) from None
    return ScoredItem(response, lists["prompt"][0], label)


def _batch(fields: dict[str, Any]) -> list[ScoredItem]:
    if fields.get("query") is None:
        raise BadRequestError("query: missing; expected a list of strings")
    query = _items(fields, "query", (str,), "a string")
    prompts = _items(fields, "prompts", (str,), "a string", len(query))
    labels = _items(fields, "labels", _LABEL, _LABEL_IN_WORDS, len(query))
    return [ScoredItem(*item) for item in zip(query, prompts, labels, strict=True)]


def _items(
    fields: dict[str, Any],
    name: str,
    kinds: tuple[type, ...],
    expected: str,
    size: int | None = None,
) -> list[Any]:
    items = fields.get(name)
    if items is None:
        return [None] * (size or 0)
    if not isinstance(items, list):
        raise BadRequestError(f"{name}: expected a list, got {_kind(items)}")
    if size is not None and len(items) != size:
        raise BadRequestError(f"{name}: has {len(items)} items where query has {size}")
    for index, item in enumerate(items):
        if isinstance(item, bool) or not isinstance(item, kinds) or _is_endless(item):
            raise BadRequestError(f"{name}[{index}]: expected {expected}, got {_kind(item)}")
    return items


def _is_endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _kind(value: object) -> str:
    if _is_endless(value):
        return "NaN or Infinity"
    return kind_of(value)


class Scored(NamedTuple):
    """The score of one item, and whether it lacks a verdict of math-verify."""

    grade: maths.Grade
    undecided: bool = False


class Scorer:
    """Scores batches off the event loop, chunk by chunk."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="score")
        self._opinion = SecondOpinion()

    @property
    def has_second_opinion(self) -> bool:
        """Return whether math-verify is installed, so that items may be undecided."""
        return self._opinion.installed

    async def read(self, body: bytes) -> ScoreRequest:
        """Parse a body."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, read_request, body)

    async def score(self, batch: list[ScoredItem]) -> list[Scored]:
        """Score every item of a batch in order; raise NoVerdictError if time runs out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        scored: list[Scored] = []
        doubts: dict[int, tuple[str, str]] = {}
        for start in range(0, len(batch), _CHUNK):
            if loop.time() > deadline:
                raise NoVerdictError(f"{start} of {len(batch)} done within {self._seconds:.0f} s")
            chunk = batch[start : start + _CHUNK]
            grades, open_ones = await loop.run_in_executor(self._threads, _grades, chunk)
            scored += map(Scored, grades)
            doubts |= {start + index: pair for index, pair in open_ones.items()}
        if doubts and self._opinion.installed:
            verdicts = await self._opinion.decide(doubts.values(), deadline - loop.time())
            for index, pair in doubts.items():
                grade, verdict = scored[index].grade, verdicts[pair]
                if verdict is Opinion.EQUAL:
                    grade = grade._replace(reward=1.0)
                scored[index] = Scored(grade, verdict is Opinion.UNDECIDED)
        return scored

    async def give_up(self, _app: web.Application) -> None:
        """End math-verify's processes; pending requests get a 503."""
        await self._opinion.close()

    async def close(self, _app: web.Application) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _grades(batch: list[ScoredItem]) -> tuple[list[maths.Grade], dict[int, tuple[str, str]]]:
    """Score a chunk; return the pairs that math-verify should compare."""
    grades = [maths.grade(*item) for item in batch]
    doubts = {
        index: (answer or "", gold or "")
        for index, (reward, answer, gold) in enumerate(grades)
        if not reward and maths.worth_a_second_look(answer, gold)
    }
    return grades, doubts


def reply_to(scored: Sequence[Scored], dialect: str, *, undecided: bool) -> dict[str, Any]:
    """Build the reply to a batch."""
    rewards = [item.grade.reward for item in scored]
    answered = [float(item.grade.answer is not None) for item in scored]
    doubts = {"undecided": [float(item.undecided) for item in scored]} if undecided else {}
    if dialect == OPENRLHF_M:
        return {"rewards": rewards, "format_rewards": answered, "acc_rewards": rewards, **doubts}
    unlabelled = [float(item.grade.gold is None) for item in scored]
    logs = {"correct": rewards, "answered": answered, "unlabelled": unlabelled, **doubts}
    return {"rewards": rewards, "scores": rewards, "extra_logs": logs}


def make_app(path: str, max_body: int, limit: float, dialect: str = OPENRLHF) -> web.Application:
    """Build the application: a path for scoring and one for health."""
    scorer = Scorer(limit)

    async def score(request: web.Request) -> web.Response:
        try:
            asked = await scorer.read(await request.read())
        except BadRequestError as problem:
            return error(400, str(problem))
        try:
            scored = await scorer.score(asked.items)
        except NoVerdictError as problem:
            message = f"no rewards yet, ask again: {problem}"
            return error(503, message, {"Retry-After": str(_RETRY_AFTER)})
        if asked.single:
            return web.json_response(scored[0].grade.reward)
        undecided = scorer.has_second_opinion
        return web.json_response(reply_to(scored, dialect, undecided=undecided))

    app = app_of(path, max_body, score)
    app.on_shutdown.append(scorer.give_up)
    app.on_cleanup.append(scorer.close)
    return app


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pod-agent reward-server",
        description="Score mathematical answers over HTTP.",
        epilog="Where math-verify is installed, `undecided` of the reply's extra_logs is 1 for an "
        "answer on which it spent too much CPU time; that one earns 0.",
    )
    add_place(parser, 5000, "/get_reward", 64)
    add = parser.add_argument
    limited = "seconds for a batch, then 503 with Retry-After (%(default)g)"
    add("--limit", type=float, default=_REQUEST_SECONDS, help=limited)
    spoken = "the keys of a reply to a batch (%(default)s)"
    add("--dialect", choices=(OPENRLHF, OPENRLHF_M), default=OPENRLHF, help=spoken)
    options = parser.parse_args(argv)
    check_place(parser, options)
    if not 0 < options.limit < math.inf:
        parser.error("--limit: expected seconds, more than 0")
    return options


def main(argv: list[str]) -> int:
    """Serve until SIGTERM: 0 then, 2 for a wrong flag, 78 if it cannot listen."""
    try:
        options = _arguments(argv)
    except SystemExit as end:
        return int(end.code or 0)
    app = make_app(options.path, options.max_body, options.limit, options.dialect)
    return run("reward server", app, options.hosts, options.port, options.path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
