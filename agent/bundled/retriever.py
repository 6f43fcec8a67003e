"""A stand-in for Search-R1's retrieval server, to try a cluster without its 60 GB index.

It accepts the same requests and sends the same replies. It ranks passages by the words they share
with the query (BM25): a few built-in facts, or a file of JSON lines, each with `contents` (a title,
a line break, a text).

    pod-agent retriever --host 127.0.0.1 --port 8000 [--corpus passages.jsonl]
"""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.base.arguments import VerbParser
from agent.serving.bodies import Bodies, has_more_values
from agent.serving.program import Program
from agent.serving.replies import error_reply, send

if TYPE_CHECKING:
    from aiohttp import web

PATH = "/retrieve"
MAX_BODY = 4 << 20
MAX_RESULTS = 1000
MAX_RESULTS_IN_ALL = 100_000  # Of all queries of one request
MAX_QUERIES = 10_000  # Of one request; search-r1-grpo sends 2,560, its prompts times its answers
MAX_VALUES = 4 * MAX_QUERIES  # Of a request's JSON
MOST_OF_REPLY = 64 << 20  # Counted of a reply while it is made; then what it takes
REQUEST_SECONDS = 300.0
MAX_WORDS = 1000  # Of a query; further ones are ignored
SATURATION = 1.2
LENGTH = 0.75
"""BM25's k1 and b, at their usual values."""

FACTS = (
    ("Hamlet", "Hamlet is a tragedy by William Shakespeare, set at the court of Denmark."),
    ("William Shakespeare", "William Shakespeare, born in Stratford-upon-Avon, wrote plays."),
    ("Mount Everest", "Mount Everest, in the Himalayas, is the highest mountain above sea level."),
    ("Paris", "Paris is the capital of France and lies on the river Seine."),
    ("Berlin", "Berlin is the capital of Germany and lies on the river Spree."),
    ("Photosynthesis", "By photosynthesis plants make sugar of light, water and carbon dioxide."),
    ("Marie Curie", "Marie Curie discovered polonium and radium and won two Nobel prizes."),
    ("The Moon", "The Moon orbits the Earth; Neil Armstrong was first to walk on it in 1969."),
    ("Python", "Python is a programming language that Guido van Rossum began in 1989."),
)


def built_in() -> list[dict[str, Any]]:
    """Return the built-in passages."""
    return [{"id": str(n), "contents": f"{title}\n{text}"} for n, (title, text) in enumerate(FACTS)]


def read_corpus(path: Path) -> list[dict[str, Any]]:
    """Read passages from JSON lines; raise ValueError or OSError for a bad file."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    passages = []
    for number, line in lines:
        if line.strip():
            passage = json.loads(line)
            if not isinstance(passage, dict) or not isinstance(passage.get("contents"), str):
                raise ValueError(f"line {number}: expected an object with a text `contents`")
            passages.append(passage)
    if not passages:
        raise ValueError("no passages")
    return passages


class Index:
    """Passages, ranked by the words they share with a query."""

    def __init__(self, passages: list[dict[str, Any]]) -> None:
        self.passages = passages
        counts = [Counter(words(passage["contents"])) for passage in passages]
        self._lengths = [count.total() for count in counts]
        self._mean = max(1.0, sum(self._lengths) / len(counts))
        self._occurrences: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, count in enumerate(counts):
            for word, times in count.items():
                self._occurrences[word].append((number, times))

    def find(self, query: str, topk: int) -> list[tuple[dict[str, Any], float]]:
        """Return the `topk` best passages with their scores."""
        scores = [0.0] * len(self.passages)
        for word in words(query)[:MAX_WORDS]:
            occurrences = self._occurrences.get(word, [])
            having = len(occurrences)
            rarity = math.log(1 + (len(scores) - having + 0.5) / (having + 0.5))
            for number, times in occurrences:
                relative = 1 - LENGTH + LENGTH * self._lengths[number] / self._mean
                scores[number] += (
                    rarity * times * (SATURATION + 1) / (times + SATURATION * relative)
                )
        best = heapq.nlargest(topk, range(len(scores)), key=scores.__getitem__)
        return [(self.passages[number], scores[number]) for number in best]


def words(text: str) -> list[str]:
    """Split a text into words."""
    return re.findall(r"\w+", text.lower())


def asked_for(body: bytearray) -> tuple[list[str], int, bool]:
    """Return queries, results for each, and whether with scores; a ValueError names the field."""
    many = f"queries: at most {MAX_QUERIES} in one request"
    if has_more_values(body, MAX_VALUES):
        raise ValueError(many)
    try:
        asked = json.loads(body)
    except RecursionError:
        raise ValueError("body: it is nested too deeply") from None
    if not isinstance(asked, dict):
        raise ValueError("body: expected an object with `queries`")  # noqa: TRY004 - one class for all
    queries = asked.get("queries")
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise ValueError("queries: expected a list of strings")
    if len(queries) > MAX_QUERIES:
        raise ValueError(many)
    topk = asked.get("topk") or 3
    if type(topk) is not int or not 1 <= topk <= MAX_RESULTS:
        raise ValueError(f"topk: expected a whole number from 1 to {MAX_RESULTS}")
    if len(queries) * topk > MAX_RESULTS_IN_ALL:
        raise ValueError(f"queries: at most {MAX_RESULTS_IN_ALL} results in one request")
    return queries, topk, bool(asked.get("return_scores"))


class Retriever:
    """The server."""

    def __init__(self, index: Index, limit: float) -> None:
        self._index = index
        self._limit = limit
        self._bodies = Bodies(MAX_BODY, 4 * MOST_OF_REPLY)
        self.program = Program("retriever", PATH, self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        async with self._bodies.read(request) as body:
            try:
                queries, topk, with_scores = asked_for(body.data)
            except ValueError as problem:
                return error_reply(400, str(problem))
            try:
                answering = self._results(queries, topk, with_scores=with_scores)
                results = await asyncio.wait_for(answering, self._limit)
            except asyncio.TimeoutError:  # another class until Python 3.11
                why = f"{len(queries)} queries take longer than {self._limit:g} s (--limit)"
                self.program.say(why)
                return error_reply(504, f"{why}: send fewer in one request")
            await body.take(MOST_OF_REPLY)
            reply = json.dumps({"result": results}).encode()
            body.keep(len(reply))
            return await send(request, reply)

    async def _results(
        self, queries: list[str], topk: int, *, with_scores: bool
    ) -> list[list[object]]:
        """Return what the reply has for each query."""
        results: list[list[object]] = []
        for query in queries:  # one by one, so that requests take turns
            best = await asyncio.to_thread(self._index.find, query, topk)
            if with_scores:
                results.append([{"document": text, "score": score} for text, score in best])
            else:
                results.append([text for text, _ in best])
        return results


def main(argv: list[str]) -> int:
    """Serve until SIGTERM: 0 then, 1 for a bad corpus, 2 for a flag, 78 if it cannot listen."""
    parser = VerbParser(prog="pod-agent retriever", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--host", default="127.0.0.1", metavar="HOST[,HOST]", help="where to listen (%(default)s)")
    add("--port", type=int, default=8000, help="0 for any free one (%(default)s)")
    add("--corpus", type=Path, help="JSON lines with `contents` (built-in facts)")
    limit = "seconds for a request, then 504 (%(default)g)"
    add("--limit", type=float, default=REQUEST_SECONDS, help=limit)
    options = parser.parse_args(argv)
    if not 0 < options.limit < math.inf:
        parser.error("--limit: expected seconds, more than 0")
    try:
        index = Index(read_corpus(options.corpus) if options.corpus else built_in())
    except (OSError, ValueError) as problem:
        print(f"retriever: {options.corpus}: {problem}", file=sys.stderr)
        return 1
    return Retriever(index, options.limit).program.run(options.host, options.port)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
