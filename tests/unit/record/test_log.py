"""The agent's log from a reader's view: real code in a separate process."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent.record import log

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

    from agent.record.background import Writer

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys
from pathlib import Path
from agent.record.log import configure, log_to_file, say, say_title
from agent.processes.signals import exit_now
from agent.settings.redact import Redactor

style, node, path, names_node, *said = json.loads(sys.argv[1])
redactor = Redactor(["s3cret-s3cret", "of two\\nlines"])
configure(style, dict(json.loads(sys.argv[2])), redactor, node, names_node=names_node)
for at, (sentence, level, more) in enumerate(said):
    if at == 1:
        log_to_file(Path(path))
    say_title(sentence) if level == "title" else say(sentence, level, **more)
exit_now(0)
"""
TIME = r"\d\d:\d\d:\d\d"


def say(  # noqa: PLR0913 - what a log is configured with
    tmp_path: Path,
    style: str,
    *said: tuple[str, str] | tuple[str, str, Mapping[str, object]],
    node: str = "poda",
    names_node: bool = False,
    environ: dict[str, str] | None = None,
    stderr: int = subprocess.PIPE,
) -> tuple[str, str]:
    """Log sentences; return the lines on stderr and in the file."""
    file = tmp_path / "agent.log"
    lines = [(*line, {})[:3] for line in said]
    words = [json.dumps([style, node, str(file), names_node, *lines]), json.dumps(environ or {})]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], cwd=ROOT, stderr=stderr, timeout=60, check=True
    )
    return (done.stderr or b"").decode(), file.read_text() if file.exists() else ""


def received(reader: int, terminal: int) -> str:
    """Close a terminal; return all that it has received."""
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # the end
        while data := os.read(reader, 4096):
            shown += data
    os.close(reader)
    return shown.decode()


def at_terminal(tmp_path: Path, style: str, environ: dict[str, str] | None = None) -> str:
    """Log a warning on a terminal; return the output."""
    reader, terminal = pty.openpty()
    said = (("a", "info"), ("b", "warning"), ("c", "error"), ("d", "done"))
    _, kept = say(tmp_path, style, *said, environ=environ, stderr=terminal)
    shown = received(reader, terminal).replace("\r\n", "\n")
    assert "\033" not in kept
    return re.sub(TIME, "T", shown)


def test_a_line_for_people(tmp_path: Path) -> None:
    """Time, a mark for warnings and errors, the sentence: the same in the file."""
    said = (("hello %s {x}", "info"), ("beware", "warning"), ("no", "error"))
    shown, kept = say(tmp_path, "auto", *said)
    assert re.sub(TIME, "T", shown) == "T   hello %s {x}\nT ! beware\nT ✗ no\n"
    assert kept == shown


def test_the_start_of_a_run_for_people(tmp_path: Path) -> None:
    """The title has the date, warnings below it need no time; what is done has columns."""
    said: list[tuple[str, str, Mapping[str, object]]] = [
        ("pod-agent 0.1.0 · runpod", "title", {}),
        ("no token", "warning", {"is_timed": False}),
        ("scored a test answer", "done", {"subject": "reward server", "seconds": 2.04}),
        ("10.77.0.10:6379", "done", {"subject": "Ray", "seconds": 130.0}),
        ("ssh -L 8266:localhost:8266 pod0", "info", {"subject": "watch"}),
        ("done: the job succeeded (exit code 0)", "info", {"is_last": True}),
    ]
    shown, kept = say(tmp_path, "auto", *said)
    assert kept == shown
    undated = re.sub(rf"\d{{4}}-\d\d-\d\d {TIME}", "D", shown)
    assert re.sub(TIME, "T", undated).splitlines() == [
        "pod-agent 0.1.0 · runpod · D UTC",
        "  ! no token",
        "T ✓ reward server  scored a test answer                 2 s",
        "T ✓ Ray            10.77.0.10:6379                   2 min 10 s",
        "T   watch          ssh -L 8266:localhost:8266 pod0",
        "T done: the job succeeded (exit code 0)",
    ]


def test_a_worker_names_itself(tmp_path: Path) -> None:
    """Several workers may share a stream, so that each line has the name."""
    said = (("one", "info"), ("two", "warning", {"is_timed": False}))
    shown, _ = say(tmp_path, "auto", *said, names_node=True)
    assert re.sub(TIME, "T", shown) == "T poda   one\n  poda ! two\n"


def test_what_only_the_file_has(tmp_path: Path) -> None:
    """A line at `debug` is for the file; programs that read JSON get it on stderr, too."""
    said = (("first", "info"), ("details", "debug"))
    shown, kept = say(tmp_path, "auto", *said)
    assert "details" not in shown
    assert "details" in kept
    shown, _ = say(tmp_path, "json", *said)
    assert json.loads(shown.splitlines()[1])["level"] == "debug"


def test_the_date_is_said_at_midnight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first line of another day follows the date, with its zone."""

    class Clock(datetime):
        """A clock that the test sets."""

        at = datetime(2026, 11, 23, 23, 59, 59, tzinfo=timezone.utc)

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:  # noqa: ANN401 - a plain datetime
            """Return the set time."""
            return cls.at.astimezone(tz)

    monkeypatch.setattr(log, "datetime", Clock)
    one = log._Log()  # noqa: SLF001 - the module has one for the process
    one.set_file(tmp_path / "agent.log")
    one.say_title("pod-agent")
    one.say("before")
    Clock.at += timedelta(seconds=3)
    one.say("after")
    one.say("later")
    one._file_writer.finish()  # noqa: SLF001 - at the exit
    lines = re.sub(rf"^{TIME}", "T", (tmp_path / "agent.log").read_text(), flags=re.MULTILINE)
    assert lines.splitlines() == [
        "pod-agent · 2026-11-23 23:59:59 UTC",
        "T   before",
        "2026-11-24 00:00:02 UTC",
        "T   after",
        "T   later",
    ]


def test_a_line_for_machines(tmp_path: Path) -> None:
    """Four fields in order, one object per line, the same in the file."""
    shown, kept = say(tmp_path, "json", ("hällo", "info"), ("no", "error"))
    assert kept == shown
    first, second = (json.loads(line) for line in shown.splitlines())
    assert list(first) == ["event", "level", "timestamp", "node"]
    done = ("up", "done", {"subject": "Ray", "seconds": 2.04})
    third = json.loads(say(tmp_path, "json", done)[0])
    assert (third["subject"], third["seconds"], third["level"]) == ("Ray", 2.0, "info")
    assert (first["event"], first["level"], first["node"]) == ("hällo", "info", "poda")
    assert second["level"] == "error"
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\dT{TIME}(\.\d{{6}})?Z", first["timestamp"])
    assert "hällo" in shown


@pytest.mark.parametrize("style", ["auto", "json"])
def test_secrets_are_masked_wherever_they_stand(tmp_path: Path, style: str) -> None:
    """In the sentence and in the name; also a secret with a line break."""
    said = (("a s3cret-s3cret b", "info"), ("c of two\nlines d", "info"))
    shown, kept = say(tmp_path, style, *said, node="s3cret-s3cret")
    for text in (shown, kept):
        assert "s3cret" not in text
        assert "of two" not in text
        assert text.count("********") == (4 if style == "json" else 2)


@pytest.mark.parametrize("style", ["auto", "json"])
def test_no_name_forges_a_line(tmp_path: Path, style: str) -> None:
    """Control characters are escaped; foreign letters stay."""
    nasty = "x\n12:00:00 poda done\r\x1b[31m\x9b\x85\u2028\u202e\x7f\x00 \udc80 é漢\tend"
    shown, kept = say(tmp_path, style, (nasty, "info"), ("b", "info"), node="po\nda")
    for text in (shown, kept):
        assert len(text.splitlines()) == 2
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]", text)
        assert "é漢" in text
    event = json.loads(shown.splitlines()[0])["event"] if style == "json" else shown
    assert r"x\n12:00:00 poda done\r\x1b[31m\x9b\x85\u2028\u202e\x7f\x00 " in event
    assert "é漢\\tend" in event


def test_color_is_for_terminals(tmp_path: Path) -> None:
    """Colored only at a terminal, with AGENT_LOG=auto, without NO_COLOR."""
    plain = "T   a\nT ! b\nT ✗ c\nT ✓ d\n"
    colored = "T   a\n\033[33mT ! b\033[0m\n\033[31mT ✗ c\033[0m\nT \033[32m✓\033[0m d\n"
    assert at_terminal(tmp_path, "auto") == colored
    assert at_terminal(tmp_path, "auto", {"NO_COLOR": "1"}) == plain
    assert at_terminal(tmp_path, "auto", {"NO_COLOR": ""}) == colored
    assert at_terminal(tmp_path, "console") == plain


def test_structlog_comes_late() -> None:
    """Verbs that log nothing do not load it, nor rich, which it brings."""
    script = """
import sys
import agent.cli, agent.run.main
assert not {"structlog", "rich"} & sys.modules.keys()
from agent.record.log import say
say("hello")
assert "structlog" in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr[8:]) == (0, b"   hello\n")


def test_the_log_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of its largest size is renamed, and the former part deleted; no line is cut."""
    monkeypatch.setattr(log, "MOST_BYTES", 1000)
    path = tmp_path / "agent.log"
    for _ in range(2):  # an agent that replaces another goes on with its log
        one = log._Log()  # noqa: SLF001 - the module has one for the process
        one.set_file(path)
        for number in range(100):
            one.say(f"sentence {number}")
            await_idle(one._file_writer)  # noqa: SLF001 - as a slow log is written
        one._file_writer.finish()  # noqa: SLF001 - at the exit
    files = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert {*files} == {"agent.log", "agent.1.log"}
    assert max(map(len, files.values())) <= 1100
    lines = f"{files['agent.1.log']}{files['agent.log']}".splitlines()
    numbers = [int(line.rpartition(" ")[2]) for line in lines]
    assert numbers == [*range(100 - len(numbers), 100)]


def await_idle(writer: Writer) -> None:
    """Wait until a writer has written all lines."""
    deadline = time.monotonic() + 20
    while not writer.is_idle:
        assert time.monotonic() < deadline
        time.sleep(0.001)


DRAWS = """
import os, sys, time
from agent.record.log import configure, draw, end_drawing, say
from agent.processes.signals import exit_now
from agent.settings.redact import Redactor

configure(sys.argv[1], {"TERM": sys.argv[2]}, Redactor(()), "poda")
draw("waiting 1 s for Ray")
draw("waiting 2 s for " + "x" * 200)
say("up", "done", subject="Ray")
draw("waiting 3 s")
end_drawing()
print(draw("not any more"), flush=True)
exit_now(0)
"""


def drawn(style: str, term: str) -> str:
    """Draw at a terminal; return what it receives."""
    reader, terminal = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", DRAWS, style, term],
        cwd=ROOT,
        stderr=terminal,
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    return re.sub(TIME, "T", received(reader, terminal))


def test_a_line_is_drawn_again_at_a_terminal() -> None:
    """In its place, cut at the width; the next line replaces it, and at last nothing is left."""
    erase = "\r\033[K"
    long = "waiting 2 s for "
    assert drawn("auto", "xterm") == (
        f"{erase}T   waiting 1 s for Ray{erase}T   {long}{'x' * (79 - 11 - len(long))}"
        f"{erase}T \033[32m✓\033[0m Ray            up\r\n{erase}T   waiting 3 s{erase}"
    )


@pytest.mark.parametrize(("style", "term"), [("console", "xterm"), ("auto", "dumb")])
def test_nothing_is_drawn_elsewhere(style: str, term: str) -> None:
    """A terminal that cannot, and a log that is to be plain, have whole lines only."""
    shown = drawn(style, term)
    assert "waiting" not in shown
    assert "\r\033" not in shown
