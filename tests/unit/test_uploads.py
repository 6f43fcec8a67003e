"""Uploads of a job's folder: watched in Ray's own client, told as they go, and given their time."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from agent.boot.plan_input import read_runtime_env
from agent.bridge.link import parse_event
from agent.bridge.ray_calls import CountedReader, Jobs, UploadMeter, meter_uploads
from agent.control.view import view_of
from agent.decisions import head
from agent.decisions.head.state import HeadPhase
from agent.decisions.values import Uploading, Wait
from agent.node.pythons import ray_here
from agent.plan import waits as planned
from agent.record.events import WaitLog
from unit.heads import TICK, Story, goal, nodes, waits
from unit.worlds import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
FOLDER = "/code"


# --- Ray's own client ----------------------------------------------------------------------------


class Dashboard(BaseHTTPRequestHandler):
    """What of Ray's dashboard a submission needs: it takes a package piece by piece."""

    protocol_version = "HTTP/1.1"
    taken: threading.Event
    """Set once a test has seen that half of a package was sent."""
    half: threading.Event
    got: list[bytes]

    def do_GET(self) -> None:
        """Tell the version, and that no package is there."""
        is_version = self.path == "/api/version"
        told = {"version": "4", "ray_version": "2.60.0", "ray_commit": "0"} if is_version else {}
        self._answer(200 if is_version else 404, told)

    def do_PUT(self) -> None:
        """Take the first half, and the rest when the test says so."""
        size = int(self.headers["Content-Length"])
        first = self.rfile.read(size // 2)
        self.half.set()
        assert self.taken.wait(20)
        self.got.append(first + self.rfile.read(size - len(first)))
        self._answer(200, {})

    def do_POST(self) -> None:
        """Take a job."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {"submission_id": "run-1", "job_id": "run-1"})

    def _answer(self, status: int, told: dict[str, str]) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def dashboard() -> Iterator[tuple[str, type[Dashboard]]]:
    """Serve one; yield its URL and what it saw."""

    class Own(Dashboard):
        taken, half, got = threading.Event(), threading.Event(), []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", Own
    finally:
        Own.taken.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def test_what_rays_client_sends_is_counted(tmp_path: Path) -> None:
    """Files and size as they were measured beforehand, bytes as they go, and the end."""
    for n in range(3):
        (tmp_path / f"{n}.bin").write_bytes(bytes([n]) * 4 * MIB)
    environ = {"AGENT_WORKING_DIR": str(tmp_path)}
    runtime_env, measured = read_runtime_env(settings_of(environ), environ, ray_here().folder)
    assert measured is not None
    told: list[dict[str, Any]] = []
    known = {"folder": str(tmp_path), "files": measured.files, "size": measured.size}
    upload = UploadMeter(known, lambda **word: told.append(word))
    job = {"id": "run-1", "entrypoint": "true", "runtime_env": runtime_env}
    with dashboard() as (url, seen):
        jobs = Jobs(url)
        upload.report()
        submitting = threading.Thread(target=jobs.submit_once, args=(job, upload), daemon=True)
        submitting.start()
        assert seen.half.wait(60)
        upload.report()
        seen.taken.set()
        submitting.join(60)
        assert not submitting.is_alive()
        upload.report()  # what comes after is no upload
        (package,) = seen.got
    packing, sending, over = told
    assert (packing["stage"], packing["files"]) == ("packing", 3)
    assert sending["stage"] == "sending"
    assert len(package) // 2 <= sending["done"] <= len(package)
    assert over["is_over"]
    assert over["done"] == over["size"] == len(package) == measured.size
    assert over["seconds"] > 0
    event = parse_event({"event": "upload", "id": "run-1", **over})
    assert isinstance(event, Uploading)
    assert event.is_over


class Renamed:
    """A client of a Ray whose private methods have other names."""


def test_another_rays_client_is_left_alone() -> None:
    """Nothing is wrapped of what is not there, and what is known beforehand is told."""
    client = Renamed()
    told: list[dict[str, Any]] = []
    upload = UploadMeter(
        {"folder": FOLDER, "files": 2, "size": MIB}, lambda **word: told.append(word)
    )
    meter_uploads(client, lambda: upload)
    assert not vars(client)
    upload.report()
    assert (told[0]["folder"], told[0]["size"], told[0]["is_over"]) == (FOLDER, MIB, False)


def test_where_nothing_is_uploaded_nothing_is_told() -> None:
    """A job without a folder has no upload."""
    told: list[object] = []
    UploadMeter(None, lambda **word: told.append(word)).report()
    assert not told


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_a_counted_body_is_the_same_bytes(size: int) -> None:
    """Piece by piece, or read at once."""
    content = bytes(n % 251 for n in range(size))
    assert b"".join(CountedReader(content)) == content
    counted = CountedReader(content)
    assert (len(counted), counted.read(), counted.read()) == (size, content, b"")
    assert counted.count == size


# --- what is told of it --------------------------------------------------------------------------


def word(done: int, *, stage: str = "sending", size: int = 60, over: bool = False) -> Uploading:
    """Return a word of an upload, in MiB."""
    return Uploading("run-1", FOLDER, 123, size * MIB, stage, done * MIB, 9.04, over)


def submitting() -> Story:
    """Return a head that submits."""
    story = Story(goal(1), [(1.0, nodes(2))])
    assert story.state.phase is HeadPhase.SUBMITTING
    return story


def test_a_small_one_is_one_sentence() -> None:
    """What took no time is told when it is over."""
    story = submitting()
    before = story.said
    story.take(word(60, over=True), 1.5)
    assert story.said.removeprefix(before).strip() == (
        "uploaded /code to Ray: 123 files, 60 MiB, in 9 s"
    )


def test_a_large_one_is_told_as_it_goes() -> None:
    """Once what is uploaded, then by the wait how far it is, and at last how long it took."""
    story = submitting()
    story.take(word(100, stage="packing"), 3.0)
    assert story.said.endswith("uploading /code to Ray: 123 files, 60 MiB")
    (wait,) = head.pending_waits(story.state)
    assert (wait.evidence, wait.progress) == ("packing /code: 100 MiB read", None)
    story.take(word(24), 5.0)
    (wait,) = head.pending_waits(story.state)
    assert (wait.evidence, wait.progress) == ("sending /code: 24 MiB of 60 MiB", 0.4)
    assert story.said.count("uploading") == 1
    story.take(word(60, over=True), 9.0)
    (wait,) = head.pending_waits(story.state)
    assert not wait.evidence
    assert story.said.endswith("uploaded /code to Ray: 123 files, 60 MiB, in 9 s")


def test_one_that_moves_has_its_time() -> None:
    """The deadline counts from the last byte that was new: another try's first ones are not."""
    limit = planned.SUBMIT_LIMIT
    story = submitting()
    story.take(word(0, stage="packing"), 3.0)
    story.take(word(24), 100.0)
    assert head.deadline(story.state) == 100.0 + limit
    story.take(waits("connection reset"), 110.0)
    (wait,) = head.pending_waits(story.state)
    assert (wait.evidence, wait.deadline) == ("connection reset", 100.0 + limit)
    story.take(word(24), 150.0)
    assert head.deadline(story.state) == 100.0 + limit
    story.take(TICK, 100.0 + limit)
    assert story.state.verdict is not None
    assert "sending /code: 24 MiB of 60 MiB" in story.state.verdict.reason


def test_progress_is_a_line_every_few_seconds() -> None:
    """As long as it moves; one that stands is told as seldom as any other wait."""
    said: list[str] = []
    teller = WaitLog(lambda _: None, said.append)
    for second in range(60):
        sent = min(second, 20)
        told = Wait("x", "Ray", 100.0, f"{sent} MiB of 60 MiB", progress=sent / 60)
        teller.update((told,), float(second))
    assert [int(line.split(", ")[1].split()[0]) for line in said] == [0, 5, 10, 15, 20, 20]


def test_the_view_has_its_bar() -> None:
    """At a terminal the bar is of what is sent, not of the time that is left."""
    status = {
        "run_id": "run-1",
        "phase": "submitting",
        "seconds": 9.0,
        "seconds_in_phase": 1.0,
        "waits": [Wait("x", "Ray", 100.0, "sending", progress=0.5).to_dict(1.0)],
        "nodes": [],
        "services": [],
        "job": None,
        "verdict": None,
    }
    view = view_of(status, 20)
    assert any("[##########..........]" in row.cells for s in view.sections for row in s.rows)
