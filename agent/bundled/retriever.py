"""The bundled retriever: passages for search queries over HTTP, as in Search-R1.

A stand-in for rehearsals: it ranks by shared words (BM25) in a built-in corpus or in a file of
JSON lines, each with
`contents`: a title, a line break, a text.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web

from agent.bundled.web_program import (
    SETTINGS_WRONG,
    BadRequestError,
    add_place,
    app_of,
    check_place,
    error,
    kind_of,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_WORD = re.compile(r"\w+")
_MOST_QUERIES = 4096
_MOST_RESULTS = 1000
_DEFAULT_RESULTS = 3
_SATURATION, _LENGTH = 1.2, 0.75
"""BM25's k1 and b, at their usual values."""

_FACTS = (
    ("Hamlet", "Hamlet is a tragedy by William Shakespeare, set at the court of Denmark."),
    ("William Shakespeare", "William Shakespeare, born in Stratford-upon-Avon, wrote plays."),
    ("Mount Everest", "Mount Everest, in the Himalayas, is the highest mountain above sea level."),
    ("Paris", "Paris is the capital of France and lies on the river Seine."),
    ("Berlin", "Berlin is the capital of Germany and lies on the river Spree."),
    ("Photosynthesis", "By photosynthesis plants make sugar of light, water and carbon dioxide."),
    ("Marie Curie", "Marie Curie discovered polonium and radium and won two Nobel prizes."),
    ("Water", "Water boils at 100 degrees Celsius at sea level and freezes at 0 degrees."),
    ("The Moon", "The Moon goes around the Earth; Neil Armstrong was first to walk on it in 1969."),
    ("Python", "Python is a programming language that Guido van Rossum began in 1989."),
    ("The Nile", "The Nile flows north through Egypt into the Mediterranean Sea."),
    ("Penicillin", "Alexander Fleming found penicillin, an antibiotic, in 1928."),
)


class CorpusError(Exception):
    """Why a corpus cannot be used."""


class SearchRequest(NamedTuple):
    """A parsed request."""

    queries: list[str]
    topk: int
    return_scores: bool


def built_in() -> list[dict[str, str]]:
    """Return the built-in corpus."""
    return [
        {"id": str(number), "contents": f"{title}\n{text}"}
        for number, (title, text) in enumerate(_FACTS)
    ]


def read_corpus(path: str) -> list[dict[str, Any]]:
    """Read a corpus of JSON lines; raise CorpusError with the number of a bad line."""
    found: list[dict[str, Any]] = []
    try:
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    found.append(_passage(line, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as problem:
        why = getattr(problem, "strerror", None) or "not text"
        raise CorpusError(f"{path}: {why}") from None
    if not found:
        raise CorpusError(f"{path}: no passage in it")
    return found


def _passage(line: str, where: str) -> dict[str, Any]:
    try:
        passage = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise CorpusError(f"{where}: not JSON ({problem})") from None
    if not isinstance(passage, dict) or not isinstance(passage.get("contents"), str):
        raise CorpusError(f'{where}: expected an object with "contents", title and text')
    return passage


class Index:
    """Ranks passages by the words they share with a query (BM25)."""

    def __init__(self, passages: Iterable[dict[str, Any]]) -> None:
        self.passages = list(passages)
        counts = [Counter(_words(passage["contents"])) for passage in self.passages]
        self._lengths = [count.total() for count in counts]
        self._mean = max(1.0, sum(self._lengths) / max(1, len(counts)))
        self._places: dict[str, list[tuple[int, int]]] = {}
        for number, count in enumerate(counts):
            for word, times in count.items():
                self._places.setdefault(word, []).append((number, times))

    def find(self, query: str, most: int) -> list[tuple[dict[str, Any], float]]:
        """Return the best passages with their scores, always `topk` of them."""
        scores: dict[int, float] = {}
        for word in _words(query):
            places = self._places.get(word, [])
            rarity = math.log(1 + (len(self.passages) - len(places) + 0.5) / (len(places) + 0.5))
            for number, times in places:
                longer = 1 - _LENGTH + _LENGTH * self._lengths[number] / self._mean
                weight = times * (_SATURATION + 1) / (times + _SATURATION * longer)
                scores[number] = scores.get(number, 0.0) + rarity * weight
        best = heapq.nsmallest(most, scores, key=lambda number: (-scores[number], number))
        rest = (number for number in range(len(self.passages)) if number not in scores)
        while len(best) < most and (other := next(rest, None)) is not None:
            best.append(other)
        return [(self.passages[number], scores.get(number, 0.0)) for number in best]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def read_request(body: bytes, default: int) -> SearchRequest:
    """Parse a request's body, or raise an error that names the field."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise BadRequestError(f"body: not JSON ({problem})") from None
    if not isinstance(fields, dict):
        raise BadRequestError(f"body: expected an object with `queries`, got {kind_of(fields)}")
    queries = fields.get("queries")
    if not isinstance(queries, list):
        raise BadRequestError(f"queries: expected a list of strings, got {kind_of(queries)}")
    if len(queries) > _MOST_QUERIES:
        raise BadRequestError(f"queries: {len(queries)} of them, at most {_MOST_QUERIES}")
    for index, query in enumerate(queries):
        if not isinstance(query, str):
            raise BadRequestError(f"queries[{index}]: expected a string, got {kind_of(query)}")
    topk = fields.get("topk")
    topk = default if topk is None else topk
    if isinstance(topk, bool) or not isinstance(topk, int) or not 1 <= topk <= _MOST_RESULTS:
        raise BadRequestError(f"topk: expected a whole number from 1 to {_MOST_RESULTS}")
    scores = fields.get("return_scores", False)
    if not isinstance(scores, bool):
        raise BadRequestError(f"return_scores: expected true or false, got {kind_of(scores)}")
    return SearchRequest(queries, topk, scores)


def answer(index: Index, request: SearchRequest) -> dict[str, Any]:
    """Return the passages for each query, with scores if requested."""
    found = [index.find(query, request.topk) for query in request.queries]
    if request.return_scores:
        scored = [[{"document": p, "score": score} for p, score in one] for one in found]
        return {"result": scored}
    return {"result": [[passage for passage, _ in one] for one in found]}


def make_app(index: Index, path: str, max_body: int, default: int) -> web.Application:
    """Build the application: a path for queries and one for health."""

    def work(body: bytes) -> dict[str, Any]:
        return answer(index, read_request(body, default))

    async def retrieve(request: web.Request) -> web.Response:
        body = await request.read()
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, work, body)
        except BadRequestError as problem:
            return error(400, str(problem))
        return web.json_response(found)

    return app_of(path, max_body, retrieve)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pod-agent retriever",
        description="Find passages for search queries over HTTP, as a stand-in for Search-R1's "
        "retrieval server.",
    )
    add_place(parser, 8000, "/retrieve", 16)
    add = parser.add_argument
    add("--corpus", help='JSON lines with "contents" (a few facts of its own)')
    add("--topk", type=int, default=_DEFAULT_RESULTS, help="where a request has none (%(default)s)")
    options = parser.parse_args(argv)
    check_place(parser, options)
    if not 1 <= options.topk <= _MOST_RESULTS:
        parser.error(f"--topk: expected 1 to {_MOST_RESULTS}")
    return options


def main(argv: list[str]) -> int:
    """Serve until SIGTERM: 0 then, 2 for a wrong flag, 78 if it cannot listen."""
    try:
        options = _arguments(argv)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        passages = built_in() if options.corpus is None else read_corpus(options.corpus)
    except CorpusError as problem:
        print(f"retriever: {problem}", file=sys.stderr)
        return SETTINGS_WRONG
    app = make_app(Index(passages), options.path, options.max_body, options.topk)
    return run("retriever", app, options.hosts, options.port, options.path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
