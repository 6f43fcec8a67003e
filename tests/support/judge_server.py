"""A judge for tests: an HTTP server with the replies of vLLM, SGLang and OpenAI's chat.

Made from their published descriptions: `/v1/models`, `/v1/chat/completions`, `/classify`,
`/v1/classify`, `/score` and `/v1/score`. What it answers is set by a test, request by request.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43}


class Asked(NamedTuple):
    """One request to the judge."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]


class Answer(NamedTuple):
    """One reply of the judge."""

    body: object = b""
    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    after: float = 0.0  # seconds


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


class JudgeServer:
    """The judge, its requests so far, and how many of them there were at once."""

    def __init__(self, answer: Callable[[Asked], Answer], host: str, port: int) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            """Passes requests on to the test's function."""

            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                """List the model."""
                self._reply(Answer({"object": "list", "data": [{"id": "judge-model"}]}))

            def do_POST(self) -> None:
                """Grade."""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                asked = Asked(self.path, json.loads(body), dict(self.headers))
                self._reply(outer.handle(asked))

            def _reply(self, answer: Answer) -> None:
                raw = answer.body
                body = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(body)))
                for name, text in answer.headers.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer((host, port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://{host}:{self.server.server_address[1]}"

    def handle(self, asked: Asked) -> Answer:
        """Answer one request, and count those at once."""
        with self._lock:
            self.asked.append(asked)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        answer = self.answer(asked)
        time.sleep(answer.after)
        with self._lock:
            self._now -= 1
        return answer


@contextmanager
def judge_server(answer: Callable[[Asked], Answer] = right_if_equal) -> Iterator[JudgeServer]:
    """Run a judge on a free port of loopback."""
    judge = JudgeServer(answer, "127.0.0.1", 0)
    thread = threading.Thread(target=judge.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield judge
    finally:
        judge.server.shutdown()
        judge.server.server_close()


def for_key(key: str) -> Callable[[Asked], Answer]:
    """Grade only what comes with this key."""

    def answer(asked: Asked) -> Answer:
        if asked.headers.get("Authorization") != f"Bearer {key}":
            return Answer({"error": "a wrong key"}, 401)
        return right_if_equal(asked)

    return answer


if __name__ == "__main__":
    HOST, PORT, KEY = sys.argv[1:]
    JudgeServer(for_key(KEY), HOST, int(PORT)).server.serve_forever()
