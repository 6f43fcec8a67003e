"""A judge for tests: an HTTP server with the replies of vLLM, SGLang and OpenAI's chat.

Made from their published descriptions: `/v1/models`, `/v1/chat/completions`, `/classify`,
`/v1/classify`, `/score` and `/v1/score`. What it answers is set by a test, request by request.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from support.fake_server import Answer, Asked, FakeServer, fake_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43}


def chat(content: str | None) -> Answer:
    """Return a reply of the chat API."""
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return Answer({"id": "c", "object": "chat.completion", "choices": [choice], "usage": USAGE})


def classes(*probs: float) -> Answer:
    """Return a reply of the classification API."""
    row = {"index": 0, "label": "LABEL_0", "probs": probs, "num_classes": len(probs)}
    return Answer({"object": "list", "data": [row], "usage": USAGE})


def right_if_equal(asked: Asked) -> Answer:
    """Grade as a judge does that finds the label in the answer."""
    text = asked.body["messages"][0]["content"]
    label = text.partition("Reference answer:\n")[2].partition("\n")[0]
    answer = text.partition("Answer to grade:\n")[2].partition("\n\n")[0]
    return chat(f"The grade.\nGrade: {float(label in answer):g}")


MODELS = Answer({"object": "list", "data": [{"id": "judge-model"}]})


def judging(grade: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
    """List the model, and grade what is posted."""
    return lambda asked: MODELS if asked.method == "GET" else grade(asked)


def posted(server: FakeServer) -> list[Asked]:
    """Return the requests for a grade."""
    return [asked for asked in server.asked if asked.method == "POST"]


@contextmanager
def judge_server(grade: Callable[[Asked], Answer] = right_if_equal) -> Iterator[FakeServer]:
    """Run a judge on a free port of loopback."""
    with fake_server(judging(grade)) as server:
        yield server


def for_key(key: str) -> Callable[[Asked], Answer]:
    """Grade only what comes with this key."""

    def answer(asked: Asked) -> Answer:
        if asked.headers.get("Authorization") != f"Bearer {key}":
            return Answer({"error": "a wrong key"}, 401)
        return right_if_equal(asked)

    return answer


if __name__ == "__main__":
    HOST, PORT, KEY = sys.argv[1:]
    FakeServer(judging(for_key(KEY)), HOST, int(PORT)).serve_forever()
