"""A judge, an environment and a router for scenarios of groups.

    python -m support.group_services judge HOST PORT
    python -m support.group_services environment HOST PORT
    python -m support.group_services router HOST PORT ENGINE …

The judge gives an answer 1 that has the label in its box. The environment returns the question that
it is asked for. The router passes each request on to the next of its engines, as they are given,
and watches none of them.
"""

from __future__ import annotations

import sys
import urllib.request
from itertools import cycle
from typing import TYPE_CHECKING

from support.fake_server import Answer, Asked, FakeServer
from support.judge_server import chat, judging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def grade(asked: Asked) -> Answer:
    """Grade as a judge does that reads the box."""
    text = asked.body["messages"][0]["content"]
    label = text.partition("Reference answer:\n")[2].partition("\n")[0]
    answer = text.partition("Answer to grade:\n")[2].partition("\n\n")[0]
    return chat(f"Grade: {float(f'boxed{{{label}}}' in answer):g}")


def reset(asked: Asked) -> Answer:
    """Return the question of an episode; a GET is a probe."""
    return Answer({"status": "ok"} if asked.method == "GET" else {"prompt": asked.body["prompt"]})


def passed_on(engines: Iterator[str]) -> Callable[[Asked], Answer]:
    """Return a router's function: what the next engine replies, or 502."""

    def answer(asked: Asked) -> Answer:
        if asked.path == "/health":
            return Answer({"status": "ok"})
        body = asked.content if asked.method == "POST" else None
        headers = {"Content-Type": "application/json"}
        url = f"{next(engines)}{asked.path}"
        request = urllib.request.Request(url, body, headers, method=asked.method)  # noqa: S310 - HTTP
        try:
            with urllib.request.urlopen(request) as reply:  # noqa: S310 - as above
                return Answer(reply.read(), reply.status)
        except OSError as problem:
            return Answer({"error": str(problem)}, 502)

    return answer


if __name__ == "__main__":
    PROGRAM, HOST, PORT, *ENGINES = sys.argv[1:]
    ANSWERS = {"judge": judging(grade), "environment": reset, "router": passed_on(cycle(ENGINES))}
    FakeServer(ANSWERS[PROGRAM], HOST, int(PORT)).serve_forever()
