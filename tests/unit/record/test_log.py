"""The agent's log from a reader's view: real code in a separate process."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.record import log

if TYPE_CHECKING:
    from agent.record.background import Writer

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys
from pathlib import Path
from agent.record.log import configure, log_to_file, say
from agent.processes.signals import exit_now
from agent.settings.redact import Redactor

style, node, path, *said = json.loads(sys.argv[1])
configure(style, dict(json.loads(sys.argv[2])), Redactor(["s3cret-s3cret", "of two\\nlines"]), node)
for at, (sentence, level) in enumerate(said):
    if at == 1:
        log_to_file(Path(path))
    say(sentence, level)
exit_now(0)
"""
TIME = r"\d\d:\d\d:\d\d"


def say(
    tmp_path: Path,
    style: str,
    *said: tuple[str, str],
    node: str = "poda",
    environ: dict[str, str] | None = None,
    stderr: int = subprocess.PIPE,
) -> tuple[str, str]:
    """Log sentences; return the lines on stderr and in the file."""
    file = tmp_path / "agent.log"
    words = [json.dumps([style, node, str(file), *said]), json.dumps(environ or {})]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], cwd=ROOT, stderr=stderr, timeout=60, check=True
    )
    return (done.stderr or b"").decode(), file.read_text() if file.exists() else ""


def at_terminal(tmp_path: Path, style: str, environ: dict[str, str] | None = None) -> str:
    """Log a warning on a terminal; return the output."""
    reader, terminal = pty.openpty()
    said = (("a", "info"), ("b", "warning"), ("c", "error"))
    _, kept = say(tmp_path, style, *said, environ=environ, stderr=terminal)
    shown = os.read(reader, 4096).decode().replace("\r\n", "\n")
    os.close(terminal)
    os.close(reader)
    assert "\033" not in kept
    return re.sub(TIME, "T", shown)


def test_a_line_for_people(tmp_path: Path) -> None:
    """Time, node, a mark for warnings and errors, the sentence: the same in the file."""
    said = (("hello %s {x}", "info"), ("beware", "warning"), ("no", "error"))
    shown, kept = say(tmp_path, "auto", *said)
    assert re.sub(TIME, "T", shown) == "T poda hello %s {x}\nT poda WARN beware\nT poda ERROR no\n"
    assert kept == shown


def test_no_name_no_gap(tmp_path: Path) -> None:
    """Before a node has a name, none is shown."""
    assert re.fullmatch(f"{TIME} hello\n", say(tmp_path, "console", ("hello", "info"), node="")[0])


def test_a_line_for_machines(tmp_path: Path) -> None:
    """Four fields in order, one object per line, the same in the file."""
    shown, kept = say(tmp_path, "json", ("hällo", "info"), ("no", "error"))
    assert kept == shown
    first, second = (json.loads(line) for line in shown.splitlines())
    assert list(first) == ["event", "level", "timestamp", "node"]
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
        assert text.count("********") == 4


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
    plain = "T poda a\nT poda WARN b\nT poda ERROR c\n"
    colored = "T poda a\n\033[33mT poda WARN b\033[0m\n\033[31mT poda ERROR c\033[0m\n"
    assert at_terminal(tmp_path, "auto") == colored
    assert at_terminal(tmp_path, "auto", {"NO_COLOR": "1"}) == plain
    assert at_terminal(tmp_path, "auto", {"NO_COLOR": ""}) == colored
    assert at_terminal(tmp_path, "console") == plain


def test_structlog_comes_late_and_alone(tmp_path: Path) -> None:
    """Verbs that log nothing do not load it; rich is never loaded for the log."""
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise SystemExit('rich was imported')")
    script = """
import sys
import agent.cli, agent.run.main
assert "structlog" not in sys.modules
from agent.record.log import say
say("hello")
assert "structlog" in sys.modules
assert "rich" not in sys.modules
"""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr[8:]) == (0, b" hello\n")


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
