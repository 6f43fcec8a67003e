"""`logs`: which log of which node is meant, who may read it, and what the head gives."""

from __future__ import annotations

import io
import sys
import threading
from contextlib import nullcontext
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace

from agent.base import times
from agent.base.errors import UnavailableError
from agent.cli import logs_verb
from agent.cli.command_line import main
from agent.cli.http_request import ask
from agent.decisions.head.fleet import Worker
from agent.decisions.head.head_state import HeadPhase
from agent.port.log_filter import LogFilter
from agent.port.protocol import Hello, Reply, Report
from agent.port.reports import Expected, Reports
from agent.port.status_model import LogPart
from agent.record.run_folder import RunFolder
from agent.run.head_server import RunStatus
from agent.settings.redact import MASK, redactor_for
from support import served
from support.free_ports import free_port
from support.groups import ENGINE
from support.node_runs import made_run
from support.run_folders import leave_run
from support.served import KEY, SECONDS, a_head, environ_of, leave_key
from support.worlds import SECRET, plan_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

SHORT = 0.2
"""Seconds that a request for logs waits, in place of three."""
FIRST = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)


# --- the verb ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "out"),
    [
        ([], "step 1\n"),
        (["job"], "step 1\n"),
        (["head"], "step 1\n"),
        (["head", "job"], "step 1\n"),
        (["pod1"], "joined\n"),
        (["pod1", "agent"], "joined\n"),
        (["pod1", "job"], ""),
        (["retriever"], ""),
        (["../secrets", "x/y"], ""),
    ],
)
def test_the_words_name_node_and_log(
    words: list[str], out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node, a log, both or none; an unknown name is an error."""
    leave_key(tmp_path, KEY)
    with a_head() as head:
        raises = nullcontext() if out else pytest.raises(UnavailableError, match="has no log")
        with raises:
            logs_verb.show_logs(environ_of(head.port, tmp_path), words, LogFilter(), follow=False)
    assert capsys.readouterr().out == out


STEERING = "a\x1b]52;c;aGk=\x07b\x1b[31mred\x1b[0m\x9b2J\x9dx\tc\x1b]0;title\nnext \u202eline\n"


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_log_steers_no_terminal(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_live: bool,
    is_terminal: bool,
) -> None:
    """A job may print what writes to the clipboard; into a file or pipe it passes unchanged."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    if is_live:
        monkeypatch.setitem(served.LOGS, ("head", "job"), [STEERING])
        leave_key(tmp_path, KEY)
        with a_head() as head:
            logs_verb.show_logs(environ_of(head.port, tmp_path), [], LogFilter(), follow=False)
    else:
        (leave_run(tmp_path, "run-1", 1e9) / "pod0" / "job.log").write_text(STEERING)
        environ = environ_of(free_port(), tmp_path)
        logs_verb.show_logs(environ, ["pod0", "job"], LogFilter(), follow=False)
    shown = capsys.readouterr().out
    assert shown == ("abred2Jx\tc\nnext line\n" if is_terminal else STEERING)


def test_a_worker_s_last_lines_are_not_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are printed once, with the reason why no more follow."""
    leave_key(tmp_path, KEY)
    with a_head() as head:
        logs_verb.show_logs(environ_of(head.port, tmp_path), ["pod1"], LogFilter(), follow=True)
    printed = capsys.readouterr()
    assert printed.out == "joined\n"
    assert "cannot be followed" in printed.err


def test_logs_need_a_head_and_a_key(tmp_path: Path) -> None:
    """Both are errors: without token or key no log is shown."""
    with a_head() as head:
        where = f"http://127.0.0.1:{head.port}/logs/head/job"
        assert [ask(where, key).status for key in (None, "another", KEY)] == [401, 401, 200]
        assert ask(f"{where}?after=-1", KEY).status == 400
        environ = environ_of(head.port, tmp_path)
        with pytest.raises(UnavailableError, match="RAY_AUTH_TOKEN"):
            logs_verb.show_logs(environ, [], LogFilter(), follow=False)
    with pytest.raises(UnavailableError, match="no head's agent answers"):
        logs_verb.show_logs(environ, [], LogFilter(), follow=False)
    with pytest.raises(SystemExit):
        main(["logs", "a", "b", "c"])


# --- a log that is followed ---------------------------------------------------------------------


async def _first_life(
    _node: str, _name: str, after: int | None, _before: int | None = None
) -> LogPart | str:
    await anyio.sleep(0.1 if after else 0.0)
    return LogPart("" if after else "one\n", 4)


async def _second_life(
    _node: str, _name: str, after: int | None, _before: int | None = None
) -> LogPart | str:
    return LogPart("two\n" if after == 4 else "", 8, over=True)


class Output(io.StringIO):
    """A stdout with a wait; `capsys` loses text that is printed while it is read."""

    def __init__(self) -> None:
        super().__init__()
        self._written = threading.Condition()

    def write(self, text: str) -> int:
        """Write, and notify a waiting test."""
        with self._written:
            count = super().write(text)
            self._written.notify_all()
        return count

    def wait_for(self, text: str) -> None:
        """Wait until a text was written."""
        with self._written:
            assert self._written.wait_for(lambda: text in self.getvalue(), SECONDS)


@pytest.mark.parametrize(
    ("comes_back", "end"),
    [(True, (0, "one\ntwo\n", "")), (False, (69, "one\n", "no log and no verdict for 1 s"))],
)
def test_following_survives_a_restarted_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: tuple[int, str, str], *, comes_back: bool
) -> None:
    """Another agent listens at the same port a moment later; the exit code is the verdict's.

    If it stays away, the end of the run is unknown: this is an error.
    """
    if not comes_back:
        monkeypatch.setattr("agent.cli.logs_verb.AGENT_RESTARTS", 1.0)
    output = Output()
    monkeypatch.setattr(sys, "stdout", output)
    leave_key(tmp_path, KEY)
    ends: list[tuple[int, str]] = []

    def follow(port: int) -> None:
        try:
            logs_verb.show_logs(environ_of(port, tmp_path), [], LogFilter(), follow=True)
        except UnavailableError as error:
            ends.append((error.end.exit_code, str(error)))
        else:
            ends.append((0, ""))

    with a_head(log=_first_life) as head:
        thread = threading.Thread(target=follow, args=(head.port,))
        thread.start()
        output.wait_for("one\n")
    if comes_back:
        with a_head(log=_second_life, port=head.port):
            output.wait_for("two\n")
    thread.join(SECONDS)
    ((code, why),) = ends
    assert (code, output.getvalue()) == end[:2]
    assert end[2] in why


# --- what the head gives -------------------------------------------------------------------------


class Asked:
    """A head's logs, and the reports with which a worker sends its own."""

    def __init__(self, root: Path) -> None:
        environ = {"AGENT_LOG_DIR": str(root), "RAY_AUTH_TOKEN": SECRET, "EXPECTED_WORKERS": "1"}
        environ |= {"AGENT_REWARD": "builtin", "AGENT_PREPARE": "true"}
        plan = plan_of(environ, command=["true"])
        redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
        self.run = made_run(plan, redactor, RunFolder(root, "run-1", "node-a"), 0.0, "run-1")
        self.reports = Reports(
            FIRST, Expected("2.60.0", "3.11.7", "", ""), lambda _event: None, lambda: 0.0
        )
        workers = {"k1": Worker("k1", "pod1"), "k0": Worker("k0", "pod0", has_left=True)}
        fleet = SimpleNamespace(workers=workers)
        self.state: Any = SimpleNamespace(fleet=fleet, phase=HeadPhase.RUNNING)
        store: Any = SimpleNamespace(former_meter=lambda _now: None)
        self.status = RunStatus(self.run, store, lambda: self.state)
        self.job = self.run.folder.file("job.log")

    def part(
        self, node: str, name: str, after: int | None = None, before: int | None = None
    ) -> LogPart | str:
        """Request a part."""
        return anyio.run(self.status.read_log, self.reports, node, name, after, before)

    def part_while(
        self, meanwhile: Callable[[], Awaitable[None]], node: str, name: str, after: int | None
    ) -> LogPart | str:
        """Request a part, and do something while its reader waits."""
        found: list[LogPart | str] = []

        async def request() -> None:
            found.append(await self.status.read_log(self.reports, node, name, after))

        async def scenario() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(request)
                await anyio.sleep(SHORT)
                assert found == []
                await meanwhile()

        anyio.run(scenario)
        return found[0]


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    """Return a head's logs."""
    found = Asked(tmp_path)
    yield found
    found.run.close()


def test_a_log_is_read_from_any_offset(asked: Asked) -> None:
    """First its end, then new text, in whole lines and without secrets."""
    asked.job.write_text(f"step 1\nkey {SECRET}\nhalf")
    first = asked.part("head", "job")
    assert first == LogPart(f"step 1\nkey {MASK}\n", len(f"step 1\nkey {SECRET}\n"))
    with asked.job.open("a") as file:
        file.write(" a line\nnext")
    assert isinstance(first, LogPart)
    assert asked.part("node-a", "job", first.next) == LogPart(
        "half a line\n", 38 + len(SECRET) - 14
    )


def test_a_long_log_is_read_backwards_from_its_end(asked: Asked) -> None:
    """Parts of whole lines, until the first line of the log; a secret at a cut is masked."""
    lines = [f"line {number} {SECRET}\n" for number in range(30_000)]
    asked.job.write_text("".join(lines))
    part = asked.part("head", "job")
    assert isinstance(part, LogPart)
    assert part.next == asked.job.stat().st_size
    text = part.text
    while part.start is not None:
        part = asked.part("head", "job", before=part.start)
        assert isinstance(part, LogPart)
        text = part.text + text
    assert text == "".join(lines).replace(SECRET, MASK)


def test_a_truncated_log_is_read_from_its_start(asked: Asked) -> None:
    """An offset beyond its end belongs to the former file."""
    asked.job.write_text("again\n")
    assert asked.part("head", "job", 5000) == LogPart("again\n", 6)


def test_a_follower_waits_for_new_text_or_the_verdict(asked: Asked) -> None:
    """A reader at the end of the log is answered once there is more, or before the agent exits."""
    asked.job.write_text("one\n")

    async def grow() -> None:
        with asked.job.open("a") as file:
            file.write("two\n")

    async def end() -> None:
        asked.state.phase = HeadPhase.LEAVING

    assert asked.part_while(grow, "head", "job", 4) == LogPart("two\n", 8)
    assert asked.part_while(end, "head", "job", 8) == LogPart("", 8, over=True)


def test_the_wait_has_a_limit(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has the same offset."""
    monkeypatch.setattr(times, "LOG_LINES_AWAITED", SHORT)
    asked.job.write_text("one\n")
    assert asked.part("head", "job", 4) == LogPart("", 4)


@pytest.mark.parametrize(
    ("node", "name", "words"),
    [
        ("head", "secrets", "node-a has no log 'secrets': nodes are node-a and pod1"),
        ("head", "../../etc/passwd", "has no log"),
        ("pod0", "agent", "nodes are node-a and pod1; logs agent, ray"),
        ("pod1", "secrets", "pod1 has no log 'secrets'"),
        ("pod1", "agent", "pod1 has no log 'agent', or did not send it in time"),
    ],
)
def test_unknown_logs(
    asked: Asked, node: str, name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names come from a closed set; the error lists those that exist."""
    monkeypatch.setattr(times, "LOG_LINES_AWAITED", SHORT)
    assert words in str(asked.part(node, name))


def test_a_workers_last_lines(asked: Asked) -> None:
    """They are asked for, and sent with its next report."""
    report = Report("k1", "10.0.0.2", "joining Ray", hello=Hello("pod1", 1))
    anyio.run(asked.reports.handle, report)

    async def send() -> None:
        again = replace(report, hello=None)
        wanted = (await asked.reports.handle(again)).wanted
        assert wanted is not None
        (question,) = wanted.questions
        assert (question.kind.value, question.name) == ("log", "agent")
        await asked.reports.handle(replace(again, logs={"agent": f"one\ntwo {SECRET}\n"}))

    assert asked.part_while(send, "pod1", "agent", None) == LogPart(f"one\ntwo {MASK}\n", None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("reward server", "scored"),
        ("reward-server", "scored"),
        ("AGENT_PREPARE", "prepared"),
        ("prepare", "prepared"),
        ("ray", "started"),
        ("ray-start", "started"),
    ],
)
def test_a_log_has_its_name_and_that_of_its_file(asked: Asked, name: str, text: str) -> None:
    """While the run lasts as afterwards, where only the files are left."""
    files = {"reward-server": "scored", "prepare": "prepared", "ray-start": "started"}
    for file, line in files.items():
        asked.run.folder.file(f"{file}.log").write_text(f"{line}\n")
    assert asked.part("head", name) == LogPart(f"{text}\n", len(text) + 1)


@pytest.mark.parametrize(
    "lines",
    [
        ["0001-01-01 00:00:00 x"],
        ["9999-12-31 23:59:59-05:00"],
        ["12:00:00 a", "9999-12-31 23:59:59Z"],
        ["23:00:00 a", "0001-01-01 00:00:00Z"],
    ],
)
def test_a_job_may_print_any_time(lines: list[str]) -> None:
    """A time at an end of the calendar is no time."""
    start = datetime(2026, 11, 26, tzinfo=timezone.utc)
    text = "\n".join(lines)
    assert LogFilter(since=start).apply(text, start) in text


def test_a_members_log_is_requested_from_its_node(asked: Asked) -> None:
    """By the name of the member; the node says how many of a service it has."""
    asked.run.plan = replace(asked.run.plan, all_services=(ENGINE,))
    worker = Worker("k1", "pod1", members={"engine": 2})
    asked.state.fleet = SimpleNamespace(workers={"k1": worker})

    async def send() -> None:
        asked.reports.logs["k1", "engine.1"] = "loading\nCUDA out of memory"

    lines = LogPart("loading\nCUDA out of memory\n", None)
    assert asked.part_while(send, "pod1", "engine.1", None) == lines
    refused = asked.part("pod1", "engine.2")
    assert isinstance(refused, str)
    assert "logs agent, ray" in refused
    assert "engine.0 and engine.1" in refused
