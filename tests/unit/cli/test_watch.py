"""`status --watch`: a run to its end, at a terminal and elsewhere, and a lost head."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.base.errors import UnavailableError
from agent.base.typed import convert
from agent.cli import status_verb, watch_status
from agent.cli.running_head import Received
from agent.decisions.head.fleet import NodeState
from agent.decisions.head.head_state import HeadPhase
from agent.port.brief_status import lines_by_content
from agent.port.glance import judged
from support.event_stream import WARNINGS, StreamedHead, streamed_head
from support.http_peer import answering, reply
from support.served import KEY, environ_of, leave_key
from support.statuses import altered
from support.terminal import on_a_terminal
from tools.page.runs import status as run_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.port.status_model import HeadStatus


pytestmark = pytest.mark.processes

VERDICT = Outcome(Kind.DONE, 0, "the job succeeded")
WATCH = [sys.executable, "-m", "agent", "status", "--watch"]


def over(run: HeadStatus) -> HeadStatus:
    """Return a run at its end."""
    return replace(run, phase=HeadPhase.LEAVING, verdict=VERDICT)


def sent(run: HeadStatus) -> dict[str, Any]:
    """Return the JSON of a status."""
    data: dict[str, Any] = to_builtins(judged(run))
    return data


def environ(head: StreamedHead, root: Path) -> dict[str, str]:
    """Return the environment of the head's node."""
    leave_key(root, KEY, head.status.run_id)
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "AGENT_PORT": str(head.port), "AGENT_LOG_DIR": str(root)}


@contextmanager
def watching(head: StreamedHead, root: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Run `status --watch` with its output in a pipe."""
    with subprocess.Popen(
        [*WATCH, *flags],
        env=environ(head, root),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def test_a_pipe_gets_lines_until_the_end(tmp_path: Path) -> None:
    """Without a terminal: the status once, a line for each change, and 0 at the end."""
    with streamed_head() as head:
        head.status = run_of(2)
        with watching(head, tmp_path) as program:
            assert program.stdout is not None
            for line in program.stdout:
                if line.startswith("nodes     3 fine"):
                    break
            head.status = replace(run_of(2), phase=HeadPhase.STOPPING)
            assert program.stdout.readline() == "▲ look    The job is being stopped.\n"
            head.status = over(run_of(2))
            (verdict,) = program.stdout.read().splitlines()
            assert verdict == "● over    done: the job succeeded (exit code 0)"
            assert program.wait(20) == 0


def test_json_has_one_object_per_line(tmp_path: Path) -> None:
    """Each changed status is printed, and no other."""
    with streamed_head() as head:
        head.status = run_of(2)
        with watching(head, tmp_path, "--json") as program:
            assert program.stdout is not None
            for line in program.stdout:
                assert json.loads(line)["phase"] == "running"
                if json.loads(line)["warnings"] == to_builtins(
                    [*WARNINGS]
                ):  # the stream's, after the first
                    break
            head.status = over(run_of(2))
            (last,) = program.stdout.read().splitlines()
            assert convert(json.loads(last)["verdict"], Outcome) == VERDICT
            assert program.wait(20) == 0


def test_without_a_stream_status_is_polled(tmp_path: Path) -> None:
    """A worker has no control key, so it polls `/status`."""
    with streamed_head() as head:
        head.status = run_of(2)
        given = environ(head, tmp_path)
        (tmp_path / "latest" / "pod0" / "control.key").write_text("no key of this head's")
        with subprocess.Popen(WATCH, env=given, stdout=subprocess.PIPE, text=True) as poller:
            assert poller.stdout is not None
            assert poller.stdout.readline().startswith("first sums · rehearsal · ")
            head.status = over(run_of(2))
            assert "done: the job succeeded" in poller.stdout.read()
            assert poller.wait(20) == 0
        assert not head.site._stream._readers  # noqa: SLF001 - its only sign


def test_a_terminal_shows_the_live_view(tmp_path: Path) -> None:
    """The view is drawn in one place, and the last one stays after the end."""
    with streamed_head() as head:
        head.status = run_of(3)
        with on_a_terminal(WATCH, environ(head, tmp_path), 40, 100) as terminal:
            terminal.wait_for("the view", lambda: any("4 fine" in x for x in terminal.lines()))
            changes = {"state": NodeState.LOST, "last_error": "its Ray is gone\x1b[2J"}
            lost = altered(run_of(3), "nodes", 1, **changes)
            head.status = lost
            gone = "its Ray is gone\\x1b[2J"
            terminal.wait_for("a change", lambda: any(gone in x for x in terminal.lines()))
            head.status = over(lost)
            assert terminal.to_the_end() == 0
        assert "● over    done: the job succeeded (exit code 0)" in terminal.lines()


def test_at_a_terminal_without_rich(tmp_path: Path) -> None:
    """Lines are printed, without a warning about rich."""
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise ImportError('no rich here')")
    with streamed_head() as head:
        head.status = run_of(3)
        given = {**environ(head, tmp_path), "PYTHONPATH": str(tmp_path)}
        with on_a_terminal(WATCH, given, 40, 100) as terminal:
            terminal.wait_for("lines", lambda: any("4 fine" in x for x in terminal.lines()))
            head.status = over(run_of(3))
            assert terminal.to_the_end() == 0
        assert b"\x1b[?25l" not in terminal.raw  # the cursor is not hidden
        shown = [line for line in terminal.lines() if line]
        assert "● over    done: the job succeeded (exit code 0)" in shown
        assert not any("rich" in line for line in shown)


def test_a_lost_head_ends_the_watch() -> None:
    """A short outage is shown; after 15 s without a status the watch ends, and why."""
    now = iter([0.0, 0.0, 5.0, 6.0, 10.0, 15.0, 21.5])
    run = sent(run_of(1))
    answers: list[dict[str, Any] | str] = [run, "refused", run, *["refused"] * 9]
    shown: list[str] = []

    def show(received: Received, outage: str) -> None:
        shown.append(outage or received.status.phase.value)

    with pytest.raises(UnavailableError) as caught:
        watch_status.show_until_end(show, "10.0.0.4:8266", answers, lambda: next(now))
    words = caught.value.sentence()
    assert shown == [
        *("running", "10.0.0.4:8266 does not answer: refused", "running"),
        *["10.0.0.4:8266 does not answer: refused"] * 2,
    ]
    assert words.startswith("the head is gone: 10.0.0.4:8266 does not answer: refused; ")
    assert words.endswith("16 s ago it was running")


def test_an_outage_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A second line is printed when the head answers again."""
    show = watch_status.ChangedLines(lambda received: lines_by_content(received.status))
    run = Received(judged(run_of(1)), {})
    show(run, "")
    capsys.readouterr()
    for outage in ("it does not answer", "it does not answer", ""):
        show(run, outage)
    said = "pod-agent: it does not answer\npod-agent: the head answers again\n"
    assert capsys.readouterr().err == said


def test_an_agent_of_another_version(tmp_path: Path) -> None:
    """Its status cannot be shown."""
    body = json.dumps({"role": "head", "phase": "waiting", "waits": []}).encode()
    with answering(reply(body)) as peer, pytest.raises(UnavailableError, match="another version"):
        status_verb.show_status(environ_of(peer.port, tmp_path), as_json=False, watch=True)


def test_without_a_head_it_ends(tmp_path: Path) -> None:
    """No head answers: an error at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnavailableError, match="no head's agent answers"):
        status_verb.show_status(environ_of(port, tmp_path), as_json=False, watch=True)
