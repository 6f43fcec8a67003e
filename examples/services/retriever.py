#!/usr/bin/env python3
"""A stand-in for Search-R1's retrieval server, to try a cluster without its 60 GB index.

It accepts the same requests and sends the same replies. It ranks passages by the words they share
with the query (BM25): a few built-in facts, or a file of JSON lines, each with `contents` (a title,
a line break, a text). It needs only Python 3.10.

    python3 retriever.py --host 127.0.0.1 --port 8000 [--corpus passages.jsonl]
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import re
import signal
import sys
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PATH = "/retrieve"
MAX_BODY = 16 << 20
MAX_RESULTS = 1000
SATURATION, LENGTH = 1.2, 0.75
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
        for word in words(query):
            found = self._occurrences.get(word, [])
            rarity = math.log(1 + (len(scores) - len(found) + 0.5) / (len(found) + 0.5))
            for number, times in found:
                relative = 1 - LENGTH + LENGTH * self._lengths[number] / self._mean
                scores[number] += (
                    rarity * times * (SATURATION + 1) / (times + SATURATION * relative)
                )
        best = heapq.nlargest(topk, range(len(scores)), key=scores.__getitem__)
        return [(self.passages[number], scores[number]) for number in best]


def words(text: str) -> list[str]:
    """Split a text into words."""
    return re.findall(r"\w+", text.lower())


def answer(index: Index, body: bytes) -> dict[str, Any]:
    """Return the reply to a request body; raise ValueError that names the wrong field."""
    asked = json.loads(body)
    if not isinstance(asked, dict):
        raise ValueError("body: expected an object with `queries`")  # noqa: TRY004 - one class for all
    queries = asked.get("queries")
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise ValueError("queries: expected a list of strings")
    topk = asked.get("topk") or 3
    if type(topk) is not int or not 1 <= topk <= MAX_RESULTS:
        raise ValueError(f"topk: expected a whole number from 1 to {MAX_RESULTS}")
    results = [index.find(query, topk) for query in queries]
    if asked.get("return_scores"):
        return {"result": [[{"document": p, "score": s} for p, s in one] for one in results]}
    return {"result": [[passage for passage, _ in one] for one in results]}


def handler_for(index: Index) -> type[BaseHTTPRequestHandler]:
    """Return the request handler of an index."""

    class RetrieverHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            if self.path != PATH or size > MAX_BODY:
                self.reply(404 if self.path != PATH else 413, {"error": f"expected POST {PATH}"})
                return
            try:
                self.reply(200, answer(index, self.rfile.read(size)))
            except ValueError as problem:
                self.reply(400, {"error": str(problem)})

        def reply(self, status: int, fields: dict[str, Any]) -> None:
            body = json.dumps(fields).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Write no line per request."""

    return RetrieverHandler


def main() -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 for any free one (%(default)s)")
    parser.add_argument("--corpus", type=Path, help="JSON lines with `contents` (built-in facts)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        index = Index(read_corpus(options.corpus) if options.corpus else built_in())
    except (OSError, ValueError) as problem:
        print(f"retriever: {options.corpus}: {problem}", file=sys.stderr)
        return 1
    server = ThreadingHTTPServer((options.host, options.port), handler_for(index))
    url = f"http://{options.host}:{server.server_port}{PATH}"
    print(f"retriever listening on {url}", file=sys.stderr, flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
